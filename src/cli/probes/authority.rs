//! Checks when the CAs of endpoints and directories, and client certificates, expire.

use bursar_directory::SourceConfig;
use bursar_directory::source::{LdapConfig, SourceKind};
use jiff::Timestamp;
use x509_parser::pem::Pem;

use super::Finding;
use crate::daemon;
use crate::execute::endpoint;
use crate::policy::Endpoint;

/// How many seconds before its expiry a CA is reported. In this time, another CA can be made and distributed.
const ENDS_SOON: i64 = 30 * 24 * 3600;

/// How many seconds before its expiry a client certificate is reported. In this time, another one can be requested.
const CERTIFICATE_ENDS_SOON: i64 = 7 * 24 * 3600;

/// Checks the CA bundle of an endpoint. If a CA expires soon, but another CA of the bundle issued the server's
/// certificate, that is not a problem: a replacement of the CA looks like this.
pub(super) async fn bundle(subject: &str, endpoint: &Endpoint) -> Finding {
    let found = certificates(&endpoint.ca_pem);
    let soon = daemon::now().as_second() + ENDS_SOON;
    let (ending, lasting): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, ends)| ends.as_second() < soon);
    let Some(first) = ending.iter().chain(&lasting).map(|(_, ends)| *ends).min() else {
        return Finding::bad(subject, "its ca has no certificate", "put the cluster's CA in PEM in the file of `ca`");
    };
    if ending.is_empty() {
        return Finding::good(subject, format!("its CA is good until {first}"));
    }
    let rest: String = lasting.iter().map(|(pem, _)| pem.as_str()).collect();
    let only = Endpoint { ca_pem: rest, ..endpoint.clone() };
    if !lasting.is_empty() && endpoint::time(&only).await.is_ok() {
        return Finding::good(
            subject,
            format!("the CA that expires {first} is no longer needed: another CA in the file of `ca` is in use"),
        );
    }
    let remedy = if lasting.is_empty() {
        "add the new CA to the file of `ca`, keep the old one, and reload: /usr/share/doc/bursar/clusters.md, \"Another CA\""
    } else {
        "the file of `ca` has a newer CA already: give the API server a certificate of the new CA"
    };
    Finding::bad(subject, format!("its CA expires {first}"), remedy)
}

/// Checks the CA of a directory. Returns a finding only if it expires soon.
pub(super) fn of_source(subject: &str, pem: &str) -> Option<Finding> {
    let soon = daemon::now().as_second() + ENDS_SOON;
    let last = certificates(pem).into_iter().map(|(_, ends)| ends).max()?;
    let remedy = "add the directory's new CA to the file of `ca`, keep the old one, and reload";
    (last.as_second() < soon).then(|| Finding::bad(subject, format!("its CA expires {last}"), remedy))
}

/// Checks the client certificate with which Bursar authenticates to a directory.
pub(super) fn client_certificate(source: &SourceConfig) -> Option<Finding> {
    let SourceKind::Ldap(LdapConfig { identity: Some(identity), .. }) = &source.kind else { return None };
    let subject = format!("source {}, client_certificate", source.name);
    let renew = "renew it, and reload bursard: it is read with the configuration";
    let soon = daemon::now().as_second() + CERTIFICATE_ENDS_SOON;
    Some(match certificates(&identity.certificate_pem).into_iter().map(|(_, ends)| ends).min() {
        None => Finding::bad(subject, "its file has no certificate", "put a certificate in PEM in the file"),
        Some(at) if at.as_second() < soon => Finding::bad(subject, format!("it expires {at}"), renew),
        Some(at) => Finding::good(subject, format!("it is good until {at}")),
    })
}

/// Returns each certificate as PEM, with its end.
fn certificates(pem: &str) -> Vec<(String, Timestamp)> {
    let certificates = Pem::iter_from_buffer(pem.as_bytes()).filter_map(|block| {
        let block = block.ok()?;
        let ends = block.parse_x509().ok()?.validity().not_after.timestamp();
        Some((encoded(&block.contents), Timestamp::from_second(ends).ok()?))
    });
    certificates.collect()
}

/// Encodes a certificate in PEM (RFC 7468).
fn encoded(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_split_into_certificates() {
        let make = || {
            let key = rcgen::KeyPair::generate().expect("ring makes a key");
            rcgen::CertificateParams::default().self_signed(&key).expect("the certificate can be signed").pem()
        };
        let (one, two) = (make(), make());
        let found = certificates(&format!("{one}# between\n{two}"));
        let pems: Vec<String> = found.iter().map(|(pem, _)| pem.replace('\n', "")).collect();
        assert_eq!(pems, [one, two].map(|pem| pem.replace(['\r', '\n'], "")));
    }
}
