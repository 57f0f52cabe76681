//! Ends a tenant: archives its namespace into a file, reads the file back, deletes the namespace, and watches the
//! deletion to its end. Data is never deleted: if a claim's volume would be deleted with the namespace, the namespace
//! stays.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::apply::{Claim, apply};
use super::listing::{self, ListedPart};
use super::prune::{Deleted, delete};
use super::request::{ApiServer, Ask};
use super::tenant::{Done, TenantExecution};
use super::{ClusterEffects, StepError};
use crate::archive::{About, ArchiveError, Content, Listed, Packed, VerifiedArchive, Workload, pack};
use crate::desired::rbac::{archive_binding, archive_binding_manifest};
use crate::digest::digest;
use crate::identity::NamespaceName;
use crate::kinds::{ObjectKey, ObjectKind};
use crate::ledger::change::Change;
use crate::ledger::{Archive, ObjectRecord};

/// An archive that is older than this is made again before the deletion, because controllers and administrators may
/// have changed the namespace.
const FRESH: SignedDuration = SignedDuration::from_hours(24);
/// How long a cycle waits for the deletion. An empty namespace is gone within seconds; if it takes longer, later cycles
/// look again.
const WAIT: Duration = Duration::from_secs(5);
const BETWEEN: Duration = Duration::from_millis(250);
/// If the deletion takes longer than this, something is wrong: the namespace controller tries again every few seconds.
const SLOW: SignedDuration = SignedDuration::from_mins(2);

impl TenantExecution<'_> {
    /// Lists everything in a suspended namespace.
    pub(super) async fn listed(
        &self,
        effects: &ClusterEffects,
        namespace: &NamespaceName,
        extent: ListedPart,
        done: &mut Done,
    ) -> Result<Vec<Listed>, StepError> {
        let listing = listing::everything(&effects.server, namespace, extent);
        self.with_archive_role(effects, namespace, done, listing).await?
    }

    /// Runs `work` while the archive role is bound in a suspended namespace. The binding exists only as long as the
    /// work lasts.
    pub(super) async fn with_archive_role<T>(
        &self,
        effects: &ClusterEffects,
        namespace: &NamespaceName,
        done: &mut Done,
        work: impl Future<Output = T>,
    ) -> Result<T, StepError> {
        let key = archive_binding(self.cluster, namespace);
        let manifest = archive_binding_manifest(namespace, &self.run.ledger.ledger_id);
        let writing = effects.watch.write(&key);
        let applied = apply(&effects.server, &key, &manifest, None, Claim::Ours).await?;
        let observed = writing.applied(&applied.object);
        let uid = observed.uid.to_string();
        let record = ObjectRecord {
            account: self.account.id.clone(),
            uid: observed.uid,
            wanted: digest(&manifest).into(),
            observed: observed.digest,
            detail: None,
        };
        // If the daemon is killed after this, it finds the binding after its restart and deletes it.
        done.changes.push(Change::Object(key.clone(), Some(record)));
        self.hand_over(done).await?;
        let answer = work.await;
        let writing = effects.watch.write(&key);
        let removed = delete(&effects.server, &key, &uid).await;
        writing.deleted(true);
        removed?;
        done.changes.push(Change::Object(key, None));
        Ok(answer)
    }

    /// Archives the namespace into a file, and records the archive in the ledger.
    pub(super) async fn archive(
        &self,
        effects: &ClusterEffects,
        namespace: &NamespaceName,
        file: &str,
        done: &mut Done,
    ) -> Result<(), StepError> {
        let objects = self.listed(effects, namespace, ListedPart::Whole, done).await?;
        let packed = self.packed(namespace, objects)?;
        let about = packed.about.clone();
        let written = self.written(file, packed).await?;
        let detail = json!({
            "file": file, "digest": written.digest, "objects": about.objects, "secrets": about.secrets,
            "secrets_left_out": about.left_out,
        });
        let reason = match about.left_out {
            0 => format!("{} objects of namespace {namespace}", about.objects),
            left_out => format!(
                "{} objects of namespace {namespace}; {left_out} Secrets are left out: there is no [archive] recipient",
                about.objects
            ),
        };
        done.events.push(self.event("archive written", reason, detail));
        done.changes.push(Change::Archive(file.to_owned(), written.row(about)));
        self.hand_over(done).await
    }

    fn packed(&self, namespace: &NamespaceName, objects: Vec<Listed>) -> Result<Packed, ArchiveError> {
        let stopped = self.stopped().map(|(key, stopped)| Workload {
            api_version: key.kind.api_version().to_owned(),
            kind: key.kind.to_string(),
            name: key.name.to_string(),
            replicas: stopped.replicas,
        });
        let about = About::of(
            (self.cluster.clone(), namespace.clone()),
            (self.account.account.clone(), self.account.id.clone(), self.account.generation),
            stopped.collect(),
            self.run.now,
        );
        let binding = archive_binding(self.cluster, namespace);
        let is_binding = |object: &Value| {
            ObjectKind::of_manifest(object) == binding.kind && object["metadata"]["name"] == *binding.name
        };
        let objects = objects.into_iter().filter(|(_, object)| !is_binding(object)).collect();
        pack(Content { about, objects }, self.effects.archives.recipient.as_ref())
    }

    /// Writes the file on a thread that may block.
    async fn written(&self, file: &str, packed: Packed) -> Result<VerifiedArchive, StepError> {
        let (archives, file) = (self.effects.archives.clone(), file.to_owned());
        let written = tokio::task::spawn_blocking(move || archives.write(&file, &packed)).await;
        Ok(written.map_err(StepError::Task)??)
    }

    fn stopped(&self) -> impl Iterator<Item = (&ObjectKey, &crate::ledger::StoppedWorkload)> {
        let all = self.run.ledger.stopped.iter();
        all.filter(|((id, key), _)| *id == self.account.id && key.cluster == *self.cluster)
            .map(|((_, key), stopped)| (key, stopped))
    }

    /// Deletes the namespace, unless that would delete data. Archives it first if there is no archive of its present
    /// state.
    pub(super) async fn delete_namespace(
        &self,
        effects: &ClusterEffects,
        namespace: &NamespaceName,
        uid: &str,
        (archived, file): (Option<&(String, Archive)>, &str),
        done: &mut Done,
    ) -> Result<(), StepError> {
        keeps_data(&effects.server, namespace).await?;
        if !self.is_archived(archived).await {
            self.archive(effects, namespace, file, done).await?;
        }
        let key = ObjectKey::namespace(self.cluster, namespace);
        let writing = effects.watch.write(&key);
        let deleted = delete(&effects.server, &key, uid).await?;
        match deleted {
            Deleted::Gone => writing.deleted(true),
            Deleted::Going => writing.deleted(false),
            Deleted::Replaced => {
                drop(writing);
                return self.replaced(key, done).await;
            }
        }
        // The ledger forgets the stopped workloads: they are in the archive, and a new namespace would have others.
        let stopped: Vec<ObjectKey> = self.stopped().map(|(key, _)| key.clone()).collect();
        done.changes.extend(stopped.into_iter().map(|key| Change::Stopped(self.account.id.clone(), key, None)));
        let reason = "it is archived, and the time to keep it has passed".to_owned();
        done.events.push(self.event("namespace deleted", reason, json!({"namespace": namespace, "uid": uid})));
        self.hand_over(done).await?;
        self.await_deletion(effects, namespace, uid, done).await
    }

    /// Whether the archive is recent, was made during this suspension, and is unchanged on disk.
    async fn is_archived(&self, newest: Option<&(String, Archive)>) -> bool {
        let Some((file, archive)) = newest else { return false };
        if archive.generation != self.account.generation || self.run.now.duration_since(archive.at).abs() > FRESH {
            return false;
        }
        let (archives, file, expected) = (self.effects.archives.clone(), file.clone(), archive.digest.clone());
        let read = tokio::task::spawn_blocking(move || archives.read(&file, &expected)).await;
        matches!(read, Ok(Ok(_)))
    }

    /// Checks for a few seconds whether the namespace is gone.
    pub(super) async fn await_deletion(
        &self,
        effects: &ClusterEffects,
        namespace: &NamespaceName,
        uid: &str,
        done: &mut Done,
    ) -> Result<(), StepError> {
        let key = ObjectKey::namespace(self.cluster, namespace);
        let looks = WAIT.as_millis() / BETWEEN.as_millis();
        for look in 0..=looks {
            match found(&effects.server, namespace).await? {
                None => {
                    effects.watch.write(&key).deleted(true);
                    done.changes.push(Change::Object(key, None));
                    return self.hand_over(done).await;
                }
                Some(other) if other["metadata"]["uid"] != uid => return self.replaced(key, done).await,
                Some(going) if look == looks || holds(&going).is_some() => {
                    return Err(terminating(namespace, &going, self.run.now));
                }
                Some(_) => tokio::time::sleep(BETWEEN).await,
            }
        }
        Ok(())
    }

    /// Records that somebody else created another namespace with this name. That namespace belongs to them.
    async fn replaced(&self, key: ObjectKey, done: &mut Done) -> Result<(), StepError> {
        let reason = format!("namespace {} was recreated by somebody else, and stays", key.name);
        done.events.push(self.event("namespace replaced", reason, json!({"namespace": key.name})));
        done.changes.push(Change::Object(key, None));
        self.hand_over(done).await
    }
}

async fn found(server: &ApiServer, namespace: &NamespaceName) -> Result<Option<Value>, StepError> {
    match server.ask(&format!("/api/v1/namespaces/{namespace}"), Ask::Get).await {
        Ok(found) => Ok(Some(found.object)),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn terminating(namespace: &NamespaceName, going: &Value, now: Timestamp) -> StepError {
    let began = going["metadata"]["deletionTimestamp"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let slow = began.is_some_and(|began| now.duration_since(began) > SLOW);
    let holds = holds(going);
    let stuck = holds.is_some() || slow;
    let why = holds.unwrap_or_else(|| "its objects are still being deleted".to_owned());
    StepError::Terminating { namespace: namespace.clone(), why, stuck }
}

/// Returns what keeps a deleted namespace, in the words of Kubernetes: finalizers of its objects and its own, and APIs
/// that do not answer (namespace controller, `NamespaceConditionType`).
fn holds(going: &Value) -> Option<String> {
    const HOLD: [&str; 4] = [
        "NamespaceFinalizersRemaining",
        "NamespaceDeletionDiscoveryFailure",
        "NamespaceDeletionGroupVersionParsingFailure",
        "NamespaceDeletionContentFailure",
    ];
    let own = going["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let own = own.map(|finalizer| format!("finalizer {finalizer} of the namespace itself remains"));
    let conditions = going["status"]["conditions"].as_array().into_iter().flatten();
    let conditions = conditions.filter(|condition| {
        condition["status"] == "True" && condition["type"].as_str().is_some_and(|kind| HOLD.contains(&kind))
    });
    let said = conditions.filter_map(|condition| condition["message"].as_str().map(str::to_owned));
    let all: Vec<String> = own.chain(said).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Fails if a claim's volume, and the data on it, would be deleted with the namespace.
async fn keeps_data(server: &ApiServer, namespace: &NamespaceName) -> Result<(), StepError> {
    let mut losing = Vec::new();
    for claim in server.list(&format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims")).await? {
        let Some(volume) = claim["spec"]["volumeName"].as_str().filter(|name| !name.is_empty()) else { continue };
        match server.ask(&format!("/api/v1/persistentvolumes/{volume}"), Ask::Get).await {
            Ok(found) if found.object["spec"]["persistentVolumeReclaimPolicy"] != "Retain" => {
                let claim = claim["metadata"]["name"].as_str().unwrap_or_default();
                losing.push((claim.to_owned(), volume.to_owned()));
            }
            Ok(_) => {}
            Err(error) if error.code() == Some(404) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if losing.is_empty() { Ok(()) } else { Err(StepError::Data { namespace: namespace.clone(), claims: losing }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finalizer_that_keeps_a_namespace_is_named() {
        let condition =
            |kind: &str, status: &str, message: &str| json!({"type": kind, "status": status, "message": message});
        let going = json!({
            "metadata": {"finalizers": ["example.org/own"]},
            "status": {"conditions": [
                condition("NamespaceDeletionDiscoveryFailure", "False", "All resources successfully discovered"),
                condition("NamespaceContentRemaining", "True", "Some resources are remaining: configmaps. has 1"),
                condition("NamespaceFinalizersRemaining", "True",
                    "Some content in the namespace has finalizers remaining: example.org/keep in 1 resource instances"),
            ]},
        });
        assert_eq!(
            holds(&going).as_deref(),
            Some(
                "finalizer example.org/own of the namespace itself remains; Some content in the namespace has finalizers \
                 remaining: example.org/keep in 1 resource instances"
            )
        );
        assert_eq!(holds(&json!({"metadata": {}, "status": {"phase": "Terminating"}})), None);
    }
}
