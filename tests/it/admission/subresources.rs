//! What goes to a part of an object, which the API server makes a review of in its own way.

use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};

use super::site::{Site, pod, said};

#[test]
fn resize_raises_nobody_to_root() {
    let site = Site::shared();
    site.create(&pod("resized")).expect("let through");
    let raised = json!({"spec": {"securityContext": {"runAsUser": 0},
        "containers": [{"name": "web", "securityContext": {"runAsUser": 0}}]}});
    let patch = ["patch", "pod", "resized", "-n", "tool-foo", "--subresource=resize", "-p", &raised.to_string()];
    // The API server leaves out of a resize what is none before anybody is asked, or refuses it.
    site.meddler(&patch, "");
    let stored = site.cluster.run(&["get", "pod", "resized", "-n", "tool-foo", "-o", "json"], "");
    let stored: Value = serde_json::from_str(&stored).expect("JSON");
    assert_eq!(stored["spec"]["securityContext"]["runAsUser"], 52503);
    assert_eq!(stored["spec"]["containers"][0]["securityContext"]["runAsUser"], Value::Null);
    site.delete("pod", "resized", "tool-foo");
}

#[test]
fn scale_exec_and_eviction_are_let_through() {
    let site = Site::shared();
    let labels = json!({"app": "scaled"});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "scaled", "namespace": "tool-foo"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod("scaled")["spec"]}}});
    let made = site.tool("foo", &["create", "-f", "-"], &deployment.to_string());
    assert!(made.status.success(), "{}", said(&made));
    let scaled = site.meddler(&["scale", "deployment", "scaled", "-n", "tool-foo", "--replicas=1"], "");
    assert!(scaled.status.success(), "{}", said(&scaled));
    let name = wait_for("the pod of the scaled deployment", DEADLINE, || {
        let name = site.cluster.run(&["get", "pods", "-n", "tool-foo", "-l", "app=scaled", "-o", "name"], "");
        Some(name.trim().strip_prefix("pod/")?.to_owned())
    });

    // There is no node: the API server gets as far as looking for it.
    let exec = site.meddler(&["exec", &name, "-n", "tool-foo", "--", "id"], "");
    assert!(said(&exec).contains("does not have a host assigned"), "{}", said(&exec));

    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": "tool-foo"}});
    let path = format!("/api/v1/namespaces/tool-foo/pods/{name}/eviction");
    let evicted = site.meddler(&["create", "--raw", &path, "-f", "-"], &eviction.to_string());
    assert!(evicted.status.success(), "{}", said(&evicted));
    site.delete("deployment", "scaled", "tool-foo");
}
