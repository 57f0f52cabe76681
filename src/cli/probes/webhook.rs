//! Whether the webhook of a cluster is there, has the configuration's rules, and files that hold a while.

use jiff::Timestamp;

use super::Finding;
use crate::bootstrap::webhook::{self, ENDS_SOON, Found, Question, WebhookRequest};
use crate::errors::chain;
use crate::identity::ClusterName;
use crate::settings::Settings;
use crate::store::ReadStore;
use crate::{daemon, runtime};

/// Looks at it; `init`: what gives the daemon its rights.
pub(super) async fn webhook(
    settings: &Settings,
    cluster: &ClusterName,
    client: &kube::Client,
    init: String,
) -> Finding {
    let subject = format!("cluster {cluster}, webhook");
    match webhook_found(settings, cluster, client).await {
        Ok(None) => Finding::good(
            &subject,
            "not installed: nothing looks at what tenants' pods run as (`bursar webhook install`)",
        ),
        Ok(Some((found, is_given, question))) => {
            let finding = installed(subject.clone(), cluster, (&found.url, found.not_after), is_given, daemon::now());
            let answer = match question {
                Some(question) if finding.cure.is_none() => question.ask().await,
                _ => return finding,
            };
            match answer {
                Ok(()) => Finding::good(subject, format!("{}; it answers a review", finding.text)),
                Err(why) => {
                    Finding::bad(subject, format!("it does not answer a review: {why}"), start(found.url.as_deref()))
                }
            }
        }
        Err(error) => Finding::bad(&subject, error, init),
    }
}

/// What brings a webhook back. Until then every pod of tenants is refused.
fn start(url: Option<&str>) -> String {
    match url {
        Some(url) => format!(
            "on the host of {url}: systemctl restart bursar-webhook, and journalctl -u bursar-webhook; the API server must reach \
             it there"
        ),
        None => "kubectl -n bursar get pods; kubectl -n bursar logs deployment/bursar-webhook".to_owned(),
    }
}

/// Checks an installed webhook: its address, if it has one, and the end of its files.
fn installed(
    subject: String,
    cluster: &ClusterName,
    (url, not_after): (&Option<String>, Option<Timestamp>),
    is_given: bool,
    now: Timestamp,
) -> Finding {
    let again = match url {
        Some(url) => format!("bursar webhook install --cluster {cluster} --url {url} --write FOLDER"),
        None => "systemctl status bursard: the daemon renews it".to_owned(),
    };
    match not_after {
        Some(ends) if ends <= now + ENDS_SOON => {
            Finding::bad(subject, format!("its files are good until {ends:.0}"), again)
        }
        _ if !is_given => Finding::bad(subject, "it has rules of an older configuration", again),
        Some(ends) => Finding::good(subject, format!("installed, its files are good until {ends:.0}")),
        None => Finding::bad(subject, "nobody knows until when its files are good", again),
    }
}

async fn webhook_found(
    settings: &Settings,
    cluster: &ClusterName,
    client: &kube::Client,
) -> Result<Option<(Found, bool, Option<Question>)>, String> {
    let chain = |error: &dyn std::error::Error| chain(error);
    let Some(found) = webhook::found(client).await.map_err(|error| chain(&error))? else { return Ok(None) };
    let sealer = runtime::read_seal(&settings.state_dir).map_err(|error| chain(&error))?;
    let mut store = ReadStore::open(&settings.ledger()).await.map_err(|error| chain(&error))?;
    let ledger = store.state().await.map_err(|error| chain(&error))?;
    let (policy, state_dir, now) = (&settings.policy, settings.state_dir.as_path(), daemon::now());
    let request = WebhookRequest { policy, cluster, ledger: &ledger, state_dir, sealer: &sealer, now };
    let is_given = request.is_given(client, &found).await.map_err(|error| chain(&error))?;
    Ok(Some((found, is_given, Question::of(client, request))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_webhook_is_to_be_written_anew_30_days_before_its_end() {
        let ends: Timestamp = "2026-12-21T06:00:00Z".parse().expect("a time");
        let url = Some("https://hook.example.org:9443".to_owned());
        let found = |now: &str, is_given| {
            let cluster = ClusterName("prod".to_owned());
            installed("webhook".to_owned(), &cluster, (&url, Some(ends)), is_given, now.parse().expect("a time"))
        };
        let again = "bursar webhook install --cluster prod --url https://hook.example.org:9443 --write FOLDER";
        assert_eq!(found("2026-11-21T05:59:59Z", true).cure, None);
        let soon = found("2026-11-21T06:00:00Z", true);
        assert_eq!(soon.cure.as_deref(), Some(again));
        assert_eq!(soon.text, "its files are good until 2026-12-21T06:00:00Z");
        assert_eq!(found("2026-11-20T06:00:00Z", false).text, "it has rules of an older configuration");
    }
}
