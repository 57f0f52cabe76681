//! A control plane for these tests only, on which `bursar init` was run once, and kubectl as the daemon.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::world::runtime;
use bursar::bootstrap::{AccessError, InitReport, InitRequest, init};
use bursar::execute::request::{ApiServer, Ask};
use bursar::identity::ClusterName;
use bursar::ledger::LedgerState;
use bursar::settings::Settings;
use bursar_testkit::control_plane::{ControlPlane, ControlPlaneOptions};
use bursar_testkit::process::run;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const LEDGER: &str = "11111111-2222-3333-4444-555555555555";

/// Classes with roles, a Secret and a further kind that the daemon needs rights for.
const CONFIG: &str = r#"
site = "access"
state_dir = "@FOLDER@/state"
[[source]]
name = "people"
type = "ldap"
preset = "toolforge"
urls = ["ldaps://ldap.example.org"]
[source.tools]
base = "ou=tools,dc=example,dc=org"
[source.users]
base = "ou=people,dc=example,dc=org"
[cluster.test]
[cluster.test.endpoint.internal]
url = "@URL@"
ca = "@CA@"
[class.tool]
from = "tools"
clusters = ["test"]
namespace = "tool-{name}"
roles = ["bursar-tenant"]
service_account_roles = ["view"]
home = { prefix = "/data/project", kubeconfig = ".kube/config", create = false }
credential = { kind = "certificate", lifetime = "7d", endpoints = ["internal"] }
[class.admin]
from = "users"
clusters = ["test"]
roles = ["view"]
impersonate = { users = ["bursar:cluster-admin"] }
[reaper.pods]
enabled = true
"#;

/// A class that adopts namespaces.
const ADOPTING: &str = r#"
[class.lab]
from = "adopted"
clusters = ["test"]
selector = "lab=yes"
owner_annotation = "owner"
roles = ["edit"]
pod_security = "baseline"
limit_range = { container = { default = { cpu = "1" } } }
[class.lab.admission]
claims = { read_write_many = ["nfs"] }
"#;

/// The lines of a class that give administrators certificates.
const CERTIFIED: &str = r#"home = { prefix = "/home", kubeconfig = ".kube/config", create = false }
credential = { kind = "certificate", lifetime = "7d", endpoints = ["internal"] }
"#;

const MANIFESTS: &str = "apiVersion: v1
kind: Secret
metadata: {name: pull}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: site}
";

pub struct Site {
    pub cluster: ControlPlane,
    _folder: TempDir,
    pub settings: Settings,
    /// The report of the first `init`.
    pub first: InitReport,
}

impl Site {
    pub fn shared() -> &'static Self {
        static SITE: OnceLock<Option<Site>> = OnceLock::new();
        // If `start` panics, the message is printed where it happens. `start` needs its own runtime, so it has its own
        // thread: some callers already run in one.
        let site = SITE.get_or_init(|| std::thread::spawn(Self::start).join().ok());
        site.as_ref().expect("the site that these tests share did not start: see the first failure")
    }

    /// Locks the mark of generations: `init` removes a mark that is not signed, so other tests must not write one
    /// meanwhile.
    pub fn turn_of_the_mark() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a site for one test, with this list of administrators and a class that adopts.
    pub fn alone_with(administrators: &str) -> Self {
        let listed = administrators.split(',').map(str::to_owned).collect();
        let config = CONFIG.replace("[reaper.pods]", &format!("{ADOPTING}[reaper.pods]"));
        let config = config.replace("impersonate =", &format!("{CERTIFIED}impersonate ="));
        std::thread::spawn(move || Self::start_with(&config, Some(&listed))).join().expect("the thread does not panic")
    }

    fn start() -> Self {
        Self::start_with(CONFIG, None)
    }

    fn start_with(config: &str, administrators: Option<&BTreeSet<String>>) -> Self {
        let cluster = ControlPlane::start(&ControlPlaneOptions::default());
        let folder = TempDir::new().expect("the system allows a temporary folder");
        std::fs::create_dir_all(folder.path().join("manifests/tool")).expect("the parent folder is writable");
        std::fs::write(folder.path().join("manifests/tool/all.yaml"), MANIFESTS).expect("the folder is writable");
        let config = config
            .replace("@FOLDER@", &folder.path().display().to_string())
            .replace("@URL@", &cluster.url)
            .replace("@CA@", &cluster.ca_pem.display().to_string());
        let path = folder.path().join("bursar.toml");
        std::fs::write(&path, config).expect("the folder is writable");
        let settings = Settings::load(&path).unwrap_or_else(|error| panic!("{error}"));
        let _ = rustls::crypto::ring::default_provider().install_default();
        wait_for("the role edit is aggregated", DEADLINE, || {
            let rules = cluster.run(&["get", "clusterrole", "edit", "-o", "jsonpath={.rules}"], "");
            rules.contains("networkpolicies").then_some(())
        });
        let first = init_with(&cluster, &settings, LEDGER, administrators).unwrap_or_else(|error| panic!("{error:?}"));
        let site = Self { cluster, settings, first, _folder: folder };
        let tenant = |name: &str, state: &str| {
            site.must("apply", &namespace(name, &json!({"bursar.dev/class": "tool"}), state));
        };
        tenant("tool-foo", "active");
        tenant("tool-asleep", "suspended");
        tenant("tool-read", "suspended");
        site.cluster.run(&["create", "namespace", "foreign"], "");
        site
    }

    pub fn init(&self, ledger: &str) -> Result<InitReport, AccessError> {
        init_with(&self.cluster, &self.settings, ledger, None)
    }

    /// Returns the arguments of `init`, with another path for the daemon's kubeconfig.
    pub fn request<'a>(&'a self, ledger: &'a LedgerState, daemon_kubeconfig: &'a Path) -> InitRequest<'a> {
        init_request(&self.cluster, &self.settings, ledger, daemon_kubeconfig)
    }

    pub fn daemon_kubeconfig(&self) -> PathBuf {
        self.settings.clusters[&name()].clone()
    }

    /// Runs `kubectl` as the daemon.
    pub fn daemon(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.cluster.kubectl_as(&self.daemon_kubeconfig());
        command.args(arguments);
        run(command, input)
    }

    fn write(&self, verb: &str, object: &Value) -> Output {
        let arguments: &[&str] = match verb {
            "apply" => &["apply", "--server-side", "--force-conflicts", "--field-manager=bursar", "-f", "-"],
            // Claims and volumes are deleted when their controllers remove the finalizers.
            "delete" => &["delete", "--wait=false", "-f", "-"],
            other => &[other, "-f", "-"],
        };
        self.daemon(arguments, &object.to_string())
    }

    /// Checks that the daemon can do this.
    pub fn must(&self, verb: &str, object: &Value) {
        let output = self.write(verb, object);
        assert!(output.status.success(), "{verb} {object}: {}", said(&output));
    }

    /// Checks that `by` refuses this to the daemon.
    pub fn refused(&self, verb: &str, object: &Value, by: &str) {
        let output = self.write(verb, object);
        assert!(!output.status.success(), "{verb} {object} was allowed");
        assert!(said(&output).contains(by), "{verb} {object}: {}", said(&output));
    }

    /// Deletes objects by label, as the reaper deletes the objects of a job.
    pub fn delete_labelled(&self, path: &str, selector: &str) -> Result<Value, String> {
        self.asked(path, Ask::DeleteSelected { selector: &format!("labelSelector={selector}") })
    }

    /// Sends a JSON merge patch as the daemon does. kubectl would read the object first, which the daemon does not.
    pub fn patch(&self, path: &str, change: &Value) -> Result<(), String> {
        self.asked(path, Ask::Merge(change)).map(drop)
    }

    fn asked(&self, path: &str, ask: Ask<'_>) -> Result<Value, String> {
        runtime().block_on(async {
            let client = bursar::bootstrap::client(&self.daemon_kubeconfig()).await.expect("the kubeconfig is valid");
            let server = ApiServer::new(name(), client, std::sync::Arc::default());
            server.ask(path, ask).await.map(|answer| answer.object).map_err(|error| error.to_string())
        })
    }

    pub fn can(&self, arguments: &[&str]) {
        let output = self.daemon(arguments, "");
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    }

    pub fn cannot(&self, arguments: &[&str], by: &str) {
        let output = self.daemon(arguments, "");
        assert!(!output.status.success(), "{arguments:?} was allowed: {}", said(&output));
        assert!(said(&output).contains(by), "{arguments:?}: {}", said(&output));
    }
}

pub fn name() -> ClusterName {
    ClusterName("test".into())
}

fn init_with(
    cluster: &ControlPlane,
    settings: &Settings,
    ledger_id: &str,
    administrators: Option<&BTreeSet<String>>,
) -> Result<InitReport, AccessError> {
    let ledger = empty(ledger_id);
    let request = init_request(cluster, settings, &ledger, &settings.clusters[&name()]);
    runtime().block_on(init(InitRequest { administrators, ..request }))
}

/// Returns a ledger with this id and nothing else.
pub fn empty(ledger_id: &str) -> LedgerState {
    LedgerState { ledger_id: ledger_id.to_owned(), ..LedgerState::default() }
}

fn init_request<'a>(
    cluster: &'a ControlPlane,
    settings: &'a Settings,
    ledger: &'a LedgerState,
    daemon_kubeconfig: &'a Path,
) -> InitRequest<'a> {
    static NAME: OnceLock<ClusterName> = OnceLock::new();
    InitRequest {
        policy: &settings.policy,
        cluster: NAME.get_or_init(name),
        admin_kubeconfig: &cluster.admin_kubeconfig,
        daemon_kubeconfig,
        state_dir: &settings.state_dir,
        ledger,
        administrators: None,
    }
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn namespace(name: &str, labels: &Value, state: &str) -> Value {
    let mut labels = labels.clone();
    labels["app.kubernetes.io/managed-by"] = json!("bursar");
    labels["pod-security.kubernetes.io/enforce"] = json!("restricted");
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": labels, "annotations": {"bursar.dev/state": state}},
    })
}

/// Returns an object with Bursar's label.
pub fn ours(api_version: &str, kind: &str, name: &str, namespace: Option<&str>, rest: &Value) -> Value {
    let mut object = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "bursar"}},
    });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    if let (Some(object), Some(rest)) = (object.as_object_mut(), rest.as_object()) {
        object.extend(rest.clone());
    }
    object
}

/// Returns a `RoleBinding` (in a namespace) or `ClusterRoleBinding` to a `ClusterRole`.
pub fn binding(namespace: Option<&str>, role: &str, kind: &str, subject: &str) -> Value {
    let group = if kind == "ServiceAccount" { "" } else { "rbac.authorization.k8s.io" };
    let mut subject = json!({"apiGroup": group, "kind": kind, "name": subject});
    if kind == "ServiceAccount" {
        subject["namespace"] = json!(namespace);
    }
    let rest = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    });
    let what = if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
    ours("rbac.authorization.k8s.io/v1", what, &format!("bursar-{role}"), namespace, &rest)
}

/// Returns the binding of the role by which an archive reads a suspended namespace.
pub fn archive_binding(namespace: &str, kind: &str, subject: &str) -> Value {
    let mut binding = binding(Some(namespace), "bursar-archive", kind, subject);
    binding["metadata"]["name"] = json!("bursar:archive");
    binding
}

/// Returns a request for a client certificate of tool foo.
pub fn request(name: &str, signer: &str) -> Value {
    use base64::Engine as _;
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "tool:foo");
    let request = params.serialize_request(&key).and_then(|request| request.pem()).expect("the request is valid");
    let request = base64::engine::general_purpose::STANDARD.encode(request);
    let rest = json!({"spec": {
        "request": request, "usages": ["client auth", "digital signature"], "signerName": signer,
        "expirationSeconds": 3600,
    }});
    ours("certificates.k8s.io/v1", "CertificateSigningRequest", name, None, &rest)
}
