//! The administrator's kubeconfig: the file of `--admin-kubeconfig`, otherwise the one that `kubectl` uses. Every
//! command finds it here, and prints the file and its server before it asks the server anything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::exit::{Exit, Failure};
use super::output;
use crate::bootstrap;
use crate::identity::ClusterName;
use crate::settings::Settings;

/// Returns the administrator's kubeconfig of one cluster.
pub(super) async fn of_cluster(
    settings: &Settings,
    cluster: &ClusterName,
    given: Option<&Path>,
) -> Result<PathBuf, Failure> {
    if !settings.clusters.contains_key(cluster) {
        let text = format!("cluster {cluster} is not in the configuration; add [cluster.{cluster}] to it");
        return Err(Failure::new(Exit::Failed, text));
    }
    let path = if let Some(path) = given { Some(path.to_owned()) } else { usual()? };
    let path = path.ok_or_else(|| {
        Failure::new(Exit::Usage, "no administrator's kubeconfig; add --admin-kubeconfig FILE, or set KUBECONFIG")
    })?;
    announce(cluster, &path).await?;
    Ok(path)
}

/// Like [`of_cluster`], for a command that also works with the daemon's own access: returns `None` if no file is given,
/// and the one that `kubectl` uses does not exist.
pub(super) async fn if_any(cluster: &ClusterName, given: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let path = if let Some(path) = given { Some(path.to_owned()) } else { usual()?.filter(|path| path.exists()) };
    if let Some(path) = &path {
        announce(cluster, path).await?;
    }
    Ok(path)
}

/// Returns the administrator's kubeconfig of each cluster. Each of `given` is `FILE` or `NAME=FILE`. If none is given,
/// the file that `kubectl` uses is that of the only cluster.
pub(super) async fn of_clusters(
    settings: &Settings,
    given: &[String],
) -> Result<BTreeMap<ClusterName, PathBuf>, Failure> {
    let admins = if given.is_empty() {
        let usual = usual()?.map(|path| path.display().to_string());
        assigned(settings, usual.as_slice())?
    } else {
        assigned(settings, given)?
    };
    for (cluster, path) in &admins {
        announce(cluster, path).await?;
    }
    Ok(admins)
}

/// Returns the daemon's own kubeconfig of each cluster, for a command that needs no administrator.
pub(super) async fn own(settings: &Settings) -> Result<BTreeMap<ClusterName, PathBuf>, Failure> {
    for (cluster, path) in &settings.clusters {
        announce(cluster, path).await?;
    }
    Ok(settings.clusters.clone())
}

/// Prints which kubeconfig a command uses for a cluster, on standard error, because standard output is the answer.
pub(super) async fn announce(cluster: &ClusterName, path: &Path) -> Result<(), Failure> {
    let server = bootstrap::server(path).await?;
    output::error(&format!("cluster {cluster}: using kubeconfig {}, server {server}", path.display()));
    Ok(())
}

/// Assigns each argument to its cluster.
fn assigned(settings: &Settings, given: &[String]) -> Result<BTreeMap<ClusterName, PathBuf>, Failure> {
    let known: Vec<&ClusterName> = settings.clusters.keys().collect();
    let mut admins = BTreeMap::new();
    for given in given {
        let named = given.split_once('=').map(|(name, file)| (ClusterName(name.into()), file));
        match (named.filter(|(name, _)| known.contains(&name)), known.as_slice()) {
            (Some((name, file)), _) => drop(admins.insert(name, PathBuf::from(file))),
            (None, [only]) => drop(admins.insert((*only).clone(), PathBuf::from(given))),
            (None, _) => break,
        }
    }
    if admins.len() == known.len() {
        return Ok(admins);
    }
    let names: Vec<String> = known.iter().map(|name| format!("--admin-kubeconfig {name}=FILE")).collect();
    Err(Failure::new(Exit::Usage, format!("give the administrator's kubeconfig of each cluster: {}", names.join(" "))))
}

/// Returns the kubeconfig that `kubectl` uses: `$KUBECONFIG` or, if it exists, `~/.kube/config`.
fn usual() -> Result<Option<PathBuf>, Failure> {
    let Some(named) = std::env::var_os("KUBECONFIG").filter(|named| !named.is_empty()) else {
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
        return Ok(home.filter(|path| path.exists()));
    };
    let mut files = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    match (files.next(), files.next()) {
        (_, Some(_)) => Err(Failure::new(
            Exit::Usage,
            "KUBECONFIG names several files; name the administrator's: --admin-kubeconfig FILE",
        )),
        (only, None) => Ok(only),
    }
}
