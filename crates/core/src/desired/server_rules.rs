//! The data for the API server's own admission policies. The data of a mode has a key for each class and rule that is
//! in this mode. The value of a key has one word per line.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::class::former_classes;
use crate::identity::ClusterName;
use crate::ledger::LedgerState;
use crate::policy::{AdoptedAdmission, Class, Policy};
use crate::rules::server::{HostField, LONGEST_GRACE, ServerRule, ServerRules};
use crate::rules::{HostRules, Mode};

/// The modes in which a rule is evaluated.
pub const MODES: [Mode; 3] = [Mode::Enforce, Mode::Warn, Mode::Audit];

/// Returns the mode of a rule for which no administrator chose one. If the ledger is older than these rules, the mode
/// is `audit`, because the tenants may have objects that the rules would refuse.
#[must_use]
pub const fn unchosen(ledger_is_older: bool) -> Mode {
    if ledger_is_older { Mode::Audit } else { Mode::Enforce }
}

/// Returns the data for the policy of each mode, with the names of former classes that namespaces still carry.
#[must_use]
pub fn data(
    policy: &Policy,
    cluster: &ClusterName,
    (ledger, unchosen): (&LedgerState, Mode),
) -> [(Mode, BTreeMap<String, String>); 3] {
    let named: Vec<_> = all(policy, cluster, ledger).collect();
    MODES.map(|mode| {
        let words = named.iter().flat_map(|(name, class)| of_class(name, class, mode, unchosen));
        (mode, words.collect())
    })
}

/// Returns the names of the classes that [`data`] is about, whether or not they have a rule in some mode.
#[must_use]
pub fn names(policy: &Policy, cluster: &ClusterName, ledger: &LedgerState) -> BTreeSet<String> {
    all(policy, cluster, ledger).map(|(name, _)| name).collect()
}

/// Returns the classes by the names that namespaces can carry: their own names, and those of former classes.
fn all<'p>(
    policy: &'p Policy,
    cluster: &'p ClusterName,
    ledger: &LedgerState,
) -> impl Iterator<Item = (String, &'p Class)> + use<'p> {
    let present = classes(policy, cluster).map(|class| (class.name.clone(), class));
    present.chain(former_classes(ledger, policy, cluster))
}

/// Returns the words, by rule, for a class that [`data`] does not include: those of a class without any `admission`
/// settings. Such a class exists if the configuration has changed since `init` last ran.
#[must_use]
pub fn of_unknown(mode: Mode, unchosen: Mode) -> BTreeMap<String, String> {
    let hosts = HostRules { mode: Mode::Off, allow: Vec::new(), annotations: Vec::new() };
    let words = words("", "", &hosts, &ServerRules::default(), (mode, unchosen));
    words.into_iter().map(|(key, words)| (key.trim_start_matches('.').to_owned(), words)).collect()
}

/// Returns the fields of additional kinds that name hosts, for all classes.
#[must_use]
pub fn host_fields(policy: &Policy, cluster: &ClusterName) -> BTreeSet<HostField> {
    classes(policy, cluster).flat_map(|class| class.admission.server.host_fields.iter().cloned()).collect()
}

/// Returns the longest grace period in seconds, by class, of the classes with a limit other than [`LONGEST_GRACE`].
#[must_use]
pub fn grace_periods(policy: &Policy, cluster: &ClusterName, ledger: &LedgerState) -> BTreeMap<String, i64> {
    let limits = all(policy, cluster, ledger).map(|(name, class)| (name, class.admission.server.longest_grace));
    limits.filter(|(_, longest)| *longest != LONGEST_GRACE).collect()
}

/// Returns the rules for which no administrator chose a mode, such as `class.tool.admission.services`.
#[must_use]
pub fn to_be_chosen(policy: &Policy, cluster: &ClusterName) -> Vec<String> {
    let named = classes(policy, cluster).flat_map(|class| {
        let open = rules(&class.admission.server).into_iter().filter(|(_, rule)| rule.mode.is_none());
        open.map(|(name, _)| format!("class.{}.admission.{name}", class.name))
    });
    named.collect()
}

/// Returns the classes that make namespaces. The rules do not apply to other classes.
pub fn classes<'p>(policy: &'p Policy, cluster: &'p ClusterName) -> impl Iterator<Item = &'p Class> {
    policy.classes.values().filter(move |class| class.clusters.contains(cluster) && class.namespace.is_some())
}

/// Returns the classes that adopt namespaces in the cluster, each with its rules.
pub fn adopting<'p>(
    policy: &'p Policy,
    cluster: &'p ClusterName,
) -> impl Iterator<Item = (&'p Class, &'p AdoptedAdmission)> {
    let here = policy.classes.values().filter(move |class| class.clusters.contains(cluster));
    here.filter_map(|class| Some((class, &*class.adopts()?.admission)))
}

/// Returns the data for the policy of one mode of an adopting class; empty if the class has no rule in this mode.
#[must_use]
pub fn of_adopting(class: &Class, admission: &AdoptedAdmission, mode: Mode) -> BTreeMap<String, String> {
    let AdoptedAdmission { hosts, volumes, allowed_volumes: _, read_write_many, server } = admission;
    let hosts = HostRules { allow: admission.host_patterns().collect(), ..hosts.clone() };
    // `{name}` stands for the name of the adopted namespace.
    let mut words: BTreeMap<String, String> =
        words(&class.name, "{name}", &hosts, server, (mode, Mode::Off)).into_iter().collect();
    let key = |rule: &str| format!("{}.{rule}", class.name);
    if read_write_many.mode == Some(mode) {
        words.insert(key("read-write-many"), lines(&read_write_many.allow));
    }
    if *volumes == mode {
        words.insert(key("volumes"), String::new());
    }
    if hosts.mode == mode {
        words.insert(key("routes"), String::new());
    }
    let is_rule = |name: &String| !["namespace", "hosts", "host-annotations"].iter().any(|told| *name == key(told));
    if words.keys().any(is_rule) { words } else { BTreeMap::new() }
}

fn rules(server: &ServerRules) -> [(&'static str, &ServerRule); 5] {
    [
        ("services", &server.services),
        ("scheduling", &server.scheduling),
        ("sysctls", &server.sysctls),
        ("ingress", &server.ingress),
        ("storage", &server.storage),
    ]
}

fn of_class(name: &str, class: &Class, mode: Mode, unchosen: Mode) -> Vec<(String, String)> {
    let namespace = class.namespace.as_deref().unwrap_or_default();
    let mut entries = words(name, namespace, &class.admission.hosts, &class.admission.server, (mode, unchosen));
    let ours = scalable(class);
    if mode == Mode::Enforce && !ours.is_empty() {
        entries.push((format!("{name}.namespace"), namespace.to_owned()));
        entries.push((format!("{name}.ours"), lines(ours)));
    }
    entries
}

/// The first word for an object that an autoscaler of the class scales.
pub const AUTOSCALED: &str = "autoscaled";

/// Returns the objects of site manifests that may have the subresource `/scale`, such as `deployments.apps proxy`, and
/// the targets of their autoscalers, such as `autoscaled deployments.apps proxy`. They are listed by name, because a
/// request for `/scale` does not show the object's labels. For kinds that Kubernetes does not define, only the API
/// group is known.
fn scalable(class: &Class) -> Vec<String> {
    let words = class.manifests.iter().filter_map(|manifest| {
        let named = &manifest["metadata"]["name"];
        match group(manifest) {
            "autoscaling" | "keda.sh" => {
                let target = &manifest["spec"]["scaleTargetRef"];
                Some(format!("{AUTOSCALED} {}", scaled(target, &target["name"])?))
            }
            _ => scaled(manifest, named),
        }
    });
    words.collect()
}

fn group(of: &Value) -> &str {
    of["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group)
}

/// Returns the words for an object with the `apiVersion` and kind in `of`. If a target has neither, KEDA assumes a
/// Deployment.
fn scaled(of: &Value, name: &Value) -> Option<String> {
    let (group, kind) = match of["kind"].as_str() {
        Some(kind) => (group(of), kind),
        None => ("apps", "Deployment"),
    };
    let plural = match (group, kind) {
        ("apps", "Deployment") => "deployments",
        ("apps", "ReplicaSet") => "replicasets",
        ("apps", "StatefulSet") => "statefulsets",
        ("", "ReplicationController") => "replicationcontrollers",
        (group, _) if group.contains('.') && !group.ends_with(".k8s.io") => "*",
        _ => return None,
    };
    Some(format!("{plural}.{group} {}", name.as_str()?))
}

fn words(
    class: &str,
    namespace: &str,
    hosts: &HostRules,
    server: &ServerRules,
    (mode, unchosen): (Mode, Mode),
) -> Vec<(String, String)> {
    let key = |rule: &str| format!("{class}.{rule}");
    let in_mode = rules(server).into_iter().filter(|(_, rule)| rule.mode.unwrap_or(unchosen) == mode);
    let mut entries: Vec<(String, String)> = in_mode.map(|(name, rule)| (key(name), lines(&rule.allow))).collect();
    if hosts.mode != Mode::Off {
        entries.push((key("namespace"), namespace.to_owned()));
        entries.push((key("hosts"), lines(&hosts.allow)));
        if !server.host_annotations.is_empty() {
            entries.push((key("host-annotations"), lines(&server.host_annotations)));
        }
    }
    let fields = &server.host_fields;
    if hosts.mode == mode && !fields.is_empty() {
        entries.push((key("host-fields"), lines(fields)));
    }
    entries
}

/// Joins words, one per line.
fn lines(words: impl IntoIterator<Item = impl ToString>) -> String {
    words.into_iter().map(|word| word.to_string()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::testing::{policy, prod};

    fn of(unchosen: Mode, change: impl Fn(&mut Class)) -> BTreeMap<Mode, BTreeMap<String, String>> {
        let mut policy = policy();
        for class in policy.classes.values_mut() {
            change(class);
        }
        data(&policy, &prod(), (&LedgerState::default(), unchosen)).into_iter().collect()
    }

    #[test]
    fn an_unknown_class_has_the_rules_of_a_class_without_keys() {
        let mut policy = policy();
        policy.classes.retain(|name, _| name == "tool");
        for unchosen in [Mode::Enforce, Mode::Audit] {
            for (mode, known) in data(&policy, &prod(), (&LedgerState::default(), unchosen)) {
                let unknown = of_unknown(mode, unchosen).into_iter();
                assert_eq!(
                    unknown.map(|(key, words)| (format!("tool.{key}"), words)).collect::<BTreeMap<_, _>>(),
                    known
                );
            }
        }
    }

    #[test]
    fn the_age_of_the_ledger_decides_the_mode_of_a_rule_that_nobody_chose() {
        let older = of(unchosen(true), |_| ());
        assert!(older[&Mode::Enforce].is_empty() && older[&Mode::Audit].contains_key("tool.services"));
        let new = of(unchosen(false), |_| ());
        assert!(new[&Mode::Audit].is_empty() && new[&Mode::Enforce].contains_key("tool.sysctls"));
        let chosen = of(unchosen(true), |class| class.admission.server.services.mode = Some(Mode::Warn));
        assert!(
            chosen[&Mode::Warn].contains_key("tool.services") && !chosen[&Mode::Audit].contains_key("tool.services")
        );
    }

    #[test]
    fn the_rule_on_scales_of_site_manifests_is_always_enforced() {
        let manifest = |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "proxy-{name}"}});
        let autoscaler = |version: &str, target: Value| json!({"apiVersion": version, "kind": "Autoscaler", "spec": {"scaleTargetRef": target}});
        let data = of(Mode::Audit, |class| {
            class.manifests = vec![
                manifest("apps/v1", "Deployment"),
                manifest("apps/v1", "DaemonSet"),
                manifest("networking.k8s.io/v1", "Ingress"),
                manifest("example.org/v1", "Widget"),
                autoscaler("autoscaling/v2", json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"})),
                autoscaler("keda.sh/v1alpha1", json!({"name": "proxy-{name}"})),
                autoscaler("keda.sh/v1alpha1", json!({"apiVersion": "example.org/v1", "kind": "Widget", "name": "w"})),
                manifest("keda.sh/v1alpha1", "TriggerAuthentication"),
            ];
        });
        let ours = "deployments.apps proxy-{name}\n*.example.org proxy-{name}\nautoscaled statefulsets.apps db\n\
                    autoscaled deployments.apps proxy-{name}\nautoscaled *.example.org w";
        assert_eq!(data[&Mode::Enforce].get("tool.ours").map(String::as_str), Some(ours));
        assert!(data[&Mode::Enforce].contains_key("tool.namespace") && !data[&Mode::Audit].contains_key("tool.ours"));
    }

    #[test]
    fn a_rule_is_in_exactly_one_mode_unless_it_is_off() {
        let data = of(Mode::Enforce, |class| class.admission.server.scheduling.mode = Some(Mode::Off));
        let keys = |mode: Mode| data[&mode].keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(Mode::Enforce), ["student.services", "student.sysctls", "tool.services", "tool.sysctls"]);
        assert!(keys(Mode::Warn).is_empty() && keys(Mode::Audit).is_empty());
    }

    #[test]
    fn unchosen_rules_are_listed_until_they_are_chosen() {
        let mut policy = policy();
        let all = to_be_chosen(&policy, &prod());
        assert!(all.contains(&"class.tool.admission.services".to_owned()) && all.len() == 6, "{all:?}");
        for class in policy.classes.values_mut() {
            let server = &mut class.admission.server;
            for rule in [&mut server.services, &mut server.scheduling, &mut server.sysctls] {
                rule.mode = Some(Mode::Audit);
            }
        }
        assert_eq!(to_be_chosen(&policy, &prod()), Vec::<String>::new());
    }
}
