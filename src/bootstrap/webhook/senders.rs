//! Makes the webhook demand the client certificate of the API server, but only after the webhook has seen that
//! certificate. If the webhook demanded a certificate that the API server does not present, every pod of the tenants
//! would be refused.

use std::time::Duration;

use kube::Client;
use serde_json::json;

use super::selftest::create_pod;
use super::{AccessError, InstalledWebhook, WebhookRequest, remembered, wait_for};
use crate::admission::sender::{Known, PROBE};
use crate::contract::SELFTEST;
use crate::rules::Rules;
use crate::rules::senders::{ClientRules, Senders};

/// How long to wait until the webhook has seen the certificate. The API server needs a moment to see new
/// configurations, and connections without the certificate need a moment to end.
const WITHIN: Duration = Duration::from_secs(15);

/// The effect of the configuration's `client_ca` and `client_name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCertificate {
    /// They are not set, so the webhook answers every client.
    NotAsked,
    /// The webhook demands the certificate.
    Demanded,
    /// The webhook does not demand the certificate, because it has not seen it.
    NotSeen {
        /// What is missing.
        why: String,
    },
}

impl WebhookRequest<'_> {
    /// Returns the clients that may send reviews, as the configuration says.
    #[must_use]
    pub fn senders(&self) -> Senders {
        self.policy.clusters.get(self.cluster).map(|cluster| cluster.senders.clone()).unwrap_or_default()
    }

    /// Returns the text of `rules.json`.
    pub(super) fn rules_text(&self, client: Option<&ClientRules>) -> String {
        Rules { client: client.cloned(), ..self.rules() }.to_json()
    }

    /// Returns the senders with which an installation begins. If the webhook at the same place already demands a client
    /// certificate, it keeps demanding that certificate until it has seen the newly configured one.
    pub(super) fn begins_with(
        &self,
        before: Option<&InstalledWebhook>,
        url: Option<&str>,
    ) -> Result<Senders, AccessError> {
        let Senders { client, api_server_cidrs } = self.senders();
        let installed = remembered::remembered(self.state_dir, self.cluster)?
            .filter(|it| before.is_some() && it.url.as_deref() == url);
        let demanded = installed.and_then(|it| it.senders.client).filter(|_| client.is_some());
        Ok(Senders { client: demanded, api_server_cidrs })
    }
}

/// If the configuration names a client certificate other than `in_force`, and the API server presents that certificate
/// to the webhook, calls `write` to make the webhook demand it.
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
    let turn = remembered::turn(request.state_dir, request.cluster).await?;
    write(&wanted).await?;
    if let Some(mut installed) = remembered::remembered(request.state_dir, request.cluster)? {
        installed.senders.client = Some(wanted);
        remembered::remember(&turn, request, &installed).await?;
    }
    Ok(ClientCertificate::Demanded)
}

/// Asks the webhook, through the API server, whether it has seen the certificate.
async fn seen(client: &Client, wanted: &ClientRules) -> Result<Result<(), String>, AccessError> {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": SELFTEST, "annotations": {PROBE: json!(wanted).to_string()}},
        "spec": {"securityContext": {"runAsUser": 0}, "containers": [{"name": "probe", "image": "probe"}]},
    });
    let asked = wait_for(WITHIN, async || {
        let said = match create_pod(client, &pod).await {
            Ok(_) => "the pod was not refused".to_owned(),
            Err(said) => said,
        };
        Ok(match Known::find(&said) {
            Some(Known::Verified) => Ok(Ok(())),
            Some(Known::Unverified(why)) => Ok(Err(format!("the API server does not show it to the webhook: {why}"))),
            Some(Known::OthersToo(from)) => Err(format!(
                "reviews also come without it, from {from}: every API server needs it, and nobody else may send reviews"
            )),
            None => Err(format!("the webhook did not say which certificate the API server shows: {said}")),
        })
    });
    Ok(asked.await?.and_then(|answer| answer))
}
