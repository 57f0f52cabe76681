//! Figures of the executor and the watches: new tenants beside a bare creation loop of the same run, and what the
//! inventory of 10,000 tenants takes. `cargo bench --bench bootstrap`.

#![expect(clippy::disallowed_methods, reason = "waits for real servers, with deadlines, and measures them")]

#[path = "../tests/servers/mod.rs"]
mod servers;
#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/it/execute/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bursar::ledger::ObjectKey;
use bursar::observed::cache::{Cache, observe};
use bursar::observed::digest::digest;
use bursar::observed::kinds::everywhere;
use bursar::plan::{Action, Reason};
use futures::StreamExt as _;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};

use world::{World, approved_for, cluster, manifest, quota};

/// Tenants of each run.
const TENANTS: usize = 150;
/// Connections of the bare loop: where this control plane is fastest.
const CONNECTIONS: usize = 8;

fn main() {
    inventory_of_ten_thousand_tenants();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(bulk_bootstrap_beside_a_bare_creation_loop());
}

/// The lasting objects of one tool, namespace first.
fn objects(namespace: &str) -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let binding = |role: &str| {
        let subject = json!({"apiGroup": rbac, "kind": "Group", "name": format!("bursar:tool:{namespace}#1")});
        let role_ref = json!({"apiGroup": rbac, "kind": "ClusterRole", "name": role});
        let rest = json!({"roleRef": role_ref, "subjects": [subject]});
        manifest("rbac.authorization.k8s.io/v1", "RoleBinding", &format!("bursar-{role}"), rest)
    };
    let policy = |name: &str| {
        let rest = json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}});
        manifest("networking.k8s.io/v1", "NetworkPolicy", name, rest)
    };
    let limit = json!({"spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}});
    vec![
        manifest("v1", "Namespace", namespace, json!({})),
        quota("16"),
        manifest("v1", "LimitRange", "bursar", limit),
        policy("bursar-default-deny"),
        policy("bursar-allow-own"),
        policy("bursar-allow-dns"),
        policy("bursar-allow-ingress"),
        manifest("v1", "ConfigMap", "bursar-a", json!({"data": {"a": "b"}})),
        manifest("v1", "ConfigMap", "bursar-b", json!({"data": {"a": "b"}})),
        binding("view"),
        binding("edit"),
    ]
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn key_of(namespace: &str, manifest: &Value) -> ObjectKey {
    ObjectKey {
        cluster: cluster(),
        api_version: text(&manifest["apiVersion"]).to_owned(),
        kind: text(&manifest["kind"]).to_owned(),
        namespace: (manifest["kind"] != "Namespace").then(|| namespace.to_owned()),
        name: text(&manifest["metadata"]["name"]).to_owned(),
    }
}

async fn bare(world: &World, prefix: &str) -> Duration {
    let began = Instant::now();
    let client = &world.effects.clusters[&cluster()].server.client;
    let names: Vec<String> = (0..TENANTS).map(|number| format!("{prefix}-{number}")).collect();
    let made = names.iter().map(|name| async move {
        for object in objects(name) {
            let kind = everywhere(text(&object["apiVersion"]), text(&object["kind"])).expect("a kind of every cluster");
            let resource = kind.resource();
            let api = if kind.namespaced {
                Api::<DynamicObject>::namespaced_with(client.clone(), name, &resource)
            } else {
                Api::all_with(client.clone(), &resource)
            };
            let object = serde_json::from_value(object).expect("an object");
            api.create(&PostParams::default(), &object).await.expect("made");
        }
    });
    let made: Vec<_> = made.collect();
    futures::stream::iter(made).buffer_unordered(CONNECTIONS).collect::<Vec<()>>().await;
    began.elapsed()
}

async fn executed(world: &mut World, prefix: &str) -> Duration {
    let names: Vec<String> = (0..TENANTS).map(|number| format!("{prefix}-{number}")).collect();
    let apply = |namespace: &str, manifest: Value| Action::Apply {
        key: key_of(namespace, &manifest),
        wanted: digest(&manifest),
        manifest,
        uid: None,
        reason: Reason::Missing,
    };
    let actions = names.iter().map(|name| {
        let actions = objects(name).into_iter().map(|object| apply(name, object)).collect();
        (name.as_str(), actions)
    });
    let plan = approved_for(actions);
    let began = Instant::now();
    let report = world.run_plan(&plan).await;
    let took = began.elapsed();
    assert_eq!(report.done, TENANTS as u64, "{:?}", world.ledger.failures);
    took
}

async fn bulk_bootstrap_beside_a_bare_creation_loop() {
    let mut world = World::new("figures").await;
    for round in 0..3 {
        let bare = bare(&world, &format!("figures-bare-{round}")).await;
        let ours = executed(&mut world, &format!("figures-ours-{round}")).await;
        let rate = |took: Duration| f64::from(u32::try_from(TENANTS).unwrap_or(0)) / took.as_secs_f64();
        println!(
            "round {round}: bare {:.1} tools/s, executed {:.1} tools/s, ratio {:.2}, width {}",
            rate(bare),
            rate(ours),
            bare.as_secs_f64() / ours.as_secs_f64(),
            world.effects.clusters[&cluster()].server.pace().width()
        );
    }
}

fn inventory_of_ten_thousand_tenants() {
    let began = Instant::now();
    let mut cache = Cache::new(cluster());
    let mut counted: BTreeMap<String, usize> = BTreeMap::new();
    for tenant in 0..10_000 {
        let namespace = format!("tool-number-{tenant}");
        for object in objects(&namespace) {
            let key = key_of(&namespace, &object);
            *counted.entry(key.kind.clone()).or_default() += 1;
            let mut seen = observe(&object);
            seen.uid = format!("0b0c1d2e-0000-4000-8000-{tenant:012}");
            cache.seen(&key, seen);
        }
    }
    let held = cache.inventory();
    println!("{} objects: {:?} to observe and keep; {}", held.objects.len(), began.elapsed(), resident());
    let began = Instant::now();
    for _ in 0..1000 {
        std::hint::black_box(cache.inventory());
    }
    println!("a snapshot: {:?}", began.elapsed() / 1000);
    let began = Instant::now();
    let mut other = Arc::clone(&held);
    Arc::make_mut(&mut other);
    println!("a change while a plan holds one: {:?}; {}", began.elapsed(), resident());
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default().to_owned()
}
