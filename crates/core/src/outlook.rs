//! Previews beyond the next cycle: what another configuration would change, and what becomes due until a later time.
//! They assume that the directories and the clusters do not change. Nothing is executed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::desired::Transition;
use crate::evolve::{Evolved, Inputs, evolve};
use crate::identity::{AccountId, AccountName};
use crate::kinds::Stage;
use crate::ledger::exception::Exception;
use crate::ledger::gaps::{LONGEST_GAP, later};
use crate::ledger::quota::QuotaOverride;
use crate::ledger::term::Term;
use crate::ledger::{Absence, Account, Ending, LedgerState, Suspension};
use crate::plan::display::headline;
use crate::plan::guard::Bounds;
use crate::plan::spread::Spread;
use crate::plan::{AccountPlan, Action, Planner, Reason};
use crate::policy::Policy;
use crate::snapshot::{Completeness, DirectorySnapshot};

/// The maximum number of steps of a [`Lookahead`]. With this limit, a preview of a year takes seconds even for a large
/// site.
const MOMENTS: i64 = 200;
/// The maximum number of names in a line of text. The JSON has all of them.
const NAMES: usize = 20;

/// The effects that another configuration would have, compared with the one in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Accounts that gain access only with the other configuration.
    pub gain: Vec<AccountName>,
    /// Accounts that lose access only with the other configuration.
    pub lose: Vec<AccountName>,
    /// The changes that take more than one cycle under the limits.
    pub spread: Vec<Spread>,
}

impl Difference {
    /// Compares the plans of two configurations for the same ledger, directories and clusters.
    #[must_use]
    pub fn of(in_force: &Evolved, other: &Evolved, policy: &Policy, now: Timestamp) -> Self {
        let (bounds, progress) = (Bounds::of(&other.known, policy), other.approved.progress(&other.known));
        let only = |accounts: fn(&AccountPlan) -> bool| {
            let before: BTreeSet<&AccountId> = changed(in_force, accounts).map(|plan| &plan.id).collect();
            let after = changed(other, accounts).filter(|plan| !before.contains(&plan.id));
            after.map(|plan| plan.account.clone()).collect()
        };
        Self { gain: only(gains), lose: only(loses), spread: Spread::of(&other.plan, &progress, &bounds, now) }
    }
}

fn changed(evolved: &Evolved, is: fn(&AccountPlan) -> bool) -> impl Iterator<Item = &AccountPlan> {
    evolved.plan.accounts.iter().filter_map(AccountPlan::done).filter(move |plan| is(plan))
}

fn gains(plan: &AccountPlan) -> bool {
    let grants = |action: &Action| match action {
        Action::Apply { key, reason: Reason::Missing | Reason::Changed(_), .. } => key.kind.stage() == Stage::Access,
        _ => false,
    };
    match plan.transition {
        Some(Transition::Create | Transition::Resume) => true,
        Some(_) => false,
        None => plan
            .actions
            .iter()
            .enumerate()
            .any(|(place, action)| grants(action) && !plan.losses.contains_key(&(plan.narrowing.len() + place))),
    }
}

fn loses(plan: &AccountPlan) -> bool {
    let ends =
        matches!(plan.transition, Some(Transition::Suspend(_) | Transition::Archive | Transition::Delete { .. }));
    ends || !plan.losses.is_empty() || !plan.leaving.is_empty()
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gain, lose, spread } = self;
        for (verb, accounts) in [("gain", gain), ("lose", lose)] {
            let accounts = if accounts.is_empty() { "nobody".to_owned() } else { names(accounts) };
            writeln!(f, "{verb} access: {accounts}")?;
        }
        spread.iter().try_for_each(|spread| writeln!(f, "{spread}"))
    }
}

fn names(accounts: &[AccountName]) -> String {
    let shown: Vec<String> = accounts.iter().take(NAMES).map(|it| format!("{} {}", it.kind, it.name)).collect();
    let more = accounts.len().saturating_sub(NAMES);
    let more = if more == 0 { String::new() } else { format!(" and {more} more (--json lists all)") };
    format!("{}: {}{more}", accounts.len(), shown.join(", "))
}

/// A change that becomes due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Due {
    pub at: Timestamp,
    pub account: AccountName,
    /// `+`, `-` or `~`, as in a plan.
    pub sign: char,
    /// A summary of the change.
    pub what: String,
}

/// The changes that become due until a given time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outlook {
    /// The end of the preview.
    pub at: Timestamp,
    /// The changes, in the order of time.
    pub due: Vec<Due>,
    /// The number of accounts whose credentials are renewed until then.
    pub renewed: u64,
    /// Accounts with a change that is due at the end of the preview, but that a limit or an incomplete read refuses.
    pub held_back: BTreeSet<AccountName>,
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, due, renewed, held_back } = self;
        writeln!(f, "until {at:.0}, if directories, clusters and configuration stay as they are:")?;
        for Due { at, account, sign, what } in due {
            writeln!(f, "{at:.0}  {sign} {} {}  {what}", account.kind, account.name)?;
        }
        if due.is_empty() {
            writeln!(f, "nothing falls due")?;
        }
        if *renewed > 0 {
            writeln!(f, "{renewed} credentials are renewed")?;
        }
        if !held_back.is_empty() {
            let accounts: Vec<AccountName> = held_back.iter().cloned().collect();
            writeln!(f, "due by then, but refused by limits or incomplete reads: {}", names(&accounts))?;
        }
        Ok(())
    }
}

/// Simulates cycles, each at the next time at which something becomes due. Each step runs one [`evolve`], so that the
/// caller can do other work between the steps.
#[derive(Debug)]
pub struct Lookahead {
    ledger: LedgerState,
    heard: Option<DirectorySnapshot>,
    now: Timestamp,
    shortest: i64,
    planner: Planner,
    told: BTreeSet<(AccountId, String)>,
    /// Accounts whose lifecycle state changed during the preview.
    moved: BTreeSet<AccountId>,
    /// Whether the last step changed a lifecycle state. If so, the next step follows soon, because the change starts a
    /// new count of time.
    decided: bool,
    outlook: Outlook,
}

impl Lookahead {
    /// Starts at the time of `inputs`. Changes that are due at once are in the plan of the next cycle, so the preview
    /// leaves them out.
    #[must_use]
    pub fn new(inputs: Inputs<'_>, at: Timestamp) -> Self {
        let heard = inputs.heard.map(|heard| {
            let mut heard = heard.clone();
            // Servers are asked about a single account only when its suspension is due. The preview assumes that they
            // confirm the absence.
            heard.reads.iter_mut().for_each(|read| read.proofs = None);
            heard
        });
        let outlook = Outlook { at, due: Vec::new(), renewed: 0, held_back: BTreeSet::new() };
        let span = at.as_second() - inputs.now.as_second();
        let mut new = Self {
            ledger: inputs.ledger.clone(),
            heard,
            now: inputs.now,
            shortest: (span / MOMENTS).max(1),
            planner: Planner::default(),
            told: BTreeSet::new(),
            moved: BTreeSet::new(),
            decided: false,
            outlook,
        };
        new.look(inputs);
        new.outlook.due.clear();
        new.outlook.renewed = 0;
        new
    }

    /// Advances to the next time at which something is due. Returns `false` if the end of the preview was reached in an
    /// earlier step.
    pub fn step(&mut self, inputs: Inputs<'_>) -> bool {
        let end = self.outlook.at;
        if self.now >= end {
            return false;
        }
        let soonest = self.now.as_second() + self.shortest;
        let due = next_due(&self.ledger, self.now).map(|due| due.as_second().max(soonest));
        let soon = std::mem::take(&mut self.decided).then(|| self.now.as_second() + LONGEST_GAP);
        let next = due.into_iter().chain(soon).min().unwrap_or(end.as_second());
        let next = Timestamp::from_second(next).unwrap_or(end).min(end);
        count_until(&mut self.ledger, self.now, next);
        self.now = next;
        self.look(inputs);
        true
    }

    /// Returns the result.
    #[must_use]
    pub fn into_outlook(mut self) -> Outlook {
        // If the caller stopped early, the outlook ends at the last step.
        self.outlook.at = self.outlook.at.min(self.now);
        self.outlook
    }

    fn look(&mut self, inputs: Inputs<'_>) {
        let Self { ledger, heard, now, planner, told, moved, decided, outlook, .. } = self;
        let evolved = evolve(Inputs { ledger, heard: heard.as_ref(), now: *now, ..inputs }, planner);
        for plan in evolved.plan.accounts.iter().filter(|plan| plan.changes_something()) {
            let (sign, what) = headline(plan);
            if !told.insert((plan.id.clone(), follows(plan).unwrap_or(&what).to_owned())) {
                continue;
            }
            if plan.transition.is_some() {
                *decided = true;
                moved.insert(plan.id.clone());
            } else if moved.contains(&plan.id) && follows(plan).is_none() {
                // The plan repeats the steps for the account's objects, because the preview does not execute them. Only
                // the first plan with a step counts.
                continue;
            }
            if plan.transition.is_none() && plan.steps().all(is_renewal) {
                outlook.renewed += 1;
                continue;
            }
            let what = follows(plan).map_or_else(|| what.clone(), |follows| format!("{what}: {follows}"));
            outlook.due.push(Due { at: *now, account: plan.account.clone(), sign, what });
        }
        outlook.held_back = evolved.refusals.iter().flat_map(|refusal| refusal.accounts.iter().cloned()).collect();
        self.ledger = evolved.after();
        // The preview treats a change of the lifecycle state as executed. Otherwise a suspension would never end.
        self.ledger.failures.retain(|(id, _), _| !self.moved.contains(id));
    }
}

fn is_renewal(action: &Action) -> bool {
    action.is_look() || matches!(action, Action::Deliver { reason: Reason::Expiring(_), .. })
}

fn follows(plan: &AccountPlan) -> Option<&'static str> {
    match plan.transition {
        Some(Transition::Create) => Some("create"),
        Some(Transition::Resume) => Some("resume"),
        Some(Transition::Suspend(_)) => Some("suspend"),
        Some(Transition::Archive) => Some("archive"),
        Some(Transition::Delete { .. }) => Some("delete its namespaces"),
        Some(Transition::Gone) => Some("record the deletion"),
        None => plan.steps().any(|action| matches!(action, Action::Archive { .. })).then_some("archive"),
    }
}

/// Returns the earliest time at which a counted period ends.
fn next_due(ledger: &LedgerState, now: Timestamp) -> Option<Timestamp> {
    let accounts = ledger.accounts.values().flat_map(|account| {
        let ending = account.ending.as_ref().and_then(Ending::counted);
        [account.absence.as_ref(), ending].into_iter().flatten().map(|counted| counted.due)
    });
    let overrides = ledger.overrides.values().map(QuotaOverride::term);
    let suspensions = ledger.accounts.values().filter_map(|account| account.suspension.as_deref()?.term());
    let exceptions = ledger.exceptions.values().map(Exception::term);
    let terms = overrides.chain(exceptions).chain(suspensions).filter_map(Term::due);
    let idle = ledger.idle.values().map(|idle| idle.due);
    accounts.chain(terms).chain(idle).filter(|due| *due > now).min()
}

/// Counts the time until `next` as if cycles had run all the time. The last hour is left for the cycle at `next` to
/// count.
fn count_until(ledger: &mut LedgerState, now: Timestamp, next: Timestamp) {
    let Ok(skipped) = u64::try_from(next.as_second() - now.as_second() - LONGEST_GAP) else { return };
    let complete: BTreeMap<&String, bool> =
        ledger.sources.iter().map(|(name, source)| (name, source.completeness == Completeness::Complete)).collect();
    let counts = |source: &String| complete.get(source).copied().unwrap_or_default();
    let waits: Vec<AccountId> = ledger
        .accounts
        .values()
        .filter(|account| (account.absence.is_some() || account.ending.is_some()) && counts(&account.source))
        .map(|account| account.id.clone())
        .collect();
    for id in waits {
        let Some(account) = ledger.accounts.get_mut(&id) else { continue };
        account.absence.iter_mut().for_each(|absence| skip(absence, skipped));
        if let Some(Ending::Waits(counted)) = &mut account.ending {
            skip(counted, skipped);
        }
    }
    let given: Vec<_> =
        ledger.overrides.iter().filter(|(_, given)| given.term().due().is_some()).map(|(key, _)| key.clone()).collect();
    for key in given {
        ledger.overrides.get_mut(&key).into_iter().for_each(|given| given.proved = Some(given.term().after(skipped)));
    }
    let excepted: Vec<_> = ledger.exceptions.keys().cloned().collect();
    for key in excepted {
        ledger.exceptions.get_mut(&key).into_iter().for_each(|given| given.proved = Some(given.term().after(skipped)));
    }
    let ending =
        |account: &&Account| account.suspension.as_deref().and_then(Suspension::term).and_then(Term::due).is_some();
    let suspended: Vec<_> = ledger.accounts.values().filter(ending).map(|account| account.id.clone()).collect();
    for id in suspended {
        let Some(account) = ledger.accounts.get_mut(&id) else { continue };
        if let Some(suspension) = account.suspension.as_deref_mut()
            && let Some(term) = suspension.term()
        {
            *suspension = suspension.clone().proved(term.after(skipped));
        }
    }
    let idle: Vec<_> = ledger.idle.keys().cloned().collect();
    for key in idle {
        let Some(idle) = ledger.idle.get_mut(&key) else { continue };
        idle.seconds += skipped;
        idle.counted_at = later(idle.counted_at, skipped);
    }
}

fn skip(counted: &mut Absence, seconds: u64) {
    counted.seconds += seconds;
    counted.counted_at = later(counted.counted_at, seconds);
}

/// Adds the difference and the outlook to the JSON of a plan, for `bursar plan --json`.
#[must_use]
pub fn with(mut plan: Value, difference: Option<&Difference>, outlook: Option<&Outlook>) -> Value {
    if let Some(difference) = difference {
        plan["difference"] = json!(difference);
    }
    if let Some(outlook) = outlook {
        plan["outlook"] = json!(outlook);
    }
    plan
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::identity::AccountKind;
    use crate::ledger::Note;
    use crate::ledger::quota::OverrideKey;
    use crate::plan::testing::{World, entry_of};
    use crate::policy::{Limit, When};

    fn inputs<'a>(world: &'a World, heard: Option<&'a DirectorySnapshot>) -> Inputs<'a> {
        let World { ledger, inventory, policy, sealer, now, .. } = world;
        Inputs { ledger, heard, inventory, policy, sealer, now: *now }
    }

    fn outlook(world: &World, heard: Option<&DirectorySnapshot>, at: &str) -> Outlook {
        let mut lookahead = Lookahead::new(inputs(world, heard), at.parse().expect("the text is a timestamp"));
        while lookahead.step(inputs(world, heard)) {}
        lookahead.into_outlook()
    }

    #[test]
    fn the_outlook_shows_the_suspension_and_the_archive_of_an_absent_account() {
        let mut world = World::new();
        let gone = world.add(AccountKind::Tool, "old", Some(52_101));
        world.add(AccountKind::Tool, "foo", Some(52_503));
        world.policy.lifecycle.absent_for = Duration::from_hours(24);
        world.policy.lifecycle.retention = Duration::from_hours(24 * 40);
        world.cycle();
        let stays = world.ledger.accounts.values().filter(|account| account.id != gone).map(entry_of).collect();
        let heard = world.answer(stays, Completeness::Complete);
        let due = |at: &str| -> Vec<String> {
            let due = outlook(&world, Some(&heard), at).due;
            due.iter().map(|due| format!("{:.0} {} {}", due.at, due.sign, due.what)).collect()
        };
        assert_eq!(due("2026-05-04T11:00:00Z"), Vec::<String>::new(), "the suspension is not due an hour before");
        assert_eq!(due("2026-05-04T12:00:00Z"), ["2026-05-04T12:00:00Z - absent 24 h: suspend"]);
        let all = due("2026-07-01T00:00:00Z");
        assert!(
            matches!(&*all, [_, archive, ..] if archive.starts_with("2026-06-13T") && archive.ends_with(": archive")),
            "{all:?}"
        );
        assert_eq!(world.ledger.accounts[&gone].absence, None, "the preview does not change the ledger");
    }

    #[test]
    fn the_outlook_shows_the_end_of_an_override() {
        let mut world = World::new();
        let account = world.add(AccountKind::Tool, "foo", Some(52_503));
        let note = world.note("");
        let key = OverrideKey { account, resource: "pods".to_owned(), cluster: None };
        let until: Timestamp = "2026-05-10T12:00:00Z".parse().expect("the text is a timestamp");
        world
            .ledger
            .overrides
            .insert(key, QuotaOverride { amount: "99".to_owned(), until: Some(until), note, proved: None });
        world.cycle();
        assert_eq!(outlook(&world, None, "2026-05-10T11:00:00Z").due, []);
        let found = outlook(&world, None, "2026-06-01T00:00:00Z").due;
        assert!(matches!(&*found, [due] if due.at == until && due.what == "quota changed"), "{found:?}");
    }

    #[test]
    fn the_outlook_shows_the_end_of_a_suspension() {
        let mut world = World::new();
        let account = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycle();
        let note = Note { actor: "ann".to_owned(), reason: "mining".to_owned(), ticket: None, at: world.now };
        let until: Timestamp = "2026-05-10T12:00:00Z".parse().expect("the text is a timestamp");
        let object = Some(until.to_string());
        let order =
            crate::ledger::Order { id: 1, account, what: crate::ledger::OrderKind::Suspend, note, bulk: None, object };
        world.ledger.orders.push(order);
        world.cycle();
        assert_eq!(outlook(&world, None, "2026-05-10T11:00:00Z").due, []);
        let found = outlook(&world, None, "2026-06-01T00:00:00Z").due;
        assert!(matches!(&*found, [due] if due.at == until && due.what == "resumed: resume"), "{found:?}");
    }

    #[test]
    fn the_difference_of_a_narrower_class_lists_losing_accounts_and_cycles() {
        let mut world = World::new();
        for name in ["aa", "ab", "ac", "b"] {
            let id = world.add(AccountKind::Tool, name, Some(52_500 + i64::from(name.as_bytes()[name.len() - 1])));
            let place = if name == "b" { "kept" } else { "tools" };
            world.account(&id).dn = format!("cn={name},ou={place},dc=example,dc=org");
        }
        world.cycle();
        let mut other = world.policy.clone();
        let kept = When::Base("ou=kept,dc=example,dc=org".to_owned());
        other.classes.get_mut("tool").expect("the policy has this class").when = Some(kept);
        other.limits.suspend_per_cycle = Limit { count: 2, percent: None };
        other.limits.suspend_per_day = Limit { count: 20, percent: None };
        let in_force = evolve(inputs(&world, None), &mut Planner::default());
        let evolved = evolve(Inputs { policy: &other, ..inputs(&world, None) }, &mut Planner::default());
        let difference = Difference::of(&in_force, &evolved, &other, world.now);
        let expected = "gain access: nobody\nlose access: 3: tool aa, tool ab, tool ac\n\
                        limit suspend_per_cycle: 3 suspensions of class tool take 2 cycles\n";
        assert_eq!(difference.to_string(), expected);
        other.limits.suspend_per_day = Limit { count: 1, percent: None };
        let evolved = evolve(Inputs { policy: &other, ..inputs(&world, None) }, &mut Planner::default());
        let said = Difference::of(&in_force, &evolved, &other, world.now).to_string();
        assert!(
            said.contains("limit suspend_per_day: 3 suspensions of class tool take 3 cycles over 3 days"),
            "{said}"
        );
        other.limits.suspend_per_cycle = Limit { count: 0, percent: None };
        let evolved = evolve(Inputs { policy: &other, ..inputs(&world, None) }, &mut Planner::default());
        let said = Difference::of(&in_force, &evolved, &other, world.now).to_string();
        assert!(said.contains("limit suspend_per_cycle: 3 suspensions of class tool take forever"), "{said}");
        let same = Difference::of(&in_force, &in_force, &world.policy, world.now);
        assert_eq!((same.gain, same.lose, same.spread), (vec![], vec![], vec![]));
    }
}
