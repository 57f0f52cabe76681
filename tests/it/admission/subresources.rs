//! Requests for subresources, for which the API server makes reviews in special ways.

use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};

use super::site::{Site, pod, said};

#[test]
fn a_resize_cannot_change_the_user_to_root() {
    let site = Site::shared();
    site.create(&pod("resized")).expect("the pod is allowed");
    let raised = json!({"spec": {"securityContext": {"runAsUser": 0},
        "containers": [{"name": "web", "securityContext": {"runAsUser": 0}}]}});
    let patch = ["patch", "pod", "resized", "-n", "tool-foo", "--subresource=resize", "-p", &raised.to_string()];
    // The API server either drops fields that do not belong to a resize before admission, or refuses the request.
    site.meddler(&patch, "");
    let stored = site.cluster.run(&["get", "pod", "resized", "-n", "tool-foo", "-o", "json"], "");
    let stored: Value = serde_json::from_str(&stored).expect("the text is JSON");
    assert_eq!(stored["spec"]["securityContext"]["runAsUser"], 52503);
    assert_eq!(stored["spec"]["containers"][0]["securityContext"]["runAsUser"], Value::Null);
    site.delete("pod", "resized", "tool-foo");
}

#[test]
fn scale_exec_and_eviction_are_allowed() {
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
    let name = wait_for("the scaled deployment has a pod", DEADLINE, || {
        let name = site.cluster.run(&["get", "pods", "-n", "tool-foo", "-l", "app=scaled", "-o", "name"], "");
        Some(name.trim().strip_prefix("pod/")?.to_owned())
    });

    // There is no node, so the request fails only when the API server looks for it.
    let exec = site.meddler(&["exec", &name, "-n", "tool-foo", "--", "id"], "");
    assert!(said(&exec).contains("does not have a host assigned"), "{}", said(&exec));

    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": "tool-foo"}});
    let path = format!("/api/v1/namespaces/tool-foo/pods/{name}/eviction");
    let evicted = site.meddler(&["create", "--raw", &path, "-f", "-"], &eviction.to_string());
    assert!(evicted.status.success(), "{}", said(&evicted));
    site.delete("deployment", "scaled", "tool-foo");
}
