//! `bursar init`: gives the daemon its access to a cluster, as that cluster's administrator.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use nix::unistd::User;
use serde_json::json;

use super::arguments::Init;
use super::context::{Context, as_bursar, ledger_of};
use super::exit::{Exit, Failure};
use super::{admin, output};
use crate::bootstrap::{self, AccessError, Did, InitReport, InitRequest, webhook};
use crate::errors::chain;
use crate::identity::ClusterName;
use crate::ledger::LedgerState;
use crate::privilege;
use crate::settings::Settings;
use crate::store::{Store, StoreError, is_before_init};

/// Stands for the id of a ledger that does not exist yet.
const NO_LEDGER: &str = "LEDGER-ID";

pub(super) async fn run(context: &Context, arguments: &Init) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let cluster = ClusterName::from(arguments.cluster.clone());
    let Some(daemon_kubeconfig) = settings.clusters.get(&cluster) else {
        let known: Vec<&str> = settings.clusters.keys().map(|name| name.0.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let text = format!("--cluster {cluster}: the configuration has no such cluster; it has: {known}");
        return Err(Failure::new(Exit::Usage, text));
    };
    if arguments.admin.file().is_none() && !daemon_kubeconfig.exists() {
        // The daemon's own kubeconfig shows whether the administrator's kubeconfig is for the same cluster. Before the
        // first `init`, nothing shows that, so the administrator must name the file.
        let text = format!("name the administrator's kubeconfig of cluster {cluster}: --admin-kubeconfig FILE");
        return Err(Failure::new(Exit::Usage, text));
    }
    let admin_kubeconfig = &admin::of_cluster(&settings, &cluster, arguments.admin.file()).await?;
    let ledger = if arguments.dry_run {
        as_it_is(&settings).await?
    } else {
        make_folder(&settings.state_dir)?;
        as_bursar(ledger(&settings)).await??
    };
    let listed = administrators(arguments.administrators.as_deref())?;
    let request = InitRequest {
        policy: &settings.policy,
        cluster: &cluster,
        admin_kubeconfig,
        daemon_kubeconfig,
        state_dir: &settings.state_dir,
        ledger: &ledger,
        administrators: listed.as_ref(),
    };
    if arguments.dry_run {
        return dry_run(context, request).await;
    }
    let progress = output::progress("making the daemon's access");
    let report = bootstrap::init(request).await?;
    progress.finish_and_clear();
    print(context, &cluster, &report)?;
    Ok(Exit::Done)
}

/// Reads the ledger. Before the first `init`, no ledger is created, and its id is not known.
async fn as_it_is(settings: &Settings) -> Result<LedgerState, Failure> {
    if is_before_init(&settings.state_dir) {
        return Ok(LedgerState { ledger_id: NO_LEDGER.to_owned(), ..LedgerState::default() });
    }
    as_bursar(ledger_of(settings)).await?
}

/// Prints what `init` would make.
async fn dry_run(context: &Context, request: InitRequest<'_>) -> Result<Exit, Failure> {
    let InitRequest { cluster, ledger, .. } = request;
    let made = bootstrap::dry_run(request).await?;
    if context.global.json {
        output::json(&json!({"apiVersion": "v1", "kind": "List", "items": made}))?;
        return Ok(Exit::Done);
    }
    output::line(format!(
        "# bursar init --cluster {cluster} would create these objects, and then a certificate for the daemon"
    ));
    if ledger.ledger_id == NO_LEDGER {
        output::line(format!("# {NO_LEDGER} stands for the id of the ledger, which the first init generates"));
    }
    output::raw(&webhook::yaml(&made).map_err(|error| Failure::new(Exit::Failed, error))?);
    Ok(Exit::Done)
}

/// Checks the names of `--administrators`, which become part of a pattern.
pub(super) fn administrators(given: Option<&[String]>) -> Result<Option<BTreeSet<String>>, Failure> {
    let Some(given) = given else { return Ok(None) };
    let names: BTreeSet<String> =
        given.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    if let Some(wrong) = names.iter().find(|name| !name.bytes().all(is_allowed)) {
        let text = format!("--administrators: {wrong:?} is not the name of an account; for example alice,bob");
        return Err(Failure::new(Exit::Usage, text));
    }
    Ok(Some(names))
}

/// Returns the word for what was done to an object.
pub(super) const fn word(did: Did) -> &'static str {
    match did {
        Did::Created => "created",
        Did::Changed => "changed",
        Did::Kept => "kept",
        Did::Removed => "removed",
    }
}

/// Makes the state folder if it does not exist. Packages make it with tmpfiles.d; a checkout needs this.
fn make_folder(state_dir: &Path) -> Result<(), Failure> {
    if state_dir.exists() {
        return Ok(());
    }
    let failed = |error: std::io::Error| Failure::from(StoreError::File { path: state_dir.to_owned(), source: error });
    fs::DirBuilder::new().recursive(true).mode(0o750).create(state_dir).map_err(failed)?;
    match User::from_name(privilege::USER) {
        Ok(Some(user)) if nix::unistd::Uid::effective().is_root() => {
            std::os::unix::fs::chown(state_dir, Some(user.uid.as_raw()), Some(user.gid.as_raw())).map_err(failed)
        }
        _ => Ok(()),
    }
}

/// Reads the ledger; the first `init` creates it. An existing ledger is only read, because a daemon may be writing it.
async fn ledger(settings: &Settings) -> Result<LedgerState, Failure> {
    if !is_before_init(&settings.state_dir) {
        return ledger_of(settings).await;
    }
    let (store, _lock) = Store::create(&settings.state_dir).await?;
    let state = store.state().clone();
    store.close().await?;
    Ok(state)
}

fn print(context: &Context, cluster: &ClusterName, report: &InitReport) -> anyhow::Result<()> {
    let InitReport { made, kubeconfig, not_after, seal_key_drawn, approver_outdated } = report;
    if context.global.json {
        let made: Vec<_> = made.iter().map(|made| json!({"what": made.what, "did": word(made.did)})).collect();
        return output::json(&json!({
            "cluster": cluster,
            "made": made,
            "kubeconfig": kubeconfig,
            "not_after": not_after,
            "seal_key_drawn": seal_key_drawn,
            "approver_outdated": approver_outdated.is_some(),
        }));
    }
    for made in made {
        output::line(format!("{:<8} {}", word(made.did), made.what));
    }
    output::line(format!("created  {}, good until {not_after:.0}; the daemon renews it", kubeconfig.display()));
    if *seal_key_drawn {
        output::line("created  seal.key; back it up, but not together with the ledger");
    }
    if let Some(update) = approver_outdated {
        output::line(format!("the approver has older rules; run: {update}"));
    }
    output::line(format!("cluster {cluster} is ready; next: bursar doctor, bursar plan"));
    Ok(())
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Self {
        let exit = match &error {
            AccessError::OtherOwner { .. } => Exit::Configuration,
            AccessError::OfBursar(_) => Exit::Forbidden,
            AccessError::WebhookBusy { .. } => Exit::Busy,
            AccessError::Write { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Exit::Forbidden
            }
            _ => Exit::Failed,
        };
        Self::new(exit, chain(&error))
    }
}
