//! A ledger that was restored from a snapshot, or a second process with a copy of it, must not undo what was done
//! since.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bursar::bootstrap::{self, Claim, KnownGenerations, MarkKeeper, MarkOwner, Reserved};
use bursar::contract::Sealer;
use bursar::contract::mark::{LEDGER, Mark};
use bursar::identity::{AccountKind, ClusterName};
use bursar::orders::request::{OrderRequest, Target};
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ldif::{group_of_names_ldif, person_dn, replace_ldif};
use bursar_testkit::process::Process;
use bursar_testkit::ready::{DEADLINE, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::daemon::Daemon;
use crate::execute::outage::proxy;
use crate::quiet::{asked, own_servers};
use crate::world::{World, all_is_well, stderr};

fn once(config: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
    command.arg("--config").arg(config).args(["sync", "--once"]).output().expect("bursar is built")
}

pub fn takeover(world: &World) -> Output {
    let mut command = world.command(&["takeover", "--admin-kubeconfig"]);
    command.arg(&world.servers.cluster.admin_kubeconfig).output().expect("bursar is built")
}

fn revoke(world: &mut World, kind: AccountKind, name: &str) {
    let target = Target { kind, name: name.to_owned(), reason: Some("a test".to_owned()), ticket: None };
    all_is_well(&world.order(&OrderRequest::Revoke(target)).expect("the order is accepted"));
    world.stop();
}

/// Copies the ledger, as a snapshot of the state folder would.
pub fn snapshot(world: &World) -> PathBuf {
    let copy = world.folder.join("snapshot.db");
    fs::copy(world.state_dir().join("ledger.db"), &copy).expect("a closed ledger is one file");
    copy
}

/// Replaces the ledger with such a copy.
pub fn restore(world: &World, snapshot: &Path) {
    for file in ["ledger.db-wal", "ledger.db-shm"] {
        let _ = fs::remove_file(world.state_dir().join(file));
    }
    fs::copy(snapshot, world.state_dir().join("ledger.db")).expect("the state folder is writable");
}

fn mark(world: &World) -> Value {
    let text = world.kubectl(&["get", "configmap", "bursar-mark", "-n", "bursar", "-o", "json"]);
    serde_json::from_str::<Value>(&text).expect("kubectl prints JSON")["data"].clone()
}

fn last_generation(world: &World) -> u64 {
    world.rows("SELECT last_generation FROM ledger")[0]["last_generation"].as_u64().expect("a generation is a number")
}

/// Checks that `bursar sync --once` ends with 78 and a message that names `bursar takeover`, and writes nothing in the
/// cluster.
fn check_nothing_is_written(world: &World) {
    let since = world.servers.cluster.audit_mark();
    let output = once(&world.config());
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert!(stderr(&output).contains("bursar takeover"), "{}", stderr(&output));
    wrote_nothing(world, since);
}

fn wrote_nothing(world: &World, since: u64) {
    let asked = asked(world, since);
    let writes = asked.iter().filter(|request| !["get", "list", "watch"].contains(&request.verb.as_str()));
    let is_probe = |uri: &str| uri.contains("/selfsubject") || uri.contains("dryRun=All");
    let writes: Vec<_> = writes.filter(|request| !is_probe(&request.uri)).collect();
    assert!(writes.is_empty(), "{writes:#?}");
}

#[test]
fn the_daemon_refuses_a_rolled_back_ledger_until_takeover() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "behind", "");
    world.tool("foo", 66_001, &[]);
    world.person("carol", 66_002);
    world.group("k8s-admins", &["carol"]);
    all_is_well(&world.cycle());
    world.stop();
    let marked = |world: &World| mark(world)["generation"].as_str().and_then(|text| text.parse::<u64>().ok());
    wait_for("the mark has the last generation", DEADLINE, || {
        (marked(&world) == Some(last_generation(&world))).then_some(())
    });

    // Carol has no namespace, so only the mark shows that the ledger is old.
    let old = snapshot(&world);
    let stolen = world.folder.join("stolen-carol");
    fs::copy(world.kubeconfig_of("carol"), &stolen).expect("the kubeconfig can be copied");
    let lists = |world: &World, kubeconfig: &Path| {
        world.kubectl_with(kubeconfig, &["get", "pods", "-n", "default"]).status.success()
    };
    assert!(lists(&world, &stolen));
    revoke(&mut world, AccountKind::User, "carol");
    assert!(!lists(&world, &stolen));
    assert_eq!(marked(&world), Some(last_generation(&world)), "the mark is written before the binding");
    restore(&world, &old);
    check_nothing_is_written(&world);
    let daemon = Daemon::start(&world);
    assert_eq!(daemon.process.wait(DEADLINE).code(), Some(78), "{}", daemon.process.log_end());
    assert!(!lists(&world, &stolen), "a revoked certificate works again");

    // New orders raise the last generation of the old ledger to that of the mark.
    for name in ["foo", "carol"] {
        let kind = if name == "foo" { "tool" } else { "user" };
        world.bursar(&format!("revoke {kind} {name} --reason test"));
    }
    assert!(Some(last_generation(&world)) >= marked(&world), "{}", last_generation(&world));
    check_nothing_is_written(&world);
    assert!(!lists(&world, &stolen), "a revoked certificate works again");

    let output = takeover(&world);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert!(said.contains("order them again"), "takeover knows that the ledger is old: {said}");
    all_is_well(&world.cycle());
    world.stop();
    assert!(!lists(&world, &stolen), "a revoked certificate works again");
    assert!(lists(&world, &world.kubeconfig_of("carol")));

    // Without the mark, the seal of a namespace also shows that the ledger is old.
    let old = snapshot(&world);
    revoke(&mut world, AccountKind::Tool, "foo");
    world.kubectl(&["delete", "configmap", "bursar-mark", "-n", "bursar"]);
    restore(&world, &old);
    check_nothing_is_written(&world);
    assert!(takeover(&world).status.success());
    all_is_well(&world.cycle());

    // Values without a signature prove nothing, so they stop nothing.
    let edited = json!({"data": {"generation": "999999999"}}).to_string();
    world.kubectl(&["patch", "configmap", "bursar-mark", "-n", "bursar", "-p", &edited]);
    let namespace = world.namespace("foo");
    let subject =
        json!([{"op": "replace", "path": "/subjects/0/name", "value": "bursar:tool:foo#888888888"}]).to_string();
    world.kubectl(&["patch", "rolebinding", "bursar-bursar-tenant", "-n", &namespace, "--type=json", "-p", &subject]);
    world.stop();
    all_is_well(&world.cycle());
    revoke(&mut world, AccountKind::Tool, "foo");
    assert!(world.works(&world.kubeconfig("foo")));
    // `init` repairs the mark.
    world.initialise_again();
    world.stop();
    all_is_well(&world.cycle());
    world.stop();
    wait_for("the mark has the last generation again", DEADLINE, || {
        (marked(&world) == Some(last_generation(&world))).then_some(())
    });
}

/// Since the snapshot, only the removal of the member has raised the mark.
#[test]
fn a_ledger_that_forgot_only_a_removed_member_is_noticed() {
    let servers = own_servers(&ControlPlaneOptions::default());
    let classes = r#"
[limits]
remove_members_per_cycle = { count = 9 }
[class.person]
from       = "users"
clusters   = ["test"]
namespace  = "forgets-u-{name}"
home       = { prefix = "@HOMES@", kubeconfig = ".kube/config" }
roles      = ["bursar-tenant"]
credential = { kind = "certificate", lifetime = "7d", endpoints = ["internal"] }
[class.course]
from          = "groups"
clusters      = ["test"]
namespace     = "forgets-w-{name}"
member_roles  = ["bursar-tenant"]
"#;
    let classes = classes.replace("@HOMES@", &servers.folder().join("forgets/homes/home").display().to_string());
    let mut world = World::on(servers, "forgets", &classes);
    for (person, uid) in ["ann", "bea"].into_iter().zip(66_201..) {
        world.person(person, uid);
    }
    let (dn, [ann, bea]) =
        (format!("cn=algebra,ou=groups,{}", world.base), ["ann", "bea"].map(|name| person_dn(&world.base, name)));
    world.add(&group_of_names_ldif(&dn, "algebra", &[ann, bea.clone()]));
    let bound = |world: &World| {
        let names = "jsonpath={.items[*].subjects[*].name}";
        world.kubectl(&["get", "rolebindings", "-n", "forgets-w-algebra", "-o", names])
    };
    wait_for("ann is bound", DEADLINE, || {
        (world.cycle().exit_code() == 0 && bound(&world).contains("bursar:user:ann#")).then_some(())
    });
    world.stop();
    let old = snapshot(&world);
    world.servers.slapd.modify_ldif(&replace_ldif(&dn, "member", &[&bea]));
    all_is_well(&world.cycle());
    world.stop();
    let left = bound(&world);
    assert!(!left.contains("bursar:user:ann#") && left.contains("bursar:user:bea#"), "{left}");
    restore(&world, &old);
    check_nothing_is_written(&world);
    assert_eq!(bound(&world), left);
}

#[test]
fn a_copy_of_the_ledger_is_refused_while_its_owner_runs_and_accepted_later() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "copied", "");
    world.tool("foo", 66_101, &[]);
    all_is_well(&world.cycle());
    world.stop();
    let copy = world.folder.join("lab");
    let copied = Command::new("cp").arg("-a").arg(world.state_dir()).arg(&copy).status().expect("cp is installed");
    assert!(copied.success());
    let config = world.folder.join("lab.toml");
    let text = fs::read_to_string(world.config()).expect("the world has a configuration");
    let text = text
        .replace(&format!("{}/state", world.folder.display()), &copy.display().to_string())
        .replace("control.sock", "lab.sock");
    fs::write(&config, text).expect("the folder is writable");

    // A daemon that restarts on the same host does not wait 10 s for an answer of the former holder.
    let began = Instant::now();
    let daemon = Daemon::ready(&world);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    for _ in 0..2 {
        let output = once(&config);
        assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
        assert!(stderr(&output).contains("copy of this ledger"), "{}", stderr(&output));
    }
    assert!(daemon.process.ended().is_none(), "{}", daemon.process.log_end());
    daemon.process.signal(Signal::KILL);
    daemon.process.wait(DEADLINE);

    let began = Instant::now();
    let output = once(&config);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(began.elapsed() >= Duration::from_secs(10), "{:?}", began.elapsed());
    // The lab copy now holds the mark, so the original ledger counts as the copy. A daemon that loses the mark stops.
    let daemon = Daemon::ready(&world);
    let other = json!({"data": {"holder": "another process"}}).to_string();
    world.kubectl(&["patch", "configmap", "bursar-mark", "-n", "bursar", "-p", &other]);
    assert_eq!(daemon.process.wait(DEADLINE).code(), Some(78), "{}", daemon.process.log_end());
}

/// Returns the [`MarkKeeper`] of a process that runs with this ledger or a copy of it.
async fn keeper(world: &World, kubeconfig: &Path, instance: &str) -> Arc<MarkKeeper> {
    let client = bootstrap::client(kubeconfig).await.expect("the kubeconfig is valid");
    let seed = fs::read(world.state_dir().join("seal.key")).expect("the seal key is readable");
    let owner = MarkOwner {
        cluster: ClusterName("test".into()),
        ledger_id: mark(world)[LEDGER].as_str().expect("the mark names the ledger").to_owned(),
        sealer: Arc::new(Sealer::from_seed(&seed).expect("the seal key is valid")),
        instance: instance.to_owned(),
    };
    let found = owner.read(&client).await.expect("the cluster answers");
    let generations = Arc::new(KnownGenerations::new(u64::MAX, CancellationToken::new(), Arc::default()));
    MarkKeeper::new(&client, owner, found, Reserved::default(), generations)
}

/// After an outage, the backoff of the owner's watch can be longer than `CLAIM_WAITS`.
#[test]
fn an_owner_with_a_broken_watch_still_refuses_copies_and_notices_a_lost_mark() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "unwatched", "");
    all_is_well(&world.cycle());
    world.stop();
    let runtime = tokio::runtime::Runtime::new().expect("the system allows a runtime");
    runtime.block_on(async {
        let cluster = &world.servers.cluster;
        let port = cluster.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("the URL has a port");
        let (open, opened) = tokio::sync::watch::channel(true);
        let (through, refused) = proxy(port, opened).await;
        let kubeconfig = world.folder.join("through.kubeconfig");
        let admin = fs::read_to_string(&cluster.admin_kubeconfig).expect("the kubeconfig is readable");
        fs::write(&kubeconfig, admin.replace(&format!(":{port}"), &format!(":{through}")))
            .expect("the folder is writable");

        let owner = keeper(&world, &kubeconfig, "owner").await;
        owner.take_over().await.expect("no other process runs");
        let watch = owner.watch();
        open.send_replace(false);
        // The sixth pause of the watch is longer than a claim waits.
        wait_for("the watch is broken", DEADLINE, || (refused.load(Ordering::Relaxed) > 5).then_some(()));
        open.send_replace(true);
        let copy = keeper(&world, &cluster.admin_kubeconfig, "copy").await;
        assert_eq!(copy.claim().await.expect("the cluster answers"), Claim::Refused);
        assert!(owner.confirm().await, "the owner still runs");

        // Without a watch, the owner reads the mark before each execution.
        drop(watch);
        let other = keeper(&world, &cluster.admin_kubeconfig, "another copy").await;
        let executions = async { while owner.confirm().await {} };
        let claimed = tokio::select! {
            claimed = other.claim() => claimed,
            () = executions => panic!("the owner lost the mark to a copy that only wrote a claim"),
        };
        assert_eq!(claimed.expect("the cluster answers"), Claim::Refused);
        other.take_over().await.expect("the cluster answers");
        assert!(!owner.confirm().await && owner.is_lost(), "another process is the holder");
        assert!(owner.raise(u64::MAX).await.is_err(), "the former owner does not become the holder again");
    });
}

/// Returns a signed mark whose generation is higher by `more` than that of the cluster's present mark.
fn mark_of_the_future(world: &World, more: u64) -> String {
    let seed = fs::read(world.state_dir().join("seal.key")).expect("the seal key is readable");
    let (sealer, cluster) = (Sealer::from_seed(&seed).expect("the seal key is valid"), ClusterName("test".into()));
    let data = serde_json::from_value(mark(world)).expect("the mark's data are texts");
    let mut mark = Mark::verified(&data, &cluster, &[sealer.public_key()]).expect("the mark is valid");
    mark.generation += more;
    json!({"data": mark.signed(&cluster, &sealer)}).to_string()
}

/// A snapshot of a virtual machine restores the running daemon with its memory. To the daemon, it looks as if the
/// cluster had changed.
#[test]
fn a_running_daemon_that_was_rolled_back_with_its_memory_stops() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "memory", "");
    world.tool("foo", 66_301, &[]);
    all_is_well(&world.cycle());
    world.stop();
    let daemon = Daemon::ready(&world);
    wait_for("the mark", DEADLINE, || {
        let last = last_generation(&world).to_string();
        (mark(&world)["generation"].as_str() == Some(&last)).then_some(())
    });
    let since = world.servers.cluster.audit_mark();
    let frozen = daemon.process.frozen();
    // Since the snapshot, foo got another generation, which the daemon takes for drift.
    let namespace = world.namespace("foo");
    let subject = json!([{"op": "replace", "path": "/subjects/0/name", "value": "bursar:tool:foo#9999"}]).to_string();
    world.kubectl(&["patch", "rolebinding", "bursar-bursar-tenant", "-n", &namespace, "--type=json", "-p", &subject]);
    world.kubectl(&["patch", "configmap", "bursar-mark", "-n", "bursar", "-p", &mark_of_the_future(&world, 5)]);
    drop(frozen);
    assert_eq!(daemon.process.wait(DEADLINE).code(), Some(78), "{}", daemon.process.log_end());
    assert!(daemon.process.log_end().contains("bursar takeover"), "{}", daemon.process.log_end());
    wrote_nothing(&world, since);
}

/// Starts the program of an ended process again.
pub fn again(process: &Process, command_line: &[String]) -> Process {
    let mut command = Command::new(&command_line[0]);
    command.args(&command_line[1..]);
    Process::start(&command_line[0], &command, process.log())
}

pub fn command_line(process: &Process) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{}/cmdline", process.id())).expect("the process runs");
    text.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn an_etcd_that_was_restored_from_a_backup_is_repaired_without_a_restart() {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "restored", "");
    world.tool("foo", 66_501, &[]);
    all_is_well(&world.cycle());
    world.stop();
    let (stolen, home) = (world.folder.join("stolen"), world.kubeconfig("foo"));
    fs::copy(&home, &stolen).expect("the kubeconfig can be copied");
    let daemon = Daemon::ready(&world);

    let cluster = &world.servers.cluster;
    let (etcd, api_server) = (
        cluster.etcd().expect("the cluster has its own servers"),
        cluster.api_server().expect("the cluster has its own servers"),
    );
    let (store, server) = (command_line(etcd), command_line(api_server));
    let data =
        store.iter().find_map(|it| it.strip_prefix("--data-dir=")).map(PathBuf::from).expect("etcd has a data folder");
    let backup = world.folder.join("etcd");
    let copy = |from: &Path, to: &Path| {
        let _ = fs::remove_dir_all(to);
        assert!(Command::new("cp").arg("-a").args([from, to]).status().expect("cp is installed").success());
    };
    etcd.signal(Signal::TERM);
    etcd.wait(DEADLINE);
    copy(&data, &backup);
    let running = again(etcd, &store);
    wait_for("the API server", DEADLINE, || world.works(&stolen).then_some(()));

    wait_for("the revocation", DEADLINE, || {
        let (code, _) = crate::runbooks::follow(&world, "bursar revoke tool foo --reason stolen");
        (code == Some(0)).then_some(())
    });
    assert!(world.works(&home) && !world.works(&stolen));
    api_server.kill();
    running.kill();
    copy(&backup, &data);
    let _etcd = again(etcd, &store);
    let _api_server = again(api_server, &server);
    wait_for("the repair", DEADLINE, || world.works(&home).then_some(()));
    assert!(!world.works(&stolen), "a revoked certificate works again");
    assert!(daemon.process.ended().is_none(), "{}", daemon.process.log_end());
    daemon.stop();
}
