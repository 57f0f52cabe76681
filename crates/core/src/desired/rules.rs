//! Builds `rules.json` for the webhook of a cluster from the classes of the policy.

use std::collections::{BTreeMap, BTreeSet};

use super::class::former_classes;
use crate::identity::ClusterName;
use crate::kinds::ManagedKind;
use crate::ledger::LedgerState;
use crate::policy::{Admission, Class, DAEMON_USER, PodSecurity, Policy, VolumeRule};
use crate::rules::{AllowedVolume, ClassRules, Mode, Mount, Rules, VERSION, VolumeRules};

/// The name of the volume with people's files. In pods with this volume, `HOME` is its mount path.
const HOME: &str = "home";

/// Returns the rules of `cluster`, for all classes with namespaces there, and for the former class names that
/// namespaces still carry.
#[must_use]
pub fn rules(policy: &Policy, cluster: &ClusterName, ledger: &LedgerState) -> Rules {
    let classes = policy.classes.values().filter(|class| class.clusters.contains(cluster));
    let named = classes.map(|class| (class.name.clone(), class));
    Rules {
        version: VERSION,
        cluster: cluster.clone(),
        daemon: DAEMON_USER.to_owned(),
        exempt: policy.exempt.clone(),
        classes: named
            .chain(former_classes(ledger, policy, cluster))
            .filter_map(|(name, class)| Some((name, class_rules(class)?)))
            .collect::<BTreeMap<_, _>>(),
        // `bursar webhook install` sets this field, after a review has shown that the API server sends a client
        // certificate.
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

/// Returns a finding about the rules that nothing enforces in a cluster without a webhook. Only classes with tenants
/// there count. Returns `None` if there are no such rules.
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
    use crate::desired::server_rules::data;
    use crate::identity::AccountKind;
    use crate::plan::testing::{World, policy, prod};
    use crate::policy::When;

    #[test]
    fn classes_without_namespaces_have_no_rules() {
        let rules = rules(&policy(), &prod(), &LedgerState::default());
        assert_eq!(rules.classes.keys().collect::<Vec<_>>(), ["student", "tool"]);
        assert!(self::rules(&policy(), &ClusterName("other".into()), &LedgerState::default()).classes.is_empty());
    }

    #[test]
    fn volumes_of_the_class_are_allowed_and_mounted() {
        let rules = rules(&policy(), &prod(), &LedgerState::default());
        let volumes = &rules.classes["student"].volumes;
        let own = AllowedVolume::Nfs { server: "nfs.example.org".to_owned(), path: "/srv/home/{name}".to_owned() };
        assert_eq!(volumes.allow, [own]);
        assert_eq!(volumes.home.as_deref(), Some("/home/{name}"));
        assert!(!rules.classes["student"].restricted && rules.classes["tool"].restricted);
    }

    #[test]
    fn rules_are_parsed_as_they_were_written() {
        let rules = rules(&policy(), &prod(), &LedgerState::default());
        assert_eq!(Rules::parse(rules.to_json().as_bytes()), Ok(rules));
    }

    /// Returns the class in the label of each namespace, as last written.
    fn labels(world: &World) -> BTreeSet<String> {
        let namespaces = world.ledger.objects.iter().filter(|(key, _)| key.kind == ManagedKind::Namespace);
        let label =
            namespaces.filter_map(|(_, record)| record.detail.as_ref()?.value()["class"].as_str().map(str::to_owned));
        label.collect()
    }

    #[test]
    fn while_a_class_is_renamed_both_names_have_rules() {
        let mut world = World::new();
        for number in 1..=3 {
            world.add(AccountKind::Tool, &format!("t{number:02}"), Some(53_000 + number));
        }
        world.cycles(4);
        // The second time, the ledger still has the first name, and the labels have the second.
        for (before, after) in [("tool", "project"), ("project", "job")] {
            assert_eq!(labels(&world), BTreeSet::from([before.to_owned()]));
            let class = world.policy.classes.remove(before).expect("the class is there");
            world.policy.classes.insert(after.to_owned(), Class { name: after.to_owned(), ..class });
            let mut seen = BTreeSet::new();
            for _ in 0..4 {
                let rules = rules(&world.policy, &prod(), &world.ledger);
                let labels = labels(&world);
                assert!(labels.iter().all(|label| rules.classes.contains_key(label)), "{labels:?}: {rules:?}");
                if labels.contains(before) {
                    assert_eq!(rules.classes.get(before), rules.classes.get(after));
                }
                let data = data(&world.policy, &prod(), (&world.ledger, Mode::Enforce));
                let words = &data.iter().find(|(mode, _)| *mode == Mode::Enforce).expect("the mode has words").1;
                assert!(labels.iter().all(|label| words.contains_key(&format!("{label}.services"))), "{words:?}");
                seen.insert(labels.len());
                world.cycle();
            }
            assert_eq!(seen, BTreeSet::from([1, 2]), "the change is paced");
        }
    }

    /// Returns a world with a ledger from a version that recorded no labels. The tool s01 began in class tool.
    fn older() -> World {
        let mut world = World::new();
        for (uid, name) in (53_001..).zip(["s01", "s02", "t01", "t02", "t03"]) {
            let id = world.add(AccountKind::Tool, name, Some(uid));
            if name.starts_with('s') {
                world.account(&id).dn = format!("cn={name},ou=students,dc=example,dc=org");
            }
        }
        let student = Class {
            name: "student".to_owned(),
            when: Some(When::Base("ou=students,dc=example,dc=org".to_owned())),
            ..world.policy.classes["tool"].clone()
        };
        world.policy.classes.insert(student.name.clone(), student);
        world.cycles(4);
        let first = world.id(AccountKind::Tool, "s01");
        "tool".clone_into(&mut world.ledger.tenants.get_mut(&(first, prod())).expect("s01 is a tenant").class);
        world.cycles(4);
        for (_, record) in world.ledger.objects.iter_mut().filter(|(key, _)| key.kind == ManagedKind::Namespace) {
            record.detail = None;
        }
        world
    }

    #[test]
    fn a_class_may_be_renamed_although_the_ledger_has_no_labels() {
        let mut world = older();
        let class = world.policy.classes.remove("tool").expect("the class is there");
        world.policy.classes.insert("worker".to_owned(), Class { name: "worker".to_owned(), ..class });
        for _ in 0..6 {
            let rules = rules(&world.policy, &prod(), &world.ledger);
            assert!(rules.classes.contains_key("tool"), "{rules:?}");
            assert_eq!(rules.classes.get("tool"), rules.classes.get("worker"));
            world.cycle();
        }
        assert_eq!(labels(&world), BTreeSet::from(["student".to_owned(), "worker".to_owned()]));
    }

    #[test]
    fn a_cycle_records_the_labels_that_an_older_version_wrote() {
        let mut world = older();
        assert!(world.plan().is_empty() && labels(&world).is_empty());
        world.cycle();
        assert_eq!(labels(&world), BTreeSet::from(["student".to_owned(), "tool".to_owned()]));
        let recorded = |world: &World| world.plan().accounts.iter().any(|plan| !plan.labelled.is_empty());
        assert!(!recorded(&world));
        // A namespace that is not as desired may have another label.
        let key = world.ledger.objects.keys().find(|key| key.kind == ManagedKind::Namespace).cloned();
        let key = key.expect("there are namespaces");
        world.ledger.objects.get_mut(&key).expect("the record is there").detail = None;
        assert!(recorded(&world));
        world.ledger.objects.get_mut(&key).expect("the record is there").wanted = "other".to_owned().into();
        assert!(!recorded(&world));
    }

    #[test]
    fn a_class_whose_accounts_go_to_several_classes_has_no_rules_by_its_old_name() {
        let mut world = World::new();
        world.add(AccountKind::Tool, "t01", Some(53_001));
        world.add(AccountKind::Tool, "t02", Some(53_002));
        world.cycles(4);
        let former =
            |world: &World| former_classes(&world.ledger, &world.policy, &prod()).into_keys().collect::<Vec<_>>();
        assert_eq!(former(&world), Vec::<String>::new());
        let mut class = world.policy.classes.remove("tool").expect("the class is there");
        assert_eq!(former(&world), Vec::<String>::new(), "no class takes the accounts");
        for (name, tool, expected) in [("left", "t01", &["tool"][..]), ("right", "t02", &[])] {
            name.clone_into(&mut class.name);
            class.when = Some(When::Base(format!("cn={tool},ou=tools,dc=example,dc=org")));
            world.policy.classes.insert(name.to_owned(), class.clone());
            assert_eq!(former(&world), expected, "{name}");
        }
    }
}
