//! Tests the webhook with one review: directly before it is in force, and later through the API server. The reviewed
//! pod would run as root, and is never stored.

use std::time::Duration;

use kube::Client;
use reqwest::Certificate;
use serde_json::{Value, json};

use super::selftest::{create, image_for, seal_manifest, seal_with};
use super::{AccessError, WebhookRequest, wait_for};
use crate::admission::tenant::STALE;
use crate::contract::SELFTEST;
use crate::errors::chain;
use crate::rules::Mode;

/// The timeout of a review: the API server's default timeout for a webhook.
const PATIENCE: Duration = Duration::from_secs(10);
/// Identifies the review in the answer.
const UID: &str = "bursar-asks-one-review";

/// A test review through the API server, with everything that it needs.
#[derive(Clone)]
pub struct Question {
    client: Client,
    seal: Value,
    pod: Value,
    must_be_refused: bool,
}

impl Question {
    /// Creates a review of a pod in the first class that enforces the uid rule, or else in the first class. Returns
    /// `None` if there are no classes.
    #[must_use]
    pub fn of(client: &Client, request: WebhookRequest<'_>) -> Option<Self> {
        let rules = request.rules();
        let enforced = rules.classes.iter().find(|(_, rules)| rules.uid.mode == Mode::Enforce);
        let (class, rules) = enforced.or_else(|| rules.classes.iter().next())?;
        let pod = json!({
            "securityContext": {"runAsUser": 0},
            "containers": [{"name": "review", "image": image_for(rules)}],
        });
        let must_be_refused = rules.uid.mode == Mode::Enforce;
        Some(Self { client: client.clone(), seal: seal_manifest(request, class, rules)?, pod, must_be_refused })
    }

    /// Sends the review again and again, until the webhook answers or `within` has passed.
    pub async fn ask_within(self, within: Duration) -> Result<(), String> {
        let asked = wait_for(within, async || Ok(self.clone().ask().await)).await;
        asked.unwrap_or_else(|error| Err(chain(&error)))
    }

    /// Sends the review. The error is text for an administrator.
    pub async fn ask(self) -> Result<(), String> {
        let Self { client, seal, pod, must_be_refused } = self;
        let asked = async {
            seal_with(&client, &seal).await.map_err(|error| chain(&error))?;
            create(&client, &pod).await
        };
        let answer = tokio::time::timeout(PATIENCE * 2, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs() * 2)));
        works(answer.map(drop), must_be_refused)
    }
}

/// Decides from the API server's answer whether the webhook works.
fn works(answer: Result<(), String>, must_be_refused: bool) -> Result<(), String> {
    match answer {
        Ok(()) if must_be_refused => Err("a pod that would run as root was allowed".to_owned()),
        Err(why) if is_denied(&why) => Ok(()),
        Err(why) if must_be_refused || why.contains("failed calling webhook") || why.contains(STALE) => Err(why),
        // The pod was allowed, or something other than the webhook refused it. Neither means that the webhook is
        // broken.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether the webhook judged the request and refused it. A webhook with a stale view of the namespaces refuses every
/// pod, which is not a judgement.
pub(super) fn is_denied(why: &str) -> bool {
    why.contains(".bursar.dev\" denied") && !why.contains(STALE)
}

/// Waits until the webhook at `url` answers a review, or until `within` has passed. If `question` is given, it is sent
/// through the API server; otherwise a review is sent to the webhook itself, whose certificate an authority in `bundle`
/// must have signed. `standing` says what is in force until then.
pub(super) async fn answers(
    url: &str,
    bundle: &str,
    question: Option<Question>,
    (within, standing): (Duration, &str),
) -> Result<(), AccessError> {
    let asked = wait_for(within, async || {
        Ok(match &question {
            Some(question) => question.clone().ask().await,
            None => ask_itself(url, bundle).await,
        })
    });
    let asked = asked.await?;
    let standing = standing.to_owned();
    asked.map_err(|why| AccessError::NoReview { url: url.to_owned(), waited: within, why, standing })
}

async fn ask_itself(url: &str, bundle: &str) -> Result<(), String> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": UID,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "review",
            "namespace": SELFTEST,
            "operation": "CREATE",
            "userInfo": {"username": "bursar:review", "groups": []},
            "object": {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "review", "namespace": SELFTEST},
                "spec": {"securityContext": {"runAsUser": 0}, "containers": [{"name": "review", "image": "review"}]},
            },
            "dryRun": true,
        },
    });
    let said = |error: reqwest::Error| chain(&error.without_url());
    let authorities = Certificate::from_pem_bundle(bundle.as_bytes()).map_err(said)?;
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).tls_certs_only(authorities).build();
    let request = client.map_err(said)?.post(format!("{url}/validate")).header("content-type", "application/json");
    let answer = request.body(review.to_string()).send().await.map_err(said)?;
    let status = answer.status();
    let answer: Value = serde_json::from_slice(&answer.bytes().await.map_err(said)?).unwrap_or_default();
    is_review(&answer["response"]).unwrap_or_else(|| Err(format!("it answers {status}, but not with a review")))
}

/// Returns the webhook's verdict on its own state; `None` if this is not a response to our review.
fn is_review(response: &Value) -> Option<Result<(), String>> {
    let is_ours = response["uid"] == UID && response["allowed"].is_boolean();
    let why = response["status"]["message"].as_str().unwrap_or_default();
    is_ours.then(|| if why.contains(STALE) { Err(why.to_owned()) } else { Ok(()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::tenant::Unresolved;

    #[test]
    fn a_webhook_with_stale_namespaces_does_not_work() {
        let of = |why: &str| format!("admission webhook \"pods.bursar.dev\" denied the request: {why}");
        let stale = of(&format!("namespace tool-foo: {}", Unresolved::Stale { seconds: 301 }));
        for must_be_refused in [true, false] {
            assert_eq!(works(Err(stale.clone()), must_be_refused), Err(stale.clone()));
            assert_eq!(works(Err(of("pod \"x\" would run as uid 0")), must_be_refused), Ok(()));
        }
        let review = |why: &str| json!({"uid": UID, "allowed": false, "status": {"message": why}});
        assert_eq!(is_review(&review(&stale)), Some(Err(stale.clone())));
        assert_eq!(is_review(&review("it belongs to no tenant")), Some(Ok(())));
        assert_eq!(is_review(&json!({"uid": "another", "allowed": true})), None);
    }
}
