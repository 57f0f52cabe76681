//! A control plane for these tests only, with the webhook installed and running. The webhook gets every request of its
//! cluster, and requests of other tests must not wait for it.
//!
//! A test that stops the webhook runs alone ([`Site::alone`]); the others share it ([`Site::shared`]).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bursar::bootstrap::webhook::{Kept, WebhookRequest, keep, write_outside};
use bursar::bootstrap::{self, InitRequest, init};
use bursar::contract::{Identity, Sealer, TenantState, annotate};
use bursar::daemon;
use bursar::errors::chain;
use bursar::identity::{AccountId, ClusterName, DirectoryId, NamespaceName, PosixIdentity};
use bursar::ledger::LedgerState;
use bursar::policy::Policy;
use bursar::settings::Settings;
use bursar::store::Store;
use bursar_testkit::binaries::program;
use bursar_testkit::control_plane::{ControlPlane, ControlPlaneOptions};
use bursar_testkit::folder::Folder;
use bursar_testkit::ports::free_port;
use bursar_testkit::process::{Process, run};
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

pub struct Site {
    webhook: Option<Process>,
    pub cluster: ControlPlane,
    pub settings: Settings,
    ledger: LedgerState,
    pub port: u16,
    health: u16,
    config: String,
    folder: Folder,
}

fn site() -> &'static RwLock<Option<Site>> {
    static SITE: OnceLock<RwLock<Option<Site>>> = OnceLock::new();
    SITE.get_or_init(|| RwLock::new(catch_unwind(Site::start).ok()))
}

pub struct Shared(RwLockReadGuard<'static, Option<Site>>);
pub struct Alone(RwLockWriteGuard<'static, Option<Site>>);

const STARTS: &str = "the site that these tests share did not start: see the first failure";

impl std::ops::Deref for Shared {
    type Target = Site;
    fn deref(&self) -> &Site {
        self.0.as_ref().expect(STARTS)
    }
}

impl std::ops::Deref for Alone {
    type Target = Site;
    fn deref(&self) -> &Site {
        self.0.as_ref().expect(STARTS)
    }
}

impl std::ops::DerefMut for Alone {
    fn deref_mut(&mut self) -> &mut Site {
        self.0.as_mut().expect(STARTS)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let Some(site) = self.0.as_mut() else { return };
        // A second panic would abort all tests.
        let restored = catch_unwind(AssertUnwindSafe(|| site.restore()));
        if let Err(panic) = restored
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl Site {
    /// Borrows the site together with other tests.
    pub fn shared() -> Shared {
        Shared(site().read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Borrows the site for one test alone. Afterwards the webhook is installed and started again.
    pub fn alone() -> Alone {
        Alone(site().write().unwrap_or_else(PoisonError::into_inner))
    }

    fn start() -> Self {
        // With these arguments, the API server knows `schedulingGroup` of pods.
        let groups = ["--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha2=true"];
        let api_server_arguments: Vec<String> = groups.map(str::to_owned).into();
        Self::start_with(|_, _| ControlPlaneOptions { api_server_arguments, ..ControlPlaneOptions::default() })
    }

    /// Makes a separate site. `options` gets a folder and the port that the webhook will have.
    pub fn start_with(options: impl FnOnce(&Path, u16) -> ControlPlaneOptions) -> Self {
        let folder = Folder::create("admission");
        let (port, health) = (free_port(), free_port());
        let cluster = ControlPlane::start(&options(folder.path(), port));
        // The classes of the cases. The cases call the cluster `prod`, these tests call it `test`.
        let (_, classes) =
            include_str!("../../data/admission/classes.toml").split_once("\n\n").expect("the text has this part");
        let classes = &classes[classes.find("[class.").expect("the text has this part")..];
        let config = include_str!("site.toml")
            .replace("@CLASSES@", &classes.replace("\"prod\"", "\"test\""))
            .replace("@FOLDER@", &folder.path().display().to_string())
            .replace("@URL@", &cluster.url)
            .replace("@CA@", &cluster.ca_pem.display().to_string());
        let deployment =
            |name: &str| format!("{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: '{name}'}}}}");
        let autoscaler = "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: queue}, \
            spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: 'queue-{name}'}}}";
        for (class, file, text) in [
            ("shop", "proxy.yaml", deployment("proxy-{name}")),
            ("trial", "queue.yaml", deployment("queue-{name}")),
            ("trial", "fixed.yaml", deployment("fixed-{name}")),
            ("trial", "autoscaler.yaml", autoscaler.to_owned()),
        ] {
            let manifests = folder.path().join("manifests").join(class);
            std::fs::create_dir_all(&manifests).expect("the folder is writable");
            std::fs::write(manifests.join(file), text).expect("the folder is writable");
        }
        let path = folder.path().join("bursar.toml");
        std::fs::write(&path, &config).expect("the folder is writable");
        let settings = Settings::load(&path).unwrap_or_else(|error| panic!("{error}"));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ledger = LedgerState::default();
        let mut site = Self { webhook: None, cluster, settings, ledger, port, health, config, folder };
        site.ledger = site.initialise();
        // The first authority is more than two years old, so the second installation makes its successor, which the API
        // server has trusted for two hours.
        site.install_at(daemon::now() - SignedDuration::from_hours(800 * 24));
        site.install_at(daemon::now() - SignedDuration::from_hours(2));
        site.start_webhook();
        site.tenant("tool", "foo", 52503, TenantState::Active);
        site.tenant("tool", "bar", 52504, TenantState::Active);
        site.tenant("trial", "try", 52505, TenantState::Active);
        site.cluster
            .run(&["create", "clusterrolebinding", "meddler", "--clusterrole=cluster-admin", "--user=meddler"], "");
        site
    }

    fn initialise(&self) -> LedgerState {
        runtime().block_on(async {
            let (store, _lock) = Store::create(&self.settings.state_dir).await.expect("the ledger can be opened");
            let ledger = store.state().clone();
            store.close().await.expect("the ledger closes");
            let request = InitRequest {
                policy: &self.settings.policy,
                cluster: &name(),
                admin_kubeconfig: &self.cluster.admin_kubeconfig,
                daemon_kubeconfig: &self.settings.clusters[&name()],
                state_dir: &self.settings.state_dir,
                ledger: &ledger,
                administrators: None,
            };
            init(request).await.unwrap_or_else(|error| panic!("{error:?}"));
            ledger
        })
    }

    /// Does what `bursar webhook install --url … --write …` does at time `now`, whether or not the webhook runs.
    pub fn install_at(&self, now: Timestamp) {
        let sealer = self.sealer();
        let cluster = name();
        let request = WebhookRequest {
            policy: &self.settings.policy,
            cluster: &cluster,
            ledger: &self.ledger,
            state_dir: &self.settings.state_dir,
            sealer: &sealer,
            now,
        };
        runtime().block_on(async {
            let kubeconfig = &self.settings.clusters[&name()];
            let client = bootstrap::client(kubeconfig).await.expect("the kubeconfig is valid");
            let (url, dir) = (self.url(), self.dir());
            let installed = async {
                write_outside((&client, None), kubeconfig, request, (&url, &dir)).await?.enforce(&client, request).await
            };
            installed.await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        });
    }

    /// Does what the daemon does every 15 minutes, with this policy.
    pub fn keep(&self, policy: &Policy) -> Kept {
        let (sealer, cluster) = (self.sealer(), name());
        let (ledger, state_dir) = (&self.ledger, self.settings.state_dir.as_path());
        let request =
            WebhookRequest { policy, cluster: &cluster, ledger, state_dir, sealer: &sealer, now: daemon::now() };
        runtime().block_on(async {
            let client = bootstrap::client(&self.settings.clusters[&name()]).await.expect("the kubeconfig is valid");
            keep(&client, request, false).await.unwrap_or_else(|error| panic!("{}", chain(&error)))
        })
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Returns the folder with the webhook's files.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("webhook")
    }

    pub fn start_webhook(&mut self) {
        let mut command = Command::new(program("bursar-webhook"));
        command.arg("--dir").arg(self.dir()).arg("--listen").arg(format!("127.0.0.1:{}", self.port));
        command.arg("--health").arg(format!("127.0.0.1:{}", self.health));
        let webhook = Process::start("bursar-webhook", &command, &self.log());
        webhook.wait_until("200 from /readyz", DEADLINE, || self.health("/readyz").0 == 200);
        self.webhook = Some(webhook);
    }

    /// Returns the CA bundle (PEM) with which the API server verifies the webhook.
    pub fn authorities(&self) -> String {
        let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
        let text = self.cluster.run(&["get", "mutatingwebhookconfiguration", "bursar-webhook", "-o", path], "");
        let pem =
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).expect("the value is base64");
        String::from_utf8(pem).expect("PEM is UTF-8")
    }

    pub fn log(&self) -> PathBuf {
        self.folder.path().join("webhook.log")
    }

    pub fn webhook(&self) -> &Process {
        self.webhook.as_ref().expect("the webhook was started")
    }

    /// Kills the webhook with SIGKILL.
    pub fn kill_webhook(&mut self) {
        self.webhook = None;
    }

    /// Adds lines to the configuration. Lines that were added before are removed.
    pub fn configure(&self, more: &str) {
        let text = format!("{}\n{more}", self.config);
        std::fs::write(self.folder.path().join("bursar.toml"), text).expect("the folder is writable");
    }

    fn restore(&mut self) {
        self.webhook = None;
        self.configure("");
        self.install_at(daemon::now());
        self.start_webhook();
        wait_for("webhook and policies are in force", DEADLINE, || {
            self.bursar(&["webhook", "selftest"]).status.success().then_some(())
        });
    }

    /// Runs `bursar webhook install` for a webhook outside the cluster.
    pub fn install(&self) {
        let installed = self.try_install();
        assert!(installed.status.success(), "{}{}", out(&installed), said(&installed));
    }

    /// Like [`Self::install`], but returns the output even if it failed.
    pub fn try_install(&self) -> Output {
        let dir = self.dir();
        let dir = dir.to_str().expect("the path is UTF-8");
        self.bursar(&["webhook", "install", "--cluster", "test", "--url", &self.url(), "--write", dir])
    }

    /// Runs `bursar webhook uninstall` as the cluster's administrator.
    pub fn uninstall(&self, more: &[&str]) -> String {
        let admin = self.cluster.admin_kubeconfig.to_str().expect("the path is UTF-8");
        self.must(&[&["webhook", "uninstall", "--admin-kubeconfig", admin], more].concat())
    }

    /// Runs `bursar` with the site's configuration.
    pub fn bursar(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command.arg("--config").arg(self.folder.path().join("bursar.toml")).args(arguments);
        run(command, "")
    }

    pub fn must(&self, arguments: &[&str]) -> String {
        let output = self.bursar(arguments);
        assert!(output.status.success(), "bursar {arguments:?} ({}): {}{}", output.status, out(&output), said(&output));
        out(&output)
    }

    /// Returns status and body of a GET on the webhook's health port.
    pub fn health(&self, path: &str) -> (u16, String) {
        let output = Command::new("curl")
            .args(["-s", "-w", "\n%{http_code}", &format!("http://127.0.0.1:{}{path}", self.health)])
            .output()
            .expect("curl is installed");
        let text = out(&output);
        let (body, status) = text.trim_end().rsplit_once('\n').unwrap_or(("", &text));
        (status.parse().unwrap_or(0), body.to_owned())
    }

    /// Returns the value of one metric.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.health("/metrics");
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    pub fn sealer(&self) -> Sealer {
        Sealer::from_seed(&std::fs::read(self.settings.state_dir.join("seal.key")).expect("the seal key is readable"))
            .expect("the seal key is valid")
    }

    /// Creates the sealed namespace of a new tenant, and binds role `bursar-tenant` to its people. Returns its name.
    pub fn tenant(&self, class: &str, tool: &str, uid: u32, state: TenantState) -> String {
        let namespace = format!("{class}-{tool}");
        let posix = (uid, uid, &[50_000, 50_001][..]);
        let level = if class == "tool" { "restricted" } else { "privileged" };
        self.sealed(&identity(&namespace, &format!("tool:{tool}"), posix, state), level);
        namespace
    }

    /// Applies a tenant's namespace as the daemon does, with this Pod Security level, and binds `bursar-tenant` to its
    /// group.
    pub fn sealed(&self, identity: &Identity, level: &str) {
        let namespace = identity.namespace.to_string();
        let manifest = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": namespace,
                "labels": {
                    "app.kubernetes.io/managed-by": "bursar", "bursar.dev/class": identity.class,
                    "pod-security.kubernetes.io/enforce": level,
                },
                "annotations": annotate(identity, &self.sealer()),
            },
        });
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=bursar", "-f", "-"];
        let mut command = self.cluster.kubectl_as(&self.settings.clusters[&name()]);
        command.args(apply);
        let applied = run(command, &manifest.to_string());
        assert!(applied.status.success(), "{}", said(&applied));
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "bursar-bursar-tenant", "namespace": namespace,
                "labels": {"app.kubernetes.io/managed-by": "bursar"}},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bursar-tenant"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group(&identity.account.to_string())}],
        });
        self.cluster.run(&apply, &binding.to_string());
        wait_for("the namespace has its default service account", DEADLINE, || {
            let found = self.cluster.run(&["get", "serviceaccounts", "-n", &namespace, "-o", "name"], "");
            found.contains("serviceaccount/default").then_some(())
        });
    }

    /// Runs `kubectl` with the impersonation flags `who`.
    pub fn kubectl_as(&self, who: &[&str], arguments: &[&str], input: &str) -> Output {
        let mut command = self.cluster.kubectl();
        command.args(who).args(arguments);
        run(command, input)
    }

    /// Runs `kubectl` as a member of a tool.
    pub fn tool(&self, tool: &str, arguments: &[&str], input: &str) -> Output {
        let (user, group) = (format!("--as=tool:{tool}"), format!("--as-group={}", group(&format!("tool:{tool}"))));
        self.kubectl_as(&[&user, &group, "--as-group=system:authenticated"], arguments, input)
    }

    /// Runs `kubectl` as an administrator without an exemption.
    pub fn meddler(&self, arguments: &[&str], input: &str) -> Output {
        self.kubectl_as(&["--as=meddler"], arguments, input)
    }

    /// Creates a pod as tool foo. Returns the stored pod, or what kubectl wrote to stderr.
    pub fn create(&self, pod: &Value) -> Result<Value, String> {
        let output = self.tool("foo", &["create", "-f", "-", "-o", "json"], &pod.to_string());
        if output.status.success() {
            return Ok(serde_json::from_slice(&output.stdout).expect("the text is JSON"));
        }
        Err(said(&output))
    }

    pub fn delete(&self, kind: &str, name: &str, namespace: &str) {
        self.cluster.run(&["delete", kind, name, "-n", namespace, "--wait=false", "--grace-period=0", "--force"], "");
    }

    pub fn daemon_kubeconfig(&self) -> &Path {
        &self.settings.clusters[&name()]
    }
}

fn group(account: &str) -> String {
    format!("bursar:{account}#1")
}

/// Returns the identity of an account with a uid, a gid and groups. The part of `namespace` before `-` is the class.
pub fn identity(namespace: &str, account: &str, posix: (u32, u32, &[u32]), state: TenantState) -> Identity {
    let (uid, gid, groups) = posix;
    let gid_of = |gid: u32| i64::from(gid).try_into().expect("the number is valid");
    let (class, name_of) = namespace.split_once('-').expect("the name has two parts");
    Identity {
        cluster: name(),
        namespace: NamespaceName::try_from(namespace.to_owned()).expect("the name is valid"),
        id: AccountId(name_of.into()),
        directory_id: DirectoryId(name_of.to_owned()),
        account: account.parse().expect("the account is valid"),
        class: class.to_owned(),
        posix: Some(PosixIdentity {
            uid: i64::from(uid).try_into().expect("the number is valid"),
            gid: gid_of(gid),
            groups: groups.iter().copied().map(gid_of).collect(),
        }),
        generation: 1,
        state,
        exceptions: std::collections::BTreeSet::new(),
    }
}

pub fn name() -> ClusterName {
    ClusterName("test".into())
}

/// The benchmarks have this file without the world of the tests, which has the same function.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system allows a runtime")
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns a pod that has only an image.
pub fn pod(name: &str) -> Value {
    pod_in("tool-foo", name)
}

pub fn pod_in(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "web", "image": "registry.example.org/web"}]},
    })
}
