//! A real Keycloak: what Bursar reads from its realms, and a whole cycle from a realm to a kubeconfig.

mod cycle;
pub mod proxy;
mod reimport;
mod trouble;

use bursar::identity::AccountKind;
use bursar_directory::source::{KeycloakConfig, Secret, SidMapping};
use bursar_directory::{Preset, SourceConfig, SourceKind, keycloak};
use bursar_testkit::keycloak::Keycloak;
use serde_json::{Value, json};

use crate::directory::{members, names, read, why};
use crate::world::extend;

pub const CLIENT: &str = "bursar";
pub const SECRET: &str = "the secret of a test: 1+1=2";
/// The only role that the service account of Bursar needs.
const ROLE: &str = "view-users";

/// A realm with a client for Bursar. Administrators of the realm may set any attribute of a user.
pub struct Realm {
    pub name: &'static str,
    pub server: &'static Keycloak,
}

impl Realm {
    pub fn new(name: &'static str, users: &[Value], groups: &[Value]) -> Self {
        Self::with(name, users, groups, Some("ADMIN_EDIT"), &[ROLE])
    }

    /// Makes a realm. `unmanaged` says who may change undeclared attributes; `roles` are the roles of Bursar's client.
    pub fn with(
        name: &'static str,
        users: &[Value],
        groups: &[Value],
        unmanaged: Option<&str>,
        roles: &[&str],
    ) -> Self {
        let server = Keycloak::shared();
        let service = json!({
            "username": format!("service-account-{CLIENT}"), "enabled": true, "serviceAccountClientId": CLIENT,
            "clientRoles": {"realm-management": roles},
        });
        let attribute =
            |name| json!({"name": name, "permissions": {"view": ["admin", "user"], "edit": ["admin", "user"]}});
        let attributes = ["username", "email", "firstName", "lastName"].map(attribute);
        let mut profile = json!({"attributes": attributes});
        if let Some(policy) = unmanaged {
            profile["unmanagedAttributePolicy"] = policy.into();
        }
        let profile = json!({
            "providerId": "declarative-user-profile", "config": {"kc.user.profile.config": [profile.to_string()]},
        });
        let realm = json!({
            "realm": name, "enabled": true, "groups": groups,
            "users": users.iter().chain([&service]).collect::<Vec<_>>(),
            "clients": [{
                "clientId": CLIENT, "secret": SECRET, "serviceAccountsEnabled": true, "standardFlowEnabled": false,
            }],
            "components": {"org.keycloak.userprofile.UserProfileProvider": [profile]},
        });
        server.ask("POST", "/admin/realms", &realm);
        Self { name, server }
    }

    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        self.server.ask(method, &format!("/admin/realms/{}{path}", self.name), body)
    }

    pub fn id(&self, user: &str) -> String {
        let found = self.ask("GET", &format!("/users?exact=true&username={user}"), &Value::Null);
        found[0]["id"].as_str().expect("the realm has the user").to_owned()
    }

    /// Changes fields of a user.
    pub fn change(&self, user: &str, changes: &Value) {
        let path = format!("/users/{}", self.id(user));
        let mut all = self.ask("GET", &path, &Value::Null);
        extend(&mut all, changes);
        self.ask("PUT", &path, &all);
    }

    pub fn config(&self) -> KeycloakConfig {
        let config = KeycloakConfig::new(self.server.url.clone(), self.name.to_owned(), CLIENT.to_owned());
        let ca_pem = std::fs::read_to_string(&self.server.ca_pem).expect("Keycloak has a CA");
        KeycloakConfig { client_secret: Some(Secret::new(SECRET.to_owned())), ca_pem: Some(ca_pem), ..config }
    }

    fn source(&self) -> SourceConfig {
        source(self.config())
    }
}

fn source(config: KeycloakConfig) -> SourceConfig {
    let tree = |kind| Some(Preset::Keycloak.tree(kind, &keycloak::base(&config.realm, kind)));
    SourceConfig {
        name: "sso".to_owned(),
        sentinels: Vec::new(),
        tools: None,
        users: tree(AccountKind::User),
        groups: tree(AccountKind::Group),
        attributes: Preset::Keycloak.attributes(),
        sids: SidMapping::default(),
        kind: SourceKind::Keycloak(config),
    }
}

pub fn person(name: &str, uid: u32, groups: &[&str]) -> Value {
    let attributes = json!({"uidNumber": [uid.to_string()], "gidNumber": ["500"]});
    json!({"username": name, "enabled": true, "attributes": attributes, "groups": groups})
}

#[tokio::test(flavor = "multi_thread")]
async fn people_and_nested_groups_are_read() {
    let mut alice = person("alice", 2001, &["/staff/lab/night"]);
    alice["email"] = "alice@example.org".into();
    // An import must contain this time. The administration API would set it by itself.
    alice["createdTimestamp"] = 1_763_684_479_123_u64.into();
    alice["firstName"] = "Alice".into();
    alice["lastName"] = "Example".into();
    alice["attributes"]["homeDirectory"] = json!(["/home/elsewhere/alice"]);
    let mut bob = person("bob", 2002, &["/staff"]);
    bob["enabled"] = false.into();
    let carol = json!({"username": "carol", "enabled": true});
    let night = json!({"name": "night"});
    let lab = json!({"name": "lab", "attributes": {"gidNumber": ["3001"]}, "subGroups": [night]});
    let staff = json!({"name": "staff", "attributes": {"gidNumber": ["3000"], "owner": ["bob"]}, "subGroups": [lab]});
    let realm = Realm::new("people", &[alice, bob, carol], &[staff]);

    let mut source = realm.source();
    source.sentinels = vec!["uid=alice,ou=users,o=people".into()];
    source.attributes.managers = Some("owner".to_owned());
    let found = read(source).await;
    assert_eq!(why(&found), "complete");
    assert_eq!(found.server.as_deref(), realm.server.url.strip_prefix("https://"));
    assert_eq!(names(&found, AccountKind::User), ["alice", "bob"], "a service account is not a person");
    assert_eq!(names(&found, AccountKind::Group), ["lab", "night", "staff"]);
    let alice = found.entries.iter().find(|entry| entry.name == "alice").expect("the entry was read");
    assert_eq!(alice.id.0, realm.id("alice"));
    assert_eq!(
        (alice.mail.as_deref(), alice.display_name.as_deref()),
        (Some("alice@example.org"), Some("Alice Example"))
    );
    let posix = alice.posix.as_ref().expect("alice has a uid");
    let gids: Vec<u32> = posix.groups.iter().map(|gid| gid.get()).collect();
    assert_eq!((posix.uid.get(), posix.gid.get(), gids), (2001, 500, vec![3000, 3001]));
    assert_eq!(alice.home.as_deref(), Some(std::path::Path::new("/home/elsewhere/alice")));
    assert!(alice.created.is_some() && alice.disabled.is_none());
    let bob = found.entries.iter().find(|entry| entry.name == "bob").expect("the entry was read");
    assert_eq!(bob.disabled.as_deref(), Some("enabled: false"));
    assert_eq!(members(&found, "night"), ["alice"]);
    assert_eq!(members(&found, "lab"), ["alice"]);
    assert_eq!(members(&found, "staff"), ["alice", "bob"]);
    let staff = found.entries.iter().find(|entry| entry.name == "staff").expect("the entry was read");
    assert_eq!(staff.members[&bob.id], bursar::snapshot::Role::Manager);
    let [carol] = found.rejected.as_slice() else { panic!("{:?}", found.rejected) };
    assert_eq!(carol.why, "uidNumber is missing, or hidden from Bursar");
    assert!(carol.id.is_some(), "a rejected entry keeps its id");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_several_pages_are_read_completely() {
    let people: Vec<_> = (0..7).map(|n| person(&format!("p{n}-page"), 2000 + n, &["/all"])).collect();
    let parts: Vec<_> = (0..120).map(|n| json!({"name": format!("part-{n:03}")})).collect();
    let mut groups = vec![json!({"name": "all", "subGroups": parts})];
    groups.extend((0..6).map(|n| json!({"name": format!("other-{n}")})));
    let realm = Realm::new("pages", &people, &groups);
    for page_size in [1, 3, 7, 100] {
        let found = read(source(KeycloakConfig { page_size, ..realm.config() })).await;
        assert_eq!(why(&found), "complete", "pages of {page_size}");
        assert_eq!(names(&found, AccountKind::User).len(), 7);
        assert_eq!(names(&found, AccountKind::Group).len(), 127);
        assert_eq!(members(&found, "all").len(), 7);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_realm_is_read_completely() {
    // Twelve pages. For 5,000 people, Keycloak needs a minute.
    let size: u32 = if std::env::var_os("BURSAR_SOAK").is_some() { 5000 } else { 1120 };
    let people: Vec<_> =
        (0..size).map(|n| person(&format!("user{n:05}"), 10_000 + n, &[&format!("/g{}", n % 20)])).collect();
    let groups: Vec<_> = (0..20).map(|n| json!({"name": format!("g{n}")})).collect();
    let realm = Realm::new("large", &people, &groups);
    let found = read(realm.source()).await;
    assert_eq!(why(&found), "complete");
    assert_eq!(names(&found, AccountKind::User).len(), size as usize);
    assert_eq!(members(&found, "g7").len(), size as usize / 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn renamed_and_recreated_people_are_recognised_by_id() {
    let realm = Realm::new("rename", &[person("before", 2001, &[])], &[]);
    realm.ask("PUT", "", &json!({"editUsernameAllowed": true}));
    let before = read(realm.source()).await;
    realm.change("before", &json!({"username": "after"}));
    let after = read(realm.source()).await;
    assert_eq!((after.entries[0].name.as_str(), &after.entries[0].id), ("after", &before.entries[0].id));
    realm.ask("DELETE", &format!("/users/{}", realm.id("after")), &Value::Null);
    realm.ask("POST", "/users", &person("after", 2001, &[]));
    let anew = read(realm.source()).await;
    assert_eq!(anew.entries[0].name, "after");
    assert_ne!(anew.entries[0].id, after.entries[0].id);
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_people_write_themselves_are_not_believed() {
    let realm = Realm::with("own", &[person("mallory", 2001, &[])], &[], Some("ENABLED"), &[ROLE]);
    let found = read(realm.source()).await;
    assert!(why(&found).contains("users may change their own uidNumber, so it is ignored"), "{}", why(&found));
    assert_eq!(names(&found, AccountKind::User), [""; 0]);
    assert!(found.rejected[0].id.is_some(), "{:?}", found.rejected);

    let realm = Realm::with("none", &[person("alice", 2001, &[])], &[], None, &[ROLE]);
    let found = read(realm.source()).await;
    assert!(why(&found).contains("users have no uidNumber: declare it"), "{}", why(&found));
}
