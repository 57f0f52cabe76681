//! From a realm to a kubeconfig: a person is enabled, disabled and renamed.

use bursar::orders::request::Trigger;
use bursar_testkit::Servers;
use serde_json::{Value, json};

use super::{CLIENT, Realm, SECRET, person};
use crate::world::{World, all_is_well};

/// A world with `realm` as a second source.
fn world(realm: &Realm, name: &str) -> World {
    let folder = Servers::shared().folder().join(name);
    std::fs::create_dir_all(&folder).expect("the parent folder is writable");
    let secret = folder.join("client-secret");
    std::fs::write(&secret, format!("{SECRET}\n")).expect("the folder is writable");
    let configuration = format!(
        r#"
[[source]]
name          = "sso"
type          = "keycloak"
url           = "{url}"
realm         = "{realm}"
ca            = "{ca}"
client_id     = "{CLIENT}"
client_secret = {{ file = "{secret}" }}

[limits]
suspend_per_day = {{ count = 20 }}

[class.person]
from         = "users"
when         = {{ group = "{name}-staff" }}
clusters     = ["test"]
namespace    = "{name}-p-{{name}}"
home         = {{ prefix = "{homes}", kubeconfig = ".kube/config", create = false }}
quota        = {{ pods = "4" }}
credential   = {{ kind = "certificate", lifetime = "7d", endpoints = ["internal"] }}
"#,
        url = realm.server.url,
        realm = realm.name,
        ca = realm.server.ca_pem.display(),
        secret = secret.display(),
        homes = folder.join("homes/home").display(),
    );
    World::with(name, &configuration)
}

fn state(world: &World, name: &str) -> Value {
    let rows = world.rows("SELECT name, state FROM users WHERE source = 'sso'");
    rows.iter().find(|row| row["name"] == name).map_or(Value::Null, |row| row["state"].clone())
}

#[test]
fn a_person_of_the_realm_loses_and_regains_access_with_the_enabled_flag() {
    let groups = json!({"name": "kcc-staff", "subGroups": [{"name": "kcc-lab"}]});
    let mut alice = person("kcc-alice", 43001, &["/kcc-staff/kcc-lab"]);
    // Without the attribute, her home would be derived from her name.
    let homes = Servers::shared().folder().join("kcc/homes/home");
    alice["attributes"]["homeDirectory"] = json!([homes.join("kcc-alice")]);
    let realm = Realm::new("cycle", &[alice, person("kcc-bob", 43002, &[])], &[groups]);
    let mut world = world(&realm, "kcc");
    let kubeconfig = world.make_home("home", "kcc-alice", 43001, 500);
    all_is_well(&world.cycle());
    assert!(world.works(&kubeconfig));
    let namespace = world.kubectl(&["get", "namespace", "kcc-p-kcc-alice", "-o", "yaml"]);
    assert!(namespace.contains("bursar.dev/uid: \"43001\""), "{namespace}");
    assert!(
        !world.kubectl(&["get", "namespaces"]).contains("kcc-p-kcc-bob"),
        "a person outside the group has no namespace"
    );
    let rows = world.rows("SELECT directory_id FROM users WHERE name = 'kcc-alice'");
    assert_eq!(rows[0]["directory_id"], realm.id("kcc-alice"));

    for (enabled, expected) in [(false, "suspended"), (true, "active")] {
        realm.change("kcc-alice", &json!({"enabled": enabled}));
        world.cycle();
        assert_eq!(state(&world, "kcc-alice"), expected);
        assert_eq!(world.works(&kubeconfig), enabled);
    }

    realm.ask("PUT", "", &json!({"editUsernameAllowed": true}));
    realm.change("kcc-alice", &json!({"username": "kcc-alicia"}));
    all_is_well(&world.cycle());
    assert_eq!((state(&world, "kcc-alice"), state(&world, "kcc-alicia")), (Value::Null, "active".into()));
    assert!(world.works(&kubeconfig), "the account keeps its namespace");

    world.configure("realm         = \"cycle\"", "realm         = \"cycles\"");
    let report = world.cycle();
    assert!(report.partial["sso"].contains("there is no realm \"cycles\""), "{:?}", report.partial);
    assert_eq!(state(&world, "kcc-alicia"), "active");
    for command in ["status", "doctor"] {
        let said = world.bursar(command);
        assert!(said.contains("see realm and url"), "{command}: {said}");
    }
    world.configure("realm         = \"cycles\"", "realm         = \"cycle\"");
    all_is_well(&world.cycle());
    for command in ["status", "doctor"] {
        let said = world.bursar(command);
        assert!(said.contains(": complete, 4 entries") || said.contains(": complete; 4 entries"), "{command}: {said}");
    }
    assert!(world.bursar("check").contains(": valid: 2 sources"), "{}", world.bursar("check"));
}

#[test]
fn on_schedule_a_realm_waits_for_its_interval() {
    let realm = Realm::new("interval", &[person("kci-alice", 43011, &[])], &[json!({"name": "kci-staff"})]);
    let mut world = world(&realm, "kci");
    world.configure("type          = \"keycloak\"", "type          = \"keycloak\"\ninterval      = \"5m\"");
    all_is_well(&world.cycle());
    let said = |world: &World| {
        let status = world.bursar("status");
        status.lines().find(|line| line.starts_with("source sso")).map(str::to_owned)
    };
    let before = said(&world);
    assert!(before.as_ref().is_some_and(|line| line.contains("complete; ")), "{before:?}");
    realm.ask("DELETE", &format!("/users/{}", realm.id("kci-alice")), &Value::Null);
    realm.ask("POST", "/users", &person("kci-bob", 43012, &[]));
    all_is_well(&world.cycle_by(Trigger::Schedule));
    assert_eq!(said(&world), before, "the realm was not read, and its last state is still shown");
    assert_eq!((state(&world, "kci-alice"), state(&world, "kci-bob")), ("new".into(), Value::Null));
    all_is_well(&world.cycle_by(Trigger::Sync));
    assert_eq!(state(&world, "kci-bob"), "new");
}
