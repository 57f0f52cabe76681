//! Tests the derived state of single accounts.

use super::*;
use crate::desired::Transition;
use crate::ledger::{Lifecycle, Suspension};
use crate::plan::PlanInputs;
use crate::plan::testing::World as Site;

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
