//! `bursar uninstall`: removes Bursar from a cluster. Namespaces and data of tenants stay.

use serde_json::json;

use super::arguments::Uninstall;
use super::context::{Context, as_bursar, ledger_of};
use super::exit::{Exit, Failure};
use super::{admin, output, webhook};
use crate::bootstrap::{self, UninstallRequest};
use crate::control::client::ClientError;

pub(super) async fn run(context: &Context, arguments: &Uninstall) -> Result<Exit, Failure> {
    let Uninstall { cluster, admin, dry_run } = arguments;
    let settings = context.settings()?;
    let cluster = webhook::cluster(&settings, cluster)?;
    // A running daemon would restore what is removed.
    if !dry_run && !matches!(context.daemon()?.status().await, Err(ClientError::Absent { .. })) {
        return Err(Failure::new(Exit::Busy, "bursard runs; stop it first: systemctl disable --now bursard"));
    }
    let ledger = as_bursar(ledger_of(&settings)).await??;
    let admin_kubeconfig = &admin::of_cluster(&settings, &cluster, admin.file()).await?;
    bootstrap::must_be_same(&cluster, &settings.clusters[&cluster], admin_kubeconfig).await?;
    let request = UninstallRequest {
        cluster: &cluster,
        ledger_id: &ledger.ledger_id,
        state_dir: &settings.state_dir,
        admin_kubeconfig,
        dry_run: *dry_run,
    };
    let progress = output::progress("removing bindings, roles, policies and webhooks");
    let removed = bootstrap::uninstall(request).await?;
    progress.finish_and_clear();
    if context.global.json {
        let names: Vec<&str> = removed.iter().map(|made| made.what.as_str()).collect();
        output::json(&json!({"cluster": cluster, "removed": names, "dry_run": dry_run}))?;
        return Ok(Exit::Done);
    }
    let word = if *dry_run { "would be removed:" } else { "removed" };
    for made in &removed {
        output::line(format!("{word:<8} {}", made.what));
    }
    output::line(format!(
        "cluster {cluster}: {} nobody has access through Bursar; namespaces, quotas, network policies and volumes of tenants stay",
        if *dry_run { "after this," } else { "from now on," }
    ));
    Ok(Exit::Done)
}
