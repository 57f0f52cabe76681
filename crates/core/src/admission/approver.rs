//! Turns a certificate request of the daemon into a [`Judgement`].
//!
//! The daemon's host may be compromised, so the approver relies only on what the API server reports: the client that
//! made the request, and the bytes that will be signed. A request that can never become valid is denied. A request that
//! may become valid waits, because a namespace may be sealed, or the rules installed again, within the next minute.

use std::collections::BTreeSet;

use regex::Regex;

use super::certificate_request::{self, Requested};
use super::json::quoted;
use crate::contract::{Identity, TenantState};
use crate::identity::{AccountKind, AccountName};
use crate::rules::approver::{ApprovedClass, ApproverRules};

/// The only signer whose requests the approver judges.
pub const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// The usages that a client certificate may have. The first one is required.
const USAGES: [&str; 3] = ["client auth", "digital signature", "key encipherment"];

/// A certificate request, as the API server reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked<'a> {
    /// `spec.signerName`.
    pub signer: &'a str,
    /// `spec.username`: the client that made the request.
    pub user: &'a str,
    /// `spec.groups`.
    pub groups: &'a [String],
    /// `spec.usages`.
    pub usages: &'a [String],
    /// `spec.expirationSeconds`.
    pub expiration_seconds: Option<i32>,
    /// `spec.request`, as PEM.
    pub request: &'a [u8],
}

/// The result of [`judge`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// The request is from another client or for another signer, so it is ignored.
    NotOurs,
    /// The request is approved.
    Approve,
    /// The request is approved if a sealed namespace of the account confirms it.
    Sealed(Wanted),
    /// The request can never become valid, for this reason.
    Never(String),
    /// The request may become valid later, and waits for this reason.
    Waits(String),
}

/// The values that a sealed namespace must show about the holder of the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The holder of the certificate.
    pub account: AccountName,
    /// The generation in the name of the certificate's group.
    pub generation: u64,
    /// The id of the account, from the serialNumber of the subject.
    pub id: String,
    /// The classes that the namespace may have.
    pub classes: BTreeSet<String>,
}

impl Wanted {
    /// Checks that one of these sealed namespaces belongs to the account, in this generation, and is not suspended. If
    /// not, returns the reason.
    pub fn is_in<'i>(&self, sealed: impl IntoIterator<Item = &'i Identity>) -> Result<(), String> {
        let Self { account, generation, id, classes } = self;
        let mut why = format!("no namespace is sealed for {account}");
        for identity in sealed.into_iter().filter(|identity| identity.account == *account) {
            let namespace = &identity.namespace;
            if identity.id.0 != *id {
                why = format!("namespace {namespace} is sealed for another account of the name {account}");
            } else if !classes.contains(&identity.class) {
                why = format!("namespace {namespace} has class {}, which issues no certificate", identity.class);
            } else if identity.generation != *generation {
                why = format!(
                    "namespace {namespace} is sealed for generation {} of {account}, not {generation}",
                    identity.generation
                );
            } else if identity.state == TenantState::Suspended {
                why = format!("namespace {namespace} of {account} is suspended");
            } else {
                return Ok(());
            }
        }
        Err(why)
    }
}

/// Judges a request by its own content.
#[must_use]
pub fn judge(rules: &ApproverRules, asked: &Asked<'_>) -> Judgement {
    let group = rules.daemon_group();
    if asked.signer != SIGNER || asked.user != rules.daemon || !asked.groups.contains(&group) {
        return Judgement::NotOurs;
    }
    match examine(rules, asked) {
        Ok(judgement) => judgement,
        Err(why) => Judgement::Never(why),
    }
}

/// Returns an error with the reason if the request can never become valid.
fn examine(rules: &ApproverRules, asked: &Asked<'_>) -> Result<Judgement, String> {
    let requested = certificate_request::parse_pem(asked.request).map_err(|what| format!("it is for {what}"))?;
    if requested.asks_for_more {
        return Err("it asks for more than a subject and a key".to_owned());
    }
    if !requested.key_is_allowed {
        return Err("its key is none of P-256, P-384, Ed25519".to_owned());
    }
    let is_allowed = |usage: &String| USAGES.contains(&usage.as_str());
    if !asked.usages.iter().any(|usage| usage == USAGES[0]) || !asked.usages.iter().all(is_allowed) {
        return Err(format!("its usages are {}; only {} is approved", asked.usages.join(", "), USAGES[0]));
    }
    let seconds = asked.expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let seconds = seconds.ok_or_else(|| "it has no expirationSeconds".to_owned())?;
    if requested.common_name == rules.daemon {
        return own(rules, &requested, seconds);
    }
    let account: AccountName = requested
        .common_name
        .parse()
        .ok()
        .filter(|account: &AccountName| account.kind != AccountKind::Group)
        .ok_or_else(|| format!("{} is not the name of a tenant", quoted(&requested.common_name)))?;
    Ok(tenant(rules, account, tenants_groups(&requested)?, seconds))
}

/// Judges the daemon's renewal of its own certificate: name and group must stay the same, and the lifetime must be
/// within `own_lifetime`.
fn own(rules: &ApproverRules, requested: &Requested, seconds: u64) -> Result<Judgement, String> {
    let group = rules.daemon_group();
    if requested.organizations != [group] || !requested.serial_numbers.is_empty() {
        return Err(format!("a certificate for {} names a group other than that of its ledger", rules.daemon));
    }
    if seconds > rules.own_lifetime {
        return Err(format!(
            "a certificate for {} would be valid for {seconds} s, but only {} s are allowed",
            rules.daemon, rules.own_lifetime
        ));
    }
    Ok(Judgement::Approve)
}

/// The parts of a tenant's subject: the group of the account's kind, the generation, and the id. A subject with any
/// other group is denied.
struct Groups {
    kind_group: String,
    generation: u64,
    id: String,
}

fn tenants_groups(requested: &Requested) -> Result<Groups, String> {
    let name = &requested.common_name;
    let prefix = format!("bursar:{name}#");
    let (generations, others): (Vec<&String>, Vec<&String>) =
        requested.organizations.iter().partition(|group| group.starts_with(&prefix));
    let ([generation], [kind_group]) = (generations.as_slice(), others.as_slice()) else {
        let groups: Vec<String> = requested.organizations.iter().map(|group| quoted(group)).collect();
        return Err(format!(
            "{} must be in the group of its kind and in the group of one generation; the groups of the request are [{}]",
            quoted(name),
            groups.join(", ")
        ));
    };
    let digits = &generation[prefix.len()..];
    // Only one spelling of each number is accepted: no sign and no leading zero.
    let number = digits.parse().ok().filter(|number: &u64| number.to_string() == digits);
    let generation =
        number.ok_or_else(|| format!("group {} of {} names no generation", quoted(generation), quoted(name)))?;
    let [id] = requested.serial_numbers.as_slice() else {
        return Err(format!("{} has {} serial numbers instead of one", quoted(name), requested.serial_numbers.len()));
    };
    Ok(Groups { kind_group: (*kind_group).clone(), generation, id: id.clone() })
}

fn tenant(rules: &ApproverRules, account: AccountName, groups: Groups, seconds: u64) -> Judgement {
    let Groups { kind_group, generation, id } = groups;
    let kinds: Vec<(&String, &ApprovedClass)> =
        rules.classes.iter().filter(|(_, class)| class.kind == account.kind).collect();
    if kind_group != format!("bursar:{}s", account.kind) {
        return Judgement::Never(format!("{account} cannot be in group {}", quoted(&kind_group)));
    }
    let again = "run `bursar approver install` after a change of the classes";
    let named: Vec<(&String, &ApprovedClass)> = kinds
        .into_iter()
        .filter(|(_, class)| class.kind_group == kind_group)
        .filter(|(_, class)| Regex::new(&class.names).is_ok_and(|names| names.is_match(&account.name)))
        .collect();
    if named.is_empty() {
        return Judgement::Waits(format!("no class permits the name {account}; {again}"));
    }
    let fits: Vec<(&String, &ApprovedClass)> =
        named.into_iter().filter(|(_, class)| seconds <= class.lifetime).collect();
    if fits.is_empty() {
        return Judgement::Waits(format!("no class of {account} permits certificates of {seconds} s; {again}"));
    }
    let is_listed = rules.administrators.is_empty() || rules.administrators.contains(&account.name);
    let by_name = |class: &ApprovedClass| !class.has_namespaces && (!class.has_cluster_roles || is_listed);
    if fits.iter().any(|(_, class)| by_name(class)) {
        return Judgement::Approve;
    }
    let classes: BTreeSet<String> =
        fits.iter().filter(|(_, class)| class.has_namespaces).map(|(name, _)| (*name).clone()).collect();
    if classes.is_empty() {
        return Judgement::Waits(format!("{account} is not a listed administrator"));
    }
    Judgement::Sealed(Wanted { account, generation, id, classes })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    use super::*;
    use crate::identity::{AccountId, ClusterName, DirectoryId, NamespaceName};
    use crate::rules::approver::VERSION;

    const LEDGER: &str = "00ff";
    const WEEK: i32 = 7 * 24 * 3600;

    fn rules() -> ApproverRules {
        let class = |kind: AccountKind, has_namespaces: bool, has_cluster_roles: bool| ApprovedClass {
            kind,
            names: "^[a-z][a-z0-9-]{1,50}$".to_owned(),
            kind_group: format!("bursar:{kind}s"),
            lifetime: u64::try_from(WEEK).expect("a week is positive"),
            has_namespaces,
            has_cluster_roles,
        };
        ApproverRules {
            version: VERSION,
            cluster: ClusterName("prod".into()),
            daemon: "bursar:daemon".to_owned(),
            ledger: LEDGER.to_owned(),
            own_lifetime: 30 * 24 * 3600,
            classes: BTreeMap::from([
                ("tool".to_owned(), class(AccountKind::Tool, true, false)),
                ("admin".to_owned(), class(AccountKind::User, false, true)),
            ]),
            administrators: BTreeSet::from(["alice".to_owned()]),
            seal: vec![BASE64.encode([7; 32])],
        }
    }

    /// A request of the daemon. Tests change some of its values.
    struct Case {
        user: &'static str,
        groups: Vec<String>,
        signer: &'static str,
        usages: Vec<String>,
        seconds: Option<i32>,
        request: Vec<u8>,
    }

    impl Case {
        fn of(name: &str, organizations: &[&str], serial: Option<&str>) -> Self {
            Self::with(&rcgen::PKCS_ECDSA_P256_SHA256, name, organizations, serial, &[])
        }

        fn with(
            algorithm: &'static rcgen::SignatureAlgorithm,
            name: &str,
            organizations: &[&str],
            serial: Option<&str>,
            servers: &[&str],
        ) -> Self {
            use rcgen::DnType::{CommonName, CustomDnType, OrganizationName};
            let servers: Vec<String> = servers.iter().map(|name| (*name).to_owned()).collect();
            let mut params = rcgen::CertificateParams::new(servers).expect("the names are DNS names");
            params.distinguished_name = rcgen::DistinguishedName::new();
            // rcgen keeps one value per attribute type, so the second organization uses the numeric form of the type.
            let kinds = [OrganizationName, CustomDnType(vec![2, 5, 4, 10])];
            for (kind, group) in kinds.into_iter().zip(organizations) {
                params.distinguished_name.push(kind, *group);
            }
            if let Some(serial) = serial {
                params.distinguished_name.push(CustomDnType(vec![2, 5, 4, 5]), serial);
            }
            params.distinguished_name.push(CommonName, name);
            let key = rcgen::KeyPair::generate_for(algorithm).expect("the algorithm is supported");
            let request =
                params.serialize_request(&key).expect("the parameters are valid").pem().expect("a request becomes PEM");
            Self {
                user: "bursar:daemon",
                groups: vec![format!("bursar:daemon#{LEDGER}"), "system:authenticated".to_owned()],
                signer: SIGNER,
                usages: vec!["client auth".to_owned(), "digital signature".to_owned()],
                seconds: Some(WEEK),
                request: request.into_bytes(),
            }
        }

        fn judged(&self) -> Judgement {
            judge(
                &rules(),
                &Asked {
                    signer: self.signer,
                    user: self.user,
                    groups: &self.groups,
                    usages: &self.usages,
                    expiration_seconds: self.seconds,
                    request: &self.request,
                },
            )
        }
    }

    fn foo() -> Case {
        Case::of("tool:foo", &["bursar:tools", "bursar:tool:foo#1042"], Some("0a1b"))
    }

    fn never(case: &Case, part: &str) {
        assert!(matches!(case.judged(), Judgement::Never(why) if why.contains(part)), "{part}: {:?}", case.judged());
    }

    fn waits(case: &Case, part: &str) {
        assert!(matches!(case.judged(), Judgement::Waits(why) if why.contains(part)), "{part}: {:?}", case.judged());
    }

    fn identity(generation: u64, state: TenantState) -> Identity {
        Identity {
            cluster: ClusterName("prod".into()),
            namespace: NamespaceName::try_from("tool-foo".to_owned()).expect("the name is a DNS label"),
            id: AccountId("0a1b".into()),
            directory_id: DirectoryId("d".to_owned()),
            account: "tool:foo".parse().expect("the name is an account's"),
            class: "tool".to_owned(),
            posix: None,
            generation,
            state,
            exceptions: std::collections::BTreeSet::new(),
        }
    }

    #[test]
    fn a_tenants_request_is_approved_by_its_sealed_namespace() {
        let Judgement::Sealed(wanted) = foo().judged() else { panic!("{:?}", foo().judged()) };
        assert_eq!(
            (wanted.account.to_string().as_str(), wanted.generation, wanted.id.as_str()),
            ("tool:foo", 1042, "0a1b")
        );
        assert_eq!(wanted.is_in(&[identity(1042, TenantState::Active)]), Ok(()));
        for (sealed, part) in [
            (vec![], "no namespace is sealed for tool:foo"),
            (vec![identity(1041, TenantState::Active)], "generation 1041"),
            (vec![identity(1042, TenantState::Suspended)], "is suspended"),
            (
                vec![Identity { id: AccountId("other".into()), ..identity(1042, TenantState::Active) }],
                "another account",
            ),
            (vec![Identity { class: "trial".to_owned(), ..identity(1042, TenantState::Active) }], "class trial"),
            (
                vec![Identity {
                    account: "tool:bar".parse().expect("the name is an account's"),
                    ..identity(1042, TenantState::Active)
                }],
                "no namespace",
            ),
        ] {
            let why = wanted.is_in(&sealed).expect_err(part);
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn the_daemons_own_renewal_is_approved() {
        let own = |groups: &[&str]| Case::of("bursar:daemon", groups, None);
        assert_eq!(Case { seconds: Some(30 * 24 * 3600), ..own(&["bursar:daemon#00ff"]) }.judged(), Judgement::Approve);
        never(&Case { seconds: Some(30 * 24 * 3600 + 1), ..own(&["bursar:daemon#00ff"]) }, "would be valid");
        never(&own(&["bursar:daemon#00fe"]), "a group other than");
        never(&own(&["bursar:daemon#00ff", "bursar:tools"]), "a group other than");
        never(&own(&[]), "a group other than");
    }

    #[test]
    fn only_a_listed_administrator_is_approved_by_name() {
        let user = |name: &str| {
            let group = format!("bursar:user:{name}#7");
            Case::of(&format!("user:{name}"), &["bursar:users", &group], Some("1"))
        };
        assert_eq!(user("alice").judged(), Judgement::Approve);
        waits(&user("bob"), "not a listed administrator");
    }

    #[test]
    fn a_request_that_can_never_be_valid_is_denied() {
        let groups = ["bursar:tools", "bursar:tool:foo#1042"];
        for (name, groups, part) in [
            ("mallory", &["bursar:daemon#00ff"][..], "not the name of a tenant"),
            ("bursar:cluster-admin", &[], "not the name of a tenant"),
            ("bursar:webhook", &[], "not the name of a tenant"),
            ("system:kube-controller-manager", &[], "not the name of a tenant"),
            ("group:foo", &["bursar:groups", "bursar:group:foo#1"], "not the name of a tenant"),
            ("tool:foo", &["system:masters", "bursar:tool:foo#1"], "group"),
            ("tool:foo", &["kubeadm:cluster-admins"], "groups"),
            ("tool:foo", &["bursar:tool:foo#1"], "groups"),
            ("tool:foo", &["bursar:tools"], "groups"),
            ("tool:foo", &["bursar:tools", "bursar:tool:bar#1"], "groups"),
            ("tool:foo", &["bursar:tool:foo#2", "bursar:tool:foo#1"], "groups"),
            ("tool:foo", &["bursar:tools", "bursar:tool:foo#01"], "group"),
            ("tool:foo", &["bursar:tools", "bursar:tool:foo#"], "group"),
            ("tool:foo", &["bursar:users", "bursar:tool:foo#1"], "group"),
        ] {
            never(&Case::of(name, groups, Some("1")), part);
        }
        never(&Case::of("tool:foo", &groups, None), "serial numbers");
        never(&Case { usages: vec!["client auth".to_owned(), "server auth".to_owned()], ..foo() }, "server auth");
        never(&Case { usages: vec!["digital signature".to_owned()], ..foo() }, "client auth");
        never(&Case { seconds: None, ..foo() }, "expirationSeconds");
        never(&Case { request: b"no request".to_vec(), ..foo() }, "cannot be read");
        let p256 = &rcgen::PKCS_ECDSA_P256_SHA256;
        never(&Case::with(p256, "tool:foo", &groups, Some("1"), &["kubernetes.default"]), "more than a subject");
        assert!(matches!(
            Case::with(&rcgen::PKCS_ED25519, "tool:foo", &groups, Some("1"), &[]).judged(),
            Judgement::Sealed(_)
        ));
    }

    #[test]
    fn a_request_that_may_become_valid_waits() {
        waits(&Case { seconds: Some(WEEK + 1), ..foo() }, "bursar approver install");
        waits(&Case::of("tool:Foo", &["bursar:tools", "bursar:tool:Foo#1"], Some("1")), "bursar approver install");
    }

    #[test]
    fn requests_of_other_clients_or_signers_are_ignored() {
        for case in [
            Case { user: "mallory", ..foo() },
            Case { signer: "kubernetes.io/kubelet-serving", ..foo() },
            Case { groups: vec!["bursar:daemon#00fe".to_owned()], ..foo() },
            Case { groups: Vec::new(), ..foo() },
        ] {
            assert_eq!(case.judged(), Judgement::NotOurs);
        }
    }

    #[test]
    fn rules_survive_parsing_and_malformed_ones_are_rejected() {
        let text = rules().to_json();
        assert_eq!(ApproverRules::parse(text.as_bytes()), Ok(rules()));
        for (from, to, part) in [
            ("\"version\": 1", "\"version\": 2", "version 2"),
            ("{1,50}$", "{1,50}$(", "names"),
            (BASE64.encode([7; 32]).as_str(), "abc", "seal"),
            ("\"ledger\"", "\"other\"", "does not parse"),
        ] {
            let error = ApproverRules::parse(text.replace(from, to).as_bytes()).expect_err(part);
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
}
