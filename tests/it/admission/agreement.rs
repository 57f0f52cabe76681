//! Checks that the webhook and the backstop give the same answer for random pods under the `uid` rule.

use bursar::bootstrap;
use bursar_testkit::ready::{DEADLINE, wait_for};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::site::Site;
use crate::world::runtime;

/// The number of random pods in `make test`. `BURSAR_TEST_PODS` overrides it (`make soak`: 2,000).
const PODS: usize = 200;

const UID: i64 = 52505;
const GROUP: i64 = 50_000;

fn number(own: i64) -> impl Strategy<Value = Option<i64>> {
    prop_oneof![6 => Just(None), 4 => Just(Some(own)), 1 => Just(Some(0)), 1 => Just(Some(own + 1))]
}

fn context(of_pod: bool) -> impl Strategy<Value = Value> {
    let flag = prop_oneof![6 => Just(None), 3 => Just(Some(true)), 1 => Just(Some(false))];
    let groups = prop_oneof![
        6 => Just(None), 2 => Just(Some(vec![GROUP])), 1 => Just(Some(vec![UID, GROUP])), 1 => Just(Some(vec![GROUP, 7])),
        1 => Just(Some(vec![])),
    ];
    let policy = prop_oneof![6 => Just(None), 2 => Just(Some("Strict")), 1 => Just(Some("Merge"))];
    let escalation = prop_oneof![12 => Just(None), 4 => Just(Some(false)), 1 => Just(Some(true))];
    let added = prop_oneof![
        12 => Just(None), 2 => Just(Some(vec![])), 2 => Just(Some(vec!["NET_BIND_SERVICE"])), 1 => Just(Some(vec!["SETUID"])),
        1 => Just(Some(vec!["NET_BIND_SERVICE", "CHOWN"])),
    ];
    let of_container = (escalation, added);
    (number(UID), number(UID), number(UID), flag, groups, policy, of_container).prop_map(
        move |(uid, gid, fs_group, non_root, groups, policy, (escalation, added))| {
            let mut context = json!({});
            let mut set = |key: &str, value: Option<Value>| {
                if let Some(value) = value {
                    context[key] = value;
                }
            };
            set("runAsUser", uid.map(|value| json!(value)));
            set("runAsGroup", gid.map(|value| json!(value)));
            set("runAsNonRoot", non_root.map(|value| json!(value)));
            if of_pod {
                set("fsGroup", fs_group.map(|value| json!(value)));
                set("supplementalGroups", groups.map(|value| json!(value)));
                set("supplementalGroupsPolicy", policy.map(|value| json!(value)));
            } else {
                set("allowPrivilegeEscalation", escalation.map(|value| json!(value)));
                set("capabilities", added.map(|value| json!({"add": value})));
            }
            context
        },
    )
}

fn pods() -> impl Strategy<Value = Value> {
    let container = || prop_oneof![2 => Just(None), 1 => context(false).prop_map(Some)];
    let of_pod = prop_oneof![1 => Just(None), 3 => context(true).prop_map(Some)];
    (
        of_pod,
        proptest::collection::vec(container(), 1..3),
        proptest::collection::vec(container(), 0..3),
        prop::bool::ANY,
    )
        .prop_map(|(of_pod, containers, inits, sidecar)| {
            let list = |kind: &str, contexts: Vec<Option<Value>>, sidecar: bool| -> Vec<Value> {
                let each = contexts.into_iter().enumerate().map(|(index, context)| {
                    let mut container = json!({"name": format!("{kind}{index}"), "image": "registry.example.org/i"});
                    if let Some(context) = context {
                        container["securityContext"] = context;
                    }
                    if sidecar && index == 0 {
                        container["restartPolicy"] = json!("Always");
                    }
                    container
                });
                each.collect()
            };
            let mut pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "random", "namespace": "level-level"},
                "spec": {"containers": list("c", containers, false), "initContainers": list("i", inits, sidecar)},
            });
            if let Some(context) = of_pod {
                pod["spec"]["securityContext"] = context;
            }
            pod
        })
}

/// Creates each pod and deletes it again. Returns the security contexts that the API server stored, or the refusal.
fn asked(site: &Site, pods: &[Value]) -> Vec<Result<Value, String>> {
    runtime().block_on(async {
        let client = bootstrap::client(&site.cluster.admin_kubeconfig).await.expect("the kubeconfig is valid");
        let api = Api::<Pod>::namespaced(client, "level-level");
        let ask = async |(number, pod): (usize, &Value)| {
            let name = format!("random-{number}");
            let mut pod: Pod = serde_json::from_value(pod.clone()).expect("the value is a pod");
            pod.metadata.name = Some(name.clone());
            match api.create(&PostParams::default(), &pod).await {
                Ok(_) => {
                    let stored = api.get(&name).await.expect("the pod is stored");
                    api.delete(&name, &DeleteParams::default().grace_period(0))
                        .await
                        .expect("the API server accepts the deletion");
                    Ok(contexts(&serde_json::to_value(stored.spec).expect("the value has a JSON form")))
                }
                Err(kube::Error::Api(status)) => Err(status.message.clone()),
                Err(error) => panic!("{error}"),
            }
        };
        futures::stream::iter(pods.iter().enumerate().map(ask)).buffered(8).collect().await
    })
}

fn contexts(spec: &Value) -> Value {
    let lists = ["initContainers", "containers"].map(|list| spec[list].as_array().into_iter().flatten());
    let each = lists.into_iter().flatten().map(|container| (&container["name"], &container["securityContext"]));
    json!({"pod": spec["securityContext"], "containers": each.collect::<Vec<_>>()})
}

#[test]
fn webhook_and_backstop_agree_on_random_pods() {
    let site = Site::alone();
    site.tenant("level", "level", 52505, bursar::contract::TenantState::Active);
    let count = std::env::var("BURSAR_TEST_PODS").ok().and_then(|count| count.parse().ok()).unwrap_or(PODS);
    let mut runner = TestRunner::new(Config::default());
    let pods: Vec<Value> =
        (0..count).map(|_| pods().new_tree(&mut runner).expect("the strategy generates a value").current()).collect();
    let no_backstop = [
        "delete",
        "validatingadmissionpolicybindings,mutatingadmissionpolicybindings",
        "-l",
        "app.kubernetes.io/managed-by=bursar-webhook",
    ];
    site.cluster.run(&no_backstop, "");
    let one = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": "level-level"}, "spec": spec});
    let with = |context: Value| {
        one(json!({"containers": [{"name": "c", "image": "registry.example.org/i", "securityContext": context}]}))
    };
    let refuses = |by: &'static str, context: Value| {
        let wrong = with(context);
        wait_for(by, DEADLINE, || {
            let refused = asked(&site, std::slice::from_ref(&wrong)).remove(0).err()?;
            refused.contains(by).then_some(())
        });
    };
    refuses("pods.bursar.dev", json!({"runAsUser": 1}));
    let by_webhook = asked(&site, &pods);

    site.install();
    site.uninstall(&[]);
    // Each policy takes effect separately.
    refuses("bursar-uid", json!({"runAsUser": 1}));
    refuses("bursar-escalation", json!({"capabilities": {"add": ["CHOWN"]}}));
    let plain = with(json!({}));
    wait_for("a pod is filled in", DEADLINE, || asked(&site, std::slice::from_ref(&plain)).remove(0).ok());
    let by_backstop = asked(&site, &pods);
    for ((pod, webhook), backstop) in pods.iter().zip(&by_webhook).zip(&by_backstop) {
        match (webhook, backstop) {
            (Ok(webhook), Ok(backstop)) => {
                assert_eq!(webhook, backstop, "webhook and backstop set different values: {pod:#}");
            }
            (Err(_), Err(_)) => {}
            _ => panic!("webhook: {webhook:?}\nbackstop: {backstop:?}\n{pod:#}"),
        }
    }
    let wrong_ones = by_webhook.iter().filter(|answer| answer.is_err()).count();
    assert!(
        wrong_ones > count / 10 && wrong_ones < count * 9 / 10,
        "the random pods prove too little: {wrong_ones} of {count} were refused, expected are 10% to 90%"
    );
}
