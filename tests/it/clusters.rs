//! Several clusters with one ledger: each has its own seals, endpoints and classes, and the contexts of all are in one
//! kubeconfig. A cluster that hangs does not delay the others, and catches up later.

use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bursar::orders::request::OrderRequest;
use bursar::settings::Settings;
use bursar_testkit::Servers;
use bursar_testkit::binaries::program;
use bursar_testkit::control_plane::{ControlPlane, ControlPlaneOptions};
use bursar_testkit::ldif::{disable_ldif, tool_account_dn};
use bursar_testkit::ports::free_port;
use bursar_testkit::process::{Process, run};
use bursar_testkit::ready::{DEADLINE, wait_for};
use rustix::process::Signal;

use crate::daemon::{Daemon, status};
use crate::world::{World, all_is_well, stderr, target};

/// Locks and returns a second cluster. Tests use it one at a time, because some of them let it hang.
pub fn other() -> (&'static ControlPlane, MutexGuard<'static, ()>) {
    static OTHER: OnceLock<ControlPlane> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (OTHER.get_or_init(|| ControlPlane::start(&ControlPlaneOptions::default())), turn)
}

/// Makes a site with class `tool` on both clusters, class `admin` on one, and class `local` on the other.
pub fn world(name: &str, other: &ControlPlane) -> World {
    world_on(Servers::shared().clone(), name, other, "")
}

/// Like [`world`], on other servers and with more lines of configuration.
pub fn world_on(servers: Arc<Servers>, name: &str, other: &ControlPlane, more: &str) -> World {
    let folder = servers.folder().join(name);
    let more = format!(
        "\n[cluster.other]\ndefault_endpoint = \"main\"\n[cluster.other.endpoint.main]\nurl = \"{}\"\nca = \"{}\"\n\
         [class.local]\nfrom = \"users\"\nwhen = {{ group = \"locals\" }}\nclusters = [\"other\"]\n\
         namespace = \"{name}-u-{{name}}\"\npod_security = \"baseline\"\nhome = {{ prefix = \"{}/homes/home\" }}\n\
         credential = {{ kind = \"certificate\", endpoints = [\"main\"] }}\n{more}",
        other.url,
        other.ca_pem.display(),
        folder.display()
    );
    let mut world = World::on(servers, name, &more);
    world.configure("clusters     = [\"test\"]", "clusters     = [\"test\", \"other\"]");
    world.configure(
        "7d\", endpoints = [\"internal\"] }\nvolumes",
        "7d\", endpoints = [\"internal\", \"main\"] }\nvolumes",
    );
    world.initialise("other", other);
    world
}

fn works(world: &World, tool: &str, context: &str) -> bool {
    world.kubectl_as_tool(tool, &["get", "pods", "--context", context]).status.success()
}

#[test]
fn the_contexts_of_both_clusters_are_in_one_kubeconfig() {
    let (other, _turn) = other();
    let mut world = world("twins", other);
    world.tool("foo", 62_851, &["twins-alice"]);
    world.person("twins-alice", 62_852);
    world.person("lena", 62_853);
    world.group("k8s-admins", &["twins-alice"]);
    world.group("locals", &["lena"]);
    all_is_well(&world.cycle());

    let said = |kubeconfig: &std::path::Path, arguments: &[&str]| {
        String::from_utf8_lossy(&world.kubectl_with(kubeconfig, arguments).stdout).trim().to_owned()
    };
    let contexts = ["config", "get-contexts", "-o", "name"];
    let tool = world.kubeconfig("foo");
    assert_eq!(said(&tool, &contexts), "other\ntest");
    assert_eq!(said(&world.kubeconfig_of("twins-alice"), &contexts), "test", "the class is only on cluster test");
    assert_eq!(said(&world.kubeconfig_of("lena"), &contexts), "other", "the class is only on the other cluster");
    for context in ["test", "other"] {
        let got = world.kubectl_as_tool("foo", &["get", "pods", "--context", context]);
        assert!(got.status.success(), "{context}: {}", stderr(&got));
    }
    assert!(said(&world.kubeconfig_of("twins-alice"), &["get", "nodes"]).is_empty());

    // The account has one generation and one seal in each cluster; neither seal is valid in the other cluster.
    let namespace = world.namespace("foo");
    let metadata = |cluster: &ControlPlane| {
        let text = cluster.run(&["get", "namespace", &namespace, "-o", "json"], "");
        serde_json::from_str::<serde_json::Value>(&text).expect("the text is JSON")["metadata"].clone()
    };
    let (here, there) = (metadata(&world.servers.cluster), metadata(other));
    let of = |metadata: &serde_json::Value, key: &str| metadata["annotations"][format!("bursar.dev/{key}")].clone();
    assert_eq!(of(&here, "generation"), of(&there, "generation"));
    assert_ne!(of(&here, "seal"), of(&there, "seal"));

    // A change for one cluster sends no requests to the other, which stays connected.
    let mark = other.audit_mark();
    let url = world.servers.cluster.url.replace("localhost", "127.0.0.1");
    let text = fs::read_to_string(world.config()).expect("the world has a configuration");
    let ca = world.servers.cluster.ca_pem.display();
    let table = format!("[cluster.test.endpoint.outside]\nurl = \"{url}\"\nca = \"{ca}\"\n\n[homes]\n");
    fs::write(world.config(), text.replace("[homes]\n", &table)).expect("the folder is writable");
    world.reload();
    assert_eq!(world.cycle().exit_code(), 0);
    assert!(world.status().clusters.values().all(|cluster| cluster.ready));
    let asked = other.requests_since(mark);
    // Other verbs are ignored: the daemon checks whether the webhook and the backstop have the new rules.
    let watched = |verb: &str| ["list", "watch", "create"].contains(&verb);
    let is_backstop = |uri: &str| uri.contains("/validatingadmissionpolicybindings");
    let asked: Vec<_> = asked
        .iter()
        .filter(|request| request.user == "bursar:daemon" && watched(&request.verb) && !is_backstop(&request.uri))
        .collect();
    assert!(asked.is_empty(), "{asked:#?}");
}

#[test]
fn a_plan_with_a_new_cluster_names_who_gains_access_there() {
    let mut world = World::new("newclus");
    world.tool("foo", 62_869, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let text = fs::read_to_string(world.config()).expect("the world has a configuration");
    let ca = world.servers.cluster.ca_pem.display();
    let table = format!(
        "[cluster.lab]\ndefault_endpoint = \"main\"\n[cluster.lab.endpoint.main]\nurl = \"https://127.0.0.1:9\"\n\
         ca = \"{ca}\"\n\n[homes]\n"
    );
    let text = text.replace("[homes]\n", &table).replace("clusters     = [\"test\"]", "clusters = [\"test\", \"lab\"]");
    let text = text.replace(
        "7d\", endpoints = [\"internal\"] }\nvolumes",
        "7d\", endpoints = [\"internal\", \"main\"] }\nvolumes",
    );
    let other = world.folder.join("other.toml");
    fs::write(&other, text).expect("the folder is writable");
    let said = world.plan_with(Settings::load(&other).expect("the configuration is valid")).text;
    assert!(said.contains("gain access: 1: tool foo") && said.contains("as if cluster lab were empty"), "{said}");
    assert!(!said.contains("! cluster lab"), "{said}");
}

#[test]
fn a_cluster_that_hangs_delays_only_its_own_work_and_catches_up() {
    let (other, _turn) = other();
    let mut world = world("hangs", other);
    for (tool, uid) in (0..6).map(|number| (format!("t{number}"), 62_861 + number)) {
        world.tool(&tool, uid, &[]);
    }
    assert_eq!(world.cycle().exit_code(), 0);
    let stolen = world.steal("t0");
    let with = |world: &World, context: &str| {
        world.kubectl_with(&stolen, &["get", "pods", "--context", context]).status.success()
    };
    assert!(with(&world, "test") && with(&world, "other"));

    let server = other.api_server().expect("the cluster has its own API server");
    let frozen = server.frozen();
    let began = Instant::now();
    // A new tool, a suspension and a revocation, each in both clusters.
    world.tool("new", 62_871, &[]);
    world.servers.slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "t1")));
    world.cycle();
    world.order(&OrderRequest::Revoke(target("t0"))).expect("the order is accepted");
    let state = |world: &World, tool: &str| {
        let rows = world.rows("SELECT name, state FROM tools");
        rows.iter().find(|row| row["name"] == tool).map(|row| row["state"].clone())
    };
    assert!(works(&world, "new", "test"), "the new tool works in the cluster that answers");
    assert_eq!(state(&world, "t1"), Some("suspended".into()));
    let bindings = world.kubectl(&["get", "rolebindings", "-n", &world.namespace("t1"), "-o", "name"]);
    assert!(!bindings.contains("bursar"), "{bindings}");
    assert!(!with(&world, "test"), "the old certificate is refused in the cluster that answers");
    assert!(works(&world, "t0", "test"), "the new certificate works in the cluster that answers");
    assert!((2..6).all(|number| works(&world, &format!("t{number}"), "test")));
    let clusters = world.status().clusters;
    assert!(clusters["test"].ready && !clusters["other"].ready, "{clusters:#?}");
    // Once the cluster is known to hang, cycles do not wait for it. Waiting for a signature alone would take 30 s.
    let (known, cycle) = (Instant::now(), world.cycle());
    assert!(known.elapsed() < Duration::from_secs(29), "{:?} {cycle:#?}", known.elapsed());
    println!("hung for {:?}; a cycle then takes {:?}", began.elapsed(), known.elapsed());

    drop(frozen);
    wait_for("the other cluster catches up", DEADLINE, || {
        let report = world.cycle();
        (report.exit_code() == 0 && works(&world, "new", "other") && works(&world, "t0", "other")).then_some(())
    });
    assert!(!with(&world, "other"), "the old certificate is refused in the other cluster");
    let bindings = other.run(&["get", "rolebindings", "-n", &world.namespace("t1"), "-o", "name"], "");
    assert!(!bindings.contains("bursar"), "{bindings}");
}

#[test]
fn a_cluster_that_hangs_during_a_reload_does_not_delay_a_revocation_in_the_other() {
    let (other, _turn) = other();
    let mut world = world("reloads", other);
    world.tool("foo", 62_877, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let stolen = world.steal("foo");
    let opens = |world: &World| world.kubectl_with(&stolen, &["get", "pods", "--context", "test"]).status.success();
    assert!(opens(&world));
    world.stop();
    let daemon = Daemon::ready(&world);
    wait_for("both clusters answer", DEADLINE, || {
        let clusters = &status(&world)["clusters"];
        (clusters["test"]["ready"] == true && clusters["other"]["ready"] == true).then_some(())
    });
    let server = other.api_server().expect("the cluster has its own API server");
    let frozen = server.frozen();
    daemon.process.signal(Signal::HUP);
    daemon.notified("RELOADING=1");
    let began = Instant::now();
    std::thread::scope(|scope| {
        let revoking = scope.spawn(|| crate::runbooks::follow(&world, "bursar revoke tool foo --reason stolen"));
        wait_for("the old certificate is refused", DEADLINE, || (!opens(&world)).then_some(()));
        let took = began.elapsed();
        println!("refused after {took:?}");
        // If the revocation waited for the other cluster's request, it would take 30 s.
        assert!(took < Duration::from_secs(15), "{took:?}");
        let (code, said) = revoking.join().expect("the thread does not panic");
        assert!(code == Some(1) && said.contains("cluster other"), "{said}");
    });
    drop(frozen);
    daemon.stop();
}

#[test]
fn a_daemon_that_starts_while_a_cluster_hangs_works_in_the_other() {
    let (other, _turn) = other();
    let mut world = world("starts", other);
    world.tool("foo", 62_881, &[]);
    let server = other.api_server().expect("the cluster has its own API server");
    let frozen = server.frozen();
    world.stop();
    let daemon = Daemon::ready(&world);
    wait_for("foo works in the cluster that answers", DEADLINE, || works(&world, "foo", "test").then_some(()));
    let clusters = status(&world)["clusters"].clone();
    assert_eq!((clusters["test"]["ready"].clone(), clusters["other"]["ready"].clone()), (true.into(), false.into()));
    assert!(clusters["other"]["trouble"].as_str().is_some_and(|why| !why.is_empty()), "{clusters:#}");
    drop(frozen);
    let (code, said) = crate::runbooks::follow(&world, "bursar sync");
    println!("{said}");
    assert_eq!(code, Some(0), "{said}");
    wait_for("foo works in the other cluster", DEADLINE, || {
        crate::runbooks::follow(&world, "bursar sync");
        works(&world, "foo", "other").then_some(())
    });
    daemon.stop();
}

#[test]
fn an_order_exits_with_1_and_is_shown_until_an_unreachable_cluster_is_done() {
    let (other, _turn) = other();
    let mut world = world("orders", other);
    world.tool("foo", 62_891, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let stolen = world.steal("foo");
    world.stop();
    let server = other.api_server().expect("the cluster has its own API server");
    let frozen = server.frozen();
    let daemon = Daemon::ready(&world);
    wait_for("the other cluster is known to be away", DEADLINE, || {
        let clusters = &status(&world)["clusters"];
        (clusters["test"]["ready"] == true && clusters["other"]["ready"] == false).then_some(())
    });
    let given = |order: &str| crate::runbooks::follow(&world, order);
    let unfinished = || status(&world)["unfinished"].as_array().cloned().unwrap_or_default();
    for (order, what) in [("revoke", "revoke"), ("suspend", "suspend")] {
        let (code, said) = given(&format!("bursar {order} tool foo --reason away"));
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&format!("not done yet: tool:foo: {what}")) && said.contains("cluster other"), "{said}");
        assert_eq!((unfinished().len(), &unfinished()[0]["what"]), (1, &what.into()), "{:?}", unfinished());
        let shown = given("bursar status").1;
        assert!(shown.contains(&format!("tool:foo: {what}")), "{shown}");
        let why = given("bursar why tool foo").1;
        assert!(why.contains("not done yet"), "{why}");
    }
    drop(frozen);
    wait_for("the suspension is done in the other cluster", DEADLINE, || {
        given("bursar sync");
        unfinished().is_empty().then_some(())
    });
    assert!(!world.kubectl_with(&stolen, &["get", "pods", "--context", "other"]).status.success());
    let (code, said) = given("bursar resume tool foo");
    assert_eq!(code, Some(0), "{said}");
    daemon.stop();
}

#[test]
fn a_bulk_revocation_is_not_done_while_a_suspension_waits_for_a_cluster() {
    let (other, _turn) = other();
    let mut world = world("bulkaw", other);
    world.tool("foo", 62_893, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let server = other.api_server().expect("the cluster has its own API server");
    let frozen = server.frozen();
    let daemon = Daemon::ready(&world);
    let (code, said) = std::thread::scope(|scope| {
        let class = "bursar revoke --all --class tool --reason stolen";
        let revoking = scope.spawn(|| crate::runbooks::follow(&world, class));
        wait_for("the class is revoked in the cluster that answers", DEADLINE, || {
            (status(&world)["revocations"][0]["under_way"] == 1).then_some(())
        });
        let (code, said) = crate::runbooks::follow(&world, "bursar suspend tool foo --reason stolen");
        assert_eq!(code, Some(1), "{said}");
        revoking.join().expect("the thread does not panic")
    });
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("tool:foo: suspend") && said.contains("cluster other"), "{said}");
    drop(frozen);
    wait_for("the suspension is done in the other cluster", DEADLINE, || {
        crate::runbooks::follow(&world, "bursar sync");
        (status(&world)["unfinished"] == serde_json::json!([])).then_some(())
    });
    daemon.stop();
}

#[test]
fn a_cluster_removed_from_the_configuration_is_left_unchanged_and_its_contexts_are_removed() {
    let (other, _turn) = other();
    let mut world = world("leaves", other);
    for (tool, uid) in [("foo", 62_895), ("bar", 62_896)] {
        world.tool(tool, uid, &[]);
    }
    assert_eq!(world.cycle().exit_code(), 0);
    let stolen = world.steal("foo");
    let whole = fs::read_to_string(world.config()).expect("the world has a configuration");
    let namespace = world.namespace("foo");
    let kinds = "resourcequotas,rolebindings,networkpolicies,persistentvolumeclaims";
    let stands = || other.run(&["get", kinds, "-n", &namespace, "-o", "name"], "");
    let contexts = |world: &World, tool: &str| {
        let config = world.kubeconfig(tool);
        let said = world.kubectl_with(&config, &["config", "get-contexts", "-o", "name"]);
        String::from_utf8_lossy(&said.stdout).trim().to_owned()
    };
    let (before, mark) = (stands(), other.audit_mark());

    // The administrator knows that the cluster is gone, and removes the cluster's class of people too.
    let at = whole.find("\n[cluster.other]").expect("the configuration has this cluster");
    fs::write(world.config(), &whole[..at]).expect("the folder is writable");
    world.configure("[\"test\", \"other\"]", "[\"test\"]");
    world.configure(", \"main\"]", "]");
    let limits = "[limits]\nremove_access_per_cycle = { count = 9 }\nremove_access_per_day = { count = 9 }\n[homes]\n";
    world.configure("[homes]\n", limits);
    let plan = world.plan().text;
    assert!(
        plan.contains("! cluster other  is not in the configuration: nothing is done there for 2 tenants"),
        "{plan}"
    );
    wait_for("its contexts leave the homes", DEADLINE, || {
        assert_eq!(world.cycle().exit_code(), 0);
        ["foo", "bar"].iter().all(|tool| contexts(&world, tool) == "test").then_some(())
    });
    assert!(works(&world, "foo", "test"));
    let config = fs::read_to_string(world.kubeconfig("foo")).expect("the kubeconfig is readable");
    assert!(!config.contains("other"), "{config}");
    assert!(world.rows("SELECT cluster FROM expiring_certificates").iter().all(|row| row["cluster"] == "test"));
    world.servers.slapd.modify_ldif(&disable_ldif(&tool_account_dn(&world.base, "bar")));
    assert_eq!(world.cycle().exit_code(), 0);
    assert_eq!(stands(), before);
    let writes = |verb: &str| ["create", "update", "patch", "delete"].contains(&verb);
    let written = other.requests_since(mark);
    let written: Vec<_> =
        written.iter().filter(|request| request.user == "bursar:daemon" && writes(&request.verb)).collect();
    assert!(written.is_empty(), "{written:#?}");
    let got = world.kubectl_with(&stolen, &["get", "pods", "--context", "other"]);
    assert!(got.status.success(), "nothing is revoked in a cluster without configuration: {}", stderr(&got));

    // The cluster returns: it has the same namespaces and new certificates, and tool bar is suspended there too.
    world.stop();
    fs::write(world.config(), &whole).expect("the folder is writable");
    world.cycles_until("foo works in the other cluster again", |world| works(world, "foo", "other"));
    assert_eq!(stands(), before);
    let bindings = other.run(&["get", "rolebindings", "-n", &world.namespace("bar"), "-o", "name"], "");
    assert!(!bindings.contains("bursar"), "{bindings}");
}

/// A pod that mounts one volume, as a tenant would write it.
fn pod(name: &str, volume: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}, "spec": {{
            "containers": [{{"name": "web", "image": "example.org/web", "volumeMounts": [{{"name": "v", "mountPath": "/v"}}]}}],
            "volumes": [{{"name": "v", {volume}}}]}}}}"#
    )
}

#[test]
fn a_tenants_pod_can_mount_its_own_claim_and_path_but_no_other_path() {
    let (other, _turn) = other();
    let mut world = world("mounts", other);
    world.configure("pod_security = \"restricted\"", "pod_security = \"baseline\"");
    world.tool("foo", 62_891, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let namespace = world.namespace("foo");
    let volume = format!("bursar-{namespace}.home");
    other.run(&["wait", "pv", &volume, "--for=jsonpath={.status.phase}=Bound", "--timeout=240s"], "");
    world.stop();

    let folder = world.folder.join("webhook");
    let (port, health) = (free_port(), free_port());
    let url = format!("https://127.0.0.1:{port}");
    let install = format!("bursar webhook install --cluster other --url {url} --write {}", folder.display());
    let mut command = Command::new(program("bursar-webhook"));
    command.arg("--dir").arg(&folder).arg("--listen").arg(format!("127.0.0.1:{port}"));
    command.arg("--health").arg(format!("127.0.0.1:{health}"));
    // The installation waits for the webhook, and the webhook waits for its files. The kubeconfig is the last of these.
    let webhook = std::thread::scope(|scope| {
        let installing = scope.spawn(|| crate::runbooks::follow(&world, &install));
        wait_for("the files of the webhook are written", DEADLINE, || folder.join("kubeconfig").exists().then_some(()));
        let webhook = Process::start("bursar-webhook", &command, &world.folder.join("webhook.log"));
        let (code, said) = installing.join().expect("the thread does not panic");
        assert_eq!(code, Some(0), "{said}");
        webhook
    });

    let create = |manifest: &str, more: &[&str]| {
        let mut kubectl = other.kubectl_as(&world.kubeconfig("foo"));
        kubectl.args(["create", "--context", "other", "-o", "json", "-f", "-"]).args(more);
        run(kubectl, manifest)
    };
    let mine = pod("mine", r#""persistentVolumeClaim": {"claimName": "home"}"#);
    wait_for("the webhook gives a pod its UID", DEADLINE, || {
        let tried = create(&mine, &["--dry-run=server"]);
        String::from_utf8_lossy(&tried.stdout).contains("\"runAsUser\": 62891").then_some(())
    });
    let made = create(&mine, &[]);
    assert!(made.status.success(), "{}", stderr(&made));
    let own = create(&pod("own", r#""nfs": {"server": "nfs.example.org", "path": "/srv/project/foo"}"#), &[]);
    assert!(own.status.success(), "{}", stderr(&own));
    for (name, path) in [("theirs", "/srv/project/bar"), ("all", "/srv/project"), ("up", "/srv/project/foo/../bar")] {
        let volume = format!(r#""nfs": {{"server": "nfs.example.org", "path": "{path}"}}"#);
        let refused = create(&pod(name, &volume), &[]);
        assert!(!refused.status.success() && stderr(&refused).contains("bursar.dev"), "{path}: {}", stderr(&refused));
    }
    // The kubeconfig that an administrator uses by default belongs to cluster test, which the same ledger owns.
    let of_test = Servers::shared().cluster.admin_kubeconfig.clone();
    let init = format!("bursar init --cluster other --admin-kubeconfig {}", of_test.display());
    let (code, said) = crate::runbooks::follow(&world, &init);
    assert!(code != Some(0) && said.contains("reaches a cluster other than other"), "{said}");
    let uninstall = "bursar webhook uninstall --cluster other --backstop";
    let (code, said) = crate::runbooks::follow(&world, uninstall);
    assert!(code != Some(0) && said.contains("reaches a cluster other than other"), "{said}");
    let admin = other.admin_kubeconfig.display();
    let (code, said) = crate::runbooks::follow(&world, &format!("{uninstall} --admin-kubeconfig {admin}"));
    assert_eq!(code, Some(0), "{said}");
    drop(webhook);
}
