//! Kubernetes' own controllers keep working in a tenant's namespace in which everything is enforced.

use bursar::contract::TenantState;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};

use super::site::{Site, identity, pod_in, said};

fn template() -> Value {
    json!({
        "metadata": {"labels": {"app": "w"}},
        "spec": {"containers": [{"name": "c", "image": "registry.example.org/web"}]},
    })
}

fn pods(site: &Site, namespace: &str) -> Vec<Value> {
    let pods = site.cluster.run(&["get", "pods", "-n", namespace, "-o", "json"], "");
    let pods: Value = serde_json::from_str(&pods).expect("the text is JSON");
    pods["items"].as_array().expect("the value is a list").clone()
}

#[test]
fn controllers_create_and_remove_a_tenants_objects() {
    let site = Site::shared();
    let namespace = site.tenant("tool", "works", 52520, TenantState::Active);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "bursar", "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "bursar"}},
        "spec": {"hard": {"pods": "10"}}});
    site.cluster.run(&["apply", "--server-side", "-f", "-"], &quota.to_string());
    let mut job = template();
    job["spec"]["restartPolicy"] = json!("Never");
    let of = |api_version: &str, kind: &str, spec: Value| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": kind.to_lowercase()}, "spec": spec});
    let items = [
        of(
            "apps/v1",
            "Deployment",
            json!({"replicas": 2, "selector": {"matchLabels": {"app": "w"}}, "template": template()}),
        ),
        of("apps/v1", "StatefulSet", json!({"selector": {"matchLabels": {"app": "w"}}, "template": template()})),
        of("batch/v1", "Job", json!({"template": job})),
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let made = site.tool("works", &["create", "-n", &namespace, "-f", "-"], &list.to_string());
    assert!(made.status.success(), "{}", said(&made));
    let found = wait_for("the controllers have made their pods", DEADLINE, || {
        let found = pods(&site, &namespace);
        (found.len() == 4).then_some(found)
    });
    for pod in found {
        assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 52520, "{pod:#}");
    }
    wait_for("the quota counts the pods", DEADLINE, || {
        let used =
            site.cluster.run(&["get", "quota", "bursar", "-n", &namespace, "-o", "jsonpath={.status.used.pods}"], "");
        (used == "4").then_some(())
    });
    // Objects that a Deployment made are garbage-collected after it.
    let deleted = site.tool("works", &["delete", "deployment", "deployment", "-n", &namespace, "--wait=false"], "");
    assert!(deleted.status.success(), "{}", said(&deleted));
    wait_for("the Deployment's pods are collected", DEADLINE, || {
        let left = site.cluster.run(&["get", "replicasets", "-n", &namespace, "-o", "name"], "");
        let alive = pods(&site, &namespace).iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count();
        (left.is_empty() && alive == 2).then_some(())
    });
    for pod in pods(&site, &namespace) {
        site.delete("pod", pod["metadata"]["name"].as_str().expect("a name is a string"), &namespace);
    }
    site.cluster.run(&["delete", "namespace", &namespace, "--timeout=240s"], "");
}

#[test]
fn a_changed_uid_applies_to_new_pods_and_old_ones_can_end() {
    let site = Site::shared();
    let namespace = site.tenant("tool", "moved", 52521, TenantState::Active);
    let mut lasting = pod_in(&namespace, "lasting");
    lasting["metadata"]["finalizers"] = json!(["example.org/lasting"]);
    let create = |object: &Value| site.tool("moved", &["create", "-f", "-"], &object.to_string());
    let made = create(&lasting);
    assert!(made.status.success(), "{}", said(&made));

    let account = "tool:moved";
    site.sealed(&identity(&namespace, account, (52522, 52522, &[50_000, 50_001]), TenantState::Active), "restricted");
    let refused_with = |uid: u32| {
        let mut named = pod_in(&namespace, "named");
        named["spec"]["securityContext"] = json!({"runAsUser": uid});
        said(&create(&named))
    };
    wait_for("the webhook knows the other uid", DEADLINE, || {
        refused_with(52521).contains("would run as uid 52521; tool moved runs as 52522").then_some(())
    });
    let made = create(&pod_in(&namespace, "plain"));
    assert!(made.status.success(), "{}", said(&made));
    let uid = |pod: &str| {
        let path = "jsonpath={.spec.securityContext.runAsUser}";
        site.cluster.run(&["get", "pod", pod, "-n", &namespace, "-o", path], "")
    };
    assert_eq!((uid("plain").as_str(), uid("lasting").as_str()), ("52522", "52521"));
    // The pod runs with the old uid, and must still be able to end.
    let without = r#"{"metadata": {"finalizers": null}}"#;
    let patched = site.tool("moved", &["patch", "pod", "lasting", "-n", &namespace, "--type=merge", "-p", without], "");
    assert!(patched.status.success(), "{}", said(&patched));
    for pod in ["lasting", "plain"] {
        site.delete("pod", pod, &namespace);
    }
    site.cluster.run(&["delete", "namespace", &namespace, "--timeout=240s"], "");
}

#[test]
fn a_workload_with_a_forbidden_template_is_refused() {
    let site = Site::shared();
    let mut template = template();
    template["spec"]["initContainers"] =
        json!([{"name": "i", "image": "registry.example.org/i", "securityContext": {"runAsUser": 0}}]);
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "root"},
        "spec": {"selector": {"matchLabels": {"app": "w"}}, "template": template}});
    let refused = site.tool("foo", &["create", "-n", "tool-foo", "-f", "-"], &deployment.to_string());
    let text = said(&refused);
    assert!(
        text.contains("workloads.bursar.dev") && text.contains("init container \"i\" would run as uid 0"),
        "{text}"
    );
}
