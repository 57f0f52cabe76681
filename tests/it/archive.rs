//! Archives, deletes and restores a tool on the real control plane, and tests what must keep a namespace from being
//! deleted.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use bursar::orders::request::OrderRequest;
use bursar_testkit::Servers;
use bursar_testkit::ldif::tool_account_dn;
use bursar_testkit::ready::{DEADLINE, poll};
use serde_json::{Value, json};

use crate::world::{World, all_is_well, stderr, stdout};

/// A lifecycle without waiting times.
pub const AT_ONCE: &str = "\n[lifecycle]\nabsent_for = \"0s\"\nretention = \"0s\"\ndelete_after = \"0s\"\n";
/// The content of a Secret, in plain text and in base64. Neither may be found in an archive.
const SECRET: [&str; 2] = ["in-clear-text", "aW4tY2xlYXItdGV4dA"];
/// Made by `age-keygen`.
const IDENTITY: &str = "AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX";
const RECIPIENT: &str = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";

/// Moves the tool's entry out of every base that is read. The entry keeps its entryUUID.
pub fn leaves(world: &World, tool: &str) {
    moved(&tool_account_dn(&world.base, tool), &world.base);
}

pub fn returns(world: &World, tool: &str) {
    let account = tool_account_dn(&world.base, tool);
    let (rdn, home) = account.split_once(',').expect("the DN has several parts");
    moved(&format!("{rdn},{}", world.base), home);
}

fn moved(dn: &str, superior: &str) {
    let rdn = dn.split(',').next().expect("the DN has several parts");
    let record = format!("dn: {dn}\nchangetype: modrdn\nnewrdn: {rdn}\ndeleteoldrdn: 1\nnewsuperior: {superior}\n");
    Servers::shared().slapd.modify_ldif(&record);
}

/// Runs cycles until the tool has this state.
pub fn cycles_until(world: &mut World, tool: &str, wanted: &str) {
    let so = poll(DEADLINE, || {
        world.cycle();
        world.state(tool) == wanted
    });
    assert!(so, "{tool} is {}, not {wanted}: {:#?}", world.state(tool), world.rows("SELECT * FROM failure"));
}

/// Runs cycles until the tool's deletion fails for a reason that contains `about`. Returns the reason.
fn cycles_until_refused(world: &mut World, about: &str) -> String {
    let reason = |world: &World| {
        let rows = world.rows("SELECT reason FROM failing WHERE step = 'deletion'");
        rows.first().and_then(|row| row["reason"].as_str()).unwrap_or_default().to_owned()
    };
    let refused = poll(DEADLINE, || {
        world.cycle();
        reason(world).contains(about)
    });
    assert!(refused, "{about} is not the reason: {:#?}", world.rows("SELECT * FROM failure"));
    reason(world)
}

fn exists(world: &World, namespace: &str) -> bool {
    !world.kubectl(&["get", "namespace", namespace, "--ignore-not-found", "-o", "name"]).is_empty()
}

/// Runs `bursar archive …` as root, without a daemon.
fn archive(world: &mut World, arguments: &[&str]) -> Output {
    world.stop();
    world.command(&["archive"]).args(arguments).output().expect("bursar is built")
}

fn newest(world: &World) -> String {
    let rows = world.rows("SELECT file FROM archives ORDER BY at DESC, file");
    rows[0]["file"].as_str().expect("the value is a string").to_owned()
}

pub fn create(world: &World, namespace: &str, objects: &[Value]) {
    let file = world.folder.join("objects.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    fs::write(&file, list.to_string()).expect("the folder is writable");
    world.kubectl(&["create", "-n", namespace, "-f", &file.display().to_string()]);
}

pub fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "value"}})
}

/// Unpacks the newest archive. Returns its file and the folder.
fn unpacked(world: &World) -> (PathBuf, PathBuf) {
    let file = world.state_dir().join("archive").join(newest(world));
    let folder = world.folder.join("unpacked");
    fs::create_dir_all(&folder).expect("the parent folder is writable");
    let done = Command::new("tar").arg("--zstd").arg("-xf").arg(&file).arg("-C").arg(&folder).status();
    assert!(done.expect("tar and zstd are installed").success());
    (file, folder)
}

#[test]
fn an_absent_tool_is_archived_and_deleted_and_gets_everything_back_when_it_returns() {
    let mut world = World::with("ended", &format!("{AT_ONCE}[archive]\nrecipient = \"{RECIPIENT}\"\n"));
    world.tool("foo", 63_001, &[]);
    world.tool("stays", 63_002, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let namespace = world.namespace("foo");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "stringData": {"token": SECRET[0]},
    });
    create(&world, &namespace, &[config_map("settings"), secret]);
    world.kubectl(&["create", "deployment", "web", "--image=example.org/web", "--replicas=3", "-n", &namespace]);
    let volume = format!("bursar-{namespace}.home");
    let volume_uid = world.kubectl(&["get", "pv", &volume, "-o", "jsonpath={.metadata.uid}"]);

    leaves(&world, "foo");
    cycles_until(&mut world, "foo", "suspended");
    cycles_until(&mut world, "foo", "archived");
    assert!(exists(&world, &namespace));
    let bindings = world.kubectl(&["get", "rolebindings", "-n", &namespace, "-o", "name"]);
    assert_eq!(bindings, "", "the daemon's right to read the tenant is removed");
    cycles_until(&mut world, "foo", "deleted");
    assert!(!exists(&world, &namespace));
    assert_eq!(world.kubectl(&["get", "pv", &volume, "-o", "jsonpath={.metadata.uid}"]), volume_uid);
    assert_eq!(world.state("stays"), "active");

    let (file, folder) = unpacked(&world);
    assert_eq!(fs::metadata(&file).expect("the file exists").permissions().mode() & 0o777, 0o600);
    for object in ["configmaps/settings.json", "deployments.apps/web.json", "persistentvolumeclaims/home.json"] {
        assert!(folder.join("objects").join(object).is_file(), "{object} is not in the archive");
    }
    let all = Command::new("grep").args(["-rlE", &SECRET.join("|")]).arg(&folder).output().expect("grep is installed");
    assert!(all.stdout.is_empty(), "a Secret is in plain text in: {}", stdout(&all));
    let row = &world.rows("SELECT secrets, left_out FROM archives")[0];
    assert_eq!((&row["secrets"], &row["left_out"]), (&json!(1), &json!(0)));

    returns(&world, "foo");
    cycles_until(&mut world, "foo", "active");
    assert_eq!(world.cycle().exit_code(), 0);
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success());
    world.kubectl(&["wait", "pv", &volume, "--for=jsonpath={.status.phase}=Bound", "--timeout=240s"]);
    assert_eq!(world.kubectl(&["get", "pv", &volume, "-o", "jsonpath={.metadata.uid}"]), volume_uid);
    assert_eq!(world.rows("SELECT uid FROM tools WHERE name = 'foo'")[0]["uid"], 63_001);

    restored(&mut world, &namespace);
}

/// Restores the tool as docs/runbooks/restore-a-deleted-tool.md says.
fn restored(world: &mut World, namespace: &str) {
    let file = newest(world);
    let listed = archive(world, &["list", "tool", "foo"]);
    assert!(stdout(&listed).contains(&file), "{}", stdout(&listed));
    let unknown = archive(world, &["list", "tool", "nobody"]);
    assert_eq!(unknown.status.code(), Some(4), "{}", stdout(&unknown));
    let shown = archive(world, &["show", &file]);
    assert!(stdout(&shown).contains("deployments.apps") && stdout(&shown).contains("1 Secrets"), "{}", stdout(&shown));
    let identity = world.folder.join("identity");
    fs::write(&identity, format!("# of a test\n{IDENTITY}\n")).expect("the folder is writable");
    let admin = world.servers.cluster.admin_kubeconfig.display().to_string();
    let identity = identity.display().to_string();
    let apply = ["apply", &file, "--identity", &identity, "--admin-kubeconfig", &admin, "--reason", "asked for"];
    let applied = archive(world, &apply);
    assert!(applied.status.success(), "{}{}", stdout(&applied), stderr(&applied));
    let get =
        |what: &str, path: &str| world.kubectl(&["get", what, "-n", namespace, "-o", &format!("jsonpath={path}")]);
    assert_eq!(get("deployment/web", "{.spec.replicas}"), "3");
    assert_eq!(get("configmap/settings", "{.data.key}"), "value");
    assert_eq!(get("secret/token", "{.data.token}"), format!("{}==", SECRET[1]));
    let told = world.rows("SELECT reason FROM history WHERE action = 'archive applied'");
    assert_eq!(told[0]["reason"], "asked for");

    let again = archive(world, &apply);
    assert!(!again.status.success() && stderr(&again).contains("not empty"), "{}", stderr(&again));
    let path = world.state_dir().join("archive").join(&file);
    let mut altered = fs::read(&path).expect("the file is readable");
    altered[30] ^= 1;
    fs::write(&path, altered).expect("the folder is writable");
    for command in [&["show", file.as_str()][..], &apply] {
        let refused = archive(world, command);
        assert!(
            !refused.status.success() && stderr(&refused).contains("not as it was written"),
            "{}",
            stderr(&refused)
        );
    }
}

#[test]
fn a_finalizer_that_blocks_a_deletion_is_reported_until_it_is_gone() {
    let mut world = World::with("stuck", AT_ONCE);
    world.tool("foo", 63_011, &[]);
    world.tool("stays", 63_012, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let namespace = world.namespace("foo");
    let mut held = config_map("held");
    held["metadata"]["finalizers"] = json!(["example.org/keep"]);
    create(&world, &namespace, &[held]);
    leaves(&world, "foo");
    let reason = cycles_until_refused(&mut world, "example.org/keep");
    assert_eq!(world.state("foo"), "archived", "{reason}");
    world.kubectl(&[
        "patch",
        "configmap",
        "held",
        "-n",
        &namespace,
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":null}}"#,
    ]);
    cycles_until(&mut world, "foo", "deleted");
    world.cycle();
    assert_eq!(world.rows("SELECT * FROM failure").len(), 0);
    assert_eq!(world.rows("SELECT * FROM spent WHERE spending = 'delete'").len(), 1, "one deletion is counted once");
}

#[test]
fn a_namespace_is_kept_if_its_deletion_would_delete_a_volume() {
    let mut world = World::with("data", AT_ONCE);
    world.tool("foo", 63_021, &[]);
    world.tool("stays", 63_022, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let namespace = world.namespace("foo");
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "data-of-foo"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nonexistent"},
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "fast",
        },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "fast", "volumeName": "data-of-foo",
        },
    });
    create(&world, &namespace, &[volume, claim]);
    leaves(&world, "foo");
    let reason = cycles_until_refused(&mut world, "claim data (volume data-of-foo)");
    assert!(reason.contains("kubectl delete pvc data -n data-foo") && reason.contains("Retain"), "{reason}");
    assert!(exists(&world, &namespace));
    assert_eq!(world.rows("SELECT * FROM archives").len(), 1);
    let retain = r#"{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#;
    world.kubectl(&["patch", "pv", "data-of-foo", "-p", retain]);
    cycles_until(&mut world, "foo", "deleted");
    assert!(!exists(&world, &namespace));
    assert_eq!(world.kubectl(&["get", "pv", "data-of-foo", "-o", "name"]).trim(), "persistentvolume/data-of-foo");
    world.kubectl(&["delete", "pv", "data-of-foo", "--wait=false"]);
}

#[test]
fn a_namespace_that_was_made_again_by_others_is_not_deleted() {
    let mut world = World::with("strange", &format!("{AT_ONCE}[limits]\ndelete_per_cycle = {{ count = 0 }}\n"));
    world.tool("foo", 63_031, &[]);
    world.tool("stays", 63_032, &[]);
    all_is_well(&world.cycle());
    let namespace = world.namespace("foo");
    leaves(&world, "foo");
    cycles_until(&mut world, "foo", "archived");
    world.cycle();
    let report = world.cycle();
    assert_eq!(report.exit_code(), 3, "{report:#?}");
    assert!(exists(&world, &namespace));
    world.stop();
    world.kubectl(&["delete", "namespace", &namespace, "--wait=true", "--timeout=240s"]);
    world.kubectl(&["create", "namespace", &namespace]);
    world.configure("delete_per_cycle = { count = 0 }", "delete_per_cycle = { count = 1 }");
    cycles_until(&mut world, "foo", "deleted");
    assert!(exists(&world, &namespace));
    world.kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
}

#[test]
fn deletions_over_the_limit_wait_for_approval() {
    let limits = "[limits]\nsuspend_per_cycle = { count = 9 }\nsuspend_per_day = { count = 9 }\ndelete_per_cycle = { count = 1 }\ndelete_per_day = { count = 1 }\n";
    let mut world = World::with("dellimit", &format!("{AT_ONCE}{limits}"));
    let tools = ["ta", "tb", "tc"];
    for (number, tool) in (0..).zip(tools) {
        world.tool(tool, 63_041 + number, &[]);
    }
    world.tool("stays", 63_049, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    for tool in tools {
        leaves(&world, tool);
    }
    cycles_until(&mut world, "ta", "deleted");
    world.cycle();
    let states = |world: &World| tools.map(|tool| world.state(tool));
    assert_eq!(states(&world), ["deleted", "archived", "archived"]);
    let plan = world.plan();
    assert_eq!(plan.exit_code, 3, "{}", plan.text);
    assert!(plan.text.contains("refused by limit delete_per_day (0 left): 2 of 2 deletions: tb, tc"), "{}", plan.text);
    let hash = plan.plan["refused"]["hash"].as_str().expect("the value is a string").to_owned();
    world.order(&OrderRequest::Approve { hash }).expect("the order is accepted");
    cycles_until(&mut world, "tb", "deleted");
    cycles_until(&mut world, "tc", "deleted");
    assert_eq!(world.state("stays"), "active");
}

#[test]
fn archive_and_deletion_finish_although_bursar_is_killed_at_each_step() {
    let mut world = World::with("cutoff", AT_ONCE);
    world.tool("foo", 63_051, &[]);
    world.tool("stays", 63_052, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let namespace = world.namespace("foo");
    let many: Vec<Value> = (0..60).map(|number| config_map(&format!("c{number}"))).collect();
    create(&world, &namespace, &many);
    leaves(&world, "foo");
    // Certificates of every former ledger name the daemon's user, so only the group of this ledger may read meanwhile.
    let subjects = "-o=jsonpath={.subjects[*].kind} {.subjects[*].name}";
    let daemon = world.kubectl(&["get", "clusterrolebinding", "bursar-daemon", subjects]);
    let binding = |world: &World| {
        let found = ["get", "rolebinding", "bursar:archive", "-n", &namespace, "--ignore-not-found", subjects];
        let bound = world.kubectl(&found);
        assert!(bound.is_empty() || bound == daemon, "{bound} is not {daemon}");
        !bound.is_empty()
    };
    let files = |world: &World| fs::read_dir(world.state_dir().join("archive")).map_or(0, Iterator::count);
    let is = |wanted: &'static str| move |world: &World| world.state("foo") == wanted;
    let going = |world: &World| {
        let at = ["get", "namespace", &namespace, "--ignore-not-found", "-o", "jsonpath={.metadata.deletionTimestamp}"];
        !exists(world, &namespace) || !world.kubectl(&at).is_empty()
    };
    let is_past = |world: &World| world.state("foo") != "suspended";
    world.killed_when(is("suspended"), is_past);
    world.killed_when(binding, is_past);
    world.killed_when(|world| files(world) > 0, is_past);
    world.killed_when(is("archived"), is_past);
    world.killed_when(
        |world| !world.rows("SELECT 1 FROM account WHERE ending ->> 'ending' = 'deletion'").is_empty(),
        is_past,
    );
    world.killed_when(going, is_past);
    cycles_until(&mut world, "foo", "deleted");
    world.stop();
    assert!(!exists(&world, &namespace));
    let file = newest(&world);
    let shown = archive(&mut world, &["show", &file, "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("the text is JSON");
    let kept = shown["contents"]
        .as_array()
        .expect("the value is a list")
        .iter()
        .filter(|object| object["kind"] == "configmaps");
    assert_eq!(kept.count(), 61, "60 of the tool's, and kube-root-ca.crt");
    assert_eq!(world.rows("SELECT * FROM spent WHERE spending = 'delete'").len(), 1, "one deletion is counted once");
    returns(&world, "foo");
    cycles_until(&mut world, "foo", "active");
    let bindings = world.kubectl(&["get", "rolebindings", "-n", &namespace, "-o", "name"]);
    assert!(!bindings.contains("archive"), "{bindings}");
}

#[test]
fn a_broken_home_delays_neither_the_archive_nor_the_deletion() {
    let limits = "[limits]\nsuspend_per_cycle = { count = 2 }\nsuspend_per_day = { count = 2 }\n";
    let mut world = World::with("brokend", &format!("{AT_ONCE}{limits}"));
    for (tool, uid) in [("junk", 63_041), ("gone", 63_042), ("stays", 63_043)] {
        world.tool(tool, uid, &[]);
    }
    assert_eq!(world.cycle().exit_code(), 0);
    let namespaces = ["junk", "gone"].map(|tool| world.namespace(tool));
    let config = world.kubeconfig("junk");
    fs::write(&config, "a: b: c\n").expect("the folder is writable");
    fs::remove_dir_all(world.home("gone")).expect("the folder exists");
    for tool in ["junk", "gone"] {
        leaves(&world, tool);
    }
    let report = world.cycle();
    let states = (world.state("junk"), world.state("gone"));
    assert_eq!(states, ("suspended".to_owned(), "suspended".to_owned()), "{report:#?}");
    for tool in ["junk", "gone"] {
        cycles_until(&mut world, tool, "archived");
    }
    for tool in ["junk", "gone"] {
        cycles_until(&mut world, tool, "deleted");
    }
    assert!(namespaces.iter().all(|namespace| !exists(&world, namespace)));
    assert_eq!(fs::read_to_string(&config).expect("the file is readable"), "a: b: c\n");
    let failing = world.rows("SELECT account, step, reason FROM failing");
    assert_eq!(failing.len(), 1, "{failing:#?}");
    assert!(failing[0]["account"] == "tool:junk" && failing[0]["step"] == "removal of files", "{failing:#?}");
}
