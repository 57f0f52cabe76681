//! Renders a plan as text and as JSON.
//!
//! The text has one line per account. It begins with `+` if access is given, with `-` if access is removed, else with
//! `~`. A line with `!` is a finding that no plan can remedy. Structs are destructured here, so that a new field cannot
//! be forgotten.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use super::adopted::is_of_others;
use super::budget::REMOVED;
use super::guard::{ABSENCE, ATTRIBUTES, ApprovedPlan, COMPLETENESS, EMPTIED, IMPORT, Refusal, refused_hash};
use super::limit_usage::LimitUse;
use super::pace::Progress;
use super::realm::RealmPlan;
use super::realm::guard::{ApprovedRealmPlan, ROLES, USERS};
use super::reaper::Waiting;
use super::revocation;
use super::wording::{counted, number, objects};
use super::{AccountPlan, Action, Notice, Plan, Reason};
use crate::desired::quota::stops_pods;
use crate::desired::{DesiredCredential, Proof, Regeneration, Transition};
use crate::identity::{AccountKind, AccountName};
use crate::kinds::{Detail, ObjectKey};
use crate::ledger::missing::Missing;
use crate::ledger::{Ending, LedgerState, Lifecycle, Note, SourceState, Suspension};
use crate::snapshot::{Completeness, RejectedEntry};

/// Everything that `bursar plan` shows.
#[derive(Debug, Clone)]
pub struct Preview<'a> {
    /// The last read of each source.
    pub sources: &'a BTreeMap<String, SourceState>,
    /// Entries that failed a check.
    pub rejected: &'a BTreeSet<RejectedEntry>,
    /// Accounts that are absent, but whose suspension is not due yet.
    pub missing: Vec<Missing>,
    /// The plan before the guard.
    pub plan: &'a Plan,
    /// The progress of policy changes after the plan.
    pub pace: Vec<Progress>,
    /// Revocations of classes that are in progress before the plan.
    pub revocations: Vec<revocation::Progress>,
    /// What reapers leave to later cycles.
    pub reaped_later: &'a Waiting,
    /// Limits that are nearly used up after the plan.
    pub near: Cow<'a, [LimitUse]>,
    /// What the guards refuse of the plan and of the realm's plan.
    pub refusals: Cow<'a, [Refusal]>,
    /// The realm's plan before its guard, or why there is none; `None` if no realm is configured.
    pub realm: Option<Result<&'a RealmPlan, &'a str>>,
}

impl<'a> Preview<'a> {
    /// Makes a preview without a realm. Sources and rejected entries are those of the ledger.
    #[must_use]
    pub fn of(ledger: &'a LedgerState, plan: &'a Plan, approved: &'a ApprovedPlan, refusals: &'a [Refusal]) -> Self {
        let (pace, revocations, near) = (approved.progress(ledger), revocation::Progress::of(ledger), approved.near());
        Self {
            sources: &ledger.sources,
            rejected: &ledger.rejected,
            missing: Missing::of(ledger),
            plan,
            pace,
            revocations,
            reaped_later: approved.reaped_later(),
            near: Cow::Borrowed(near),
            refusals: Cow::Borrowed(refusals),
            realm: None,
        }
    }

    /// Adds the realm's plan, or why there is none.
    #[must_use]
    pub fn with_realm(self, realm: Result<(&'a RealmPlan, &ApprovedRealmPlan, &[Refusal]), &'a str>) -> Self {
        let (plan, near, refusals) = match realm {
            Ok((plan, approved, refusals)) => (Ok(plan), approved.near(), refusals),
            Err(why) => (Err(why), &[][..], &[][..]),
        };
        Self {
            near: [&self.near, near].concat().into(),
            refusals: [&self.refusals, refusals].concat().into(),
            realm: Some(plan),
            ..self
        }
    }

    /// Returns the exit code of `bursar plan`: 0 if nothing is to do, 2 if there are changes, 3 if a part is refused.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let nothing_there = !matches!(self.realm, Some(Ok(realm)) if !realm.steps.is_empty());
        match (self.refusals.is_empty(), self.plan.is_empty() && nothing_there) {
            (false, _) => 3,
            (true, false) => 2,
            (true, true) => 0,
        }
    }

    /// Returns the JSON form: a list of all actions, each with its account, and the refusals with the hash to approve.
    #[must_use]
    pub fn json(&self) -> Value {
        let Self { sources, rejected, missing, plan, pace, revocations, reaped_later, near, refusals, realm } = self;
        let Plan { accounts, unchanged, waiting, abandoned, notices, over_quota, unowned, unknown } = plan;
        let there = realm.iter().filter_map(|realm| realm.as_ref().ok()).flat_map(|realm| realm.json());
        let actions: Vec<Value> = accounts.iter().flat_map(actions_json).chain(there).collect();
        let refused = (!refusals.is_empty()).then(|| json!({"hash": refused_hash(refusals), "limits": refusals}));
        json!({
            "sources": sources,
            "rejected": rejected,
            "missing": missing,
            "actions": actions,
            "accounts": accounts.iter().filter(|plan| plan.changes_something()).map(account_json).collect::<Vec<_>>(),
            "unchanged": unchanged,
            "waiting": waiting,
            "abandoned": abandoned,
            "notices": notices,
            "over_quota": over_quota,
            "unowned": unowned,
            "unknown": unknown,
            "refused": refused,
            "near": near,
            "pace": pace,
            "revocations": revocations,
            "pods_waiting": reaped_later.pods,
            "idle_waiting": reaped_later.idle,
            "realm": realm.map(|realm| match realm {
                Ok(realm) => json!({"name": realm.realm, "notices": realm.notices}),
                Err(why) => json!({"trouble": why}),
            }),
        })
    }
}

impl Serialize for Preview<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

fn actions_json(plan: &AccountPlan) -> Vec<Value> {
    let shown = plan.steps().filter(|action| !action.is_look());
    shown
        .map(|action| {
            let mut value = json!(action);
            value["account"] = json!(plan.account);
            value["id"] = json!(plan.id);
            value["held"] = json!(plan.held.is_some());
            value
        })
        .collect()
}

/// Returns the JSON of an account without its actions, which are in the list of all actions.
fn account_json(plan: &AccountPlan) -> Value {
    let mut value = json!(plan);
    if let Some(fields) = value.as_object_mut() {
        fields.remove("narrowing");
        fields.remove("actions");
    }
    value
}

impl fmt::Display for Preview<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sources, rejected, missing, plan, pace, revocations, reaped_later, near, refusals, realm } = self;
        for (name, source) in *sources {
            writeln!(f, "directory  {name}  {}", answered(source))?;
        }
        f.write_str(&lines(plan, refusals))?;
        for RejectedEntry { source: _, kind, dn, name, id: _, why, disabled: _, reason: _ } in *rejected {
            let name = name.as_deref().unwrap_or("(no name)");
            writeln!(f, "! {kind} {name}  {why} ({dn})")?;
        }
        let shown = || plan.accounts.iter().filter(|account| account.changes_something());
        let held = shown().filter(|account| account.held.is_some()).count() as u64;
        let done = shown().filter_map(AccountPlan::done).filter(|account| account.changes_something());
        let changes = number(done.count() as u64);
        let held = if held == 0 { String::new() } else { format!("{} held, ", number(held)) };
        let rejected = match rejected.len() as u64 {
            0 => String::new(),
            count => format!("{} rejected, ", number(count)),
        };
        writeln!(f, "{changes} to change, {held}{rejected}{} as they should be.", number(plan.unchanged))?;
        missing.iter().try_for_each(|missing| writeln!(f, "{missing}"))?;
        refusals.iter().try_for_each(|refusal| writeln!(f, "{refusal}"))?;
        let waits = pace.iter().filter(|progress| progress.waiting > 0 || !progress.stopped_by.is_empty());
        waits.into_iter().try_for_each(|progress| writeln!(f, "{}", progress.ahead()))?;
        revocations.iter().try_for_each(|progress| writeln!(f, "{progress}"))?;
        let Waiting { pods, idle } = reaped_later;
        if *pods > 0 {
            writeln!(f, "left to later cycles by reaper.pods.per_cycle: {}", counted(*pods, "pod"))?;
        }
        if !idle.is_empty() {
            let names: Vec<&str> = idle.iter().map(|account| account.name.as_str()).collect();
            writeln!(f, "left to later cycles by reaper.namespaces.per_cycle: {}", names.join(", "))?;
        }
        near.iter().try_for_each(|near| writeln!(f, "{near}"))?;
        match realm {
            Some(Ok(realm)) => realm.fmt(f),
            Some(Err(why)) => writeln!(f, "! {why}"),
            None => Ok(()),
        }
    }
}

/// Describes a read, such as `ldap1.example.org  complete, 3 512 entries in 0.2 s`.
fn answered(source: &SourceState) -> String {
    let SourceState {
        server,
        completeness,
        entries,
        took_ms,
        numbers,
        read_at: _,
        complete_at: _,
        way: _,
        compared: _,
        servers: _,
        failures: _,
        unresolved: _,
    } = source;
    let server = server.as_deref().unwrap_or("no server");
    let took = format!("{} entries in {}.{} s", number(*entries), took_ms / 1000, took_ms % 1000 / 100);
    let numbers = numbers.as_ref().map(|numbers| format!(", {numbers}")).unwrap_or_default();
    match completeness {
        Completeness::Complete => format!("{server}  complete, {took}{numbers}"),
        Completeness::Partial { why } => format!("{server}  partial, {took}{numbers}: {why}"),
        Completeness::Stale { server, why } => format!("{server}  stale, not used: {why}"),
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, class, allowed, wanted, what, accounts, hash, parts: _ } = self;
        let names: Vec<&str> = accounts.iter().map(|account| account.name.as_str()).collect();
        let names = names.join(", ");
        if limit == COMPLETENESS {
            return write!(
                f,
                "refused: {} {what} wait for a complete read of {class}, because the last one was not complete: \
                 {names}",
                accounts.len()
            );
        }
        match limit.as_str() {
            ATTRIBUTES => {
                let (before, now) = (number(*wanted), number(*allowed));
                write!(f, "refused: {what}: {before} accounts of {class} had it, {now} have it now")?;
                return match hash {
                    Some(hash) => {
                        write!(f, ". The old values stay in force. If it was removed on purpose: bursar approve {hash}")
                    }
                    None => write!(f, ". Accounts without it keep the uids that they had"),
                };
            }
            IMPORT => {
                return write!(
                    f,
                    "refused: {} {what} of {class} are missing, and others have their names and uids under new ids, such \
                     as {}. This looks like a new import, so none of them is suspended. If they are the same: bursar \
                     directory imported > FILE; bursar adopt import FILE",
                    number(*wanted),
                    accounts.first().map_or("", |account| account.name.as_str())
                );
            }
            ABSENCE if what.is_empty() => {
                return write!(
                    f,
                    "refused: no server of {class} could be asked for {names} alone. They stay as they are; the next read \
                     asks again"
                );
            }
            ABSENCE => {
                return write!(f, "refused: the servers of {class} disagree about whether {names} is there: {what}");
            }
            EMPTIED => {
                return write!(
                    f,
                    "refused: {} groups of {class} show no member at once, such as {}. They keep their members. If they \
                     are really empty: bursar directory accept {class}",
                    number(*wanted),
                    accounts.first().map_or("", |account| account.name.as_str())
                );
            }
            _ => write!(f, "refused by limit {limit} ({allowed} left): ")?,
        }
        match what.as_str() {
            "members" => write!(f, "{wanted} members leave, refused for {names}")?,
            REMOVED => write!(f, "{wanted} {what} because of the configuration or a label, refused for {names}")?,
            USERS => write!(f, "{} of {wanted} users disabled in the realm: {names}", accounts.len())?,
            ROLES => write!(f, "{wanted} roles are taken in the realm, refused for {names}")?,
            _ => write!(f, "{} of {wanted} {what}: {names}", accounts.len())?,
        }
        match hash {
            Some(hash) => write!(f, ". To allow exactly these: bursar approve {hash}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&lines(self, &[]))
    }
}

/// Returns a line for each account with its steps and findings, and for each cluster in which nothing is done.
fn lines(plan: &Plan, refusals: &[Refusal]) -> String {
    let Plan { accounts, unchanged: _, waiting, abandoned, notices, over_quota, unowned, unknown } = plan;
    let mut said: BTreeMap<&AccountName, Vec<String>> = BTreeMap::new();
    for Notice { account, text } in notices {
        said.entry(account).or_default().push(text.clone());
    }
    for over in over_quota {
        said.entry(&over.account).or_default().push(over.to_string());
    }
    let (marks, shown) = (marks(refusals), accounts.iter().filter(|plan| plan.changes_something()));
    let lines: Vec<Line> = shown
        .map(|plan| {
            let mut line = line(plan, marks.get(&plan.account));
            // Two accounts may have the same name for a while. Only the first one gets the texts.
            if let Some(texts) = said.remove(&plan.account) {
                line.detail = [vec![line.detail], texts].concat().join("; ");
            }
            line
        })
        .collect();
    let width = |text: fn(&Line) -> &str| lines.iter().map(|line| text(line).chars().count()).max().unwrap_or(0);
    let (names, uids, whats) = (width(|line| &line.name), width(|line| &line.uid), width(|line| &line.what));
    let accounts = lines.iter().map(|Line { sign, name, uid, what, detail }| {
        let text = format!("{sign} {name:names$}  {uid:uids$}  {what:whats$}  {detail}");
        text.trim_end().to_owned()
    });
    let waiting = waiting.iter().map(|(cluster, count)| {
        format!("! cluster {cluster}  does not answer: {} waiting for it", counted(*count, "tenant"))
    });
    let abandoned = abandoned.iter().map(|(cluster, count)| {
        let what = counted(*count, "tenant");
        format!("! cluster {cluster}  is not in the configuration: nothing is done there for {what}")
    });
    let unowned = unowned.iter().map(|unowned| format!("! {unowned}"));
    let unknown = unknown.iter().map(|unknown| format!("! {unknown}"));
    let said =
        said.into_iter().map(|(account, texts)| format!("! {} {}  {}", account.kind, account.name, texts.join("; ")));
    let all = accounts.chain(waiting).chain(abandoned).chain(unowned).chain(unknown).chain(said);
    all.map(|line| line + "\n").collect()
}

/// Returns the mark that precedes the details of each refused account.
fn marks(refusals: &[Refusal]) -> BTreeMap<&AccountName, String> {
    let mut marks = BTreeMap::new();
    for Refusal { limit, what, accounts, .. } in refusals {
        let mark = match (limit.as_str(), what.as_str()) {
            (ATTRIBUTES | IMPORT | ABSENCE | EMPTIED, _) | (_, USERS | ROLES) => continue,
            (_, REMOVED) => format!("partly refused ({limit})"),
            _ => format!("refused ({limit})"),
        };
        marks.extend(accounts.iter().map(|account| (account, mark.clone())));
    }
    marks
}

struct Line {
    sign: char,
    name: String,
    uid: String,
    what: String,
    detail: String,
}

fn line(plan: &AccountPlan, refused: Option<&String>) -> Line {
    let (sign, what) = headline(plan);
    let mut detail = details(plan);
    if let Some(mark) = refused {
        detail = format!("{mark}: {detail}");
    }
    if let Some(Note { actor, reason, .. }) = &plan.held {
        let shown = |text: &str| if text.is_empty() { String::new() } else { format!(": {text}") };
        let done = plan.otherwise.as_deref().filter(|done| done.changes_something());
        detail = match done {
            None => format!("held by {actor} ({reason}), not done{}", shown(&detail)),
            Some(done) => {
                let done = details(done);
                format!("held by {actor} ({reason}), done despite the hold{}; planned{}", shown(&done), shown(&detail))
            }
        };
    }
    Line {
        sign,
        name: format!("{} {}", plan.account.kind, plan.account.name),
        uid: plan.posix.as_ref().map_or_else(|| "-".to_owned(), |posix| posix.uid.to_string()),
        what,
        detail,
    }
}

/// Returns the sign of an account's line, and a summary of the change.
pub(crate) fn headline(plan: &AccountPlan) -> (char, String) {
    match (&plan.transition, &plan.regenerated) {
        (Some(Transition::Create), _) => ('+', "new".to_owned()),
        (Some(Transition::Resume), _) => match plan.before.state {
            Lifecycle::Archived | Lifecycle::Deleted => ('+', returned(plan).to_owned()),
            _ => ('+', "resumed".to_owned()),
        },
        (Some(Transition::Archive | Transition::Delete { .. }), _) => ('-', waited(plan)),
        (Some(Transition::Gone), _) => ('-', "deleted".to_owned()),
        (Some(Transition::Suspend(why)), _) => ('-', cause(why, plan)),
        (None, _) if !plan.leaving.is_empty() => ('-', members(plan)),
        (None, Some(Regeneration::Revoked(note))) => ('~', format!("revoked by {}", note.actor)),
        (None, _) if only_warns(plan) => ('~', "idle".to_owned()),
        (None, _) if !plan.adopted.is_empty() && plan.steps().next().is_none() => ('~', "quota edited".to_owned()),
        (None, _) => only_reason(plan),
    }
}

fn only_warns(plan: &AccountPlan) -> bool {
    plan.narrowing.is_empty()
        && !plan.actions.is_empty()
        && plan.actions.iter().all(|action| matches!(action, Action::WarnIdle { .. } | Action::WarnPod { .. }))
}

/// Returns why the account is resumed, as a text.
#[must_use]
pub fn returned(plan: &AccountPlan) -> &'static str {
    match (plan.before.state, plan.before.ending) {
        (Lifecycle::Deleted, _) | (Lifecycle::Archived, Some(Ending::Deletion { .. })) => "back after its deletion",
        (Lifecycle::Archived, _) => "back before its deletion",
        _ if matches!(plan.before.suspension, Some(Suspension::Idle { .. })) => "asked for again",
        _ if plan.before.suspension.as_ref().is_some_and(Suspension::is_over) => "its suspension has ended",
        _ => "back in the directory",
    }
}

/// Returns the state and how long it was counted, as the cause of an archive or a deletion.
#[must_use]
pub fn waited(plan: &AccountPlan) -> String {
    let state = plan.before.state.as_str();
    match plan.before.ending.as_ref().and_then(Ending::counted).map_or(0, |counted| counted.seconds) {
        0 => state.to_owned(),
        seconds if seconds < 7200 => format!("{state} {} min", seconds / 60),
        seconds if seconds < 48 * 3600 => format!("{state} {} h", seconds / 3600),
        seconds => format!("{state} {} d", seconds / (24 * 3600)),
    }
}

fn members(plan: &AccountPlan) -> String {
    let names: Vec<&str> = plan.leaving.values().map(|member| member.name.as_str()).collect();
    format!("{} left", names.join(", "))
}

/// Returns why an account is, or is to be, suspended, as a text.
#[must_use]
pub fn cause(why: &Suspension, plan: &AccountPlan) -> String {
    match why {
        Suspension::Absent => match plan.before.absence.map_or(0, |absence| absence.seconds) {
            0 => "absent".to_owned(),
            seconds if seconds < 7200 => format!("absent {} min", seconds / 60),
            seconds => format!("absent {} h", seconds / 3600),
        },
        Suspension::Disabled { mark } => format!("disabled ({mark})"),
        Suspension::Ordered { note: Note { actor, reason, ticket, at: _ }, .. }
        | Suspension::Evicted { note: Note { actor, reason, ticket, at: _ }, since: _ } => {
            let ticket = ticket.as_ref().map(|ticket| format!(", {ticket}")).unwrap_or_default();
            format!("ordered by {actor}{}: {reason}{ticket}", why.end())
        }
        Suspension::Left => "in no class any more".to_owned(),
        Suspension::Idle { since } => format!("idle since {since:.0}"),
    }
}

/// Returns the sign and the summary of a plan without a change of the lifecycle state: its most important reason, such
/// as `quota changed`.
fn only_reason(plan: &AccountPlan) -> (char, String) {
    let mut reasons: BTreeSet<(u8, String)> = BTreeSet::new();
    let mut gone = plan.steps().next().is_some();
    for action in plan.steps() {
        let (thing, reason) = match action {
            Action::Apply { key, reason, .. } | Action::Delete { key, reason, .. } => (key.kind.noun(), reason),
            Action::Deliver { credential, reason, .. } => (credential.proof.noun(), reason),
            Action::RemoveKubeconfig { reason, .. } => ("kubeconfig", reason),
            Action::SshKeys { reason: Some(reason), .. } => ("SSH keys", reason),
            Action::ReapPod { reason, .. } => ("pod", reason),
            _ => continue,
        };
        gone &= matches!(reason, Reason::Orphaned | Reason::Suspended | Reason::Outlived(_));
        reasons.insert((weight(reason), said(thing, reason)));
    }
    let what = reasons.into_iter().next().map_or_else(|| "unfinished".to_owned(), |(_, what)| what);
    (if gone { '-' } else { '~' }, what)
}

/// Returns the rank of a reason. The summary shows the reason with the lowest rank.
fn weight(reason: &Reason) -> u8 {
    match reason {
        Reason::Changed(_) => 0,
        Reason::Drifted(_) => 1,
        Reason::Missing => 2,
        Reason::Orphaned => 3,
        Reason::Suspended => 4,
        Reason::Revoked => 5,
        Reason::Expiring(_) => 6,
        Reason::Outlived(_) => 7,
    }
}

fn said(thing: &str, reason: &Reason) -> String {
    match reason {
        // The details show the amounts.
        Reason::Changed(_) if thing == "quota" => "quota changed".to_owned(),
        Reason::Drifted(_) if thing == "quota" => "quota edited by somebody else".to_owned(),
        Reason::Changed(fields) if fields.is_empty() => format!("{thing} changed"),
        Reason::Changed(fields) => format!("{} changed", fields.join(", ")),
        Reason::Drifted(fields) if fields.is_empty() => format!("{thing} edited by somebody else"),
        Reason::Drifted(fields) => format!("{} edited by somebody else", fields.join(", ")),
        Reason::Outlived(_) => format!("{thing} past its lifetime"),
        Reason::Revoked => format!("{thing} of an older generation"),
        other => format!("{thing} {other}"),
    }
}

/// Lists the steps, such as `namespace tool-foo, quota, limits, 4 network policies, role binding, certificate,
/// kubeconfig`.
fn details(plan: &AccountPlan) -> String {
    let written = written(plan);
    let deleted = placed(
        plan,
        plan.steps().filter_map(|action| match action {
            Action::Delete { key, .. } if !stops_pods(key) => Some(key),
            _ => None,
        }),
    );
    let deleted = deleted.into_iter().map(|object| format!("{object} removed"));
    let starts = plan.steps().any(|action| matches!(action, Action::Delete { key, .. } if stops_pods(key)));
    let deleted = deleted.chain(starts.then(|| "new pods allowed".to_owned()));
    // A group has no certificate; its people have their own.
    let holds = plan.account.kind != AccountKind::Group;
    let revoked = holds && matches!(plan.regenerated, Some(Regeneration::Suspended));
    let revoked = revoked.then(|| "certificates revoked".to_owned());
    let others = plan.steps().filter_map(|action| match action {
        Action::Apply { .. }
        | Action::Delete { .. }
        | Action::ProveRevoked { .. }
        | Action::SshKeys { reason: None, .. }
        | Action::InspectKubeconfig { .. } => None,
        Action::MakeDirectory { directory, .. } => Some(format!("directory {}", directory.path.display())),
        Action::StopWorkloads { .. } => Some("workloads stopped".to_owned()),
        Action::Evict { .. } => Some("tokens of service accounts removed".to_owned()),
        Action::ResumeWorkloads { stopped, .. } => {
            Some(format!("{} resumed", counted(stopped.len() as u64, "workload")))
        }
        Action::Deliver { credential, reason, .. } => Some(delivered(credential, reason)),
        Action::RemoveKubeconfig { host, notice, .. } => {
            let what = if notice.is_some() { "replaced by a notice" } else { "removed" };
            let of = if host.is_any() { String::new() } else { format!(" of {host}") };
            Some(format!("kubeconfig{of} {what}"))
        }
        Action::SshKeys { keys, .. } if keys.is_empty() => Some("SSH keys removed".to_owned()),
        Action::SshKeys { keys, .. } => Some(counted(keys.len() as u64, "SSH key")),
        Action::SetLevel { namespace, level, .. } => {
            Some(format!("foreign namespace {namespace} gets Pod Security level {}", level.as_str()))
        }
        Action::WarnIdle { namespace, until, .. } => {
            Some(format!("people of {namespace} warned: suspended {until:.0} if nothing runs until then"))
        }
        Action::WarnPod { namespace, name, until, .. } => {
            Some(format!("people of pod {namespace}/{name} told that it ends {until:.0}"))
        }
        Action::ReapPod { namespace, name, job, .. } => Some(match job {
            Some(job) => format!("pod {namespace}/{name} deleted, with all of job {job}"),
            None => format!("pod {namespace}/{name} deleted"),
        }),
        Action::Archive { namespace, .. } => Some(format!("namespace {namespace} archived")),
        Action::DeleteNamespace { namespace, .. } => Some(format!("namespace {namespace} deleted")),
        Action::AwaitDeletion { namespace, .. } => Some(format!("namespace {namespace} is being deleted")),
    });
    let suspends = matches!(plan.transition, Some(Transition::Suspend(_)));
    let all: Vec<String> = if suspends {
        // Objects that are written stay. The text says so, because next to removals it would read as if they were
        // removed too.
        let (stays, written): (Vec<String>, Vec<String>) =
            written.into_iter().partition(|what| what.starts_with("namespace "));
        let is_said = |what: &String| what == NO_PODS || what.contains('→');
        let written = written.into_iter().map(|what| if is_said(&what) { what } else { format!("{what} updated") });
        let stays = (!stays.is_empty()).then(|| format!("{} and all data stay", stays.join(", ")));
        deleted.chain(revoked).chain(others).chain(written).chain(stays).collect()
    } else {
        written.into_iter().chain(deleted).chain(others).collect()
    };
    let all = all.join(", ");
    if plan.transition == Some(Transition::Archive) {
        return if all.is_empty() {
            "archived: it may be deleted".to_owned()
        } else {
            format!("archived: it may be deleted; {all}")
        };
    }
    if suspends && !all.is_empty() { format!("suspend: {all}") } else { all }
}

/// Describes a delivery, such as `certificate, kubeconfig`.
fn delivered(credential: &DesiredCredential, reason: &Reason) -> String {
    let ends = match reason {
        Reason::Expiring(at) => format!(" (the old one ends {at:.0})"),
        _ => String::new(),
    };
    match &credential.proof {
        Proof::Certificate { .. } => format!("certificate{ends}, kubeconfig"),
        Proof::Token(_) => format!("token for {}{ends}, kubeconfig", credential.host),
        Proof::Oidc(_) => "kubeconfig for logins".to_owned(),
    }
}

/// The text for a quota that stops new pods.
const NO_PODS: &str = "new pods refused";

/// Lists the objects that are applied. For a quota, lists the changed amounts instead, if they are known.
fn written(plan: &AccountPlan) -> Vec<String> {
    let applied = || {
        plan.steps().filter_map(|action| match action {
            Action::Apply { key, reason, .. } if !stops_pods(key) => Some((key, amounts(key, reason))),
            _ => None,
        })
    };
    let adopted = plan.adopted.iter().map(|adoption| {
        format!("{} becomes an override; it was edited with {}", adoption.said(), adoption.editors.join(", "))
    });
    let amounts = applied().flat_map(|(_, amounts)| amounts.iter().cloned());
    let others = placed(plan, applied().filter(|(_, amounts)| amounts.is_empty()).map(|(key, _)| key));
    let stops = plan.steps().any(|action| matches!(action, Action::Apply { key, .. } if stops_pods(key)));
    adopted.chain(amounts).chain(others).chain(stops.then(|| NO_PODS.to_owned())).collect()
}

/// Lists objects like [`objects`]. Objects in foreign namespaces are listed with the namespace.
fn placed<'a>(plan: &AccountPlan, keys: impl Iterator<Item = &'a ObjectKey>) -> Vec<String> {
    let mut own = Vec::new();
    let mut elsewhere: BTreeMap<&str, Vec<&ObjectKey>> = BTreeMap::new();
    for key in keys {
        match key.namespace.as_deref().filter(|_| is_of_others(key, |there| plan.namespaces.contains(there))) {
            Some(there) => elsewhere.entry(there).or_default().push(key),
            None => own.push(key),
        }
    }
    let elsewhere = elsewhere.into_iter().flat_map(|(there, keys)| {
        objects(keys.into_iter()).into_iter().map(move |object| format!("{object} in {there}"))
    });
    objects(own.into_iter()).into_iter().chain(elsewhere).collect()
}

fn amounts<'a>(key: &ObjectKey, reason: &'a Reason) -> &'a [String] {
    match reason {
        Reason::Changed(fields) | Reason::Drifted(fields) if key.kind.detail() == Detail::QuotaHard => fields,
        _ => &[],
    }
}
