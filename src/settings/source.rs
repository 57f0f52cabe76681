//! Turns `[[source]]` into a [`SourceConfig`]: its preset, and the keys that differ from the preset.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use bursar_directory::entry::sid::Sid;
use bursar_directory::source::{
    AttributeNames, ClientIdentity, DisabledMark, Ids, LdapConfig, LdifConfig, PRESETS, Preset, Secret, Sentinel,
    SidMapping, SourceConfig, SourceError, SourceKind, Tree,
};

use super::keycloak;
use super::secret::SecretPlace;
use super::table::{DURATION, NUMBER, Table};
use crate::identity::AccountKind;
use crate::snapshot::Way;

/// Keys of all types of sources.
const KEYS: [&str; 12] =
    ["name", "type", "preset", "ids", "idmap", "sentinels", "tools", "users", "groups", "attributes", "path", "paths"];
const ATTRIBUTES: [&str; 18] = [
    "id",
    "created",
    "tool_name",
    "user_name",
    "group_name",
    "uid",
    "gid",
    "home",
    "mail",
    "person",
    "display_name",
    "ssh_keys",
    "disabled",
    "member_dns",
    "member_names",
    "member_of",
    "members_required",
    "managers",
];
const IDMAP: [&str; 5] = ["range_min", "range_max", "range_size", "default_domain_sid", "domain_sids"];

/// Keys of LDAP servers and realms only.
const OF_SERVERS: [&str; 21] = [
    "urls",
    "url",
    "ca",
    "bind_dn",
    "password",
    "client_certificate",
    "client_key",
    "members_at_once",
    "incremental",
    "persist",
    "starttls",
    "allow_plaintext",
    "page_size",
    "connect_timeout",
    "timeout",
    "deadline",
    "dns",
    "realm",
    "client_id",
    "client_secret",
    "interval",
];

/// The value of `type`.
#[derive(Clone, Copy)]
enum Type {
    Ldap,
    Ad,
    Ldif,
    Keycloak,
}

/// Reads the sources, in order.
pub(super) fn sources(root: &Table<'_>, folder: &Path) -> Vec<(SourceConfig, Option<SecretPlace>)> {
    let mut names = Vec::new();
    let tables = root.list("source");
    let sources = tables.iter().filter_map(|table| {
        table.only(&[&KEYS[..], &OF_SERVERS].concat());
        let name = table.required("name", "people");
        if let Some(name) = &name {
            if names.contains(name) {
                table.wrong("name", format!("{name:?} is also the name of another source; names must be unique"));
            }
            names.push(name.clone());
        }
        source(table, name.unwrap_or_default(), folder)
    });
    sources.collect()
}

fn source(table: &Table<'_>, name: String, folder: &Path) -> Option<(SourceConfig, Option<SecretPlace>)> {
    if !table.has("type") {
        table.wrong("type", "missing; for example \"ldap\"");
    }
    let types = [("ldap", Type::Ldap), ("ldif", Type::Ldif), ("ad", Type::Ad), ("keycloak", Type::Keycloak)];
    let of_type = table.choice("type", &types)?;
    let (kind, secret) = match of_type {
        Type::Keycloak => keycloak::keycloak(table, folder)?,
        Type::Ldap | Type::Ad => ldap(table, folder),
        Type::Ldif => {
            for key in OF_SERVERS.iter().filter(|key| table.has(key)) {
                table.wrong(key, "is for servers; a source of type ldif reads files: path or paths");
            }
            (SourceKind::Ldif(LdifConfig { paths: ldif_paths(table, folder) }), None)
        }
    };
    let preset = preset(table, of_type);
    let tree = |key, of_kind| match &kind {
        SourceKind::Keycloak(realm) => (of_kind != AccountKind::Tool).then(|| keycloak::tree(realm, of_kind)),
        SourceKind::Ldap(_) | SourceKind::Ldif(_) => tree(table, key, preset, of_kind),
    };
    let source = SourceConfig {
        name,
        sentinels: sentinels(table),
        tools: tree("tools", AccountKind::Tool),
        users: tree("users", AccountKind::User),
        groups: tree("groups", AccountKind::Group),
        attributes: attributes(&table.section("attributes"), preset),
        sids: sids(table, preset),
        kind,
    };
    check(table, &source, secret.as_ref());
    Some((source, secret))
}

/// Applies the checks of the directory reader. A placeholder stands for the password, which is read later.
fn check(table: &Table<'_>, source: &SourceConfig, place: Option<&SecretPlace>) {
    // A misspelt key is reported already, and would cause an error about a missing key here.
    if KEYS.iter().chain(&OF_SERVERS).any(|key| table.misspells(key)) {
        return;
    }
    let mut source = source.clone();
    if let (Some(_), Some((_, secret))) = (place, source.secret()) {
        *secret = Some(Secret::new("read later".to_owned()));
    }
    if let Err(SourceError { key, why }) = source.check()
        && !table.is_wrong(key)
    {
        table.wrong(key, why);
    }
}

/// Reads `preset`. Active Directory and Keycloak have presets of their own.
fn preset(table: &Table<'_>, of_type: Type) -> Preset {
    let (own, name) = match of_type {
        Type::Ldap | Type::Ldif => (None, "ldap"),
        Type::Ad => (Some(Preset::Ad), "ad"),
        Type::Keycloak => (Some(Preset::Keycloak), "keycloak"),
    };
    let told = table.choice("preset", &PRESETS);
    if let Some(own) = own.filter(|own| told.is_some_and(|told| told != *own)) {
        let why = format!("a source of type {name} has the preset {name}; set what differs in [source.attributes]");
        table.wrong("preset", why);
        return own;
    }
    if own.is_none() && told == Some(Preset::Keycloak) {
        table.wrong("preset", "keycloak needs type = \"keycloak\"");
    }
    own.or(told).unwrap_or(Preset::Rfc2307)
}

/// Reads how SIDs become uids and gids, which concerns only Active Directory.
fn sids(table: &Table<'_>, preset: Preset) -> SidMapping {
    let mut sids = SidMapping::default();
    if preset != Preset::Ad {
        for key in ["ids", "idmap"].iter().filter(|key| table.has(key)) {
            table.wrong(key, "is about Active Directory (type = \"ad\")");
        }
        return sids;
    }
    let words = [("auto", Ids::Auto), ("attributes", Ids::Attributes), ("sid", Ids::Sid), ("mixed", Ids::Mixed)];
    sids.ids = table.choice("ids", &words).unwrap_or_default();
    let idmap = table.section("idmap");
    idmap.only(&IDMAP);
    let range = &mut sids.range;
    let bounds = [("range_min", &mut range.lower), ("range_max", &mut range.upper), ("range_size", &mut range.size)];
    for (key, bound) in bounds {
        *bound = idmap.number(key).unwrap_or(*bound);
    }
    let domain = |key: &str, text: &str| {
        let sid = Sid::parse(text).filter(Sid::is_domain);
        if sid.is_none() {
            idmap.wrong(key, format!("{text:?} is not the SID of a domain; for example \"S-1-5-21-123-456-789\""));
        }
        sid
    };
    sids.default_domain = idmap.text("default_domain_sid").and_then(|text| domain("default_domain_sid", &text));
    let listed = idmap.texts("domain_sids").unwrap_or_default();
    sids.domains = listed.iter().filter_map(|text| domain("domain_sids", text)).collect();
    sids
}

fn ldap(table: &Table<'_>, folder: &Path) -> (SourceKind, Option<SecretPlace>) {
    let mut ldap = LdapConfig::new(table.texts("urls").unwrap_or_default());
    ldap.starttls = table.switch("starttls", false);
    ldap.allow_plaintext = table.switch("allow_plaintext", false);
    ldap.way = match (table.switch("incremental", true), table.switch("persist", false)) {
        (true, false) => Way::Incremental,
        (true, true) => Way::Persist,
        (false, false) => Way::Full,
        (false, true) => {
            table.wrong("persist", "cannot be combined with incremental = false; remove one of the two");
            Way::Full
        }
    };
    ldap.ca_pem = ca(table, folder);
    ldap.bind_dn = table.text("bind_dn");
    if let Some(certificate_pem) = pem(table, "client_certificate", folder) {
        ldap.identity = Some(ClientIdentity { certificate_pem, key: None });
    } else if table.has("client_key") && !table.has("client_certificate") {
        table.wrong("client_key", "needs client_certificate");
    }
    ldap.members_at_once = table.number("members_at_once");
    ldap.connect_timeout = table.duration("connect_timeout", ldap.connect_timeout);
    ldap.timeout = table.duration("timeout", ldap.timeout);
    ldap.dns = table.text("dns").and_then(|text| {
        let server = text.parse().ok();
        if server.is_none() {
            table.wrong("dns", format!("{text:?} is not ADDRESS:PORT; for example \"192.0.2.1:53\""));
        }
        server
    });
    ldap.deadline = table.duration("deadline", ldap.deadline);
    let times = [("connect_timeout", ldap.connect_timeout), ("timeout", ldap.timeout), ("deadline", ldap.deadline)];
    for (key, time) in times {
        if time.is_zero() {
            table.wrong(key, format!("0 leaves no time for an answer; for example {}", DURATION.1));
        }
    }
    if table.has("page_size") {
        ldap.page_size = table.parsed("page_size", NUMBER, |text| text.parse().ok()).unwrap_or(ldap.page_size);
    }
    for key in ["path", "paths", "url", "realm", "client_id", "client_secret"].iter().filter(|key| table.has(key)) {
        table.wrong(key, "a source that is a server has none; do you mean urls?");
    }
    if table.has("interval") {
        table
            .wrong("interval", "is for type = \"keycloak\" only; other sources are read in each cycle: schedule.cycle");
    }
    let key = if ldap.identity.is_some() { "client_key" } else { "password" };
    if ldap.identity.is_some() && table.has("password") {
        table.wrong("password", "cannot be combined with client_certificate; remove one of the two");
    }
    (SourceKind::Ldap(ldap), SecretPlace::of(table, key))
}

/// Reads `sentinels`: DNs, or tables of a DN and the attributes that its entry must show.
fn sentinels(table: &Table<'_>) -> Vec<Sentinel> {
    let is_text = |value: &serde_json::Value| value.is_string();
    let texts =
        table.value("sentinels").is_some_and(|value| value.as_array().is_none_or(|list| list.iter().all(is_text)));
    if texts {
        return table.texts("sentinels").unwrap_or_default().iter().map(|dn| dn.as_str().into()).collect();
    }
    let mixed = |value: &serde_json::Value| value.as_array().is_some_and(|list| list.iter().any(is_text));
    if table.value("sentinels").is_some_and(mixed) {
        table.wrong(
            "sentinels",
            "are DNs or tables, not both; for example [{ dn = \"uid=a,dc=x\", attributes = [\"mail\"] }]",
        );
        return Vec::new();
    }
    let one = |table: Table<'_>| {
        table.only(&["dn", "attributes"]);
        let attributes = table.texts("attributes").unwrap_or_default();
        Some(Sentinel { dn: table.required("dn", "uid=novaadmin,ou=people,dc=example,dc=org")?, attributes })
    };
    table.list("sentinels").into_iter().filter_map(one).collect()
}

fn ldif_paths(table: &Table<'_>, folder: &Path) -> Vec<PathBuf> {
    let one = table.text("path").into_iter();
    one.chain(table.texts("paths").unwrap_or_default()).map(|path| folder.join(path)).collect()
}

/// Reads the PEM bundle in the file of `ca`.
pub(super) fn ca(table: &Table<'_>, folder: &Path) -> Option<String> {
    pem(table, "ca", folder)
}

/// Reads the certificates in the file that `key` names.
pub(super) fn pem(table: &Table<'_>, key: &str, folder: &Path) -> Option<String> {
    let path = folder.join(table.text(key)?);
    match std::fs::read_to_string(&path) {
        Ok(pem) if pem.contains("-----BEGIN CERTIFICATE-----") => Some(pem),
        Ok(_) => {
            table.wrong(key, format!("{} has no certificate in PEM", path.display()));
            None
        }
        Err(error) => {
            table.wrong(key, super::file_error(&path, &error, "put the CA's certificates into this file, in PEM"));
            None
        }
    }
}

fn tree(table: &Table<'_>, key: &str, preset: Preset, kind: AccountKind) -> Option<Tree> {
    let fields = table.has(key).then(|| table.section(key))?;
    fields.only(&["base", "filter", "strip_prefix"]);
    let mut tree = preset.tree(kind, &fields.required("base", "ou=people,dc=example,dc=org")?);
    if let Some(filter) = fields.text("filter") {
        tree.filter = filter;
    }
    // An empty text is valid here: nothing is stripped from names.
    if fields.value("strip_prefix").is_some_and(|prefix| prefix == "") {
        tree.strip_prefix = None;
    } else if let Some(prefix) = fields.text("strip_prefix") {
        tree.strip_prefix = Some(prefix);
    }
    Some(tree)
}

fn attributes(table: &Table<'_>, preset: Preset) -> AttributeNames {
    table.only(&ATTRIBUTES);
    let mut names = preset.attributes();
    let plain = [
        ("id", &mut names.id),
        ("created", &mut names.created),
        ("tool_name", &mut names.tool_name),
        ("user_name", &mut names.user_name),
        ("group_name", &mut names.group_name),
        ("uid", &mut names.uid),
        ("gid", &mut names.gid),
        ("home", &mut names.home),
        ("mail", &mut names.mail),
        ("ssh_keys", &mut names.ssh_keys),
    ];
    for (key, name) in plain {
        if let Some(text) = table.text(key) {
            *name = text;
        }
    }
    let lists = [
        ("display_name", &mut names.display_name),
        ("member_dns", &mut names.member_dns),
        ("member_names", &mut names.member_names),
        ("member_of", &mut names.member_of),
    ];
    for (key, name) in lists {
        if let Some(list) = one_or_more(table, key) {
            *name = list;
        }
    }
    names.members_required = table.switch("members_required", names.members_required);
    names.person = table.text("person").or(names.person);
    if table.has("managers") {
        names.managers = table.text("managers");
    }
    if let Some(marks) = one_or_more(table, "disabled") {
        names.disabled = marks.iter().filter_map(|mark| disabled(table, mark)).collect();
    }
    names
}

fn disabled(table: &Table<'_>, text: &str) -> Option<DisabledMark> {
    let mark = DisabledMark::from_str(text);
    if let Err(error) = &mark {
        table.wrong("disabled", &error.why);
    }
    mark.ok()
}

/// Reads a text or a list of texts.
fn one_or_more(table: &Table<'_>, key: &str) -> Option<Vec<String>> {
    match table.value(key)?.as_str() {
        Some(text) if !text.starts_with('[') => Some(vec![text.to_owned()]),
        _ => table.texts(key),
    }
}
