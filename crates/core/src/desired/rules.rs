//! What the webhook of a cluster should be told: the policy's classes as `rules.json`.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::ClusterName;
use crate::kinds::ManagedKind;
use crate::ledger::LedgerState;
use crate::policy::{Admission, Class, DAEMON_USER, PodSecurity, Policy, VolumeRule};
use crate::rules::{AllowedVolume, ClassRules, Mode, Mount, Rules, VERSION, VolumeRules};

/// The volume where people's files are: pods that are given it have it as `HOME`.
const HOME: &str = "home";

/// The rules of `cluster`: of all classes that have namespaces there.
#[must_use]
pub fn rules(policy: &Policy, cluster: &ClusterName) -> Rules {
    let classes = policy.classes.values().filter(|class| class.clusters.contains(cluster));
    Rules {
        version: VERSION,
        cluster: cluster.clone(),
        daemon: DAEMON_USER.to_owned(),
        exempt: policy.exempt.clone(),
        classes: classes
            .filter_map(|class| Some((class.name.clone(), class_rules(class)?)))
            .collect::<BTreeMap<_, _>>(),
        // In force only after a review that had it: `bursar webhook install` writes it.
        client: None,
    }
}

fn class_rules(class: &Class) -> Option<ClassRules> {
    let namespace = class.namespace.clone()?;
    let admission = class.admission.clone();
    Some(ClassRules {
        namespace: Some(namespace),
        restricted: class.pod_security == PodSecurity::Restricted,
        uid: admission.uid,
        host: admission.host,
        images: admission.images,
        hosts: admission.hosts,
        volumes: volumes(class, admission.volumes),
        claims: admission.claims,
        lifetime: admission.lifetime,
        lifetimes: admission.lifetimes,
    })
}

/// What a class has as volumes its pods may mount themselves too, and those with a `mount` they are given.
fn volumes(class: &Class, rule: VolumeRule) -> VolumeRules {
    let exports = class.volumes.iter().filter_map(|volume| volume.kind.nfs());
    let own = exports.map(|nfs| AllowedVolume::Nfs { server: nfs.server.clone(), path: nfs.path.clone() });
    // A personal claim is in another namespace.
    let here = class.volumes.iter().filter(|volume| !volume.kind.is_personal());
    let mounts = here.filter_map(|volume| Some(Mount { claim: volume.name.clone(), path: volume.mount.clone()? }));
    let mounts: Vec<Mount> = mounts.collect();
    VolumeRules {
        mode: rule.mode,
        allow: own.chain(rule.allow).collect(),
        inject: rule.inject,
        home: mounts.iter().find(|mount| mount.claim == HOME).map(|mount| mount.path.clone()),
        mounts,
        node_selector: rule.node_selector,
    }
}

/// What nobody enforces in a cluster without a webhook: the rules of classes whose accounts have a namespace there.
#[must_use]
pub fn unenforced(policy: &Policy, cluster: &ClusterName, ledger: &LedgerState) -> Option<String> {
    let namespaces =
        ledger.objects.iter().filter(|(key, _)| key.kind == ManagedKind::Namespace && key.cluster == *cluster);
    let tenants = namespaces.filter_map(|(_, record)| ledger.tenants.get(&(record.account.clone(), cluster.clone())));
    let classes: BTreeSet<&str> = tenants.map(|tenant| tenant.class.as_str()).collect();
    let enforced = |class: &&str| {
        let Some(Admission { uid, host, images, hosts, volumes, claims, lifetime, .. }) =
            policy.classes.get(*class).map(|class| &class.admission)
        else {
            return false;
        };
        let modes = [uid.mode, *host, images.mode, hosts.mode, volumes.mode, claims.mode, *lifetime];
        modes.contains(&Mode::Enforce)
    };
    let classes: Vec<&str> = classes.into_iter().filter(enforced).collect();
    (!classes.is_empty()).then(|| {
        format!(
            "not installed, so nothing enforces the rules for pods of class {}, which has tenants",
            classes.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{policy, prod};

    #[test]
    fn classes_without_namespaces_have_no_rules() {
        let rules = rules(&policy(), &prod());
        assert_eq!(rules.classes.keys().collect::<Vec<_>>(), ["student", "tool"]);
        assert!(self::rules(&policy(), &ClusterName("other".to_owned())).classes.is_empty());
    }

    #[test]
    fn volumes_of_the_class_are_allowed_and_given() {
        let rules = rules(&policy(), &prod());
        let volumes = &rules.classes["student"].volumes;
        let own = AllowedVolume::Nfs { server: "nfs.example.org".to_owned(), path: "/srv/home/{name}".to_owned() };
        assert_eq!(volumes.allow, [own]);
        assert_eq!(volumes.home.as_deref(), Some("/home/{name}"));
        assert!(!rules.classes["student"].restricted && rules.classes["tool"].restricted);
    }

    #[test]
    fn rules_survive_their_text() {
        let rules = rules(&policy(), &prod());
        assert_eq!(Rules::parse(rules.to_json().as_bytes()), Ok(rules));
    }
}
