//! A directory that answers wrongly removes nobody. In each of these worlds one complete read without an entry would
//! suspend it at once.

use std::fs;

use crate::world::World;

const AT_ONCE: &str = "\n[lifecycle]\nabsent_for = \"0s\"\n";

/// Two tools that work; then the configuration is spoilt, and they must go on to work.
fn removes_nobody(name: &str, spoil: impl Fn(String, &World) -> String, because: &str) {
    let mut world = World::with(name, AT_ONCE);
    let uid = 63_000 + u32::try_from(name.len()).expect("short") * 10;
    world.tool("foo", uid, &[]);
    world.tool("bar", uid + 1, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let right = fs::read_to_string(world.config()).expect("the configuration");
    let wrong = spoil(right.clone(), &world);
    assert_ne!(right, wrong, "nothing was spoilt");
    fs::write(world.config(), wrong).expect("written");
    for _ in 0..2 {
        let report = world.cycle();
        let why = report.partial.get("people").unwrap_or_else(|| panic!("not partial: {report:#?}"));
        assert!(why.contains(because), "{why}");
        assert_eq!(report.actions, 0, "{report:#?}");
    }
    let states = world.rows("SELECT state FROM tools");
    assert!(states.iter().all(|row| row["state"] == "active"), "{states:?}");
    for tool in ["foo", "bar"] {
        assert!(world.kubectl_as_tool(tool, &["get", "pods"]).status.success());
    }
}

fn with_url(text: &str, url: &str) -> String {
    let lines =
        text.lines().map(|line| if line.starts_with("urls") { format!("urls = [{url:?}]") } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_server_that_refuses_connections() {
    let port = crate::servers::ports::free_port();
    removes_nobody("refused", |text, _| with_url(&text, &format!("ldaps://127.0.0.1:{port}")), "127.0.0.1");
}

#[test]
fn a_wrong_password() {
    let spoil = |text: String, world: &World| {
        fs::write(world.folder.join("wrong-password"), "wrong").expect("a file");
        text.replace("/ldap-password", "/wrong-password")
    };
    removes_nobody("pass", spoil, "49");
}

#[test]
fn a_base_that_is_not_there() {
    removes_nobody(
        "nobase",
        |text, _| text.replace("ou=servicegroups,", "ou=nowhere,ou=servicegroups,"),
        "no such base",
    );
}

#[test]
fn a_subtree_that_is_empty() {
    removes_nobody("empty", |text, _| text.replace("\"(cn=tools.*)\"", "\"(cn=nothing.*)\""), "no tool in the answer");
}

#[test]
fn a_sentinel_that_is_missing() {
    removes_nobody("nosent", |text, _| text.replace("uid=novaadmin", "uid=nobody"), "sentinel");
}
