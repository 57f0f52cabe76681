//! An exception turns off a rule for one account. It never lets the account's pods run as somebody else.

use bursar::contract::TenantState;
use bursar::contract::exception::ExceptedRule;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};

use super::site::{Site, identity, out, pod_in, said};

#[test]
fn an_exception_allows_only_its_rules_and_cannot_be_forged() {
    let site = Site::shared();
    let namespace = "tool-course";
    let mut course = identity(namespace, "tool:course", (52_520, 52_520, &[]), TenantState::Active);
    let seal = |course: &bursar::contract::Identity| site.sealed(course, "privileged");
    seal(&course);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut pod = pod_in(namespace, "web");
        change(&mut pod["spec"]);
        pod
    };
    let ask = |pod: &Value, more: &[&str]| {
        let asked = site.tool("course", &[&["create", "-f", "-", "-o", "json"], more].concat(), &pod.to_string());
        if asked.status.success() { Ok(out(&asked)) } else { Err(said(&asked)) }
    };
    let dry = |pod: &Value| ask(pod, &["--dry-run=server"]);
    let elsewhere = with(&|spec| spec["containers"][0]["image"] = json!("elsewhere.example.org/image"));
    let mounts = |volume: Value| with(&|spec| spec["volumes"] = json!([volume]));
    let export = mounts(json!({"name": "data", "nfs": {"server": "other.example.org", "path": "/data"}}));
    let path = mounts(json!({"name": "data", "hostPath": {"path": "/var/lib/kubelet"}}));
    for refused in [&elsewhere, &export] {
        assert!(dry(refused).is_err(), "{refused}");
    }

    // Somebody who may annotate the namespace cannot create an exception: the seal no longer matches, and the identity
    // is lost.
    let forge = ["annotate", "namespace", namespace, "bursar.dev/exceptions=images", "--overwrite"];
    let refused = site.meddler(&forge, "");
    assert!(said(&refused).contains("namespaces.bursar.dev"), "{}", said(&refused));
    site.cluster.run(&forge, "");
    wait_for("the webhook notices the changed annotation", DEADLINE, || {
        dry(&pod_in(namespace, "web")).err().filter(|why| why.contains("seal does not match"))
    });

    course.exceptions = [ExceptedRule::Images, ExceptedRule::Volumes].into();
    seal(&course);
    let stored = wait_for("the webhook notices the exception", DEADLINE, || dry(&elsewhere).ok());
    let stored: Value = serde_json::from_str(&stored).expect("the text is JSON");
    assert_eq!(stored["spec"]["securityContext"]["runAsUser"], 52_520, "the uid is still set");
    dry(&export).expect("the exception allows the volume");
    for (pod, text) in [
        (with(&|spec| spec["securityContext"] = json!({"runAsUser": 52_503})), "tool course runs as 52520"),
        (with(&|spec| spec["securityContext"] = json!({"supplementalGroups": [50_000]})), "50000"),
        (
            with(&|spec| spec["containers"][0]["securityContext"] = json!({"allowPrivilegeEscalation": true})),
            "allowPrivilegeEscalation",
        ),
        (with(&|spec| spec["hostNetwork"] = json!(true)), "hostNetwork"),
        (path, "of the node"),
    ] {
        let why = dry(&pod).expect_err("the exception does not allow the pod");
        assert!(why.contains("pods.bursar.dev") && why.contains(text), "{pod}: {why}");
    }

    // The audit reports the violation, marked as excepted.
    ask(&elsewhere, &[]).expect("the API server stores the object");
    let admin = site.cluster.admin_kubeconfig.to_str().expect("the path is UTF-8");
    let audited = || {
        let audited = site.bursar(&["--json", "webhook", "audit", "--cluster", "test", "--admin-kubeconfig", admin]);
        let audited: Value = serde_json::from_str(&out(&audited)).unwrap_or_else(|_| panic!("{}", said(&audited)));
        let found = audited["found"].as_array().cloned().unwrap_or_default();
        found.into_iter().filter(|found| found["namespace"] == namespace).collect::<Vec<_>>()
    };
    let found = audited();
    assert_eq!((found.len(), &found[0]["rule"], &found[0]["excepted"]), (1, &"images".into(), &true.into()));

    // The exception ends, and the rule is enforced again.
    course.exceptions.clear();
    seal(&course);
    wait_for("the webhook notices the end of the exception", DEADLINE, || dry(&elsewhere).err());
    assert_eq!(audited()[0]["excepted"], false);
    site.delete("pod", "web", namespace);
}
