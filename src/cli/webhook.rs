//! `bursar webhook`: installs, removes, tests and prints the webhook of a cluster, with the daemon's own credential. It
//! acts at once, without the daemon.

use std::path::Path;
use std::time::Duration;

use kube::Client;
use serde_json::json;

use super::arguments::{Webhook, WebhookCluster, WebhookInstall, WebhookManifests, WebhookUninstall};
use super::context::{Context, as_bursar, become_bursar, ledger_of, may_act};
use super::exit::{Exit, Failure};
use super::{admin, audit, output};
use crate::bootstrap;
use crate::bootstrap::webhook::{self, ClientCertificate, Installed, Question, Tried, WebhookRequest, Wrote};
use crate::contract::Sealer;
use crate::identity::ClusterName;
use crate::ledger::LedgerState;
use crate::settings::Settings;
use crate::{daemon, runtime};

pub(super) async fn run(context: &Context, command: &Webhook) -> Result<Exit, Failure> {
    match command {
        Webhook::Install(arguments) => install(context, arguments).await,
        Webhook::Uninstall(arguments) => uninstall(context, arguments).await,
        Webhook::Selftest(cluster) => selftest(context, cluster).await,
        Webhook::Manifests(arguments) => manifests(context, arguments).await,
        Webhook::Audit(arguments) => Box::pin(audit::run(context, arguments)).await,
    }
}

/// What all these commands need.
pub(super) struct Site {
    settings: Settings,
    cluster: ClusterName,
    pub(super) client: Client,
    sealer: Sealer,
    ledger: LedgerState,
}

impl Site {
    pub(super) fn request(&self) -> WebhookRequest<'_> {
        WebhookRequest {
            policy: &self.settings.policy,
            cluster: &self.cluster,
            ledger: &self.ledger,
            state_dir: &self.settings.state_dir,
            sealer: &self.sealer,
            now: daemon::now(),
        }
    }

    fn kubeconfig(&self) -> &Path {
        &self.settings.clusters[&self.cluster]
    }
}

/// Opens everything as user `bursar`, who owns the files.
pub(super) async fn site(context: &Context, arguments: &WebhookCluster) -> Result<Site, Failure> {
    let settings = context.settings()?;
    let cluster = cluster(&settings, arguments)?;
    if !may_act() {
        let text = "this command needs root or user bursar, because it uses the daemon's access to the cluster";
        return Err(Failure::new(Exit::Forbidden, text));
    }
    let opened = as_bursar(async {
        let client = bootstrap::client(&settings.clusters[&cluster]).await?;
        let sealer = runtime::read_seal(&settings.state_dir)?;
        let ledger = ledger_of(&settings).await?;
        Ok::<_, Failure>((client, sealer, ledger))
    });
    let (client, sealer, ledger) = opened.await??;
    Ok(Site { settings, cluster, client, sealer, ledger })
}

pub(super) fn cluster(settings: &Settings, arguments: &WebhookCluster) -> Result<ClusterName, Failure> {
    let known: Vec<&str> = settings.clusters.keys().map(|name| name.0.as_str()).collect();
    let usage =
        |text: String| Failure::new(Exit::Usage, format!("{text}; the configuration has: {}", known.join(", ")));
    match (&arguments.cluster, known.as_slice()) {
        (Some(name), _) if known.contains(&name.as_str()) => Ok(ClusterName::from(name.clone())),
        (Some(name), _) => Err(usage(format!("--cluster {name}: there is no such cluster"))),
        (None, [only]) => Ok(ClusterName((*only).into())),
        (None, _) => Err(usage("--cluster is missing".to_owned())),
    }
}

async fn install(context: &Context, arguments: &WebhookInstall) -> Result<Exit, Failure> {
    let outside = match (&arguments.url, &arguments.write) {
        (Some(url), Some(folder)) => Some((checked(url)?, folder.as_path())),
        _ => None,
    };
    let site = site(context, &arguments.cluster).await?;
    let installed = if let Some((url, folder)) = outside {
        let admin = match &arguments.admin_kubeconfig {
            Some(path) => {
                admin::announce(&site.cluster, path).await?;
                bootstrap::must_be_same(&site.cluster, site.kubeconfig(), path).await?;
                Some(bootstrap::client(path).await?)
            }
            None => None,
        };
        let progress = output::progress("making the webhook's files, and waiting until it answers");
        let clients = (&site.client, admin.as_ref());
        let outside = webhook::write_outside(clients, site.kubeconfig(), site.request(), (&url, folder)).await?;
        let (shown, wait) = (folder.display(), arguments.wait.as_secs());
        let waiting = format!(
            "written  {shown}; waiting {wait} s for {url} to answer a review\n\
             if the webhook does not run yet, start it now: systemctl enable --now bursar-webhook, or bursar-webhook \
             --dir {shown}"
        );
        // With --json, standard output has only the JSON.
        if context.global.json {
            output::error(&waiting);
        } else {
            output::line(waiting);
        }
        outside.answers(&site.client, site.request(), arguments.wait).await?;
        let installed = outside.enforce(&site.client, site.request()).await;
        progress.finish_and_clear();
        installed?
    } else {
        let image = image(&site.settings, arguments.image.as_ref())?;
        become_bursar()?;
        let progress = output::progress("installing the webhook, and waiting until it runs");
        let installed = webhook::install(&site.client, site.request(), &image).await;
        progress.finish_and_clear();
        installed?
    };
    print(context, &installed, arguments.write.as_deref())?;
    reached(&site, arguments.wait).await?;
    Ok(if matches!(installed.client, ClientCertificate::NotSeen { .. }) { Exit::Failed } else { Exit::Done })
}

/// Fails unless the webhook, which is in force now, answers a review through the API server. Until then, the API server may
/// not have reached it at all.
async fn reached(site: &Site, within: Duration) -> Result<(), Failure> {
    let Some(question) = Question::of(&site.client, site.request()) else { return Ok(()) };
    let progress = output::progress("waiting until the webhook answers through the API server");
    let answered = question.ask_within(within).await;
    progress.finish_and_clear();
    answered.map_err(|why| {
        let cluster = &site.cluster;
        let text = format!(
            "the webhook is in force, but it does not work through the API server: {why}; until it does, pods of tenants may \
             be refused. Let each API server reach it, then run: bursar webhook selftest --cluster {cluster}. To take it \
             out of force, run: bursar webhook uninstall --cluster {cluster} --admin-kubeconfig FILE"
        );
        Failure::new(Exit::Failed, text)
    })
}

/// Checks that an API server accepts the URL as `clientConfig.url`, and removes a slash at its end.
fn checked(url: &str) -> Result<String, Failure> {
    let wrong = |why: &str| Failure::new(Exit::Usage, format!("--url {url}: {why}; for example https://10.0.0.5:9443"));
    let parsed = reqwest::Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
    if parsed.scheme() != "https" || parsed.host_str().is_none() {
        return Err(wrong("the scheme must be https"));
    }
    let more = !parsed.username().is_empty() || parsed.query().is_some() || parsed.fragment().is_some();
    if more || !matches!(parsed.path(), "" | "/") {
        return Err(wrong("it must have a host and a port only"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

fn image(settings: &Settings, given: Option<&String>) -> Result<String, Failure> {
    given.or(settings.webhook_image.as_ref()).cloned().ok_or_else(|| {
        let text = "webhook.image: missing; push the image that `make image` builds to a registry that the nodes reach, and \
                    name it there; for example \"registry.example.org/bursar-webhook:0.1.0\"";
        Failure::new(Exit::Configuration, text)
    })
}

fn print(context: &Context, installed: &Installed, folder: Option<&Path>) -> anyhow::Result<()> {
    let Installed { wrote, not_after, client } = installed;
    if context.global.json {
        let (demanded, why) = match client {
            ClientCertificate::NotAsked => (false, None),
            ClientCertificate::Demanded => (true, None),
            ClientCertificate::NotSeen { why } => (false, Some(why)),
        };
        let client = json!({"demanded": demanded, "not_seen": why});
        let all =
            json!({"wrote": names(wrote), "not_after": not_after, "folder": folder, "client_certificate": client});
        return output::json(&all);
    }
    lines(wrote);
    if let Some(folder) = folder {
        let folder = folder.display();
        output::line(format!(
            "in force {folder}: good until {not_after:.0}; nothing renews these files; `bursar doctor` warns 30 days \
             before that"
        ));
    } else {
        output::line(format!("the certificate is good until {not_after:.0}; the daemon renews it"));
    }
    match client {
        ClientCertificate::NotAsked => {}
        ClientCertificate::Demanded if folder.is_some() => {
            output::line(
                "from now on, the webhook answers only clients with the certificate of client_ca and client_name",
            );
        }
        ClientCertificate::Demanded => {
            output::line(
                "within two minutes, when the pods have received their files, the webhook answers only clients with the \
                 certificate of client_ca and client_name",
            );
        }
        ClientCertificate::NotSeen { why } => output::signed(format!(
            "! the client certificate of client_ca and client_name is not demanded: {why}; see \"Client certificates\" in \
             /usr/share/doc/bursar/admission.md, then install again"
        )),
    }
    output::line("next: bursar webhook selftest");
    Ok(())
}

fn names(wrote: &[Wrote]) -> Vec<&str> {
    wrote.iter().map(|wrote| wrote.what.as_str()).collect()
}

fn lines(wrote: &[Wrote]) {
    for Wrote { what, removed } in wrote {
        output::line(format!("{:<8} {what}", if *removed { "removed" } else { "applied" }));
    }
}

async fn uninstall(context: &Context, arguments: &WebhookUninstall) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let admin = admin::of_cluster(&settings, &cluster(&settings, &arguments.cluster)?, arguments.admin.file()).await?;
    let site = site(context, &arguments.cluster).await?;
    bootstrap::must_be_same(&site.cluster, site.kubeconfig(), &admin).await?;
    let admin = bootstrap::client(&admin).await?;
    let wrote = webhook::uninstall(&admin, site.request(), arguments.backstop).await?;
    if context.global.json {
        output::json(&json!({"removed": names(&wrote)}))?;
        return Ok(Exit::Done);
    }
    lines(&wrote);
    let what = if arguments.backstop {
        "from now on, nothing checks the uids of tenants' pods"
    } else {
        "the backstop still refuses pods with other uids; `bursar webhook uninstall --backstop` removes it too"
    };
    output::line(what);
    Ok(Exit::Done)
}

async fn selftest(context: &Context, arguments: &WebhookCluster) -> Result<Exit, Failure> {
    let site = site(context, arguments).await?;
    let progress = output::progress("sending requests that must pass or be refused");
    let tried = webhook::selftest(&site.client, site.request()).await;
    progress.finish_and_clear();
    let tried = tried?;
    let good = tried.iter().all(|tried| tried.wrong.is_none());
    if context.global.json {
        let rows: Vec<_> = tried
            .iter()
            .map(|Tried { class, what, must_be_refused, wrong, remedy }| {
                json!({
                    "class": class, "what": what, "must_be_refused": must_be_refused, "wrong": wrong, "remedy": remedy,
                })
            })
            .collect();
        output::json(&rows)?;
    } else {
        for Tried { class, what, must_be_refused, wrong, remedy } in &tried {
            let [right, other] =
                if *must_be_refused { ["refused", "not refused"] } else { ["passes", "does not pass"] };
            let line = match wrong {
                None => format!("+ class {class}: {what}: {right}"),
                Some(wrong) => format!("! class {class}: {what}: {other}: {wrong}"),
            };
            output::signed(line);
            if let Some(remedy) = remedy {
                output::line(format!("    remedy: {remedy}"));
            }
        }
        if tried.iter().any(|tried| tried.wrong.is_some() && tried.remedy.is_none()) {
            output::line("next: bursar doctor, then bursar webhook install, and the self-test again");
        }
    }
    Ok(if good { Exit::Done } else { Exit::Failed })
}

async fn manifests(context: &Context, arguments: &WebhookManifests) -> Result<Exit, Failure> {
    let site = site(context, &arguments.cluster).await?;
    let image = image(&site.settings, arguments.image.as_ref())?;
    become_bursar()?;
    let all = webhook::manifests(&site.client, site.request(), &image).await?;
    if context.global.json {
        output::json(&json!({"apiVersion": "v1", "kind": "List", "items": all}))?;
    } else {
        output::raw(&webhook::yaml(&all).map_err(|error| Failure::new(Exit::Failed, error))?);
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_host_and_port_by_https() {
        assert_eq!(checked("https://10.0.0.5:9443/").expect("the value is valid"), "https://10.0.0.5:9443");
        for wrong in ["http://a:1", "10.0.0.5:9443", "https://a/b", "https://a?x", "https://u@a", "https://a#b", ""] {
            let failure = checked(wrong).expect_err(wrong);
            assert_eq!(failure.exit, Exit::Usage, "{wrong}");
            assert!(failure.text.contains("for example"), "{}", failure.text);
        }
    }
}
