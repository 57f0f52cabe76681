//! The answers of Keycloak's administration API, and the entries that are made from them.
//!
//! A realm has no DNs, so its entries get generated ones. Settings that contain DNs (sentinels, a class's `base`)
//! therefore work for realms too. User `alice` gets `uid=alice,ou=users,o=REALM`, and group `/staff/lab` gets
//! `cn=lab,cn=staff,ou=groups,o=REALM`.

use std::collections::{BTreeMap, BTreeSet};

use bursar_core::identity::AccountKind;
use bursar_core::snapshot::dn::{Dn, escape};
use foldhash::{HashMap, HashSet};
use jiff::Timestamp;
use serde::Deserialize;

use crate::entry::raw::RawEntry;
use crate::source::AttributeNames;

/// The attribute in which [`Scribe`] stores the DNs of a group's members.
pub const MEMBER: &str = "member";
/// Attributes that `Scribe` sets on every entry. User attributes with these names are ignored.
const BUILT_IN: [&str; 8] = ["id", USERNAME, EMAIL, "name", "enabled", "createdTimestamp", "path", MEMBER];
/// Built-in attributes that the realm's user profile declares, and that people may change by default.
const USERNAME: &str = "username";
const EMAIL: &str = "email";
/// The most characters of the server's error text that are shown.
const WORDS: usize = 200;

/// The answer to a login (RFC 6749, 5.1).
#[derive(Deserialize)]
pub(super) struct Token {
    pub(super) access_token: String,
    /// The lifetime of the token in seconds.
    #[serde(default = "Token::lifetime")]
    pub(super) expires_in: u64,
}

impl Token {
    /// Keycloak's default lifetime of an access token, for an answer without `expires_in`.
    const fn lifetime() -> u64 {
        60
    }
}

/// An error answer. The parts of Keycloak use different fields for the reason.
#[derive(Deserialize)]
pub(super) struct ErrorBody {
    error_description: Option<String>,
    #[serde(rename = "errorMessage")]
    message: Option<String>,
    error: Option<String>,
}

impl ErrorBody {
    /// Returns the reason in `body`.
    pub(super) fn of(body: &[u8]) -> String {
        let refusal = serde_json::from_slice::<Self>(body).ok();
        let words = refusal.and_then(|it| it.error_description.or(it.message).or(it.error));
        words.map_or_else(|| "no reason given".to_owned(), |words| words.chars().take(WORDS).collect())
    }
}

/// An object that Keycloak lists in pages.
pub(super) trait Listed {
    /// The noun that messages use.
    const WHAT: &'static str;
    fn id(&self) -> &str;
}

/// `UserRepresentation`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct User {
    pub(super) id: String,
    username: String,
    // Required: a user whose answer hides this field must not count as enabled.
    enabled: bool,
    email: Option<String>,
    first_name: Option<String>,
    last_name: Option<String>,
    /// The creation time in milliseconds since 1970.
    created_timestamp: Option<i64>,
    #[serde(default)]
    attributes: BTreeMap<String, Vec<String>>,
}

/// `GroupRepresentation`, since Keycloak 23.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Group {
    pub(super) id: String,
    name: String,
    pub(super) sub_group_count: u64,
    #[serde(default)]
    attributes: BTreeMap<String, Vec<String>>,
}

/// The properties of a group's member that Bursar needs.
#[derive(Deserialize)]
pub(super) struct Member {
    pub(super) id: String,
    #[serde(default)]
    pub(super) username: String,
}

impl Listed for User {
    const WHAT: &'static str = "users";
    fn id(&self) -> &str {
        &self.id
    }
}

impl Listed for Group {
    const WHAT: &'static str = "groups";
    fn id(&self) -> &str {
        &self.id
    }
}

impl Listed for Member {
    const WHAT: &'static str = "members of a group";
    fn id(&self) -> &str {
        &self.id
    }
}

/// The number of a realm's groups, including nested ones.
#[derive(Deserialize)]
pub(super) struct GroupCount {
    pub(super) count: usize,
}

/// `UPConfig`, since Keycloak 24: which attributes users have, and who may change them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Profile {
    #[serde(default)]
    attributes: Vec<Declared>,
    /// The policy for attributes that are not declared.
    unmanaged_attribute_policy: Option<String>,
}

#[derive(Deserialize)]
struct Declared {
    name: String,
    permissions: Option<Permissions>,
}

/// The roles (`admin`, `user`) that may change and view an attribute. A role that may change an attribute may also view
/// it.
#[derive(Deserialize, Default)]
struct Permissions {
    #[serde(default)]
    edit: BTreeSet<String>,
    #[serde(default)]
    view: BTreeSet<String>,
}

/// Who may change or view an attribute. This decides whether its values are believed.
enum Editor {
    /// Only administrators, or nobody.
    Admin,
    /// People, in their own accounts.
    User,
    /// Keycloak hides the attribute from administrators, and thus from Bursar.
    Hidden,
    /// No user can have the attribute.
    Undeclared,
}

impl Profile {
    fn editor(&self, attribute: &str) -> Editor {
        let Some(declared) = self.attributes.iter().find(|declared| declared.name == attribute) else {
            return match self.unmanaged_attribute_policy.as_deref() {
                None => Editor::Undeclared,
                Some("ENABLED") => Editor::User,
                Some(_) => Editor::Admin,
            };
        };
        let nobody = Permissions::default();
        let Permissions { edit, view } = declared.permissions.as_ref().unwrap_or(&nobody);
        // Without permissions, everybody may change these two (26.4, `DeclarativeUserProfileProvider`).
        let is_open = [USERNAME, EMAIL].contains(&attribute) && edit.is_empty() && view.is_empty();
        if is_open || edit.contains("user") {
            Editor::User
        } else if edit.contains("admin") || view.contains("admin") {
            Editor::Admin
        } else {
            Editor::Hidden
        }
    }

    /// Returns two lists: the identity attributes that people may change themselves, which must be ignored, and the
    /// problems to report. Attributes that people may change are problems, and so are attributes that no user can have
    /// or that Keycloak hides. While there is a problem, known marks stay: if people removed a mark themselves, or
    /// Keycloak hid it, the accounts would be enabled again.
    pub(super) fn judge(&self, names: &AttributeNames) -> (Vec<String>, Vec<String>) {
        let (mut unbelieved, mut problems) = (Vec::new(), Vec::new());
        let is_built_in = |name: &str| BUILT_IN.contains(&name);
        let in_profile = |name: &&String| !is_built_in(name) || [USERNAME, EMAIL].contains(&name.as_str());
        let identity = [&names.user_name, &names.uid, &names.gid, &names.home].into_iter();
        let identity = identity.filter(|name| !is_built_in(name)).chain(names.person.iter().filter(in_profile));
        let mut all: Vec<(&String, bool)> = identity.map(|name| (name, true)).collect();
        for name in names.disabled.iter().map(|mark| &mark.attribute).filter(in_profile) {
            if !all.iter().any(|(known, _)| *known == name) {
                all.push((name, false));
            }
        }
        for (name, is_identity) in all {
            match self.editor(name) {
                Editor::Admin => {}
                Editor::User => {
                    let effect = if is_identity { "it is ignored" } else { "the marks that disable them stay" };
                    problems.push(format!(
                        "users may change their own {name}, so {effect}: let only admins edit it in the realm's user \
                         profile, or unmanaged attributes (ADMIN_EDIT)"
                    ));
                    unbelieved.extend(is_identity.then(|| name.clone()));
                }
                Editor::Undeclared | Editor::Hidden if *name == names.home => {}
                Editor::Hidden => {
                    problems.push(format!("Keycloak hides {name}: let admins view it in the realm's user profile"));
                }
                Editor::Undeclared => problems.push(format!(
                    "users have no {name}: declare it in the realm's user profile, or let admins edit unmanaged \
                     attributes (ADMIN_EDIT)"
                )),
            }
        }
        (unbelieved, problems)
    }
}

/// Returns the roles of `realm-management` in an access token (RFC 7519). Only the server checks the signature.
pub(super) fn roles(token: &str) -> Option<Vec<String>> {
    use base64::Engine as _;
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    let roles = claims.pointer("/resource_access/realm-management/roles")?.as_array()?;
    Some(roles.iter().filter_map(|role| role.as_str().map(str::to_owned)).collect())
}

/// Returns the base DN of a realm's entries of `kind`.
#[must_use]
pub fn base(realm: &str, kind: AccountKind) -> String {
    let unit = if kind == AccountKind::Group { "groups" } else { "users" };
    format!("ou={unit},o={}", escape(realm))
}

/// Turns answers into entries.
pub(super) struct Scribe<'a> {
    realm: &'a str,
    names: &'a AttributeNames,
    /// The DNs of the users by id.
    people: HashMap<String, String>,
    taken: HashSet<Dn>,
    wanted_of_users: Vec<String>,
    wanted_of_groups: Vec<String>,
    /// Attributes of users that are left out.
    left_out: BTreeSet<&'static str>,
}

impl<'a> Scribe<'a> {
    /// Makes a scribe that leaves out the attributes `unbelieved` of all users.
    pub(super) fn new(realm: &'a str, names: &'a AttributeNames, unbelieved: &[String]) -> Self {
        let wanted = |kind, without: &[String]| {
            let mut wanted = names.wanted(kind);
            let is_other = |name: &String| BUILT_IN.contains(&name.as_str()) || Some(name) == names.managers.as_ref();
            wanted.retain(|name| !is_other(name) && !without.contains(name));
            wanted
        };
        Self {
            realm,
            names,
            people: HashMap::default(),
            taken: HashSet::default(),
            wanted_of_users: wanted(AccountKind::User, unbelieved),
            wanted_of_groups: wanted(AccountKind::Group, &[]),
            left_out: [USERNAME, EMAIL].into_iter().filter(|name| unbelieved.iter().any(|it| it == name)).collect(),
        }
    }

    pub(super) fn user(&mut self, user: &User) -> RawEntry {
        let mut raw = RawEntry::new(self.unique(self.person(&user.username), &user.id));
        raw.add(b"id", user.id.as_bytes());
        raw.add(b"enabled", if user.enabled { b"true" } else { b"false" });
        for (name, value) in [(USERNAME, Some(&user.username)), (EMAIL, user.email.as_ref())] {
            if let Some(value) = value.filter(|_| !self.left_out.contains(name)) {
                raw.add(name.as_bytes(), value.as_bytes());
            }
        }
        let names: Vec<&str> = [&user.first_name, &user.last_name].into_iter().flatten().map(String::as_str).collect();
        raw.add(b"name", names.join(" ").as_bytes());
        if let Some(created) = user.created_timestamp.and_then(|at| Timestamp::from_millisecond(at).ok()) {
            raw.add(b"createdTimestamp", created.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes());
        }
        add(&mut raw, &self.wanted_of_users, &user.attributes);
        self.people.insert(user.id.clone(), raw.dn.clone());
        raw
    }

    /// Makes the entry of a group; `within` is its parent group.
    pub(super) fn group(&mut self, group: &Group, within: Option<&RawEntry>) -> RawEntry {
        let base = within.map_or_else(|| base(self.realm, AccountKind::Group), |parent| parent.dn.clone());
        let dn = format!("cn={},{base}", escape(&group.name));
        let mut raw = RawEntry::new(self.unique(dn, &group.id));
        raw.add(b"id", group.id.as_bytes());
        raw.add(b"name", group.name.as_bytes());
        let above = within.and_then(|parent| parent.texts("path").next());
        let path = above.map_or_else(|| group.name.clone(), |above| format!("{above}-{}", group.name));
        raw.add(b"path", path.as_bytes());
        add(&mut raw, &self.wanted_of_groups, &group.attributes);
        if let Some(attribute) = &self.names.managers {
            // A realm has no DNs, so administrators list managers by name.
            for name in group.attributes.get(attribute).into_iter().flatten() {
                raw.add(attribute.as_bytes(), self.person(name).as_bytes());
            }
        }
        raw
    }

    /// Adds a person to a group. If a member is not among the listed users, the member is hidden from Bursar, or was
    /// created after the users were listed. Such a member gets a DN that no listed user has.
    pub(super) fn member(&self, group: &mut RawEntry, member: &Member) {
        let unlisted = || {
            let dn = self.person(&member.username);
            if self.taken.contains(&Dn::parse(&dn)) { format!("id={},{dn}", escape(&member.id)) } else { dn }
        };
        let dn = self.people.get(&member.id).cloned().unwrap_or_else(unlisted);
        group.add(MEMBER.as_bytes(), dn.as_bytes());
    }

    fn person(&self, name: &str) -> String {
        format!("uid={},{}", escape(name), base(self.realm, AccountKind::User))
    }

    /// Returns `dn`. If `dn` is taken, for example by a group whose name differs only in case, returns a DN with the
    /// id.
    fn unique(&mut self, dn: String, id: &str) -> String {
        if self.taken.insert(Dn::parse(&dn)) { dn } else { format!("id={},{dn}", escape(id)) }
    }
}

/// Adds the attributes with exactly these names. Keycloak's names are case-sensitive: `UIDNUMBER` is not `uidNumber`.
fn add(raw: &mut RawEntry, wanted: &[String], attributes: &BTreeMap<String, Vec<String>>) {
    for name in wanted {
        for value in attributes.get(name).into_iter().flatten() {
            raw.add(name.as_bytes(), value.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::source::Preset;

    fn user(more: &Value) -> User {
        let mut user =
            json!({"id": "u1", "username": "alice", "enabled": true, "createdTimestamp": 1_763_684_479_123_i64});
        user.as_object_mut()
            .expect("the user is an object")
            .extend(more.as_object().expect("`more` is an object").clone());
        serde_json::from_value(user).expect("the fixture is a valid user")
    }

    fn group(id: &str, name: &str, attributes: &Value) -> Group {
        let group = json!({"id": id, "name": name, "subGroupCount": 0, "attributes": attributes});
        serde_json::from_value(group).expect("the fixture is a valid group")
    }

    fn profile(declared: &[(&str, &[&str])], unmanaged: Option<&str>) -> Profile {
        let declared: Vec<_> =
            declared.iter().map(|(name, edit)| json!({"name": name, "permissions": {"edit": edit}})).collect();
        let profile = json!({"attributes": declared, "unmanagedAttributePolicy": unmanaged});
        serde_json::from_value(profile).expect("the fixture is a valid profile")
    }

    fn text<'r>(raw: &'r RawEntry, name: &str) -> Vec<&'r str> {
        raw.texts(name).collect()
    }

    #[test]
    fn a_user_becomes_an_entry() {
        let names = Preset::Keycloak.attributes();
        let raw = Scribe::new("Lab, 1", &names, &[]).user(&user(&json!({
            "username": "a+b@example.org", "firstName": "Alice", "lastName": "E", "email": "a@example.org",
            "attributes": {"uidNumber": ["2001"], "shoe": ["42"]},
        })));
        assert_eq!(raw.dn, "uid=a\\+b@example.org,ou=users,o=Lab\\, 1");
        assert_eq!(text(&raw, "uidNumber"), ["2001"]);
        assert_eq!(text(&raw, "name"), ["Alice E"]);
        assert_eq!(text(&raw, "createdTimestamp"), ["20251121002119Z"]);
        assert!(!raw.has("shoe"), "attributes that are not requested are left out");
        assert!(Dn::parse(&raw.dn).is_within(&Dn::parse(&base("Lab, 1", AccountKind::User))));
    }

    #[test]
    fn user_attributes_cannot_replace_keycloaks_own_properties() {
        let names = Preset::Keycloak.attributes();
        let attributes =
            json!({"id": ["x"], "enabled": ["true"], "username": ["root"], "UIDNUMBER": ["1"], "name": ["N"]});
        let raw = Scribe::new("r", &names, &[]).user(&user(&json!({"enabled": false, "attributes": attributes})));
        let said = ["id", "enabled", "username", "uidNumber", "name"].map(|name| text(&raw, name));
        assert_eq!(said, [vec!["u1"], vec!["false"], vec!["alice"], vec![], vec![""]]);
    }

    #[test]
    fn attributes_that_people_can_edit_are_ignored() {
        let names = Preset::Keycloak.attributes();
        let judge = |profile: Profile| {
            let (unbelieved, problems) = profile.judge(&names);
            (unbelieved.join(" "), problems.len())
        };
        assert_eq!(judge(profile(&[], Some("ADMIN_EDIT"))), (String::new(), 0));
        assert_eq!(judge(profile(&[], Some("ADMIN_VIEW"))), (String::new(), 0));
        assert_eq!(judge(profile(&[], Some("ENABLED"))), ("uidNumber gidNumber homeDirectory".to_owned(), 3));
        assert_eq!(judge(profile(&[], None)), (String::new(), 2), "users can have neither uidNumber nor gidNumber");
        let declared: [(&str, &[&str]); 2] = [("uidNumber", &["admin"]), ("gidNumber", &["admin", "user"])];
        assert_eq!(judge(profile(&declared, None)), ("gidNumber".to_owned(), 1));

        // Keycloak declares these two, and lets people edit them.
        let declared: [(&str, &[&str]); 2] = [(EMAIL, &["admin", "user"]), (USERNAME, &["admin"])];
        let default = || profile(&declared, Some("ADMIN_EDIT"));
        let by = |person: &str| AttributeNames { person: Some(person.to_owned()), ..names.clone() };
        let (unbelieved, problems) = default().judge(&by(EMAIL));
        assert_eq!((unbelieved.join(" "), problems.len()), (EMAIL.to_owned(), 1));
        let alice = user(&json!({"email": "bob@example.org"}));
        assert!(
            !Scribe::new("r", &names, &unbelieved).user(&alice).has(EMAIL),
            "a mail address that people can change identifies nobody"
        );
        assert!(Scribe::new("r", &names, &[]).user(&alice).has(EMAIL));
        assert_eq!(default().judge(&by(USERNAME)).1, [""; 0]);
        assert_eq!(judge(default()), (String::new(), 0), "the mail address is only shown");

        let mut expiring = names.clone();
        expiring.disabled.push("contractEnd<now".parse().expect("the mark is valid"));
        let marked = |declared: &[(&str, &[&str])], unmanaged| {
            let declared = [declared, &[("uidNumber", &["admin"]), ("gidNumber", &["admin"])]].concat();
            let (unbelieved, problems) = profile(&declared, unmanaged).judge(&expiring);
            assert_eq!(unbelieved, [""; 0], "a mark is believed");
            problems
        };
        assert_eq!(marked(&[("contractEnd", &["admin"])], None), [""; 0]);
        assert!(marked(&[("contractEnd", &["admin", "user"])], None)[0].contains("the marks that disable them stay"));
        assert!(marked(&[], None)[0].contains("users have no contractEnd"), "Keycloak hides the values");
        assert!(marked(&[("contractEnd", &[])], None)[0].contains("Keycloak hides contractEnd"));

        // Keycloak lets everybody change these two if their declaration has no permissions.
        let bare = json!({"attributes": [{"name": EMAIL}, {"name": USERNAME, "permissions": {"view": ["admin"]}}]});
        let bare = || serde_json::from_value::<Profile>(bare.clone()).expect("the fixture is a valid profile");
        assert_eq!(bare().judge(&by(EMAIL)).0, [EMAIL]);
        assert_eq!(bare().judge(&by(USERNAME)).0, [""; 0]);

        let (unbelieved, _) = profile(&[], Some("ENABLED")).judge(&names);
        let user = user(&json!({"attributes": {"uidNumber": ["2001"]}}));
        assert!(!Scribe::new("r", &names, &unbelieved).user(&user).has("uidNumber"));
    }

    #[test]
    fn nested_groups_and_their_members_get_distinct_dns() {
        let mut names = Preset::Keycloak.attributes();
        names.managers = Some("owner".to_owned());
        let mut scribe = Scribe::new("r", &names, &[]);
        let alice = scribe.user(&user(&json!({})));
        let staff = scribe.group(&group("g1", "staff", &json!({"gidNumber": ["3000"], "owner": ["alice"]})), None);
        let mut lab = scribe.group(&group("g2", "lab", &json!({})), Some(&staff));
        let other = scribe.group(&group("g3", "Lab", &json!({})), Some(&staff));
        assert_eq!(lab.dn, "cn=lab,cn=staff,ou=groups,o=r");
        assert_eq!(other.dn, "id=g3,cn=Lab,cn=staff,ou=groups,o=r");
        assert_eq!((text(&lab, "name"), text(&lab, "path")), (vec!["lab"], vec!["staff-lab"]));
        assert_eq!((text(&staff, "gidNumber"), text(&staff, "owner")), (vec!["3000"], vec![alice.dn.as_str()]));
        for (id, username) in [("u1", "alice"), ("hidden", "bob"), ("renamed", "alice")] {
            scribe.member(&mut lab, &Member { id: id.to_owned(), username: username.to_owned() });
        }
        let hidden = ["uid=bob,ou=users,o=r", "id=renamed,uid=alice,ou=users,o=r"];
        assert_eq!(
            text(&lab, MEMBER),
            [alice.dn.as_str(), hidden[0], hidden[1]],
            "hidden members keep a DN, which the ledger may resolve"
        );
    }

    #[test]
    fn a_refusal_shows_the_servers_reason() {
        let words = |text: &str| ErrorBody::of(text.as_bytes());
        assert_eq!(words(r#"{"error": "a", "error_description": "b"}"#), "b");
        assert_eq!(words(r#"{"error": "Realm does not exist"}"#), "Realm does not exist");
        assert_eq!(words("<html>"), "no reason given");
        assert_eq!(words(&json!({"errorMessage": "x".repeat(1000)}).to_string()).len(), WORDS);
    }
}
