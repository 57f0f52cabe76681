//! Workspaces: a namespace for each group of the directory, in which its members work with their own credentials.

use std::os::unix::fs::MetadataExt as _;
use std::process::Output;
use std::time::Duration;

use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, Target};
use bursar_testkit::Servers;
use bursar_testkit::ldif::{group_of_names_ldif, person_dn, posix_group_ldif, replace_ldif};
use bursar_testkit::ready::{DEADLINE, poll};

use crate::world::{World, all_is_well};

const CLASSES: &str = r#"
[limits]
remove_members_per_cycle = { count = 9 }
remove_members_per_day   = { count = 9 }
[class.person]
from       = "users"
clusters   = ["test"]
namespace  = "course-u-{name}"
home       = { prefix = "@HOMES@", kubeconfig = ".kube/config" }
roles      = ["bursar-tenant"]
credential = { kind = "certificate", lifetime = "7d", endpoints = ["internal"] }
[class.course]
from          = "groups"
clusters      = ["test"]
namespace     = "course-w-{name}"
member_roles  = ["view"]
manager_roles = ["view", "bursar-tenant"]
managers      = "owner"
quota         = { pods = "7" }
volumes       = [{ name = "work", kind = "shared", nfs = { server = "nfs.example.org", path = "/srv/{name}" }, directory = "@VOLUMES@/{name}" }]
"#;

fn as_person(world: &World, person: &str, arguments: &[&str]) -> Output {
    world.kubectl_with(&world.kubeconfig_of(person), arguments)
}

/// Returns whether a person may use this verb on config maps of the workspace.
fn may(world: &World, person: &str, verb: &str, workspace: &str) -> bool {
    let namespace = format!("course-w-{workspace}");
    let output = as_person(world, person, &["auth", "can-i", verb, "configmaps", "-n", &namespace]);
    String::from_utf8_lossy(&output.stdout).trim() == "yes"
}

fn dn(world: &World, group: &str) -> String {
    format!("cn={group},ou=groups,{}", world.base)
}

#[test]
fn members_of_a_group_work_in_its_namespace_with_their_own_credentials() {
    let mut world = World::new("course");
    let homes = world.folder.join("homes/home").display().to_string();
    let volumes = world.folder.join("homes/volumes");
    let classes = CLASSES.replace("@HOMES@", &homes).replace("@VOLUMES@", &volumes.display().to_string());
    world.configure("[class.admin]", &format!("{classes}[class.admin]"));
    // These names occur in no other test: all ledgers of these tests share one cluster and count their generations from
    // 1.
    for (person, uid) in ["ada", "boole", "cantor", "dirac"].into_iter().zip(63_201..) {
        world.person(person, uid);
    }
    let slapd = &Servers::shared().slapd;
    world.group("algebra", &["ada", "cantor"]);
    slapd.modify_ldif(&replace_ldif(&dn(&world, "algebra"), "owner", &[&person_dn(&world.base, "cantor")]));
    // Group algebra is a member of group maths, and boole is a direct member of maths.
    let members = [dn(&world, "algebra"), person_dn(&world.base, "boole")];
    world.add(&group_of_names_ldif(&dn(&world, "maths"), "maths", &members));
    world.add(&posix_group_ldif(&world.base, "lab", 63_290, &["boole", "dirac"]));
    // The admission policy that `init` has just created again takes effect only after a while.
    let settled = poll(DEADLINE, || world.cycle().exit_code() == 0);
    assert!(settled, "{:?}", world.rows("SELECT * FROM failing"));

    for (person, algebra, maths) in [("ada", true, true), ("boole", false, true), ("dirac", false, false)] {
        assert_eq!(
            (may(&world, person, "get", "algebra"), may(&world, person, "get", "maths")),
            (algebra, maths),
            "{person}"
        );
        assert!(!may(&world, person, "create", "algebra"), "{person}");
    }
    assert!(may(&world, "cantor", "create", "algebra"), "cantor manages algebra");
    assert!(!may(&world, "cantor", "create", "maths"), "cantor is only a member of maths");
    let quota =
        world.kubectl(&["get", "quota", "bursar", "-n", "course-w-algebra", "-o", "jsonpath={.spec.hard.pods}"]);
    assert_eq!(quota, "7");
    let rows = world.rows("SELECT account, namespace FROM namespaces WHERE class = 'course' ORDER BY 1");
    assert_eq!(rows.len(), 3, "{rows:?}");
    // homed makes the shared directory for all members, as one of them. Without a gid, an administrator makes it on the
    // file server.
    let shared = std::fs::metadata(volumes.join("lab")).expect("homed made the directory of the group with a gid");
    assert!([63_202, 63_204].contains(&shared.uid()), "{}", shared.uid());
    assert_eq!((shared.gid(), shared.mode() & 0o7777), (63_290, 0o2770));
    assert!(!volumes.join("algebra").exists());
    world.kubectl(&["get", "pvc", "work", "-n", "course-w-lab"]);
    assert_eq!(world.rows("SELECT gid FROM account WHERE name = 'lab'")[0]["gid"], 63_290);
    assert_eq!(
        (rows[0]["account"].as_str(), rows[0]["namespace"].as_str()),
        (Some("group:algebra"), Some("course-w-algebra"))
    );
    let access = world.rows("SELECT DISTINCT member, role FROM access_on WHERE account = 'group:algebra' ORDER BY 1");
    assert_eq!(access.len(), 2, "{access:?}");
    assert_eq!((access[1]["member"].as_str(), access[1]["role"].as_str()), (Some("user:cantor"), Some("manager")));
    assert_eq!(world.cycle().actions, 0);

    // A suspended person loses access to the workspace too, and gets it back.
    let target = |reason: &str| Target {
        kind: AccountKind::User,
        name: "cantor".to_owned(),
        reason: Some(reason.to_owned()),
        ticket: None,
    };
    let kept = world.folder.join("kept.kubeconfig");
    std::fs::copy(world.kubeconfig_of("cantor"), &kept).expect("the kubeconfig can be copied");
    let with_copy = |world: &World| {
        let arguments = ["auth", "can-i", "get", "configmaps", "-n", "course-w-algebra"];
        String::from_utf8_lossy(&world.kubectl_with(&kept, &arguments).stdout).trim().to_owned()
    };
    assert_eq!(with_copy(&world), "yes");
    world.order(&OrderRequest::Suspend(target("away"))).expect("the order is accepted");
    assert_eq!(with_copy(&world), "no");
    world.order(&OrderRequest::Resume(target("back"))).expect("the order is accepted");
    let back = poll(DEADLINE, || {
        world.cycle();
        may(&world, "cantor", "create", "algebra")
    });
    assert!(back, "{:?}", world.rows("SELECT * FROM failing"));
    assert_eq!(with_copy(&world), "no", "the copy has the former generation");

    // One person leaves the group, and another is no longer its manager.
    slapd.modify_ldif(&replace_ldif(&dn(&world, "algebra"), "member", &[&person_dn(&world.base, "cantor")]));
    slapd.modify_ldif(&format!("dn: {}\nchangetype: modify\ndelete: owner\n\n", dn(&world, "algebra")));
    all_is_well(&world.cycle());
    // The API server learns of bindings through its own watch, so the test waits.
    let gone = poll(DEADLINE, || {
        !may(&world, "ada", "get", "algebra")
            && !may(&world, "ada", "get", "maths")
            && !may(&world, "cantor", "create", "algebra")
    });
    assert!(gone);
    assert!(may(&world, "cantor", "get", "algebra"));
    check_a_failing_group_keeps_no_suspended_member(&mut world);
}

fn check_a_failing_group_keeps_no_suspended_member(world: &mut World) {
    let kept = world.folder.join("kept-again.kubeconfig");
    std::fs::copy(world.kubeconfig_of("cantor"), &kept).expect("the kubeconfig can be copied");
    world.kubectl(&["delete", "quota", "bursar", "-n", "course-w-algebra"]);
    world.kubectl(&["create", "quota", "bursar", "--hard=pods=1", "-n", "course-w-algebra"]);
    let waits = poll(DEADLINE, || {
        world.cycle();
        let failing = world.rows("SELECT attempts FROM failing WHERE account = 'group:algebra'");
        failing.first().is_some_and(|row| row["attempts"].as_u64() > Some(1))
    });
    assert!(waits, "{:?}", world.rows("SELECT * FROM failing"));
    let reason = Some("left the site".to_owned());
    let target = Target { kind: AccountKind::User, name: "cantor".to_owned(), reason, ticket: None };
    world.order(&OrderRequest::Suspend(target)).expect("the order is accepted");
    let arguments = ["auth", "can-i", "get", "configmaps", "-n", "course-w-algebra"];
    let refused = poll(Duration::from_secs(5), || {
        String::from_utf8_lossy(&world.kubectl_with(&kept, &arguments).stdout).trim() == "no"
    });
    assert!(refused, "the member's removal waits for the retry of the group");
}

#[test]
fn each_workspace_has_its_own_uid_and_a_used_up_range_affects_only_new_ones() {
    let mut world = World::new("wsuid");
    let class = r#"
[class.course]
from          = "groups"
clusters      = ["test"]
namespace     = "wsuid-w-{name}"
uid_range     = [63701, 63702]
[class.admin]"#;
    world.configure("[class.admin]", class);
    let annotation = |world: &World, group: &str, key: &str| {
        let path = format!("jsonpath={{.metadata.annotations.bursar\\.dev/{key}}}");
        world.kubectl(&["get", "namespace", &format!("wsuid-w-{group}"), "-o", &path])
    };
    world.person("emmy", 63_711);
    world.add(&posix_group_ldif(&world.base, "optics", 63_721, &["emmy"]));
    let settled = poll(DEADLINE, || world.cycle().exit_code() == 0);
    assert!(settled, "{:?}", world.rows("SELECT * FROM failing"));
    assert_eq!(["uid", "gid"].map(|key| annotation(&world, "optics", key)), ["63701", "63721"]);

    // The range has one uid left for two new groups. A person cannot have a uid of that range.
    world.add(&posix_group_ldif(&world.base, "waves", 63_722, &["emmy"]));
    world.cycle();
    world.add(&posix_group_ldif(&world.base, "zeta", 63_723, &["emmy"]));
    world.person("noether", 63_702);
    world.cycle();
    assert_eq!(annotation(&world, "waves", "uid"), "63702");
    let shown = world.plan().text;
    assert!(shown.contains("uid_range 63701-63702 of class course is used up"), "{shown}");
    let rejected = world.rows("SELECT name, why FROM rejected_entry WHERE name = 'noether'");
    assert!(rejected[0]["why"].as_str().is_some_and(|why| why.contains("which is for workspaces")), "{rejected:?}");
    let rows = world.rows("SELECT namespace, uid FROM namespaces WHERE class = 'course' ORDER BY 1");
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!((rows[0]["uid"].as_i64(), rows[1]["uid"].as_i64()), (Some(63_701), Some(63_702)));
    assert_eq!(annotation(&world, "optics", "uid"), "63701");
}
