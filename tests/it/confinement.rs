//! The daemon watches its confinement, and reports certificates that nobody requested and the end of its own
//! certificate. Each test has servers of its own.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bursar::daemon;
use bursar::orders::request::OrderRequest;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::process::run;
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::quiet::own_servers;
use crate::world::{World, target};

/// The seconds by which the clock of one test is ahead.
static AHEAD: AtomicI64 = AtomicI64::new(0);

fn ahead() -> Timestamp {
    daemon::now() + SignedDuration::from_secs(AHEAD.load(Ordering::Relaxed))
}

fn findings(world: &mut World) -> Vec<String> {
    world.cycle();
    world.status().clusters.into_values().flat_map(|cluster| cluster.confinement).collect()
}

fn has_namespace(world: &World, tool: &str) -> bool {
    world.kubectl(&["get", "namespaces", "-o", "name"]).contains(&format!("namespace/{}", world.namespace(tool)))
}

fn in_31_days() -> Timestamp {
    daemon::now() + SignedDuration::from_hours(31 * 24)
}

#[test]
fn a_weakened_confinement_is_reported_and_grants_wait() {
    let servers = own_servers(&ControlPlaneOptions::default());
    let mut world = World::on(servers, "confined", "\n[security]\nrequire_confinement = true\n");
    world.tool("foo", 66_001, &[]);
    wait_for("a tenant is served while the confinement is complete", DEADLINE, || {
        let found = findings(&mut world);
        assert_eq!(found, Vec::<String>::new());
        has_namespace(&world, "foo").then_some(())
    });
    let sentence = world.status().clusters.into_values().find_map(|cluster| cluster.administrator);
    assert!(
        sentence
            .expect("the status has a sentence about administrators")
            .contains("this host can make itself cluster administrator")
    );

    let weaken = r#"{"spec":{"failurePolicy":"Ignore"}}"#;
    world.kubectl(&["patch", "validatingadmissionpolicy", "bursar-cage", "--type=merge", "-p", weaken]);
    let found = wait_for("the change is reported", DEADLINE, || {
        let found = findings(&mut world);
        (!found.is_empty()).then_some(found)
    });
    assert!(found.iter().any(|what| what.contains("bursar-cage was changed since init made it")), "{found:?}");
    assert!(world.metrics().contains("bursar_confinement_broken{cluster=\"test\"} 1"), "{}", world.metrics());
    world.tool("bar", 66_002, &[]);
    world.cycle();
    assert!(!has_namespace(&world, "bar"), "nothing is granted meanwhile");
    world.order(&OrderRequest::Suspend(target("foo"))).expect("the order is accepted");
    let state = world.rows("SELECT state FROM tools WHERE name = 'foo'");
    assert_eq!(state[0]["state"], "suspended", "access is still taken away");

    world.kubectl(&["delete", "validatingadmissionpolicybinding", "bursar-cage"]);
    wait_for("the deletion is reported", DEADLINE, || {
        findings(&mut world).iter().any(|what| what.contains("is gone; run bursar init")).then_some(())
    });
    world.stop();
    world.initialise_again();
    wait_for("the confinement is complete again, and bar is served", DEADLINE, || {
        let found = findings(&mut world);
        (found.is_empty() && has_namespace(&world, "bar")).then_some(())
    });

    // Somebody else makes a webhook configuration with Bursar's name.
    let foreign = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "bursar-webhook"},
    });
    world.servers.cluster.run(&["create", "-f", "-"], &foreign.to_string());
    let (what, remedy) = ("not installed by this host", "bursar webhook uninstall --cluster test");
    wait_for("the status names the foreign webhook and the remedy", DEADLINE, || {
        let found = findings(&mut world);
        let name = "MutatingWebhookConfiguration bursar-webhook";
        found.iter().any(|it| it.contains(what) && it.contains(name) && it.contains(remedy)).then_some(())
    });
    let (found, _) = crate::doctor::wrong(&world, &[]);
    assert!(found.iter().any(|(_, text, cure)| text.contains(what) && cure.starts_with(remedy)), "{found:#?}");
    world.kubectl(&["delete", "mutatingwebhookconfiguration", "bursar-webhook"]);
    wait_for("the foreign webhook is gone", DEADLINE, || findings(&mut world).is_empty().then_some(()));

    // The daemon loses the right to watch the policies, and a binding is deleted.
    let role = world.kubectl(&["get", "clusterrole", "bursar-daemon", "-o", "json"]);
    let mut role: serde_json::Value = serde_json::from_str(&role).expect("the text is JSON");
    let rules = role["rules"].as_array_mut().expect("a role has rules");
    rules.retain(|rule| rule["resources"] != json!(["validatingadmissionpolicies"]));
    world.servers.cluster.run(&["replace", "-f", "-"], &role.to_string());
    world.kubectl(&["delete", "validatingadmissionpolicybinding", "bursar-cage"]);
    world.stop();
    let wanted = [
        "ValidatingAdmissionPolicy bursar-cage cannot be watched; run bursar init",
        "ValidatingAdmissionPolicyBinding bursar-cage is gone; run bursar init",
    ];
    wait_for("both are reported", DEADLINE, || {
        let found = findings(&mut world);
        wanted.iter().all(|wanted| found.iter().any(|what| what == wanted)).then_some(())
    });
}

fn unknown(world: &mut World) -> Vec<String> {
    world.cycle();
    world.status().clusters.into_values().flat_map(|cluster| cluster.unknown_certificates).collect()
}

/// Power loss in a bootstrap leaves signed requests behind.
#[test]
fn a_certificate_that_a_killed_daemon_requested_is_known() {
    let servers = own_servers(&ControlPlaneOptions::default());
    let mut world = World::on(servers.clone(), "left", "");
    world.clock = ahead;
    world.tool("foo", 66_021, &[]);
    let has = |world: &World, field: &str| {
        let path = format!("jsonpath={{range .items[*]}}{{.metadata.name}}={{{field}}} {{end}}");
        let all = world.kubectl(&["get", "csr", "-o", &path]);
        // A certificate in base64 may itself end with `=`.
        let mut all = all.split(' ').filter_map(|one| one.split_once('='));
        all.any(|(name, value)| name.starts_with("bursar-tool-foo-") && !value.is_empty())
    };
    let frozen = servers.cluster.controller_manager().expect("the cluster has its own controller manager").frozen();
    world.killed_when(|world| has(world, ".status.conditions[*].type"), |_| false);
    drop(frozen);
    wait_for("the certificate is signed", DEADLINE, || has(&world, ".status.certificate").then_some(()));
    // The watch shows the request in the second cycle at the latest.
    for _ in 0..2 {
        assert_eq!(unknown(&mut world), Vec::<String>::new());
    }
    AHEAD.store(31, Ordering::Relaxed);
    assert_eq!(unknown(&mut world), Vec::<String>::new());
    assert!(world.works(&world.kubeconfig("foo")));
    assert!(world.rows("SELECT * FROM requested_certificate").is_empty());
}

#[test]
fn a_certificate_that_the_daemon_did_not_request_is_reported_with_its_subject() {
    let servers = own_servers(&ControlPlaneOptions::default());
    let mut world = World::on(servers.clone(), "unasked", "");
    world.tool("foo", 66_011, &[]);
    world.cycle();
    assert_eq!(unknown(&mut world), Vec::<String>::new(), "the daemon knows its own requests");

    // A thief uses the daemon's credential.
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "bursar:cluster-admin");
    let pem = params.serialize_request(&key).and_then(|request| request.pem()).expect("a key signs its own request");
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "stolen", "labels": {"app.kubernetes.io/managed-by": "bursar"}},
        "spec": {
            "request": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem),
            "usages": ["client auth"], "signerName": "kubernetes.io/kube-apiserver-client", "expirationSeconds": 3600,
        },
    });
    let kubeconfig = world.state_dir().join("clusters/test.kubeconfig");
    let mut create = servers.cluster.kubectl_as(&kubeconfig);
    create.args(["create", "-f", "-"]);
    let created = run(create, &request.to_string());
    assert!(created.status.success(), "{}", crate::world::stderr(&created));
    world.kubectl(&["certificate", "approve", "stolen"]);
    // The daemon's own requests are in the ledger within a second. A request that is missing after 30 s is unknown.
    let told = wait_for("the certificate is reported", DEADLINE, || {
        let told = unknown(&mut world);
        (!told.is_empty()).then_some(told)
    });
    assert_eq!(told.len(), 1, "the daemon knows its own requests: {told:?}");
    assert!(told[0].contains("CN=bursar:cluster-admin") && told[0].contains("X509SHA256="), "{told:?}");
    assert!(world.metrics().contains("bursar_unknown_certificates{cluster=\"test\"} 1"), "{}", world.metrics());

    // The thief removes the request, and the daemon ends.
    world.kubectl(&["delete", "csr", "stolen"]);
    world.stop();
    assert_eq!(unknown(&mut world), told);
    assert!(world.metrics().contains("bursar_unknown_certificates{cluster=\"test\"} 1"), "{}", world.metrics());
    let events = world.rows("SELECT count(*) AS n FROM event WHERE action = 'unknown certificate'");
    assert_eq!(events[0]["n"], 1);
}

#[test]
fn an_expired_certificate_of_the_daemon_is_reported_at_once() {
    let servers = own_servers(&ControlPlaneOptions::default());
    let mut world = World::on(servers, "ended", "");
    world.cycle();
    let until = world.status().clusters.into_values().find_map(|cluster| cluster.own_certificate_until);
    assert!(until.is_some());
    assert!(world.metrics().contains("bursar_own_certificate_expiry_seconds"), "{}", world.metrics());
    world.stop();
    world.clock = in_31_days;
    let began = std::time::Instant::now();
    world.cycle();
    let trouble = world.trouble().expect("the cluster has trouble");
    assert!(trouble.contains("expired at") && trouble.contains("run bursar init"), "{trouble}");
    // A daemon that waited for a first listing would need 30 s.
    assert!(began.elapsed() < Duration::from_secs(29), "{:?}", began.elapsed());
}
