//! Rebuilds the ledger from the directories, the clusters and the homes. It suspends nobody, and no certificate that is
//! still good is issued again. It reports what can no longer be known.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bursar_directory::{self as directory, Pass};
use bursar_homed::client::HomedClient;
use jiff::Timestamp;
use kube::Client;
use serde_json::json;

use super::homes::{Held, Search};
use super::{RecoveryError, quotas, source_of};
use crate::bootstrap;
use crate::contract::Sealer;
use crate::desired::derive;
use crate::errors::chain;
use crate::execute::request::ApiServer;
use crate::identity::{AccountId, AccountName, ClusterName};
use crate::ledger::change::{Change, Event};
use crate::ledger::cluster_recovery::{Facts, learn};
use crate::ledger::transition::transition;
use crate::ledger::{Account, CredentialKey, LedgerState, Lifecycle, Suspension};
use crate::runtime;
use crate::settings::Settings;
use crate::snapshot::DirectorySnapshot;
use crate::store::{CycleLock, FILE, ReadStore, Store, has_content};
use crate::telemetry::Metrics;

/// What cannot be known after a ledger was lost.
const LOST: [&str; 4] = [
    "the history up to now: see the journal and older backups",
    "holds, orders, approvals, and suspensions of accounts without a namespace: order them again",
    "names and uids of tools and people without a namespace: a new account may get one of them",
    "the former replica counts of suspended workloads: after a resume, tenants have to scale them up",
];

/// The result of [`rebuild`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuilt {
    /// The new ledger's id.
    pub ledger_id: String,
    /// The number of accounts in it.
    pub accounts: usize,
    /// The number of accounts that had a namespace or a binding.
    pub tenants: usize,
    /// The number of certificates in homes that are still valid.
    pub certificates: usize,
    /// The last generation that was given out, including those that are skipped.
    pub last_generation: u64,
    /// A file that lists the quotas in the clusters that differ from those of the classes.
    pub quotas: Option<PathBuf>,
    /// Whether `bursar quota import` accepts this file.
    pub importable: bool,
    /// What remains unknown, as texts for administrators.
    pub doubts: Vec<String>,
}

/// Rebuilds the ledger of `settings`, as `actor`. `clients` reach its clusters.
///
/// # Errors
/// A ledger exists, a daemon runs, or one of the parts that it is rebuilt from does not answer.
pub async fn rebuild(
    settings: &Settings,
    clients: BTreeMap<ClusterName, Client>,
    actor: &str,
    now: Timestamp,
) -> Result<Rebuilt, RecoveryError> {
    nothing_is_there(&settings.state_dir).await?;
    let sealer = runtime::read_seal(&settings.state_dir)?;
    let snapshot = directory::fetch(&settings.sources()?, &Pass::Once, &settings.policy, now).await;
    for read in &snapshot.reads {
        if let Some(why) = read.completeness.trouble() {
            return Err(RecoveryError::Partial { name: read.source.clone(), why: why.clone() });
        }
    }
    let (servers, facts) = clusters(clients.clone(), &sealer).await?;
    let ledger_id = uuid::Uuid::new_v4().simple().to_string();
    let mut work = Work {
        ledger: LedgerState { ledger_id, ..LedgerState::default() },
        events: Vec::new(),
        doubts: LOST.map(str::to_owned).to_vec(),
        unexplained: BTreeMap::new(),
        settings,
        actor,
        now,
    };
    work.learn(&facts, &snapshot);
    work.read(&snapshot);
    let homes = HomedClient::new(&settings.homes.socket, settings.homes.deadline);
    let search = Search { homes: &homes, servers: &servers, bound: &facts.bound, now };
    work.look(&search, &sealer, &snapshot).await?;
    work.explain_suspensions();
    work.find_archives();
    let namespaces =
        facts.tenancies.iter().map(|tenancy| (&tenancy.identity.cluster, &tenancy.identity.namespace)).collect();
    let differing = quotas::differing(&clients, &work.desired(&sealer), &settings.policy, &namespaces).await?;
    let written = quotas::write(&settings.state_dir, &differing);
    let quotas = written.map_err(|error| RecoveryError::Quotas(Box::new(error)))?;
    let importable = quotas::are_importable(&differing);
    Ok(Rebuilt { quotas, importable, ..work.store(&facts).await? })
}

/// Checks that no daemon runs and that no ledger has accounts. An empty ledger from `bursar init` is allowed, and so is a
/// file without content, unless a WAL next to it may still have the accounts.
async fn nothing_is_there(state_dir: &Path) -> Result<(), RecoveryError> {
    let path = state_dir.join(FILE);
    if !state_dir.exists() || !path.exists() {
        return Ok(());
    }
    drop(CycleLock::take(state_dir)?);
    if has_content(&path).is_ok_and(|has| !has) {
        // SQLite deletes the WAL of such a file when it opens the file.
        let has_wal = path.with_extension("db-wal").exists();
        return if has_wal { Err(RecoveryError::There(path)) } else { Ok(()) };
    }
    let known = match ReadStore::open(&path).await {
        Ok(mut ledger) => ledger.state().await.ok(),
        Err(_) => None,
    };
    match known {
        Some(state) if state.accounts.is_empty() => Ok(()),
        _ => Err(RecoveryError::There(path)),
    }
}

async fn clusters(
    clients: BTreeMap<ClusterName, Client>,
    sealer: &Sealer,
) -> Result<(BTreeMap<ClusterName, ApiServer>, Facts), RecoveryError> {
    let (mut servers, mut facts) = (BTreeMap::new(), Facts::default());
    for (cluster, client) in clients {
        let failed = |source| RecoveryError::Cluster { cluster: cluster.clone(), source };
        facts.extend(bootstrap::facts(&client, &cluster, &[sealer.public_key()]).await.map_err(failed)?);
        servers.insert(cluster.clone(), ApiServer::new(cluster.clone(), client, Arc::new(Metrics::default())));
    }
    Ok((servers, facts))
}

struct Work<'a> {
    ledger: LedgerState,
    events: Vec<Event>,
    doubts: Vec<String>,
    /// Texts about accounts that are suspended for an unknown reason.
    unexplained: BTreeMap<AccountName, String>,
    settings: &'a Settings,
    actor: &'a str,
    now: Timestamp,
}

impl Work<'_> {
    /// Learns the accounts that sealed namespaces name.
    fn learn(&mut self, facts: &Facts, snapshot: &DirectorySnapshot) {
        let source_of = source_of(self.settings, snapshot);
        let learned = learn(&self.ledger, facts, &self.settings.policy, &source_of, self.actor, self.now);
        learned.changes.iter().for_each(|change| self.ledger.apply(change));
        self.events.extend(learned.events);
        self.doubts.extend(learned.doubts);
        self.unexplained.extend(learned.unexplained);
    }

    /// Learns the accounts that the directories name.
    fn read(&mut self, snapshot: &DirectorySnapshot) {
        let seen = transition(&self.ledger, snapshot, &self.settings.policy, self.now);
        seen.changes.iter().for_each(|change| self.ledger.apply(change));
        self.events.extend(seen.events);
    }

    /// Finds the certificates in homes that are still valid. If an account has no namespace, its former id is only in
    /// its certificate.
    async fn look(
        &mut self,
        search: &Search<'_>,
        sealer: &Sealer,
        snapshot: &DirectorySnapshot,
    ) -> Result<(), RecoveryError> {
        let found = search.all(&self.desired(sealer), &mut self.doubts).await?;
        let fresh = found
            .iter()
            .filter(|((id, _), _)| self.ledger.accounts.get(id).is_some_and(|account| account.state == Lifecycle::New));
        let fresh: BTreeMap<AccountId, Held> = fresh.map(|((id, _), held)| (id.clone(), held.clone())).collect();
        if fresh.is_empty() {
            self.take(found.into_values());
            return Ok(());
        }
        for (generated, held) in fresh {
            self.is_known_as(&generated, &held);
        }
        self.read(snapshot);
        // The expected content of the kubeconfigs depends on the id.
        let mut told = Vec::new();
        let found = search.all(&self.desired(sealer), &mut told).await?;
        self.take(found.into_values());
        Ok(())
    }

    fn desired(&self, sealer: &Sealer) -> crate::desired::DesiredState {
        derive(&self.ledger, &self.settings.policy, sealer, self.now)
    }

    /// Gives an account its former id instead of the one that the read has just generated.
    fn is_known_as(&mut self, generated: &AccountId, held: &Held) {
        if self.ledger.accounts.contains_key(&held.id) {
            return;
        }
        let Some(account) = self.ledger.accounts.remove(generated) else { return };
        self.ledger.uid_history.retain(|_, holder| holder != generated);
        self.events.retain(|event| event.account_id.as_ref() != Some(generated));
        let account = Account {
            id: held.id.clone(),
            posix: None,
            state: Lifecycle::Active,
            generation: held.certificate.generation,
            ..account
        };
        self.ledger.accounts.insert(account);
    }

    fn take(&mut self, found: impl Iterator<Item = Held>) {
        for Held { id, cluster, certificate, delivery } in found {
            if self.ledger.accounts.get(&id).is_some_and(|account| account.generation == certificate.generation) {
                let key = CredentialKey::new(id, cluster);
                self.ledger.certificates.insert(key.clone(), certificate);
                self.ledger.deliveries.insert(key, delivery);
            }
        }
    }

    /// If the directory marks a suspended account as disabled, or no longer has it, that is the reason of the
    /// suspension, and the account resumes by itself.
    fn explain_suspensions(&mut self) {
        for account in self.ledger.accounts.values_mut().filter(|account| account.state == Lifecycle::Suspended) {
            let cause = match (&account.disabled, &account.absence) {
                (Some(mark), _) => Suspension::Disabled { mark: mark.clone() },
                (None, Some(_)) => Suspension::Absent,
                (None, None) => continue,
            };
            account.suspension = Some(Box::new(cause));
            self.unexplained.remove(&account.account_name());
        }
    }

    /// Finds the archives in the state folder. Their present digests are recorded, so an earlier change of a file is
    /// not noticed.
    fn find_archives(&mut self) {
        let archives = self.settings.archives();
        for file in archives.files() {
            let (about, written) = match archives.found(&file) {
                Ok(found) => found,
                Err(error) => {
                    self.doubts.push(format!("archive {file} is skipped: {}", chain(&error)));
                    continue;
                }
            };
            if !self.ledger.accounts.contains_key(&about.account_id) {
                self.doubts.push(format!(
                    "archive {file} belongs to {}, which is in no directory and no cluster",
                    about.account
                ));
                continue;
            }
            self.ledger.archives.insert(file, written.row(about));
        }
    }

    /// Keeps the generations of accounts whose homes have a valid certificate, because the home shows who holds it.
    fn keep_known_generations(&mut self) {
        let known: Vec<AccountId> = self.ledger.certificates.keys().map(|key| key.account.clone()).collect();
        for id in known {
            let account = self.ledger.accounts.get(&id).filter(|account| account.revocation.is_some());
            if let Some(account) = account.cloned() {
                let account = Account { revocation: None, ..account };
                self.ledger.apply(&Change::Account(account.into()));
            }
        }
    }

    /// Writes everything in one transaction. If the rebuild is interrupted before that, there is no ledger, and the
    /// rebuild can be repeated.
    async fn store(mut self, facts: &Facts) -> Result<Rebuilt, RecoveryError> {
        self.keep_known_generations();
        let tenants = self.ledger.accounts.values().filter(|account| account.state != Lifecycle::New).count();
        let rebuilt = Rebuilt {
            ledger_id: self.ledger.ledger_id.clone(),
            accounts: self.ledger.accounts.len(),
            tenants,
            certificates: self.ledger.certificates.len(),
            last_generation: self.ledger.last_generation,
            quotas: None,
            importable: false,
            doubts: [std::mem::take(&mut self.doubts), self.unexplained.values().cloned().collect()].concat(),
        };
        let detail = json!({
            "ledger": rebuilt.ledger_id,
            "namespaces": facts.tenancies.len(),
            "certificates": rebuilt.certificates,
            "unknown": rebuilt.doubts,
        });
        let begun = Event { actor: self.actor.to_owned(), ..Event::new("rebuilt", "the ledger was lost", detail) };
        self.events.insert(0, begun);
        let (mut store, lock) = Store::create(&self.settings.state_dir).await?;
        let mut changes = everything(self.ledger);
        changes.push(Change::Learned(self.now));
        store.write(&lock, &changes, &self.events, self.now).await?;
        store.close().await?;
        Ok(rebuilt)
    }
}

/// Returns the changes that turn an empty ledger into this state.
fn everything(ledger: LedgerState) -> Vec<Change> {
    let mut changes = vec![Change::LedgerId(ledger.ledger_id), Change::LastGeneration(ledger.last_generation)];
    changes.extend(ledger.accounts.into_values().map(Change::Account));
    changes.extend(ledger.uid_history.into_iter().map(|(uid, account)| Change::Uid(uid, account)));
    changes.extend(ledger.used_uids.into_iter().map(|(uid, at)| Change::UsedUid(uid, at)));
    for ((account, cluster), tenant) in ledger.tenants {
        // The tenant counts as settled with an empty digest, as if under another policy. Differences from today's
        // policy are therefore applied at the pace of a policy change.
        changes.push(Change::Settled(account.clone(), cluster.clone(), "".into()));
        changes.push(Change::Tenant(account, cluster, tenant));
    }
    let certificates = ledger.certificates.into_iter();
    changes.extend(certificates.map(|(key, it)| Change::Certificate(key, Some(it))));
    let deliveries = ledger.deliveries.into_iter();
    changes.extend(deliveries.map(|(key, it)| Change::Delivery(key, Some(it))));
    changes.extend(ledger.archives.into_iter().map(|(file, archive)| Change::Archive(file, archive)));
    changes.push(Change::Rejected(ledger.rejected));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_ledger_without_content_may_be_rebuilt_unless_it_has_a_wal() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let (ledger, wal) = (folder.path().join(FILE), folder.path().join("ledger.db-wal"));
        std::fs::write(&ledger, "").expect("the folder is writable");
        nothing_is_there(folder.path()).await.expect("the ledger was lost");
        std::fs::write(&wal, "x").expect("the folder is writable");
        let refused = nothing_is_there(folder.path()).await;
        assert!(matches!(refused, Err(RecoveryError::There(_))), "{refused:?}");
        std::fs::remove_file(wal).expect("the file exists");
        std::fs::write(&ledger, [7; 5000]).expect("the folder is writable");
        let refused = nothing_is_there(folder.path()).await;
        assert!(matches!(refused, Err(RecoveryError::There(_))), "{refused:?}");
    }
}
