//! The cases of `tests/data/admission`. Each file has one object, the client that sends it, and the expected decision.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::*;
use crate::contract::{ContractError, Identity};
use crate::identity::{AccountId, ClusterName, DirectoryId, PosixIdentity};
use crate::rules::Mode;

/// The content of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// The class of the tenant that owns the namespace: `tool`, `user`, `course` or `trial`.
    #[serde(default = "tool")]
    class: String,
    /// The client that sends the review; `None` for the tenant.
    user: Option<String>,
    #[serde(default)]
    groups: Vec<String>,
    /// `sealed` if empty; otherwise `suspended`, `edited`, `missing`, `unknown` or `stale`.
    #[serde(default)]
    identity: String,
    #[serde(default = "create")]
    operation: String,
    /// `GROUP/VERSION/RESOURCE[/SUBRESOURCE]`, without the group if it is the core group.
    resource: String,
    object: Option<Value>,
    old: Option<Value>,
    #[serde(default)]
    expect: Expected,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Expected {
    refused: Vec<String>,
    warned: Vec<String>,
    audited: BTreeMap<String, String>,
    patch: Vec<Value>,
}

fn tool() -> String {
    "tool".to_owned()
}

fn create() -> String {
    "CREATE".to_owned()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/admission")
}

pub(super) fn rules() -> Rules {
    let text = std::fs::read(folder().join("rules.json")).expect("rules.json is readable");
    Rules::parse(&text).expect("rules.json is valid")
}

/// Returns the tenant that the cases of a class use.
pub(super) fn identity(class: &str, state: TenantState) -> Identity {
    let (account, namespace, uid, gid, groups) = match class {
        "tool" => ("tool:foo", "tool-foo", 52_503, 52_503, &[50_000, 50_001][..]),
        "user" => ("user:alice", "user-alice", 20_001, 500, &[][..]),
        "course" => ("group:algebra", "course-algebra", 70_001, 600, &[][..]),
        _ => ("user:bob", "trial-bob", 20_002, 500, &[][..]),
    };
    let gid_of = |number: i64| number.try_into().expect("the number is a gid");
    Identity {
        cluster: ClusterName("prod".into()),
        namespace: namespace.to_owned().try_into().expect("the name is a DNS label"),
        id: AccountId("0a1b".into()),
        directory_id: DirectoryId("c3d4".to_owned()),
        account: account.parse().expect("the name is an account's"),
        class: class.to_owned(),
        posix: Some(PosixIdentity {
            uid: i64::from(uid).try_into().expect("the number is a uid"),
            gid: gid_of(gid),
            groups: groups.iter().copied().map(gid_of).collect(),
        }),
        generation: 7,
        state,
        exceptions: std::collections::BTreeSet::new(),
    }
}

fn resolved(case: &Case) -> Resolved {
    match case.identity.as_str() {
        "" => Resolved::Sealed(identity(&case.class, TenantState::Active)),
        "suspended" => Resolved::Sealed(identity(&case.class, TenantState::Suspended)),
        "edited" => Resolved::of(Err(ContractError::Broken)),
        "missing" => Resolved::of(Err(ContractError::Missing("bursar.dev/seal"))),
        "unknown" => Resolved::Unresolved(Unresolved::Unknown),
        "stale" => Resolved::Unresolved(Unresolved::Stale { seconds: 300 }),
        other => panic!("identity: {other}"),
    }
}

/// Returns the review of a case, as the API server would send it.
fn body(case: &Case) -> Value {
    let tenant = identity(&case.class, TenantState::Active);
    let parts: Vec<&str> = case.resource.split('/').collect();
    let (group, rest) = if parts[0].starts_with('v') { ("", &parts[..]) } else { (parts[0], &parts[1..]) };
    let either = case.object.as_ref().or(case.old.as_ref());
    let metadata = either.map_or(Value::Null, |object| object["metadata"].clone());
    let is_clusterwide = ["namespaces", "certificatesigningrequests", "persistentvolumes"].contains(&rest[1]);
    let namespace = match rest[1] {
        "namespaces" => metadata["name"].clone(),
        _ if is_clusterwide => Value::Null,
        _ => json!(tenant.namespace),
    };
    let account = tenant.account.to_string();
    let own = [format!("bursar:{}s", tenant.account.kind), format!("bursar:{account}#7")];
    let groups = if case.user.is_some() { case.groups.clone() } else { own.to_vec() };
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "resource": {"group": group, "version": rest[0], "resource": rest[1]},
            "subResource": rest.get(2),
            "name": metadata["name"],
            "namespace": namespace,
            "operation": case.operation,
            "userInfo": {"username": case.user.clone().unwrap_or(account), "groups": groups},
            "object": case.object,
            "oldObject": case.old,
        },
    })
}

/// Returns the answer to a review, as the API server reads it.
pub(super) fn answered(review: &Review<'_>, decision: &Decision) -> Value {
    serde_json::from_str(&answer(&review.uid, decision)).expect("the text is JSON")
}

pub(super) fn patched(object: &Value, decision: &Decision) -> Value {
    let patch: json_patch::Patch = serde_json::from_value(json!(decision.patch)).expect("the decision has a patch");
    let mut object = object.clone();
    json_patch::patch(&mut object, &patch).expect("the patch fits the object");
    object
}

fn cases(part: &str) -> BTreeMap<String, Case> {
    let files = std::fs::read_dir(folder().join(part)).expect("the folder exists");
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("the file is readable");
        let name = format!("{part}/{}", path.file_stem().expect("the path has a file name").to_string_lossy());
        let case = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, case)
    };
    files.map(|entry| read(entry.expect("the folder is readable").path())).collect()
}

fn said(decision: &Decision) -> Expected {
    let texts = |findings: &[Finding]| findings.iter().map(ToString::to_string).collect();
    Expected {
        refused: texts(&decision.refusals),
        warned: texts(&decision.warnings),
        audited: decision.audit_annotations().into_iter().map(|(rule, text)| (rule.to_owned(), text)).collect(),
        patch: decision.patch.iter().map(|operation| json!(operation)).collect(),
    }
}

/// Decides each case in a folder, compares the decision with the expected one, and returns the number of cases.
fn decided(part: &str, each: impl Fn(&str, &Case, &Review<'_>, &Decision)) -> usize {
    let (rules, cases) = (rules(), cases(part));
    let mut wrong = Vec::new();
    let mut decisions = Vec::new();
    let bodies: Vec<String> = cases.values().map(|case| body(case).to_string()).collect();
    for ((name, case), body) in cases.iter().zip(&bodies) {
        let review = Review::parse(body.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let decision = decide(&rules, &resolved(case), &review);
        let said = said(&decision);
        if said != case.expect {
            wrong.push(format!("{name}: the file expects a decision other than\n{}", json!(said)));
        }
        decisions.push((name, case, review, decision));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (name, case, review, decision) in &decisions {
        each(name, case, review, decision);
    }
    cases.len()
}

#[test]
fn attacks_are_refused_with_a_remedy() {
    let count = decided("attacks", |name, _, review, decision| {
        assert!(!decision.is_allowed(), "{name}");
        let body = answered(review, decision);
        assert_eq!(body["response"]["allowed"], false, "{name}");
        let message = body["response"]["status"]["message"].as_str().expect("a refusal has a message");
        for line in message.lines() {
            assert!(line.contains("; ") && line.contains(": "), "{name}: {line}");
        }
        assert!(body["response"].get("patch").is_none(), "{name}");
    });
    assert!(count >= 60, "only {count}");
}

/// Returns the ordinary case of a rule: an object that the rule checks and lets pass.
const fn ordinary_case(rule: Rule) -> &'static str {
    match rule {
        Rule::Uid => "own-uid-in-the-pod",
        Rule::Host => "host-network-false",
        Rule::Images => "image-with-digest",
        Rule::Hosts => "own-host",
        Rule::Annotations => "ingress-with-allowed-annotations",
        Rule::Volumes => "own-nfs",
        Rule::Claims => "claim-for-several-nodes",
        Rule::Lifetime => "lifetime-as-long-as-allowed",
        Rule::Identity => "old-root-pod-loses-its-finalizer-while-nobody-knows-whose",
        Rule::Suspended => "pod-of-a-suspended-tool-loses-its-finalizer",
        Rule::Objects => "own-quota-of-the-tenant",
        Rule::Approval => "approval-of-a-tool",
        Rule::Malformed => "plain-pod",
    }
}

#[test]
fn every_rule_has_an_attack_and_an_ordinary_object() {
    let refused = RefCell::new(BTreeSet::new());
    decided("attacks", |_, _, _, decision| {
        refused.borrow_mut().extend(decision.refusals.iter().map(|finding| finding.rule));
    });
    let (refused, ordinary) = (refused.into_inner(), cases("ordinary"));
    for rule in Rule::ALL {
        // The rule `claims` fills in, and refuses nothing.
        assert_eq!(refused.contains(rule), *rule != Rule::Claims, "{rule:?}");
        assert!(ordinary.contains_key(&format!("ordinary/{}", ordinary_case(*rule))), "{rule:?}");
    }
}

#[test]
fn ordinary_objects_pass_and_need_no_second_patch() {
    let count = decided("ordinary", |name, case, review, decision| {
        assert!(decision.is_allowed(), "{name}: {}", decision.message());
        let object = review.object.as_ref().map(|object| patched(&object.into(), decision));
        let after = Review { object: object.as_ref().map(Json::from), ..review.clone() };
        let again = decide(&rules(), &resolved(case), &after);
        assert!(again.is_allowed() && again.patch.is_empty(), "{name}: {again:?}");
    });
    assert!(count >= 30, "only {count}");
}

#[test]
fn a_malformed_review_is_an_error_without_its_content() {
    let error = |text: &str| Review::parse(text.as_bytes()).expect_err("the text is not a review").to_string();
    assert_eq!(error("secret"), "the body is not an AdmissionReview: it is wrong at line 1, column 1");
    assert!(!error(r#"{"apiVersion": "admission.k8s.io/v1", "request": "hunter2"}"#).contains("hunter2"));
    assert!(error("{}").contains("is not an AdmissionReview of admission.k8s.io/v1"));
    let other = r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1", "operation":
        "FETCH", "resource": {"group": "", "version": "v1", "resource": "pods"}}}"#;
    assert_eq!(error(other), "the review has an unknown operation");
    assert!(error(&"[".repeat(1000)).contains("line 1"));
}

#[test]
fn a_review_with_a_duplicate_field_is_refused() {
    let review = |object: &str, more: &str| {
        format!(
            r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {{"uid": "u", "operation":
            "CREATE", "resource": {{"group": "", "version": "v1", "resource": "pods"}}, "object": {object} {more}}}}}"#
        )
    };
    assert!(Review::parse(review("{}", "").as_bytes()).is_ok());
    for (object, more) in [
        (r#"{"spec": {"hostPID": true, "hostPID": false}}"#, ""),
        (r#"{"spec": {"hostPID": true, "a": 1, "hostPID": false}}"#, ""),
        (r#"{"spec": [{"a": {}, "a": null}]}"#, ""),
        (r#"{"metadata": {"managedFields": [], "managedFields": []}}"#, ""),
        ("{}", r#", "object": {}"#),
        ("{}", r#", "uid": "u""#),
    ] {
        let body = review(object, more);
        assert!(matches!(Review::parse(body.as_bytes()), Err(ReviewError::Unreadable { .. })), "{body}");
    }
}

#[test]
fn the_response_has_the_form_that_kubernetes_expects() {
    let object =
        json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "registry.example.org/a"}]}});
    let case = Case {
        class: tool(),
        user: None,
        groups: Vec::new(),
        identity: String::new(),
        operation: create(),
        resource: "v1/pods".to_owned(),
        object: Some(object),
        old: None,
        expect: Expected::default(),
    };
    let body = body(&case).to_string();
    let review = Review::parse(body.as_bytes()).expect("the body is a review");
    let body = answered(&review, &decide(&rules(), &resolved(&case), &review));
    assert_eq!((&body["apiVersion"], &body["kind"]), (&json!("admission.k8s.io/v1"), &json!("AdmissionReview")));
    assert_eq!((&body["response"]["uid"], &body["response"]["allowed"]), (&json!(*review.uid), &json!(true)));
    assert_eq!(body["response"]["patchType"], "JSONPatch");
    let patch = base64::Engine::decode(
        &base64::engine::general_purpose::STANDARD,
        body["response"]["patch"].as_str().expect("the decision has a patch"),
    );
    let patch: Value = serde_json::from_slice(&patch.expect("the patch is base64")).expect("the text is JSON");
    assert_eq!(patch[0]["path"], "/spec/containers/0/securityContext");
}

#[test]
fn a_seal_of_another_namespace_or_cluster_proves_no_identity() {
    let rules = rules();
    let mut case: Case =
        serde_saphyr::from_str("{resource: v1/pods, object: {spec: {containers: []}}}").expect("the case is valid");
    let body = body(&case).to_string();
    let mut review = Review::parse(body.as_bytes()).expect("the body is a review");
    review.namespace = "tool-bar".into();
    assert_eq!(decide(&rules, &resolved(&case), &review).refusals[0].rule, Rule::Identity);
    case.class = "gone".to_owned();
    review.namespace = "trial-bob".into();
    let message = decide(&rules, &resolved(&case), &review).message();
    assert!(message.contains("the webhook has no rules for class \"gone\""), "{message}");
    let elsewhere = Rules { cluster: ClusterName("other".into()), ..rules };
    case.class = tool();
    review.namespace = "tool-foo".into();
    assert_eq!(decide(&elsewhere, &resolved(&case), &review).refusals[0].rule, Rule::Identity);
}

#[test]
fn a_class_with_privilege_escalation_lets_containers_escalate() {
    let context = r#"{"allowPrivilegeEscalation": true, "capabilities": {"add": ["SETUID"]}}"#;
    let case = |context: &str| -> Case {
        let image = format!("registry.example.org/alice/web@sha256:{}", "a".repeat(64));
        let container = format!(r#"{{"name": "a", "image": "{image}", "securityContext": {context}}}"#);
        let text = format!(
            r#"{{"class": "user", "resource": "v1/pods", "object": {{"spec": {{"containers": [{container}]}}}}}}"#
        );
        serde_saphyr::from_str(&text).expect("the case is valid")
    };
    let decided = |rules: &Rules, case: &Case| {
        let body = body(case).to_string();
        decide(rules, &resolved(case), &Review::parse(body.as_bytes()).expect("the body is a review"))
    };
    let mut rules = rules();
    assert_eq!(decided(&rules, &case(context)).refusals.len(), 2);
    rules.classes.get_mut("user").expect("the rules have this class").uid.privilege_escalation = true;
    assert!(decided(&rules, &case(context)).is_allowed());
    let silent = decided(&rules, &case("{}"));
    assert!(
        silent.patch.iter().all(|change| !change.path.starts_with("/spec/containers/0/securityContext")),
        "{silent:?}"
    );
}

#[test]
fn a_privileged_container_is_refused_once_in_every_mode_of_the_host_rule() {
    let text = r#"{"resource": "v1/pods", "object": {"spec": {"containers": [
        {"name": "a", "image": "registry.example.org/a", "securityContext": {"privileged": true}}]}}}"#;
    let case: Case = serde_saphyr::from_str(text).expect("the case is valid");
    let body = body(&case).to_string();
    let review = Review::parse(body.as_bytes()).expect("the body is a review");
    for host in [Mode::Off, Mode::Audit, Mode::Warn, Mode::Enforce] {
        let mut rules = rules();
        rules.classes.get_mut("tool").expect("the rules have this class").host = host;
        let decision = decide(&rules, &resolved(&case), &review);
        assert_eq!(decision.refusals.len(), 1, "{}", decision.message());
    }
}

#[test]
fn a_tenant_without_uid_cannot_start_pods_if_uids_are_enforced() {
    let case: Case =
        serde_saphyr::from_str("{resource: v1/pods, object: {spec: {containers: []}}}").expect("the case is valid");
    let body = body(&case).to_string();
    let review = Review::parse(body.as_bytes()).expect("the body is a review");
    let nobody = Identity { posix: None, ..identity("tool", TenantState::Active) };
    let message = decide(&rules(), &Resolved::Sealed(nobody), &review).message();
    assert!(message.starts_with("the pod would run as its image's user; tool foo has no uid"), "{message}");
}

/// Returns the refusals of a template, of its change from `old`, and of a new pod like it, if the class requires a
/// lifetime.
fn required(old: Option<&Value>, object: &Value) -> Vec<String> {
    let mut rules = rules();
    let class = rules.classes.get_mut("tool").expect("the rules have this class");
    class.lifetimes = crate::rules::Lifetimes { max: Some(3600), default: None, required: true };
    let pod = |metadata: &Value| json!({"metadata": metadata, "spec": {"containers": [{"name": "web", "image": "registry.example.org/web:1"}]}});
    let case = Case {
        class: tool(),
        user: None,
        groups: Vec::new(),
        identity: String::new(),
        operation: if old.is_some() { "UPDATE".to_owned() } else { create() },
        resource: "apps/v1/deployments".to_owned(),
        object: Some(json!({"metadata": {"name": "web"}, "spec": {"template": pod(object)}})),
        old: old.map(|old| json!({"metadata": {"name": "web"}, "spec": {"template": pod(old)}})),
        expect: Expected::default(),
    };
    let body = body(&case).to_string();
    let review = Review::parse(body.as_bytes()).expect("the body is a review");
    let mut texts = said(&decide(&rules, &resolved(&case), &review)).refused;
    let plain = Case {
        resource: "v1/pods".to_owned(),
        object: case.object.as_ref().map(|it| it["spec"]["template"].clone()),
        old: None,
        operation: create(),
        ..case
    };
    let body = self::body(&plain).to_string();
    let review = Review::parse(body.as_bytes()).expect("the body is a review");
    texts.extend(said(&decide(&rules, &resolved(&plain), &review)).refused);
    texts
}

#[test]
fn a_required_lifetime_must_be_set_and_cannot_be_removed() {
    let (none, short) = (json!({}), json!({"annotations": {"pod.kubernetes.io/lifetime": "30m"}}));
    assert_eq!(required(None, &short), Vec::<String>::new());
    let texts = required(None, &none);
    assert!(
        texts[0]
            .starts_with("a pod of the template does not say how long it lives; pods of tool foo must have a lifetime"),
        "{texts:?}"
    );
    assert!(texts[1].starts_with("the pod does not say how long it lives"), "{texts:?}");
    let texts = required(Some(&short), &none);
    assert!(texts[0].starts_with("annotation pod.kubernetes.io/lifetime is removed"), "{texts:?}");
}

/// Returns the decision about a pod of tool foo with this spec.
fn of_pod(rules: &Rules, spec: &Value) -> Decision {
    let case: Case =
        serde_json::from_value(json!({"resource": "v1/pods", "object": {"spec": spec}})).expect("the case is valid");
    let body = body(&case).to_string();
    decide(rules, &resolved(&case), &Review::parse(body.as_bytes()).expect("the body is a review"))
}

#[test]
fn findings_beyond_the_limit_are_counted_and_not_kept() {
    let container = json!({"name": "web", "image": "registry.example.org/web:1"});
    let mut many = container.clone();
    let add = vec!["SYS_ADMIN"; 10_000];
    many["securityContext"] =
        json!({"runAsUser": 52_503, "allowPrivilegeEscalation": false, "capabilities": {"add": add}});
    let spec = json!({"containers": [many], "securityContext": {"supplementalGroups": vec![0; 200_000]}});
    for (mode, kept) in [(Mode::Enforce, 0), (Mode::Warn, 1), (Mode::Audit, 2)] {
        let mut rules = rules();
        rules.classes.get_mut("tool").expect("the rules have this class").uid.mode = mode;
        let decision = of_pod(&rules, &spec);
        let lists = [&decision.refusals, &decision.warnings, &decision.audit];
        assert_eq!(lists[kept].len(), decision::MOST);
        assert_eq!(decision.left_out[&(mode, Rule::Uid)], 210_000 - decision::MOST as u64);
    }
    let said = of_pod(&rules(), &spec).message();
    assert!(said.ends_with("\nand 209984 more"), "{said}");
    let said = of_pod(&rules(), &json!({"containers": vec![container; 1001]})).message();
    assert!(said.starts_with("spec has more than 1000 containers"), "{said}");
}

#[test]
fn an_exception_from_hosts_permits_no_annotation() {
    let text = std::fs::read_to_string(folder().join("attacks/ingress-snippet.yaml")).expect("the file is readable");
    let mut case: Case = serde_saphyr::from_str(&text).expect("the case is valid");
    let object = case.object.as_mut().expect("the case has an object");
    object["spec"]["rules"][0]["host"] = json!("course.example.org");
    let body = body(&case).to_string();
    let review = Review::parse(body.as_bytes()).expect("the body is a review");
    let mut foo = identity("tool", TenantState::Active);
    foo.exceptions = [crate::contract::exception::ExceptedRule::Hosts].into();
    let said = said(&decide(&rules(), &Resolved::Sealed(foo), &review));
    assert_eq!(said.refused.len(), 1, "{said:?}");
    assert!(said.refused[0].contains("configuration-snippet") && said.audited["hosts"].contains("course.example.org"));
}

#[test]
fn an_escaped_character_counts_as_its_unescaped_bytes() {
    let stored = |text: &str| Json::read(text).expect("the text is JSON").stored();
    let of = |escaped: &str| stored(&format!("{{\"args\":[\"{}\"]}}", escaped.repeat(1000)));
    assert_eq!(of("\\u003c") - of(""), 1000);
    assert_eq!(of("\\u2028") - of(""), 3000);
    let whole = r#"{"a":[true,12,null,"b"],"managedFields":[{"f:a":{}}]}"#;
    assert!((whole.len()..whole.len() + 16).contains(&stored(whole)), "{}", stored(whole));
}

#[test]
fn an_update_of_a_claim_needs_no_identity() {
    let text = std::fs::read_to_string(folder().join("ordinary/claim-gets-its-node-by-the-scheduler.yaml"));
    let case: Case = serde_saphyr::from_str(&text.expect("the file is readable")).expect("the case is valid");
    let body = body(&case).to_string();
    let review = Review::parse(body.as_bytes()).expect("the body is a review");
    assert!(!review.needs_identity());
    let nobodys = Resolved::Unresolved(Unresolved::Unknown);
    assert_eq!(decide(&rules(), &nobodys, &review), Decision::default());
}

#[test]
fn paths_beneath_a_tenants_folder_of_the_node_are_refused() {
    let mut rules = rules();
    let volumes = &mut rules.classes.get_mut("tool").expect("the rules have this class").volumes;
    volumes.allow = vec![crate::rules::AllowedVolume::HostPath("/scratch/{name}/".to_owned())];
    let said = |path: &str| {
        let volume = json!({"name": "scratch", "hostPath": {"path": path}});
        of_pod(&rules, &json!({"containers": [], "volumes": [volume]})).message()
    };
    assert_eq!((said("/scratch/foo"), said("/scratch/foo/")), (String::new(), String::new()));
    assert_eq!(
        said("/scratch/foo/link"),
        "volume \"scratch\" mounts \"/scratch/foo/link\" of the node; tool foo may mount only /scratch/foo of this kind: mount \
         the folder itself, and select a path inside it with subPath"
    );
    assert!(said("/scratch/bar").ends_with("use a PersistentVolumeClaim"));
}
