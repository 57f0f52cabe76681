//! Tests the derived state of single accounts.

use super::*;
use crate::desired::Transition;
use crate::ledger::{Lifecycle, Suspension};
use crate::plan::PlanInputs;
use crate::plan::testing::{World as Site, prod};

#[test]
fn a_use_resumes_an_idle_account_even_if_the_next_cycle_is_late() {
    let mut site = Site::new();
    let foo = site.add(AccountKind::Tool, "foo", Some(52_503));
    site.cycle();
    let since = site.now;
    let account = site.account(&foo);
    (account.state, account.since) = (Lifecycle::Suspended, since);
    account.suspension = Some(Box::new(Suspension::Idle { since }));
    let mut deriver = Deriver::default();
    let mut transition = |site: &Site| {
        let PlanInputs { ledger, policy, sealer, now, .. } = site.inputs();
        deriver.derive(ledger, policy, sealer, now).accounts[&foo].transition.clone()
    };
    site.now += SignedDuration::from_hours(1);
    assert_eq!(transition(&site), None);
    // A wrong clock recorded this request.
    site.ledger.last_use.insert(foo.clone(), site.now + SignedDuration::from_hours(24));
    assert_eq!(transition(&site), None);
    site.ledger.last_use.insert(foo.clone(), site.now);
    site.now += 2 * AWAITED;
    assert_eq!(transition(&site), Some(Transition::Resume));
}

#[test]
fn the_credentials_of_different_accounts_share_their_endpoints() {
    let mut site = Site::new();
    let ids = [("foo", 52_503), ("bar", 52_504)].map(|(name, uid)| site.add(AccountKind::Tool, name, Some(uid)));
    let PlanInputs { ledger, policy, sealer, now, .. } = site.inputs();
    let mut each = Each::of(ledger, (policy, sealer), [], now);
    let [foo, bar] = ids.map(|id| {
        let derived = each.derive(&ledger.accounts[&id], &mut Vec::new()).and_then(|derived| derived.account);
        derived.expect("the tool is a tenant").clusters[&prod()].credentials[0].endpoints.clone()
    });
    assert!(Arc::ptr_eq(&foo, &bar));
}
