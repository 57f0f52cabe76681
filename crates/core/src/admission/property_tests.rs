//! Properties of every review: it gets an answer, a patched object needs no further patch, and no container runs as
//! another account.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::{answered, identity, patched, rules};
use super::*;
use crate::rules::{Mode, Mount};

/// The tenant `tool:foo` of the cases.
const UID: i64 = 52_503;

const RESOURCES: [(&str, &str, &str); 16] = [
    ("", "pods", ""),
    ("", "pods", "ephemeralcontainers"),
    ("", "pods", "resize"),
    ("", "pods", "status"),
    ("apps", "deployments", ""),
    ("apps", "deployments", "scale"),
    ("batch", "jobs", ""),
    ("batch", "cronjobs", ""),
    ("networking.k8s.io", "ingresses", ""),
    ("gateway.networking.k8s.io", "httproutes", ""),
    ("", "persistentvolumeclaims", ""),
    ("", "namespaces", ""),
    ("", "namespaces", "finalize"),
    ("", "configmaps", ""),
    ("certificates.k8s.io", "certificatesigningrequests", "approval"),
    ("x", "y", "z"),
];

/// Keys that rules check, so that random objects reach most of the code.
const KEYS: [&str; 48] = [
    "metadata",
    "labels",
    "annotations",
    "name",
    "spec",
    "status",
    "template",
    "jobTemplate",
    "containers",
    "initContainers",
    "ephemeralContainers",
    "securityContext",
    "runAsUser",
    "runAsGroup",
    "fsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "runAsNonRoot",
    "windowsOptions",
    "hostProcess",
    "hostPID",
    "privileged",
    "procMount",
    "ports",
    "hostPort",
    "livenessProbe",
    "lifecycle",
    "preStop",
    "httpGet",
    "volumes",
    "hostPath",
    "nfs",
    "path",
    "server",
    "projected",
    "sources",
    "serviceAccountToken",
    "audience",
    "image",
    "rules",
    "tls",
    "hosts",
    "host",
    "hostnames",
    "defaultBackend",
    "accessModes",
    "storageClassName",
    "managedFields",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(&KEYS[..]).prop_map(str::to_owned),
        prop::sample::select(
            &["bursar", "ReadWriteMany", "Strict", "registry.example.org/a", "all", "/", "foo.tools.example.org"][..]
        )
        .prop_map(str::to_owned),
        "\\PC{0,8}",
    ]
}

/// Generates any JSON, with keys of Kubernetes and others.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(UID)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(text(), inner, 0..6).prop_map(|fields| json!(fields)),
        ]
    })
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => Just(json!(UID)),
        1 => Just(json!(0)),
        1 => Just(json!(UID + 1)),
        1 => Just(json!(UID.to_string())),
        1 => Just(json!(52_503.0)),
        1 => Just(Value::Null),
        1 => any::<i64>().prop_map(Value::from),
    ]
}

/// Generates an object with some of the fields.
fn some_of(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let each: Vec<_> = fields
        .into_iter()
        .map(|(key, value)| prop_oneof![2 => Just(None), 1 => value.prop_map(move |value| Some((key, value)))])
        .collect();
    each.prop_map(|fields| fields.into_iter().flatten().map(|(key, value)| (key.to_owned(), value)).collect()).boxed()
}

fn context() -> BoxedStrategy<Value> {
    some_of(vec![
        ("runAsUser", number().boxed()),
        ("runAsGroup", number().boxed()),
        ("runAsNonRoot", any::<bool>().prop_map(Value::from).boxed()),
        (
            "allowPrivilegeEscalation",
            prop_oneof![6 => Just(json!(false)), 1 => Just(json!(true)), 1 => Just(Value::Null)].boxed(),
        ),
        (
            "capabilities",
            prop_oneof![
                2 => Just(json!({})),
                2 => Just(json!({"drop": []})),
                2 => Just(Value::Null),
                2 => Just(json!({"add": ["NET_BIND_SERVICE"]})),
                1 => Just(json!({"add": ["NET_BIND_SERVICE", "SETUID"]})),
            ]
            .boxed(),
        ),
        ("privileged", prop_oneof![9 => Just(json!(false)), 1 => Just(json!(true))].boxed()),
    ])
}

fn pod_context() -> BoxedStrategy<Value> {
    some_of(vec![
        ("runAsUser", number().boxed()),
        ("runAsGroup", number().boxed()),
        ("fsGroup", number().boxed()),
        ("supplementalGroups", prop_oneof![Just(json!([50_000])), Just(json!([])), Just(json!([0]))].boxed()),
        ("supplementalGroupsPolicy", prop_oneof![Just(json!("Strict")), Just(json!("Merge"))].boxed()),
    ])
}

fn container() -> BoxedStrategy<Value> {
    let context = prop_oneof![2 => Just(Value::Null), 4 => context(), 1 => any_json()];
    ("[ab]", context, prop::bool::weighted(0.9))
        .prop_map(|(name, context, is_ours)| {
            let image = if is_ours { "registry.example.org/a" } else { "b" };
            json!({"name": name, "image": image, "securityContext": context, "news": [1]})
        })
        .boxed()
}

/// Generates a pod that is nearly valid.
fn pod() -> BoxedStrategy<Value> {
    let containers = || prop::collection::vec(container(), 0..3).prop_map(Value::from).boxed();
    let spec = some_of(vec![
        ("containers", containers()),
        ("initContainers", containers()),
        ("ephemeralContainers", containers()),
        ("securityContext", prop_oneof![4 => pod_context(), 1 => any_json()].boxed()),
        ("hostPID", prop_oneof![4 => Just(json!(false)), 1 => Just(json!(true))].boxed()),
        ("volumes", prop_oneof![4 => Just(json!([{"name": "x", "emptyDir": {}}])), 1 => any_json()].boxed()),
        ("news", any_json().boxed()),
    ]);
    let inject = prop::sample::select(&["", "none", "all", "x"][..]);
    (spec, inject)
        .prop_map(|(spec, inject)| json!({"metadata": {"labels": {"bursar.dev/inject": inject}}, "spec": spec}))
        .boxed()
}

fn review<'a>(
    resource: (&'a str, &'a str, &'a str),
    object: Option<&'a Value>,
    old_object: Option<&'a Value>,
) -> Review<'a> {
    let operation = if old_object.is_some() { Operation::Update } else { Operation::Create };
    let (group, resource, subresource) = resource;
    Review {
        uid: "1".into(),
        operation,
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        subresource: subresource.into(),
        name: "x".into(),
        namespace: "tool-foo".into(),
        user: User::default(),
        object: object.map(Json::from),
        old_object: old_object.map(Json::from),
        dry_run: false,
    }
}

fn tenant() -> Resolved {
    Resolved::Sealed(identity("tool", TenantState::Active))
}

/// Returns the rules of the cases, with a mounted home for pods of class `tool`.
fn giving() -> Rules {
    let mut rules = rules();
    if let Some(class) = rules.classes.get_mut("tool") {
        class.volumes.mounts = vec![Mount { claim: "home".to_owned(), path: "/data/{name}".to_owned() }];
        class.volumes.home = Some("/data/{name}".to_owned());
        class.volumes.node_selector = [("a/b".to_owned(), "c".to_owned())].into();
    }
    rules
}

/// Returns the uid of each container by Kubernetes' own rule: the uid of the container, otherwise the uid of the pod;
/// `None` if the image decides.
fn runs_as(pod: &Value) -> Vec<Option<i64>> {
    let of = |value: &Value| value["securityContext"]["runAsUser"].as_i64();
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let containers = lists.iter().filter_map(|list| pod["spec"][*list].as_array()).flatten();
    containers.map(|container| of(container).or(of(&pod["spec"]))).collect()
}

/// Whether a process of any container can become another uid.
fn escalates(pod: &Value) -> bool {
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let mut containers = lists.iter().filter_map(|list| pod["spec"][*list].as_array()).flatten();
    containers.any(|container| {
        let context = &container["securityContext"];
        let added = context["capabilities"]["add"].as_array().cloned().unwrap_or_default();
        context["allowPrivilegeEscalation"] != json!(false)
            || context["privileged"] == json!(true)
            || added.iter().any(|capability| capability != "NET_BIND_SERVICE")
    })
}

/// Whether every value of `old` is in `new`.
fn keeps(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Null, _) => true,
        (Value::Object(old), Value::Object(new)) => {
            old.iter().all(|(key, value)| value.is_null() || new.get(key).is_some_and(|new| keeps(value, new)))
        }
        (Value::Array(old), Value::Array(new)) => {
            old.len() <= new.len() && old.iter().zip(new).all(|(old, new)| keeps(old, new))
        }
        (old, new) => old == new,
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..256)) {
        if let Ok(review) = Review::parse(&body) {
            let decision = decide(&rules(), &tenant(), &review);
            prop_assert!(answered(&review, &decision).is_object());
        }
    }

    #[test]
    fn damaged_reviews_never_panic(
        object in pod(),
        old in pod(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..8),
    ) {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u", "operation": "UPDATE", "namespace": "tool-foo", "object": object, "oldObject": old,
                "resource": {"group": "", "version": "v1", "resource": "pods"}},
        });
        let mut body = review.to_string().into_bytes();
        for (at, byte, how) in damage {
            let at = at.index(body.len().max(1));
            match how {
                0 => body.truncate(at),
                1 => body.insert(at.min(body.len()), byte),
                2 if at < body.len() => drop(body.remove(at)),
                _ => body.get_mut(at).into_iter().for_each(|old| *old = byte),
            }
        }
        if let Ok(review) = Review::parse(&body) {
            let answer = answered(&review, &decide(&rules(), &tenant(), &review));
            prop_assert!(answer["response"]["allowed"].is_boolean());
        }
    }

    #[test]
    fn arbitrary_reviews_never_panic(request in any_json(), part in any_json()) {
        for request in [request.clone(), json!({
            "uid": "1", "operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "tool-foo", "object": part, "userInfo": request,
        })] {
            let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
            let body = body.to_string();
            if let Ok(review) = Review::parse(body.as_bytes()) {
                let decision = decide(&rules(), &tenant(), &review);
                prop_assert!(decision.is_allowed() || decision.patch.is_empty());
            }
        }
    }

    #[test]
    fn arbitrary_objects_never_panic(
        resource in prop::sample::select(&RESOURCES[..]),
        object in prop::option::of(any_json()),
        old in prop::option::of(any_json()),
    ) {
        let review = review(resource, object.as_ref(), old.as_ref());
        let rules = giving();
        let decision = decide(&rules, &tenant(), &review);
        prop_assert!(decision.is_allowed() || decision.patch.is_empty());
        if let (true, Some(object)) = (decision.is_allowed(), &object) {
            let object = patched(object, &decision);
            let after = Review { object: Some(Json::from(&object)), ..review };
            let again = decide(&rules, &tenant(), &after);
            prop_assert!(again.is_allowed() && again.patch.is_empty(), "{:?}", again);
        }
    }

    #[test]
    fn every_container_of_a_new_pod_runs_as_the_tenant(object in pod(), gives: bool, restricted: bool, host: bool) {
        let mut rules = if gives { giving() } else { rules() };
        for class in rules.classes.values_mut() {
            class.restricted = restricted;
            class.host = if host { Mode::Enforce } else { Mode::Warn };
        }
        let review = review(("", "pods", ""), Some(&object), None);
        let decision = decide(&rules, &tenant(), &review);
        if decision.is_allowed() {
            let pod = patched(&object, &decision);
            prop_assert!(runs_as(&pod).iter().all(|uid| *uid == Some(UID)) && !escalates(&pod), "{}", pod);
            prop_assert!(keeps(&object, &pod), "{}", pod);
            let again = decide(&rules, &tenant(), &Review { object: Some(Json::from(&pod)), ..review });
            prop_assert!(again.is_allowed() && again.patch.is_empty(), "{:?}", again);
        }
    }

    #[test]
    fn every_container_of_a_changed_pod_still_runs_as_the_tenant(old in pod(), new in pod()) {
        let first = decide(&rules(), &tenant(), &review(("", "pods", ""), Some(&old), None));
        if !first.is_allowed() {
            return Ok(());
        }
        let old = patched(&old, &first);
        let review = review(("", "pods", "ephemeralcontainers"), Some(&new), Some(&old));
        let decision = decide(&rules(), &tenant(), &review);
        if decision.is_allowed() {
            let pod = patched(&new, &decision);
            prop_assert!(runs_as(&pod).iter().all(|uid| *uid == Some(UID)) && !escalates(&pod), "{}", pod);
        }
    }

    #[test]
    fn a_container_added_to_any_pod_runs_as_the_tenant(old in pod(), sent in pod()) {
        let review = review(("", "pods", "ephemeralcontainers"), Some(&sent), Some(&old));
        let decision = decide(&rules(), &tenant(), &review);
        if decision.is_allowed() && old["spec"] != sent["spec"] {
            let sent = patched(&sent, &decision);
            let had = old["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
            let added = sent["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
            let is_new = |container: &Value| had.iter().all(|had| had["name"] != container["name"]);
            // The API server ignores everything else in the request.
            let mut stored = json!({"spec": {"securityContext": old["spec"]["securityContext"]}});
            stored["spec"]["ephemeralContainers"] = added.into_iter().filter(is_new).collect();
            prop_assert!(runs_as(&stored).iter().all(|uid| *uid == Some(UID)) && !escalates(&stored), "{}", stored);
        }
    }

    #[test]
    fn a_template_passes_if_and_only_if_its_pods_pass(object in pod()) {
        let deployment = json!({"spec": {"template": object}});
        let decision = decide(&rules(), &tenant(), &review(("apps", "deployments", ""), Some(&deployment), None));
        prop_assert!(decision.patch.is_empty());
        let pod = decide(&rules(), &tenant(), &review(("", "pods", ""), Some(&object), None));
        prop_assert_eq!(decision.is_allowed(), pod.is_allowed());
    }

    #[test]
    fn an_object_that_does_not_change_passes(
        resource in prop::sample::select(&RESOURCES[..]),
        object in prop_oneof![pod(), any_json()],
        edited: bool,
    ) {
        let tenant = if edited { Resolved::Unresolved(Unresolved::Edited) } else { tenant() };
        let decision = decide(&rules(), &tenant, &review(resource, Some(&object), Some(&object)));
        let is_object = decision.refusals.iter().all(|finding| finding.what == "the request has no object");
        prop_assert!(is_object, "{}", decision.message());
    }
}
