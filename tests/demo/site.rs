//! The demo's site: servers, homes, a configuration, and the two daemons as real processes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use bursar_testkit::Servers;
use bursar_testkit::binaries::program;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ports::free_port;
use bursar_testkit::process::Process;
use bursar_testkit::sample::{self, PEOPLE, TOOLS};
use bursar_testkit::slapd::{READER_DN, READER_PASSWORD, SlapdOptions};

/// The folder with the homes of tools, relative to the root of all homes.
const PROJECTS: &str = "data/project";
/// The folder with the homes of people, relative to the root of all homes.
const PEOPLE_HOMES: &str = "home";

/// Everything that runs, and its paths. Fields are dropped in this order, so the daemons end before the servers.
pub struct Site {
    bursard: Process,
    homed: Process,
    webhook: Process,
    approver: Process,
    /// The configuration file, which every command gets as `--config`.
    pub config: PathBuf,
    /// The ledger.
    pub ledger: PathBuf,
    /// The root of all homes.
    pub homes: PathBuf,
    /// The servers.
    pub servers: Servers,
}

impl Site {
    /// Starts the servers, makes the homes and the configuration, runs `bursar init`, and starts the webhook, the
    /// approver and the daemons.
    pub fn start() -> Self {
        say("starting an LDAP server and a Kubernetes control plane");
        let beneath = |folder: &Path| format!("homeDirectory: {}/", folder.join("site/homes").display());
        let servers = Servers::start_with(&ControlPlaneOptions::default(), &SlapdOptions::default(), |folder| {
            sample::toolforge().replace("homeDirectory: /", &beneath(folder))
        });
        let root = servers.folder().join("site");
        let homes = root.join("homes");
        fs::create_dir_all(&root).expect("the parent folder is writable");
        make_homes(&homes);
        let config = root.join("bursar.toml");
        write_config(&servers, &root, &homes, &config);
        let ledger = root.join("state/ledger.db");

        say("bursar check; bursar init --admin-kubeconfig … --cluster demo");
        require(bursar(&config).arg("check"));
        require(
            bursar(&config)
                .args(["init", "--cluster", "demo", "--admin-kubeconfig"])
                .arg(&servers.cluster.admin_kubeconfig),
        );

        let webhook = start_webhook(&root, &config);
        let approver = start_approver(&root, &config, &servers.cluster.admin_kubeconfig);

        say("starting bursar-homed and bursard");
        let mut daemon = Command::new(program("bursard"));
        daemon.arg("--config").arg(&config);
        Self {
            homed: Process::start("bursar-homed", &homed_command(&root, &homes), &root.join("homed.log")),
            bursard: Process::start("bursard", &daemon, &root.join("bursard.log")),
            webhook,
            approver,
            config,
            ledger,
            homes,
            servers,
        }
    }

    /// Returns a `bursar` command with this configuration.
    pub fn bursar(&self) -> Command {
        bursar(&self.config)
    }

    /// Returns the path of the control socket of the daemon.
    pub fn control_socket(&self) -> PathBuf {
        self.config.with_file_name("control.sock")
    }

    /// Returns the path of the kubeconfig in a tool's home.
    pub fn tool_kubeconfig(&self, tool: &str) -> PathBuf {
        self.homes.join(PROJECTS).join(tool).join(".kube/config")
    }

    /// Returns a `kubectl` command with a tool's own kubeconfig.
    pub fn kubectl_as_tool(&self, tool: &str) -> Command {
        self.servers.cluster.kubectl_as(&self.tool_kubeconfig(tool))
    }

    /// Makes the home of a new tool, as the file server would.
    pub fn make_home_of_tool(&self, tool: &str, uid: u32) {
        make_home(&self.homes.join(PROJECTS).join(tool), uid, uid);
    }

    /// Returns the last lines of the programs' logs, for the report of a failure.
    pub fn log_ends(&self) -> String {
        let programs = [&self.bursard, &self.homed, &self.webhook, &self.approver];
        let [bursard, homed, webhook, approver] = programs.map(Process::log_end);
        format!(
            "bursard:\n{bursard}\nbursar-homed:\n{homed}\nbursar-webhook:\n{webhook}\nbursar-webhook approve:\n{approver}"
        )
    }

    /// Waits for Ctrl-C.
    pub fn wait_for_interrupt() {
        let (sender, receiver) = mpsc::channel();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system allows a runtime");
        std::thread::spawn(move || {
            let interrupted = runtime.block_on(tokio::signal::ctrl_c());
            sender.send(interrupted)
        });
        let _ = receiver.recv();
        say("stopping");
    }
}

/// Starts the webhook beside the API server, which calls it by URL, because the cluster has no node that could run it.
fn start_webhook(root: &Path, config: &Path) -> Process {
    let (port, health) = (free_port(), free_port());
    let (url, files) = (format!("https://127.0.0.1:{port}"), root.join("webhook"));
    say(&format!("bursar webhook install --cluster demo --url {url} --write …; starting bursar-webhook"));
    let mut command = Command::new(program("bursar-webhook"));
    command.arg("--dir").arg(&files).args(["--log-format", "plain"]);
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--health", &format!("127.0.0.1:{health}")]);
    // The installation waits for the webhook, and the webhook waits for its files. The kubeconfig is the last of these.
    let webhook = std::thread::scope(|scope| {
        let mut install = bursar(config);
        install.args(["webhook", "install", "--cluster", "demo", "--url", &url, "--write"]).arg(&files);
        let installing = scope.spawn(move || require(&mut install));
        while !files.join("kubeconfig").exists() && !installing.is_finished() {
            std::thread::sleep(Duration::from_millis(100));
        }
        let webhook = Process::start("bursar-webhook", &command, &root.join("webhook.log"));
        installing.join().expect("the thread does not panic");
        webhook
    });
    let tried = require(bursar(config).args(["webhook", "selftest", "--cluster", "demo"]));
    print(&String::from_utf8_lossy(&tried.stdout));
    webhook
}

/// Starts the approver beside the API server too. After its installation, the daemon approves no certificates.
fn start_approver(root: &Path, config: &Path, admin_kubeconfig: &Path) -> Process {
    let (health, files) = (free_port(), root.join("approver"));
    say("bursar approver install --cluster demo --admin-kubeconfig … --write …; starting bursar-webhook approve");
    let mut install = bursar(config);
    install.args(["approver", "install", "--cluster", "demo", "--admin-kubeconfig"]).arg(admin_kubeconfig);
    require(install.arg("--write").arg(&files));
    let mut command = Command::new(program("bursar-webhook"));
    command.arg("approve").arg("--dir").arg(&files).args(["--log-format", "plain"]);
    command.args(["--health", &format!("127.0.0.1:{health}")]);
    let approver = Process::start("bursar-webhook approve", &command, &root.join("approver.log"));
    let ready = || {
        let answer = Command::new("curl").args(["-sf", &format!("http://127.0.0.1:{health}/readyz")]).output();
        answer.is_ok_and(|answer| answer.status.success())
    };
    approver.wait_until("/readyz of the approver returns 200", Duration::from_mins(1), ready);
    approver
}

/// What the demo has printed so far.
static PRINTED: Mutex<String> = Mutex::new(String::new());

/// Prints a text, and keeps it for [`printed`].
pub fn print(text: &str) {
    print!("{text}");
    PRINTED.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
}

/// Returns everything that was printed.
pub fn printed() -> String {
    PRINTED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Prints what happens next.
pub fn say(text: &str) {
    print(&format!("\n== {text}\n"));
}

/// Runs a command that must succeed.
pub fn require(command: &mut Command) -> Output {
    let output = command.output().expect("the command starts");
    assert!(
        output.status.success(),
        "{command:?} ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn bursar(config: &Path) -> Command {
    let mut command = Command::new(program("bursar"));
    command.arg("--config").arg(config);
    command
}

fn homed_command(root: &Path, homes: &Path) -> Command {
    let mut command = Command::new(program("bursar-homed"));
    command.arg("--socket").arg(root.join("homed.sock"));
    command.args(["--client-user", "0"]);
    for prefix in [PROJECTS, PEOPLE_HOMES] {
        command.arg("--prefix").arg(homes.join(prefix));
    }
    command
}

fn make_homes(homes: &Path) {
    for (tool, uid, _) in TOOLS {
        make_home(&homes.join(PROJECTS).join(tool), uid, uid);
    }
    for (person, uid) in PEOPLE {
        make_home(&homes.join(PEOPLE_HOMES).join(person), uid, bursar_testkit::ldif::PEOPLE_GID);
    }
}

fn make_home(home: &Path, uid: u32, gid: u32) {
    fs::create_dir_all(home).expect("the parent folder is writable");
    std::os::unix::fs::chown(home, Some(uid), Some(gid)).expect("the demo runs as root, who may change owners");
    fs::set_permissions(home, fs::Permissions::from_mode(0o700)).expect("the demo runs as root, who may change modes");
}

fn write_config(servers: &Servers, root: &Path, homes: &Path, config: &Path) {
    let password = root.join("ldap-password");
    fs::write(&password, READER_PASSWORD).expect("the folder is writable");
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600))
        .expect("the demo runs as root, who may change modes");
    let text = include_str!("bursar.toml")
        .replace("@ROOT@", &root.display().to_string())
        .replace("@HOMES@", &homes.display().to_string())
        .replace("@LDAP_URL@", &servers.slapd.ldaps_url)
        .replace("@LDAP_CA@", &servers.slapd.ca_pem.display().to_string())
        .replace("@BIND_DN@", READER_DN)
        .replace("@PASSWORD_FILE@", &password.display().to_string())
        .replace("@K8S_URL@", &servers.cluster.url)
        .replace("@K8S_CA@", &servers.cluster.ca_pem.display().to_string());
    fs::write(config, text).expect("the folder is writable");
}
