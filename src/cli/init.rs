//! `bursar init`: gives the daemon its access to a cluster, as that cluster's administrator.

use super::arguments::Init;
use super::context::Context;
use super::exit::{Exit, Failure};
use crate::identity::ClusterName;

pub(super) async fn run(context: &Context, arguments: &Init) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let cluster = ClusterName(arguments.cluster.clone());
    if !settings.clusters.contains_key(&cluster) {
        let known: Vec<&str> = settings.clusters.keys().map(|name| name.0.as_str()).collect();
        let text = format!("--cluster {cluster}: the configuration has no such cluster; it has: {}", known.join(", "));
        return Err(Failure::new(Exit::Usage, text));
    }
    std::future::ready(()).await;
    Err(Failure::new(Exit::Failed, "init is not wired yet"))
}
