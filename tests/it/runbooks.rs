//! A shell carries out runbooks as they are written, beside a running daemon, and `bursar status` shows the lines that
//! they quote. The tests in `disk`, `recovery`, `revocation` and `eviction` follow other runbooks.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bursar_testkit::Servers;
use bursar_testkit::ldif::{tool_account_dn, tool_group_dn};
use bursar_testkit::ports::free_port;
use bursar_testkit::ready::{DEADLINE, wait_for};
use rustix::process::Signal;

use crate::daemon::Daemon;
use crate::world::World;

const DIRECTORY_DOWN: &str = include_str!("../../docs/runbooks/directory-down.md");
const CLUSTER_REBUILT: &str = include_str!("../../docs/runbooks/cluster-rebuilt.md");
const SIGNER_DOWN: &str = include_str!("../../docs/runbooks/signer-down.md");
const OWNER_LEFT: &str = include_str!("../../docs/runbooks/tool-owner-left.md");

/// Returns the steps of a runbook: its `sh` blocks.
fn steps(runbook: &str) -> Vec<&str> {
    runbook.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect()
}

/// Carries out a step and returns its exit code and output.
pub fn follow(world: &World, step: &str) -> (Option<i32>, String) {
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_bursar")).parent().expect("the path has a parent");
    let kubectl = world.servers.cluster.kubectl();
    let tools = std::path::Path::new(kubectl.get_program()).parent().expect("the path has a parent");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell.args(["-e", "-c", &step.replace("/var/lib/bursar", &world.state_dir().display().to_string())]);
    shell.env("PATH", format!("{}:{}:{path}", programs.display(), tools.display()));
    shell.env("BURSAR_CONFIG", world.config());
    shell.env(
        "KUBECONFIG",
        kubectl.get_args().skip_while(|it| *it != "--kubeconfig").nth(1).expect("the command names a kubeconfig"),
    );
    let output = shell.output().expect("bash is installed");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

/// Carries out a step that must succeed, and returns its output.
fn done(world: &World, step: &str) -> String {
    let (code, said) = follow(world, step);
    assert_eq!(code, Some(0), "{step}\n{said}");
    said
}

/// Checks that `bursar status` shows every line that the runbook quotes; `…` stands for what differs.
fn shows(world: &World, runbook: &str, here: &[(&str, &str)]) {
    let quoted =
        runbook.split("    $ bursar status\n").nth(1).expect("the runbook quotes `bursar status`").split("\n\n").next();
    let said = done(world, "bursar status");
    for line in quoted.expect("the quotation has lines").lines() {
        let line = here.iter().fold(line.trim().to_owned(), |line, (there, here)| line.replace(there, here));
        for part in line.split('…').filter(|part| !part.is_empty()) {
            assert!(said.contains(part), "{part:?} is not in\n{said}");
        }
    }
}

#[test]
fn directory_down_steps_work() {
    let mut world = World::with("dirdown", "\n[lifecycle]\nabsent_for = \"0s\"\n");
    world.tool("foo", 65_301, &[]);
    world.tool("bar", 65_302, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let right = fs::read_to_string(world.config()).expect("the world has a configuration");
    let nobody = format!("urls = [\"ldaps://127.0.0.1:{}\"]", free_port());
    let lines = right.lines().map(|line| if line.starts_with("urls") { nobody.as_str() } else { line });
    fs::write(world.config(), lines.collect::<Vec<_>>().join("\n")).expect("the folder is writable");
    let daemon = Daemon::ready(&world);
    let [doctor, suspend, sync, accept, hold] = steps(DIRECTORY_DOWN)[..] else {
        panic!("the runbook has other steps")
    };
    follow(&world, sync);
    shows(&world, DIRECTORY_DOWN, &[]);
    let (code, said) = follow(&world, doctor);
    assert!(code == Some(1) && said.contains("source people"), "{said}");
    done(&world, suspend);
    assert_eq!([world.state("foo"), world.state("bar")], ["suspended", "active"]);

    fs::write(world.config(), right).expect("the folder is writable");
    daemon.process.signal(Signal::HUP);
    wait_for("the directory is read", DEADLINE, || follow(&world, sync).1.contains("ended").then_some(()));
    wait_for("the read is complete again", DEADLINE, || {
        follow(&world, sync);
        done(&world, "bursar status").contains("complete; ").then_some(())
    });
    assert_eq!(world.state("foo"), "suspended", "only an order ends this suspension");
    assert!(done(&world, accept).contains("is accepted as it is"));
    assert!(!world.rows("SELECT action FROM event WHERE action = 'directory accepted'").is_empty());
    done(&world, hold);
    world.servers.slapd.modify_ldif(&format!("dn: {}\nchangetype: delete\n", tool_account_dn(&world.base, "bar")));
    follow(&world, sync);
    assert_eq!(world.state("bar"), "active", "a held tool is not suspended");
    daemon.stop();
}

#[test]
fn signer_down_steps_work() {
    let mut world = World::on(Arc::new(Servers::start()), "nosigner", "");
    world.tool("foo", 65_311, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let controllers = world.servers.cluster.controller_manager().expect("these servers have a controller manager");
    let frozen = controllers.frozen();
    let daemon = Daemon::ready(&world);
    world.tool("bar", 65_312, &[]);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| follow(&world, "bursar sync"));
        let [_, requests] = steps(SIGNER_DOWN)[..] else { panic!("the runbook has other steps") };
        wait_for("the request is approved but not issued", DEADLINE, || {
            let said = done(&world, requests);
            (said.contains("Approved") && !said.contains("Issued")).then_some(())
        });
        asked.join().expect("the thread does not panic");
    });
    shows(&world, SIGNER_DOWN, &[("in prod", "in test")]);
    let expiring = done(&world, &steps(SIGNER_DOWN)[0].replace("2d", "30d"));
    assert!(expiring.contains("tool:foo"), "{expiring}");
    assert!(
        world.kubectl_as_tool("foo", &["get", "pods"]).status.success(),
        "a tool with a certificate keeps its access"
    );
    drop(frozen);
    wait_for("the daemon retries by itself", DEADLINE, || {
        follow(&world, "bursar sync");
        world.kubectl_as_tool("bar", &["get", "pods"]).status.success().then_some(())
    });
    daemon.stop();
}

#[test]
fn tool_owner_left_steps_work() {
    let mut world = World::new("ownerless");
    world.person("olga", 65_320);
    world.tool("foo", 65_321, &["olga"]);
    world.tool("bar", 65_322, &["olga"]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let daemon = Daemon::ready(&world);
    let [ownerless, had, why, stop, hold] = steps(OWNER_LEFT)[..] else { panic!("the runbook has other steps") };
    assert!(!done(&world, ownerless).contains("foo"));
    // The ledger counts in seconds. A person who comes and goes within one second had no access.
    std::thread::sleep(Duration::from_millis(1100));
    let copy = world.folder.join("copy");
    fs::copy(world.kubeconfig("foo"), &copy).expect("the kubeconfig can be copied");
    // A `groupOfNames` cannot be empty, so the group is deleted.
    world.servers.slapd.modify_ldif(&format!("dn: {}\nchangetype: delete\n", tool_group_dn(&world.base, "foo")));
    done(&world, "bursar sync");
    let found = done(&world, ownerless);
    assert!(found.contains("foo") && !found.contains("bar"), "{found}");
    assert!(done(&world, had).contains("user:olga"));
    assert!(done(&world, why).contains("certificate issued"));
    assert!(!world.kubectl_with(&copy, &["get", "pods"]).status.success(), "the copy no longer works");
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success());
    done(&world, stop);
    assert_eq!(world.state("foo"), "active");
    done(&world, hold);
    daemon.stop();
}

#[test]
fn cluster_rebuilt_steps_work() {
    let (lost, made) = (Arc::new(Servers::start()), Arc::new(Servers::start()));
    let mut world = World::on(lost.clone(), "rebuilt", "");
    world.tool("foo", 65_331, &[]);
    world.tool("bar", 65_332, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let daemon = Daemon::ready(&world);
    done(&world, "bursar suspend tool bar --reason mining");
    let known = "SELECT id, name, uid, namespace, state FROM tools ORDER BY name";
    let before = world.rows(known);
    let [_, check, init, _, sync, _] = steps(CLUSTER_REBUILT)[..] else { panic!("the runbook has other steps") };
    daemon.stop();

    world.configure(&lost.cluster.url, &made.cluster.url);
    world.configure(&lost.cluster.ca_pem.display().to_string(), &made.cluster.ca_pem.display().to_string());
    world.servers = made.clone();
    let here = |step: &str| {
        let admin = made.cluster.admin_kubeconfig.display().to_string();
        step.replace("prod", "test").replace("/root/admin.kubeconfig", &admin)
    };
    done(&world, check);
    done(&world, &here(init));
    let daemon = Daemon::ready(&world);
    wait_for("foo has access to its pods", DEADLINE, || {
        done(&world, sync);
        world.kubectl_as_tool("foo", &["get", "pods"]).status.success().then_some(())
    });
    assert_eq!(world.rows(known), before);
    let seen = world.kubectl(&["get", "namespaces", "-l", "app.kubernetes.io/managed-by=bursar", "-o", "yaml"]);
    assert!(seen.contains("rebuilt-foo") && seen.contains("suspended"), "{seen}");
    daemon.stop();
}
