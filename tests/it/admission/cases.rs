//! Sends the cases of `tests/data/admission` to the real API server. Tenants use their own certificates.
//!
//! An object that a case changes is created beforehand, while the namespace has no label. The changed object is then
//! sent as a whole, as `kubectl replace` would, in a dry run.

use std::collections::BTreeMap;
use std::path::Path;

use bursar::contract::TenantState;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde::Deserialize;
use serde_json::{Value, json};

use super::sender::{Answer, Sender};
use super::server_rules::{pods, prepare};
use super::site::Site;

/// The fields of a file that are used here. `crates/core/src/admission/tests.rs` describes and checks all of them.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    #[serde(default)]
    class: Option<String>,
    pub user: Option<String>,
    #[serde(default)]
    pub groups: Vec<String>,
    #[serde(default)]
    identity: String,
    #[serde(default)]
    pub operation: Option<String>,
    pub resource: String,
    pub object: Option<Value>,
    pub old: Option<Value>,
    #[serde(default)]
    expect: Expected,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Expected {
    #[serde(default)]
    refused: Vec<String>,
    #[serde(default)]
    patch: Vec<Value>,
}

impl Case {
    pub fn class(&self) -> &str {
        self.class.as_deref().unwrap_or("tool")
    }

    /// Returns the tenant's name and its namespace.
    pub fn tenant(&self) -> (&'static str, &'static str) {
        match self.class() {
            "tool" => ("foo", "tool-foo"),
            "user" => ("alice", "user-alice"),
            "course" => ("algebra", "course-algebra"),
            _ => ("bob", "trial-bob"),
        }
    }

    pub fn is_update(&self) -> bool {
        self.operation.as_deref() == Some("UPDATE")
    }

    /// Returns `None` for a case that cannot be sent as an object: a connection, an eviction, a scale, a review without
    /// an object, or an identity that the webhook does not know or that is stale. `crates/core/src/admission`,
    /// `subresources.rs` and `away.rs` test these cases.
    fn sendable(self) -> Option<Self> {
        let same = |kind: &Value| !["Scale", "Eviction"].contains(&kind["kind"].as_str().unwrap_or_default());
        let either = self.object.as_ref().or(self.old.as_ref())?;
        let is_known = !["unknown", "stale"].contains(&self.identity.as_str());
        (either.is_object() && same(either) && is_known && self.operation.as_deref() != Some("CONNECT")).then_some(self)
    }

    /// Renames the object, so that the objects of all cases can exist at the same time.
    fn named(mut self, name: &str) -> Self {
        let Some(old) = &self.old else { return self };
        if self.resource.starts_with("v1/namespaces") {
            return self;
        }
        let at = if self.resource.starts_with('v') { 1 } else { 2 };
        let plural = self.resource.split('/').nth(at).unwrap_or_default();
        let of = |name: &Value| format!("{plural} {name}");
        let before = of(&old["metadata"]["name"]);
        for text in &mut self.expect.refused {
            *text = text.replace(&before, &of(&json!(name)));
        }
        for object in [&mut self.old, &mut self.object].into_iter().flatten() {
            object["metadata"]["name"] = json!(name);
        }
        self
    }
}

/// Returns the cases of a folder by identity, which is a state of the tenants' namespaces.
fn cases(part: &str) -> BTreeMap<String, Vec<(String, Case)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/admission").join(part);
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder is readable")
        .map(|entry| entry.expect("the folder is readable").path())
        .collect();
    files.sort();
    let mut cases = BTreeMap::<_, Vec<_>>::new();
    for (number, path) in files.iter().enumerate() {
        let text = std::fs::read_to_string(path).expect("the file is readable");
        let case: Case = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.file_stem().expect("the path has a name").to_string_lossy().into_owned();
        if let Some(case) = case.sendable() {
            cases.entry(case.identity.clone()).or_default().push((name, case.named(&format!("{part}-{number}"))));
        }
    }
    cases
}

/// Seals the tenants' namespaces, and then changes them as `identity` says.
fn become_identity(site: &Site, sender: &Sender, identity: &str, level: &str) {
    let state = if identity == "suspended" { TenantState::Suspended } else { TenantState::Active };
    // Foo is written last, so that a webhook that knows foo knows the others too.
    for (account, namespace, uid, gid, groups) in [
        ("user:alice", "user-alice", 20001, 500, &[][..]),
        ("user:bob", "trial-bob", 20002, 500, &[]),
        ("group:algebra", "course-algebra", 70001, 600, &[]),
        ("tool:foo", "tool-foo", 52503, 52503, &[50_000, 50_001]),
    ] {
        let identity = super::site::identity(namespace, account, (uid, gid, groups), state);
        site.sealed(&identity, level);
    }
    let said = match identity {
        "suspended" => "is suspended",
        "edited" => {
            site.cluster.run(&["annotate", "namespace", "tool-foo", "bursar.dev/uid=52504", "--overwrite"], "");
            "seal does not match"
        }
        "missing" => {
            site.cluster.run(&["annotate", "namespace", "tool-foo", "bursar.dev/seal-"], "");
            "bursar.dev/seal"
        }
        _ => "",
    };
    wait_for("the webhook knows the tenant in this state", DEADLINE, || {
        let answer = sender.runtime.block_on(sender.plain_pod());
        let is_so = if said.is_empty() { answer.is_success() } else { answer.message().contains(said) };
        is_so.then_some(())
    });
}

/// Sends all cases of a folder. The objects that they change are created before.
fn sent(site: &Site, sender: &Sender, part: &str, level: &str) -> Vec<(String, Case, Answer)> {
    let cases = cases(part);
    become_identity(site, sender, "", level);
    let label = |value: &str| {
        for namespace in ["tool-foo", "user-alice", "trial-bob", "course-algebra"] {
            let class = namespace.split('-').next().expect("the text has a part");
            let label =
                if value == "off" { "bursar.dev/class-".to_owned() } else { format!("bursar.dev/class={class}") };
            site.cluster.run(&["label", "namespace", namespace, &label], "");
        }
    };
    label("off");
    let all: Vec<&Case> = cases.values().flatten().map(|(_, case)| case).collect();
    // The webhook refuses to create an old pod that runs as root, so this waits until the API server no longer asks it.
    let made = wait_for("the objects that the cases change are created", DEADLINE, || {
        sender.runtime.block_on(sender.make(&all)).ok()
    });
    label("on");
    let mut answers = Vec::new();
    for (identity, cases) in cases {
        become_identity(site, sender, &identity, level);
        for (name, case) in cases {
            let answer = sender.runtime.block_on(sender.send(&case));
            answers.push((name, case, answer));
        }
    }
    become_identity(site, sender, "", level);
    sender.runtime.block_on(sender.remove(&made));
    answers
}

/// Attacks that the API server refuses itself: invalid objects, and certificates and changes that it allows to nobody.
const ATTACKS_IT_REFUSES: &[&str] = &[
    "approval-of-another-request-than-is-stored",
    "approval-of-masters-beside-ours",
    "approval-of-masters",
    "approval-of-nothing-readable",
    "claim-grown-by-a-driver-on-its-own",
    "ingress-host-everything",
    "ingress-host-trailing-dot",
    "ingress-host-upper-case",
    "malformed-containers",
    "malformed-host-pid",
    "malformed-ingress-host",
    "malformed-no-spec",
    "malformed-security-context",
    "malformed-spec",
    "resize-as-root",
    "uid-as-fraction",
    "uid-as-text",
    "uid-taken-out-of-a-pod",
    "unknown-list-of-containers",
    "unknown-security-context-field",
    "unknown-volume-source",
];
/// Attacks about which the webhook is not asked: no class here creates a ConfigMap, so our label means nothing on one.
const ATTACKS_ON_NOTHING: &[&str] = &["our-label-put-on", "our-label-stolen"];
/// Cases that the API server itself refuses: a certificate for system:masters, and changes of a pod's tolerations and
/// resources that Kubernetes does not allow.
const ORDINARY_IT_REFUSES: &[&str] = &["approval-by-an-administrator", "old-root-pod-tolerates-more", "resize"];

/// Cases in which the storage class counts as the tenant's choice, because the tenant sends the claim. In the test
/// `the_clusters_default_storage_class_does_not_count_as_a_choice`, Kubernetes chooses it.
const ORDINARY_THEY_CHOSE: &[&str] = &["claim-with-the-default-class-of-the-cluster"];

#[test]
fn attacks_by_tenants_are_refused_and_the_remedy_is_named() {
    let site = Site::alone();
    let sender = Sender::new(&site);
    let answers = sent(&site, &sender, "attacks", "restricted");
    let (mut wrong, mut count, mut by_itself, mut nothing_of) = (Vec::new(), 0, Vec::new(), Vec::new());
    for (name, case, answer) in &answers {
        let message = answer.message();
        if case.expect.refused.iter().all(|text| message.contains(text)) && !answer.is_success() {
            count += 1;
        } else if answer.is_success() {
            nothing_of.push(name.as_str());
        } else {
            by_itself.push(name.as_str());
            wrong.push(format!("{name}: {}: {message}", answer.status));
        }
    }
    let said = wrong.join("\n");
    assert_eq!(nothing_of, ATTACKS_ON_NOTHING, "these attacks were allowed:\n{said}");
    assert_eq!(by_itself, ATTACKS_IT_REFUSES, "{said}");
    assert!(count >= 100, "only {count} attacks were refused");
}

#[test]
fn ordinary_objects_of_tenants_are_allowed_and_completed() {
    let site = Site::alone();
    let sender = Sender::new(&site);
    let answers = sent(&site, &sender, "ordinary", "privileged");
    let (mut wrong, mut by_itself, mut left) = (Vec::new(), Vec::new(), Vec::new());
    for (name, case, answer) in &answers {
        if !answer.is_success() {
            by_itself.push(name.as_str());
            wrong.push(format!("{name}: {}: {}", answer.status, answer.message()));
        }
        for operation in case.expect.patch.iter().filter(|_| answer.is_success()) {
            let path = operation["path"].as_str().expect("the value is a string");
            let parent = path.strip_suffix("/-");
            let found = answer.body.pointer(parent.unwrap_or(path)).cloned().unwrap_or_default();
            let is_there = match (parent, &found) {
                (Some(_), Value::Array(items)) => items.iter().any(|item| holds(item, &operation["value"])),
                _ => holds(&found, &operation["value"]),
            };
            if !is_there {
                left.push(name.as_str());
                wrong.push(format!("{name}: {operation} is not in {found}"));
            }
        }
    }
    let wrong = wrong.join("\n");
    assert_eq!(by_itself, ORDINARY_IT_REFUSES, "{wrong}");
    assert_eq!(left, ORDINARY_THEY_CHOSE, "{wrong}");
    assert!(answers.len() - by_itself.len() >= 60, "only {} cases were sent", answers.len());
}

#[test]
fn pods_and_templates_without_a_required_lifetime_are_refused() {
    let site = Site::shared();
    let meddler = prepare(&site);
    let namespace = site.tenant("batch", "eve", 52603, TenantState::Active);
    let mut lasting = pods(&namespace, json!({})).swap_remove(0);
    lasting["metadata"]["annotations"] = json!({"pod.kubernetes.io/lifetime": "1h"});
    wait_for("the webhook knows the tenant", DEADLINE, || meddler.create(&lasting).ok());
    for object in pods(&namespace, json!({})) {
        let why = meddler.create(&object).expect_err("the rule refuses the object");
        assert!(why.contains("does not say how long it lives"), "{object}: {why}");
    }
    // The API server permits a deadline only for pods and Jobs.
    let [pod, .., job, _] = &pods(&namespace, json!({"activeDeadlineSeconds": 3600}))[..] else {
        panic!("there is an object of every kind")
    };
    assert_eq!((meddler.create(pod), meddler.create(job)), (Ok(()), Ok(())));
    lasting["metadata"]["annotations"] = json!({"pod.kubernetes.io/lifetime": "8d"});
    let why = meddler.create(&lasting).expect_err("the rule refuses the pod");
    assert!(why.contains("live 7days at most"), "{why}");
}

/// Whether `whole` contains all of `part`; the API server may have added fields.
fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|found| holds(found, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            part.iter().all(|item| whole.iter().any(|found| holds(found, item)))
        }
        _ => whole == part,
    }
}
