//! Who may send reviews: the client certificate of the API server, which the webhook demands only after it has seen it.
//! If it demanded another one, the API server would refuse every pod of the tenants.

use std::time::Duration;

use kube::Client;
use serde_json::json;

use super::selftest::create_pod;
use super::{AccessError, Found, WebhookRequest, remembered, wait_for};
use crate::admission::sender::{Known, QUESTION};
use crate::contract::SELFTEST;
use crate::rules::Rules;
use crate::rules::senders::{ClientRules, Senders};

/// The API server hears of new configurations by a watch, and the webhook of connections that ended by their end.
const WITHIN: Duration = Duration::from_secs(15);

/// What became of `client_ca` and `client_name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCertificate {
    /// They are not set: the webhook answers everybody.
    NotAsked,
    /// It is demanded.
    Demanded,
    /// It is not demanded, because it was not seen.
    NotSeen {
        /// What is missing.
        why: String,
    },
}

impl WebhookRequest<'_> {
    /// What the configuration says.
    #[must_use]
    pub fn senders(&self) -> Senders {
        self.policy.clusters.get(self.cluster).map(|cluster| cluster.senders.clone()).unwrap_or_default()
    }

    /// The text of `rules.json`.
    pub(super) fn rules_text(&self, client: Option<&ClientRules>) -> String {
        Rules { client: client.cloned(), ..self.rules() }.to_json()
    }

    /// What a new installation at this place begins with: the certificate that is demanded there already stays so until
    /// another one was seen.
    pub(super) fn begins_with(&self, before: Option<&Found>, url: Option<&str>) -> Result<Senders, AccessError> {
        let Senders { client, api_server_cidrs } = self.senders();
        let installed = remembered::remembered(*self)?.filter(|it| before.is_some() && it.url.as_deref() == url);
        let demanded = installed.and_then(|it| it.senders.client).filter(|_| client.is_some());
        Ok(Senders { client: demanded, api_server_cidrs })
    }
}

/// What is to be demanded besides what is in force, if the API server shows it: then `write` writes it.
pub(super) async fn demand(
    client: &Client,
    request: WebhookRequest<'_>,
    in_force: &Senders,
    write: impl AsyncFnOnce(&ClientRules) -> Result<(), AccessError>,
) -> Result<ClientCertificate, AccessError> {
    let Some(wanted) = request.senders().client else { return Ok(ClientCertificate::NotAsked) };
    if in_force.client.as_ref() == Some(&wanted) {
        return Ok(ClientCertificate::Demanded);
    }
    if let Err(why) = seen(client, &wanted).await? {
        return Ok(ClientCertificate::NotSeen { why });
    }
    write(&wanted).await?;
    if let Some(mut installed) = remembered::remembered(request)? {
        installed.senders.client = Some(wanted);
        remembered::remember(request, &installed).await?;
    }
    Ok(ClientCertificate::Demanded)
}

/// Asks the webhook, through the API server, whether it has seen the certificate.
async fn seen(client: &Client, wanted: &ClientRules) -> Result<Result<(), String>, AccessError> {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "question", "namespace": SELFTEST, "annotations": {QUESTION: json!(wanted).to_string()}},
        "spec": {"securityContext": {"runAsUser": 0}, "containers": [{"name": "question", "image": "question"}]},
    });
    let asked = wait_for(WITHIN, async || {
        let said = match create_pod(client, &pod).await {
            Ok(_) => "nobody refused the question".to_owned(),
            Err(said) => said,
        };
        Ok(match Known::find(&said) {
            Some(Known::Verified) => Ok(Ok(())),
            Some(Known::Unverified(why)) => Ok(Err(format!("the API server does not show it to the webhook: {why}"))),
            Some(Known::OthersToo(from)) => Err(format!(
                "reviews also come without it, from {from}: every API server needs it, and nobody else may send reviews"
            )),
            None => Err(format!("the webhook did not answer what the API server shows it: {said}")),
        })
    });
    Ok(asked.await?.and_then(|answer| answer))
}
