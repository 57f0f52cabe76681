//! Renders a plan as text and as JSON.
//!
//! The text has one line per account. A line begins with `+` if access is given, with `-` if access is removed,
//! otherwise with `~`. A line with `!` is a finding that no plan can remedy. Structs are destructured here, so that a
//! new field cannot be forgotten.

mod refusal;
mod steps;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use self::steps::{details, only_reason};
use super::budget::REMOVED;
use super::guard::{ABSENCE, ATTRIBUTES, ApprovedPlan, EMPTIED, IMPORT, Refusal, refused_hash};
use super::limit_usage::LimitUse;
use super::pace::PolicyProgress;
use super::realm::RealmPlan;
use super::realm::guard::{ApprovedRealmPlan, ROLES, USERS};
use super::reaper::Waiting;
use super::revocation::RevocationProgress;
use super::wording::{counted, counted_entries, number};
use super::{AccountPlan, Action, Notice, Plan};
use crate::desired::{Regeneration, Transition};
use crate::identity::AccountName;
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
    pub pace: Vec<PolicyProgress>,
    /// Revocations of classes that are in progress before the plan.
    pub revocations: Vec<RevocationProgress>,
    /// Pods and accounts that the reapers leave to later cycles.
    pub reaped_later: &'a Waiting,
    /// Limits that are nearly used up after the plan.
    pub near: Cow<'a, [LimitUse]>,
    /// The refusals of both guards: for the plan and for the realm's plan.
    pub refusals: Cow<'a, [Refusal]>,
    /// The realm's plan before its guard, or why there is none; `None` if no realm is configured.
    pub realm: Option<Result<&'a RealmPlan, &'a str>>,
}

impl<'a> Preview<'a> {
    /// Makes a preview without a realm. Sources and rejected entries come from the ledger.
    #[must_use]
    pub fn of(ledger: &'a LedgerState, plan: &'a Plan, approved: &'a ApprovedPlan, refusals: &'a [Refusal]) -> Self {
        let (pace, revocations, near) = (approved.progress(ledger), RevocationProgress::of(ledger), approved.near());
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
    let took = format!("{} in {}.{} s", counted_entries(*entries), took_ms / 1000, took_ms % 1000 / 100);
    let numbers = numbers.as_ref().map(|numbers| format!(", {numbers}")).unwrap_or_default();
    match completeness {
        Completeness::Complete => format!("{server}  complete, {took}{numbers}"),
        Completeness::Partial { why } => format!("{server}  partial, {took}{numbers}: {why}"),
        Completeness::Stale { server, why } => format!("{server}  stale, not used: {why}"),
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
            // Two accounts may have the same name for a while. Only the first account gets the texts.
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
        (None, _) if plan.ownerless => ('-', "not in the ledger".to_owned()),
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
        _ if matches!(plan.before.suspension.as_deref(), Some(Suspension::Idle { .. })) => "asked for again",
        _ if plan.before.suspension.as_deref().is_some_and(Suspension::is_over) => "its suspension has ended",
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
