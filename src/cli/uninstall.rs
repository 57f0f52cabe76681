//! `bursar uninstall`: removes Bursar from a cluster. Namespaces and data of tenants stay.

use serde_json::json;

use super::arguments::Uninstall;
use super::context::{Context, as_bursar, ledger_of};
use super::exit::{Exit, Failure};
use super::{admin, output, webhook};
use crate::bootstrap::{self, LeftBinding, UninstallRequest, Uninstalled};
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
        ledger: &ledger,
        state_dir: &settings.state_dir,
        admin_kubeconfig,
        dry_run: *dry_run,
    };
    let progress = output::progress("removing bindings, roles, policies and webhooks");
    let Uninstalled { removed, left } = bootstrap::uninstall(request).await?;
    progress.finish_and_clear();
    let exit = if left.is_empty() { Exit::Done } else { Exit::Failed };
    if context.global.json {
        let names: Vec<&str> = removed.iter().map(|made| made.what.as_str()).collect();
        let left: Vec<_> =
            left.iter().map(|LeftBinding { what, remedy }| json!({"object": what, "remedy": remedy})).collect();
        output::json(&json!({"cluster": cluster, "removed": names, "left": left, "dry_run": dry_run}))?;
        return Ok(exit);
    }
    let word = if *dry_run { "would be removed:" } else { "removed" };
    for made in &removed {
        output::line(format!("{word:<8} {}", made.what));
    }
    for LeftBinding { what, remedy } in &left {
        output::line(format!(
            "left     {what}: it names users, groups or service accounts of Bursar but has no label of Bursar; run: {remedy}"
        ));
    }
    output::line(format!(
        "cluster {cluster}: {} {}; namespaces, quotas, network policies and volumes of tenants stay",
        if *dry_run { "after this," } else { "from now on," },
        access(left.len())
    ));
    Ok(exit)
}

/// Says who still has access, if `left` bindings of others stay.
fn access(left: usize) -> String {
    match left {
        0 => "nobody has access through Bursar".to_owned(),
        1 => "credentials of Bursar give access only by 1 binding of others".to_owned(),
        left => format!("credentials of Bursar give access only by {left} bindings of others"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_through_bursar_has_ended_only_if_no_binding_is_left() {
        assert_eq!(access(0), "nobody has access through Bursar");
        assert!(access(1).ends_with("1 binding of others"));
        assert!(access(2).ends_with("2 bindings of others"));
    }
}
