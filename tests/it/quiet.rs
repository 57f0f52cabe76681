//! Checks with the audit log of its own servers which requests the daemon sends to a cluster. If there is nothing to
//! do, it sends none. Over a whole lifecycle of tenants it uses exactly the rights that its role grants.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use bursar::daemon;
use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, Target};
use bursar_testkit::audit::Request;
use bursar_testkit::control_plane::{ControlPlane, ControlPlaneOptions};
use bursar_testkit::ldif::{disable_ldif, person_dn, tool_account_dn};
use bursar_testkit::ready::{DEADLINE, wait_for};
use bursar_testkit::slapd::SlapdOptions;
use bursar_testkit::{Servers, sample};
use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Config};
use serde_json::{Map, Value, json};
use sqlx::AssertSqlSafe;

use crate::world::{World, all_is_well, target};

const DAEMON: &str = "bursar:daemon";

/// Returns servers that only one test uses.
pub fn own_servers(options: &ControlPlaneOptions) -> Arc<Servers> {
    Arc::new(Servers::start_with(options, &SlapdOptions::default(), |_| sample::toolforge()))
}

/// Returns all requests since `mark`, including every one that was answered before this call.
pub fn asked_by_all(cluster: &ControlPlane, mark: u64) -> Vec<Request> {
    let last = format!("/api?mark-{}", cluster.audit_mark());
    cluster.run(&["get", "--raw", &last], "");
    wait_for("the audit log has our own request", DEADLINE, || {
        let all = cluster.requests_since(mark);
        all.iter().any(|request| request.uri.starts_with(&last)).then_some(all)
    })
}

/// Returns the daemon's requests since `mark`.
pub fn asked(world: &World, mark: u64) -> Vec<Request> {
    asked_by_all(&world.servers.cluster, mark).into_iter().filter(|request| request.user == DAEMON).collect()
}

/// The seconds by which the clock of these tests is ahead.
static AHEAD: AtomicI64 = AtomicI64::new(0);

fn ahead() -> Timestamp {
    daemon::now() + SignedDuration::from_secs(AHEAD.load(Ordering::Relaxed))
}

/// Runs cycles until one finds nothing to do, and the watches are quiet.
fn settle(world: &mut World) {
    // The daemon checks each delivery again after two seconds and after a minute, which the ledger records. The test's
    // clock jumps ahead instead of waiting.
    let looked_at = "SELECT count(*) AS n FROM delivery WHERE (digest NOT LIKE 'notice:%' OR digest = 'notice:removed') \
                     AND (checked_at IS NULL OR unixepoch(checked_at) < unixepoch(at) + 60)";
    wait_for("each delivery has had its last check", DEADLINE, || {
        world.cycle();
        let is_over = world.rows(looked_at)[0]["n"] == 0;
        if !is_over {
            AHEAD.fetch_add(61, Ordering::Relaxed);
        }
        is_over.then_some(())
    });
    wait_for("a cycle has nothing to do", DEADLINE, || {
        let mark = world.servers.cluster.audit_mark();
        let report = world.cycle();
        std::thread::sleep(Duration::from_millis(500));
        (report.exit_code() == 0 && report.actions == 0 && asked(world, mark).is_empty()).then_some(())
    });
}

/// Returns every table of the ledger except the one of the cycles.
fn ledger(world: &World) -> Vec<(String, Vec<Map<String, Value>>)> {
    let tables = world.rows(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> 'cycle' \
         ORDER BY name",
    );
    assert!(tables.len() > 15, "{tables:?}");
    let names = tables.iter().map(|row| row["name"].as_str().expect("the value is a string").to_owned());
    names
        .map(|name| {
            let mut rows = world.rows(AssertSqlSafe(format!("SELECT * FROM \"{name}\"")));
            rows.sort_by_key(|row| Value::Object(row.clone()).to_string());
            (name, rows)
        })
        .collect()
}

fn same(before: &[(String, Vec<Map<String, Value>>)], after: &[(String, Vec<Map<String, Value>>)]) {
    for ((table, before), (_, after)) in before.iter().zip(after) {
        assert_eq!(before, after, "table {table}");
    }
    assert_eq!(before.len(), after.len());
}

fn cycles(world: &World) -> i64 {
    world.rows("SELECT count(*) AS n FROM cycle")[0]["n"].as_i64().expect("the value is a number")
}

fn mtime(path: PathBuf) -> SystemTime {
    fs::metadata(path).and_then(|file| file.modified()).expect("the path exists")
}

#[test]
fn a_cycle_with_nothing_to_do_sends_no_request_and_writes_only_its_own_row() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "still", "");
    world.clock = ahead;
    let tools = ["ta", "tb", "tc", "td", "te"];
    for (uid, tool) in (63_001..).zip(tools) {
        world.tool(tool, uid, &[]);
    }
    all_is_well(&world.cycle());
    settle(&mut world);

    let kubeconfigs = |world: &World| tools.map(|tool| mtime(world.kubeconfig(tool)));
    let (rows, count, files) = (ledger(&world), cycles(&world), kubeconfigs(&world));
    let mark = world.servers.cluster.audit_mark();
    for _ in 0..2 {
        let report = world.cycle();
        assert_eq!((report.exit_code(), report.changed, report.actions, report.unchanged), (0, 0, 0, 5), "{report:#?}");
    }
    let requests: Vec<Request> = asked(&world, mark).into_iter().filter(|request| request.verb != "watch").collect();
    assert!(requests.is_empty(), "{requests:#?}");
    same(&rows, &ledger(&world));
    assert_eq!(cycles(&world), count + 2);
    assert_eq!(kubeconfigs(&world), files);

    // A new daemon reads everything, and writes nothing.
    world.stop();
    let mark = world.servers.cluster.audit_mark();
    let report = world.cycle();
    assert_eq!((report.exit_code(), report.changed, report.actions), (0, 0, 0), "{report:#?}");
    let requests = asked(&world, mark);
    assert!(requests.iter().any(|request| request.verb == "list"), "{requests:#?}");
    let reads = ["get", "list", "watch"];
    // The daemon shows its certificate to each endpoint with a SelfSubjectReview, which is a POST but writes nothing.
    let writes = requests.iter().filter(|request| !reads.contains(&request.verb.as_str()));
    // The daemon also sends dry runs, to test whether its admission policy refuses them.
    let writes = writes.filter(|request| !is_probe(request));
    let writes: Vec<&Request> = writes.filter(|request| !request.uri.contains("/selfsubjectreviews")).collect();
    assert!(writes.is_empty(), "{writes:#?}");
    same(&rows, &ledger(&world));
    assert_eq!(cycles(&world), count + 3);
    assert_eq!(kubeconfigs(&world), files);
}

/// API group, resource with subresource, verb. Resources in Bursar's own namespaces begin with `bursar/` or
/// `bursar-selftest/`.
pub type Right = (String, String, String);

/// Rights that are granted and needed, but that an audit log does not show.
const UNSEEN: &[(&str, &[&str], &str, &str)] = &[
    // The audit log shows an apply as `patch`. If the apply creates the object, the API server demands `create` as
    // well.
    ("", &["resourcequotas", "limitranges", "persistentvolumes", "persistentvolumeclaims"], "create", "apply"),
    ("", &["configmaps", "secrets"], "create", "apply"),
    ("", &["serviceaccounts"], "create", "apply"),
    ("networking.k8s.io", &["networkpolicies"], "create", "apply"),
    ("", &["bursar/configmaps", "bursar/secrets", "bursar/services"], "create", "apply"),
    ("apps", &["bursar/deployments"], "create", "apply"),
    ("policy", &["bursar/poddisruptionbudgets"], "create", "apply"),
    ("admissionregistration.k8s.io", HOOKS, "create", "apply"),
    ("rbac.authorization.k8s.io", &["rolebindings", "clusterrolebindings"], "create", "apply"),
    // A client that binds a role with rights that it does not have itself needs `bind` on the role.
    ("rbac.authorization.k8s.io", &["clusterroles"], "bind", "demanded by the API server for each write of a binding"),
    // `certificatesigningrequests/approval` is demanded as well, and the audit log shows that one.
    ("certificates.k8s.io", &["signers"], "approve", "demanded by an admission plugin for each approval"),
    (
        "networking.k8s.io",
        &["bursar-selftest/ingresses"],
        "create",
        "the self-test of a class with a rule for ingresses",
    ),
];

const HOOKS: &[&str] = &[
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicybindings",
];

fn unseen() -> BTreeSet<Right> {
    let rights = UNSEEN.iter().flat_map(|(group, resources, verb, _)| {
        resources.iter().map(move |resource| ((*group).to_owned(), (*resource).to_owned(), (*verb).to_owned()))
    });
    rights.collect()
}

/// Returns the daemon's rights as the cluster has them: its ClusterRole, and its Roles in Bursar's own namespaces.
pub fn granted(world: &World) -> BTreeSet<Right> {
    let read = |arguments: &[&str]| -> Value {
        serde_json::from_str(&world.kubectl(&[arguments, &["-o", "json"]].concat())).expect("the text is JSON")
    };
    let roles: [(&str, Value); 3] = [
        ("", read(&["get", "clusterrole", "bursar-daemon"])),
        ("bursar/", read(&["get", "role", "bursar-daemon", "-n", "bursar"])),
        ("bursar-selftest/", read(&["get", "role", "bursar-daemon", "-n", "bursar-selftest"])),
    ];
    let texts = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .expect("the value is a list")
            .iter()
            .map(|text| text.as_str().expect("the value is a string").to_owned())
            .collect()
    };
    let mut rights = BTreeSet::new();
    let of = |role: &Value| role["rules"].as_array().expect("a role has rules").clone();
    for (place, rule) in roles.iter().flat_map(|(place, role)| of(role).into_iter().map(move |rule| (place, rule))) {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                let right = |verb| (group.clone(), format!("{place}{resource}"), verb);
                rights.extend(texts(&rule["verbs"]).into_iter().map(right));
            }
        }
    }
    rights
}

/// Returns the right that a request needs; `None` if it names no resource, or only asks who its sender is and what the
/// sender may do, which everybody may ask.
pub fn right(request: &Request) -> Option<Right> {
    let path = request.uri.split('?').next()?;
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (place, rest) = match rest {
        // The right comes from the ClusterRole, and the daemon's admission policy limits it to one object.
        ["namespaces", "bursar", rest @ ..] if rest.first() == Some(&"networkpolicies") => ("", rest),
        ["namespaces", "bursar", rest @ ..] if !rest.is_empty() => ("bursar/", rest),
        ["namespaces", "bursar-selftest", rest @ ..] if !rest.is_empty() => ("bursar-selftest/", rest),
        ["namespaces", _, rest @ ..] if !rest.is_empty() => ("", rest),
        _ => ("", rest),
    };
    let resource = match rest {
        [] => return None,
        [resource, _, sub] => format!("{place}{resource}/{sub}"),
        [resource, ..] => format!("{place}{resource}"),
    };
    let everybodys = resource.starts_with("selfsubject");
    (!everybodys).then(|| (group.to_owned(), resource, request.verb.clone()))
}

/// Whether this is the dry run with which `bursar init` tests the admission policy. It is the only request of the
/// daemon that is refused.
fn is_probe(request: &Request) -> bool {
    request.verb == "create" && request.uri.starts_with("/api/v1/namespaces?") && request.uri.contains("dryRun=All")
}

/// Whether this lists the objects of the tenant that is archived. The right for that is bound in the tenant's own
/// namespace; the tests of `bootstrap` check it.
fn is_archive(request: &Request, world: &World) -> bool {
    request.verb == "list" && request.uri.contains(&format!("/namespaces/{}/", world.namespace("bar")))
}

/// Returns a time at which the daemon's own certificate of 30 days is due for renewal.
fn in_25_days() -> Timestamp {
    daemon::now() + SignedDuration::from_hours(25 * 24)
}

fn manifest(kind: &str, name: &str) -> String {
    format!("apiVersion: v1\nkind: {kind}\nmetadata:\n  name: {name}\ndata:\n  what: c2l0ZQ==\n")
}

fn pod_template() -> Value {
    json!({
        "metadata": {"labels": {"app": "w"}},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "c", "image": "example.org/i",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

/// Returns one workload of every kind.
fn workloads() -> Value {
    let of = |api_version: &str, kind: &str, spec: Value| {
        let name = kind.to_lowercase();
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec})
    };
    let selector = json!({"matchLabels": {"app": "w"}});
    let scaled = json!({"replicas": 1, "selector": selector, "template": pod_template()});
    let mut job = pod_template();
    job["spec"]["restartPolicy"] = json!("Never");
    // The pod comes first, because the other workloads use up the quota.
    let items = [
        of("v1", "Pod", pod_template()["spec"].clone()),
        of("apps/v1", "Deployment", scaled.clone()),
        of("apps/v1", "StatefulSet", scaled.clone()),
        of("apps/v1", "ReplicaSet", scaled),
        of("v1", "ReplicationController", json!({"replicas": 1, "selector": {"app": "w"}, "template": pod_template()})),
        of("apps/v1", "DaemonSet", json!({"selector": selector, "template": pod_template()})),
        of("batch/v1", "Job", json!({"template": job})),
        of("batch/v1", "CronJob", json!({"schedule": "0 3 1 1 *", "jobTemplate": {"spec": {"template": job}}})),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// As an administrator, deletes everything that was made for tenants, first objects and then a namespace, and waits
/// until it is restored.
fn repaired(world: &mut World) {
    let namespace = world.namespace("foo");
    let kinds = "resourcequota,limitrange,networkpolicy,rolebinding,configmap,secret";
    world.kubectl(&["delete", kinds, "-n", &namespace, "-l", "app.kubernetes.io/managed-by=bursar"]);
    world.kubectl(&["delete", "persistentvolumeclaim", "home", "-n", &namespace]);
    world.kubectl(&["delete", "persistentvolume", &format!("bursar-{namespace}.home")]);
    world.kubectl(&["delete", "clusterrolebinding", "-l", "app.kubernetes.io/managed-by=bursar"]);
    world.kubectl(&["delete", "namespace", &world.namespace("bar")]);
    wait_for("the deleted objects are restored", DEADLINE, || {
        world.cycle();
        let there = world.servers.cluster.kubectl().args(["get", "clusterrolebinding", "-o", "name"]).output();
        let there = String::from_utf8(there.expect("kubectl is installed").stdout)
            .expect("the output is UTF-8")
            .contains("bursar-view");
        let claims = world.kubectl(&["get", "pvc", "-A", "-o", "name"]);
        (there && claims.lines().count() == 2).then_some(())
    });
    settle(world);
}

/// Removes our label from everything that was made for tenants. To the daemon, an object without the label looks
/// deleted. The daemon then finds that the object exists, and reads it. The admission policy keeps the daemon from
/// taking over cluster-wide objects again, so an administrator must label those.
fn labelled_again(world: &mut World) {
    const LABEL: &str = "app.kubernetes.io/managed-by";
    let (on, off) = (format!("{LABEL}=bursar"), format!("{LABEL}-"));
    let namespace = world.namespace("foo");
    let inside = "resourcequota,limitrange,networkpolicy,rolebinding,configmap,secret,persistentvolumeclaim";
    let volume = format!("persistentvolume/bursar-{namespace}.home");
    let bindings = world.kubectl(&["get", "clusterrolebinding", "-l", &on, "-o", "name"]);
    let binding = bindings.lines().next().expect("kubectl lists a binding");
    for refused in [volume.as_str(), binding] {
        world.kubectl(&["label", refused, &off]);
        wait_for("the admission policy refuses to take the object over", DEADLINE, || {
            let failing = world.cycle().failing;
            failing.iter().any(|failing| failing.reason.contains("bursar-cage")).then_some(())
        });
        world.kubectl(&["label", refused, &on]);
    }
    world.kubectl(&["label", inside, "-n", &namespace, "-l", &on, &off]);
    world.kubectl(&["label", "namespace", &namespace, &off]);
    wait_for("the labels are restored", DEADLINE, || {
        world.cycle();
        let labelled = world.kubectl(&["get", "namespace", "-l", &on, "-o", "name"]);
        (labelled.lines().count() == 2).then_some(())
    });
    settle(world);
}

/// Revokes although a `CertificateSigningRequest` with the name of the daemon's next request exists already. The daemon
/// reads and deletes it.
fn revoked_past_a_leftover(world: &mut World) {
    let asked = asked(world, 0);
    let approved = asked.iter().rev().find_map(|request| {
        let path = request.uri.split('?').next()?.strip_suffix("/approval")?;
        path.rsplit('/').next().filter(|name| name.contains("foo"))
    });
    let name = approved.expect("foo has a certificate");
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let request = rcgen::CertificateParams::default().serialize_request(&key).and_then(|request| request.pem());
    let request =
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, request.expect("the request is valid"));
    let leftover = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "bursar", "bursar.dev/id": "another"},
        },
        "spec": {"request": request, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]},
    });
    world.servers.cluster.run(&["create", "-f", "-"], &leftover.to_string());
    all_is_well(&world.order(&OrderRequest::Revoke(target("foo"))).expect("the order is accepted"));
}

fn suspended_and_resumed(world: &mut World) {
    let namespace = world.namespace("foo");
    world.servers.cluster.wait_for_pods(&namespace);
    world.servers.cluster.run(&["create", "-n", &namespace, "-f", "-"], &workloads().to_string());
    all_is_well(&world.order(&OrderRequest::Suspend(target("foo"))).expect("the order is accepted"));
    assert_eq!(world.rows("SELECT kind FROM stopped_workload").len(), 8);
    all_is_well(&world.order(&OrderRequest::Resume(target("foo"))).expect("the order is accepted"));
    assert!(world.rows("SELECT kind FROM stopped_workload").is_empty());
}

/// Removes quota, limits, policies, volumes and manifests from the class, so that their objects are removed.
fn pruned(world: &mut World) {
    let config = fs::read_to_string(world.config()).expect("the world has a configuration");
    let less: String = config
        .lines()
        .filter(|line| !["quota ", "limit_range ", "volumes "].iter().any(|key| line.starts_with(key)))
        .map(|line| if line.starts_with("network ") { "network = \"open\"\n".to_owned() } else { format!("{line}\n") })
        .collect();
    assert_eq!(config.lines().count() - less.lines().count(), 3);
    fs::write(world.config(), less).expect("the folder is writable");
    // No class has these kinds any more. The daemon watches the objects that the ledger knows until they are gone.
    fs::remove_dir_all(world.folder.join("manifests/tool")).expect("the folder exists");
    world.stop();
    world.cycle();
    settle(world);
    let kinds = "resourcequota,limitrange,networkpolicy,persistentvolumeclaim,configmap,secret";
    let left = world.kubectl(&["get", kinds, "-A", "-l", "app.kubernetes.io/managed-by=bursar", "-o", "name"]);
    assert_eq!(left, "");
    assert_eq!(world.kubectl(&["get", "persistentvolume", "-o", "name"]), "");
}

/// Disables a tool. Its retention is over at once (`retention = "0s"`), so it is archived and deleted.
fn archived_and_deleted(world: &mut World) {
    world.servers.slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "bar")));
    wait_for("the tool's namespace is deleted", DEADLINE, || {
        world.cycle();
        let left = world.kubectl(&["get", "namespaces", "-o", "name"]);
        (!left.contains(&world.namespace("bar"))).then_some(())
    });
    settle(world);
}

/// Installs the webhook. There is no node, so the test itself reports its pods as ready, and the API server reaches
/// none of them.
fn installed(world: &World) {
    let cluster = &world.servers.cluster;
    let mut install = world.command(&["webhook", "install", "--image", "registry.example.org/w", "--wait", "0s"]);
    std::thread::scope(|scope| {
        let installing = scope.spawn(|| install.output().expect("bursar is built"));
        let pods = wait_for("the webhook has two pods", DEADLINE, || {
            let pods = cluster.run(&["get", "pods", "-n", "bursar", "-o", "name"], "");
            let pods: Vec<String> = pods.lines().map(str::to_owned).collect();
            (pods.len() == 2).then_some(pods)
        });
        let ready = r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#;
        for pod in pods {
            cluster.run(&["patch", &pod, "-n", "bursar", "--subresource=status", "-p", ready], "");
        }
        let installed = installing.join().expect("the thread does not panic");
        let said = String::from_utf8_lossy(&installed.stderr);
        assert!(installed.status.code() == Some(1) && said.contains("through the API server"), "{said}");
    });
}

/// Installs the webhook in the cluster, tests it, lets the daemon renew its certificate, and removes it. No pod runs on
/// this control plane, so the self-test fails because the webhook does not answer.
fn webhook_and_own_certificate_renewed(world: &mut World) {
    let file = world.state_dir().join("clusters/test.kubeconfig");
    let until = |world: &World| {
        let path = r"jsonpath={.metadata.annotations.bursar\.dev/certificate-until}";
        world.kubectl(&["get", "validatingwebhookconfiguration", "bursar-webhook", "-o", path])
    };
    installed(world);
    assert_eq!(world.run(&["webhook", "selftest"]).status.code(), Some(1));
    let before = (fs::read(&file).expect("the file is readable"), until(world));
    world.clock = in_25_days;
    wait_for("the daemon's own certificate is renewed", DEADLINE, || {
        // Approvals wait for the webhook, which does not run. Each renewal of the webhook restores this configuration.
        world.kubectl(&["delete", "validatingwebhookconfiguration", "bursar-approvals", "--ignore-not-found"]);
        world.stop();
        world.cycle();
        (fs::read(&file).expect("the file is readable") != before.0).then_some(())
    });
    let after = until(world);
    assert!(before.1 < after, "{} {after}", before.1);
    let admin = world.servers.cluster.admin_kubeconfig.to_str().expect("the path is UTF-8");
    let removed = world.run(&["webhook", "uninstall", "--backstop", "--admin-kubeconfig", admin]);
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
}

/// Adds a class of people with a token for an outside host. Nobody is in it yet.
fn with_tokens(world: &mut World) {
    let homes = world.folder.join("homes/home");
    let class = format!(
        "[class.outside]\nfrom = \"users\"\nwhen = {{ group = \"outside\" }}\nclusters = [\"test\"]\nroles = [\"bursar-tenant\"]\n\
         namespace = \"verbs-u-{{name}}\"\nhome = {{ prefix = \"{}\", kubeconfig = \".kube/config\", create = false }}\n\
         credential = {{ kind = \"service-account\", hosts = [\"ce1\"] }}\n\n[class.admin]",
        homes.display()
    );
    world.configure("[class.admin]", &class);
    world.initialise_again();
}

/// Makes tokens for an outside host, makes them again after changes, and removes them by a suspension.
fn tokens(world: &mut World) {
    world.person("verbs-ann", 63_103);
    world.group("outside", &["verbs-ann"]);
    all_is_well(&world.cycle());
    settle(world);
    let labelled = |world: &mut World, what: &str| {
        wait_for("our label is restored", DEADLINE, || {
            world.cycle();
            let label =
                ["get", what, "-n", "verbs-u-verbs-ann", "--ignore-not-found", "-o", "jsonpath={.metadata.labels}"];
            world.kubectl(&label).contains("bursar").then_some(())
        });
        settle(world);
    };
    let account = world.kubectl(&["get", "serviceaccount", "-n", "verbs-u-verbs-ann", "-o", "name"]);
    let account =
        account.lines().find(|name| name.contains("/bursar-g")).expect("the list has an object of Bursar").to_owned();
    for what in [account.as_str(), "secret/bursar-host-ce1"] {
        world.kubectl(&["label", what, "-n", "verbs-u-verbs-ann", "app.kubernetes.io/managed-by-"]);
        labelled(world, what);
    }
    world.kubectl(&["delete", "secret/bursar-host-ce1", "-n", "verbs-u-verbs-ann"]);
    labelled(world, "secret/bursar-host-ce1");
    // A service account that somebody else created is read, but not taken over.
    let name = account.rsplit('/').next().expect("the text has a name");
    world.kubectl(&["delete", &account, "-n", "verbs-u-verbs-ann"]);
    world.kubectl(&["create", "serviceaccount", name, "-n", "verbs-u-verbs-ann"]);
    wait_for("the foreign service account is reported", DEADLINE, || {
        world.cycle().failing.iter().any(|failing| failing.step == "foreign").then_some(())
    });
    world.kubectl(&["delete", &account, "-n", "verbs-u-verbs-ann"]);
    labelled(world, &account);
    let ann = Target { kind: AccountKind::User, name: "verbs-ann".to_owned(), ..target("foo") };
    all_is_well(&world.order(&OrderRequest::Suspend(ann)).expect("the order is accepted"));
    settle(world);
}

#[test]
fn the_daemons_role_grants_exactly_the_rights_that_are_used() {
    // Without WatchList, watches begin with a list, as they do on every API server after a watch broke.
    let gate = vec!["--feature-gates=WatchList=false".to_owned()];
    let servers = own_servers(&ControlPlaneOptions { api_server_arguments: gate, ..ControlPlaneOptions::default() });
    let manifests = servers.folder().join("verbs/manifests/tool");
    fs::create_dir_all(&manifests).expect("the parent folder is writable");
    for (kind, name) in [("ConfigMap", "hints"), ("Secret", "registry")] {
        fs::write(manifests.join(format!("{name}.yaml")), manifest(kind, name)).expect("the folder is writable");
    }
    let mut world = World::on(servers.clone(), "verbs", "\n[lifecycle]\nretention = \"0s\"\ndelete_after = \"0s\"\n");
    world.clock = ahead;
    with_tokens(&mut world);
    world.person("verbs-zoe", 63_101);
    world.person("verbs-yan", 63_102);
    world.group("k8s-admins", &["verbs-zoe", "verbs-yan"]);
    world.tool("foo", 63_111, &[]);
    world.tool("bar", 63_112, &[]);
    all_is_well(&world.cycle());

    repaired(&mut world);
    labelled_again(&mut world);
    revoked_past_a_leftover(&mut world);
    suspended_and_resumed(&mut world);
    servers.slapd.modify_ldif(&disable_ldif(&person_dn(&world.base, "verbs-zoe")));
    world.cycle();
    let bindings = world.kubectl(&["get", "clusterrolebinding", "-o", "name"]);
    assert!(bindings.contains("verbs-yan") && !bindings.contains("verbs-zoe"), "{bindings}");
    pruned(&mut world);
    archived_and_deleted(&mut world);
    tokens(&mut world);
    webhook_and_own_certificate_renewed(&mut world);

    let requests = asked(&world, 0);
    let refused: Vec<&Request> = requests.iter().filter(|it| it.status == 403 && !is_probe(it)).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    let used: BTreeSet<Right> = requests.iter().filter(|it| !is_archive(it, &world)).filter_map(right).collect();
    let granted = granted(&world);
    let beyond: Vec<&Right> = used.difference(&granted).collect();
    assert!(beyond.is_empty(), "used but not granted: {beyond:#?}");
    let unused: BTreeSet<Right> = granted.difference(&used).cloned().collect();
    assert_eq!(unused, unseen(), "granted but never used, except for rights that an audit log does not show");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_ends_at_once_is_restarted_with_growing_pauses() {
    let cluster = &Servers::shared().cluster;
    let file = Kubeconfig::read_from(&cluster.admin_kubeconfig).expect("the kubeconfig is readable");
    let config =
        Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("the kubeconfig is valid");
    let client = bursar::observed::cluster::connect(config).expect("the kubeconfig is valid");
    let mark = cluster.audit_mark();
    // The server ends each watch after one second.
    let short = watcher::Config::default().labels("example.org/is=paced").timeout(1);
    let watching = watcher(Api::<ConfigMap>::all(client), short).for_each(|_| std::future::ready(()));
    tokio::time::timeout(Duration::from_secs(11), watching).await.expect_err("a watcher runs until the timeout");
    let asked = cluster.requests_since(mark);
    let begun = asked.iter().filter(|request| request.verb == "watch" && request.uri.contains("paced")).count();
    assert!((2..=6).contains(&begun), "{begun}");
}
