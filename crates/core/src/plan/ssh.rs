//! Plans to write, remove and check the SSH keys of one person.
//!
//! Homes belong to no cluster, so the step is done with the first of the account's clusters that answers. If none
//! answers or is configured, keys are still removed and changed, but no first key is delivered.

use bursar_protocol::USUAL_KUBECONFIG;

use super::credential::is_due;
use super::tenant::{Found, Look};
use super::{Action, Reason};
use crate::desired::DesiredHome;
use crate::ledger::Delivery;

pub(super) fn actions(look: Look<'_>, found: &mut Found) {
    let delivery = look.ledger.ssh_deliveries.get(look.id);
    let Some(wanted) = &look.account.ssh else {
        found.add(delivery.and_then(|delivery| removal(look, delivery)));
        return;
    };
    found.notices.extend(wanted.refused.iter().cloned());
    let action = |reason| Action::SshKeys {
        cluster: look.cluster.clone(),
        home: Box::new(wanted.home.clone()),
        keys: wanted.keys.clone(),
        digest: wanted.digest.clone(),
        reason,
    };
    let action = match delivery {
        None if wanted.keys.is_empty() => None,
        None => Some(action(Some(Reason::Missing))),
        Some(delivery) if delivery.home.as_ref() != Some(&wanted.home.home) => {
            // The keys are removed from the old home first. The next plan writes them into the new home.
            removal(look, delivery)
        }
        Some(delivery) if delivery.is_pending() && !wanted.keys.is_empty() => Some(action(Some(Reason::Missing))),
        Some(delivery) if delivery.digest != wanted.digest => {
            Some(action(Some(Reason::Changed(vec!["SSH keys".to_owned()]))))
        }
        // The check writes the same keys again. If the file does not change, the keys were in place.
        Some(delivery) => is_due(look, delivery).then(|| action(None)),
    };
    found.add(action);
}

fn removal(look: Look<'_>, delivery: &Delivery) -> Option<Action> {
    let account = look.ledger.accounts.get(look.id)?;
    let kubeconfig = look.tenant.home.as_ref().map_or_else(|| USUAL_KUBECONFIG.into(), |home| home.kubeconfig.clone());
    let home = Box::new(DesiredHome {
        home: delivery.home.clone()?,
        posix: account.posix.clone()?,
        kubeconfig,
        create: false,
        replace_unparsable: false,
    });
    let reason = if look.tenant.suspended { Reason::Suspended } else { Reason::Orphaned };
    let cluster = look.cluster.clone();
    Some(Action::SshKeys { cluster, home, keys: Vec::new(), digest: String::new(), reason: Some(reason) })
}

#[cfg(test)]
mod tests {
    use crate::identity::{AccountId, AccountKind};
    use crate::ledger::change::Change;
    use crate::ledger::{Delivery, Lifecycle, OrderKind};
    use crate::plan::testing::{World, prod};
    use crate::plan::{AccountPlan, Action, Reason};

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

    fn world() -> (World, AccountId) {
        let mut world = World::new();
        for class in world.policy.classes.values_mut() {
            class.when = None;
            class.home.as_mut().expect("the class has a home").ssh_keys = true;
        }
        let ann = world.add(AccountKind::User, "ann", Some(3_001));
        world.account(&ann).ssh_keys = [format!("{KEY} ann@laptop"), format!("no-pty {KEY}")].into();
        world.cycle();
        assert!(world.plan().is_empty(), "{}", world.plan());
        (world, ann)
    }

    fn order(world: &mut World, account: &AccountId, what: OrderKind) {
        world.order(account, what);
        world.cycle();
    }

    #[test]
    fn invalid_keys_cause_a_notice_and_the_others_are_delivered() {
        let (world, ann) = world();
        assert!(world.ledger.ssh_deliveries[&ann].path.ends_with(".ssh/authorized_keys"));
        let notices = world.plan().notices;
        assert!(notices.iter().any(|notice| notice.text.contains("no-pty")), "{notices:?}");
    }

    #[test]
    fn keys_follow_the_directory_the_home_and_the_access() {
        let (mut world, ann) = world();
        world.account(&ann).ssh_keys = [KEY.to_owned()].into();
        let plan = world.plan().to_string();
        assert!(plan.contains("SSH keys changed") && plan.contains("1 SSH key"), "{plan}");
        world.cycle();
        world.account(&ann).home = Some("/home/moved".into());
        world.cycle();
        world.cycle();
        assert_eq!(world.ledger.ssh_deliveries[&ann].home, Some("/home/moved".into()));
        order(&mut world, &ann, OrderKind::Suspend);
        assert!(world.ledger.ssh_deliveries.is_empty());
        order(&mut world, &ann, OrderKind::Resume);
        assert!(world.ledger.ssh_deliveries.contains_key(&ann));
        world.account(&ann).ssh_keys.clear();
        world.cycle();
        assert!(world.ledger.ssh_deliveries.is_empty() && world.plan().is_empty(), "{}", world.plan());
    }

    #[test]
    fn keys_are_changed_and_removed_although_the_only_cluster_is_out_of_the_configuration() {
        let (mut world, ann) = world();
        world.without_cluster("prod");
        let before = world.ledger.ssh_deliveries[&ann].digest.clone();
        world.account(&ann).ssh_keys = [KEY.to_owned()].into();
        world.cycle();
        assert_ne!(world.ledger.ssh_deliveries[&ann].digest, before);
        world.account(&ann).disabled = Some("mark".to_owned());
        (0..2).for_each(|_| drop(world.cycle()));
        assert!(world.ledger.ssh_deliveries.is_empty() && world.plan().is_empty(), "{}", world.plan());
    }

    #[test]
    fn keys_that_a_deleted_account_left_in_its_home_are_removed() {
        let (mut world, ann) = world();
        world.ledger.deliveries.clear();
        let account = world.account(&ann);
        (account.state, account.disabled) = (Lifecycle::Deleted, Some("mark".to_owned()));
        world.cycle();
        assert!(world.ledger.ssh_deliveries.is_empty());
    }

    #[test]
    fn keys_whose_delivery_was_not_recorded_are_written_again_or_removed_with_the_access() {
        let (mut world, ann) = world();
        let pending = world.ledger.ssh_deliveries[&ann].clone().pending();
        world.ledger.apply(&Change::SshDelivery(ann.clone(), Some(pending)));
        let plan = world.plan();
        let steps: Vec<&Action> = plan.accounts.iter().flat_map(AccountPlan::steps).collect();
        assert!(matches!(&steps[..], [Action::SshKeys { reason: Some(Reason::Missing), .. }]), "{plan}");
        let mut again = world.clone();
        again.cycle();
        assert!(!again.ledger.ssh_deliveries[&ann].is_pending() && again.plan().is_empty(), "{}", again.plan());
        world.account(&ann).disabled = Some("mark".to_owned());
        let plan = world.plan();
        let mut steps = plan.accounts.iter().flat_map(AccountPlan::steps);
        assert!(steps.any(|step| matches!(step, Action::SshKeys { keys, .. } if keys.is_empty())), "{plan}");
        world.cycle();
        assert!(world.ledger.ssh_deliveries.is_empty());
    }

    #[test]
    fn keys_change_while_no_cluster_answers_but_no_first_key_is_delivered() {
        let (mut world, ann) = world();
        let there = world.inventory.clusters.remove(&prod()).expect("the world has this cluster");
        let bob = world.add(AccountKind::User, "bob", Some(3_002));
        world.account(&bob).ssh_keys = [KEY.to_owned()].into();
        let before = world.ledger.ssh_deliveries[&ann].digest.clone();
        world.account(&ann).ssh_keys = [KEY.to_owned()].into();
        world.cycle();
        assert_ne!(world.ledger.ssh_deliveries[&ann].digest, before);
        assert!(!world.ledger.ssh_deliveries.contains_key(&bob));
        world.account(&ann).disabled = Some("mark".to_owned());
        world.cycle();
        assert!(world.ledger.ssh_deliveries.is_empty());
        assert!(
            !world.ledger.deliveries.values().any(Delivery::may_hold_a_credential),
            "{:?}",
            world.ledger.deliveries
        );
        assert!(world.plan().is_empty(), "{}", world.plan());
        world.inventory.clusters.insert(prod(), there);
        world.cycles(2);
        assert!(world.plan().is_empty(), "{}", world.plan());
        assert!(world.ledger.ssh_deliveries.keys().eq([&bob]));
    }
}
