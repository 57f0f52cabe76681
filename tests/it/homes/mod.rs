//! Tests of the real program `bursar-homed` through its socket. They need root, because homed becomes other users.

mod beside;
mod delivery;
mod hang;
mod hostile;
mod hostile_cases;
mod kill;
mod kubectl;
mod mounts;
mod nfs;
mod protocol;
mod selinux;
mod spawner;
pub mod ssh;
mod swap;
mod unit;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use bursar_homed::client::{HomedClient, HomedClientError};
use bursar_protocol::{
    Answer, ClusterEntry, ContextEntry, HomeError, HomeTarget, KubeconfigEntries, PlannedEntries, Request, SecretText,
    UserEntry, UserProof, Work,
};
use bursar_testkit::binaries::program;
use bursar_testkit::ready::DEADLINE;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const UID: u32 = 52503;
/// The name of our user in a kubeconfig.
const OUR_USER: &str = "bursar-toolforge";

/// A `bursar-homed` with its own folder of homes.
struct Homed {
    folder: TempDir,
    child: Child,
    client: HomedClient,
}

impl Drop for Homed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Homed {
    /// Starts a server, and makes the home `foo`.
    fn with_home(arguments: &[&str]) -> (Self, HomeTarget) {
        let homed = Self::start(arguments);
        let target = homed.home("foo");
        (homed, target)
    }

    fn start(arguments: &[&str]) -> Self {
        let folder = folder();
        let child = command(folder.path(), arguments).spawn().expect("bursar-homed is built");
        Self::waited_for(folder, child)
    }

    fn waited_for(folder: TempDir, child: Child) -> Self {
        let socket = folder.path().join("homed.sock");
        wait_for("the socket of bursar-homed", || UnixStream::connect(&socket).is_ok());
        let client = HomedClient::new(socket, Duration::from_mins(1));
        Self { folder, child, client }
    }

    fn home(&self, name: &str) -> HomeTarget {
        let home = self.folder.path().join("homes").join(name);
        make_directory(&home, UID);
        HomeTarget::new(home, UID, UID)
    }

    async fn ask(&self, target: &HomeTarget, work: Work) -> Result<Answer, HomeError> {
        match self.client.call(&Request::new(target.clone(), work)).await {
            Ok(answer) => Ok(answer),
            Err(HomedClientError::Home(error)) => Err(error),
            Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
        }
    }

    async fn write(&self, target: &HomeTarget) -> Result<Answer, HomeError> {
        self.ask(target, write(entries("1"))).await
    }

    async fn refused(&self, target: &HomeTarget, reason: &str) {
        let error = self.write(target).await.expect_err(reason);
        assert_eq!(error.reason(), reason, "{error}");
    }
}

fn folder() -> TempDir {
    assert!(rustix::process::geteuid().is_root(), "these tests become other users: run them as root");
    let folder = TempDir::new().expect("the system allows a temporary folder");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))
        .expect("tests run as root, who may change modes");
    fs::create_dir(folder.path().join("homes")).expect("the parent folder is writable");
    folder
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("bursar-homed"));
    command.arg("--socket").arg(folder.join("homed.sock")).arg("--prefix").arg(folder.join("homes"));
    if !arguments.contains(&"--client-user") {
        command.args(["--client-user", "0"]);
    }
    command.args(arguments).stderr(Stdio::null());
    command
}

/// Returns `usual`, or `long` in `make soak`.
fn soak(usual: usize, long: usize) -> usize {
    if std::env::var_os("BURSAR_SOAK").is_some() { long } else { usual }
}

/// Returns the process ids of the current workers, which are children of the server's spawner.
fn workers_of(server: u32) -> Vec<u32> {
    children_of(server).into_iter().flat_map(children_of).collect()
}

fn children_of(parent: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Returns the rest of a line in the kernel's status of a process or thread.
fn status_of(process: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
}

fn signal(process: u32, signal: Signal) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process id is not zero");
    let _ = kill_process(process, signal);
}

fn make_directory(path: &Path, uid: u32) {
    fs::create_dir(path).expect("the parent folder is writable");
    fs::set_permissions(path, PermissionsExt::from_mode(0o700)).expect("tests run as root, who may change modes");
    chown(path, Some(uid), Some(uid)).expect("tests run as root, who may change owners");
}

fn make_file(path: &Path, uid: u32, content: &[u8]) {
    fs::write(path, content).expect("the folder is writable");
    chown(path, Some(uid), Some(uid)).expect("tests run as root, who may change owners");
}

/// Returns the mount point of a home's file system, as `findmnt` shows it.
fn mount_of(target: &HomeTarget) -> PathBuf {
    let folder = target.home.parent().expect("the path has a parent");
    let found =
        Command::new("findmnt").args(["-n", "-o", "TARGET", "-T"]).arg(folder).output().expect("findmnt is installed");
    String::from_utf8(found.stdout).expect("the output is UTF-8").trim().into()
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn entries(version: &str) -> KubeconfigEntries {
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let certificate = rcgen::CertificateParams::new(vec![])
        .expect("no names need no check")
        .self_signed(&key)
        .expect("a key signs its own certificate");
    KubeconfigEntries {
        clusters: vec![ClusterEntry {
            name: "toolforge".into(),
            server: format!("https://10.0.0.{version}:6443"),
            ca_pem: certificate.pem(),
            tls_server_name: None,
            proxy: None,
        }],
        user: UserEntry {
            name: OUR_USER.into(),
            proof: UserProof::Certificate {
                certificate_pem: certificate.pem(),
                key_pem: SecretText::new(key.serialize_pem()),
            },
        },
        contexts: vec![ContextEntry {
            name: "toolforge".into(),
            cluster: "toolforge".into(),
            user: OUR_USER.into(),
            namespace: Some("tool-foo".into()),
        }],
    }
}

/// Returns entries with a certificate that has a group of Bursar, and the key as the kubeconfig contains it.
fn with_our_key(version: &str) -> (String, KubeconfigEntries) {
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let mut params = rcgen::CertificateParams::new(vec![]).expect("no names need no check");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "bursar:tools");
    let certificate_pem = params.self_signed(&key).expect("a key signs its own certificate").pem();
    let proof = UserProof::Certificate { certificate_pem, key_pem: SecretText::new(key.serialize_pem()) };
    let key = base64::engine::general_purpose::STANDARD.encode(key.serialize_pem());
    let entries = entries(version);
    let user = UserEntry { proof, ..entries.user.clone() };
    (key, KubeconfigEntries { user, ..entries })
}

fn write(entries: KubeconfigEntries) -> Work {
    Work::WriteKubeconfig { entries, replace_unparsable: false }
}

fn test_delivery() -> Work {
    let ours = entries("1");
    let (clusters, user, contexts) = (ours.clusters, ours.user.name, ours.contexts);
    let planned = PlannedEntries { clusters, user, contexts, token: false };
    Work::TestDelivery { planned, replace_unparsable: false }
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .expect("the folder is readable")
        .map(|entry| entry.expect("the folder is readable").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn parses(path: &Path) -> bool {
    let text = fs::read_to_string(path).expect("the kubeconfig is readable");
    kube::config::Kubeconfig::from_yaml(&text).is_ok_and(|config| {
        config.auth_infos.iter().any(|user| {
            user.name == OUR_USER && user.auth_info.as_ref().is_some_and(|auth| auth.client_key_data.is_some())
        })
    })
}
