//! Handles a request for an account (`bursar ensure`, a login hook). Checks whether the caller may ask, records the
//! request in the ledger, and answers whether the kubeconfig works.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::find;
use crate::desired::takes;
use crate::identity::{AccountKind, ClusterName};
use crate::ledger::change::{Change, Event};
use crate::ledger::{Account, CredentialKey, Delivery, LedgerState, Lifecycle, SourceState, Suspension, Tenant};
use crate::orders::request::{EnsureAnswer, EnsureRequest, RequestRefusal, Trigger};
use crate::policy::{CredentialKind, Policy};

/// How long the check of a home counts as current, and how long repeated requests count as one. A login hook that waits
/// asks several times a second.
const FRESH: SignedDuration = SignedDuration::from_secs(10);

/// The longest time that login hooks wait (docs/operations.md).
const LOGIN: SignedDuration = SignedDuration::from_secs(30);

/// The caller, as the kernel identifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// The login name for the history.
    pub actor: String,
    /// The uid of the calling process.
    pub uid: u32,
    /// The name of the uid on this host.
    pub name: Option<String>,
    /// Whether the caller may ask for every account.
    pub may_order: bool,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Ensured {
    /// Changes of the ledger, such as the time of the request.
    pub changes: Vec<Change>,
    /// Events of the history.
    pub events: Vec<Event>,
    /// The answer to the caller.
    pub answer: Result<EnsureAnswer, RequestRefusal>,
    /// The cycle that should run to make the account ready.
    pub wants: Option<Trigger>,
}

impl Ensured {
    fn refused(exit_code: u8, text: String) -> Self {
        let answer = Err(RequestRefusal { exit_code, text });
        Self { changes: Vec::new(), events: Vec::new(), answer, wants: None }
    }
}

/// Answers without waiting. A caller that wants to wait asks again.
#[must_use]
pub fn ensure(
    ledger: &LedgerState,
    policy: &Policy,
    caller: &Asker,
    request: &EnsureRequest,
    now: Timestamp,
) -> Ensured {
    let EnsureRequest { kind, name, since } = request;
    let account = match find(ledger, *kind, name) {
        Ok(account) if may_ask(ledger, caller, account) => account,
        Err(refusal) if refusal.exit_code == 4 && may_ask_for_new(caller, request) => {
            return unknown(ledger, refusal, *since, now);
        }
        // Before the first read, it is unknown who maintains the tool.
        Err(_) if ledger.sources.is_empty() => {
            let text = format!("{kind}:{name}: no directory has answered yet");
            let answer = Ok(EnsureAnswer { ready: false, text, kubeconfigs: Vec::new() });
            return Ensured { changes: Vec::new(), events: Vec::new(), answer, wants: Some(Trigger::Login) };
        }
        Err(refusal) if caller.may_order => return Ensured::refused(refusal.exit_code, refusal.text),
        // If the caller may not ask, the answer must not reveal which accounts exist.
        _ => {
            let text = format!(
                "you may not ask for {kind}:{name}: only root, members of both groups bursar and bursar-admin, the \
                 person and a tool's maintainers may"
            );
            return Ensured::refused(77, text);
        }
    };
    if let Some(why) = hopeless(ledger, policy, account) {
        return Ensured::refused(1, format!("{}: {why}", account.account_name()));
    }
    let before = ledger.last_use.get(&account.id);
    let is_new = before.is_none_or(|before| now.duration_since(*before).abs() >= FRESH);
    let mut changes: Vec<Change> = is_new.then(|| Change::Used(account.id.clone(), now)).into_iter().collect();
    let events = if before.is_none() { vec![asked(caller, account)] } else { Vec::new() };
    let mut wants = is_new;
    let mut missing = Vec::new();
    let mut kubeconfigs = Vec::new();
    let places: Vec<_> = ledger.tenants_of(&account.id).collect();
    if places.is_empty() {
        missing.push("it is being created".to_owned());
    }
    for (cluster, tenant) in places {
        match standing(ledger, policy, account, cluster, tenant, now) {
            Standing::Ready(kubeconfig) => kubeconfigs.extend(kubeconfig),
            Standing::Unseen(key, delivery) => {
                let looked = Delivery { checked_at: Some(Timestamp::UNIX_EPOCH), ..delivery };
                changes.push(Change::Delivery(key, Some(looked)));
                missing.push(format!("its kubeconfig for cluster {cluster} is being checked"));
                wants = true;
            }
            Standing::Waits { why, at_once } => {
                missing.push(why);
                wants |= at_once;
            }
        }
    }
    let name = account.account_name();
    let answer = match missing.as_slice() {
        [] => EnsureAnswer { ready: true, text: format!("{name}: ready"), kubeconfigs },
        missing => {
            EnsureAnswer { ready: false, text: format!("{name}: {}", missing.join("; ")), kubeconfigs: Vec::new() }
        }
    };
    let wants = (wants && !answer.ready).then_some(Trigger::Order);
    Ensured { changes, events, answer: Ok(answer), wants }
}

/// Whether the caller is an administrator, the person of the account, or maintains the tool.
fn may_ask(ledger: &LedgerState, caller: &Asker, account: &Account) -> bool {
    let is_caller = |account: &Account| {
        account.kind == AccountKind::User && account.posix.as_ref().is_some_and(|posix| posix.uid.get() == caller.uid)
    };
    let maintains = || ledger.accounts.values().any(|person| is_caller(person) && account.has_member(person));
    caller.may_order || is_caller(account) || (account.kind == AccountKind::Tool && maintains())
}

/// Whether the caller may ask for an account that the ledger does not have: true for an administrator, and for the
/// person of that name.
fn may_ask_for_new(caller: &Asker, request: &EnsureRequest) -> bool {
    caller.may_order || (request.kind == AccountKind::User && caller.name.as_ref() == Some(&request.name))
}

/// Answers for an account that the ledger does not know. The directories are read once after the caller began to ask. A
/// slow directory that was read recently is left out, because a login should not wait for a read that the schedule
/// makes anyway.
fn unknown(ledger: &LedgerState, refusal: RequestRefusal, since: Option<Timestamp>, now: Timestamp) -> Ensured {
    let since = since.unwrap_or(now - FRESH).min(now);
    let may_answer = |source: &&SourceState| source.read_at <= since && source.is_due_for_logins(since + LOGIN);
    let mut open = ledger.sources.values().filter(may_answer).peekable();
    if open.peek().is_none() && !ledger.sources.is_empty() {
        return Ensured::refused(refusal.exit_code, refusal.text);
    }
    let text = format!("{}; the directory is being read again", refusal.text);
    let answer = Ok(EnsureAnswer { ready: false, text, kubeconfigs: Vec::new() });
    let is_due = ledger.sources.is_empty() || open.any(|source| source.is_due_for_logins(now));
    Ensured { changes: Vec::new(), events: Vec::new(), answer, wants: is_due.then_some(Trigger::Login) }
}

/// Returns why waiting cannot make the account ready.
fn hopeless(ledger: &LedgerState, policy: &Policy, account: &Account) -> Option<String> {
    if let Some(note) = ledger.holds.get(&account.id) {
        return Some(format!("held by {} ({})", note.actor, note.reason));
    }
    match account.state {
        // An account that is suspended for idleness resumes because of this request.
        Lifecycle::Suspended if matches!(account.suspension.as_deref(), Some(Suspension::Idle { .. })) => {}
        Lifecycle::Suspended => return Some("suspended; `bursar why` shows the reason".to_owned()),
        Lifecycle::Archived | Lifecycle::Deleted => return Some(format!("its state is {}", account.state.as_str())),
        Lifecycle::New | Lifecycle::Active => {}
    }
    if let Some(mark) = &account.disabled {
        return Some(format!("disabled in the directory ({mark})"));
    }
    if account.state == Lifecycle::New && account.absence.is_some() {
        return Some("not in the directory".to_owned());
    }
    let has_place = ledger.tenants_of(&account.id).next().is_some();
    (!has_place && !takes(ledger, policy, account))
        .then(|| "no [class.NAME] of the configuration selects it".to_owned())
}

fn asked(caller: &Asker, account: &Account) -> Event {
    Event { actor: caller.actor.clone(), ..Event::new("asked for", "bursar ensure", json!({})).about(account) }
}

enum Standing {
    /// The credential works. If the class has homes, the value is the path of the kubeconfig.
    Ready(Option<std::path::PathBuf>),
    /// The kubeconfig worked at the last check, but that check is too old.
    Unseen(CredentialKey, Delivery),
    /// The account is not ready.
    Waits {
        why: String,
        /// Whether a cycle now can make the account ready.
        at_once: bool,
    },
}

fn standing(
    ledger: &LedgerState,
    policy: &Policy,
    account: &Account,
    cluster: &ClusterName,
    tenant: &Tenant,
    now: Timestamp,
) -> Standing {
    let place = (account.id.clone(), cluster.clone());
    let failure = ledger.failures.get(&place).filter(|failure| failure.attempts > 0);
    let waits = |what: &str| Standing::Waits {
        why: match failure {
            Some(failure) => format!("{} fails in cluster {cluster}: {}", failure.step, failure.reason),
            None => format!("{what} in cluster {cluster}"),
        },
        at_once: failure.is_none(),
    };
    let class = policy.classes.get(&tenant.class).filter(|class| class.home.is_some());
    let Some(rule) = class.and_then(|class| class.credential.as_ref()) else {
        let settled = ledger.settled.contains_key(&place);
        return if settled { Standing::Ready(None) } else { waits("it is being created") };
    };
    // If there are several hosts, only the first is checked, because the caller runs on none of them.
    let host = rule.hosts().first().cloned().unwrap_or_default();
    let key = CredentialKey::new(place.0, place.1).on(&host);
    let good = match rule.kind {
        CredentialKind::Oidc(_) => true,
        CredentialKind::Certificate { .. } | CredentialKind::ServiceAccount { .. } => {
            let certificate = ledger.certificates.get(&key);
            certificate.is_some_and(|it| it.generation == account.generation && it.not_after > now)
        }
    };
    let Some(delivery) = ledger.deliveries.get(&key).filter(|it| good && it.may_hold_a_credential()) else {
        return waits("its credential is being issued");
    };
    match delivery.checked_at {
        None => waits("its kubeconfig is being written again"),
        Some(at) if now.duration_since(at).abs() < FRESH => Standing::Ready(Some(delivery.path.clone())),
        Some(at) if at == Timestamp::UNIX_EPOCH => waits("its kubeconfig is being checked"),
        Some(_) => Standing::Unseen(key, delivery.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::World;

    /// Returns the exit code and the trigger if a person without an account asks.
    fn asks(world: &World, since: Timestamp, now: Timestamp) -> (Option<u8>, Option<Trigger>) {
        let name = "nobody".to_owned();
        let caller = Asker { actor: name.clone(), uid: 65_534, name: Some(name.clone()), may_order: false };
        let request = EnsureRequest { kind: AccountKind::User, name, since: Some(since) };
        let Ensured { answer, wants, .. } = ensure(&world.ledger, &world.policy, &caller, &request, now);
        (answer.err().map(|refusal| refusal.exit_code), wants)
    }

    #[test]
    fn endless_requests_cause_few_reads_of_a_directory() {
        let mut world = World::new();
        let (began, mut reads) = (world.now, 0);
        for at in 1..=120 {
            let now = began + SignedDuration::from_secs(at);
            let (refused, wants) = asks(&world, now, now);
            assert_eq!(refused, None, "{at}");
            assert!(matches!(wants, None | Some(Trigger::Login)), "a login starts {wants:?}");
            if wants.is_some() {
                reads += 1;
                world.ledger.sources.values_mut().for_each(|source| source.read_at = now);
            }
        }
        assert!((20..=24).contains(&reads), "{reads} reads in two minutes");
    }

    #[test]
    fn a_login_does_not_wait_for_a_slow_directory() {
        let mut world = World::new();
        world.ledger.sources.values_mut().for_each(|source| source.took_ms = 60_000);
        let at = |seconds| world.now + SignedDuration::from_secs(seconds);
        assert_eq!(asks(&world, at(1), at(1)), (Some(4), None));
        assert_eq!(asks(&world, at(230), at(230)), (None, None));
        assert_eq!(asks(&world, at(230), at(240)), (None, Some(Trigger::Login)));
        assert_eq!(asks(&world, at(-1), at(1)), (Some(4), None), "a read followed the request");
    }
}
