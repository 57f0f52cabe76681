//! Tests the error of each kind of mistake, and that the shipped configuration documents the defaults of the code.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bursar_directory::source::{Ids, SourceKind};

use super::*;
use crate::rules::Mode;
use crate::snapshot::Way;

const PEM: &str = "-----BEGIN CERTIFICATE-----\nnot looked into\n-----END CERTIFICATE-----\n";
/// The keys that every test needs.
const BASE: &str = r#"
site = "test"
[[source]]
name = "people"
type = "ldap"
preset = "toolforge"
urls = ["ldaps://ldap.example.org"]
[source.tools]
base = "ou=tools,dc=example,dc=org"
[cluster.prod.endpoint.internal]
url = "https://k8s.example.org:6443"
ca = "k8s-ca.pem"
"#;
const TOOL: &str = r#"
[class.tool]
from = "tools"
clusters = ["prod"]
namespace = "tool-{name}"
"#;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    for name in ["front-proxy-ca.pem", "k8s-ca.pem", "ldap-ca.pem"] {
        std::fs::write(folder.path().join(name), PEM).expect("the folder is writable");
    }
    folder
}

fn load_in(folder: &Path, text: &str, variables: &[(&str, &str)]) -> Result<Settings, SettingsErrors> {
    let path = folder.join("bursar.toml");
    std::fs::write(&path, text).expect("the folder is writable");
    let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let without_line = |error: String| match error.rsplit_once(" (line ") {
        Some((error, _)) => error.to_owned(),
        None => error,
    };
    Settings::load_with(&path, &environment.collect())
        .map_err(|errors| SettingsErrors(errors.0.into_iter().map(without_line).collect()))
}

fn load(text: &str) -> Result<Settings, SettingsErrors> {
    load_in(folder().path(), text, &[])
}

/// Returns the errors of [`BASE`] followed by `text`.
fn errors(text: &str) -> Vec<String> {
    load(&format!("{BASE}{text}")).expect_err("the text has an error").0
}

fn class_error(line: &str) -> Vec<String> {
    errors(&format!("{TOOL}{line}\n"))
}

#[test]
fn errors_name_the_line_of_the_key_or_of_its_table() {
    let text = r#"site = "test"
homs = {}

[[source]]
name = "people"
type = "ldap"
preset = "toolforge"
urls = ["ldaps://ldap.example.org"]

[source.tools]
base = 5

[[source]]
name = "guests"
type = "ldif"

[class.tool]
from = "tools"
namespace = "tool-{name}"
quota = { pods = "16",
    "limits.memory" = "lots" }
volumes = [
    { name = "data", kind = "odd" },
]
"#;
    let folder = folder();
    let path = folder.path().join("bursar.toml");
    let variables = BTreeMap::from([("BURSAR_CLUSTER__LAB__DNS".to_owned(), "x".to_owned())]);
    let SettingsErrors(errors) = {
        std::fs::write(&path, text).expect("the folder is writable");
        Settings::load_with(&path, &variables).expect_err("the text has errors")
    };
    for (key, line) in [
        ("homs", " (line 2)"),
        ("source.people.tools.base", " (line 11)"),
        ("source.guests.paths", " (line 13)"),
        ("class.tool.clusters", " (line 17)"),
        ("class.tool.quota.limits.memory", " (line 21)"),
        ("class.tool.volumes.data.kind", " (line 23)"),
    ] {
        let found = errors.iter().find(|error| error.starts_with(&format!("bursar.toml: {key}: ")));
        assert!(found.is_some_and(|error| error.ends_with(line)), "{key}{line}: {errors:#?}");
    }
    let of_variable = errors.iter().find(|error| error.contains("cluster.lab"));
    assert!(of_variable.is_some_and(|error| !error.contains("(line")), "{errors:#?}");
}

#[test]
fn errors_name_key_value_and_example() {
    let told = |line: &str, error: &str| assert_eq!(class_error(line), [format!("bursar.toml: {error}")], "{line}");
    told(r#"quota = { pods = "sixteen" }"#, r#"class.tool.quota.pods: "sixteen" is not a quantity; for example "16""#);
    told(r#"quota = { pod = "1" }"#, r#"class.tool.quota.pod: no quota has such a resource; did you mean "pods"?"#);
    told("quotas = {}", "class.tool.quotas: there is no such key; did you mean quota?");
    told(
        r#"network = "isolatd""#,
        r#"class.tool.network: "isolatd" is none of: isolated, open; did you mean "isolated"?"#,
    );
    told(r#"pod_security = "none""#, r#"class.tool.pod_security: "none" is none of: privileged, baseline, restricted"#);
    told(
        r#"name_pattern = "(""#,
        r#"class.tool.name_pattern: "(" is not a regular expression; for example "^[a-z][a-z0-9-]{1,50}$""#,
    );
    told(
        r#"home = { prefix = "/srv" }"#,
        r#"class.tool.home.prefix: "/srv" is beneath none of homes.prefixes: /data/project, /home"#,
    );
    told(
        r#"volumes = [{ name = "home", kind = "static", nfs = { server = "nfs", path = "x" } }]"#,
        r#"class.tool.volumes.home.nfs.path: "x" is not an absolute path; for example "/srv/project/{name}""#,
    );
    told(
        r#"volumes = [{ name = "home", kind = "dynamic", size = "1Gi", nfs = { server = "nfs", path = "/x" } }]"#,
        "class.tool.volumes.home.nfs: only volumes of kind static, shared or personal have this key",
    );
    told(
        r#"volumes = [{ name = "own", kind = "personal", size = "1Gi", directory = "/home/{name}" }]"#,
        "class.tool.volumes.own.directory: a personal volume from a storage class does not have this key",
    );
    told(
        r#"volumes = [{ name = "scratch", kind = "dynamic" }]"#,
        r#"class.tool.volumes.scratch.size: missing; for example "10Gi""#,
    );
    told(
        r#"volumes = [{ name = "home", kind = "static", nfs = { server = "nfs", path = "/x" }, directory = "/srv/{name}" }]"#,
        r#"class.tool.volumes.home.directory: "/srv/{name}" is beneath none of homes.prefixes"#,
    );
    told(
        r#"limit_range = { container = { max = { memory = "6GB" } } }"#,
        r#"class.tool.limit_range.container.max.memory: "6GB" is not a quantity; for example "16""#,
    );
    told(r#"admission = { uid = "on" }"#, r#"class.tool.admission.uid: "on" is none of: enforce, warn, audit, off"#);
    told("drift = { roles = \"adopt\" }", "class.tool.drift.roles: only a quota is adopted; one of: revert, report");
    told("drift = { quota = true }", "class.tool.drift.quota: true is none of: revert, report, adopt");
    told("when = {}", r#"class.tool.when: needs one of group, base; for example { group = "k8s-admins" }"#);
}

#[test]
fn a_configuration_that_cannot_be_read_names_the_remedy() {
    let folder = folder();
    let load = |path: &Path| {
        Settings::load_with(path, &std::collections::BTreeMap::new()).expect_err("the file does not exist").0
    };
    assert!(load(&folder.path().join("no.toml"))[0].contains("no.toml does not exist; write it"));
    let is_folder = load(folder.path());
    assert!(is_folder[0].starts_with("cannot read ") && is_folder[0].contains("--config FILE"), "{is_folder:?}");
    let latin = folder.path().join("latin.toml");
    std::fs::write(&latin, b"site = \"caf\xe9\"\n").expect("the folder is writable");
    assert!(load(&latin)[0].contains("latin.toml: it is not UTF-8; save it as UTF-8"));
}

#[test]
fn each_mistake_is_reported_once() {
    let told = |text: &str, error: &str| assert_eq!(errors(text), [format!("bursar.toml: {error}")], "{text}");
    told("[limits]\nsuspend_per_cycle = 5\n", "limits.suspend_per_cycle: 5 is not a table; for example { count = 5 }");
    told("[reaper.pods]\nlifetime = \"x\"\n", "reaper.pods.lifetime: \"x\" is not a duration; for example \"24h\"");
    let number = "is not a whole number of 0 or more that fits here; for example 5";
    for wrong in ["-1", "1.5"] {
        told(
            &format!("[limits]\nsuspend_per_cycle = {{ count = 1, percent = {wrong} }}\n"),
            &format!("limits.suspend_per_cycle.percent: {wrong} {number}"),
        );
    }
    told("[webhook]\nimage = \"\"\n", "webhook.image: is empty; give it a value");
    // A longer time would overflow when it is added to the present time.
    let forever = "18446744073709551615s";
    told(
        &format!("[reaper.namespaces]\nwarn_for = \"{forever}\"\n"),
        &format!("reaper.namespaces.warn_for: \"{forever}\" is not a duration; for example \"24h\""),
    );
    told(
        "[[source]]\nname = \"b\"\ntype = \"ldif\"\npath = \"b\"\nusers = { base = \"dc=b\", strip_prefix = 5 }\n",
        "source.b.users.strip_prefix: 5 is not text; for example \"5\"",
    );
    told(
        &format!("{TOOL}when = {{ grup = \"a\" }}\n"),
        "class.tool.when.grup: there is no such key; did you mean group?",
    );
    told(
        "[homes]\nsocket = \"x\"\n",
        "homes.socket: \"x\" is not an absolute path of at most 107 bytes; for example \"/run/bursar/homed.sock\"",
    );
    let url = BASE.replace("https://k8s.example.org:6443", "http://k8s");
    let endpoints = "credential = { kind = \"certificate\", lifetime = \"7d\", endpoints = [\"internal\"] }\n";
    let home = "home = { prefix = \"/data/project\" }\n";
    let found = load(&format!("{url}{TOOL}{home}{endpoints}")).expect_err("the URL is wrong").0;
    assert!(
        found.len() == 1 && found[0].contains("endpoint.internal.url: \"http://k8s\" is not an https URL"),
        "{found:?}"
    );
}

#[test]
fn a_sentinel_is_a_dn() {
    let with = |dn: &str| load(&BASE.replace("preset", &format!("sentinels = [{dn:?}]\npreset")));
    assert!(with("uid=novaadmin,ou=people,dc=example,dc=org").is_ok() && with("2.5.4.3 = a").is_ok());
    for wrong in ["novaadmin", "=a", "uid novaadmin=x"] {
        let found = with(wrong).expect_err("the text is not a DN").0;
        assert!(
            found.len() == 1 && found[0].contains(&format!("source.people.sentinels: {wrong:?} is not a DN")),
            "{found:?}"
        );
    }
}

#[test]
fn a_missing_ldif_file_is_a_warning() {
    let files =
        "[[source]]\nname = \"files\"\ntype = \"ldif\"\npreset = \"rfc2307\"\npaths = [\"k8s-ca.pem\", \"no.ldif\"]\n";
    let users = "[source.users]\nbase = \"ou=people,dc=example,dc=org\"\n";
    let folder = folder();
    let (errors, warnings) =
        load_in(folder.path(), &format!("{BASE}{files}{users}"), &[]).expect("the settings are valid").missing_files();
    let missing = format!("source.files.paths: {} does not exist", folder.path().join("no.ldif").display());
    assert_eq!((errors, warnings), (Vec::new(), vec![missing]));
}

#[test]
fn a_file_has_no_keys_of_servers() {
    let files = "[[source]]\nname = \"files\"\ntype = \"ldif\"\npreset = \"rfc2307\"\npaths = [\"people.ldif\"]\n";
    let users = "[source.users]\nbase = \"ou=people,dc=example,dc=org\"\n";
    assert!(load(&format!("{BASE}{files}{users}")).is_ok());
    let found = errors(&format!("{files}persist = true\nrealm = \"research\"\n{users}"));
    let why = "is for servers; a source of type ldif reads files: path or paths";
    let told: Vec<String> =
        ["persist", "realm"].iter().map(|key| format!("bursar.toml: source.files.{key}: {why}")).collect();
    assert_eq!(BTreeSet::from_iter(found), BTreeSet::from_iter(told));
}

#[test]
fn a_realm_has_keys_of_its_own() {
    let realm = "[[source]]\nname = \"sso\"\ntype = \"keycloak\"\nurl = \"https://sso\"\nrealm = \"lab\"\n";
    let client = "client_id = \"bursar\"\nclient_secret = { file = \"/nonexistent\" }\n";
    let told = |rest: &str, expected: &[&str]| {
        let expected: BTreeSet<String> =
            expected.iter().map(|line| format!("bursar.toml: source.sso.{line}")).collect();
        assert_eq!(BTreeSet::from_iter(errors(&format!("{realm}{rest}"))), expected, "{rest}");
    };
    told("", &["client_id: missing; for example \"bursar\""]);
    let secret = r#"client_secret: the client needs one; for example { credential = "keycloak-secret" }"#;
    told("client_id = \"bursar\"\n", &[secret]);
    let shown = "client_secret: is { credential = \"NAME\" } or { file = \"/path\" }, never the password itself";
    told("client_id = \"bursar\"\nclient_secret = \"hunter2\"\n", &[shown]);
    let relative = "client_secret: file is not an absolute path; for example { file = \"/etc/bursar/password\" }";
    told("client_id = \"bursar\"\nclient_secret = { file = \"pw\" }\n", &[relative]);
    told(
        &format!("{client}preset = \"rfc2307\"\npersist = true\n[source.tools]\nbase = \"ou=tools\"\n"),
        &[
            "persist: Keycloak does not report changes: it is read again after each interval",
            "preset: a source of type keycloak has the preset keycloak; set what differs in [source.attributes]",
            "tools: a realm has people and groups; tools come from another source",
        ],
    );
    let loaded = load(&format!("{BASE}{realm}{client}interval = \"10m\"\n")).expect("the settings are valid");
    let (source, _) = &loaded.sources[1];
    assert_eq!(source.interval(), Duration::from_mins(10));
    assert_eq!(source.groups.as_ref().map(|tree| tree.base.as_str()), Some("ou=groups,o=lab"));
    let missing = loaded.sources().expect_err("there is no secret").to_string();
    assert!(missing.contains("source.sso.client_secret: /nonexistent: "), "{missing}");

    let preset = "preset = \"toolforge\"";
    let ldap = |line: &str| load(&BASE.replace(preset, line)).expect_err("the text has an error").to_string();
    assert!(ldap("interval = \"1m\"").contains("source.people.interval: is for type = \"keycloak\" only"));
    assert!(ldap("preset = \"keycloak\"").contains("source.people.preset: keycloak needs"));
}

#[test]
fn a_source_is_read_by_its_changes_if_the_server_reports_them() {
    let way = |lines: &str| -> Result<Way, String> {
        let preset = "preset = \"toolforge\"";
        let loaded = load(&BASE.replace(preset, lines)).map_err(|errors| errors.to_string())?;
        match &loaded.sources[0].0.kind {
            SourceKind::Ldap(ldap) => Ok(ldap.way),
            other => panic!("{other:?}"),
        }
    };
    let toolforge = |line: &str| way(&format!("preset = \"toolforge\"\n{line}"));
    assert_eq!(toolforge(""), Ok(Way::Incremental));
    assert_eq!(toolforge("persist = true"), Ok(Way::Persist));
    assert_eq!(toolforge("incremental = false"), Ok(Way::Full));
    let both = toolforge("persist = true\nincremental = false").expect_err("the text has an error");
    assert!(both.contains("source.people.persist: cannot be combined with incremental = false"), "{both}");
    let member_of = way("preset = \"freeipa\"\npersist = true").expect_err("the text has an error");
    assert!(member_of.contains("source.people.persist: servers do not report changes of memberOf"), "{member_of}");
}

#[test]
fn errors_in_a_credential_name_what_its_kind_needs() {
    let told = |kind: &str, expected: &[&str]| {
        let class = format!("{TOOL}home = {{ prefix = \"/home\" }}\ncredential = {{ {kind} }}\n");
        let expected: Vec<String> =
            expected.iter().map(|line| format!("bursar.toml: class.tool.credential.{line}")).collect();
        let mut errors = errors(&class);
        errors.sort();
        assert_eq!(errors, expected, "{kind}");
    };
    let outside = |rest: &str| format!("kind = \"service-account\", {rest}");
    told("kind = \"token\"", &[r#"kind: "token" is none of: certificate, service-account, oidc"#]);
    told("hosts = [\"ce1\"]", &["hosts: there is no such key; there are: kind, lifetime, endpoints"]);
    told("kind = \"service-account\"", &[r#"hosts: missing: each host has a token of its own; for example ["ce1"]"#]);
    told(
        &outside("hosts = [\"Ce1\", \"b\", \"b\"], directory = \"/srv/{name}\", lifetime = \"90d\""),
        &[
            r#"directory: "/srv/{name}" is beneath none of homes.prefixes: /data/project, /home"#,
            r#"directory: "/srv/{name}" needs {host} once; for example "/srv/outside/{host}/{name}""#,
            r#"hosts: "Ce1" may have only lower case letters, digits and '-', at most 40 of them; for example "ce1""#,
            r#"hosts: "b" is listed twice"#,
            r#"lifetime: must be between 10m and 30d; for example "1h""#,
        ],
    );
    told(
        &outside("hosts = [\"ce1\", \"ce2\"]"),
        &[
            r#"directory: missing: a home has room for the token of one host only, and this class has 2 hosts; for example "/srv/outside/{host}/{name}""#,
        ],
    );
    let login = "issuer = \"http://sso\", client_id = \"a b\", user = \"system:{name}\", grant = \"password\"";
    told(
        &format!("kind = \"oidc\", {login}"),
        &[
            r#"client_id: "a b" may have only letters, digits and any of . _ : / + -"#,
            r#"grant: "password" is none of: auto, device-code"#,
            r#"issuer: "http://sso" is not an https URL; for example "https://sso.example.org/realms/site""#,
            r#"kind: kind = "oidc" needs from = "users", because a tool cannot log in"#,
            r#"user: "system:{name}" is reserved for Kubernetes or Bursar; for example "oidc:{name}""#,
        ],
    );
}

#[test]
fn tables_of_disabled_features_are_accepted() {
    let harmless = "[archive]\nrecipient = \"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p\"\n[webhook]\nexempt = [\"a\"]\n[reaper.namespaces]\nenabled = false\nidle_for = \"9d\"\n";
    assert_eq!(load(&format!("{BASE}{harmless}")).expect("the settings are valid").policy.exempt, ["a"]);
}

#[test]
fn a_class_of_adopted_namespaces_needs_a_selector_and_an_owner_annotation() {
    let class = "[class.profile]\nfrom = \"adopted\"\nclusters = [\"prod\"]\nowner_annotation = \"owner\"\n";
    let good = load(&format!("{BASE}{class}selector = \"a in (b, c),!d\"\n")).expect("the settings are valid");
    let profile = &good.policy.classes["profile"];
    assert_eq!((profile.network.as_str(), profile.roles.as_slice()), ("open", ["bursar-tenant".to_owned()].as_slice()));
    assert!(profile.namespace.is_none() && profile.adopts().is_some());
    for (wrong, key) in [
        ("selector = \"!a\"\n", "selector"),
        ("", "selector"),
        ("selector = \"a=b\"\nnamespace = \"x-{name}\"\n", "namespace"),
        ("selector = \"a=b\"\ndrift = { quota = \"adopt\" }\n", "drift.quota"),
        ("selector = \"a=b\"\npod_security = \"privileged\"\n", "pod_security"),
        ("selector = \"a=b\"\npod_security = \"low\"\n", "pod_security"),
    ] {
        let errors = errors(&format!("{class}{wrong}"));
        assert!(errors[0].starts_with(&format!("bursar.toml: class.profile.{key}: ")), "{errors:?}");
    }
    let errors = errors("[class.x]\nfrom = \"users\"\nclusters = [\"prod\"]\nroles = []\nselector = \"a=b\"\n");
    assert!(errors[0].starts_with("bursar.toml: class.x.selector: "), "{errors:?}");
}

#[test]
fn adopting_classes_accept_only_rules_that_need_no_seal() {
    let class = "[class.profile]\nfrom = \"adopted\"\nclusters = [\"prod\"]\nowner_annotation = \"owner\"\nselector = \"a=b\"\n[class.profile.admission]\n";
    let rules = |text: &str| {
        let settings = load(&format!("{BASE}{class}{text}")).expect("the settings are valid");
        settings.policy.classes["profile"].adopts().expect("the class adopts namespaces").admission.as_ref().clone()
    };
    assert_eq!(rules(""), crate::policy::AdoptedAdmission::default());
    let some = rules(
        "claims = { read_write_many = [\"nfs\"] }\nvolumes = \"warn\"\nservices = \"enforce\"\nscheduling = { node_name = true }\n\
         hosts = { allow = [\"{namespace}.lab.example.org\"] }\n",
    );
    assert_eq!(some.read_write_many.mode, Some(Mode::Enforce));
    assert!(some.read_write_many.allow.contains("class nfs"));
    assert_eq!((some.volumes, some.hosts.mode), (Mode::Warn, Mode::Enforce));
    assert_eq!((some.server.services.mode, some.server.scheduling.mode), (Some(Mode::Enforce), Some(Mode::Enforce)));
    assert_eq!((some.server.sysctls.mode, some.server.ingress.mode), (Some(Mode::Off), Some(Mode::Off)));
    assert_eq!(some.server.storage.mode, Some(Mode::Off));
    for (wrong, key, what) in [
        ("uid = \"enforce\"", "uid", "is for tenants' namespaces only"),
        ("images = \"off\"", "images", "is for tenants' namespaces only"),
        ("host = \"enforce\"", "host", "is for tenants' namespaces only"),
        ("lifetime = \"enforce\"", "lifetime", "is for tenants' namespaces only"),
        ("hots = \"enforce\"", "hots", "did you mean hosts"),
        ("claims = \"enforce\"", "claims", "needs a list"),
        ("claims = { storage_class = \"nfs\", read_write_many = [\"nfs\"] }", "claims.storage_class", "no such key"),
        ("claims = { read_write_many = [\"a'b\"] }", "claims.read_write_many", "is not a name"),
        ("hosts = \"enforce\"", "hosts", "needs a list"),
        ("hosts = { allow = [\"{name}.lab.example.org\"] }", "hosts.allow", "would be the same for every tenant"),
        (
            "hosts = { allow = [\"x-{namespace}.lab.example.org\"] }",
            "hosts.allow",
            "so two tenants could get the same host",
        ),
        ("hosts = { allow = [\"{namespace}.{name}.example.org\"] }", "hosts.allow", "is not a host"),
        ("hosts = { allow = [], annotations = [\"a'b/*\"] }", "hosts.annotations", "is not an annotation"),
        (
            "volumes = { allow = [\"nfs.example.org:/srv/{name}\"] }",
            "volumes.allow",
            "the only placeholder is {namespace}",
        ),
        ("volumes = { allow = [\"nfs.example.org:/srv/a'b\"] }", "volumes.allow", "not allowed here"),
        ("volumes = { allow = [\"x\"], inject = \"all\" }", "volumes.inject", "no such key"),
        ("services = { allow = [\"NodePorts\"] }", "services.allow", "is none of"),
    ] {
        let errors = errors(&format!("{class}{wrong}\n"));
        let is_named = |error: &&String| error.starts_with(&format!("bursar.toml: class.profile.admission.{key}: "));
        assert!(errors.iter().filter(is_named).any(|error| error.contains(what)), "{wrong}: {errors:?}");
    }
}

#[test]
fn a_host_of_an_adopted_namespace_must_not_be_a_tenants() {
    let class = |name: &str, rest: &str| format!("[class.{name}]\nclusters = [\"prod\"]\n{rest}\n");
    let adopted = |name: &str, host: &str| {
        let rest = format!(
            "from = \"adopted\"\nowner_annotation = \"owner\"\nselector = \"a={name}\"\n\
             admission = {{ hosts = {{ allow = [\"{host}\"] }} }}"
        );
        class(name, &rest)
    };
    let tenants = class(
        "user",
        "from = \"users\"\nnamespace = \"user-{name}\"\nadmission = { hosts = { allow = [\"{name}.example.org\"] } }",
    );
    let own = format!("{}{tenants}", adopted("lab", "{namespace}.lab.example.org"));
    let both = format!("{own}{}", adopted("plab", "{namespace}.lab.example.org"));
    assert!(load(&format!("{BASE}{both}")).is_ok(), "a namespace has one name");
    let errors = errors(&format!("{}{tenants}", adopted("lab", "{namespace}.example.org")));
    assert!(errors.iter().any(|error| error.contains("class.user.admission.hosts.allow")), "{errors:?}");
}

#[test]
fn an_exempt_group_cannot_escape_its_quotes_in_a_policy() {
    for odd in [r"a'] || true || group in ['", r"a\\\\", r"a\nb", ""] {
        let errors = errors(&format!("[webhook]\nexempt = [\"system:masters\", \"{odd}\"]\n"));
        assert!(errors.len() == 1 && errors[0].starts_with("bursar.toml: webhook.exempt: "), "{odd}: {errors:?}");
        assert!(errors[0].contains("is not the name of a group"), "{errors:?}");
    }
}

#[test]
fn an_incomplete_client_certificate_and_wrong_addresses_are_errors() {
    let found = |keys: &str| errors(&format!("[cluster.prod.webhook]\n{keys}\n"));
    for (keys, wrong) in [
        ("client_name = \"a\"", "client_ca: missing, because client_name is set"),
        ("client_ca = \"/nonexistent\"\nclient_name = \"a\"", "client_ca: /nonexistent: "),
        ("api_server_cidrs = [\"10.0.0.1\"]", "api_server_cidrs: \"10.0.0.1\" is not a range of addresses"),
        (
            "api_server_cidr = [\"10.0.0.0/28\"]",
            "api_server_cidr: there is no such key; did you mean api_server_cidrs?",
        ),
    ] {
        let errors = found(keys);
        let expected = format!("bursar.toml: cluster.prod.webhook.{wrong}");
        assert!(errors.len() == 1 && errors[0].starts_with(&expected), "{keys}: {errors:?}");
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let errors =
        errors("[limits]\nsuspend_per_cycle = { count = \"many\" }\n[schedule]\ncycle = \"@daily\"\n[lifecycl]\n");
    let expected = [
        "bursar.toml: lifecycl: there is no such key; did you mean lifecycle?",
        "bursar.toml: limits.suspend_per_cycle.count: \"many\" is not a number; for example 5",
        "bursar.toml: schedule.cycle: \"@daily\" is not a five-field cron expression; for example \"30 3 * * *\"",
    ];
    assert_eq!(errors, expected);
}

#[test]
fn a_class_without_namespace_must_set_roles_and_must_not_set_a_quota() {
    let errors = errors("[class.tool]\nfrom = \"tools\"\nclusters = [\"prod\"]\nquota = { pods = \"1\" }\n");
    assert!(errors.iter().any(|error| error.contains("class.tool.namespace: missing")), "{errors:?}");
    assert!(errors.iter().any(|error| error.contains("class.tool.roles: missing")), "{errors:?}");
    assert!(errors.iter().any(|error| error.contains("class.tool.quota: the class has no namespace")), "{errors:?}");
}

#[test]
fn disable_and_remove_access_limits_default_to_the_suspend_limits() {
    let given = "[limits]\nsuspend_per_day = { count = 7 }\nremove_access_per_day = { count = 9 }\n";
    let settings = load_in(folder().path(), &format!("{BASE}{TOOL}{given}"), &[]).expect("the settings are valid");
    let limits = settings.policy.limits;
    assert_eq!((limits.disable_per_day.count, limits.disable_per_cycle.count), (7, 5));
    assert_eq!((limits.remove_access_per_day.count, limits.remove_access_per_cycle.count), (9, 5));
}

#[test]
fn the_environment_overrides_the_file() {
    let (folder, text) = (folder(), format!("{BASE}{TOOL}[limits]\nsuspend_per_cycle = {{ count = 7 }}\n"));
    let with = |variables: &[(&str, &str)]| load_in(folder.path(), &text, variables);
    let name = "BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT";
    let settings = with(&[(name, "2"), ("BURSAR_HOMES__PREFIXES", "[\"/srv\"]"), ("BURSAR_CONFIG", "x")]);
    let settings = settings.expect("the settings are valid");
    assert_eq!(settings.policy.limits.suspend_per_cycle.count, 2);
    assert_eq!(settings.homes.prefixes, [PathBuf::from("/srv")]);
    let error = with(&[(name, "many")]).expect_err("the text has an error").to_string();
    assert_eq!(error, format!("{name}: \"many\" is not a number; for example 5"));
    let error = with(&[("BURSAR_SOURCE__0__URLS", "[\"ldap://a\"]")]).expect_err("the text has an error").to_string();
    assert_eq!(error, "BURSAR_SOURCE__0__URLS: \"ldap://a\" needs starttls = true, or allow_plaintext = true");
}

#[test]
fn a_variable_may_set_an_existing_item_or_the_next_one() {
    let folder = folder();
    let text = format!("{BASE}{TOOL}");
    let warnings = |name: &str| {
        let found = load_in(folder.path(), &text, &[(name, "ldap-ca.pem")]);
        found.expect("a variable that sets no key never ends a command").warnings
    };
    assert_eq!(warnings("BURSAR_SOURCE__0__CA"), Vec::<String>::new());
    let no_number = |part: &str| {
        format!("source is a list, and {part:?} is no number of an item; the first is BURSAR_SOURCE__0__CA")
    };
    for (wrong, why) in [
        ("BURSAR_SOURCE__9__CA", "source has no item 1, so item 9 cannot be set; the first is item 0".to_owned()),
        ("BURSAR_SOURCE__PEOPLE__CA", "source is a list; source.people is BURSAR_SOURCE__0__CA".to_owned()),
        ("BURSAR_SOURCE__O__CA", no_number("o")),
        ("BURSAR_SOURCE__99999999999999999999__CA", no_number("99999999999999999999")),
    ] {
        assert_eq!(warnings(wrong), [format!("{wrong}: sets no key; {why}")]);
    }
}

#[test]
fn a_password_in_a_url_is_refused_and_not_quoted() {
    let wrong = BASE.replace("https://", "https://u:S3CRET@").replace("ldaps://", "ldaps://u:S3CRET@");
    assert_ne!(wrong, BASE);
    let errors = load(&wrong).expect_err("the URLs have a password").to_string();
    assert!(errors.contains("a URL contains a user or a password") && !errors.contains("S3CRET"), "{errors}");
}

#[test]
fn a_number_that_is_too_large_is_not_quoted() {
    let errors = load(&format!("contact = 12345678901234567890123\n{BASE}")).expect_err("no such number").to_string();
    assert!(errors.contains("line 1: a number is too large") && !errors.contains("1234567890"), "{errors}");
}

#[test]
fn an_unknown_variable_is_a_warning_with_the_nearest_key() {
    let (folder, text) = (folder(), format!("{BASE}{TOOL}"));
    let warnings = |name: &str| load_in(folder.path(), &text, &[(name, "1")]).expect("the settings are valid").warnings;
    assert_eq!(warnings("BURSAR_LIMTS__X"), ["BURSAR_LIMTS__X: limts: there is no such key; did you mean limits?"]);
    assert_eq!(
        warnings("BURSAR_SOURCE__0__BINDN"),
        ["BURSAR_SOURCE__0__BINDN: source.people.bindn: there is no such key; did you mean bind_dn?"]
    );
    assert_eq!(
        warnings("BURSAR_SITE__NAME"),
        ["BURSAR_SITE__NAME: sets no key; site has no keys; did you mean BURSAR_SITE?"]
    );
    for other in ["BURSAR_FOO__4000000000__X", "BURSAR_A[4000000000]"] {
        assert_eq!(warnings(other).len(), 1, "{other}");
        assert!(warnings(other)[0].starts_with(&format!("{other}: sets no key")), "{other}");
    }
    assert_eq!(warnings("BURSAR_CONFG"), ["BURSAR_CONFG: sets no key; did you mean BURSAR_CONFIG?"]);
    assert_eq!(warnings("BURSAR_SOURCE__1__BINDN").len(), 1, "the variable adds no source");
    assert_eq!(warnings("BURSAR_LIMITS__CHANGE_PER_CYCLE__COUNT"), Vec::<String>::new());
    let both = load_in(folder.path(), &format!("{text}[limts]\n"), &[("BURSAR_LIMTS__X", "1")]);
    let both = both.expect_err("the file has the error too").to_string();
    assert!(both.contains("bursar.toml: limts: there is no such key"), "{both}");
}

#[test]
fn a_misspelt_variable_does_not_excuse_a_missing_key() {
    let with = |text: &str, variable: &str| {
        load_in(folder().path(), text, &[(variable, "tools")]).expect_err("a key is missing").0
    };
    let (site, stray) = ("bursar.toml: site: missing", "BURSAR_SITTE: sitte: there is no such key; did you mean site?");
    let errors = with(&BASE.replace("site = \"test\"", ""), "BURSAR_SITTE");
    assert!(matches!(&*errors, [first, second] if first.starts_with(site) && second == stray), "{errors:?}");
    // A class that is left out would lose all its tenants.
    let errors = with(&format!("{BASE}{TOOL}").replace("from = \"tools\"", ""), "BURSAR_CLASS__TOOL__FORM");
    assert!(errors[0].starts_with("bursar.toml: class.tool.from: "), "{errors:?}");
}

#[test]
fn a_misspelt_key_causes_one_error_only() {
    let only = |text: &str, expected: &str| {
        let errors = load(text).expect_err("the text has an error").0;
        assert_eq!(errors, [format!("bursar.toml: {expected}")], "{text}");
    };
    let (base, all) = (BASE, format!("{BASE}{TOOL}"));
    only(&base.replace("urls =", "urlss ="), "source.people.urlss: there is no such key; did you mean urls?");
    only(&base.replace("source.tools", "source.tols"), "source.people.tols: there is no such key; did you mean tools?");
    only(&all.replace("cluster.prod", "cluter.prod"), "cluter: there is no such key; did you mean cluster?");
    only(&all.replace("from =", "form ="), "class.tool.form: there is no such key; did you mean from?");
}

#[test]
fn missing_secrets_are_found_without_reading_secrets() {
    let folder = folder();
    let with = |value: &str| {
        let text = BASE.replace("preset", &format!("bind_dn = \"cn=bursar\"\npassword = {value}\npreset"));
        load_in(folder.path(), &text, &[]).expect("the settings are valid").missing_files()
    };
    let (errors, warnings) = with("{ file = \"/nonexistent/password\" }");
    assert!(
        warnings.is_empty() && errors[0].starts_with("bursar.toml: source.people.password: /nonexistent/password: "),
        "{errors:?}"
    );
    let (errors, warnings) = with("{ credential = \"bursar-no-such\" }");
    assert!(errors.is_empty() && warnings[0].contains("LoadCredential=bursar-no-such:"), "{warnings:?}");
    let place = folder.path().join("k8s-ca.pem").display().to_string();
    assert_eq!(with(&format!("{{ file = {place:?} }}")), (Vec::new(), Vec::new()));
}

#[test]
fn a_file_that_changed_differs_from_the_settings_in_force() {
    let folder = folder();
    let settings = load_in(folder.path(), BASE, &[]).expect("the settings are valid");
    assert_eq!(settings.differing_file(), None);
    let path = folder.path().join("bursar.toml");
    std::fs::write(&path, format!("# A comment.\n{BASE}")).expect("the folder is writable");
    assert_eq!(settings.differing_file(), None, "a comment changes nothing");
    std::fs::write(&path, BASE.replace("\"test\"", "\"other\"")).expect("the folder is writable");
    assert!(settings.differing_file().is_some_and(|why| why.contains("systemctl reload bursard")));
    std::fs::write(&path, format!("{BASE}[lifecycl]\n")).expect("the folder is writable");
    assert!(settings.differing_file().is_some_and(|why| why.contains("has errors") && why.contains("lifecycl: ")));
}

#[test]
fn a_changed_file_is_compared_without_asking_the_resolver() {
    let folder = folder();
    let path = folder.path().join("bursar.toml");
    // `localhost` resolves to this host, so a class that reaches every address would reach it.
    let reaching = with_egress(r#"{ cidr = "0.0.0.0/0" }"#, "").replace("198.51.100.7", "localhost");
    let settings = load_in(folder.path(), &reaching, &[]).expect("the settings are valid");
    let found = super::egress(&settings, Names::AsWritten);
    assert!(found.unknown.contains("nfs.server localhost"), "{found:?}");
    assert!(!found.reached.iter().any(|(_, what)| what.contains("localhost")), "{found:?}");
    let strict = "[security]\nstrict_egress = true\n";
    let told = with_egress(r#"{ cidr = "198.51.100.0/24" }"#, strict);
    std::fs::write(&path, told).expect("the folder is writable");
    assert!(settings.differing_file().is_some_and(|why| why.contains("has errors")), "an address needs no resolver");
    assert!(Settings::load_offline(&path).is_err());
}

#[test]
fn two_endpoints_never_have_one_name_in_a_kubeconfig() {
    let cluster = |name: &str, endpoint: &str| {
        let face = "url = \"https://k8s.example.org:6443\"\nca = \"k8s-ca.pem\"";
        format!("[cluster.{name}.endpoint.{endpoint}]\n{face}\n")
    };
    let prod = format!("{}[cluster.prod]\ndefault_endpoint = \"internal\"\n", cluster("prod", "ext"));
    let told = errors(&format!("{prod}{}", cluster("prod-ext", "internal")));
    let expected = "bursar.toml: cluster.prod-ext.endpoint.internal: its context in kubeconfigs would be \"prod-ext\"";
    assert!(
        matches!(&*told, [one] if one.starts_with(expected) && one.contains("[cluster.prod.endpoint.ext]")),
        "{told:?}"
    );
    assert!(load(&format!("{BASE}{prod}{}", cluster("prod-int", "internal"))).is_ok());
}

#[test]
fn a_toml_error_is_reported_with_its_line() {
    let error = load("site = \"a\"\n[class\n").expect_err("the text has an error").to_string();
    assert!(error.starts_with("bursar.toml: line 2: "), "{error}");
    let twice = load("site = \"a\"\n[control]\n[control]\n").expect_err("the table is there twice").to_string();
    assert_eq!(twice, "bursar.toml: line 3: duplicate key control; remove one of the two");
    let unquoted = load("site = hunter2\n").expect_err("the text has no quotes").to_string();
    assert!(!unquoted.contains("hunter2"), "{unquoted}");
}

#[test]
fn passwords_are_read_only_with_the_sources() {
    let folder = folder();
    let password =
        |value: &str| BASE.replace("preset", &format!("bind_dn = \"cn=bursar\"\npassword = {value}\npreset"));
    let place = folder.path().join("password").display().to_string();
    let settings =
        load_in(folder.path(), &password(&format!("{{ file = {place:?} }}")), &[]).expect("the settings are valid");
    assert!(settings.sources().is_err());
    std::fs::write(&place, "secret\n").expect("the folder is writable");
    let sources = settings.sources().expect("the sources are valid");
    let SourceKind::Ldap(ldap) = &sources[0].kind else { panic!("{sources:?}") };
    assert_eq!(ldap.password.as_ref().map(|password| password.reveal().to_owned()).as_deref(), Some("secret"));
    let error = load_in(folder.path(), &password("\"hunter2\""), &[]).expect_err("the text has an error").to_string();
    assert!(error.contains("source.people.password: is { credential") && !error.contains("hunter2"), "{error}");
}

#[test]
fn active_directory_has_keys_of_its_own() {
    let source = |lines: &str| {
        let text = format!(
            "site = \"a\"\n[[source]]\nname = \"ad\"\ntype = \"ad\"\nurls = [\"ldaps://dc\"]\n{lines}\n[source.users]\nbase = \"dc=a\"\n"
        );
        load(&text).map_err(|error| error.to_string())
    };
    let read = source("ids = \"sid\"\nidmap = { range_min = 1000, default_domain_sid = \"S-1-5-21-1-2-3\" }");
    let read = read.expect("the settings are valid").sources().expect("the sources are valid").remove(0);
    assert_eq!((read.attributes.id.as_str(), read.sids.ids, read.sids.range.lower), ("objectGUID", Ids::Sid, 1000));
    assert_eq!(read.sids.default_domain.map(|sid| sid.to_string()).as_deref(), Some("S-1-5-21-1-2-3"));
    for (lines, wrong) in [
        ("ids = \"uid\"", "ids"),
        ("preset = \"rfc2307\"", "a source of type ad has the preset ad"),
        ("idmap = { range_size = 0 }", "leave no slice"),
        ("idmap = { domain_sids = [\"S-1-5-32\"] }", "is not the SID of a domain"),
        ("members_at_once = 0", "must be at least 1"),
        ("client_key = { file = \"/x\" }", "needs client_certificate"),
    ] {
        let error = source(lines).expect_err(lines);
        assert!(error.contains(wrong), "{lines}: {error}");
    }
    let error =
        load(&format!("{BASE}{TOOL}").replace("preset", "ids = \"sid\"\npreset")).expect_err("the text has an error");
    assert!(error.to_string().contains("is about Active Directory"), "{error}");
}

#[test]
fn a_certificate_takes_the_place_of_a_password() {
    let folder = folder();
    let source = |lines: &str| {
        let text = BASE.replace("preset", &format!("client_certificate = \"client.pem\"\n{lines}\npreset"));
        load_in(folder.path(), &text, &[])
    };
    std::fs::write(folder.path().join("client.pem"), "-----BEGIN CERTIFICATE-----\n").expect("the folder is writable");
    let key = folder.path().join("client.key").display().to_string();
    std::fs::write(&key, "the key\n").expect("the folder is writable");
    let place = format!("client_key = {{ file = {key:?} }}");
    let sources = source(&place).expect("the settings are valid").sources().expect("the sources are valid");
    let SourceKind::Ldap(ldap) = &sources[0].kind else { panic!("{sources:?}") };
    let identity = ldap.identity.as_ref().and_then(|identity| identity.key.as_ref());
    assert_eq!(identity.map(|key| key.reveal().to_owned()).as_deref(), Some("the key"));
    let wrong = |lines: &str| source(lines).expect_err(lines).to_string();
    assert!(wrong("").contains("client_key: client_certificate needs its key"));
    assert!(wrong(&format!("{place}\nbind_dn = \"cn=a\"")).contains("bind_dn: the certificate says who Bursar is"));
    assert!(
        wrong(&format!("{place}\npassword = {{ file = \"/x\" }}"))
            .contains("cannot be combined with client_certificate")
    );
}

#[test]
fn site_manifests_are_read_from_the_folder_of_the_configuration() {
    let folder = folder();
    let manifests = folder.path().join("manifests");
    std::fs::create_dir_all(manifests.join("tool")).expect("the temporary folder is writable");
    std::fs::create_dir_all(manifests.join("tol")).expect("the temporary folder is writable");
    std::fs::write(
        manifests.join("tool/a.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: \"{name}\"}\n---\nkind: Secret\n",
    )
    .expect("the folder is writable");
    let error =
        load_in(folder.path(), &format!("{BASE}{TOOL}"), &[]).expect_err("the manifests have errors").to_string();
    assert!(error.contains("manifests/tol: there is no class of that name"), "{error}");
    assert!(error.contains("manifests/tool/a.yaml: a document has no apiVersion"), "{error}");
    std::fs::remove_dir(manifests.join("tol")).expect("the file can be removed");
    std::fs::write(manifests.join("tool/a.yaml"), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")
        .expect("the folder is writable");
    let settings = load_in(folder.path(), &format!("{BASE}{TOOL}"), &[]).expect("the settings are valid");
    assert_eq!(settings.policy.classes["tool"].manifests.len(), 1);
}

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    std::fs::read_to_string(path).expect("the file is shipped")
}

/// Returns the shipped file with every commented key uncommented, except those for which `left` is true.
fn uncommented(left: impl Fn(&str) -> bool) -> String {
    let lines = shipped("bursar.toml");
    let lines = lines.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') && !left(line) => key.to_owned(),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n").replace("/etc/bursar/", "")
}

#[test]
fn the_shipped_file_is_a_configuration() {
    let settings = load(&shipped("bursar.toml")).expect("the settings are valid");
    assert_eq!((settings.site.as_str(), settings.policy.classes.len()), ("example", 0));
}

#[test]
fn the_packaged_configuration_is_short_and_valid() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/bursar.toml");
    let text = std::fs::read_to_string(path).expect("the file is readable");
    assert!(text.lines().count() <= 12);
    assert_eq!(load(&text).expect("the settings are valid").site, "example");
}

#[test]
fn the_shipped_file_has_the_defaults_of_the_code() {
    let folder = folder();
    let explicit = load_in(folder.path(), &uncommented(|_| false), &[]).expect("the settings are valid");
    let implicit =
        load_in(folder.path(), &uncommented(|line| line.ends_with("# default")), &[]).expect("the settings are valid");
    assert_eq!(explicit, implicit);
    assert_eq!(explicit.policy.classes.keys().collect::<Vec<_>>(), ["admin", "course", "profile", "tool"]);
}

#[test]
fn the_shipped_file_describes_every_key_of_a_class() {
    let text = shipped("bursar.toml");
    for key in class::KEYS {
        let (value, table) = (format!("{key} = "), format!(".{key}]"));
        let mut lines = text.lines().map(|line| line.trim_start_matches(['#', ' ']));
        let is_described =
            |line: &str| line.starts_with(&value) || (line.starts_with("[class.") && line.contains(&table));
        assert!(lines.any(is_described), "config/bursar.toml lacks {key}");
    }
}

#[test]
fn the_webhooks_rules_are_the_golden() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/admission");
    let text = std::fs::read_to_string(data.join("classes.toml")).expect("the file is readable");
    let policy = load(&text).expect("the settings are valid").policy;
    let (prod, ledger) = (ClusterName("prod".into()), crate::ledger::LedgerState::default());
    let rules = crate::desired::rules::rules(&policy, &prod, &ledger);
    assert_eq!(rules.to_json() + "\n", std::fs::read_to_string(data.join("rules.json")).expect("the file is readable"));
}

#[test]
fn errors_in_admission_rules_have_examples() {
    let told = |line: &str, error: &str| {
        let line = format!("admission = {{ {line} }}");
        assert_eq!(class_error(&line), [format!("bursar.toml: class.tool.admission.{error}")], "{line}");
    };
    told(
        r#"images = "enforce""#,
        r#"images: needs a list; for example { mode = "enforce", allow = ["registry.example.org/"] }"#,
    );
    told(
        r#"images = { allow = ["library/"] }"#,
        r#"images.allow: "library/" is not a registry with a path; for example "registry.example.org/""#,
    );
    told(
        r#"hosts = { allow = ["tools.example.org"] }"#,
        r#"hosts.allow: "tools.example.org" would be the same for every tenant; for example "{name}.tools.example.org""#,
    );
    told(
        r#"hosts = { allow = ["{name}.Example.org"] }"#,
        r#"hosts.allow: "{name}.Example.org" is not a host; for example "{name}.tools.example.org""#,
    );
    told(
        r#"hosts = { allow = ["{name}-dev.example.org"] }"#,
        r#"hosts.allow: "{name}-dev.example.org" has other text next to {name} in a label, so two tenants could get the same host; for example "{name}.tools.example.org""#,
    );
    told(
        r#"hosts = { allow = ["{name}.tools.example.org", "www.{name}.example.org"] }"#,
        r#"hosts.allow: "www.{name}.example.org" and "{name}.tools.example.org" overlap: a host could belong to two tenants; put {name} in one place"#,
    );
    told(r#"uid = { mode = "on" }"#, r#"uid.mode: "on" is none of: enforce, warn, audit, off"#);
    told(
        "uid = { privilege_escalation = true }",
        r#"uid.privilege_escalation: Pod Security "restricted" refuses it anyway; remove it, or set pod_security = "baseline""#,
    );
    told(
        "max_grace_period = \"29s\"",
        "max_grace_period: is less than 30s, which Kubernetes gives to every pod that names no grace period",
    );
    told(r#"volumes = { inject = "init" }"#, r#"volumes.inject: "init" is none of: none, containers, all"#);
    told("hosts = { alow = [] }", "hosts.alow: there is no such key; did you mean allow?");
    assert!(class_error(r#"admission = { volumes = { allow = ["x:y"] } }"#)[0].contains(r#""x:y" is not a volume"#));
}

#[test]
fn hosts_of_two_classes_must_not_overlap() {
    let user = "[class.user]\nfrom = \"tools\"\nclusters = [\"prod\"]\nnamespace = \"user-{name}\"\n";
    let hosts = |host: &str| format!("admission = {{ hosts = {{ allow = [\"{host}\"] }} }}\n");
    let both = |one: &str, other: &str| format!("{TOOL}{}{user}{}", hosts(one), hosts(other));
    for (one, other) in
        [("*.{name}.example.org", "{name}.tools.example.org"), ("{name}.a.example.org", "www.{name}.example.org")]
    {
        let expected = format!(
            "bursar.toml: class.user.admission.hosts.allow: {other:?} overlaps {one:?} of class tool: give each class a domain \
             of its own"
        );
        assert_eq!(errors(&both(one, other)), [expected]);
    }
    let apart = both("{name}.tools.example.org", "{name}.users.example.org");
    assert!(load(&format!("{BASE}{apart}")).is_ok());
}

#[test]
fn two_classes_must_not_have_the_same_host() {
    let user = "[class.user]\nfrom = \"tools\"\nclusters = [\"prod\"]\nnamespace = \"user-{name}\"\n";
    let hosts = "admission = { hosts = { allow = [\"{name}.example.org\"] } }\n";
    let errors = errors(&format!("{TOOL}{hosts}{user}{hosts}"));
    assert!(
        errors[0].contains("class.user.admission.hosts.allow: \"{name}.example.org\" is also listed in class tool"),
        "{errors:?}"
    );
}

#[test]
fn the_examples_are_valid() {
    for name in
        ["toolforge", "rfc2307", "active-directory", "freeipa", "keycloak"].map(|name| format!("examples/{name}.toml"))
    {
        let text = shipped(&name).replace("/etc/bursar/", "");
        let settings = load(&text).unwrap_or_else(|errors| panic!("{name}: {errors}"));
        // A quota without a default in limit_range refuses every plain pod.
        for class in settings.policy.classes.values() {
            let nothing = crate::ledger::LedgerState::default();
            let traps = crate::desired::quota::traps(class, &settings.policy, &nothing, &class.clusters[0]);
            assert_eq!(traps, BTreeSet::new(), "{name}: class {}", class.name);
        }
    }
}

#[test]
fn a_class_of_groups_has_members_and_no_credential() {
    let course = "[class.course]\nfrom = \"groups\"\nclusters = [\"prod\"]\n";
    let named = format!("{course}namespace = \"workspace-{{name}}\"\n");
    let loaded = load(&format!("{BASE}{named}managers = \"owner\"\nmember_roles = [\"view\"]\n"))
        .expect("the settings are valid");
    let workspace = loaded.policy.classes["course"].workspace().expect("the class is for groups");
    assert_eq!(
        (workspace.members.as_slice(), workspace.managers.as_slice()),
        (&["view".to_owned()][..], &["view".to_owned()][..])
    );
    assert_eq!(loaded.policy.classes["course"].admission.uid.mode, crate::rules::Mode::Off);
    let sources = loaded.sources().expect("the sources are valid");
    assert_eq!(sources[0].attributes.managers.as_deref(), Some("owner"));
    for (text, key) in [
        (course.to_owned(), "class.course.namespace: missing"),
        (format!("{named}home = {{ prefix = \"/home\" }}\n"), "class.course.home: the people of a group"),
        (format!("{named}roles = [\"view\"]\n"), "class.course.roles: the people of a group"),
        (format!("{named}admission = {{ uid = \"enforce\" }}\n"), "class.course.admission.uid: a group has no uid"),
        (format!("{TOOL}member_roles = [\"view\"]\n"), "class.tool.member_roles: only a class with from = \"groups\""),
    ] {
        let errors = errors(&text);
        assert!(errors.iter().any(|error| error.starts_with(&format!("bursar.toml: {key}"))), "{errors:?}");
    }
    let other = named.replace("course", "lab");
    let errors = errors(&format!(
        "{named}managers = \"owner\"\n{}managers = \"manager\"\n",
        other.replace("workspace-", "lab-")
    ));
    assert!(errors[0].contains("class.lab.managers: another class has \"owner\""), "{errors:?}");
}

#[test]
fn lifetimes_of_pods_need_the_reaper() {
    let reaper = "[reaper.pods]\nenabled = true\n";
    let with = |line: &str| format!("{TOOL}admission = {{ lifetime = {line} }}\n{reaper}");
    let line = "{ max = \"7d\", default = \"1d\", warn = \"1h\" }";
    let policy = load(&format!("{BASE}{}", with(line))).expect("the settings are valid").policy;
    let class = policy.reapers.pods.as_ref().expect("the reaper is on").classes["tool"];
    assert_eq!(
        (class.lifetimes.max, class.lifetimes.default, class.warn),
        (Some(604_800), Some(86_400), Duration::from_hours(1))
    );
    assert_eq!(policy.classes["tool"].admission.lifetime, crate::rules::Mode::Enforce);
    let warned =
        load(&format!("{BASE}{}", with("{ mode = \"warn\", max = \"7d\" }"))).expect("the settings are valid").policy;
    assert!(
        warned.reapers.pods.expect("the reaper is on").classes.is_empty(),
        "the reaper ends only pods of classes that enforce the lifetime"
    );
    for (text, key) in [
        (with("{ max = \"0s\" }"), "max: leaves no time"),
        (with("{ max = \"soon\" }"), "max: \"soon\" is not a duration"),
        (with("{ max = \"1h\", default = \"2h\" }"), "default: is longer than max"),
        (with("{ required = true, default = \"2h\" }"), "default: is never used"),
    ] {
        let errors = errors(&text);
        assert!(errors[0].starts_with(&format!("bursar.toml: class.tool.admission.lifetime.{key}")), "{errors:?}");
    }
    let errors = errors(&with(line).replace(reaper, ""));
    assert!(errors[0].starts_with("bursar.toml: class.tool.admission.lifetime: nothing ends pods"), "{errors:?}");
}

#[test]
fn workspaces_have_own_uids_only_with_a_range() {
    let course = "[class.course]\nfrom = \"groups\"\nclusters = [\"prod\"]\nnamespace = \"workspace-{name}\"\n";
    let ranged = format!("{course}uid_range = [70000, 70999]\n");
    let loaded = load(&format!("{BASE}{ranged}")).expect("the settings are valid");
    assert_eq!(loaded.policy.classes["course"].admission.uid.mode, crate::rules::Mode::Enforce);
    let person = "[class.person]\nfrom = \"users\"\nclusters = [\"prod\"]\nnamespace = \"u-{name}\"\nhome = { prefix = \"/home\" }\n\
                  volumes = [{ name = \"home\", kind = \"static\", nfs = { server = \"nfs\", path = \"/srv/{name}\" } }]\n";
    let volume =
        "volumes = [{ name = \"w\", kind = \"shared\", nfs = { server = \"nfs\", path = \"/srv/{name}\" } }]\n";
    let allowed = |what: &str| format!("{person}{ranged}admission = {{ volumes = {{ allow = [{what:?}] }} }}\n");
    for (text, key) in [
        (format!("{course}uid_range = [70000]\n"), "class.course.uid_range: [70000] is not the first and the last"),
        (format!("{course}uid_range = [5, 70000]\n"), "class.course.uid_range: [5,70000] is not"),
        (format!("{course}uid_range = [70001, 70000]\n"), "class.course.uid_range: [70001,70000] is not"),
        (
            format!("{course}admission = {{ uid = {{ mode = \"warn\" }} }}\n"),
            "class.course.admission.uid: a group has no uid",
        ),
        (format!("{TOOL}uid_range = [70000, 70999]\n"), "class.tool.uid_range: only a class with from"),
        (
            format!(
                "{ranged}{}",
                ranged
                    .replace("course", "lab")
                    .replace("workspace-", "l-")
                    .replace("70000", "70999")
                    .replace("[70999, 70999]", "[70999, 71999]")
            ),
            "class.lab.uid_range: 70999-71999 overlaps the range of class course",
        ),
        (format!("{person}{ranged}{volume}"), "class.course.volumes: nfs:/srv/{name} may be a home of class person"),
        (allowed("nfs:/srv/"), "class.course.admission.volumes.allow: nfs:/srv/ may be a home"),
        (allowed("/home/"), "class.course.admission.volumes.allow: /home/ may be a home"),
        (
            allowed("csi:nfs.csi.k8s.io"),
            "class.course.admission.volumes.allow: csi:nfs.csi.k8s.io may mount any server",
        ),
        (allowed("cephfs"), "class.course.admission.volumes.allow: cephfs may mount any server"),
        (
            format!("{person}{ranged}admission = {{ volumes = \"audit\" }}\n"),
            "class.course.admission.volumes: mode \"audit\" lets a workspace with a uid of its own mount homes of class person",
        ),
    ] {
        let errors = errors(&text);
        assert!(errors.iter().any(|error| error.starts_with(&format!("bursar.toml: {key}"))), "{errors:?}");
    }
    assert!(load(&format!("{BASE}{person}{course}{volume}")).is_ok(), "a class without a range may have the volume");
}

#[test]
fn a_target_realm_uses_a_source_or_has_a_connection_of_its_own() {
    let keys = "url = \"https://sso\"\nrealm = \"lab\"\nclient_id = \"bursar\"\n";
    let own = format!("{keys}client_secret = {{ file = \"/nonexistent\" }}\n");
    let sso = format!("[[source]]\nname = \"sso\"\ntype = \"keycloak\"\n{own}");
    let told = |before: &str, rest: &str, expected: &str| {
        assert_eq!(errors(&format!("{before}[realm]\n{rest}")), [format!("bursar.toml: realm.{expected}")], "{rest}");
    };
    let or = "url, realm, client_id and client_secret";
    told(
        "",
        "client = \"ws\"\n",
        &format!(r#"source: missing; for example "sso", a [[source]] of type keycloak; or {or}"#),
    );
    let none = r#"source: "sso" is not a [[source]] of type keycloak; there is none; set"#;
    told("", "source = \"sso\"\n", &format!("{none} {or} here instead"));
    told(&sso, "source = \"people\"\n", r#"source: "people" is not a [[source]] of type keycloak; there are: sso"#);
    let both = "source = \"sso\"\nurl = \"https://x\"\n";
    told(&sso, both, "url: is set by the source already; remove one of the two");
    told(&sso, &own, r#"url: is the url of source "sso"; write source = "sso" instead"#);
    told("", &own.replace("https", "http"), r#"url: "http://sso" needs https://, or allow_plaintext = true"#);
    let of_source = |line: &str, expected: &str| told(&sso, &format!("source = \"sso\"\n{line}\n"), expected);
    of_source("clients = 1", "clients: there is no such key; did you mean client?");
    let example = r#"for example required_actions = ["UPDATE_PASSWORD"]"#;
    of_source("mail = true", &format!("mail: needs required_actions, for which the mail asks; {example}"));
    let odd = r#"required_actions: "A B" is not a required action; for example "UPDATE_PASSWORD""#;
    of_source(r#"required_actions = ["A B"]"#, odd);
    of_source(r#"interval = "0s""#, r#"interval: 0 leaves no time; for example "24h""#);

    let loaded = load(&format!("{BASE}[realm]\n{own}interval = \"10m\"\n")).expect("the settings are valid");
    let realm = loaded.realm.as_ref().expect("the realm is configured");
    assert_eq!((realm.rules.name.as_str(), realm.interval), ("lab", Duration::from_mins(10)));
    let missing = loaded.realm_connection(&[]).expect_err("there is no secret").to_string();
    assert!(missing.contains("realm.client_secret: /nonexistent: "), "{missing}");
    let loaded =
        load(&format!("{BASE}{sso}[realm]\nsource = \"sso\"\nclient = \"ws\"\n")).expect("the settings are valid");
    let rules = loaded.realm.expect("the realm is configured").rules;
    assert_eq!((rules.name.as_str(), rules.client.as_deref(), rules.adopt), ("lab", Some("ws"), false));
}

#[test]
fn api_server_rules_become_policy_parameters() {
    let text = r#"
[class.tool.admission]
services = { mode = "warn", allow = ["NodePort"] }
scheduling = { priority_classes = ["batch"], tolerations = [], node_name = true, scheduling_group = true }
sysctls = { allow = ["net/core/somaxconn"] }
ingress = { classes = ["nginx"] }
claims = { mode = "audit", storage_class = "fast", storage_classes = ["fast", ""] }
hosts = { allow = ["{name}.example.org"], host_annotations = ["example.org/serves"] }
"#;
    let settings = load(&format!("{BASE}{TOOL}{text}")).unwrap_or_else(|errors| panic!("{errors}"));
    let server = &settings.policy.classes["tool"].admission.server;
    let words = |rule: &crate::rules::server::ServerRule| rule.allow.iter().cloned().collect::<Vec<_>>();
    assert_eq!((server.services.mode, words(&server.services)), (Some(Mode::Warn), vec!["NodePort".to_owned()]));
    assert_eq!(
        words(&server.scheduling),
        ["nodeName", "priority batch", "runtime *", "scheduler *", "schedulingGroup"]
    );
    assert_eq!((server.scheduling.mode, words(&server.sysctls)), (None, vec!["net.core.somaxconn".to_owned()]));
    assert_eq!(words(&server.ingress), ["gateway *", "ingress nginx"]);
    assert_eq!((server.ingress.mode, server.storage.mode), (Some(Mode::Enforce), Some(Mode::Audit)));
    assert_eq!(words(&server.storage), ["class ", "class fast"]);
    assert!(server.host_annotations.contains("example.org/serves"));
}

#[test]
fn errors_in_rules_of_the_api_server_are_reported() {
    let told = |line: &str, what: &str| {
        let errors = errors(&format!("{TOOL}[class.tool.admission]\n{line}\n"));
        assert!(errors.iter().any(|error| error.contains(what)), "{line}: {errors:?}");
    };
    told(r#"services = { allow = ["nodeport"] }"#, "is none of: NodePort, LoadBalancer, ExternalName, externalIPs");
    told(r#"scheduling = { priority_classes = ["*"] }"#, "is not a name");
    told(r#"sysctls = { allow = ["net.core.' + 'x"] }"#, "is not a name");
    told(r#"ingress = "enforce""#, "needs a list");
    told(
        r#"claims = { storage_class = "fast", storage_classes = ["slow"] }"#,
        "is missing, although storage_class fills it in",
    );
    told(
        r#"hosts = { allow = ["{name}.example.org"], fields = { "widgets.example.org" = ["spec..host"] } }"#,
        "is not a field of a kind",
    );
    told(r#"hosts = { fields = { "widgets.example.org" = ["spec.host"] } }"#, "needs allow");
    told(r#"hosts = { host_annotations = ["example.org/serves"] }"#, "needs allow");
    told(r#"hosts = { allow = ["{name}.example.org"], host_annotations = ["example.org/*"] }"#, "is not a name");
}

const FILES: &str =
    r#"volumes = [{ name = "home", kind = "static", nfs = { server = "198.51.100.7", path = "/srv/{name}" } }]"#;

fn with_egress(egress: &str, more: &str) -> String {
    let base = BASE.replace("ldap.example.org", "203.0.113.7");
    format!("{base}{TOOL}network = \"lab\"\n{FILES}\n[network.lab]\nallow_egress = [{egress}]\n{more}")
}

#[test]
fn egress_rules_of_a_class_are_checked_together() {
    let reached = |egress: &str| {
        let settings = load(&with_egress(egress, "")).unwrap_or_else(|errors| panic!("{errors}"));
        super::egress(&settings, Names::Resolved).reached.into_iter().map(|(_, what)| what).collect::<Vec<_>>()
    };
    let has = |egress: &str, what: &str| reached(egress).iter().any(|found| found.starts_with(what));
    let all = r#"{ cidr = "0.0.0.0/0" }"#;
    assert!(
        has(all, "nfs.server 198.51.100.7 (cidr 0.0.0.0/0 has 198.51.100.7)")
            && has(all, "source.people (203.0.113.7)")
    );
    let but = r#"{ cidr = "0.0.0.0/0", except = ["198.51.100.0/24", "203.0.113.0/24"] }"#;
    assert!(!has(but, "nfs.server") && !has(but, "source."));
    // Rules add up, so a second rule allows what the first leaves out.
    let undone = format!(r#"{but}, {{ cidr = "198.51.100.0/28", ports = [443, "2049/udp"] }}"#);
    assert!(has(&undone, "nfs.server 198.51.100.7 (cidr 198.51.100.0/28"));
    assert!(!has(&format!(r#"{but}, {{ cidr = "198.51.100.0/28", ports = [443] }}"#), "nfs.server"));
    assert!(reached(r#"{ to = "dns" }, { to = "own-namespace" }"#).is_empty());
}

#[test]
fn a_policy_among_the_manifests_adds_to_the_egress_rules_of_its_class() {
    let folder = folder();
    let manifests = folder.path().join("manifests/tool");
    std::fs::create_dir_all(&manifests).expect("the temporary folder is writable");
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: nfs}\nspec:\n  podSelector: {}\n  \
                  policyTypes: [Egress]\n  egress: [{to: [{ipBlock: {cidr: 198.51.100.0/24}}], ports: [{port: 2049}]}]\n";
    std::fs::write(manifests.join("nfs.yaml"), policy).expect("the folder is writable");
    let own = r#"{ to = "dns" }, { to = "own-namespace" }"#;
    let settings = load_in(folder.path(), &with_egress(own, ""), &[]).expect("the settings are valid");
    let what = "nfs.server 198.51.100.7 (NetworkPolicy nfs in its manifests: cidr 198.51.100.0/24 has 198.51.100.7)";
    assert_eq!(super::egress(&settings, Names::AsWritten).reached, [("tool".to_owned(), what.to_owned())]);
    let strict = with_egress(own, "[security]\nstrict_egress = true\n");
    let errors = load_in(folder.path(), &strict, &[]).expect_err("the configuration must be refused").0;
    assert_eq!(
        errors,
        [format!("bursar.toml: class.tool.network: reaches {what}; [security] strict_egress forbids it")]
    );
}

#[test]
fn strict_egress_refuses_what_check_warns_about() {
    let strict = "[security]\nstrict_egress = true\n";
    let errors =
        load(&with_egress(r#"{ cidr = "198.51.100.0/24" }"#, strict)).expect_err("the configuration must be refused").0;
    assert!(
        matches!(&*errors, [one] if one.starts_with("bursar.toml: class.tool.network: reaches nfs.server 198.51.100.7")),
        "{errors:?}"
    );
    let except = r#"{ cidr = "198.51.100.0/24", except = ["198.51.100.7/32"] }, { to = "dns" }"#;
    assert!(load(&with_egress(except, strict)).is_ok());
}

#[test]
fn errors_in_a_peer_have_an_example() {
    let told = |peer: &str, what: &str| {
        let errors = load(&with_egress(peer, "")).expect_err("the text has an error").0;
        assert!(errors.iter().any(|error| error.contains(what)), "{peer}: {errors:?}");
    };
    told(r#"{ cidr = "198.51.100.0/24", except = ["10.0.0.0/8"] }"#, "is not a part of 198.51.100.0/24");
    told(r#"{ cidr = "198.51.100.0/24", except = ["198.51.100.0/24"] }"#, "is not a part of");
    told(
        r#"{ cidr = "198.51.100.0/24", pods = "app=web" }"#,
        "is allowed only with to, namespaces and namespace_labels",
    );
    told(r#"{ to = "dns", ports = [53] }"#, "is allowed only with peers other than dns");
    told(r#"{ namespaces = "web", except = ["198.51.100.7/32"] }"#, "is allowed only with cidr");
    told(r#"{ namespace_labels = "team!=web" }"#, "asks for no label");
    told(r#"{ to = "own-namespace", ports = ["53/sctp"] }"#, "is not a list of ports");
    told(
        r#"{ to = "own-namespace", cidr = "198.51.100.0/24" }"#,
        "needs one of to, namespaces, namespace_labels, cidr",
    );
}
