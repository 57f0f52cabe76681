//! Finds priority classes and runtime classes that the configuration allows and that the cluster does not have. The
//! daemon may not list these kinds. It asks with pods in a dry run: the API server itself refuses a pod that names a
//! class that does not exist, before it asks a webhook or a policy.

use kube::Client;
use serde_json::json;

use super::selftest::create;
use crate::desired::server_rules::{adopting, classes};
use crate::identity::ClusterName;
use crate::policy::{Class, Policy};
use crate::rules::Mode;
use crate::rules::server::ServerRule;

/// A priority class or runtime class that a class of the configuration lists and that the cluster does not have.
#[derive(Debug)]
pub struct Absent<'p> {
    pub class: &'p Class,
    /// The key of `scheduling` that has the name.
    pub key: &'static str,
    /// Kind and name of what is missing, such as `RuntimeClass gvisor`.
    pub what: String,
}

/// Returns the absent classes. A pod that is refused for another reason proves that the API server found the class.
pub async fn absent<'p>(policy: &'p Policy, cluster: &'p ClusterName, client: &Client) -> Vec<Absent<'p>> {
    let own = classes(policy, cluster).map(|class| (class, &class.admission.server.scheduling));
    let adopting = adopting(policy, cluster).map(|(class, admission)| (class, &admission.server.scheduling));
    let mut absent = Vec::new();
    for (class, rule) in own.chain(adopting) {
        for (key, kind, field, name) in named(rule) {
            let container = json!({"name": "selftest", "image": "registry.example.org/selftest"});
            let tried = create(client, &json!({"containers": [container], field: name})).await;
            let refusals = [format!("{kind} with name {name} was found"), format!("{kind} {name:?} not found")];
            if tried.is_err_and(|why| refusals.iter().any(|refusal| why.contains(refusal))) {
                absent.push(Absent { class, key, what: format!("{kind} {name}") });
            }
        }
    }
    absent
}

/// Returns each class that a rule lists, as the key of the list, the kind, the field of a pod for it, and the name.
fn named(rule: &ServerRule) -> impl Iterator<Item = (&'static str, &'static str, &'static str, &str)> {
    let words = rule.allow.iter().filter(|word| rule.mode != Some(Mode::Off) && !word.ends_with(" *"));
    words.filter_map(|word| match word.split_once(' ')? {
        ("priority", name) => Some(("priority_classes", "PriorityClass", "priorityClassName", name)),
        ("runtime", name) => Some(("runtime_classes", "RuntimeClass", "runtimeClassName", name)),
        _ => None,
    })
}
