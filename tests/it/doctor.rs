//! The tests cause real faults. `bursar doctor` finds each fault and names its remedy.

use std::fs;
use std::panic::AssertUnwindSafe;
use std::process::{Command, Output};

use bursar_testkit::Servers;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::Value;

use crate::daemon::Daemon;
use crate::quiet::own_servers;
use crate::world::World;

fn run(world: &World, around: &[&str], json: bool) -> Output {
    let (program, rest) = around.split_first().unwrap_or((&env!("CARGO_BIN_EXE_bursar"), &[]));
    let mut command = Command::new(program);
    command.args(rest);
    if !around.is_empty() {
        command.arg(env!("CARGO_BIN_EXE_bursar"));
    }
    command.arg("--config").arg(world.config()).args(json.then_some("--json")).arg("doctor");
    command.output().expect("bursar is built")
}

/// Returns what the doctor finds wrong (subject, text, remedy) and its exit code. Two findings are left out because
/// most tests have them: no daemon runs, and no webhook is installed. Policies from an older configuration are left out
/// too, because worlds that share a cluster replace each other's policies.
pub fn wrong(world: &World, around: &[&str]) -> (Vec<(String, String, String)>, Option<i32>) {
    let output = run(world, around, true);
    let said = String::from_utf8_lossy(&output.stderr);
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let counts = |finding: &&Value| {
        let said = text(finding, "text");
        finding["subject"] != "daemon"
            && !said.starts_with("not installed, so nothing enforces")
            && !said.contains("was made from an older configuration")
    };
    let wrong = findings.iter().filter(|finding| !finding["remedy"].is_null()).filter(counts);
    (
        wrong.map(|found| (text(found, "subject"), text(found, "text"), text(found, "remedy"))).collect(),
        output.status.code(),
    )
}

/// Checks that exactly one thing is wrong, and that the text output has its text and remedy.
fn only(world: &World, around: &[&str], subject: &str, text: &str, remedy: &str) {
    let (found, exit) = wrong(world, around);
    let [(about, said, cured)] = &found[..] else { panic!("{found:#?}") };
    assert!(about.contains(subject) && said.contains(text) && cured.contains(remedy), "{found:#?}");
    assert_eq!(exit, Some(1));
    let people = String::from_utf8_lossy(&run(world, around, false).stdout).into_owned();
    assert!(people.contains(&format!("! {about}: ")) && people.contains(&format!("    remedy: {cured}")), "{people}");
}

#[test]
fn doctor_finds_nothing_on_a_healthy_site() {
    // On shared servers, the doctor would report the labelled objects of other tests, because this ledger does not know
    // them.
    let more = "[class.tool.admission]\nuid = \"off\"\nhost = \"off\"\nvolumes = \"off\"\nclaims = \"off\"\nlifetime = \"off\"\n";
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "healthy", more);
    world.tool("foo", 62_801, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let daemon = Daemon::ready(&world);
    daemon.cycled(&world);
    let output = run(&world, &[], false);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for line in [
        "answers and knows the daemon, clocks agree",
        "has all the rights that it needs",
        "bursar-homed listens",
        "exists (",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("remedy:"), "{text}");
    daemon.stop();
}

#[test]
fn a_homed_that_does_not_listen_is_found() {
    let mut world = World::new("noears");
    world.cycle();
    world.kill_homed();
    only(&world, &[], "homes", "does not listen at", "systemctl enable --now bursar-homed.socket");
}

#[test]
fn a_wrong_base_and_a_wrong_password_have_different_remedies() {
    let mut world = World::new("badbase");
    world.configure("ou=servicegroups,", "ou=nowhere,ou=servicegroups,");
    only(&world, &[], "source ", "no such base (32)", "correct base in source.tools");
    world.configure("ou=nowhere,", "");
    fs::write(world.folder.join("ldap-password"), "wrong").expect("the folder is writable");
    only(&world, &[], "source ", "wrong name or password (49)", "correct bind_dn or the password");
}

#[test]
fn an_unreachable_endpoint_is_found() {
    let mut world = World::new("noroute");
    let ca = Servers::shared().cluster.ca_pem.display().to_string();
    let table = format!("[cluster.test.endpoint.outside]\nurl = \"https://127.0.0.1:9\"\nca = \"{ca}\"\n\n[homes]\n");
    world.configure("[homes]\n", &table);
    only(
        &world,
        &[],
        "cluster test, endpoint outside",
        "https://127.0.0.1:9",
        "see url, ca, tls_server_name and proxy",
    );
}

#[test]
fn an_endpoint_with_a_certificate_of_an_unknown_authority_is_found() {
    let mut world = World::new("notrust");
    let ca = world.folder.join("foreign.pem");
    fs::write(&ca, &bursar_testkit::pki::Authority::new("of somebody else").identity().certificate)
        .expect("the folder is writable");
    let url = &Servers::shared().cluster.url;
    let table = format!("[cluster.test.endpoint.outside]\nurl = \"{url}\"\nca = \"{}\"\n\n[homes]\n", ca.display());
    world.configure("[homes]\n", &table);
    only(&world, &[], "cluster test, endpoint outside", "UnknownIssuer", "see url, ca, tls_server_name and proxy");
}

#[test]
fn a_clock_that_is_wrong_by_more_than_a_minute_is_found() {
    let world = World::new("skewed");
    let around = ["faketime", "-f", "+90s"];
    only(&world, &around, "cluster test, endpoint internal", "clock differs from this host's by -", "timedatectl");
    let (found, _) = wrong(&world, &["faketime", "-f", "+30s"]);
    assert_eq!(found, [], "half a minute is tolerated");
}

#[test]
fn an_export_that_is_not_mounted_is_found() {
    let mut world = World::new("unmounted");
    world.tool("foo", 62_811, &[]);
    world.cycle();
    let prefix = world.folder.join("homes/data/project");
    let fstab = world.folder.join("fstab");
    let line = format!("nfs.example.org:/srv/project {} nfs4 hard 0 0\n", prefix.display());
    fs::write(&fstab, line).expect("the folder is writable");
    // Run the doctor in a mount namespace of its own, with this fstab.
    let private = ["unshare", "-m", "--propagation", "private", "sh", "-c"];
    let (fstab, place) = (fstab.to_str().expect("the path is UTF-8"), prefix.to_str().expect("the path is UTF-8"));
    let around = [&private[..], &["mount --bind \"$0\" /etc/fstab && exec \"$@\"", fstab]].concat();
    let remedy = format!("mount {}", prefix.display());
    only(&world, &around, "homes/data/project", "nfs.example.org:/srv/project (nfs4) is not mounted at", &remedy);

    // If it is mounted, nothing is wrong. A bind mount of the folder on itself stands in for the export, because the
    // doctor looks only at the mount table.
    let script = "mount --bind \"$0\" /etc/fstab && mount --bind \"$1\" \"$1\" && shift && exec \"$@\"";
    assert_eq!(wrong(&world, &[&private[..], &[script, fstab, place]].concat()).0, []);

    // Next case: this host's own /etc/fstab does not list the export. The doctor can then see a lost mount only by an
    // empty or missing folder.
    let away = world.folder.join("homes/data/away");
    fs::rename(&prefix, &away).expect("the parent folder is writable");
    fs::create_dir(&prefix).expect("the parent folder is writable");
    only(&world, &[], "homes/data/project", "is empty: the export with the homes is not mounted there", &remedy);
    fs::remove_dir(&prefix).expect("the folder is empty");
    only(&world, &[], "homes/data/project", "No such file or directory", &remedy);
}

#[test]
fn an_export_that_squashes_owners_or_root_is_found() {
    let mut world = World::new("squashed");
    world.tool("foo", 62_821, &[]);
    world.tool("bar", 62_822, &[]);
    world.cycle();
    // All homes belong to nobody, as with `all_squash` or if the hosts have no common idmap domain.
    let homes = ["foo", "bar"].map(|tool| world.home(tool));
    for home in &homes {
        std::os::unix::fs::chown(home, Some(65_534), Some(65_534)).expect("tests run as root, who may change owners");
    }
    only(&world, &[], "homes/data/project", "belongs to uid 65534", "root_squash");
    std::os::unix::fs::chown(&homes[0], Some(62_821), Some(62_821)).expect("tests run as root, who may change owners");
    assert_eq!(wrong(&world, &[]).0, [], "a wrong owner of a single home is the tenant's fault");

    // Homes must be made, but root cannot make them: first because the file system forbids it, then because of the
    // arguments of homed.
    let text = fs::read_to_string(world.config()).expect("the world has a configuration");
    let volumes = world.folder.join("homes/volumes");
    let directory = format!("directory = \"{}/{{name}}\", mount = ", volumes.display());
    world.configure("mount = ", &directory);
    assert_eq!(wrong(&world, &[]).0, []);
    assert_eq!(fs::read_dir(&volumes).expect("the folder exists").count(), 0, "nothing is left behind");
    let mark = |how: &str| {
        assert!(Command::new("chattr").arg(how).arg(&volumes).status().expect("chattr is installed").success());
    };
    mark("+i");
    let found = std::panic::catch_unwind(AssertUnwindSafe(|| {
        only(&world, &[], "homes/volumes", "squashes root", "no_root_squash");
    }));
    mark("-i");
    found.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    fs::write(world.config(), text.replace("create = false", "create = true")).expect("the folder is writable");
    let (found, _) = wrong(&world, &[]);
    let about: Vec<&str> = found.iter().map(|(subject, _, _)| subject.as_str()).collect();
    assert!(about.iter().any(|subject| subject.contains("homes/data/project")), "{found:#?}");
    assert!(found.iter().all(|(_, _, remedy)| remedy.contains("add --create-prefix")), "{found:#?}");
}

#[test]
fn a_missing_right_is_found() {
    let (other, _turn) = crate::clusters::other();
    let world = crate::clusters::world("rights", other);
    assert_eq!(wrong(&world, &[]).0, []);
    let rule = |role: &str| {
        let path = "jsonpath={range .rules[*]}{.resources}{\"\\n\"}{end}";
        let rules = other.run(&["get", "clusterrole", role, "-o", path], "");
        rules.lines().position(|line| line == "[\"certificatesigningrequests/approval\"]").expect("the rule is there")
    };
    let patch = format!(r#"[{{"op": "remove", "path": "/rules/{}"}}]"#, rule("bursar-daemon"));
    other.run(&["patch", "clusterrole", "bursar-daemon", "--type=json", "-p", &patch], "");
    wait_for("the removed right is found", DEADLINE, || (!wrong(&world, &[]).0.is_empty()).then_some(()));
    let remedy = "bursar init --admin-kubeconfig FILE --cluster other";
    only(&world, &[], "cluster other, as the daemon", "may not patch certificatesigningrequests/approval", remedy);
    world.initialise("other", other);
    wait_for("the remedy works", DEADLINE, || wrong(&world, &[]).0.is_empty().then_some(()));
}
