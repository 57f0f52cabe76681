//! Checks whether homes can be reached: `bursar-homed`, the prefixes of homes, and whether their owners can write
//! there.

use std::io;
use std::path::{Path, PathBuf};

use bursar_homed::client::{HomedClient, HomedClientError};
use bursar_protocol::{HomeError, HomeTarget, Request, UID_FLOOR, Work};

use super::mounts::{self, Mount};
use super::{Finding, PATIENCE};
use crate::cli::context::ledger_of;
use crate::desired::DesiredHome;
use crate::execute::home::target;
use crate::ledger::{CredentialKey, LedgerState};
use crate::policy::Class;
use crate::settings::Settings;

/// The number of homes that are tested beneath each prefix. A problem of one home concerns its tenant, and `status`
/// shows it. A problem of all tested homes concerns the export.
const SAMPLE: usize = 3;

/// Checks everything about homes. `named` are the homes that directories name.
pub(crate) async fn homes(settings: &Settings, named: &[PathBuf]) -> Vec<Finding> {
    let mut findings = vec![listening(settings).await];
    let ledger = ledger_of(settings).await.unwrap_or_default();
    let client = HomedClient::new(&settings.homes.socket, settings.homes.deadline);
    let tables = Tables::read();
    for prefix in &settings.homes.prefixes {
        if let Some(use_) = Use::of(settings, prefix) {
            let sample = sample(settings, &ledger, prefix);
            let known = ledger.accounts.values().filter_map(|account| account.home.as_ref()).chain(named);
            let awaited = known.into_iter().any(|home| home.starts_with(prefix)) && !use_.made;
            let text = match looked_at(prefix, use_.made, &tables, &client, &sample).await {
                // Before the first delivery, this may be right: on a new site, nobody has a home yet.
                Ok(()) if awaited && sample.is_empty() && is_empty(prefix).await.unwrap_or(false) => {
                    let kind = tables.kind(prefix);
                    format!("exists{kind}, but is empty; if the homes are on a file server, mount them here")
                }
                Ok(()) => format!("exists{}", tables.kind(prefix)),
                Err((text, remedy)) => {
                    findings.push(Finding::bad(subject(prefix), text, remedy));
                    continue;
                }
            };
            findings.push(Finding::good(subject(prefix), text));
        }
    }
    findings
}

fn subject(prefix: &Path) -> String {
    format!("homes beneath {}", prefix.display())
}

async fn listening(settings: &Settings) -> Finding {
    let socket = &settings.homes.socket;
    match tokio::net::UnixStream::connect(socket).await {
        Ok(_) => Finding::good("homes", format!("bursar-homed listens at {}", socket.display())),
        // `bursard.service` starts it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !super::has_worked(settings).await => {
            Finding::good("homes", "bursar-homed is not started yet; it starts with bursard")
        }
        Err(error) => {
            let text = format!("bursar-homed does not listen at {}: {error}", socket.display());
            Finding::bad("homes", text, "systemctl enable --now bursar-homed.socket")
        }
    }
}

/// The use of a prefix.
#[derive(Debug, Clone, Copy)]
struct Use {
    /// Whether Bursar makes homes or directories of volumes there.
    made: bool,
}

impl Use {
    /// Returns `None` if no class uses the prefix.
    fn of(settings: &Settings, prefix: &Path) -> Option<Self> {
        let classes = || settings.policy.classes.values();
        let homes = || classes().filter_map(|class| class.home.as_ref()).filter(|home| home.prefix.starts_with(prefix));
        let directories = classes().flat_map(directories).any(|path| path.starts_with(prefix));
        let made = directories || homes().any(|home| home.create);
        (made || homes().next().is_some()).then_some(Self { made })
    }
}

fn directories(class: &Class) -> impl Iterator<Item = &Path> {
    let exports = class.volumes.iter().filter_map(|volume| volume.kind.nfs());
    exports.filter_map(|nfs| nfs.directory.as_deref().map(Path::new))
}

/// Returns some homes beneath the prefix to which something was delivered.
fn sample(settings: &Settings, ledger: &LedgerState, prefix: &Path) -> Vec<HomeTarget> {
    let present = ledger.deliveries.iter().filter(|(_, delivery)| !delivery.is_removed());
    let delivered = present.filter_map(|(CredentialKey { account: id, .. }, delivery)| {
        let account = ledger.accounts.get(id)?;
        let home = account.home.clone().filter(|home| home.starts_with(prefix))?;
        let kubeconfig = delivery.path.strip_prefix(&home).ok()?.to_owned();
        let longest = settings.homes.prefixes.iter().filter(|other| home.starts_with(other));
        let nearest = longest.max_by_key(|other| other.components().count()).is_some_and(|nearest| nearest == prefix);
        let posix = account.posix.clone()?;
        let home = DesiredHome { home, posix, kubeconfig, create: false, replace_unparsable: false };
        nearest.then(|| target(&home, delivery.mount.clone()))
    });
    delivered.take(SAMPLE).collect()
}

/// Checks one prefix. Returns the problem and its remedy. `made` means that Bursar makes homes there. Something was
/// delivered to the homes of `sample`, so they must exist there.
async fn looked_at(
    prefix: &Path,
    made: bool,
    tables: &Tables,
    client: &HomedClient,
    sample: &[HomeTarget],
) -> Result<(), (String, String)> {
    let wrong = |text: &str, remedy: String| Err((text.to_owned(), remedy));
    if let Some(Mount { point, kind, source }) = mounts::absent(&tables.wanted, &tables.mounted, prefix) {
        let point = point.display();
        return wrong(
            &format!("{source} ({kind}) is not mounted at {point}, although it is in /etc/fstab"),
            format!("mount {point}"),
        );
    }
    let mount = format!("mount {}, or correct homes.prefixes", prefix.display());
    match tokio::time::timeout(PATIENCE, tokio::fs::metadata(prefix)).await {
        Ok(Ok(found)) if found.is_dir() => {}
        Ok(Ok(_)) => return wrong("is not a folder", "correct homes.prefixes".to_owned()),
        Ok(Err(error)) => return wrong(&error.to_string(), mount),
        Err(_) => return wrong("no answer within 10 s", "check the file server".to_owned()),
    }
    if !sample.is_empty() && is_empty(prefix).await.unwrap_or(false) {
        return wrong("is empty: the export with the homes is not mounted there", mount);
    }
    if let Some(error) = all_fail(client, sample).await {
        return Err((error.to_string(), remedy(&error, sample.len())));
    }
    let probe = HomeTarget::new(prefix.join("bursar-doctor"), UID_FLOOR, UID_FLOOR);
    if made && let Some(error) = refused(client, probe, Work::TestCreate).await {
        let remedy = match &error {
            HomeError::CreateNotAllowed { .. } => format!(
                "the classes need homes or directories made there: add --create-prefix {} to /etc/bursar/homed.env, unless \
                 the export squashes root; the folder must belong to root, and only root may write in it",
                prefix.display()
            ),
            other => other.remedy(),
        };
        return Err((error.to_string(), remedy));
    }
    Ok(())
}

async fn is_empty(folder: &Path) -> io::Result<bool> {
    let read = async { Ok(tokio::fs::read_dir(folder).await?.next_entry().await?.is_none()) };
    tokio::time::timeout(PATIENCE, read).await.unwrap_or(Ok(false))
}

/// Returns the error of these homes if all of them fail for the same reason.
async fn all_fail(client: &HomedClient, sample: &[HomeTarget]) -> Option<HomeError> {
    let mut first: Option<HomeError> = None;
    for home in sample {
        let error = refused(client, home.clone(), Work::TestWrite { replace_unparsable: false }).await?;
        if first.as_ref().is_some_and(|first| first.reason() != error.reason()) {
            return None;
        }
        first = first.or(Some(error));
    }
    first
}

/// Returns the error that `bursar-homed` answers. Other errors are ignored: a socket without a server is a finding
/// already, and if the caller may not use the socket, the home cannot be tested.
async fn refused(client: &HomedClient, target: HomeTarget, work: Work) -> Option<HomeError> {
    match client.call(&Request::new(target, work)).await {
        Err(HomedClientError::Home(HomeError::Forbidden { .. })) => None,
        Err(HomedClientError::Home(error)) => Some(error),
        _ => None,
    }
}

/// Returns the remedy for a problem that all tested homes have.
fn remedy(error: &HomeError, homes: usize) -> String {
    let squash = "export with root_squash, not all_squash (exports(5)), and let both hosts map the same names to the same \
                  uids (Domain in /etc/idmapd.conf)";
    match error {
        HomeError::WrongOwner { .. } | HomeError::AccessDenied { .. } if homes > 1 => squash.to_owned(),
        other => other.remedy(),
    }
}

/// The current mounts, and those that `/etc/fstab` lists.
struct Tables {
    mounted: Vec<Mount>,
    wanted: Vec<Mount>,
}

impl Tables {
    fn read() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self { mounted: mounts::mounted(&read("/proc/self/mountinfo")), wanted: mounts::wanted(&read("/etc/fstab")) }
    }

    /// Returns the mount that holds the prefix, such as ` (nfs4, nfs.example.org:/srv/project)`.
    fn kind(&self, prefix: &Path) -> String {
        let path = prefix.canonicalize().unwrap_or_else(|_| PathBuf::from(prefix));
        let mount = mounts::holding(&self.mounted, &path);
        mount.map(|mount| format!(" ({}, {})", mount.kind, mount.source)).unwrap_or_default()
    }
}
