//! If a kind cannot be watched in a cluster, steps that need it wait, but access is still taken away.

use std::fs;

use bursar::control::api::ClusterStatus;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ldif::{disable_ldif, tool_account_dn};
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::json;

use crate::quiet::own_servers;
use crate::world::{World, all_is_well};

/// Returns a site with tools foo and bar on servers of its own, before `bursar init`. Class `tool` has this manifest.
fn site(name: &str, manifest: Option<&str>) -> World {
    let world = World::bare(own_servers(&ControlPlaneOptions::default()), name, "");
    if let Some(manifest) = manifest {
        write_manifest(&world, manifest);
    }
    for (tool, uid) in [("foo", 67_801), ("bar", 67_802)] {
        world.tool(tool, uid, &[]);
    }
    world
}

fn write_manifest(world: &World, manifest: &str) {
    let folder = world.folder.join("manifests/tool");
    fs::create_dir_all(&folder).expect("the folder is writable");
    fs::write(folder.join("all.yaml"), manifest).expect("the folder is writable");
}

fn cluster(world: &mut World) -> ClusterStatus {
    world.status().clusters["test"].clone()
}

/// The directory marks foo as disabled, and the next cycles take away its access. Meanwhile, the quota of bar is
/// repaired.
fn check_access_is_taken_away(world: &mut World) {
    let (disabled, drifted) = (world.namespace("foo"), world.namespace("bar"));
    let patch = r#"{"spec":{"hard":{"pods":"99"}}}"#;
    world.kubectl(&["patch", "resourcequota", "bursar", "-n", &drifted, "--type=merge", "-p", patch]);
    world.servers.slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "foo")));
    let pods = ["get", "resourcequota", "bursar", "-n", &drifted, "-o", "jsonpath={.spec.hard.pods}"];
    wait_for("foo's binding is gone, and bar's quota is repaired", DEADLINE, || {
        world.cycle();
        let bindings = world.kubectl(&["get", "rolebindings", "-n", &disabled, "-o", "name"]);
        (!bindings.contains("bursar") && world.kubectl(&pods) == "16").then_some(())
    });
    assert!(!world.works(&world.kubeconfig("foo")));
    assert!(world.works(&world.kubeconfig("bar")));
}

#[test]
fn a_kind_that_bursar_init_has_not_allowed_yet_delays_no_loss_of_access() {
    let mut world = site("blindinit", None);
    world.initialise_again();
    all_is_well(&world.cycle());
    write_manifest(&world, "{apiVersion: v1, kind: ConfigMap, metadata: {name: hints}, data: {a: b}}\n");
    world.reload();
    check_access_is_taken_away(&mut world);
    let cluster = cluster(&mut world);
    let trouble = cluster.trouble.unwrap_or_default();
    assert!(cluster.ready && trouble.starts_with("ConfigMap cannot be watched: "), "{trouble}");
    assert!(trouble.ends_with("bursar init --cluster test"), "{trouble}");
    let plan = world.plan().text;
    assert!(plan.contains("ConfigMap hints in namespace blindinit-bar waits: "), "{plan}");

    world.stop();
    world.initialise_again();
    let hints = ["get", "configmap", "hints", "-n", "blindinit-bar", "--ignore-not-found", "-o", "name"];
    world.cycles_until("the daemon makes the config map", |world| !world.kubectl(&hints).is_empty());
}

#[test]
fn a_kind_whose_conversion_webhook_is_down_delays_no_loss_of_access() {
    let widget = "{apiVersion: example.org/v2, kind: Widget, metadata: {name: mine}}\n";
    let mut world = site("blindcrd", Some(widget));
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str, storage| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.org"},
        "spec": {"group": "example.org", "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
            "versions": [version("v1", true), version("v2", false)]},
    });
    let converts = |world: &World, conversion: &serde_json::Value| {
        let patch = json!({"spec": {"conversion": conversion}}).to_string();
        world.kubectl(&["patch", "crd", "widgets.example.org", "--type=merge", "-p", &patch]);
    };
    world.servers.cluster.run(&["apply", "-f", "-"], &definition.to_string());
    world.kubectl(&["wait", "--for=condition=Established", "crd/widgets.example.org", "--timeout=240s"]);
    world.initialise_again();
    all_is_well(&world.cycle());
    assert!(!world.kubectl(&["get", "widgets.v1.example.org", "-A", "-o", "name"]).is_empty());

    let dead = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/convert"}}});
    converts(&world, &dead);
    wait_for("the kind cannot be watched any more", DEADLINE, || {
        let trouble = cluster(&mut world).trouble.unwrap_or_default();
        trouble.starts_with("Widget cannot be watched: ").then_some(())
    });
    assert!(cluster(&mut world).ready);
    check_access_is_taken_away(&mut world);

    converts(&world, &json!({"strategy": "None", "webhook": null}));
    wait_for("the cycle succeeds and the cluster has no trouble", DEADLINE, || {
        let report = world.cycle();
        (report.exit_code() == 0 && cluster(&mut world).trouble.is_none()).then_some(())
    });
}
