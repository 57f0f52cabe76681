//! A Kubernetes control plane: etcd, kube-apiserver and kube-controller-manager, without nodes.
//!
//! Everything that Bursar does to a cluster has its real effect: certificates are signed, namespaces are deleted,
//! quotas are counted, and admission judges pods. Pods are stored but never run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::audit::{self, Request};
use crate::folder::Folder;
use crate::pki::{Authority, Identity, write_private, write_public};
use crate::ports::free_port;
use crate::process::{Process, run};
use crate::ready::{DEADLINE, wait_for};
use crate::{binaries, https, kubeconfig};

/// On an idle machine, the API server is ready within 4 s. Other builds may make this machine slower.
const START_DEADLINE: Duration = Duration::from_mins(2);

/// Logs requests without their bodies. That is enough to count them by user and verb.
const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
 "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}"#;

/// The differences from a default control plane.
#[derive(Debug, Clone)]
pub struct ControlPlaneOptions {
    /// `--kube-api-qps` of the controller manager. With Kubernetes' default of 20 (burst 30), at most 20 certificates
    /// are signed per second, and controllers take 5 s to start. Tests use 200 (300); benchmarks report their value.
    pub controller_qps: u32,
    /// `--kube-api-burst` of the controller manager.
    pub controller_burst: u32,
    /// Further arguments of the API server.
    pub api_server_arguments: Vec<String>,
    /// PEM of another authority that the administrator and the controllers trust, so that the API server can be given a
    /// certificate from it ([`ControlPlane::serve_as`]).
    pub further_ca: String,
}

impl Default for ControlPlaneOptions {
    fn default() -> Self {
        Self { controller_qps: 200, controller_burst: 300, api_server_arguments: Vec::new(), further_ca: String::new() }
    }
}

/// A running control plane, or an existing cluster (`BURSAR_TEST_EXISTING_CLUSTER=1` with `KUBECONFIG`).
#[derive(Debug)]
pub struct ControlPlane {
    /// `https://localhost:PORT`. The certificate is also valid for 127.0.0.1.
    pub url: String,
    /// A kubeconfig of user `admin` in group `system:masters`, with embedded certificates.
    pub admin_kubeconfig: PathBuf,
    /// The authority that signs the API server's certificate and all client certificates.
    pub ca_pem: PathBuf,
    /// The API server's audit log: one JSON event per line for each answered request. `None` for an existing cluster.
    pub audit_log: Option<PathBuf>,
    kubectl: PathBuf,
    // Dropped in this order, so that no process logs that its server is missing.
    controller_manager: Option<Process>,
    api_server: Option<Process>,
    etcd: Option<Process>,
    _folder: Option<Folder>,
}

impl ControlPlane {
    /// Starts a control plane in its own temporary folder.
    #[must_use]
    pub fn start(options: &ControlPlaneOptions) -> Self {
        let folder = Folder::create("cluster");
        let cluster = Self::start_in(folder.path(), options);
        Self { _folder: Some(folder), ..cluster }
    }

    /// Like [`Self::start`], but in `directory`, which is kept.
    #[must_use]
    pub fn start_in(directory: &Path, options: &ControlPlaneOptions) -> Self {
        std::fs::create_dir_all(directory).expect("the folder is writable");
        if let Some(existing) = kubeconfig::existing_cluster() {
            return Self::existing(directory, existing);
        }
        let binaries = binaries::control_plane();
        let port = free_port();
        let url = format!("https://localhost:{port}");
        let files = Files::write(directory, &url, &options.further_ca);
        let etcd_url = format!("http://127.0.0.1:{}", free_port());
        let etcd = start_etcd(&binaries, directory, &etcd_url);
        let api_server = start_api_server(&binaries, &files, &etcd_url, port, options);
        let trust = https::trusting(&files.ca);
        api_server.wait_until("200 from /readyz", START_DEADLINE, || {
            https::get(&trust, port, "/readyz").is_ok_and(|(status, _)| status == 200)
        });
        // Started after the API server: a controller manager that finds no API server looks for one only once a second.
        let controller_manager = start_controller_manager(&binaries, &files, options);
        Self {
            url,
            admin_kubeconfig: files.admin_kubeconfig,
            ca_pem: files.ca,
            audit_log: Some(files.audit_log),
            kubectl: binaries.join("kubectl"),
            controller_manager: Some(controller_manager),
            api_server: Some(api_server),
            etcd: Some(etcd),
            _folder: None,
        }
    }

    /// Returns a `kubectl --kubeconfig ADMIN` command without further arguments.
    #[must_use]
    pub fn kubectl(&self) -> Command {
        self.kubectl_as(&self.admin_kubeconfig)
    }

    /// Like [`Self::kubectl`], with another kubeconfig.
    #[must_use]
    pub fn kubectl_as(&self, kubeconfig: &Path) -> Command {
        let mut command = Command::new(&self.kubectl);
        // Garbage collection would take a quarter of the command's time, and the command ends before it needs the
        // memory.
        command.env("GOGC", "off");
        // With the default cache folder, the API discovery would be shared with other clusters that had the same port.
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--cache-dir")
            .arg(self.admin_kubeconfig.with_extension("cache"));
        command
    }

    /// Waits until pods can be created in a namespace: its service account exists and its quotas are counted.
    pub fn wait_for_pods(&self, namespace: &str) {
        wait_for("service account and counted quotas", DEADLINE, || {
            let found = self.run(&["get", "serviceaccounts,resourcequotas", "-n", namespace, "-o", "json"], "");
            let found: Value = serde_json::from_str(&found).expect("the output is a list");
            let found = found["items"].as_array().expect("the output is a list");
            let is_counted = |item: &Value| item["spec"]["hard"].is_null() || item["status"]["hard"].is_object();
            let has_account = found.iter().any(|item| item["metadata"]["name"] == "default");
            (has_account && found.iter().all(is_counted)).then_some(())
        });
    }

    /// Runs `kubectl` as the administrator, with `input` for `-f -`, and returns its output.
    pub fn run(&self, arguments: &[&str], input: &str) -> String {
        let mut command = self.kubectl();
        command.args(arguments);
        let output = run(command, input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {} ({}): {said}", arguments.join(" "), output.status);
        String::from_utf8(output.stdout).expect("kubectl writes UTF-8")
    }

    /// The position in the audit log where the next request will be written.
    #[must_use]
    pub fn audit_mark(&self) -> u64 {
        audit::mark(self.audit_log())
    }

    /// Returns the requests since a mark; 0 is the beginning.
    #[must_use]
    pub fn requests_since(&self, mark: u64) -> Vec<Request> {
        audit::requests_since(self.audit_log(), mark)
    }

    fn audit_log(&self) -> &Path {
        self.audit_log.as_deref().expect("only an existing cluster has no audit log")
    }

    /// The path of `kubectl`, to be printed.
    #[must_use]
    pub fn kubectl_path(&self) -> &Path {
        &self.kubectl
    }

    /// The API server's process. For an existing cluster, this and the other two processes are `None`.
    #[must_use]
    pub fn api_server(&self) -> Option<&Process> {
        self.api_server.as_ref()
    }

    /// Gives the API server another certificate, signed by the authority `ca_pem`, and waits until it is served. The
    /// API server reloads both files when they change (kube-apiserver `dynamiccertificates`).
    pub fn serve_as(&self, identity: &Identity, ca_pem: &Path) {
        let folder = self.ca_pem.parent().expect("the file is in the cluster's folder");
        write_private(folder, "server.key", &identity.key);
        write_public(folder, "server.pem", &identity.certificate);
        let port = self.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("the URL has a port");
        let trust = https::trusting(ca_pem);
        let server = self.api_server.as_ref().expect("the API server is our own");
        server.wait_until("the new certificate", START_DEADLINE, || {
            https::get(&trust, port, "/readyz").is_ok_and(|(status, _)| status == 200)
        });
    }

    /// The controller manager. Without it, no certificate is signed.
    #[must_use]
    pub fn controller_manager(&self) -> Option<&Process> {
        self.controller_manager.as_ref()
    }

    /// etcd. Without it, the API server answers with errors.
    #[must_use]
    pub fn etcd(&self) -> Option<&Process> {
        self.etcd.as_ref()
    }

    fn existing(directory: &Path, cluster: kubeconfig::Existing) -> Self {
        Self {
            url: cluster.url,
            admin_kubeconfig: cluster.kubeconfig,
            ca_pem: write_public(directory, "ca.pem", &cluster.ca),
            audit_log: None,
            kubectl: PathBuf::from("kubectl"),
            controller_manager: None,
            api_server: None,
            etcd: None,
            _folder: None,
        }
    }
}

/// The files that the three programs share.
struct Files {
    directory: PathBuf,
    ca: PathBuf,
    ca_key: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    service_account_key: PathBuf,
    service_account_public: PathBuf,
    admin_kubeconfig: PathBuf,
    controller_kubeconfig: PathBuf,
    audit_policy: PathBuf,
    audit_log: PathBuf,
}

impl Files {
    fn write(directory: &Path, url: &str, further_ca: &str) -> Self {
        let authority = Authority::new("bursar test cluster authority");
        let ca = &authority.identity().certificate;
        let server = authority.server(&["kubernetes", "kubernetes.default", "kubernetes.default.svc"]);
        let service_accounts = rcgen::KeyPair::generate().expect("the system gives randomness");
        let trusted = format!("{ca}{further_ca}");
        let of = |user: &str, group: &str| kubeconfig::kubeconfig(url, &trusted, &authority.client(user, group));
        Self {
            ca: write_public(directory, "ca.pem", ca),
            ca_key: write_private(directory, "ca.key", &authority.identity().key),
            certificate: write_public(directory, "server.pem", &server.certificate),
            key: write_private(directory, "server.key", &server.key),
            service_account_key: write_private(directory, "service-account.key", &service_accounts.serialize_pem()),
            service_account_public: write_public(directory, "service-account.pub", &service_accounts.public_key_pem()),
            admin_kubeconfig: write_private(directory, "admin.kubeconfig", &of("admin", "system:masters")),
            controller_kubeconfig: write_private(
                directory,
                "controller-manager.kubeconfig",
                // The group has no meaning; Kubernetes' own roles name the user.
                &of("system:kube-controller-manager", "controllers"),
            ),
            audit_policy: write_public(directory, "audit-policy.json", AUDIT_POLICY),
            audit_log: directory.join("audit.log"),
            directory: directory.to_owned(),
        }
    }
}

/// The growth of the heap in per cent after which Go collects garbage. With the default of 100, garbage collection
/// takes a quarter of the servers' time. The servers live only for minutes, so memory matters less.
const GOGC: &str = "400";

fn server(binaries: &Path, program: &str) -> Command {
    let mut command = Command::new(binaries.join(program));
    command.env("GOGC", GOGC);
    command
}

fn start_etcd(binaries: &Path, directory: &Path, url: &str) -> Process {
    let peer_url = format!("http://127.0.0.1:{}", free_port());
    let mut command = server(binaries, "etcd");
    command
        .args(["--name=default", "--unsafe-no-fsync", "--log-level=warn"])
        .arg(flag("data-dir", &directory.join("etcd")))
        .args([format!("--listen-client-urls={url}"), format!("--advertise-client-urls={url}")])
        .args([format!("--listen-peer-urls={peer_url}"), format!("--initial-advertise-peer-urls={peer_url}")])
        .arg(format!("--initial-cluster=default={peer_url}"));
    Process::start("etcd", &command, &directory.join("etcd.log"))
}

fn start_api_server(
    binaries: &Path,
    files: &Files,
    etcd_url: &str,
    port: u16,
    options: &ControlPlaneOptions,
) -> Process {
    let mut command = server(binaries, "kube-apiserver");
    command
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"])
        .args(["--authorization-mode=Node,RBAC", "--allow-privileged=true", "--service-cluster-ip-range=10.96.0.0/16"])
        .args(["--service-account-issuer=https://kubernetes.default.svc", "--profiling=false"])
        .args([format!("--secure-port={port}"), format!("--etcd-servers={etcd_url}")])
        .arg(flag("client-ca-file", &files.ca))
        .arg(flag("tls-cert-file", &files.certificate))
        .arg(flag("tls-private-key-file", &files.key))
        .arg(flag("service-account-key-file", &files.service_account_public))
        .arg(flag("service-account-signing-key-file", &files.service_account_key))
        .arg(flag("audit-policy-file", &files.audit_policy))
        .arg(flag("audit-log-path", &files.audit_log))
        // The size is in megabytes, and so large that the log is never rotated. Requests in a rotated log would not be
        // counted.
        .args(["--audit-log-format=json", "--audit-log-maxsize=100000"])
        .args(&options.api_server_arguments);
    Process::start("kube-apiserver", &command, &files.directory.join("kube-apiserver.log"))
}

fn start_controller_manager(binaries: &Path, files: &Files, options: &ControlPlaneOptions) -> Process {
    let mut command = server(binaries, "kube-controller-manager");
    command
        .args(["--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false", "--controllers=*"])
        .args(["--use-service-account-credentials=true", "--profiling=false"])
        .arg(flag("kubeconfig", &files.controller_kubeconfig))
        .arg(flag("cluster-signing-cert-file", &files.ca))
        .arg(flag("cluster-signing-key-file", &files.ca_key))
        .arg(flag("service-account-private-key-file", &files.service_account_key))
        .arg(flag("root-ca-file", &files.ca))
        .arg(format!("--kube-api-qps={}", options.controller_qps))
        .arg(format!("--kube-api-burst={}", options.controller_burst));
    Process::start("kube-controller-manager", &command, &files.directory.join("kube-controller-manager.log"))
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}
