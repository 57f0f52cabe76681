//! Restricts the certificates that the daemon approves to those of tenants and of Bursar's own programs.
//!
//! Without this rule, an attacker with the daemon's key could request a certificate for `system:masters` and approve
//! it. The rule is only defence in depth: the API server exempts admission configurations from admission, so the rule
//! cannot protect itself.

use super::certificate_request::{self, Requested};
use super::decision::{Decision, Finding, Rule};
use super::json::{Malformed, at, list, quoted, text};
use super::review::{Operation, Review};
use super::value::Json;
use crate::identity::{AccountKind, AccountName};
use crate::rules::Rules;

/// The users of Bursar's own programs. The daemon is in the group of its ledger, the webhook in no group.
const PROGRAMS: [&str; 2] = [DAEMON, "bursar:webhook"];
const DAEMON: &str = "bursar:daemon";

/// Checks an update of `certificatesigningrequests/approval`.
pub(super) fn check(rules: &Rules, review: &Review<'_>, decision: &mut Decision) -> Result<(), Malformed> {
    if review.operation != Operation::Update || !is_by_the_daemon(rules, review) {
        return Ok(());
    }
    let missing = || Malformed("the approval does not contain the request".to_owned());
    let new = review.object.as_ref().ok_or_else(missing)?;
    // The signer signs the stored request, and an approval cannot change it, so only the old object is checked.
    let old = review.old_object.as_ref().ok_or_else(missing)?;
    if approvals(new)? == approvals(old)? {
        return Ok(());
    }
    let request = at(old, &["spec"]).ok_or_else(missing)?;
    if let Err(what) = subject(text(request, "request")?) {
        decision.refuse(Finding {
            rule: Rule::Approval,
            what: format!("the daemon would approve a certificate for {what}"),
            why: "it may approve only those of tenants and of Bursar's own programs".to_owned(),
            remedy: "if no administrator requested it, treat the daemon's key as stolen".to_owned(),
        });
    }
    Ok(())
}

/// Whether the daemon sends the review. The daemon is recognised by its name, or by the group that its rights are bound
/// to, because a certificate with this group and another name has the same rights.
fn is_by_the_daemon(rules: &Rules, review: &Review<'_>) -> bool {
    let is_its = |group: &String| group.strip_prefix(&*rules.daemon).is_some_and(|rest| rest.starts_with('#'));
    review.user.name == rules.daemon || review.user.groups.iter().any(is_its)
}

/// Returns the conditions that let a request be signed.
fn approvals<'v, 'a>(request: &'v Json<'a>) -> Result<Vec<&'v Json<'a>>, Malformed> {
    let Some(status) = at(request, &["status"]) else { return Ok(Vec::new()) };
    Ok(list(status, "conditions")?.iter().filter(|condition| condition["type"].as_str() == Some("Approved")).collect())
}

/// Checks that the subject of a request (PKCS#10 as PEM in base64) belongs to a tenant or a program of Bursar. If not,
/// returns a description of the subject.
fn subject(request: &str) -> Result<(), String> {
    let Requested { common_name: name, organizations, .. } = certificate_request::parse(request)?;
    match organizations.iter().find(|group| !is_group_of(&name, group)) {
        Some(group) => Err(format!("{} in group {}", quoted(&name), quoted(group))),
        None if is_ours(&name) => Ok(()),
        None => Err(quoted(&name)),
    }
}

fn is_ours(name: &str) -> bool {
    PROGRAMS.contains(&name) || account(name).is_some()
}

/// Returns the account with this username, such as `tool:foo` or `user:alice`.
fn account(name: &str) -> Option<AccountName> {
    name.parse().ok().filter(|account: &AccountName| account.kind != AccountKind::Group)
}

/// Whether a user may be in the group: `tool:foo` may be in `bursar:tools` and `bursar:tool:foo#1042` (see
/// `desired::credential`), and the daemon in `bursar:daemon#LEDGER` (see `bootstrap::roles`).
fn is_group_of(name: &str, group: &str) -> bool {
    if name == DAEMON {
        let ledger = group.strip_prefix(DAEMON).and_then(|rest| rest.strip_prefix('#'));
        return ledger.is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
    let Some(account) = account(name) else { return false };
    let Some(rest) = group.strip_prefix("bursar:") else { return false };
    let generation = rest.strip_prefix(name).and_then(|rest| rest.strip_prefix('#'));
    rest == format!("{}s", account.kind)
        || generation.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    use super::*;

    fn request(attributes: &[(rcgen::DnType, &str)]) -> String {
        let mut params = rcgen::CertificateParams::default();
        for (kind, value) in attributes {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = rcgen::KeyPair::generate().expect("ring makes a key");
        BASE64.encode(
            params.serialize_request(&key).expect("the parameters are valid").pem().expect("a request becomes PEM"),
        )
    }

    fn of(name: &str, groups: &[&str]) -> Result<(), String> {
        use rcgen::DnType::{CommonName, CustomDnType, OrganizationName};
        // rcgen keeps one value per attribute type, so the second group uses the numeric form of the type.
        let kinds = [OrganizationName, CustomDnType(vec![2, 5, 4, 10])];
        let groups = kinds.into_iter().zip(groups.iter().copied());
        subject(&request(&[(CommonName, name)].into_iter().chain(groups).collect::<Vec<_>>()))
    }

    #[test]
    fn subjects_of_tenants_and_of_bursars_programs_are_accepted() {
        assert_eq!(of("tool:foo", &["bursar:tools", "bursar:tool:foo#1042"]), Ok(()));
        assert_eq!(of("user:alice", &["bursar:users", "bursar:user:alice#7"]), Ok(()));
        assert_eq!(of("bursar:daemon", &["bursar:daemon#00ff"]), Ok(()));
        assert_eq!(of("bursar:webhook", &[]), Ok(()));
    }

    #[test]
    fn other_subjects_are_refused() {
        for (name, groups) in [
            ("tool:foo", &["system:masters"][..]),
            ("tool:foo", &["bursar:tools", "system:masters"]),
            ("tool:foo", &["bursar:tool:bar#3"]),
            ("tool:foo", &["bursar:tool:foo#"]),
            ("tool:foo", &["bursar:tool:foo#3x"]),
            ("tool:foo", &["bursar:users"]),
            ("tool:foo", &["bursar:cluster-admins"]),
            ("bursar:daemon", &["bursar:tools"]),
            ("bursar:daemon", &["bursar:daemon#"]),
            ("bursar:webhook", &["bursar:daemon#00ff"]),
            ("bursar:cluster-admin", &[]),
            ("group:foo", &["bursar:groups"]),
            ("system:admin", &[]),
            ("system:node:a", &["system:nodes"]),
            ("alice", &[]),
            ("tool:", &[]),
        ] {
            assert!(of(name, groups).is_err(), "{name} {groups:?}");
        }
        let with = |kind: &[u64]| {
            subject(&request(&[
                (rcgen::DnType::CommonName, "tool:foo"),
                (rcgen::DnType::CustomDnType(kind.to_vec()), "1"),
            ]))
        };
        assert_eq!(with(&[2, 5, 4, 5]), Ok(()), "the id of the account is accepted");
        assert!(
            with(&[1, 3, 6, 1, 4, 1, 57683, 2]).is_err(),
            "the attribute that the API server reads as a uid is refused"
        );
        assert!(with(&[2, 5, 4, 3]).is_err(), "a second common name is refused");
    }

    #[test]
    fn the_rule_applies_to_members_of_the_daemons_group_too() {
        let rules = Rules::parse(
            br#"{"version": 1, "cluster": "prod", "daemon": "bursar:daemon", "exempt": [], "classes": {}}"#,
        );
        let rules = rules.expect("the rules are valid");
        let by = |name: &str, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            let body = serde_json::json!({
                "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                    "uid": "u", "operation": "UPDATE", "name": "a", "subResource": "approval",
                    "kind": {"group": "certificates.k8s.io", "version": "v1", "kind": "CertificateSigningRequest"},
                    "resource": {
                        "group": "certificates.k8s.io", "version": "v1", "resource": "certificatesigningrequests",
                    },
                    "userInfo": {"username": name, "groups": groups},
                    "object": {"spec": {"request": "eA=="}, "status": {"conditions": [{"type": "Approved"}]}},
                    "oldObject": {"spec": {"request": "eA=="}},
                },
            });
            let body = body.to_string();
            let review = Review::parse(body.as_bytes()).expect("the body is a review");
            let mut decision = Decision::default();
            check(&rules, &review, &mut decision).expect("the approval is well-formed");
            decision.is_allowed()
        };
        assert!(!by("bursar:daemon", &[]));
        assert!(!by("mallory", &["system:authenticated", "bursar:daemon#00ff"]));
        assert!(by("mallory", &["bursar:daemons", "bursar:daemon"]));
    }

    #[test]
    fn text_around_the_pem_block_of_a_request_is_an_error() {
        let pem = String::from_utf8(
            BASE64.decode(request(&[(rcgen::DnType::CommonName, "tool:foo")])).expect("the request is base64"),
        );
        let pem = pem.expect("PEM is UTF-8");
        for wrong in [
            pem.repeat(2),
            format!("x\n{pem}"),
            pem.replace("BEGIN CERTIFICATE", "BEGIN NEW CERTIFICATE"),
            String::new(),
        ] {
            assert!(subject(&BASE64.encode(&wrong)).is_err(), "{wrong}");
        }
        assert!(subject(&pem).is_err());
    }
}
