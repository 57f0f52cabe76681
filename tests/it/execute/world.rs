//! A tenant in the shared control plane. Tests run the executor and the watches against it, without a directory or a
//! daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bursar::archive::Archives;
use bursar::desired::AccountIntent;
use bursar::desired::watched::managed_kinds;
use bursar::digest::digest;
use bursar::execute::request::ApiServer;
use bursar::execute::{ClusterEffects, Effects, Extent, Recorder, Report, Run, execute};
use bursar::identity::{AccountId, AccountKind, AccountName, ClusterName, DirectoryId};
use bursar::inventory::ObservedObject;
use bursar::kinds::{ObjectKey, ObjectKind, ObjectName, WatchedKind, everywhere};
use bursar::ledger::change::Event;
use bursar::ledger::{Account, Failure, LedgerState, Lifecycle};
use bursar::observed::cluster::{ClusterWatch, connect};
use bursar::plan::{AccountPlan, Action, ApprovedPlan, Bounds, Plan, Reason, Side, guard};
use bursar::policy::Cluster;
use bursar_homed::client::HomedClient;
use bursar_testkit::Servers;
use bursar_testkit::ready::DEADLINE;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub const NOW: Timestamp = Timestamp::UNIX_EPOCH;
/// The time at which every step ends.
pub const ENDED: Timestamp = Timestamp::constant(30, 0);

/// A tenant with its own namespace in the shared control plane, a ledger in memory, and watches.
pub struct World {
    pub namespace: String,
    pub ledger: LedgerState,
    pub effects: Effects,
    changed: Arc<Notify>,
    /// The events that the executor recorded, oldest first.
    pub events: Vec<Event>,
}

impl World {
    pub async fn new(namespace: &str) -> Self {
        Self::watching(namespace, managed_kinds()).await
    }

    pub async fn watching(namespace: &str, kinds: Vec<WatchedKind>) -> Self {
        let changed = Arc::new(Notify::new());
        let client = client().await;
        let watch = ClusterWatch::start(&client, cluster(), kinds, Arc::clone(&changed));
        watch.wait_until_ready(DEADLINE).await.expect("the watches list their objects");
        let face = Cluster {
            default_endpoint: "internal".to_owned(),
            endpoints: BTreeMap::new(),
            senders: bursar::rules::senders::Senders::default(),
        };
        let server = ApiServer::new(cluster(), client, Arc::default());
        let effects = Effects {
            clusters: BTreeMap::from([(
                cluster(),
                ClusterEffects { server, watch, face, pods: None, in_use: None, adopted: None },
            )]),
            homes: HomedClient::new("/nonexistent", Duration::from_secs(1)),
            archives: Archives::of(std::path::Path::new("/nonexistent"), None),
        };
        Self { namespace: namespace.to_owned(), ledger: LedgerState::default(), effects, changed, events: Vec::new() }
    }

    pub fn watch(&self) -> &ClusterWatch {
        &self.effects.clusters[&cluster()].watch
    }

    pub fn key(&self, api_version: &str, kind: &str, name: &str) -> ObjectKey {
        let kind = ObjectKind::of(api_version, kind);
        let namespaced = everywhere(&kind).is_none_or(|kind| kind.namespaced);
        ObjectKey::from(ObjectName {
            cluster: cluster(),
            kind,
            namespace: namespaced.then(|| self.namespace.as_str().into()),
            name: name.into(),
        })
    }

    /// Returns the `Apply` action that a plan would contain, with the uid that the watch shows.
    pub fn apply(&self, manifest: &Value) -> Action {
        let text = |value: &Value| value.as_str().expect("the value is a string").to_owned();
        let key =
            self.key(&text(&manifest["apiVersion"]), &text(&manifest["kind"]), &text(&manifest["metadata"]["name"]));
        let uid = self.observed(&key).map(|found| found.uid.to_string());
        Action::Apply { key, manifest: manifest.into(), wanted: digest(manifest).into(), uid, reason: Reason::Missing }
    }

    pub fn delete(&self, key: &ObjectKey) -> Action {
        let uid = self.observed(key).expect("the cluster shows the object").uid.to_string();
        Action::Delete { key: key.clone(), uid, reason: Reason::Orphaned }
    }

    pub fn observed(&self, key: &ObjectKey) -> Option<ObservedObject> {
        self.watch().inventory().expect("the cluster is ready").objects.get(key).cloned()
    }

    pub fn namespace_manifest(&self) -> Value {
        manifest("v1", "Namespace", &self.namespace, json!({}))
    }

    pub async fn run(&mut self, actions: Vec<Action>) -> Report {
        self.run_plan(&approved(actions)).await
    }

    pub async fn run_plan(&mut self, plan: &ApprovedPlan) -> Report {
        let (recorder, mut records) = Recorder::channel();
        let before = self.ledger.clone();
        let stop = CancellationToken::new();
        let run =
            Run { ledger: &before, now: NOW, clock: || ENDED, extent: Extent::All, stop: &stop, slice_over: &stop };
        let executed = async {
            let report = execute(plan, &self.effects, run, &recorder).await;
            drop(recorder);
            report
        };
        let ledger = &mut self.ledger;
        let events = &mut self.events;
        let stored = async {
            while let Some(record) = records.recv().await {
                ledger.apply_all(&record.changes);
                events.extend(record.events);
                record.stored.send(()).expect("the executor waits");
            }
        };
        tokio::join!(executed, stored).0
    }

    pub async fn must(&mut self, actions: Vec<Action>) {
        let report = self.run(actions).await;
        assert_eq!((report.done, report.failed), (1, 0), "{:?}", self.ledger.failures);
    }

    pub async fn must_fail(&mut self, actions: Vec<Action>) -> Failure {
        let report = self.run(actions).await;
        assert_eq!((report.done, report.failed), (0, 1));
        self.ledger.failures.values().next().expect("the step has failed").clone()
    }

    /// Waits until the object that the watch shows satisfies `is`.
    pub async fn until(&self, what: &str, key: &ObjectKey, is: impl Fn(Option<&ObservedObject>) -> bool) {
        let begun = tokio::time::Instant::now();
        loop {
            if self.watch().inventory().is_some_and(|inventory| is(inventory.objects.get(key))) {
                return;
            }
            assert!(begun.elapsed() < DEADLINE, "the watch did not show within {DEADLINE:?}: {what}");
            let _ = tokio::time::timeout(Duration::from_millis(100), self.changed.notified()).await;
        }
    }

    /// Whether the ledger's record agrees with what the watch shows, so that the next plan has nothing to do.
    pub fn is_settled(&self, key: &ObjectKey) -> bool {
        let (record, found) = (self.ledger.objects.get(key), self.observed(key));
        record.zip(found).is_some_and(|(record, found)| record.uid == found.uid && record.observed == found.digest)
    }

    pub fn get(&self, kind: &str, name: &str) -> Value {
        let text = kubectl(&["get", kind, name, "-n", &self.namespace, "-o", "json", "--show-managed-fields"]);
        serde_json::from_str(&text).expect("the text is JSON")
    }

    /// Returns an object without `status`, `resourceVersion` and the managers of subresources, because controllers
    /// change these at any time.
    pub fn without_status(&self, kind: &str, name: &str) -> Value {
        let mut object = self.get(kind, name);
        object["status"].take();
        object["metadata"]["resourceVersion"].take();
        if let Some(managers) = object["metadata"]["managedFields"].as_array_mut() {
            managers.retain(|manager| manager["subresource"].is_null());
        }
        object
    }

    pub fn create(&self, object: &Value) {
        Servers::shared().cluster.run(&["create", "-n", &self.namespace, "-f", "-"], &object.to_string());
    }
}

pub fn cluster() -> ClusterName {
    ClusterName("test".into())
}

async fn client() -> kube::Client {
    connect(config().await).expect("the kubeconfig is valid")
}

/// Returns the client configuration of the cluster's administrator.
pub async fn config() -> kube::Config {
    let file = &Servers::shared().cluster.admin_kubeconfig;
    let kubeconfig = kube::config::Kubeconfig::read_from(file).expect("the kubeconfig is readable");
    let options = kube::config::KubeConfigOptions::default();
    kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("the kubeconfig is valid")
}

pub fn kubectl(arguments: &[&str]) -> String {
    Servers::shared().cluster.run(arguments, "")
}

/// A manifest with our label.
pub fn manifest(api_version: &str, kind: &str, name: &str, rest: Value) -> Value {
    let mut manifest = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "bursar"}},
    });
    if let (Value::Object(manifest), Value::Object(rest)) = (&mut manifest, rest) {
        manifest.extend(rest);
    }
    manifest
}

pub fn approved(actions: Vec<Action>) -> ApprovedPlan {
    approved_for([("foo", actions)])
}

/// Returns a plan for several tools that the guard has approved.
pub fn approved_for<'a>(tools: impl IntoIterator<Item = (&'a str, Vec<Action>)>) -> ApprovedPlan {
    let bounds = Bounds {
        unconfined: BTreeSet::new(),
        pods_per_cycle: 0,
        idle_per_cycle: 0,
        limits: bursar::plan::testing::policy().limits,
        tenants: BTreeMap::new(),
        members: BTreeMap::new(),
        completeness: BTreeMap::new(),
        groups: BTreeMap::new(),
        spent: Vec::new(),
        approvals: BTreeMap::new(),
        refusals: Vec::new(),
        realm_refusals: Vec::new(),
        paces: BTreeMap::new(),
        stopped: BTreeSet::new(),
        revisions: BTreeMap::new(),
        failing: BTreeSet::new(),
        doubts: Vec::new(),
    };
    let account = |(name, actions): (&str, Vec<Action>)| {
        let (narrowing, actions): (Vec<_>, Vec<_>) =
            actions.into_iter().partition(|action| action.side() == Side::Narrowing);
        planned(name, narrowing, actions)
    };
    let (approved, refused) =
        guard(Plan { accounts: tools.into_iter().map(account).collect(), ..Plan::default() }, &bounds, NOW);
    assert!(refused.is_empty(), "{refused:?}");
    approved
}

/// Returns the plan of one tool before the guard judges it.
pub fn planned(name: &str, narrowing: Vec<Action>, actions: Vec<Action>) -> AccountPlan {
    let key = |action: &Action| match action {
        Action::Apply { key, .. } | Action::Delete { key, .. } => key.namespace.as_deref().map(str::to_owned),
        _ => None,
    };
    let namespaces = narrowing.iter().chain(&actions).filter_map(key).collect();
    let before = before(name);
    let intent = AccountIntent::new(before.account_name(), "tools".to_owned(), 1);
    AccountPlan { namespaces, ..AccountPlan::new(Arc::new(before), intent, narrowing, actions) }
}

fn before(name: &str) -> Account {
    let id = AccountId(format!("id-of-{name}").into());
    let name = AccountName { kind: AccountKind::Tool, name: name.to_owned() };
    Account {
        state: Lifecycle::Active,
        generation: 1,
        ..Account::new(id, name, "ldap", DirectoryId("d".to_owned()), NOW)
    }
}

pub fn quota(pods: &str) -> Value {
    manifest("v1", "ResourceQuota", "bursar", json!({"spec": {"hard": {"pods": pods}}}))
}
