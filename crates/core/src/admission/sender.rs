//! The probe by which `bursar webhook install` asks the webhook whether the API server shows the client certificate
//! that the webhook will require.
//!
//! The probe is a pod in [`SELFTEST`] with the annotation [`PROBE`], whose value is a [`ClientRules`]. The
//! webhook always refuses the pod, with one of the sentences of [`Known`].

use super::{Operation, Review};
use crate::contract::SELFTEST;
use crate::rules::senders::ClientRules;

/// The annotation that makes a pod a probe.
pub const PROBE: &str = "bursar.dev/client-certificate";

/// What the webhook knows about the clients that send reviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// This connection, and all other open connections that sent reviews, have the certificate.
    Verified,
    /// This connection has the certificate, but reviews also come from these addresses without it.
    OthersToo(String),
    /// This connection does not have the certificate, for this reason.
    Unverified(String),
}

const VERIFIED: &str = "its client certificate is verified";
const OTHERS_TOO: &str = "; reviews also come without such a certificate, from ";
const UNVERIFIED: &str = "its client certificate is not verified: ";
/// Marks the end of each sentence. The API server may add text after it.
const END: &str = "; bursar asked";

impl Known {
    /// Returns the sentence in the webhook's answer.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Verified => format!("{VERIFIED}{END}"),
            Self::OthersToo(addresses) => format!("{VERIFIED}{OTHERS_TOO}{addresses}{END}"),
            Self::Unverified(why) => format!("{UNVERIFIED}{why}{END}"),
        }
    }

    /// Finds the sentence in an error of the API server. Returns `None` if the webhook did not answer the probe.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        let (text, _) = text.split_once(END)?;
        if let Some((_, why)) = text.split_once(UNVERIFIED) {
            return Some(Self::Unverified(why.to_owned()));
        }
        let (_, rest) = text.split_once(VERIFIED)?;
        Some(rest.strip_prefix(OTHERS_TOO).map_or(Self::Verified, |others| Self::OthersToo(others.to_owned())))
    }
}

/// Returns the client certificate that a probe asks about; `None` if the review is not a probe.
#[must_use]
pub fn probe(review: &Review<'_>) -> Option<ClientRules> {
    let is_pod = review.group.is_empty() && review.resource == "pods" && review.subresource.is_empty();
    if !is_pod || review.namespace != SELFTEST || review.operation != Operation::Create || !review.dry_run {
        return None;
    }
    let annotations = review.object.as_ref()?.get("metadata")?.get("annotations")?;
    serde_json::from_str(annotations.get(PROBE)?.as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_answer_is_found_in_the_error_of_the_api_server() {
        for known in [
            Known::Verified,
            Known::OthersToo("192.0.2.1, 192.0.2.2".to_owned()),
            Known::Unverified("it has none".to_owned()),
        ] {
            let said = format!("admission webhook \"pods.bursar.dev\" denied the request: {}: x", known.sentence());
            assert_eq!(Known::find(&said), Some(known));
        }
        assert_eq!(Known::find("pods \"a\" is forbidden"), None);
    }

    #[test]
    fn only_a_dry_run_pod_in_the_selftest_namespace_is_a_probe() {
        let client = ClientRules { authorities: "PEM".to_owned(), name: "kube-apiserver".to_owned() };
        let review = |namespace: &str, dry_run: bool| {
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                "uid": "u", "operation": "CREATE", "namespace": namespace, "dryRun": dry_run,
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "object": {"metadata": {"annotations": {PROBE: json!(client).to_string()}}},
            }})
            .to_string()
        };
        let asked = |text: &str| probe(&Review::parse(text.as_bytes()).expect("the text is a review"));
        assert_eq!(asked(&review(SELFTEST, true)), Some(client.clone()));
        assert_eq!(asked(&review(SELFTEST, false)), None);
        assert_eq!(asked(&review("tool-foo", true)), None);
    }
}
