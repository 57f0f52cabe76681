//! Builds `rules.json` for the webhook of a cluster from the classes of the policy.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::ClusterName;
use crate::kinds::ManagedKind;
use crate::ledger::LedgerState;
use crate::policy::{Admission, Class, DAEMON_USER, PodSecurity, Policy, VolumeRule};
use crate::rules::{AllowedVolume, ClassRules, Mode, Mount, Rules, VERSION, VolumeRules};

/// The volume with people's files. Pods that get it have its mount path as `HOME`.
const HOME: &str = "home";

/// Returns the rules of `cluster`: those of all classes with namespaces there.
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
        // A client certificate is required only after a review that had one: `bursar webhook install` writes this
        // field.
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

/// Returns the volume rules. Pods may mount the volumes of their class themselves, and get those with a `mount`
/// automatically.
fn volumes(class: &Class, rule: VolumeRule) -> VolumeRules {
    let exports = class.volumes.iter().filter_map(|volume| volume.kind.nfs());
    let own = exports.map(|nfs| AllowedVolume::Nfs { server: nfs.server.clone(), path: nfs.path.clone() });
    // A personal claim is in another namespace, so pods cannot mount it.
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

/// Returns a finding about rules that nothing enforces in a cluster without a webhook, for the classes with tenants
/// there. Returns `None` if there are no such rules.
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
    fn volumes_of_the_class_are_allowed_and_mounted() {
        let rules = rules(&policy(), &prod());
        let volumes = &rules.classes["student"].volumes;
        let own = AllowedVolume::Nfs { server: "nfs.example.org".to_owned(), path: "/srv/home/{name}".to_owned() };
        assert_eq!(volumes.allow, [own]);
        assert_eq!(volumes.home.as_deref(), Some("/home/{name}"));
        assert!(!rules.classes["student"].restricted && rules.classes["tool"].restricted);
    }

    #[test]
    fn rules_are_parsed_as_they_were_written() {
        let rules = rules(&policy(), &prod());
        assert_eq!(Rules::parse(rules.to_json().as_bytes()), Ok(rules));
    }
}
