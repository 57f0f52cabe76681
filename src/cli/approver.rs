//! `bursar approver`: installs and removes the approver of a cluster, as that cluster's administrator.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::arguments::{Admin, Approver, ApproverInstall, ApproverUninstall, WebhookCluster};
use super::context::{Context, as_bursar, ledger_of, may_act};
use super::exit::{Exit, Failure};
use super::init::{administrators, word};
use super::webhook::cluster;
use super::{admin, output};
use crate::bootstrap;
use crate::bootstrap::approver::{self, ApproverLocation, ApproverReport, ApproverRequest};
use crate::contract::Sealer;
use crate::identity::ClusterName;
use crate::ledger::LedgerState;
use crate::runtime;
use crate::settings::Settings;

pub(super) async fn run(context: &Context, command: &Approver) -> Result<Exit, Failure> {
    match command {
        Approver::Install(arguments) => install(context, arguments).await,
        Approver::Uninstall(arguments) => uninstall(context, arguments).await,
    }
}

/// What both commands need.
struct Site {
    settings: Settings,
    cluster: ClusterName,
    sealer: Sealer,
    ledger: LedgerState,
}

async fn site(context: &Context, arguments: &WebhookCluster) -> Result<Site, Failure> {
    let settings = context.settings()?;
    let cluster = cluster(&settings, arguments)?;
    if !may_act() {
        return Err(Failure::new(
            Exit::Forbidden,
            "this command needs root or user bursar, because it reads the ledger and seal.key",
        ));
    }
    let opened = as_bursar(async {
        let sealer = runtime::read_seal(&settings.state_dir)?;
        let ledger = ledger_of(&settings).await?;
        Ok::<_, Failure>((sealer, ledger))
    });
    let (sealer, ledger) = opened.await??;
    Ok(Site { settings, cluster, sealer, ledger })
}

impl Site {
    /// Returns the administrator's kubeconfig, which must be for the daemon's cluster.
    async fn admin(&self, given: &Admin) -> Result<PathBuf, Failure> {
        let path = admin::of_cluster(&self.settings, &self.cluster, given.file()).await?;
        bootstrap::must_be_same(&self.cluster, &self.settings.clusters[&self.cluster], &path).await?;
        Ok(path)
    }

    fn request<'a>(&'a self, admin_kubeconfig: &'a Path) -> ApproverRequest<'a> {
        ApproverRequest {
            policy: &self.settings.policy,
            cluster: &self.cluster,
            ledger: &self.ledger,
            admin_kubeconfig,
            public_key: self.sealer.public_key(),
            administrators: None,
        }
    }
}

async fn install(context: &Context, arguments: &ApproverInstall) -> Result<Exit, Failure> {
    let site = site(context, &arguments.cluster).await?;
    let admin = site.admin(&arguments.admin).await?;
    let listed = administrators(arguments.administrators.as_deref())?;
    let request = ApproverRequest { administrators: listed.as_ref(), ..site.request(&admin) };
    let image;
    let place = if let Some(folder) = &arguments.write {
        ApproverLocation::Outside { folder }
    } else {
        image = by_digest(arguments.image.as_ref().or(site.settings.webhook_image.as_ref()))?;
        ApproverLocation::Inside { image: &image }
    };
    let progress = output::progress("installing the approver");
    let report = approver::install(request, place).await;
    progress.finish_and_clear();
    let ApproverReport { made, not_after } = report?;
    if context.global.json {
        let made: Vec<_> = made.iter().map(|made| json!({"what": made.what, "did": word(made.did)})).collect();
        output::json(&json!({"made": made, "not_after": not_after, "folder": arguments.write}))?;
        return Ok(Exit::Done);
    }
    for made in &made {
        output::line(format!("{:<8} {}", word(made.did), made.what));
    }
    if let (Some(folder), Some(not_after)) = (&arguments.write, not_after) {
        let folder = folder.display();
        output::line(format!(
            "written  {folder}: good until {not_after:.0}; nothing renews these files; `bursar doctor` warns 30 days \
             before that"
        ));
        output::line(format!(
            "next, on another host with this folder: systemctl enable --now bursar-approver, or bursar-webhook approve --dir \
             {folder}; until it runs, no certificate is issued"
        ));
    }
    output::line("from now on, the approver approves certificate requests, and the daemon may not");
    Ok(Exit::Done)
}

/// Checks that an image has a digest. A person who can move a tag could become cluster administrator.
fn by_digest(image: Option<&String>) -> Result<String, Failure> {
    const EXAMPLE: &str =
        "for example \"registry.example.org/bursar-webhook@sha256:0123…\", as `skopeo inspect` names it";
    let image = image.ok_or_else(|| {
        Failure::new(
            Exit::Configuration,
            format!("webhook.image: missing; push the image that `make image` builds, and give it with its digest; {EXAMPLE}"),
        )
    })?;
    let digest = image.rsplit_once("@sha256:").map_or("", |(_, digest)| digest);
    if digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let text = format!(
            "image {image} has no digest: a moved tag could approve certificates for an attacker; add the digest, {EXAMPLE}"
        );
        return Err(Failure::new(Exit::Configuration, text));
    }
    Ok(image.clone())
}

async fn uninstall(context: &Context, arguments: &ApproverUninstall) -> Result<Exit, Failure> {
    let site = site(context, &arguments.cluster).await?;
    let admin = site.admin(&arguments.admin).await?;
    let ApproverReport { made, .. } = approver::uninstall(site.request(&admin)).await?;
    if context.global.json {
        let made: Vec<_> = made.iter().map(|made| json!({"what": made.what, "did": word(made.did)})).collect();
        output::json(&json!({"made": made}))?;
        return Ok(Exit::Done);
    }
    for made in &made {
        output::line(format!("{:<8} {}", word(made.did), made.what));
    }
    output::line(
        "removed  the approver; the daemon approves its own requests again, so this host can make itself cluster administrator",
    );
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_must_have_a_digest() {
        let right = format!("registry.example.org/w@sha256:{}", "0a".repeat(32));
        assert_eq!(by_digest(Some(&right)).expect("the value is valid"), right);
        for wrong in ["registry.example.org/w:1", "registry.example.org/w@sha256:0a", "w@sha512:00"] {
            let failure = by_digest(Some(&wrong.to_owned())).expect_err(wrong);
            assert!(failure.exit == Exit::Configuration && failure.text.contains("add the digest"), "{}", failure.text);
        }
    }
}
