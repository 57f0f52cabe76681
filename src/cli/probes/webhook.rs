//! Checks whether the webhook of a cluster is installed, has the rules of the configuration, and has files that do not
//! expire soon.

use jiff::Timestamp;

use super::Finding;
use crate::bootstrap::webhook::remembered::remembered;
use crate::bootstrap::webhook::{self, ENDS_SOON, InstalledWebhook, Question, WebhookRequest};
use crate::cli::context::ledger_of;
use crate::desired::rules::unenforced;
use crate::desired::server_rules::to_be_chosen;
use crate::errors::chain;
use crate::identity::ClusterName;
use crate::rules::senders::Senders;
use crate::settings::Settings;
use crate::{daemon, runtime};

/// Checks the webhook of one cluster. `init` is the command that gives the daemon its rights.
pub(super) async fn webhook(
    settings: &Settings,
    cluster: &ClusterName,
    client: &kube::Client,
    init: String,
) -> Vec<Finding> {
    let subject = format!("cluster {cluster}, webhook");
    match webhook_found(settings, cluster, client).await {
        Ok(Webhook::Absent { unenforced, only_audits }) => {
            let unchosen = only_audits.then(|| unchosen(&subject, &to_be_chosen(&settings.policy, cluster))).flatten();
            [absent(&subject, cluster, unenforced)].into_iter().chain(unchosen).collect()
        }
        // The probe of the confinement reports it.
        Ok(Webhook::Foreign) => Vec::new(),
        Ok(Webhook::Installed { found, is_given, senders, question, older_than_rules }) => {
            let url_and_end = (&found.url, found.not_after);
            let mut first = installed(subject.clone(), cluster, url_and_end, is_given, daemon::now());
            if let Some(question) = question.filter(|_| first.remedy.is_none()) {
                first = match question.ask().await {
                    Ok(()) => Finding::good(&subject, format!("{}; it answers a review", first.text)),
                    Err(why) => Finding::bad(
                        &subject,
                        format!("it does not answer a review: {why}"),
                        start(found.url.as_deref()),
                    ),
                };
            }
            let mut findings = vec![first];
            if let Some(what) = senders {
                findings.push(Finding::bad(&subject, what, again(cluster, found.url.as_deref())));
            }
            if older_than_rules {
                findings.extend(unchosen(&subject, &to_be_chosen(&settings.policy, cluster)));
            }
            findings
        }
        Err(error) => vec![Finding::bad(&subject, error, init)],
    }
}

/// Returns the remedy for a webhook that does not answer. Until it does, every pod of tenants is refused.
fn start(url: Option<&str>) -> String {
    match url {
        Some(url) => format!(
            "on the host of {url}: systemctl restart bursar-webhook, and journalctl -u bursar-webhook; the API server must reach \
             it there"
        ),
        None => "kubectl -n bursar get pods; kubectl -n bursar logs deployment/bursar-webhook".to_owned(),
    }
}

/// Returns a finding about rules that only audit, because the ledger is older than the rules and their modes are not
/// set.
fn unchosen(subject: &str, keys: &[String]) -> Option<Finding> {
    (!keys.is_empty()).then(|| {
        Finding::bad(
            subject,
            format!("{} only audit, because this ledger is older than these rules and their modes are not set", keys.join(", ")),
            "look for bursar-rules-audit in the API server's audit log, then set a mode for each; for example services = \
             \"enforce\"",
        )
    })
}

/// The state of the webhook in a cluster.
#[expect(clippy::large_enum_variant, reason = "one value for each cluster exists, and only for a moment")]
enum Webhook {
    Absent {
        /// The rules that are not enforced; `None` if no tenant needs the webhook.
        unenforced: Option<String>,
        /// Whether the API server evaluates rules that only audit, because the ledger is older than the rules.
        only_audits: bool,
    },
    /// This host did not install it.
    Foreign,
    Installed {
        found: InstalledWebhook,
        /// Whether the webhook has the rules of this configuration and ledger.
        is_given: bool,
        /// Which of `client_ca`, `client_name` and `api_server_cidrs` are not in force.
        senders: Option<String>,
        /// A review to send to the webhook; `None` if the configuration has no classes.
        question: Option<Question>,
        older_than_rules: bool,
    },
}

/// Returns the settings that are not in force and that only another installation puts in force.
fn not_in_force(wanted: &Senders, in_force: &Senders, outside: bool) -> Option<String> {
    let mut wrong = Vec::new();
    if wanted.client != in_force.client {
        wrong.push(match (&wanted.client, &in_force.client) {
            (Some(_), None) => "it does not demand the client certificate of client_ca and client_name",
            (None, _) => "it demands a client certificate, and client_ca and client_name are not set",
            (Some(_), Some(_)) => "it demands a client certificate of an older client_ca or client_name",
        });
    }
    if !outside && wanted.api_server_cidrs != in_force.api_server_cidrs {
        wrong.push("its network policy does not match api_server_cidrs");
    }
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

/// Returns the command that installs the webhook again.
fn again(cluster: &ClusterName, url: Option<&str>) -> String {
    let install = format!("bursar webhook install --cluster {cluster}");
    url.map_or(install.clone(), |url| format!("{install} --url {url} --write FOLDER"))
}

fn absent(subject: &str, cluster: &ClusterName, unenforced: Option<String>) -> Finding {
    let install = format!("bursar webhook install --cluster {cluster}");
    match unenforced {
        Some(what) => Finding::bad(subject, what, format!("{install}; or set the rules of the class to \"off\"")),
        None => Finding::good(subject, format!("not installed, and no tenant needs it yet; run: {install}")),
    }
}

/// Checks the rules of an installed webhook and the end of its files.
fn installed(
    subject: String,
    cluster: &ClusterName,
    (url, not_after): (&Option<String>, Option<Timestamp>),
    is_given: bool,
    now: Timestamp,
) -> Finding {
    let again = match url {
        Some(url) => again(cluster, Some(url)),
        None => "systemctl status bursard: the daemon renews it".to_owned(),
    };
    match not_after {
        Some(ends) if ends <= now + ENDS_SOON => {
            Finding::bad(subject, format!("its files are good until {ends:.0}"), again)
        }
        _ if !is_given => Finding::bad(subject, "its rules are from an older configuration", again),
        Some(ends) => Finding::good(subject, format!("installed, its files are good until {ends:.0}")),
        None => Finding::bad(subject, "the expiry of its certificate is unknown", again),
    }
}

async fn webhook_found(settings: &Settings, cluster: &ClusterName, client: &kube::Client) -> Result<Webhook, String> {
    let chain = |error: &dyn std::error::Error| chain(error);
    let found = webhook::found(client).await.map_err(|error| chain(&error))?;
    let ledger = ledger_of(settings).await.map_err(|failure| failure.text)?;
    let sealer = runtime::read_seal(&settings.state_dir).map_err(|error| chain(&error))?;
    let (policy, state_dir, now) = (&settings.policy, settings.state_dir.as_path(), daemon::now());
    let request = WebhookRequest { policy, cluster, ledger: &ledger, state_dir, sealer: &sealer, now };
    let Some(found) = found else {
        let only_audits =
            ledger.older_than_rules && webhook::audits_rules(client).await.map_err(|error| chain(&error))?;
        return Ok(Webhook::Absent { unenforced: unenforced(policy, cluster, &ledger), only_audits });
    };
    let installed = remembered(state_dir, cluster).map_err(|error| chain(&error))?;
    let Some(installed) = installed else { return Ok(Webhook::Foreign) };
    let is_given = request.is_given(client, &found).await.map_err(|error| chain(&error))?;
    let senders = not_in_force(&request.senders(), &installed.senders, found.url.is_some());
    let question = Question::of(client, request);
    Ok(Webhook::Installed { found, is_given, senders, question, older_than_rules: ledger.older_than_rules })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Mode;
    use crate::rules::senders::ClientRules;

    #[test]
    fn rules_without_a_chosen_mode_are_named() {
        assert_eq!(unchosen("webhook", &[]), None);
        let found = unchosen("webhook", &["class.tool.admission.services".to_owned()]).expect("there is a finding");
        assert!(
            found.remedy.is_some() && found.text.starts_with("class.tool.admission.services only audit"),
            "{found:?}"
        );
    }

    #[test]
    fn settings_that_need_another_installation_are_named() {
        let client = |name: &str| Some(ClientRules { authorities: "PEM".to_owned(), name: name.to_owned() });
        let none = Senders::default();
        let named = |name: &str| Senders { client: client(name), ..Senders::default() };
        let addresses = Senders { api_server_cidrs: vec!["10.0.0.0/28".to_owned()], ..Senders::default() };
        assert_eq!(not_in_force(&named("a"), &named("a"), false), None);
        for (wanted, in_force, what) in [
            (named("a"), &none, "does not demand"),
            (none.clone(), &named("a"), "are not set"),
            (named("a"), &named("b"), "of an older"),
            (addresses.clone(), &none, "not match api_server_cidrs"),
        ] {
            let said = not_in_force(&wanted, in_force, false).expect("there is a difference");
            assert!(said.contains(what), "{said}");
        }
        assert_eq!(not_in_force(&addresses, &none, true), None, "a webhook outside the cluster has no network policy");
    }

    #[test]
    fn a_missing_webhook_is_a_problem_only_if_a_tenant_needs_it() {
        use crate::plan::testing::{World, prod};
        let mut world = World::new();
        let found = |world: &World| absent("webhook", &prod(), unenforced(&world.policy, &prod(), &world.ledger));
        assert_eq!(found(&world).remedy, None, "there is no tenant yet");
        world.add(crate::identity::AccountKind::Tool, "foo", Some(52_503));
        world.cycle();
        let wrong = found(&world);
        assert!(wrong.text.contains("the rules for pods of class tool, which has tenants"), "{wrong:?}");
        assert!(wrong.remedy.is_some_and(|remedy| remedy.starts_with("bursar webhook install --cluster prod;")));
        let class = &mut world.class("tool").admission;
        (class.uid.mode, class.host, class.volumes.mode) = (Mode::Audit, Mode::Warn, Mode::Off);
        (class.claims.mode, class.lifetime) = (Mode::Off, Mode::Off);
        assert_eq!(found(&world).remedy, None, "its rules enforce nothing");
    }

    #[test]
    fn doctor_warns_30_days_before_the_files_of_an_outside_webhook_expire() {
        let ends: Timestamp = "2026-12-21T06:00:00Z".parse().expect("the text is a time");
        let url = Some("https://hook.example.org:9443".to_owned());
        let found = |now: &str, is_given| {
            let cluster = ClusterName("prod".into());
            installed(
                "webhook".to_owned(),
                &cluster,
                (&url, Some(ends)),
                is_given,
                now.parse().expect("the text is a time"),
            )
        };
        let again = "bursar webhook install --cluster prod --url https://hook.example.org:9443 --write FOLDER";
        assert_eq!(found("2026-11-21T05:59:59Z", true).remedy, None);
        let soon = found("2026-11-21T06:00:00Z", true);
        assert_eq!(soon.remedy.as_deref(), Some(again));
        assert_eq!(soon.text, "its files are good until 2026-12-21T06:00:00Z");
        assert_eq!(found("2026-11-20T06:00:00Z", false).text, "its rules are from an older configuration");
    }
}
