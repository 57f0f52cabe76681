//! A real Keycloak as a target: people and groups of a directory become users and roles.

mod mail;
mod rights;
mod trouble;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, Target, Trigger};
use bursar_testkit::Servers;
use bursar_testkit::ldif::{group_of_names_ldif, person_dn, replace_ldif};
use bursar_testkit::ready::{DEADLINE, poll};
use serde_json::{Value, json};

use crate::keycloak::{CLIENT, Realm, SECRET, person};
use crate::world::{World, all_is_well};

/// The client whose roles Bursar maintains.
const WORKSPACES: &str = "workspaces";
/// The roles that our service account needs if Bursar also creates the client's roles.
const RIGHTS: [&str; 2] = ["manage-users", "manage-clients"];

/// Makes a realm with a client for workspaces. Its service account has these roles of `realm-management`.
fn realm(name: &'static str, users: &[Value], rights: &[&str]) -> Realm {
    let realm = Realm::with(name, users, &[], None, rights);
    realm.ask("POST", "/clients", &json!({"clientId": WORKSPACES, "standardFlowEnabled": false}));
    realm
}

/// Returns the lines of `[realm]` that say how it is reached.
fn connection(realm: &Realm, url: &str, secret: &str) -> String {
    let folder = Servers::shared().folder().join(format!("realm-{}", realm.name));
    std::fs::create_dir_all(&folder).expect("the parent folder is writable");
    let file = folder.join("secret");
    std::fs::write(&file, secret).expect("the folder is writable");
    let mut text = format!("url = \"{url}\"\nrealm = \"{}\"\nclient_id = \"{CLIENT}\"\n", realm.name);
    writeln!(text, "client_secret = {{ file = \"{}\" }}", file.display()).expect("writing to a string cannot fail");
    if url.starts_with("https") {
        writeln!(text, "ca = \"{}\"", realm.server.ca_pem.display()).expect("writing to a string cannot fail");
    } else {
        text.push_str("allow_plaintext = true\n");
    }
    text
}

/// Makes a world with people and workspaces, and with more lines of configuration.
fn world(name: &str, more: &str) -> World {
    let homes = Servers::shared().folder().join(name).join("homes/home");
    let classes = format!(
        r#"
[limits]
remove_members_per_cycle = {{ count = 9 }}
remove_members_per_day   = {{ count = 9 }}
suspend_per_cycle        = {{ count = 9 }}
suspend_per_day          = {{ count = 99 }}
realm_disable_per_cycle  = {{ count = 1 }}
realm_remove_roles_per_cycle = {{ count = 9 }}
realm_remove_roles_per_day   = {{ count = 99 }}
[class.person]
from       = "users"
clusters   = ["test"]
namespace  = "{name}-u-{{name}}"
home       = {{ prefix = "{}", kubeconfig = ".kube/config" }}
roles      = ["bursar-tenant"]
credential = {{ kind = "certificate", lifetime = "7d", endpoints = ["internal"] }}
[class.course]
from          = "groups"
clusters      = ["test"]
namespace     = "{name}-w-{{name}}"
# The admission policy of every world knows this role; another one would take effect only after a delay.
member_roles  = ["bursar-tenant"]
manager_roles = ["bursar-tenant"]
managers      = "owner"
"#,
        homes.display()
    );
    World::with(name, &(classes + more))
}

/// Returns a user of the realm, as its administrators see it.
fn user(realm: &Realm, name: &str) -> Value {
    realm.ask("GET", &format!("/users?exact=true&username={name}"), &Value::Null)[0].clone()
}

/// Returns the roles of the client that a user has.
fn roles(realm: &Realm, name: &str) -> BTreeSet<String> {
    let client = client(realm);
    let path = format!("/users/{}/role-mappings/clients/{client}", realm.id(name));
    let roles = realm.ask("GET", &path, &Value::Null);
    roles
        .as_array()
        .expect("the value is a list")
        .iter()
        .map(|role| role["name"].as_str().expect("a name is a string").to_owned())
        .collect()
}

fn client(realm: &Realm) -> String {
    let found = realm.ask("GET", &format!("/clients?clientId={WORKSPACES}"), &Value::Null);
    found[0]["id"].as_str().expect("the value is a string").to_owned()
}

/// Assigns a role to a user, as an administrator of the realm would. If `make` is true, creates the role first.
fn give(realm: &Realm, name: &str, role: &str, make: bool) {
    let client = client(realm);
    if make {
        realm.ask("POST", &format!("/clients/{client}/roles"), &json!({"name": role}));
    }
    let role = realm.ask("GET", &format!("/clients/{client}/roles/{role}"), &Value::Null);
    realm.ask("POST", &format!("/users/{}/role-mappings/clients/{client}", realm.id(name)), &json!([role]));
}

/// Returns how many reads and writes the world has sent to the realm.
fn requests(world: &mut World, realm: &Realm) -> (u64, u64) {
    let text = world.metrics();
    let count = |verb: &str| {
        let line = format!("bursar_api_requests_total{{cluster=\"realm:{}\",verb=\"{verb}\"}} ", realm.name);
        let found = text.lines().find_map(|it| it.strip_prefix(line.as_str()));
        found.map_or(0, |number| number.parse::<u64>().expect("the value is a number"))
    };
    (count("get"), count("create") + count("update") + count("delete"))
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn target(name: &str) -> Target {
    Target { kind: AccountKind::User, name: name.to_owned(), reason: Some("a test".to_owned()), ticket: None }
}

#[test]
fn people_and_workspaces_of_a_directory_become_users_and_roles_of_the_realm() {
    // One existing user has the name of a person in the directory, the other one does not. Bursar must change neither
    // of them.
    let strangers = ["rlm-gauss", "rlm-euler"].map(|name| json!({"username": name, "enabled": true}));
    let realm = realm("rlm", &strangers, &RIGHTS);
    give(&realm, "rlm-euler", "editor", true);
    give(&realm, "rlm-euler", "workspace-foreign:manager", true);
    let own = connection(&realm, &realm.server.url, SECRET);
    let required = "required_actions = [\"UPDATE_PASSWORD\"]\n";
    let mut world = world("rlm", &format!("[realm]\nclient = \"{WORKSPACES}\"\n{own}{required}"));
    for (person, uid) in ["rlm-ada", "rlm-gauss", "rlm-emmy"].into_iter().zip(64_001..) {
        world.person(person, uid);
    }
    let dn = format!("cn=rlm-algebra,ou=groups,{}", world.base);
    let members = ["rlm-ada", "rlm-gauss", "rlm-emmy"].map(|name| person_dn(&world.base, name));
    world.add(&group_of_names_ldif(&dn, "rlm-algebra", &members));
    let slapd = &Servers::shared().slapd;
    slapd.modify_ldif(&replace_ldif(&dn, "owner", &[&person_dn(&world.base, "rlm-emmy")]));

    // The plan shows the changes before they are made.
    let plan = world.plan();
    assert_eq!(plan.exit_code, 2);
    let line = "+ user rlm-ada  realm rlm: user created, to do UPDATE_PASSWORD, workspace-rlm-algebra:member given";
    assert!(plan.text.contains(line), "{}", plan.text);
    let actions = plan.plan["actions"].as_array().expect("the value is a list");
    let made = actions.iter().filter(|action| action["action"] == "realm-create").count();
    assert_eq!(made, 2, "{}", plan.text);

    all_is_well(&world.cycle());
    let ada = user(&realm, "rlm-ada");
    assert_eq!((&ada["enabled"], &ada["email"]), (&json!(true), &json!("rlm-ada@example.org")));
    assert_eq!((&ada["firstName"], &ada["lastName"]), (&json!("Rlm-ada"), &json!("Example")));
    assert_eq!(ada["requiredActions"], json!(["UPDATE_PASSWORD"]));
    assert_eq!(roles(&realm, "rlm-ada"), set(&["workspace-rlm-algebra:member"]));
    assert_eq!(roles(&realm, "rlm-emmy"), set(&["workspace-rlm-algebra:manager"]));
    let untouched = |world: &mut World| {
        assert_eq!(roles(&realm, "rlm-gauss"), set(&[]));
        assert_eq!(roles(&realm, "rlm-euler"), set(&["editor", "workspace-foreign:manager"]));
        assert!(user(&realm, "rlm-gauss").get("email").is_none());
        let notices = world.status().realm.expect("the status has a realm").notices;
        let told = notices.iter().any(|it| it.account.name == "rlm-gauss" && it.text.contains("adopt = true"));
        assert!(told, "{notices:?}");
    };
    untouched(&mut world);
    let rows = world.rows("SELECT account, user_id, state, origin FROM realm_users ORDER BY 1");
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!((&rows[0]["account"], &rows[0]["user_id"]), (&json!("user:rlm-ada"), &ada["id"]));
    let history =
        world.rows("SELECT action, reason FROM history WHERE account = 'user:rlm-ada' AND action LIKE 'realm%'");
    let told: Vec<&str> = history.iter().map(|row| row["action"].as_str().expect("the value is a string")).collect();
    assert_eq!(told, ["realm user created", "realm roles given"]);

    // If there is nothing to do, nothing is written; in a scheduled cycle, nothing is requested either.
    let before = requests(&mut world, &realm);
    assert_eq!(world.cycle().actions, 0);
    let after = requests(&mut world, &realm);
    assert_eq!(after.1, before.1);
    assert_eq!(world.cycle_by(Trigger::Schedule).actions, 0);
    assert_eq!(requests(&mut world, &realm), after);
    println!(
        "two users and a workspace: {} reads, {} writes; a check: {} reads",
        before.0,
        before.1,
        after.0 - before.0
    );

    // Changes that were made by hand in the realm are reverted.
    realm.change("rlm-ada", &json!({"enabled": false, "email": "x@example.org", "firstName": "Countess"}));
    give(&realm, "rlm-ada", "workspace-rlm-algebra:manager", false);
    all_is_well(&world.cycle());
    let ada = user(&realm, "rlm-ada");
    assert_eq!((&ada["enabled"], &ada["email"]), (&json!(true), &json!("rlm-ada@example.org")));
    assert_eq!(ada["firstName"], "Countess", "names that people change themselves stay");
    assert_eq!(roles(&realm, "rlm-ada"), set(&["workspace-rlm-algebra:member"]));

    // A suspension disables the user, and a resumption restores it.
    world.order(&OrderRequest::Suspend(target("rlm-emmy"))).expect("the order is accepted");
    assert_eq!(user(&realm, "rlm-emmy")["enabled"], false);
    assert_eq!(roles(&realm, "rlm-emmy"), set(&[]));
    let why = world.rows("SELECT reason FROM history WHERE action = 'realm user disabled'");
    assert_eq!(why[0]["reason"], "suspended");
    world.order(&OrderRequest::Resume(target("rlm-emmy"))).expect("the order is accepted");
    all_is_well(&world.cycle());
    assert_eq!(user(&realm, "rlm-emmy")["enabled"], true);
    assert_eq!(roles(&realm, "rlm-emmy"), set(&["workspace-rlm-algebra:manager"]));

    // A person who leaves the group loses the role.
    slapd.modify_ldif(&replace_ldif(&dn, "member", &[&person_dn(&world.base, "rlm-emmy")]));
    all_is_well(&world.cycle());
    assert_eq!(roles(&realm, "rlm-ada"), set(&[]));
    assert_eq!(user(&realm, "rlm-ada")["enabled"], true);
    untouched(&mut world);

    let status = world.bursar("status");
    assert!(status.contains("bursard is not running"), "{status}");
    let said = world.bursar("doctor");
    assert!(said.contains("+ realm rlm: client workspaces: "), "{said}");
}

#[test]
fn an_existing_user_is_adopted_if_allowed_and_the_mail_addresses_agree() {
    let stranger = json!({"username": "rla-gauss", "enabled": true, "firstName": "Carl"});
    // If a realm showed no user at all, the answer would not be trusted.
    let bystander = json!({"username": "rla-other", "enabled": true});
    let realm = realm("rla", &[stranger, bystander], &RIGHTS);
    let own = connection(&realm, &realm.server.url, SECRET);
    let mut world = world("rla", &format!("[realm]\nclient = \"{WORKSPACES}\"\nadopt = true\n{own}"));
    world.person("rla-gauss", 64_051);
    let dn = format!("cn=rla-lab,ou=groups,{}", world.base);
    world.add(&group_of_names_ldif(&dn, "rla-lab", &[person_dn(&world.base, "rla-gauss")]));
    all_is_well(&world.cycle());
    assert_eq!(roles(&realm, "rla-gauss"), set(&[]), "the user has no mail address to compare");
    realm.change("rla-gauss", &json!({"email": "RLA-Gauss@example.org"}));
    all_is_well(&world.cycle());
    assert_eq!(roles(&realm, "rla-gauss"), set(&["workspace-rla-lab:member"]));
    assert_eq!(user(&realm, "rla-gauss")["firstName"], "Carl");
    let rows = world.rows("SELECT origin FROM realm_users WHERE account = 'user:rla-gauss'");
    assert_eq!(rows[0]["origin"], "adopted");
    assert_eq!(world.cycle().actions, 0);

    // After the user is deleted by hand, Bursar creates it again, and it belongs to Bursar.
    realm.ask("DELETE", &format!("/users/{}", realm.id("rla-gauss")), &Value::Null);
    all_is_well(&world.cycle());
    assert_eq!(user(&realm, "rla-gauss")["lastName"], "Example");
    assert_eq!(roles(&realm, "rla-gauss"), set(&["workspace-rla-lab:member"]));
    let rows = world.rows("SELECT origin FROM realm_users WHERE account = 'user:rla-gauss'");
    assert_eq!(rows[0]["origin"], "made");

    // If the person is renamed, the user is renamed too, if the realm allows it.
    let person = person_dn(&world.base, "rla-gauss");
    let renamed = format!("dn: {person}\nchangetype: modrdn\nnewrdn: uid=rla-euler\ndeleteoldrdn: 1\n\n");
    Servers::shared().slapd.modify_ldif(&renamed);
    let report = world.cycle();
    let failing = report.failing.iter().find(|failing| failing.step == "realm user");
    assert!(failing.is_some_and(|it| it.reason.contains("allow usernames to be edited")), "{report:#?}");
    realm.ask("PUT", "", &json!({"editUsernameAllowed": true}));
    let done = poll(DEADLINE, || {
        world.cycle();
        !user(&realm, "rla-euler").is_null()
    });
    assert!(done, "{:?}", world.rows("SELECT * FROM failing"));
}

#[test]
fn one_realm_can_be_source_and_target() {
    let mut kim = person("rls-kim", 64_101, &["/rls-lab"]);
    let homes = Servers::shared().folder().join("rls/homes/home");
    kim["attributes"]["homeDirectory"] = json!([homes.join("rls-kim")]);
    let realm = Realm::with("rls", &[kim], &[json!({"name": "rls-lab"})], Some("ADMIN_EDIT"), &RIGHTS);
    realm.ask("POST", "/clients", &json!({"clientId": WORKSPACES, "standardFlowEnabled": false}));
    let source = connection(&realm, &realm.server.url, SECRET);
    let source = format!("[[source]]\nname = \"sso\"\ntype = \"keycloak\"\n{source}");
    let mut world = world("rls", &format!("{source}[realm]\nsource = \"sso\"\nclient = \"{WORKSPACES}\"\n"));
    world.make_home("home", "rls-kim", 64_101, 500);
    world.person("rls-lee", 64_102);
    all_is_well(&world.cycle());
    assert_eq!(roles(&realm, "rls-kim"), set(&["workspace-rls-lab:member"]));
    assert_eq!(user(&realm, "rls-lee")["email"], "rls-lee@example.org", "people of other sources are created");
    let report = world.cycle();
    all_is_well(&report);
    assert_eq!(report.actions, 0, "{report:#?}");
    let rejected = world.rows("SELECT name, why FROM rejected_entry WHERE source = 'sso'");
    assert!(rejected.is_empty(), "users that Bursar created are not read as entries: {rejected:?}");
    let rows = world.rows("SELECT name, source FROM users WHERE name LIKE 'rls-%' ORDER BY 1");
    assert_eq!(rows.len(), 2, "{rows:?}");

    realm.change("rls-kim", &json!({"enabled": false}));
    world.cycle();
    assert_eq!(roles(&realm, "rls-kim"), set(&[]), "a user that is disabled in the realm is suspended");
    assert_eq!(user(&realm, "rls-kim")["enabled"], false, "the realm's own users are not enabled again");
}

#[test]
fn disabling_logins_over_the_limit_waits_for_approval() {
    let realm = realm("rlg", &[], &RIGHTS);
    let own = connection(&realm, &realm.server.url, SECRET);
    let mut world = world("rlg", &format!("[realm]\n{own}[lifecycle]\nabsent_for = \"0s\"\n"));
    let names = ["rlg-ada", "rlg-bea"];
    // A directory without any person would not be trusted.
    for (name, uid) in names.into_iter().chain(["rlg-cee"]).zip(64_501..) {
        world.person(name, uid);
    }
    all_is_well(&world.cycle());
    for name in names {
        Servers::shared().slapd.modify_ldif(&format!("dn: {}\nchangetype: delete\n\n", person_dn(&world.base, name)));
    }
    let enabled = || names.into_iter().filter(|name| user(&realm, name)["enabled"] == true).count();
    // The limit on suspensions allows both, and the limit of the realm allows one.
    let planned = world.plan();
    let limit = "refused by limit realm_disable_per_cycle (1 left): 1 of 2 users disabled in the realm: rlg-bea";
    assert!(planned.text.contains(limit), "{}", planned.text);
    assert_eq!(planned.exit_code, 3);
    let report = world.cycle();
    assert_eq!((report.refusals.len(), report.exit_code(), enabled()), (1, 3, 1), "{report:#?}");
    assert_eq!(planned.plan["refused"]["limits"][0]["hash"], report.refusals[0].hash);
    assert!(world.metrics().contains("bursar_refusals_total{limit=\"realm_disable_per_cycle\"} "));
    let approved = OrderRequest::Approve { hash: report.refusals[0].hash.clone() };
    world.order(&approved).expect("the order is accepted");
    assert_eq!(enabled(), 0);
    all_is_well(&world.cycle());
    assert!(world.status().refusals.is_empty());
    let rows = world.rows("SELECT spending, amount FROM spent WHERE spending = 'realm_disable'");
    assert_eq!(rows.len(), 2, "{rows:?}");
}
