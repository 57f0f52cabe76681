//! Builds `rules.json` for the approver of a cluster from the certificates that the policy asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::identity::{AccountKind, ClusterName};
use crate::policy::{Class, CredentialKind, DAEMON_USER, Policy};
use crate::rules::approver::{ApprovedClass, ApproverRules, VERSION};

/// The parts of the rules that do not come from the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Owned<'a> {
    /// The ledger that owns the cluster.
    pub ledger: &'a str,
    /// Accounts that may have roles in the whole cluster. If empty, every account may.
    pub administrators: &'a BTreeSet<String>,
    /// The public key of the seals.
    pub public_key: [u8; 32],
    /// The longest lifetime of the daemon's own certificate.
    pub own_lifetime: Duration,
}

/// Returns the rules of `cluster`, for all classes whose accounts get certificates there.
#[must_use]
pub fn approver_rules(policy: &Policy, cluster: &ClusterName, owned: Owned<'_>) -> ApproverRules {
    let Owned { ledger, administrators, public_key, own_lifetime } = owned;
    ApproverRules {
        version: VERSION,
        cluster: cluster.clone(),
        daemon: DAEMON_USER.to_owned(),
        ledger: ledger.to_owned(),
        own_lifetime: own_lifetime.as_secs(),
        classes: classes(policy, cluster),
        administrators: administrators.clone(),
        seal: vec![BASE64.encode(public_key)],
    }
}

fn classes(policy: &Policy, cluster: &ClusterName) -> BTreeMap<String, ApprovedClass> {
    let classes = policy.classes.values().filter(|class| class.clusters.contains(cluster));
    classes.filter_map(|class| Some((class.name.clone(), approved_class(class)?))).collect()
}

fn approved_class(class: &Class) -> Option<ApprovedClass> {
    let CredentialKind::Certificate { lifetime } = class.credential.as_ref()?.kind else { return None };
    let kind = class.from.account_kind().filter(|kind| *kind != AccountKind::Group)?;
    Some(ApprovedClass {
        kind,
        names: class.name_pattern.0.as_str().to_owned(),
        kind_group: format!("bursar:{kind}s"),
        lifetime: lifetime.as_secs(),
        has_namespaces: class.namespace.is_some(),
        has_cluster_roles: class.has_cluster_roles(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{policy, prod};

    fn rules(policy: &Policy) -> ApproverRules {
        let owned = Owned {
            ledger: "00ff",
            administrators: &BTreeSet::from(["alice".to_owned()]),
            public_key: [7; 32],
            own_lifetime: Duration::from_hours(30 * 24),
        };
        approver_rules(policy, &prod(), owned)
    }

    #[test]
    fn rules_are_parsed_as_they_were_written() {
        let rules = rules(&policy());
        assert!(!rules.classes.is_empty(), "{rules:?}");
        assert_eq!(ApproverRules::parse(rules.to_json().as_bytes()), Ok(rules));
    }

    #[test]
    fn a_class_is_reported_if_it_is_missing_or_asks_for_a_longer_lifetime_than_the_rules_permit() {
        let known = rules(&policy());
        assert!(known.lacks(&rules(&policy())).is_empty());
        let with = |lifetime: Duration| {
            let mut policy = policy();
            let class = policy.classes.get_mut("tool").expect("the policy has class tool");
            class.credential.as_mut().expect("there is a credential").kind = CredentialKind::Certificate { lifetime };
            rules(&policy)
        };
        assert_eq!(known.lacks(&with(Duration::from_hours(1000 * 24))), ["class tool"]);
        assert!(known.lacks(&with(Duration::from_hours(1))).is_empty());
        let mut fewer = known.clone();
        fewer.classes.remove("tool");
        assert_eq!(fewer.lacks(&known), ["class tool"]);
    }

    #[test]
    fn another_ledger_another_key_and_other_administrators_are_reported() {
        let known = rules(&policy());
        let another = |change: fn(&mut ApproverRules)| {
            let mut wanted = known.clone();
            change(&mut wanted);
            known.lacks(&wanted)
        };
        assert_eq!(another(|wanted| wanted.ledger.push('0')), ["the id of the ledger"]);
        assert_eq!(another(|wanted| wanted.seal = vec![BASE64.encode([8; 32])]), ["the key of the seals"]);
        assert_eq!(another(|wanted| wanted.administrators.clear()), ["the listed administrators"]);
    }
}
