//! A directory with wrong answers removes nobody, although in each of these worlds one complete read without an entry
//! would suspend its account at once.

use std::fs;
use std::path::Path;
use std::process::Command;

use bursar_testkit::ldif::{tool_account_dn, tool_ldif, toolforge_units_ldif, unit_ldif};
use bursar_testkit::sample::sentinel_ldif;
use bursar_testkit::slapd::{BASE_DN, READER_DN, Slapd, SlapdOptions};

use crate::world::{World, text};

const AT_ONCE: &str = "\n[lifecycle]\nabsent_for = \"0s\"\n";

/// Makes two tools, spoils the configuration, and checks that the read is partial for the expected reason and that both
/// tools still work.
fn check_nobody_is_removed(name: &str, spoil: impl Fn(String, &World) -> String, because: &str) {
    let mut world = World::with(name, AT_ONCE);
    let uid = 63_000 + u32::try_from(name.len()).expect("a name is short") * 10;
    world.tool("foo", uid, &[]);
    world.tool("bar", uid + 1, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let right = fs::read_to_string(world.config()).expect("the world has a configuration");
    let wrong = spoil(right.clone(), &world);
    assert_ne!(right, wrong, "nothing was spoilt");
    fs::write(world.config(), wrong).expect("the folder is writable");
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
fn a_server_that_refuses_connections_removes_nobody() {
    let port = bursar_testkit::ports::free_port();
    check_nobody_is_removed("refused", |text, _| with_url(&text, &format!("ldaps://127.0.0.1:{port}")), "127.0.0.1");
}

#[test]
fn a_wrong_password_removes_nobody() {
    let spoil = |text: String, world: &World| {
        fs::write(world.folder.join("wrong-password"), "wrong").expect("the folder is writable");
        text.replace("/ldap-password", "/wrong-password")
    };
    check_nobody_is_removed("pass", spoil, "49");
}

#[test]
fn a_missing_base_removes_nobody() {
    check_nobody_is_removed(
        "nobase",
        |text, _| text.replace("ou=servicegroups,", "ou=nowhere,ou=servicegroups,"),
        "no such base",
    );
}

#[test]
fn an_empty_subtree_removes_nobody() {
    check_nobody_is_removed(
        "empty",
        |text, _| text.replace("\"(cn=tools.*)\"", "\"(cn=nothing.*)\""),
        "the answer has no tool",
    );
}

#[test]
fn a_missing_sentinel_removes_nobody() {
    check_nobody_is_removed("nosent", |text, _| text.replace("uid=novaadmin", "uid=nobody"), "sentinel");
}

/// Two servers with the same entries and ids. `lines` in the configuration of the second one make it answer
/// differently.
struct Twins {
    right: Slapd,
    wrong: Slapd,
}

impl Twins {
    fn start(world: &World, uid: u32, lines: &[&str]) -> Self {
        let beneath = format!("homeDirectory: {}/", world.folder.join("homes").display());
        let mut ldif =
            unit_ldif(BASE_DN, &world.name) + &toolforge_units_ldif(&world.base) + &sentinel_ldif(&world.base);
        for (number, tool) in (0..).zip(["foo", "bar"]) {
            world.home_of(tool, uid + number);
            ldif += &tool_ldif(&world.base, tool, uid + number, &[]).replace("homeDirectory: /", &beneath);
        }
        let with_ids: Vec<String> = ldif
            .lines()
            .scan(0, |entries, line| {
                let is_dn = line.starts_with("dn: ");
                *entries += u32::from(is_dn);
                let id = format!("\nentryUUID: 00000000-0000-4000-8000-{entries:012}");
                Some(line.to_owned() + if is_dn { &id } else { "" })
            })
            .collect();
        let options = |lines: &[&str]| SlapdOptions {
            bulk_load: with_ids.join("\n") + "\n\n",
            database_lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            ..SlapdOptions::default()
        };
        Self { right: Slapd::start(&options(&[])), wrong: Slapd::start(&options(lines)) }
    }
}

/// Configures the world to read this server.
fn read_from(world: &World, slapd: &Slapd) {
    let text = fs::read_to_string(world.config()).expect("the world has a configuration");
    let lines = with_url(&text, &slapd.ldaps_url);
    let ca = format!("ca = \"{}\"", slapd.ca_pem.display());
    let mut first = true;
    let lines = lines.lines().map(|line| {
        let ours = line.starts_with("ca ") && std::mem::take(&mut first);
        if ours { ca.clone() } else { line.to_owned() }
    });
    fs::write(world.config(), lines.collect::<Vec<_>>().join("\n")).expect("the folder is writable");
}

fn check_wrong_twin_removes_nobody(name: &str, uid: u32, lines: &[&str], partial: Option<&str>) {
    let mut world = World::with(name, AT_ONCE);
    let twins = Twins::start(&world, uid, lines);
    read_from(&world, &twins.right);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    read_from(&world, &twins.wrong);
    for _ in 0..2 {
        let report = world.cycle();
        let why = report.partial.get("people").map(String::as_str);
        assert!(why.unwrap_or("complete").contains(partial.unwrap_or("complete")), "{report:#?}");
        assert_eq!(report.actions, 0, "{report:#?}");
    }
    let states = world.rows("SELECT state FROM tools");
    assert!(states.len() == 2 && states.iter().all(|row| row["state"] == "active"), "{states:?}");
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success());
}

#[test]
fn a_size_limit_removes_nobody() {
    let limit = format!("limits dn.exact=\"{READER_DN}\" size=1 size.prtotal=1");
    check_wrong_twin_removes_nobody("sizelim", 63_201, &[&limit], Some("limit"));
}

#[test]
fn an_access_rule_that_hides_every_uid_removes_nobody() {
    check_wrong_twin_removes_nobody("hidden", 63_211, &["access to attrs=uidNumber by * none"], None);
}

#[test]
fn a_tool_that_an_access_rule_hides_keeps_everything_at_first() {
    let mut world = World::with("hideone", "\n[lifecycle]\nabsent_for = \"24h\"\n");
    let hide = format!("access to dn.subtree=\"{}\" by * none", tool_account_dn(&world.base, "foo"));
    let twins = Twins::start(&world, 63_221, &[&hide]);
    read_from(&world, &twins.right);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    read_from(&world, &twins.wrong);
    let report = world.cycle();
    assert_eq!(report.actions, 0, "a tool that is missing for a minute keeps everything: {report:#?}");
    assert_eq!(world.rows("SELECT account FROM pending_removals").len(), 1);
}

/// `bursar directory diff` shows what another server, or another configuration, would change, and writes nothing.
#[test]
fn a_server_and_a_configuration_are_compared_with_those_in_force() {
    let mut world = World::with("differs", AT_ONCE);
    let twins = Twins::start(&world, 63_231, &["access to attrs=mail,uidNumber by * none"]);
    read_from(&world, &twins.right);
    assert_eq!(world.cycle().exit_code(), 0);
    world.stop();
    let before = world.rows("SELECT * FROM tools");
    let authorities =
        [&twins.right, &twins.wrong].map(|slapd| fs::read_to_string(&slapd.ca_pem).expect("the file is readable"));
    fs::write(&twins.right.ca_pem, authorities.concat()).expect("the folder is writable");
    let right = world.config();
    let diff = |config: &Path, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command.env("BURSAR_CONFIG", &right).arg("--config").arg(config).args(["directory", "diff"]).args(arguments);
        let output = command.output().expect("bursar is built");
        (output.status.code(), text(&output))
    };
    let same = diff(&right, &["people", "--server", &twins.right.ldaps_url]);
    assert_eq!((same.0, same.1.contains("no difference")), (Some(0), true), "{}", same.1);
    let (code, said) = diff(&right, &["people", "--server", &twins.wrong.ldaps_url]);
    assert_eq!((code, said.contains("uidNumber is missing, or hidden from Bursar")), (Some(2), true), "{said}");
    assert!(said.lines().filter(|line| line.starts_with("people: - tool ")).count() == 2, "{said}");
    let other = world.folder.join("other.toml");
    let text = fs::read_to_string(&right).expect("the world has a configuration");
    fs::write(&other, text.replace("\"(cn=tools.*)\"", "\"(cn=tools.foo)\"")).expect("the folder is writable");
    let (code, said) = diff(&other, &["people"]);
    assert!(code == Some(2) && said.contains("people: - tool bar") && !said.contains("tool foo"), "{said}");
    assert_eq!(world.rows("SELECT * FROM tools"), before);
}
