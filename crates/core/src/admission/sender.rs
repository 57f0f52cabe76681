//! The question by which `bursar webhook install` finds out whether the API server shows the client certificate that is to
//! be demanded.
//!
//! It is a pod in [`SELFTEST`] with the annotation [`QUESTION`], whose value is a [`ClientRules`]. The webhook refuses it
//! with one of the sentences of [`Known`], whatever it demands at the time.

use super::{Operation, Review};
use crate::contract::SELFTEST;
use crate::rules::senders::ClientRules;

/// Annotation of the pod that is no pod.
pub const QUESTION: &str = "bursar.dev/client-certificate";

/// What the webhook knows of who sends it reviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// The certificate of this connection is as the question says, and so are those of all connections that are open.
    Verified,
    /// It is, and reviews come over other connections without such a certificate: from these addresses.
    OthersToo(String),
    /// It is not: why.
    Unverified(String),
}

const VERIFIED: &str = "its client certificate is verified";
const OTHERS_TOO: &str = "; reviews also come without such a certificate, from ";
const UNVERIFIED: &str = "its client certificate is not verified: ";
/// The end of each sentence: what stands behind it is somebody else's.
const END: &str = "; bursar asked";

impl Known {
    /// The sentence in the webhook's answer.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Verified => format!("{VERIFIED}{END}"),
            Self::OthersToo(addresses) => format!("{VERIFIED}{OTHERS_TOO}{addresses}{END}"),
            Self::Unverified(why) => format!("{UNVERIFIED}{why}{END}"),
        }
    }

    /// From what an API server says of the webhook's answer; `None`: the webhook did not answer the question.
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

/// The certificate that a review asks about, if it is the question.
#[must_use]
pub fn question(review: &Review<'_>) -> Option<ClientRules> {
    let is_pod = review.group.is_empty() && review.resource == "pods" && review.subresource.is_empty();
    if !is_pod || review.namespace != SELFTEST || review.operation != Operation::Create || !review.dry_run {
        return None;
    }
    let annotations = review.object.as_ref()?.get("metadata")?.get("annotations")?;
    serde_json::from_str(annotations.get(QUESTION)?.as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_answer_is_found_in_what_the_api_server_makes_of_it() {
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
    fn only_a_pod_without_effect_in_the_namespace_of_the_self_test_is_the_question() {
        let client = ClientRules { authorities: "PEM".to_owned(), name: "kube-apiserver".to_owned() };
        let review = |namespace: &str, dry_run: bool| {
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                "uid": "u", "operation": "CREATE", "namespace": namespace, "dryRun": dry_run,
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "object": {"metadata": {"annotations": {QUESTION: json!(client).to_string()}}},
            }})
            .to_string()
        };
        let asked = |text: &str| question(&Review::parse(text.as_bytes()).expect("a review"));
        assert_eq!(asked(&review(SELFTEST, true)), Some(client.clone()));
        assert_eq!(asked(&review(SELFTEST, false)), None);
        assert_eq!(asked(&review("tool-foo", true)), None);
    }
}
