//! `bursar ledger restore FILE`, `bursar ledger rebuild` and `bursar takeover`: recover the ledger after a loss. Each
//! command does the work itself, and fails while another process holds the ledger's lock, as `bursard` does.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use serde_json::json;

use super::arguments::Takeover;
use super::context::{Context, as_bursar, become_bursar, may_act};
use super::exit::{Exit, Failure};
use super::{admin, output};
use crate::bootstrap::webhook::remembered::is_foreign;
use crate::bootstrap::{self, InitRequest, webhook};
use crate::daemon;
use crate::errors::chain;
use crate::ledger::cluster_recovery::Facts;
use crate::recovery::{self, Rebuilt, RecoveryError, Remembered};
use crate::runtime;
use crate::store::restore::{RestoreError, Restored, Restoring, restore as put_back};
use crate::store::{SEAL_KEY, backup};

/// The next steps after the ledger has got a new id.
const NEXT: &str =
    "the ledger has a new id; next: `bursar takeover` makes it the owner of the clusters, then start bursard";

pub(super) async fn restore(context: &Context, path: &Path, older: bool) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    may()?;
    // The file is opened before the process becomes user `bursar`, which may have no right to read it.
    let backup = File::open(path).and_then(|file| {
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
    });
    let mut backup = backup.map_err(|error| {
        let (path, folder) = (path.display(), backup::folder(&settings.state_dir));
        Failure::new(Exit::Failed, format!("cannot read {path}: {error}; nightly backups are in {}", folder.display()))
    })?;
    become_bursar()?;
    let progress = output::progress("checking the backup");
    let ledger_id = uuid::Uuid::new_v4().simple().to_string();
    let how = Restoring { actor: &context.actor, older, ledger_id: &ledger_id, now: daemon::now() };
    let Restored { events, replaced, forgotten, .. } = put_back(&settings.state_dir, &mut backup, how).await?;
    progress.finish_and_clear();
    if context.global.json {
        output::json(&json!({
            "ledger": ledger_id, "events": events, "replaced": replaced, "forgotten": forgotten,
        }))?;
        return Ok(Exit::Done);
    }
    output::line(format!("restored: {events} events, verified; {NEXT}"));
    if let Some(replaced) = replaced {
        output::line(format!("the previous ledger is now {}", replaced.display()));
    }
    match forgotten {
        Some(events) if events > 0 => output::line(format!("{events} of its events are not in the backup")),
        _ => {}
    }
    Ok(Exit::Done)
}

pub(super) async fn rebuild(context: &Context, given: &[String]) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    may()?;
    let kubeconfigs =
        if given.is_empty() { admin::own(&settings).await? } else { admin::of_clusters(&settings, given).await? };
    let mut clients = BTreeMap::new();
    for (cluster, kubeconfig) in &kubeconfigs {
        clients.insert(cluster.clone(), bootstrap::client(kubeconfig).await?);
    }
    become_bursar()?;
    let progress = output::progress("reading directories, clusters and homes");
    let rebuilt = recovery::rebuild(&settings, clients, &context.actor, daemon::now()).await?;
    progress.finish_and_clear();
    let Rebuilt { ledger_id, accounts, tenants, certificates, last_generation, quotas, importable, doubts } = rebuilt;
    if context.global.json {
        output::json(&json!({
            "ledger": ledger_id, "accounts": accounts, "tenants": tenants, "certificates": certificates,
            "last_generation": last_generation, "quotas": quotas, "importable": importable, "unknown": doubts,
        }))?;
        return Ok(Exit::Done);
    }
    output::line(format!(
        "rebuilt: {accounts} accounts, {tenants} of them with a namespace or home, {certificates} valid certificates; \
         {NEXT}"
    ));
    if let Some(file) = quotas {
        let file = file.display();
        let next = if importable {
            format!("review {file}; then, before bursard starts, run: bursar quota import {file}")
        } else {
            format!("no override can express the differences, which are in {file}")
        };
        output::line(format!(
            "some quotas in the clusters differ from their classes, and the first cycle would revert them; {next}"
        ));
    }
    tell(&doubts);
    Ok(Exit::Done)
}

pub(super) async fn takeover(context: &Context, arguments: &Takeover) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    may()?;
    let admins = admin::of_clusters(&settings, &arguments.admin_kubeconfig).await?;
    let progress = output::progress("asking the clusters");
    let public_keys = as_bursar(async { public_keys(&settings.state_dir) }).await??;
    let (mut facts, mut owners) = (Facts::default(), Vec::new());
    for (cluster, admin) in &admins {
        let client = bootstrap::client(admin).await?;
        owners.extend(bootstrap::owner(&client).await?);
        facts.extend(bootstrap::facts(&client, cluster, &public_keys).await?);
    }
    let now = daemon::now();
    let remembered = as_bursar(recovery::remember(&settings, &facts, &owners, &context.actor, now)).await??;
    let Remembered { ledger, learned, doubts } = remembered;
    let (mut outdated, mut webhooks) = (BTreeMap::new(), Vec::new());
    for (cluster, admin) in &admins {
        if is_foreign(&bootstrap::client(admin).await?, &settings.state_dir, cluster).await? {
            webhooks.push(cluster);
        }
        let report = bootstrap::take_over(InitRequest {
            policy: &settings.policy,
            cluster,
            admin_kubeconfig: admin,
            daemon_kubeconfig: &settings.clusters[cluster],
            state_dir: &settings.state_dir,
            ledger: &ledger,
            administrators: None,
        })
        .await?;
        outdated.extend(report.approver_outdated.map(|update| (cluster, update)));
    }
    progress.finish_and_clear();
    if context.global.json {
        output::json(&json!({
            "ledger": ledger.ledger_id, "clusters": admins.keys().collect::<Vec<_>>(), "from": owners, "learned": learned,
            "unknown": doubts, "approvers_outdated": outdated.keys().collect::<Vec<_>>(),
            "webhooks": webhooks,
        }))?;
        return Ok(Exit::Done);
    }
    let clusters: Vec<&str> = admins.keys().map(|cluster| cluster.0.as_str()).collect();
    output::line(format!(
        "this host's ledger now owns {}; the former owner stops writing, and its credential is no longer valid; {learned} \
         accounts learned from the clusters; next: systemctl start bursard",
        clusters.join(", ")
    ));
    for cluster in webhooks {
        output::line(format!(
            "cluster {cluster} keeps the webhook of the former owner. If the former host was stolen, its image, address and \
             authority may be the thief's; run: {}",
            webhook::replaced_by(cluster)
        ));
    }
    for (cluster, update) in &outdated {
        output::line(format!(
            "the approver of cluster {cluster} still has the former owner's rules, so certificates wait; run: {update}"
        ));
    }
    tell(&doubts);
    Ok(Exit::Done)
}

fn tell(doubts: &[String]) {
    if !doubts.is_empty() {
        output::line("unknown:");
        for doubt in doubts {
            output::line(format!("  {doubt}"));
        }
    }
}

pub(super) fn may() -> Result<(), Failure> {
    if may_act() { Ok(()) } else { Err(Failure::new(Exit::Forbidden, "this command needs root or user bursar")) }
}

/// Returns an empty list if the file with the key of the seals is lost. In that case no seal of a namespace can be
/// verified, and `bursar init` generates a new key.
fn public_keys(state_dir: &Path) -> Result<Vec<[u8; 32]>, Failure> {
    if !state_dir.join(SEAL_KEY).exists() {
        return Ok(Vec::new());
    }
    Ok(vec![runtime::read_seal(state_dir)?.public_key()])
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Self {
        match error {
            RestoreError::Store(error) => error.into(),
            other => Self::new(Exit::Failed, chain(&other)),
        }
    }
}

impl From<RecoveryError> for Failure {
    fn from(error: RecoveryError) -> Self {
        match error {
            RecoveryError::Settings(errors) => errors.into(),
            RecoveryError::Store(error) => error.into(),
            RecoveryError::Runtime(error) => error.into(),
            other => Self::new(Exit::Failed, chain(&other)),
        }
    }
}
