//! The roles that our service account needs. If one is missing, the report names it, and everything else works.

use bursar_testkit::ldif::{group_of_names_ldif, person_dn};
use serde_json::json;

use super::{SECRET, WORKSPACES, client, connection, give, realm, roles, set, user, world};
use crate::world::{World, all_is_well};

fn site(name: &'static str, rights: &[&str], secret: &str) -> (crate::keycloak::Realm, World) {
    let realm = realm(name, &[], rights);
    let own = connection(&realm, &realm.server.url, secret);
    let world = world(name, &format!("[realm]\nclient = \"{WORKSPACES}\"\n{own}"));
    let person = format!("{name}-ada");
    world.person(&person, 64_300);
    let dn = format!("cn={name}-lab,ou=groups,{}", world.base);
    world.add(&group_of_names_ldif(&dn, &format!("{name}-lab"), &[person_dn(&world.base, &person)]));
    (realm, world)
}

/// Checks that nothing is done in the realm for this reason, and that everything else is done.
#[track_caller]
fn nothing_there(world: &mut World, why: &str) {
    let report = world.cycle();
    let said = report.realm.clone().unwrap_or_default();
    assert!(said.contains(why), "{report:#?}");
    assert_eq!((report.exit_code(), report.failing.len()), (1, 0), "{report:#?}");
    let kubeconfig = world.kubeconfig_of(&format!("{}-ada", world.name));
    assert!(world.works(&kubeconfig), "access to the cluster does not depend on the realm");
    let status = world.status().realm.expect("the status has a realm");
    assert!(status.trouble.is_some_and(|trouble| trouble.why.contains(why)));
    assert!(world.metrics().contains("bursar_realm_failing 1\n"));
    let doctor = world.bursar("doctor");
    assert!(doctor.contains(&format!("! realm {}: ", world.name)), "{doctor}");
}

#[test]
fn if_users_cannot_be_written_the_missing_role_is_named() {
    let (_realm, mut world) = site("rru", &["view-users", "manage-clients"], SECRET);
    nothing_there(&mut world, "the service account of client bursar needs the role manage-users of realm-management");
}

#[test]
fn if_clients_cannot_be_read_the_missing_role_is_named() {
    let (_realm, mut world) = site("rrc", &["manage-users"], SECRET);
    nothing_there(&mut world, "the service account of client bursar needs the role view-clients of realm-management");
}

#[test]
fn a_wrong_secret_and_a_missing_client_are_reported() {
    let (realm, mut world) = site("rrs", &["manage-users", "view-clients"], "another");
    nothing_there(&mut world, "login of client bursar refused");
    connection(&realm, &realm.server.url, SECRET);
    world.configure(&format!("client = \"{WORKSPACES}\""), "client = \"elsewhere\"");
    nothing_there(&mut world, "there is no client \"elsewhere\" in the realm");
    for file in ["ledger.db", "ledger.db-wal"] {
        let bytes = std::fs::read(world.state_dir().join(file)).unwrap_or_default();
        assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "{file}");
    }
}

#[test]
fn a_client_that_cannot_create_roles_assigns_existing_ones() {
    let (realm, mut world) = site("rrm", &["manage-users", "view-clients"], SECRET);
    let report = world.cycle();
    let [failing] = report.failing.as_slice() else { panic!("{report:#?}") };
    assert_eq!((failing.account.name.as_str(), failing.step.as_str()), ("rrm-lab", "realm role"));
    let remedy = "needs the role manage-clients of realm-management; or create the role yourself";
    assert!(failing.reason.contains(remedy), "{}", failing.reason);
    assert_eq!(user(&realm, "rrm-ada")["enabled"], true, "the users themselves are created");
    for role in ["member", "manager"] {
        let path = format!("/clients/{}/roles", client(&realm));
        realm.ask("POST", &path, &json!({"name": format!("workspace-rrm-lab:{role}")}));
    }
    all_is_well(&world.cycle());
    assert_eq!(roles(&realm, "rrm-ada"), set(&["workspace-rrm-lab:member"]));
    give(&realm, "rrm-ada", "another", true);
    all_is_well(&world.cycle());
    assert_eq!(roles(&realm, "rrm-ada"), set(&["another", "workspace-rrm-lab:member"]));
    let doctor = world.bursar("doctor");
    assert!(
        doctor.contains("may not create roles: it lacks manage-clients, so an administrator must create them"),
        "{doctor}"
    );
}
