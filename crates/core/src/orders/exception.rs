//! Records exceptions from admission rules that an administrator sets or removes.

use serde_json::json;

use super::quota::{class_for, not_given};
use super::{OrderOutcome, event, is_to_come, refused};
use crate::ledger::change::{Change, Event};
use crate::ledger::exception::{Exception, ExceptionKey};
use crate::ledger::quota::day;
use crate::ledger::{Account, LedgerState, Note};
use crate::orders::request::{ExceptionSet, ExceptionUnset, RequestRefusal};
use crate::policy::Policy;

/// Sets an exception from each rule. If any of these exceptions is not allowed, none is set.
pub(super) fn set(
    ledger: &LedgerState,
    policy: &Policy,
    account: &Account,
    set: &ExceptionSet,
    note: &Note,
) -> Result<OrderOutcome, RequestRefusal> {
    let ExceptionSet { target: _, rules, until, cluster } = set;
    let name = account.account_name();
    let without = "no rule applies to it";
    let class = class_for(account, ledger, policy, cluster.as_ref(), without, |classes| {
        classes.iter().copied().find(|class| class.namespace.is_some())
    })?;
    is_to_come(*until, note.at)?;
    if note.reason.is_empty() && note.ticket.is_none() {
        return refused(64, "--reason or --ticket is missing: the history must say why".to_owned());
    }
    let mut outcome = OrderOutcome::default();
    for rule in rules {
        class.excepts(*rule).or_else(|why| refused(1, format!("{name} cannot be excepted from rule {rule}: {why}")))?;
        let key = ExceptionKey { account: account.id.clone(), rule: *rule, cluster: cluster.clone() };
        let detail = json!({"rule": rule, "until": until, "cluster": cluster});
        outcome.events.push(Event { detail: detail.into(), ..event(Some(account), "exception set", note) });
        let given = Exception { until: *until, note: note.clone(), proved: None };
        outcome.changes.push(Change::Exception(key, Some(given)));
    }
    let rules: Vec<&str> = rules.iter().map(|rule| rule.as_str()).collect();
    outcome.text = format!("{name}: excepted from {} until {}", rules.join(", "), day(*until));
    Ok(outcome)
}

/// Removes exceptions, so that the rules apply again. If any of these exceptions does not exist, none is removed.
pub(super) fn unset(
    ledger: &LedgerState,
    account: &Account,
    unset: &ExceptionUnset,
    note: &Note,
) -> Result<OrderOutcome, RequestRefusal> {
    let ExceptionUnset { target: _, rules, cluster } = unset;
    let name = account.account_name();
    let mut outcome = OrderOutcome::default();
    for rule in rules {
        let is_meant = |key: &ExceptionKey| key.rule == *rule && (cluster.is_none() || key.cluster == *cluster);
        let before = outcome.changes.len();
        for (key, _) in ledger.exceptions_of(&account.id).filter(|(key, _)| is_meant(key)) {
            let detail = json!({"rule": rule, "cluster": key.cluster});
            outcome.events.push(Event { detail: detail.into(), ..event(Some(account), "exception unset", note) });
            outcome.changes.push(Change::Exception(key.clone(), None));
        }
        if outcome.changes.len() == before {
            return not_given(account, &format!("exception from {rule}"), cluster.as_ref(), "exception");
        }
    }
    let rules: Vec<&str> = rules.iter().map(|rule| rule.as_str()).collect();
    outcome.text = format!(
        "{name}: no exception from {} any more; objects that it admitted stay, and `bursar webhook audit` lists them",
        rules.join(", ")
    );
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::exception::ExceptedRule;
    use crate::identity::AccountKind;
    use crate::orders::request::Target;
    use crate::plan::testing::{World, course, workspace_of};
    use crate::policy::UidRange;

    #[test]
    fn an_exception_needs_a_reason_and_an_exception_from_images_also_needs_strict_groups() {
        let (mut world, foo) = World::with_foo();
        let until = world.now + jiff::SignedDuration::from_hours(24);
        let given = |world: &World, rule, reason: &str| {
            let target = Target { kind: AccountKind::Tool, name: "foo".to_owned(), reason: None, ticket: None };
            let note = Note { actor: "root".to_owned(), reason: reason.to_owned(), ticket: None, at: world.now };
            let order = ExceptionSet { target, rules: vec![rule], until, cluster: None };
            set(&world.ledger, &world.policy, &world.ledger.accounts[&foo], &order, &note)
                .map(|outcome| outcome.text)
                .map_err(|refusal| refusal.exit_code)
        };
        assert_eq!(given(&world, ExceptedRule::Images, ""), Err(64));
        assert!(given(&world, ExceptedRule::Images, "a course").is_ok_and(|text| text.contains("images until 2026-")));
        world.class("tool").admission.uid.strict_groups = false;
        assert_eq!(given(&world, ExceptedRule::Images, "a course"), Err(1));
        assert!(given(&world, ExceptedRule::Hosts, "a course").is_ok());
    }

    #[test]
    fn a_workspace_with_a_uid_of_its_own_has_no_exception_from_volumes() {
        let mut class = course();
        assert_eq!(class.excepts(ExceptedRule::Volumes), Ok(()));
        let first = 70_000_i64.try_into().expect("the uid is valid");
        workspace_of(&mut class).uid_range = Some(UidRange { first, last: first });
        assert!(class.excepts(ExceptedRule::Volumes).is_err_and(|why| why.contains("a member's home")));
        assert_eq!(class.excepts(ExceptedRule::Images), Ok(()));
    }
}
