//! The webhook is unreachable: tenants' pods are refused, and other requests do not wait. Then the webhook is
//! uninstalled.

use std::sync::atomic::{AtomicBool, Ordering};

use bursar::bootstrap::webhook::Kept;
use bursar::policy::Class;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::json;

use super::files::load;
use super::site::{Site, out, pod, pod_in, said};
use crate::world::extend;

#[test]
fn without_the_webhook_only_tenants_are_blocked() {
    let mut site = Site::alone();
    let mut kept = pod("kept");
    kept["metadata"]["finalizers"] = json!(["example.org/x"]);
    site.create(&kept).expect("the pod is allowed");
    let workload = |kind: &str, more: serde_json::Value| {
        let mut workload = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "stopped", "namespace": "tool-foo"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "registry.example.org/i"}]}}}});
        extend(&mut workload["spec"], &more);
        let created = site.tool("foo", &["create", "-f", "-"], &workload.to_string());
        assert!(created.status.success(), "{}", said(&created));
    };
    workload("Deployment", json!({"replicas": 0}));
    workload("DaemonSet", json!({}));
    site.kill_webhook();
    // A workload can be scaled and paused, because such a change touches nothing that a rule checks.
    for (name, changed, waits) in [
        ("deployment", r#"{"spec":{"replicas":2}}"#, false),
        ("deployment", r#"{"spec":{"paused":true},"metadata":{"annotations":{"a":"b"}}}"#, false),
        ("deployment", r#"{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}"#, true),
        ("deployment", r#"{"spec":{"template":{"spec":{"hostNetwork":true}}}}"#, true),
        ("deployment", r#"{"metadata":{"labels":{"app.kubernetes.io/managed-by":"bursar"}}}"#, true),
        ("daemonset", r#"{"spec":{"template":{"spec":{"nodeSelector":{"bursar.dev/suspended":"true"}}}}}"#, false),
        ("daemonset", r#"{"spec":{"template":{"spec":{"nodeSelector":null}}}}"#, false),
        ("daemonset", r#"{"spec":{"template":{"spec":{"nodeSelector":{"a":"b"},"hostPID":true}}}}"#, true),
    ] {
        let patched = site.tool("foo", &["patch", name, "stopped", "-n", "tool-foo", "-p", changed], "");
        assert_eq!(said(&patched).contains("failed calling webhook"), waits, "{changed}: {}", said(&patched));
        assert_eq!(patched.status.success(), !waits, "{changed}: {}", said(&patched));
    }
    // A change that leaves the spec alone does not wait for the webhook, unless it adds our label or an annotation.
    for (changed, waits) in [
        (r#"{"metadata":{"annotations":{"a":"b"}}}"#, true),
        (r#"{"metadata":{"labels":{"app.kubernetes.io/managed-by":"bursar"}}}"#, true),
        (r#"{"spec":{"containers":[{"name":"web","image":"registry.example.org/other"}]}}"#, true),
        (r#"{"metadata":{"labels":{"a":"b"},"finalizers":null}}"#, false),
    ] {
        let patched = site.tool("foo", &["patch", "pod", "kept", "-n", "tool-foo", "-p", changed], "");
        assert_eq!(said(&patched).contains("failed calling webhook"), waits, "{changed}: {}", said(&patched));
        assert_eq!(patched.status.success(), !waits, "{changed}: {}", said(&patched));
    }
    site.delete("pod", "kept", "tool-foo");
    let refused = site.create(&pod("late")).expect_err("without the webhook, pods are refused");
    assert!(refused.contains("failed calling webhook"), "{refused}");
    let label = site.meddler(&["label", "namespace", "tool-foo", "bursar.dev/class-"], "");
    assert!(said(&label).contains("failed calling webhook"), "{}", said(&label));

    // Other namespaces are not affected.
    let free = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "free"}}),
        pod_in("free", "any"),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i", "namespace": "free"},
            "spec": {"rules": [{"host": "x.example.org"}]}}),
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "own", "namespace": "free"}}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "free"},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}}),
    ];
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "free"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    for object in free.iter().chain([&deployment]) {
        wait_for("an object outside tenants' namespaces is created", DEADLINE, || {
            let created = site.meddler(&["create", "-f", "-"], &object.to_string());
            // The default service account is created a moment after the namespace.
            if !created.status.success() {
                assert!(said(&created).contains("serviceaccount"), "{object}: {}", said(&created));
            }
            created.status.success().then_some(())
        });
    }
    wait_for("the controllers make pods", DEADLINE, || {
        let pods = site.cluster.run(&["get", "pods", "-n", "free", "-l", "a=b", "-o", "name"], "");
        (!pods.is_empty()).then_some(())
    });
    let gone = site.meddler(&["delete", "namespace", "free", "--wait=false"], "");
    assert!(gone.status.success(), "{}", said(&gone));
    // Kubernetes itself can still delete a tenant's namespace for an administrator.
    site.cluster.run(&["delete", "pods", "--all", "-n", "tool-bar", "--force", "--grace-period=0"], "");
    site.cluster.run(&["delete", "namespace", "tool-bar", "--timeout=240s"], "");
    site.start_webhook();
    site.tenant("tool", "bar", 52504, bursar::contract::TenantState::Active);
}

#[test]
fn no_pod_is_admitted_when_the_webhook_is_killed_under_load() {
    let mut site = Site::alone();
    let stop = AtomicBool::new(false);
    let (done, refused) = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&site, &stop));
        let reviews = || site.metric("bursar_webhook_review_seconds_count").filter(|count| *count > 100.0);
        wait_for("the webhook has answered 100 reviews", DEADLINE, reviews);
        site.webhook().kill();
        for number in 0..20 {
            let refused =
                site.create(&pod(&format!("late-{number}"))).expect_err("without the webhook, pods are refused");
            assert!(refused.contains("failed calling webhook"), "{refused}");
        }
        stop.store(true, Ordering::Relaxed);
        load.join().expect("the thread does not panic")
    });
    assert!(refused.len() < done, "{} of {done}", refused.len());
    assert!(!refused.is_empty() && refused.iter().all(|why| why.contains("failed calling webhook")), "{refused:?}");
    site.kill_webhook();
}

#[test]
fn uninstalling_the_webhook_keeps_the_backstop_unless_requested() {
    let mut site = Site::alone();
    site.kill_webhook();
    let said_so = site.uninstall(&["--cluster", "test"]);
    assert!(said_so.contains("the backstop still refuses"), "{said_so}");

    let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let mut right = pod("right");
    right["spec"]["securityContext"] = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    right["spec"]["containers"][0]["securityContext"] = restricted.clone();
    // The API server forgets the webhook's configurations a moment after they are deleted.
    let stored = wait_for("a pod is created without the webhook", DEADLINE, || site.create(&right).ok());
    let context = &stored["spec"]["securityContext"];
    assert_eq!((&context["runAsUser"], &context["supplementalGroupsPolicy"]), (&json!(52503), &json!("Strict")));
    let mut wrong = right.clone();
    wrong["metadata"]["name"] = json!("wrong");
    wrong["spec"]["initContainers"] = json!([{"name": "i", "image": "registry.example.org/i",
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsUser": 52504}}]);
    let refused = site.create(&wrong).expect_err("the backstop refuses another tool's uid");
    assert!(refused.contains("bursar-uid") && refused.contains("52503"), "{refused}");
    let debug = [
        "debug",
        "right",
        "-n",
        "tool-foo",
        "--image=registry.example.org/d",
        "--container=d",
        "--profile=restricted",
        "--attach=false",
        "--custom",
        "/dev/stdin",
    ];
    let refused = site.meddler(&debug, r#"{"securityContext":{"runAsUser":52504}}"#);
    assert!(said(&refused).contains("bursar-uid"), "{}{}", out(&refused), said(&refused));

    // The daemon keeps the classes of the backstop up to date.
    let binding = ["get", "validatingadmissionpolicybinding", "bursar-uid-enforce", "--ignore-not-found", "-o", "yaml"];
    let mut renamed = site.settings.policy.clone();
    let class = renamed.classes.remove("tool").expect("the class is there");
    renamed.classes.insert("project".to_owned(), Class { name: "project".to_owned(), ..class });
    assert_eq!(site.keep(&renamed), Kept::Absent);
    assert!(site.cluster.run(&binding, "").contains("- project"));
    assert_eq!(site.keep(&site.settings.policy), Kept::Absent);
    assert!(!site.cluster.run(&binding, "").contains("- project"));

    site.uninstall(&["--cluster", "test", "--backstop"]);
    assert_eq!((site.keep(&renamed), site.cluster.run(&binding, "")), (Kept::Absent, String::new()));
    wait_for("uids are no longer checked", DEADLINE, || site.create(&wrong).ok());
    site.delete("pod", "right", "tool-foo");
    site.delete("pod", "wrong", "tool-foo");
    let nothing = site.bursar(&["webhook", "selftest"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(said(&nothing).contains("bursar webhook install"), "{}", said(&nothing));
}
