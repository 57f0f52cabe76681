//! Stops the workloads of a suspended tenant, and later restores them. An object that a controller made is left out
//! only if that controller is stopped itself: tenants can write `ownerReferences`, so a reference to anything else
//! proves nothing.
//!
//! Workloads are first found and then stopped, and the ledger records their state in between. So this state is not lost
//! if the daemon is killed while it stops them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use serde_json::{Value, json};

use super::request::{ApiServer, Ask, RequestError};
use super::{Effects, StepError};
use crate::desired::quota::stops_pods;
use crate::identity::{ClusterName, NamespaceName};
use crate::inventory::pods::{GRACE, Maker, is_late};
use crate::kinds::{ManagedKind, ObjectKey, ObjectKind, everywhere};
use crate::ledger::{LedgerState, Lifecycle, ObjectRecord, StoppedWorkload};

/// How many workloads of one namespace are stopped in parallel. A tenant may have thousands.
const AT_A_TIME: usize = 16;

/// A node selector that no node has, so that a `DaemonSet` runs no pods. A `DaemonSet` has no `/scale`.
pub const PARKED: &str = "bursar.dev/suspended";

/// How a kind is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Set `/scale` to 0.
    Scale,
    /// Set `spec.suspend`.
    Suspend,
    /// Set a node selector that no node has.
    Park,
    /// Delete it.
    Delete,
}

/// The kinds in the order in which they are stopped: controllers before what they make, bare pods last.
const WORKLOADS: &[(&str, &str, How)] = &[
    ("batch/v1", "CronJob", How::Suspend),
    ("batch/v1", "Job", How::Suspend),
    ("apps/v1", "Deployment", How::Scale),
    ("apps/v1", "StatefulSet", How::Scale),
    ("apps/v1", "ReplicaSet", How::Scale),
    ("v1", "ReplicationController", How::Scale),
    ("apps/v1", "DaemonSet", How::Park),
    ("v1", "Pod", How::Delete),
];

fn how(key: &ObjectKey) -> Option<How> {
    WORKLOADS.iter().find(|known| ObjectKind::of(known.0, known.1) == key.kind).map(|known| known.2)
}

/// Returns everything in a namespace that runs or would run, with its state.
pub async fn find(
    server: &ApiServer,
    namespace: &NamespaceName,
    now: Timestamp,
) -> Result<Vec<(ObjectKey, StoppedWorkload)>, StepError> {
    let mut listed: Vec<Listed> = Vec::new();
    for (api_version, kind, how) in WORKLOADS {
        let Some(known) = everywhere(&ObjectKind::of(api_version, kind)) else { continue };
        let objects = server.list(&known.path(Some(namespace.as_str()), None)).await?;
        listed.extend(objects.into_iter().map(|object| Listed { api_version, kind, how: *how, object }));
    }
    Ok(to_stop(&listed).map(|it| it.stopped(&server.cluster, now)).collect())
}

/// One workload of a namespace.
struct Listed {
    api_version: &'static str,
    kind: &'static str,
    how: How,
    object: Value,
}

impl Listed {
    fn uid(&self) -> &str {
        self.object["metadata"]["uid"].as_str().unwrap_or_default()
    }

    fn stopped(&self, cluster: &ClusterName, now: Timestamp) -> (ObjectKey, StoppedWorkload) {
        let replicas = (self.how == How::Scale).then(|| replicas(&self.object));
        let stopped = StoppedWorkload { uid: self.uid().to_owned(), replicas, at: now };
        (key(cluster, self.api_version, self.kind, &self.object), stopped)
    }
}

/// Returns what runs and does not stop together with its controller.
fn to_stop(listed: &[Listed]) -> impl Iterator<Item = &Listed> {
    let by_uid: HashMap<&str, &Listed> = listed.iter().map(|one| (one.uid(), one)).collect();
    listed.iter().filter(move |one| runs(one.how, &one.object) && !follows(one, &by_uid))
}

/// Whether an object stops together with its controller. The controller must be in the same listing, be of a kind that
/// makes such objects, select the object, and not be deleted or a finished `Job`. Such a controller is stopped, because
/// everything in the listing that runs is stopped.
fn follows(one: &Listed, by_uid: &HashMap<&str, &Listed>) -> bool {
    let owners = one.object["metadata"]["ownerReferences"].as_array();
    let Some(owner) = owners.into_iter().flatten().find(|owner| owner["controller"] == true) else { return false };
    let uid = owner["uid"].as_str().unwrap_or_default();
    let Some(controller) = by_uid.get(uid).filter(|known| makes(known.kind, one.kind)) else { return false };
    let ends = controller.object["metadata"]["deletionTimestamp"].is_string();
    let is_over = controller.how == How::Suspend && is_finished(&controller.object);
    !ends && !is_over && selects(&controller.object, &one.object)
}

/// Whether a controller of the one kind makes objects of the other and stops them when it is stopped. A `CronJob` is
/// missing, because its suspension does not stop a `Job` that it made.
fn makes(controller: &str, kind: &str) -> bool {
    match kind {
        "Pod" => ["ReplicaSet", "StatefulSet", "ReplicationController", "DaemonSet", "Job"].contains(&controller),
        "ReplicaSet" => controller == "Deployment",
        _ => false,
    }
}

/// Whether the controller's selector matches the object. A controller releases an object that it does not match.
#[must_use]
pub fn selects(controller: &Value, object: &Value) -> bool {
    let Some(selector) = controller["spec"]["selector"].as_object() else { return false };
    // The selector of a `ReplicationController` consists of the labels themselves.
    let is_labels = selector.values().all(Value::is_string);
    let selector = if is_labels { json!({"matchLabels": selector}) } else { json!(selector) };
    let selector = serde_json::from_value::<LabelSelector>(selector).ok().and_then(|it| Selector::try_from(it).ok());
    let labels = serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default();
    selector.is_some_and(|selector| selector.matches(&labels))
}

/// Stops what [`find`] found, each even if others fail. Returns the workloads that were replaced by another object
/// meanwhile, which still runs. A workload that is gone needs no stopping.
pub async fn stop(server: &ApiServer, found: &[(ObjectKey, StoppedWorkload)]) -> Result<Vec<ObjectKey>, StepError> {
    let (mut replaced, mut failed) = (Vec::new(), None);
    let begun = found.iter().map(|(key, workload)| async move { (key, stop_one(server, key, workload).await) });
    let begun: Vec<_> = begun.collect();
    let mut outcomes = stream::iter(begun).buffered(AT_A_TIME);
    while let Some((key, stopped)) = outcomes.next().await {
        match stopped {
            Err(error) if error.is_other_uid() => replaced.push(key.clone()),
            Err(error) if error.code() != Some(404) => {
                failed = failed.or(Some(StepError::Workload { key: key.clone(), source: error }));
            }
            _ => {}
        }
    }
    failed.map_or(Ok(replaced), Err)
}

async fn stop_one(server: &ApiServer, key: &ObjectKey, workload: &StoppedWorkload) -> Result<(), RequestError> {
    let (Some(path), Some(how)) = (path(key), how(key)) else { return Ok(()) };
    match how {
        How::Scale => scale(server, &path, &workload.uid, 0).await,
        How::Suspend => suspend(server, &path, &workload.uid, true).await,
        How::Park => park(server, &path, &workload.uid, json!("true")).await,
        How::Delete => end(server, &path, &workload.uid).await,
    }
}

/// Deletes every pod of a namespace that still runs after the controllers were stopped: a pod's grace period may be
/// years, or nothing acts on its controller (`Job.spec.managedBy`, a paused `Deployment`). Returns the number of such
/// pods.
pub async fn end_pods(server: &ApiServer, namespace: &NamespaceName) -> Result<usize, StepError> {
    let pods = ObjectKind::of("v1", "Pod");
    let Some(kind) = everywhere(&pods) else { return Ok(0) };
    let listed = server.list(&kind.path(Some(namespace.as_str()), None)).await?;
    let running: Vec<Value> = listed.into_iter().filter(|pod| runs(How::Delete, pod)).collect();
    let mut failed = None;
    let begun = running.iter().map(|pod| async move {
        let key = key(&server.cluster, "v1", "Pod", pod);
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let ended = match path(&key) {
            Some(path) => end(server, &path, uid).await,
            None => Ok(()),
        };
        ended.map_err(|source| (key, source))
    });
    let begun: Vec<_> = begun.collect();
    let mut outcomes = stream::iter(begun).buffered(AT_A_TIME);
    while let Some(ended) = outcomes.next().await {
        if let Err((key, source)) = ended
            && !is_gone(&source)
        {
            failed = failed.or(Some(StepError::Workload { key, source }));
        }
    }
    drop(outcomes);
    failed.map_or(Ok(running.len()), Err)
}

/// The pods that still run in each suspended namespace.
pub type SuspendedPods = BTreeMap<String, usize>;

/// How many namespaces of a cluster are listed at a time.
const LISTS_AT_A_TIME: usize = 8;

/// Counts the pods of suspended tenants that still run, by cluster and namespace. `only` are the namespaces to count;
/// `None` for all. A cluster that does not answer is left out.
pub async fn running_suspended(
    effects: &Effects,
    ledger: &LedgerState,
    only: Option<&BTreeSet<(ClusterName, String)>>,
    now: Timestamp,
) -> BTreeMap<ClusterName, SuspendedPods> {
    let pods = ObjectKind::of("v1", "Pod");
    let Some(kind) = everywhere(&pods) else { return BTreeMap::new() };
    let namespaces: BTreeSet<(&ClusterName, &str)> =
        ledger.objects.iter().filter_map(|(key, record)| suspended(ledger, key, record)).collect();
    let is_wanted = |(cluster, name): &(&ClusterName, &str)| {
        only.is_none_or(|only| only.contains(&((*cluster).clone(), (*name).to_owned())))
    };
    let namespaces: Vec<(&ClusterName, &str)> = namespaces.into_iter().filter(is_wanted).collect();
    let there = effects.clusters.iter().filter(|(_, effects)| effects.watch.is_ready());
    let counts = there.map(async |(cluster, effects)| {
        let here = namespaces.iter().filter(|(at, _)| *at == cluster);
        let here = here.map(async |(_, namespace)| {
            let listed = effects.server.list(&kind.path(Some(namespace), None)).await?;
            let pods = listed.iter().filter(|pod| runs(How::Delete, pod) || outlasts(pod, now));
            Ok::<_, RequestError>(((*namespace).to_owned(), pods.count()))
        });
        let running = stream::iter(here).buffer_unordered(LISTS_AT_A_TIME).try_collect().await.ok()?;
        Some((cluster.clone(), running))
    });
    futures::future::join_all(counts).await.into_iter().flatten().collect()
}

/// Returns the namespace that the record shows to be suspended: its account is suspended, or it has the quota that
/// stops pods, because the class gave up this cluster.
fn suspended<'a>(
    ledger: &LedgerState,
    key: &'a ObjectKey,
    record: &ObjectRecord,
) -> Option<(&'a ClusterName, &'a str)> {
    if stops_pods(key) {
        return Some((&key.cluster, key.namespace.as_deref()?));
    }
    let account = ledger.accounts.get(&record.account).filter(|_| key.kind == ManagedKind::Namespace)?;
    matches!(account.state, Lifecycle::Suspended | Lifecycle::Archived).then(|| (&key.cluster, &*key.name))
}

/// Deletes a pod with the grace period [`GRACE`].
pub(super) async fn end(server: &ApiServer, path: &str, uid: &str) -> Result<(), RequestError> {
    server.ask(path, Ask::DeleteWithin { uid, seconds: GRACE }).await.map(|_| ())
}

/// Stops the controllers that would replace a pod past its lifetime: the pod's own controller and those above it. A
/// `Job` is ended by its deadline, so that its `CronJob` goes on. Adds `KIND/NAME` of each to `stopped`. Each
/// controller is read first, because tenants can write `ownerReferences`. If one of them is Bursar's own, from a site
/// manifest, nothing is stopped, and the controller recreates the pod with a new lifetime.
pub async fn stop_maker(
    server: &ApiServer,
    ledger: &LedgerState,
    namespace: &NamespaceName,
    maker: &Maker,
    stopped: &mut Vec<String>,
) -> Result<(), StepError> {
    let mut chain: Vec<(ObjectKey, String, Maker, Value)> = Vec::new();
    let (mut next, mut made, mut missing) = (Some(maker.clone()), "Pod".to_owned(), None);
    while let Some(maker) = next.take().filter(|maker| makes(&maker.kind, &made)) {
        let Some((api_version, kind, _)) = WORKLOADS.iter().find(|known| known.1 == maker.kind) else { break };
        let named = json!({"metadata": {"namespace": namespace, "name": maker.name}});
        let key = key(&server.cluster, api_version, kind, &named);
        // The name of every object is a DNS name. Any other text could address another object in the path.
        let is_name =
            maker.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte));
        let Some(path) = path(&key).filter(|_| is_name) else {
            missing = Some(key);
            break;
        };
        let found = match server.ask(&path, Ask::Get).await {
            Ok(answer) if answer.object["metadata"]["uid"] == *maker.uid => answer.object,
            Err(source) if source.code() != Some(404) => return Err(StepError::Outlived { key, source }),
            Ok(_) | Err(_) => {
                missing = Some(key);
                break;
            }
        };
        if ledger.objects.get(&key).is_some_and(|record| record.uid == maker.uid) {
            // A controller releases an object that it does not select, so such a reference is forged.
            if chain.last().is_none_or(|(.., lower)| selects(&found, lower)) {
                return Ok(());
            }
            break;
        }
        let owners = found["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        next = owners
            .filter(|owner| owner["controller"] == true)
            .find_map(|owner| serde_json::from_value(owner.clone()).ok());
        made.clone_from(&maker.kind);
        chain.push((key, path, maker, found));
    }
    // The highest controller is stopped first, because it would recreate the lower ones.
    for (key, path, maker, found) in chain.into_iter().rev() {
        let done = match how(&key).filter(|how| runs(*how, &found)) {
            Some(How::Scale) => scale(server, &path, &maker.uid, 0).await,
            Some(How::Suspend) => expire(server, &path, &maker.uid).await,
            Some(How::Park) => park(server, &path, &maker.uid, json!("true")).await,
            Some(How::Delete) | None => continue,
        };
        match done {
            Err(error) if !is_gone(&error) => return Err(StepError::Outlived { key, source: error }),
            _ => stopped.push(format!("{}/{}", maker.kind, maker.name)),
        }
    }
    missing.map_or(Ok(()), |key| Err(StepError::NoController { key }))
}

/// Ends a `Job` by a deadline that has passed.
async fn expire(server: &ApiServer, path: &str, uid: &str) -> Result<(), RequestError> {
    let change = json!({"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": 1}});
    server.ask(path, Ask::Merge(&change)).await.map(|_| ())
}

/// Restores a workload, unless it is gone or somebody has started it since. A bare pod is not created again.
pub async fn resume(server: &ApiServer, key: &ObjectKey, workload: &StoppedWorkload) -> Result<(), StepError> {
    let (Some(path), Some(how)) = (path(key), how(key)) else { return Ok(()) };
    let resumed = match how {
        How::Delete => Ok(()),
        _ => resume_at(server, &path, how, workload).await,
    };
    match resumed {
        Err(error) if !is_gone(&error) => Err(StepError::Workload { key: key.clone(), source: error }),
        _ => Ok(()),
    }
}

async fn resume_at(server: &ApiServer, path: &str, how: How, workload: &StoppedWorkload) -> Result<(), RequestError> {
    let found = server.ask(path, Ask::Get).await?.object;
    let uid = workload.uid.as_str();
    if found["metadata"]["uid"] != uid || runs(how, &found) {
        return Ok(());
    }
    match how {
        How::Scale => scale(server, path, uid, workload.replicas.unwrap_or(1)).await,
        How::Suspend => suspend(server, path, uid, false).await,
        How::Park => park(server, path, uid, Value::Null).await,
        How::Delete => Ok(()),
    }
}

async fn scale(server: &ApiServer, path: &str, uid: &str, replicas: i32) -> Result<(), RequestError> {
    let change = json!({"metadata": {"uid": uid}, "spec": {"replicas": replicas}});
    server.ask(&format!("{path}/scale"), Ask::Merge(&change)).await.map(|_| ())
}

async fn suspend(server: &ApiServer, path: &str, uid: &str, suspend: bool) -> Result<(), RequestError> {
    let change = json!({"metadata": {"uid": uid}, "spec": {"suspend": suspend}});
    server.ask(path, Ask::Merge(&change)).await.map(|_| ())
}

async fn park(server: &ApiServer, path: &str, uid: &str, parked: Value) -> Result<(), RequestError> {
    let change = json!({
        "metadata": {"uid": uid},
        "spec": {"template": {"spec": {"nodeSelector": {PARKED: parked}}}},
    });
    server.ask(path, Ask::Merge(&change)).await.map(|_| ())
}

/// Whether the object is gone, or another object has its name.
fn is_gone(error: &RequestError) -> bool {
    error.code() == Some(404) || error.is_other_uid()
}

fn runs(how: How, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let ends = metadata["deletionTimestamp"].is_string();
    match how {
        How::Scale => !ends && replicas(object) != 0,
        How::Suspend => !ends && object["spec"]["suspend"] != true && !is_finished(object),
        How::Park => !ends && object["spec"]["template"]["spec"]["nodeSelector"][PARKED].is_null(),
        How::Delete => {
            let ends_soon = ends && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) <= GRACE;
            !ends_soon && !matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        }
    }
}

/// Whether a deleted pod still runs although its grace period is over. A further deletion would not end it: its node
/// does not answer, or the kubelet waits for an earlier, longer grace period.
fn outlasts(pod: &Value, now: Timestamp) -> bool {
    let by = pod["metadata"]["deletionTimestamp"].as_str().and_then(|at| at.parse().ok());
    let is_finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    by.is_some_and(|by| is_late(by, now)) && pod["spec"]["nodeName"].is_string() && !is_finished
}

/// For every kind that can be scaled, the default is 1.
fn replicas(object: &Value) -> i32 {
    object["spec"]["replicas"].as_i64().and_then(|replicas| i32::try_from(replicas).ok()).unwrap_or(1)
}

fn is_finished(job: &Value) -> bool {
    let conditions = job["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        matches!(condition["type"].as_str(), Some("Complete" | "Failed")) && condition["status"] == "True"
    })
}

fn key(cluster: &ClusterName, api_version: &str, kind: &str, object: &Value) -> ObjectKey {
    let metadata = &object["metadata"];
    ObjectKey::new(
        cluster,
        ObjectKind::of(api_version, kind),
        metadata["namespace"].as_str(),
        metadata["name"].as_str().unwrap_or_default(),
    )
}

fn path(key: &ObjectKey) -> Option<String> {
    let kind = everywhere(&key.kind)?;
    Some(kind.path(key.namespace.as_deref(), Some(&key.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;
    use crate::plan::testing::{World, prod};
    use crate::policy::Limit;

    #[test]
    fn archived_namespaces_and_those_in_clusters_that_a_class_gave_up_count_as_suspended() {
        let mut world = World::new();
        world.another_cluster("b");
        world.policy.limits.suspend_per_cycle = Limit { count: 9, percent: None };
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.add(AccountKind::Tool, "bar", Some(52_504));
        world.cycles(2);
        let found = |world: &World| -> BTreeSet<String> {
            let all = world.ledger.objects.iter();
            let all = all.filter_map(|(key, record)| suspended(&world.ledger, key, record));
            all.map(|(cluster, namespace)| format!("{cluster} {namespace}")).collect()
        };
        assert_eq!(found(&world), BTreeSet::new());
        world.account(&foo).disabled = Some("mark".to_owned());
        world.class("tool").clusters = vec![prod()];
        world.cycles(2);
        let all = BTreeSet::from(["b tool-bar", "b tool-foo", "prod tool-foo"].map(str::to_owned));
        assert_eq!(found(&world), all);
        world.account(&foo).state = Lifecycle::Archived;
        world.ledger.objects.retain(|key, _| !stops_pods(key));
        let archived = ["b tool-foo", "prod tool-foo"].map(str::to_owned);
        assert_eq!(found(&world), BTreeSet::from(archived));
    }

    #[test]
    fn an_object_is_left_out_only_if_its_controller_is_stopped() {
        let one = |kind: &str, name: &str, owner: Option<&str>| {
            let (api_version, kind, how) =
                *WORKLOADS.iter().find(|known| known.1 == kind).expect("the kind is in WORKLOADS");
            let owners: Vec<Value> = owner.map(|uid| json!({"uid": uid, "controller": true})).into_iter().collect();
            let object = json!({
                "metadata": {"name": name, "uid": name, "labels": {"app": "web"}, "ownerReferences": owners},
                "spec": {"selector": {"matchLabels": {"app": "web"}}},
            });
            Listed { api_version, kind, how, object }
        };
        let mut stray = one("Pod", "stray", Some("rs"));
        stray.object["metadata"]["labels"] = json!({"app": "other"});
        let mut finished = one("Job", "finished", None);
        finished.object["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        let mut watched = one("StatefulSet", "watched", Some("sts"));
        watched.object["metadata"]["ownerReferences"][0]["controller"] = json!(false);
        let listed = [
            one("Deployment", "web", None),
            one("ReplicaSet", "rs", Some("web")),
            one("Pod", "pod", Some("rs")),
            one("CronJob", "nightly", None),
            one("Job", "of-nightly", Some("nightly")),
            one("Deployment", "of-a-config-map", Some("nobody")),
            one("Pod", "of-nobody", Some("nobody")),
            one("Pod", "of-a-deployment", Some("web")),
            one("Pod", "of-a-finished-job", Some("finished")),
            one("ReplicaSet", "of-a-replica-set", Some("rs")),
            stray,
            finished,
            watched,
        ];
        let names: Vec<&str> = to_stop(&listed).map(Listed::uid).collect();
        let expected = [
            "web",
            "nightly",
            "of-nightly",
            "of-a-config-map",
            "of-nobody",
            "of-a-deployment",
            "of-a-finished-job",
            "of-a-replica-set",
            "stray",
            "watched",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_controller_selects_by_labels_and_by_expressions() {
        let object = json!({"metadata": {"labels": {"app": "web"}}});
        let by = |selector: Value| selects(&json!({"spec": {"selector": selector}}), &object);
        let when = |key: &str, operator: &str, values: &[&str]| {
            by(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        assert!(by(json!({"app": "web"})) && by(json!({"matchLabels": {"app": "web"}})));
        assert!(!by(json!({"app": "db"})) && !by(json!({"matchLabels": {"app": "db"}})) && !by(Value::Null));
        assert!(when("app", "In", &["db", "web"]) && !when("app", "In", &["db"]) && !when("tier", "In", &["db"]));
        assert!(when("app", "NotIn", &["db"]) && !when("app", "NotIn", &["web"]) && when("tier", "NotIn", &["db"]));
        assert!(when("app", "Exists", &[]) && !when("tier", "Exists", &[]));
        assert!(when("tier", "DoesNotExist", &[]) && !when("app", "DoesNotExist", &[]));
        assert!(!when("app", "Resembles", &["web"]));
        let absent = json!([{"key": "app", "operator": "DoesNotExist"}]);
        assert!(!by(json!({"matchLabels": {"app": "web"}, "matchExpressions": absent})));
    }

    #[test]
    fn only_running_workloads_are_stopped() {
        assert!(runs(How::Scale, &json!({"spec": {}})));
        assert!(!runs(How::Scale, &json!({"spec": {"replicas": 0}})));
        assert!(!runs(How::Suspend, &json!({"spec": {"suspend": true}})));
        let done = json!({"spec": {}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}});
        assert!(!runs(How::Suspend, &done));
        assert!(!runs(How::Delete, &json!({"status": {"phase": "Succeeded"}})));
        let ending = |seconds: i64| {
            let metadata = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": seconds});
            json!({ "metadata": metadata, "status": {"phase": "Running"} })
        };
        assert!(!runs(How::Delete, &ending(30)));
        let mut late = ending(30);
        let outlasts = |pod: &Value, now: &str| outlasts(pod, now.parse().expect("the text is a timestamp"));
        assert!(!outlasts(&late, "2026-01-01T00:02:00Z"), "a pod without a node never ran");
        late["spec"]["nodeName"] = json!("node-1");
        assert!(outlasts(&late, "2026-01-01T00:02:00Z") && !outlasts(&late, "2026-01-01T00:01:00Z"));
        late["status"]["phase"] = json!("Failed");
        assert!(!outlasts(&late, "2026-01-01T00:02:00Z"));
        assert!(runs(How::Delete, &ending(315_360_000)), "a pod with a grace period of ten years still runs");
        assert!(runs(How::Park, &json!({"spec": {"template": {"spec": {}}}})));
    }
}
