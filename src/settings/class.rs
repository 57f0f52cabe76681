//! Reads `[class.NAME]`: which accounts become tenants, and what they get.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use regex::Regex;

use super::admission;
use super::adopted::{self, OF_ADOPTED};
use super::credential;
use super::profile;
use super::table::{Table, ValueKind, absolute_path, is_none_of};
use super::uid_range;
use super::volume;
use crate::identity::{AccountKind, ClusterName, KUBERNETES_NAME_MAX, NamespaceName};
use crate::kinds::DriftKey;
use crate::policy::{
    Admission, Class, Cluster, DriftMode, From, FromWorkspaces, HomeRule, Pattern, PodSecurity, Provision, When,
    Workspace,
};

/// All keys of a class.
pub(super) const KEYS: [&str; 28] = [
    "from",
    "when",
    "clusters",
    "name_pattern",
    "namespace",
    "home",
    "roles",
    "service_account_roles",
    "impersonate",
    "provision",
    "drift",
    "pod_security",
    "quota",
    "quota_locked",
    "limit_range",
    "network",
    "credential",
    "volumes",
    "admission",
    "member_roles",
    "manager_roles",
    "managers",
    "member_quota",
    "tier",
    "uid_range",
    "quota_from_workspaces",
    "selector",
    "owner_annotation",
];
/// Keys that need a namespace.
const OF_A_NAMESPACE: [&str; 9] = [
    "quota",
    "quota_from_workspaces",
    "quota_locked",
    "limit_range",
    "network",
    "volumes",
    "pod_security",
    "service_account_roles",
    "admission",
];
/// Keys about the members of a group.
const OF_GROUPS: [&str; 6] = ["member_roles", "manager_roles", "managers", "member_quota", "tier", "uid_range"];
/// Keys about the holder of a credential. A group has no credential, because each of its members has one.
const OF_A_HOLDER: [&str; 5] = ["home", "credential", "roles", "impersonate", "provision"];
/// The default of `name_pattern`.
pub(super) const NAME_PATTERN: &str = "^[a-z][a-z0-9-]{1,50}$";
/// The default of `roles`: `edit` without the rights that would undo the isolation. `init` makes this role.
pub(super) const ROLES: [&str; 1] = ["bursar-tenant"];
/// The default of `pod_security`: Kubernetes' strictest level, because tenants get only what their class asks for.
pub(super) const POD_SECURITY: PodSecurity = PodSecurity::Restricted;
/// The default of `kubeconfig`, where kubectl looks.
pub(super) const KUBECONFIG: &str = ".kube/config";

const PATTERN: ValueKind = ValueKind("a regular expression", "\"^[a-z][a-z0-9-]{1,50}$\"");
const RELATIVE: ValueKind = ValueKind("a path within the home", "\".kube/config\"");

/// The names that a class may refer to.
pub(super) struct Known<'a> {
    pub(super) clusters: &'a BTreeMap<ClusterName, Cluster>,
    /// Whether `[cluster.NAME]` is misspelt, so that `clusters` is empty.
    pub(super) clusters_misspelt: bool,
    pub(super) networks: Vec<String>,
    pub(super) prefixes: &'a [PathBuf],
}

/// Reads the class in `table`, without its manifests.
pub(super) fn class(name: &str, table: &Table<'_>, known: &Known<'_>) -> Option<Class> {
    table.only(&KEYS);
    let kind = kind(table)?;
    let namespace = namespace(table, kind);
    let clusters = clusters(table, known);
    let home = home(table, kind, known);
    let credential = credential::credential(table, kind, &clusters, known);
    if credential.is_some() && home.is_none() && !table.has("home") {
        table.wrong("home", "missing; the credential is written there; for example { prefix = \"/home\" }");
    }
    fitting(table, kind);
    let quota_from_workspaces = quota_from_workspaces(table, kind);
    let from = match kind {
        Some(AccountKind::Tool) => From::Tools,
        Some(AccountKind::User) => From::Users(quota_from_workspaces),
        Some(AccountKind::Group) => From::Groups(workspace(table)),
        None => From::Adopted(adopted::adopts(table)?),
    };
    Some(Class {
        name: name.to_owned(),
        from,
        when: when(table),
        clusters,
        name_pattern: pattern(table),
        roles: if kind == Some(AccountKind::Group) { Vec::new() } else { roles(table, kind, namespace.as_ref()) },
        namespace,
        home,
        service_account_roles: table.texts("service_account_roles").unwrap_or_default(),
        impersonate: impersonate(table),
        drift: drift(&table.section("drift")),
        pod_security: if kind.is_some() { pod_security(table) } else { POD_SECURITY },
        quota: profile::quota(&table.section("quota")),
        quota_locked: profile::quota_locked(table),
        limit_range: table.has("limit_range").then(|| profile::limit_range(&table.section("limit_range"))),
        network: network(table, kind, known),
        credential,
        volumes: volume::volumes(table, known.prefixes, kind),
        admission: match kind {
            Some(kind) => admission::admission(&table.section("admission"), kind, table.has("uid_range")),
            None => Admission::default(),
        },
        provision: provision(table),
        manifests: Vec::new(),
    })
}

/// Returns the kind of account that the class is for; `Some(None)` if the class adopts namespaces.
#[expect(clippy::option_option, reason = "the outer Option means an error, as in every reader of a key")]
fn kind(table: &Table<'_>) -> Option<Option<AccountKind>> {
    if !table.has("from") {
        table.wrong("from", "missing; one of: tools, users, groups, adopted");
    }
    let kinds = [
        ("tools", Some(AccountKind::Tool)),
        ("users", Some(AccountKind::User)),
        ("groups", Some(AccountKind::Group)),
        ("adopted", None),
    ];
    table.choice("from", &kinds)
}

fn provision(table: &Table<'_>) -> Provision {
    let words = [("always", Provision::Always), ("on-demand", Provision::OnDemand)];
    table.choice("provision", &words).unwrap_or_default()
}

/// Records an error for each key that does not fit the kind of the class.
fn fitting(table: &Table<'_>, kind: Option<AccountKind>) {
    if kind.is_none() {
        return;
    }
    for key in OF_ADOPTED.iter().filter(|key| table.has(key)) {
        table.wrong(key, "is allowed only with from = \"adopted\"");
    }
    let (strange, why) = match kind {
        Some(AccountKind::Group) => {
            (&OF_A_HOLDER[..], "the people of a group have credentials of their own, by a class of users")
        }
        _ => (&OF_GROUPS[..], "only a class with from = \"groups\" has members"),
    };
    for key in strange.iter().filter(|key| table.has(key)) {
        table.wrong(key, why);
    }
    if table.has("namespace") {
        return;
    }
    for key in OF_A_NAMESPACE {
        if table.has(key) {
            table.wrong(key, "the class has no namespace; for example namespace = \"user-{name}\"");
        }
    }
}

/// Reads `namespace`, a pattern `PREFIX{name}SUFFIX` that is short enough for every name.
fn namespace(table: &Table<'_>, kind: Option<AccountKind>) -> Option<String> {
    let kind = kind?;
    if kind != AccountKind::User && !table.has("namespace") {
        let example = if kind == AccountKind::Tool { "tool-{name}" } else { "workspace-{name}" };
        table.wrong("namespace", format!("missing; for example {example:?}"));
    }
    let text = table.text("namespace")?;
    let around = text.len().saturating_sub("{name}".len());
    let filled = text.replace("{name}", "a");
    if text.matches("{name}").count() != 1 {
        table.wrong("namespace", format!("{text:?} needs {{name}} once; for example \"tool-{{name}}\""));
    } else if around + KUBERNETES_NAME_MAX > 63 {
        let most = 63 - KUBERNETES_NAME_MAX;
        table.wrong("namespace", format!("{text:?} has more than {most} characters besides {{name}}"));
    } else if let Err(error) = NamespaceName::try_from(filled) {
        table.wrong("namespace", error.to_string());
    }
    Some(text)
}

fn clusters(table: &Table<'_>, known: &Known<'_>) -> Vec<ClusterName> {
    let names = table.texts("clusters").unwrap_or_default();
    if names.is_empty() {
        table.wrong("clusters", "missing; for example [\"prod\"]");
    }
    if known.clusters.is_empty() && known.clusters_misspelt {
        return Vec::new();
    }
    let all = || known.clusters.keys().map(|name| name.0.as_str());
    for name in names.iter().filter(|name| !all().any(|known| known == name.as_str())) {
        table.wrong("clusters", unknown(name, all(), "[cluster.NAME]"));
    }
    names.into_iter().map(ClusterName::from).collect()
}

/// Returns a message such as `"prd" is none of: prod; did you mean "prod"?`
pub(super) fn unknown<'k>(name: &str, known: impl Iterator<Item = &'k str> + Clone, where_to: &str) -> String {
    let value = serde_json::Value::String(name.to_owned());
    if known.clone().next().is_none() { format!("{value} has no {where_to}") } else { is_none_of(&value, known) }
}

fn when(table: &Table<'_>) -> Option<When> {
    let fields = table.table("when")?;
    fields.only(&["group", "base"]);
    match (fields.text("group"), fields.text("base")) {
        (Some(group), None) => Some(When::Group(group)),
        (None, Some(base)) => Some(When::Base(base)),
        _ if fields.misspells("group") || fields.misspells("base") => None,
        _ => {
            fields.wrong_itself("needs one of group, base; for example { group = \"k8s-admins\" }");
            None
        }
    }
}

fn pattern(table: &Table<'_>) -> Pattern {
    let given = table.parsed("name_pattern", PATTERN, |text| Regex::new(text).ok());
    if let Some(regex) = given.as_ref().filter(|regex| !is_anchored(regex.as_str())) {
        table.wrong("name_pattern", format!("{:?} must begin with ^ and end with $", regex.as_str()));
    }
    Pattern(given.unwrap_or_else(default_pattern))
}

fn is_anchored(text: &str) -> bool {
    text.starts_with('^') && text.ends_with('$')
}

fn default_pattern() -> Regex {
    Regex::new(NAME_PATTERN).expect("the constant is a valid regex, which a test compiles")
}

/// Reads `roles`. If the class has no namespace, its roles apply to the whole cluster, so they have no default.
fn roles(table: &Table<'_>, kind: Option<AccountKind>, namespace: Option<&String>) -> Vec<String> {
    if kind.is_some() && namespace.is_none() && !table.has("roles") && !table.has("namespace") {
        table
            .wrong("roles", "missing: without namespace, the roles apply to the whole cluster; for example [\"view\"]");
    }
    table.texts("roles").unwrap_or_else(|| ROLES.map(str::to_owned).to_vec())
}

fn quota_from_workspaces(table: &Table<'_>, kind: Option<AccountKind>) -> Option<FromWorkspaces> {
    if kind != Some(AccountKind::User) && table.has("quota_from_workspaces") {
        table.wrong("quota_from_workspaces", "only people belong to workspaces; from = \"users\"");
    }
    let ways = [("sum", FromWorkspaces::Sum), ("max", FromWorkspaces::Max), ("tier", FromWorkspaces::Tier)];
    table.choice("quota_from_workspaces", &ways)
}

fn workspace(table: &Table<'_>) -> Workspace {
    let members = table.texts("member_roles").unwrap_or_else(|| ROLES.map(str::to_owned).to_vec());
    let managers = table.texts("manager_roles").unwrap_or_else(|| members.clone());
    Workspace {
        members,
        managers,
        named_by: table.text("managers"),
        member_quota: profile::quota(&table.section("member_quota")),
        tier: table.number("tier").unwrap_or_default(),
        uid_range: uid_range::uid_range(table),
    }
}

fn impersonate(table: &Table<'_>) -> Vec<String> {
    if table.has("impersonate") && table.has("namespace") {
        table.wrong("impersonate", "applies to the whole cluster, so the class must not have a namespace");
    }
    let fields = table.section("impersonate");
    fields.only(&["users"]);
    let users = fields.texts("users").unwrap_or_default();
    for user in users.iter().filter(|user| user.starts_with("system:")) {
        fields.wrong("users", format!("{user:?} is reserved for Kubernetes; for example \"bursar:cluster-admin\""));
    }
    users
}

fn drift(table: &Table<'_>) -> BTreeMap<DriftKey, DriftMode> {
    table.only(&DriftKey::ALL.map(DriftKey::as_str));
    let modes = [("revert", DriftMode::Revert), ("report", DriftMode::Report), ("adopt", DriftMode::Adopt)];
    let mut drift = BTreeMap::new();
    for key in table.keys().iter().filter_map(|key| DriftKey::named(key)) {
        match table.choice(key.as_str(), &modes) {
            Some(DriftMode::Adopt) if key != DriftKey::Quota => {
                table.wrong(key.as_str(), "only a quota is adopted; one of: revert, report");
            }
            Some(mode) => drop(drift.insert(key, mode)),
            None => {}
        }
    }
    drift
}

fn pod_security(table: &Table<'_>) -> PodSecurity {
    let levels = [
        ("privileged", PodSecurity::Privileged),
        ("baseline", PodSecurity::Baseline),
        ("restricted", PodSecurity::Restricted),
    ];
    table.choice("pod_security", &levels).unwrap_or(POD_SECURITY)
}

/// Reads `network`. In adopted namespaces the default is `open`, because their makers have policies of their own.
fn network(table: &Table<'_>, kind: Option<AccountKind>, known: &Known<'_>) -> String {
    let default = if kind.is_none() { "open" } else { "isolated" };
    let name = table.text("network").unwrap_or_else(|| default.to_owned());
    if !known.networks.contains(&name) {
        table.wrong("network", unknown(&name, known.networks.iter().map(String::as_str), "[network.NAME]"));
    }
    name
}

fn home(table: &Table<'_>, kind: Option<AccountKind>, known: &Known<'_>) -> Option<HomeRule> {
    let fields = table.has("home").then(|| table.section("home"))?;
    fields.only(&["prefix", "kubeconfig", "create", "ssh_keys", "replace_unparsable"]);
    if !fields.has("prefix") {
        fields.wrong("prefix", "missing; for example \"/home\"");
    }
    let prefix = fields.parsed("prefix", absolute_path("\"/home\""), absolute)?;
    if !known.prefixes.iter().any(|allowed| prefix.starts_with(allowed)) {
        let prefixes: Vec<String> = known.prefixes.iter().map(|prefix| prefix.display().to_string()).collect();
        fields.wrong(
            "prefix",
            format!("\"{}\" is beneath none of homes.prefixes: {}", prefix.display(), prefixes.join(", ")),
        );
    }
    let kubeconfig = fields.parsed("kubeconfig", RELATIVE, within).unwrap_or_else(|| PathBuf::from(KUBECONFIG));
    let ssh_keys = fields.switch("ssh_keys", false);
    if ssh_keys && kind != Some(AccountKind::User) {
        fields.wrong("ssh_keys", "only people have keys of their own; from = \"users\"");
    }
    let (create, replace_unparsable) = (fields.switch("create", false), fields.switch("replace_unparsable", false));
    Some(HomeRule { prefix, kubeconfig, create, ssh_keys, replace_unparsable })
}

/// An absolute path without `..`.
pub(super) fn absolute(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let plain = path.components().all(|part| !matches!(part, Component::ParentDir));
    (path.is_absolute() && plain).then(|| path.to_path_buf())
}

fn within(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && path.file_name().is_some()).then(|| path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_pattern_is_valid() {
        assert!(default_pattern().is_match("tool-1") && !default_pattern().is_match("Tool"));
    }

    #[test]
    fn a_kubeconfig_stays_in_its_home() {
        assert!(within(".kube/config").is_some());
        assert!([".", "", "..", "/etc/passwd", "../x"].iter().all(|path| within(path).is_none()));
        assert!(absolute("/home").is_some() && absolute("home").is_none() && absolute("/home/..").is_none());
    }
}
