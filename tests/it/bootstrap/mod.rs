//! What `bursar init` makes, and what the daemon can and cannot do with it, on these tests' own control plane.

mod attacks;
mod issue;
mod own;
mod site;

use bursar::bootstrap::{AccessError, Did, InitRequest, UninstallRequest, Uninstalled, dry_run, uninstall};
use bursar::ledger::LedgerState;
use bursar::policy::daemon_group;
use bursar::store::SEAL_KEY;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::json;

use self::site::{LEDGER, Site, archive_binding, binding, empty, namespace, ours, request};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const GROUP: &str = "bursar:tool:foo#1042";
const POLICY: &str = "bursar-cage";
const FORBIDDEN: &str = "forbidden";

#[test]
fn a_repeated_init_changes_nothing_and_keeps_the_seal() {
    let (site, _turn) = (Site::shared(), Site::turn_of_the_mark());
    assert!(site.first.seal_key_drawn && site.first.made.iter().all(|made| made.did == Did::Created));
    let key = std::fs::read(site.settings.state_dir.join(SEAL_KEY)).expect("the seal key is readable");
    let again = site.init(LEDGER).expect("init succeeds");
    let changed: Vec<_> = again.made.iter().filter(|made| made.did != Did::Kept).collect();
    assert!(changed.is_empty(), "{changed:?}");
    assert!(!again.seal_key_drawn);
    assert_eq!(std::fs::read(site.settings.state_dir.join(SEAL_KEY)).expect("the seal key is readable"), key);
    site.can(&["auth", "whoami"]);
    // A role of a class that no longer has `impersonate`.
    let former = ["create", "clusterrole", "bursar-impersonate-former", "--verb=impersonate", "--resource=users"];
    site.cluster.run(&former, "");
    let label = "app.kubernetes.io/managed-by=bursar-init";
    site.cluster.run(&["label", "clusterrole", "bursar-impersonate-former", label], "");
    let again = site.init(LEDGER).expect("init succeeds");
    let changed: Vec<_> = again.made.iter().filter(|made| made.did != Did::Kept).collect();
    assert!(matches!(changed[..], [made] if made.did == Did::Removed && made.what.ends_with("former")), "{changed:?}");

    let error = site.init("another").expect_err("the cluster belongs to another ledger");
    assert!(matches!(&error, AccessError::OtherOwner { found, .. } if found == LEDGER), "{error}");
}

#[test]
fn a_dry_run_lists_what_init_makes_and_uninstall_removes_it() {
    let site = Site::alone_with("alice");
    let runtime = tokio::runtime::Runtime::new().expect("the system allows a runtime");
    let ledger = LedgerState { ledger_id: LEDGER.to_owned(), ..LedgerState::default() };
    let kubeconfig = site.daemon_kubeconfig();
    let planned = runtime.block_on(dry_run(site.request(&ledger, &kubeconfig))).expect("the administrator may do this");
    let mut planned: Vec<String> = planned
        .iter()
        .map(|manifest| {
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            format!("{} {}", text(&manifest["kind"]), text(&manifest["metadata"]["name"]))
        })
        .collect();
    let mut made: Vec<String> = site.first.made.iter().map(|made| made.what.clone()).collect();
    planned.sort();
    made.sort();
    assert_eq!(planned, made);

    site.must("apply", &binding(Some("tool-foo"), "bursar-tenant", "Group", GROUP));
    // A binding without the label, and bindings of others. All but the last one name holders of Bursar's credentials.
    site.cluster
        .run(&["label", "rolebinding", "bursar-bursar-tenant", "-n", "tool-foo", "app.kubernetes.io/managed-by-"], "");
    let bind = |what: &str, name: &str, more: &[&str]| {
        site.cluster.run(&[&["create", what, name, "--clusterrole=view"], more].concat(), "");
    };
    bind("rolebinding", "readers", &["-n", "foreign", "--group", GROUP, "--user=somebody"]);
    bind("clusterrolebinding", "robots", &["--serviceaccount=tool-foo:bursar-g7"]);
    bind("rolebinding", "others", &["-n", "foreign", "--user=somebody"]);
    let another = empty("another");
    let InitRequest { cluster, admin_kubeconfig, state_dir, .. } = site.request(&ledger, &kubeconfig);
    let take = |ledger, admin_kubeconfig, dry_run| {
        let request = UninstallRequest { cluster, ledger, state_dir, admin_kubeconfig, dry_run };
        runtime.block_on(uninstall(request))
    };
    let remembered = state_dir.join("webhook").join(cluster.0.as_str()).join("installed.json");
    std::fs::create_dir_all(remembered.parent().expect("the path has a parent")).expect("the folder is writable");
    std::fs::write(&remembered, "{}").expect("the folder is writable");
    let would = take(&ledger, admin_kubeconfig, true).expect("the administrator may do this");
    site.can(&["auth", "whoami"]);
    let error = take(&another, admin_kubeconfig, false).expect_err("the cluster belongs to another ledger");
    assert!(matches!(error, AccessError::OtherOwner { .. }), "{error}");
    let mut by_bursar = kube::config::Kubeconfig::read_from(admin_kubeconfig).expect("the kubeconfig is readable");
    for user in by_bursar.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        user.impersonate = Some("bursar:cluster-admin".to_owned());
    }
    let by_bursar_file = state_dir.join("by-bursar.json");
    std::fs::write(&by_bursar_file, serde_json::to_vec(&by_bursar).expect("the value has a JSON form"))
        .expect("the folder is writable");
    let error = take(&ledger, &by_bursar_file, false).expect_err("this administrator's rights come from Bursar");
    assert!(matches!(error, AccessError::OfBursar(_)), "{error}");
    assert!(remembered.exists());
    let done = take(&ledger, admin_kubeconfig, false).expect("the administrator may do this");
    assert_eq!(done, would);
    let Uninstalled { removed, left: of_others } = done;
    assert!(removed.iter().any(|made| made.what == "RoleBinding tool-foo/bursar-bursar-tenant"), "{removed:?}");
    let said: Vec<_> = of_others.iter().map(|left| (left.what.as_str(), left.remedy.as_str())).collect();
    assert_eq!(
        said,
        [
            ("RoleBinding foreign/readers", "kubectl delete rolebinding readers -n foreign"),
            ("ClusterRoleBinding robots", "kubectl delete clusterrolebinding robots"),
        ]
    );
    assert!(removed.last().is_some_and(|made| made.what.starts_with("ClusterRoleBinding ")), "{removed:?}");
    assert!(!remembered.exists(), "without the file, another init does not restore the webhook");
    let left = |what: &str| {
        let label = "app.kubernetes.io/managed-by in (bursar,bursar-init,bursar-webhook,bursar-approver)";
        site.cluster.run(&["get", what, "-A", "-l", label, "-o", "name"], "")
    };
    for what in ["clusterroles,clusterrolebindings,roles,rolebindings", "validatingadmissionpolicies"] {
        assert_eq!(left(what).trim(), "", "{what}");
    }
    assert!(site.cluster.run(&["get", "namespace", "tool-foo", "-o", "name"], "").contains("tool-foo"));
    for (_, remedy) in said {
        site.cluster.run(&remedy.split(' ').skip(1).collect::<Vec<_>>(), "");
    }
    let again = take(&ledger, admin_kubeconfig, false).expect("the administrator may do this");
    assert!(again.left.is_empty(), "{:?}", again.left);
    assert!(site.cluster.run(&["get", "rolebinding", "others", "-n", "foreign", "-o", "name"], "").contains("others"));
    site.cluster.run(&["delete", "configmap", "bursar-owner", "-n", "bursar", "--ignore-not-found"], "");
    site.cluster.run(&["label", "namespaces", "--all", "app.kubernetes.io/managed-by-"], "");
    let error = take(&ledger, admin_kubeconfig, false).expect_err("the cluster has nothing of Bursar");
    assert!(matches!(error, AccessError::NothingOfBursar { .. }), "{error}");
}

#[test]
fn the_tenant_role_is_edit_without_dangerous_rights() {
    let role = Site::shared().cluster.run(&["get", "clusterrole", "bursar-tenant", "-o", "json"], "");
    let role: serde_json::Value = serde_json::from_str(&role).expect("the text is JSON");
    let rules: Vec<String> =
        role["rules"].as_array().expect("a role has rules").iter().map(ToString::to_string).collect();
    assert!(rules.iter().any(|rule| rule.contains("deployments") && rule.contains("create")));
    assert!(!rules.iter().any(|rule| rule.contains("impersonate") || rule.contains("serviceaccounts/token")));
    assert!(!rules.iter().any(|rule| rule.contains("networkpolicies") && rule.contains("create")));
}

#[test]
fn the_daemon_may_do_everything_that_it_must() {
    let site = Site::shared();
    let place = Some("tool-foo");
    let net = json!({"spec": {"podSelector": {}}});
    let volume = json!({"spec": {
        "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
        "nfs": {"server": "nfs.example.org", "path": "/srv"}, "claimRef": {"namespace": "tool-foo", "name": "home"},
    }});
    let claim = json!({"spec": {
        "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "",
    }});
    let objects = [
        ours("v1", "ResourceQuota", "bursar", place, &json!({"spec": {"hard": {"pods": "16"}}})),
        ours("v1", "LimitRange", "bursar", place, &json!({"spec": {"limits": []}})),
        ours("networking.k8s.io/v1", "NetworkPolicy", "bursar-default-deny", place, &net),
        ours("v1", "PersistentVolume", "bursar-tool-foo.home", None, &volume),
        ours("v1", "PersistentVolumeClaim", "home", place, &claim),
        ours("v1", "ConfigMap", "site", place, &json!({})),
        ours("v1", "Secret", "pull", place, &json!({})),
        binding(place, "bursar-tenant", "Group", GROUP),
        binding(place, "view", "ServiceAccount", "default"),
        archive_binding("tool-asleep", "Group", &daemon_group(LEDGER)),
        binding(None, "view", "Group", "bursar:user:alice#7"),
        binding(None, "bursar-impersonate-admin", "Group", "bursar:user:alice#7"),
    ];
    for object in &objects {
        site.must("apply", object);
    }
    for object in &objects {
        site.must("delete", object);
    }
    // An order takes over a binding of others, and a repair restores a label that somebody removed.
    let (name, role) = ("bursar-bursar-tenant", "--clusterrole=bursar-tenant");
    site.cluster.run(&["create", "rolebinding", name, role, "--user=somebody", "-n", "tool-foo"], "");
    site.must("apply", &binding(place, "bursar-tenant", "Group", GROUP));
    site.cluster.run(&["label", "rolebinding", name, "-n", "tool-foo", "app.kubernetes.io/managed-by-"], "");
    site.must("apply", &binding(place, "bursar-tenant", "Group", GROUP));
    site.must("delete", &binding(place, "bursar-tenant", "Group", GROUP));
    site.can(&["get", "secrets", "-n", "tool-foo", "--field-selector=metadata.name=pull"]);
    site.can(&["get", "configmap", "bursar-owner", "-n", "bursar"]);
    site.can(&["get", "configmap", "extension-apiserver-authentication", "-n", "kube-system"]);
    site.can(&["get", "pods,jobs,cronjobs,daemonsets,deployments,statefulsets", "-n", "tool-foo"]);
    site.cluster.run(&["create", "deployment", "web", "-n", "tool-foo", "--image=x"], "");
    site.patch(&scale("tool-foo"), &json!({"spec": {"replicas": 0}})).expect("the API server accepts the change");
    site.must("create", &request("daemon-can", SIGNER));
    site.patch(&approval("daemon-can"), &approved()).expect("the API server accepts the change");
    site.can(&["delete", "csr", "daemon-can"]);
}

#[test]
fn the_daemon_may_not_write_outside_tenants_namespaces() {
    let site = Site::shared();
    let class = json!({"bursar.dev/class": "tool"});
    for place in ["kube-system", "default", "foreign"] {
        let quota = ours("v1", "ResourceQuota", "bursar", Some(place), &json!({"spec": {"hard": {"pods": "0"}}}));
        site.refused("apply", &quota, POLICY);
        site.refused("apply", &binding(Some(place), "bursar-tenant", "Group", GROUP), POLICY);
        site.refused("apply", &namespace(place, &class, "active"), POLICY);
    }
    site.cluster.run(&["create", "deployment", "web", "-n", "foreign", "--image=x"], "");
    let refused =
        site.patch(&scale("foreign"), &json!({"spec": {"replicas": 0}})).expect_err("the namespace is not a tenant's");
    assert!(refused.contains(POLICY), "{refused}");
    site.refused("apply", &binding(Some("bursar"), "bursar-tenant", "Group", GROUP), POLICY);
    site.refused("apply", &namespace("unlabelled", &json!({}), "active"), POLICY);
    site.refused("create", &namespace("unlabelled", &json!({"bursar.dev/adopt": "yes"}), "active"), POLICY);
    for reserved in ["kube-evil", "bursar"] {
        site.refused("apply", &namespace(reserved, &class, "active"), POLICY);
    }
    let mut generated = namespace("", &class, "active");
    generated["metadata"]["generateName"] = json!("kube-evil-");
    site.refused("create", &generated, POLICY);
    // The daemon may delete only the namespace of a suspended tenant.
    site.cannot(&["delete", "namespace", "tool-foo"], POLICY);
    site.cannot(&["delete", "namespace", "foreign"], POLICY);
    site.must("apply", &namespace("tool-ended", &class, "suspended"));
    site.can(&["delete", "namespace", "tool-ended", "--wait=false"]);
    site.cannot(&["label", "namespace", "tool-asleep", "bursar.dev/class-"], POLICY);
    // An administrator allows the daemon to take over a namespace.
    site.cluster.run(&["create", "namespace", "adopted"], "");
    site.refused("apply", &namespace("adopted", &class, "active"), POLICY);
    site.cluster.run(&["label", "namespace", "adopted", "bursar.dev/adopt=yes"], "");
    site.must("apply", &namespace("adopted", &class, "active"));
}

#[test]
fn the_mark_of_generations_only_rises_and_the_daemon_may_not_delete_it() {
    let (site, _turn) = (Site::shared(), Site::turn_of_the_mark());
    let path = "/api/v1/namespaces/bursar/configmaps/bursar-mark";
    let mark = |generation: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bursar-mark", "namespace": "bursar"},
            "data": {"generation": generation, "ledger": LEDGER},
        })
    };
    site.refused("apply", &mark("many"), POLICY);
    site.must("apply", &mark("1042"));
    for generation in ["1041", "0", "-1", "", "x", "9999999999999999999999"] {
        let refused = site.patch(path, &json!({"data": {"generation": generation}})).expect_err("the mark must rise");
        assert!(refused.contains(POLICY), "{generation}: {refused}");
    }
    for lost in [json!({"data": null}), json!({"data": {"generation": null}})] {
        let refused = site.patch(path, &lost).expect_err("the mark cannot be removed");
        assert!(refused.contains(POLICY), "{refused}");
    }
    site.patch(path, &json!({"data": {"claim": "a"}})).expect("a claim may be written");
    site.patch(path, &json!({"data": {"generation": "1043"}})).expect("a rising mark is allowed");
    site.cannot(&["delete", "configmap", "bursar-mark", "-n", "bursar"], POLICY);
    // The reaper may delete by label, but here it can delete neither the mark nor the ConfigMap of the owner.
    for name in ["bursar-mark", "bursar-owner"] {
        site.cluster.run(&["label", "configmap", name, "-n", "bursar", "job=a1"], "");
        let refused = site
            .delete_labelled("/api/v1/namespaces/bursar/configmaps", "job=a1")
            .expect_err("the ConfigMap cannot be deleted by label");
        assert!(refused.contains(POLICY), "{refused}");
        site.cluster.run(&["label", "configmap", name, "-n", "bursar", "job-"], "");
    }
    site.cluster.run(&["delete", "configmap", "bursar-mark", "-n", "bursar"], "");
}

/// The daemon may delete objects of a job by their label alone. It cannot read them.
#[test]
fn the_daemon_may_delete_only_labelled_objects_of_jobs() {
    let site = Site::shared();
    let labelled = |kind: &str, name: &str, place: &str, job: &str| {
        let labels = if job.is_empty() { json!({}) } else { json!({"job": job}) };
        let object =
            json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": place, "labels": labels}});
        site.cluster.run(&["create", "-f", "-"], &object.to_string());
    };
    labelled("Secret", "of-job", "tool-foo", "a1");
    labelled("Secret", "of-nobody", "tool-foo", "");
    labelled("ConfigMap", "of-job", "foreign", "a1");
    assert!(site.delete_labelled("/api/v1/namespaces/tool-foo/secrets", "job=a1").is_ok());
    let left = site.cluster.run(&["get", "secrets", "-n", "tool-foo", "-o", "name"], "");
    assert!(left.contains("of-nobody") && !left.contains("of-job"), "{left}");
    for (place, kind, selector) in [("tool-foo", "secrets", "job!=a1"), ("foreign", "configmaps", "job=a1")] {
        let path = format!("/api/v1/namespaces/{place}/{kind}");
        let refused = site
            .delete_labelled(&path, selector)
            .expect_err("the selector is not a job's, or the namespace is not a tenant's");
        assert!(refused.contains(POLICY), "{refused}");
    }
}

#[test]
fn the_daemon_may_bind_only_groups_of_generations() {
    let site = Site::shared();
    let place = Some("tool-foo");
    for (kind, subject) in [
        ("User", "bursar:daemon"),
        ("Group", "system:authenticated"),
        ("Group", "bursar:tools"),
        ("ServiceAccount", "default"),
    ] {
        site.refused("apply", &binding(place, "bursar-tenant", kind, subject), POLICY);
        if kind != "ServiceAccount" {
            site.refused("apply", &binding(None, "view", kind, subject), POLICY);
        }
    }
    // Roles that the configuration does not name, or that it names for another purpose.
    site.refused("apply", &binding(place, "admin", "Group", GROUP), FORBIDDEN);
    site.refused("apply", &binding(None, "cluster-admin", "Group", GROUP), FORBIDDEN);
    site.refused("apply", &binding(place, "view", "Group", GROUP), POLICY);
    site.refused("apply", &binding(None, "bursar-tenant", "Group", GROUP), POLICY);
    let (own, former) = (daemon_group(LEDGER), daemon_group("former"));
    site.refused("apply", &binding(None, "bursar-archive", "Group", &own), POLICY);
    // The archive role is bound only while a tenant is suspended, and only to the daemon of this ledger. Certificates
    // of a former ledger have the same user name.
    site.refused("apply", &archive_binding("tool-foo", "Group", &own), POLICY);
    for (kind, subject) in
        [("Group", GROUP), ("Group", former.as_str()), ("User", "bursar:daemon"), ("User", own.as_str())]
    {
        site.refused("apply", &archive_binding("tool-asleep", kind, subject), POLICY);
    }
}

#[test]
fn the_daemon_may_list_a_suspended_tenant_but_run_nothing_in_it() {
    let site = Site::shared();
    let archive = archive_binding("tool-read", "Group", &daemon_group(LEDGER));
    site.must("apply", &archive);
    wait_for("the binding gives the right", DEADLINE, || {
        site.daemon(&["get", "secrets", "-n", "tool-read"], "").status.success().then_some(())
    });
    // The daemon may `list` everything but has no `get`, which on all resources would also allow these requests.
    for what in ["pods/any/proxy/", "services/any/proxy/", "pods/any/exec?command=id", "pods/any/portforward"] {
        let path = format!("/api/v1/namespaces/tool-read/{what}");
        site.cannot(&["get", "--raw", &path], FORBIDDEN);
    }
    site.must("delete", &archive);
}

#[test]
fn the_daemon_cannot_change_its_rights_or_its_confinement() {
    let site = Site::shared();
    let patch = r#"{"metadata":{"labels":{"x":"y"}}}"#;
    for what in [
        "clusterrole/bursar-daemon",
        "clusterrole/bursar-tenant",
        "validatingadmissionpolicy/bursar-cage",
        "validatingadmissionpolicybinding/bursar-cage",
    ] {
        site.cannot(&["patch", what, "-p", patch], FORBIDDEN);
        site.cannot(&["delete", what], FORBIDDEN);
    }
    // If the daemon lacks the rights that a binding gives, RBAC refuses before admission is asked.
    for (what, by) in
        [("clusterrolebinding/bursar-daemon", POLICY), ("clusterrolebinding/bursar-cluster-admin", FORBIDDEN)]
    {
        site.cannot(&["patch", what, "-p", patch], by);
        site.cannot(&["delete", what], POLICY);
    }
    site.cannot(&["patch", "configmap/bursar-owner", "-n", "bursar", "-p", r#"{"data":{"ledger":"x"}}"#], POLICY);
    site.cannot(&["get", "namespaces", "--as=bursar:cluster-admin"], FORBIDDEN);
    site.cannot(&["get", "secrets", "-n", "tool-foo"], FORBIDDEN);
    site.cannot(&["get", "secret", "other", "-n", "tool-foo"], FORBIDDEN);
    site.cannot(&["get", "secrets", "-A"], FORBIDDEN);
    site.cannot(&["get", "secrets", "-n", "kube-system"], FORBIDDEN);
    site.cannot(&["get", "configmap", "bursar-owner", "-n", "bursar", "--as=bursar:cluster-admin"], FORBIDDEN);
    site.cannot(&["create", "token", "default", "-n", "tool-foo"], FORBIDDEN);
}

#[test]
fn the_daemon_may_not_make_host_volumes_or_approve_foreign_requests() {
    let site = Site::shared();
    let host = json!({"spec": {
        "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/"},
    }});
    site.refused("apply", &ours("v1", "PersistentVolume", "bursar-host", None, &host), POLICY);
    let kubelet = request("other-signer", "kubernetes.io/kubelet-serving");
    site.refused("create", &kubelet, POLICY);
    site.cluster.run(&["create", "-f", "-"], &kubelet.to_string());
    let refused = site.patch(&approval("other-signer"), &approved()).expect_err("the request is for another signer");
    assert!(refused.contains("not permitted to approve") || refused.contains(POLICY), "{refused}");
    // The request has the right signer and our label, but the daemon did not create it.
    site.cluster.run(&["create", "-f", "-"], &request("of-the-admin", SIGNER).to_string());
    let refused = site.patch(&approval("of-the-admin"), &approved()).expect_err("another user created the request");
    assert!(refused.contains(POLICY), "{refused}");
}

fn scale(namespace: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/deployments/web/scale")
}

fn approval(name: &str) -> String {
    format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/approval")
}

fn approved() -> serde_json::Value {
    json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": "test"}]}})
}
