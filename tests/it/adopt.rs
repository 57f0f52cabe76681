//! If a foreign object has the name of a tenant's object, or a uid or an entry in the directory is replaced, Bursar
//! adopts nothing until an administrator orders it.

use std::os::unix::fs::chown;

use bursar::identity::AccountKind;
use bursar::orders::request::{AdoptObject, OrderRequest, Target};
use bursar_testkit::Servers;
use bursar_testkit::ldif::{person_dn, person_ldif, replace_ldif, tool_account_dn, tool_account_ldif};
use bursar_testkit::ready::{DEADLINE, poll};

use crate::world::World;

fn target(reason: Option<&str>) -> Target {
    Target { kind: AccountKind::Tool, name: "foo".to_owned(), reason: reason.map(str::to_owned), ticket: None }
}

#[test]
fn a_changed_uid_is_adopted_by_order_and_the_home_must_be_given_to_it() {
    let (old, new) = (63_061, 63_062);
    let mut world = World::new("newuid");
    world.tool("foo", old, &[]);
    let first = world.cycle();
    assert_eq!(first.exit_code(), 0);
    let namespace = world.namespace("foo");
    let annotation = r"jsonpath={.metadata.annotations.bursar\.dev/uid}";
    let uid_in_cluster = |world: &World| world.kubectl(&["get", "namespace", &namespace, "-o", annotation]);
    let refusal = world.order(&OrderRequest::AdoptUid(target(None))).expect_err("no other uid waits for adoption");
    assert!(refusal.text.contains("no other uid"), "{}", refusal.text);

    let account = tool_account_dn(&world.base, "foo");
    Servers::shared().slapd.modify_ldif(&replace_ldif(&account, "uidNumber", &[&new.to_string()]));
    assert_eq!(world.cycle().rejected, first.rejected + 1);
    assert_eq!(uid_in_cluster(&world), old.to_string());
    let plan = world.plan();
    assert!(plan.text.contains("bursar adopt uid tool foo"), "{}", plan.text);

    let report = world.order(&OrderRequest::AdoptUid(target(None))).expect("the order is carried out");
    assert_eq!(report.rejected, first.rejected, "{report:#?}");
    assert_eq!(uid_in_cluster(&world), new.to_string());
    assert_eq!(world.rows("SELECT uid FROM tools")[0]["uid"], new);
    let told = world.rows("SELECT actor, detail FROM history WHERE action = 'uid adopted'");
    assert_eq!(told[0]["actor"], "root");

    // The home still belongs to the old uid. Nothing is written there until an administrator gives it to the new uid.
    world.order(&OrderRequest::Revoke(target(Some("a test")))).expect("the order is accepted");
    let failing = world.rows("SELECT step, reason FROM failing");
    assert_eq!(failing.len(), 1, "{failing:?}");
    for path in [world.home("foo"), world.home("foo").join(".kube"), world.kubeconfig("foo")] {
        chown(path, Some(new), Some(old)).expect("tests run as root, who may change owners");
    }
    assert!(poll(DEADLINE, || world.cycle().exit_code() == 0), "{:?}", world.rows("SELECT * FROM failing"));
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success());

    // The old uid is never given to another account.
    world.tool("bar", old, &[]);
    assert_eq!(world.cycle().rejected, first.rejected + 1);
    assert_eq!(world.rows("SELECT * FROM tools WHERE name = 'bar'").len(), 0);
}

#[test]
fn an_entry_that_was_created_again_gets_its_account_back_by_order() {
    let mut world = World::new("anew");
    world.person("alice", 63_071);
    world.tool("foo", 63_072, &["alice"]);
    let first = world.cycle();
    assert_eq!(first.exit_code(), 0);
    let known = "SELECT id, uid, namespace, generation FROM tools";
    let before = world.rows(known);
    let ids = |world: &World| world.rows("SELECT directory_id FROM users WHERE name = 'alice'");
    let alice = ids(&world);
    let refusal =
        world.order(&OrderRequest::AdoptAccount(target(None))).expect_err("no other entry waits for adoption");
    assert!(refusal.text.contains("no other entry"), "{}", refusal.text);

    let slapd = &Servers::shared().slapd;
    for dn in [tool_account_dn(&world.base, "foo"), person_dn(&world.base, "alice")] {
        slapd.delete(&dn);
    }
    world.add(&tool_account_ldif(&world.base, "foo", 63_072, "/data/project/foo"));
    world.add(&person_ldif(&world.base, "alice", 63_071));
    assert_eq!(world.cycle().rejected, first.rejected + 2);
    let plan = world.plan();
    assert!(plan.text.contains("bursar adopt account tool foo"), "{}", plan.text);
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success(), "the tool keeps its access meanwhile");

    let person = Target { kind: AccountKind::User, name: "alice".to_owned(), ..target(None) };
    world.order(&OrderRequest::AdoptAccount(person)).expect("the order is carried out");
    let report = world.order(&OrderRequest::AdoptAccount(target(None))).expect("the order is carried out");
    assert_eq!(report.rejected, first.rejected, "{report:#?}");
    assert_eq!(world.rows("SELECT actor FROM history WHERE action = 'account adopted'").len(), 2);
    let after = world.rows(known);
    assert_eq!((&after[0]["id"], &after[0]["uid"]), (&before[0]["id"], &before[0]["uid"]));
    assert_eq!(after[0]["namespace"], before[0]["namespace"]);
    assert_ne!(ids(&world), alice);
    // The access list names a member who has left, although the entry of that member is gone.
    let members = world.rows("SELECT DISTINCT member FROM access_on WHERE account = 'tool:foo'");
    assert_eq!(members.len(), 1, "{members:?}");
    assert_eq!(members[0]["member"], "user:alice");
    assert!(poll(DEADLINE, || world.cycle().actions == 0), "{}", world.plan().text);
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success());
}

fn order(world: &mut World, object: &str, owner: Option<&str>) -> Result<bursar::control::api::CycleReport, String> {
    let owner = owner.map(|owner| owner.parse().expect("the test names a valid account"));
    let wanted = AdoptObject { object: object.to_owned(), owner, reason: Some("moved here".to_owned()), ticket: None };
    world.order(&OrderRequest::AdoptObject(wanted)).map_err(|refusal| refusal.text)
}

fn reason(world: &World) -> String {
    let rows = world.rows("SELECT reason FROM failing");
    rows.first().and_then(|row| row["reason"].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn a_foreign_object_is_adopted_by_order_if_somebody_labels_it_in_the_cluster() {
    let mut world = World::new("takes");
    world.tool("foo", 63_081, &[]);
    world.tool("bar", 63_082, &[]);
    let namespace = world.namespace("foo");
    world.kubectl(&["create", "namespace", &namespace]);
    world.kubectl(&["create", "quota", "bursar", "--hard=pods=99", "-n", &namespace]);
    world.kubectl(&["create", "configmap", "data", "--from-literal=key=value", "-n", &namespace]);
    let uid = world.kubectl(&["get", "namespace", &namespace, "-o", "jsonpath={.metadata.uid}"]);
    assert_eq!(world.cycle().exit_code(), 1);
    assert!(reason(&world).contains(&format!("`bursar adopt namespace {namespace}`")), "{}", reason(&world));

    let object = format!("namespace {namespace}");
    let refusal = order(&mut world, &object, Some("tool:bar")).expect_err("the namespace blocks another account");
    assert!(refusal.contains("blocks no account"), "{refusal}");
    // An order alone is not enough: somebody who may label the object must agree.
    order(&mut world, &object, Some("tool:foo")).expect("the order is accepted");
    assert!(
        reason(&world).contains("bursar-cage") && reason(&world).contains("bursar.dev/adopt"),
        "{}",
        reason(&world)
    );
    world.kubectl(&["label", "namespace", &namespace, "bursar.dev/adopt=true"]);
    let told = "SELECT * FROM history WHERE action = 'object to be adopted'";
    assert_eq!(world.rows(told).len(), 1);
    // The namespace is still foreign. The daemon tries again when a retry is due, or on an order.
    let met = poll(DEADLINE, || {
        world.cycle();
        reason(&world).contains("`bursar adopt namespace")
    });
    assert!(met, "{}", reason(&world));
    order(&mut world, &object, Some("tool:foo")).expect("the order is accepted");

    let quota = format!("`bursar adopt object resourcequota {namespace}/bursar`");
    assert!(reason(&world).contains(&quota), "{}", reason(&world));
    assert_eq!(world.kubectl(&["get", "namespace", &namespace, "-o", "jsonpath={.metadata.uid}"]), uid);
    order(&mut world, &format!("resourcequota {namespace}/bursar"), None).expect("the order is accepted");
    let well = poll(DEADLINE, || world.cycle().exit_code() == 0);
    assert!(well, "{}", reason(&world));
    assert_eq!(world.kubectl(&["get", "quota", "bursar", "-n", &namespace, "-o", "jsonpath={.spec.hard.pods}"]), "16");
    assert_eq!(world.kubectl(&["get", "configmap", "data", "-n", &namespace, "-o", "jsonpath={.data.key}"]), "value");
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success());
    let adopted = world.rows("SELECT detail FROM history WHERE account = 'tool:foo' AND detail LIKE '%\"adopted\"%'");
    assert_eq!(adopted.len(), 2, "{adopted:?}");
    assert!(poll(DEADLINE, || world.cycle().actions == 0), "{}", world.plan().text);
}
