//! Two directories at once: which one an account belongs to, a person who is in both, and an outage of one, which
//! affects only its own people.

use std::fmt::Write as _;
use std::fs;

use bursar::control::api::CycleReport;
use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, Target, Trigger};
use bursar_testkit::Servers;
use bursar_testkit::ldif::{PEOPLE_GID, person_dn, person_ldif, replace_ldif};
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::Value;

use crate::world::World;

const MORE: &str = r#"
[lifecycle]
absent_for = "0s"
[limits]
suspend_per_cycle = { count = 9 }
suspend_per_day   = { count = 9 }
[class.person]
from       = "users"
clusters   = ["test"]
namespace  = "src-u-{name}"
home       = { prefix = "@FOLDER@/homes/home", kubeconfig = ".kube/config" }
network    = "open"
credential = { kind = "certificate", lifetime = "7d", endpoints = ["internal"] }
[[source]]
name      = "guests"
type      = "ldif"
preset    = "rfc2307"
paths     = ["guests.ldif"]
sentinels = ["uid=sentinel,ou=people,dc=guests"]
[source.users]
base = "ou=people,dc=guests"
[source.attributes]
person = "employeeNumber"
"#;

/// The name, uid, home and employee number of a guest.
type Guest<'a> = (&'a str, u32, &'a str, &'a str);

fn guests(world: &World, people: &[Guest<'_>], sentinel: bool) {
    let mut text = "dn: ou=people,dc=guests\nobjectClass: organizationalUnit\nou: people\n\n".to_owned();
    let everybody = people.iter().copied().chain(sentinel.then_some(("sentinel", 63_590, "sentinel", "")));
    for (name, uid, home, number) in everybody {
        let home = world.folder.join("homes/home").join(home);
        let number = if number.is_empty() { String::new() } else { format!("employeeNumber: {number}\n") };
        write!(
            text,
            "dn: uid={name},ou=people,dc=guests\nobjectClass: inetOrgPerson\nobjectClass: posixAccount\nuid: {name}\n\
             cn: {name}\nsn: {name}\nuidNumber: {uid}\ngidNumber: {PEOPLE_GID}\nhomeDirectory: {}\n{number}\n",
            home.display()
        )
        .expect("writing to a string cannot fail");
    }
    fs::write(world.folder.join("guests.ldif"), text).expect("the folder is writable");
}

fn active(world: &World) -> Vec<(String, String)> {
    let rows = world.rows("SELECT name, source FROM users WHERE state = 'active' ORDER BY name");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    rows.iter().map(|row| (text(&row["name"]), text(&row["source"]))).collect()
}

fn names(active: &[(String, String)]) -> Vec<&str> {
    active.iter().map(|(name, _)| name.as_str()).filter(|name| !["sentinel", "novaadmin"].contains(name)).collect()
}

fn why(world: &World, name: &str) -> String {
    let query = format!("SELECT why FROM rejected_entry WHERE source = 'guests' AND name = '{name}'");
    let rows = world.rows(sqlx::AssertSqlSafe(query));
    rows.first().and_then(|row| row["why"].as_str()).unwrap_or_default().to_owned()
}

fn partial(report: &CycleReport) -> Vec<&str> {
    report.partial.keys().map(String::as_str).collect()
}

#[test]
fn each_source_decides_about_its_people_and_one_person_has_one_account() {
    let mut world = World::new("sources");
    let more = MORE.replace("@FOLDER@", &world.folder.display().to_string());
    world.configure("[source.groups]", "[source.attributes]\nperson = \"employeeNumber\"\n[source.groups]");
    let text = fs::read_to_string(world.config()).expect("the world has a configuration");
    fs::write(world.config(), text + &more).expect("the folder is writable");
    for (name, uid) in ["ann", "ben", "fay"].into_iter().zip(63_501..) {
        world.make_home("home", name, uid, PEOPLE_GID);
        world.add(&person_ldif(&world.base, name, uid));
    }
    let slapd = &Servers::shared().slapd;
    slapd.modify_ldif(&replace_ldif(&person_dn(&world.base, "ann"), "employeeNumber", &["A-1"]));
    for (name, uid) in [("carol", 63_511), ("dora", 63_512), ("sentinel", 63_590)] {
        world.make_home("home", name, uid, PEOPLE_GID);
    }
    let smith: Guest<'_> = ("asmith", 63_501, "ann", "a-1");
    let carol: Guest<'_> = ("carol", 63_511, "carol", "C-3");
    let dora: Guest<'_> = ("dora", 63_512, "dora", "");
    // The name of ben and the uid of eve belong to people of the first source.
    let (ben, eve): (Guest<'_>, Guest<'_>) = (("ben", 63_513, "x", ""), ("eve", 63_503, "y", ""));
    guests(&world, &[smith, carol, dora, ben, eve], true);
    let report = world.cycle();
    assert!(report.failing.is_empty(), "{report:#?}");
    assert_eq!(names(&active(&world)), ["ann", "ben", "carol", "dora", "fay"]);
    assert!(why(&world, "ben").contains("comes from source people"), "{}", why(&world, "ben"));
    assert!(why(&world, "eve").contains("uid 63503 is held by"), "{}", why(&world, "eve"));
    assert_eq!(why(&world, "asmith"), "", "she has an account in the first source");

    // The first source is down. Its people stay, nobody takes over their names, and people of the other source still
    // come and go.
    let right = fs::read_to_string(world.config()).expect("the world has a configuration");
    let url = Servers::shared().slapd.ldaps_url.clone();
    world.configure(&url, &format!("ldaps://127.0.0.1:{}", bursar_testkit::ports::free_port()));
    guests(&world, &[smith, carol], true);
    let report = world.cycle();
    assert_eq!(partial(&report), ["people"]);
    assert_eq!(names(&active(&world)), ["ann", "ben", "carol", "fay"]);
    assert_eq!(why(&world, "asmith"), "");

    // The second source is partial: only its own people are kept.
    world.stop();
    fs::write(world.config(), &right).expect("the folder is writable");
    guests(&world, &[smith], false);
    slapd.delete(&person_dn(&world.base, "fay"));
    let report = world.cycle();
    assert_eq!(partial(&report), ["guests"]);
    assert_eq!(names(&active(&world)), ["ann", "ben", "carol"]);

    // Ann leaves the first source. She counts as absent although the second source has her, until an order gives her
    // account to the entry there.
    guests(&world, &[smith, carol, dora], true);
    slapd.delete(&person_dn(&world.base, "ann"));
    world.cycle();
    world.cycle();
    assert_eq!(names(&active(&world)), ["ben", "carol", "dora"]);
    assert!(why(&world, "asmith").ends_with("bursar adopt account user ann"), "{}", why(&world, "asmith"));
    let before = world.rows("SELECT id, uid FROM users WHERE name = 'ann'");
    let target = Target { kind: AccountKind::User, name: "ann".to_owned(), reason: None, ticket: None };
    let report = world.order(&OrderRequest::AdoptAccount(target)).expect("the order is accepted");
    assert!(report.failing.is_empty(), "{report:#?}");
    let after = world.rows("SELECT id, uid, source, state FROM users WHERE name = 'asmith'");
    assert_eq!((&after[0]["id"], &after[0]["uid"]), (&before[0]["id"], &before[0]["uid"]));
    assert_eq!((after[0]["source"].as_str(), after[0]["state"].as_str()), (Some("guests"), Some("active")));
    assert_eq!(why(&world, "asmith"), "");
}

#[test]
fn a_directory_that_hangs_delays_no_other() {
    // This server accepts connections but never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("the system has a free port");
    let url = format!("ldap://{}", silent.local_addr().expect("a listener has an address"));
    let more = format!(
        "\n[[source]]\nname = \"slow\"\ntype = \"ldap\"\nurls = [{url:?}]\nallow_plaintext = true\ntimeout = \"20m\"\n\
         [source.users]\nbase = \"ou=people,dc=slow\"\n"
    );
    let mut world = World::with("slowsrc", &more);
    for (tool, uid) in [("foo", 63_581), ("bar", 63_582)] {
        world.tool(tool, uid, &[]);
        // A scheduled cycle waits 2 s for a source.
        wait_for("the tool of the other source is active", DEADLINE, || {
            let report = world.cycle_by(Trigger::Schedule);
            let rows = world.rows("SELECT name, state FROM tools");
            let is_active = rows.iter().any(|row| row["name"] == tool && row["state"] == "active");
            (report.partial.is_empty() && is_active).then_some(())
        });
    }
    let status = world.status();
    assert_eq!(status.sources.keys().collect::<Vec<_>>(), ["people"], "the slow source has not been read yet");
    assert_eq!(status.reading.get("slow"), Some(&0), "{:?}", status.reading);
}
