//! A site for one test, on the servers that all tests share: a subtree of the directory, homes, a ledger, and Bursar in
//! this process with a real `bursar-homed` beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use bursar::bootstrap::{self, InitRequest};
use bursar::control::api::{CycleReport, PlanAnswer, Status};
use bursar::execute::Extent;
use bursar::identity::{AccountKind, ClusterName};
use bursar::orders::request::{OrderRequest, RequestRefusal, Target, Trigger};
use bursar::policy::Policy;
use bursar::runtime::{Clock, Runtime as Bursar};
use bursar::settings::{Settings, SettingsErrors};
use bursar::store::{ReadStore, Store};
use bursar::telemetry::Metrics;
use bursar::{cycle, daemon};
use bursar_testkit::Servers;
use bursar_testkit::binaries::program;
use bursar_testkit::control_plane::ControlPlane;
use bursar_testkit::ldif::{PEOPLE_GID, group_ldif, person_ldif, tool_ldif, toolforge_units_ldif, unit_ldif};
use bursar_testkit::process::{Frozen, Process};
use bursar_testkit::ready::{DEADLINE, poll, wait_for};
use bursar_testkit::sample::sentinel_ldif;
use bursar_testkit::slapd::{BASE_DN, READER_PASSWORD};
use bursar_testkit::world_file::WorldFile;
use serde_json::{Map, Value};
use sqlx::SqlSafeStr;

/// A site for one test.
pub struct World {
    /// The name of its subtree in the directory, and the prefix of its namespaces.
    pub name: String,
    /// `ou=NAME,dc=example,dc=org`.
    pub base: String,
    /// The folder with all its files.
    pub folder: PathBuf,
    /// The clock that Bursar uses.
    pub clock: Clock,
    runtime: tokio::runtime::Runtime,
    bursar: Option<Bursar>,
    homed: Option<Process>,
    /// The servers that all tests share, or those of this test only, which stop with it.
    pub servers: Arc<Servers>,
}

impl World {
    /// Makes a site with the classes `tool` and `admin` and without accounts, and runs `bursar init`.
    pub fn new(name: &str) -> Self {
        Self::with(name, "")
    }

    /// Like [`Self::new`], with more lines of configuration.
    pub fn with(name: &str, more: &str) -> Self {
        Self::on(Servers::shared().clone(), name, more)
    }

    /// Like [`Self::with`], on other servers. Their audit log then shows only this test's requests.
    pub fn on(servers: Arc<Servers>, name: &str, more: &str) -> Self {
        let world = Self::bare(servers, name, more);
        crate::template::initialise(&world);
        world
    }

    /// Like [`Self::on`], but without `bursar init`.
    pub fn bare(servers: Arc<Servers>, name: &str, more: &str) -> Self {
        let base = format!("ou={name},{BASE_DN}");
        servers.slapd.add_ldif(&(unit_ldif(BASE_DN, name) + &toolforge_units_ldif(&base) + &sentinel_ldif(&base)));
        let folder = servers.folder().join(name);
        for homes in ["homes/data/project", "homes/home", "homes/volumes"] {
            fs::create_dir_all(folder.join(homes)).expect("the parent folder is writable");
        }
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let mut world = Self {
            name: name.to_owned(),
            base,
            folder,
            clock: daemon::now,
            runtime: runtime.expect("the system allows a runtime"),
            bursar: None,
            homed: None,
            servers,
        };
        world.write_config(more);
        world.start_homed(&[]);
        world
    }

    /// Makes the home of a tool that is not in the directory yet.
    pub fn home_of(&self, tool: &str, uid: u32) {
        self.make_home("data/project", tool, uid, uid);
    }

    /// Adds a tool and its home.
    pub fn tool(&self, name: &str, uid: u32, maintainers: &[&str]) {
        self.home_of(name, uid);
        self.add(&tool_ldif(&self.base, name, uid, maintainers));
    }

    /// Adds a person and their home.
    pub fn person(&self, name: &str, uid: u32) {
        self.make_home("home", name, uid, PEOPLE_GID);
        self.add(&person_ldif(&self.base, name, uid));
    }

    /// Adds a group.
    pub fn group(&self, name: &str, members: &[&str]) {
        self.add(&group_ldif(&self.base, name, members));
    }

    /// Adds LDIF records, with homes beneath this world's folder.
    pub fn add(&self, ldif: &str) {
        let beneath = format!("homeDirectory: {}/", self.folder.join("homes").display());
        self.servers.slapd.add_ldif(&ldif.replace("homeDirectory: /", &beneath));
    }

    /// Makes a home beneath `parent`, and returns the path of the kubeconfig that will be in it.
    pub fn make_home(&self, parent: &str, name: &str, uid: u32, gid: u32) -> PathBuf {
        let home = self.folder.join("homes").join(parent).join(name);
        fs::create_dir_all(&home).expect("the parent folder is writable");
        std::os::unix::fs::chown(&home, Some(uid), Some(gid)).expect("tests run as root, who may change owners");
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).expect("tests run as root, who may change modes");
        home.join(".kube/config")
    }

    /// Runs a cycle in this process.
    pub fn cycle(&mut self) -> CycleReport {
        self.cycle_by(Trigger::Sync)
    }

    /// Runs a cycle that must have nothing to do.
    pub fn idle_cycle(&mut self) {
        let report = self.cycle();
        assert_eq!((report.exit_code(), report.actions), (0, 0), "{report:#?}");
    }

    /// Runs cycles until one has this result.
    pub fn cycles_until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        wait_for(what, DEADLINE, || {
            self.cycle();
            is(self).then_some(())
        });
    }

    /// Runs a cycle with this trigger.
    pub fn cycle_by(&mut self, trigger: Trigger) -> CycleReport {
        self.open();
        let bursar = self.bursar.as_mut().expect("the world is open");
        self.runtime.block_on(cycle::run(bursar, trigger, Extent::All)).expect("the ledger can be written")
    }

    /// Returns the plan of the next cycle.
    pub fn plan(&mut self) -> PlanAnswer {
        self.open();
        let bursar = self.bursar.as_mut().expect("the world is open");
        self.runtime.block_on(cycle::preview_of(bursar, &cycle::Ask::default())).expect("a plan can be made")
    }

    /// Returns the plan of the next cycle with another configuration, compared with the one in force.
    pub fn plan_with(&mut self, other: Settings) -> PlanAnswer {
        self.open();
        let bursar = self.bursar.as_mut().expect("the world is open");
        let ask = cycle::Ask { other: Some(Box::new(other)), at: None };
        self.runtime.block_on(cycle::preview_of(bursar, &ask)).expect("a plan can be made")
    }

    /// Gives an order, and runs the cycle that carries it out.
    pub fn order(&mut self, order: &OrderRequest) -> Result<CycleReport, RequestRefusal> {
        self.open();
        let bursar = self.bursar.as_mut().expect("the world is open");
        let orders = std::slice::from_ref(order);
        let answer = self.runtime.block_on(bursar.order("root", orders)).expect("the ledger can be written");
        match answer.refused.into_iter().next() {
            Some(refusal) => Err(refusal),
            None => Ok(self.cycle()),
        }
    }

    /// Gives orders that the next cycle carries out. Orders that are refused are ignored.
    pub fn give(&mut self, orders: &[OrderRequest]) {
        self.open();
        let bursar = self.bursar.as_mut().expect("the world is open");
        self.runtime.block_on(bursar.order("root", orders)).expect("the ledger can be written");
    }

    /// Stops Bursar; the next cycle starts it again.
    pub fn stop(&mut self) {
        if let Some(bursar) = self.bursar.take() {
            self.runtime.block_on(bursar.close()).expect("the ledger closes");
        }
    }

    fn open(&mut self) {
        if self.bursar.is_none() {
            let settings = self.settings();
            let opening = async {
                let mut bursar = Bursar::open(settings, Arc::new(Metrics::default()), self.clock).await?;
                bursar.start().await.map(|()| bursar)
            };
            self.bursar = Some(self.runtime.block_on(opening).expect("Bursar starts"));
        }
    }

    /// Reloads the configuration, as SIGHUP makes the daemon do.
    pub fn reload(&mut self) {
        self.try_reload().expect("the configuration is valid");
    }

    /// Like [`Self::reload`], but returns why the configuration was refused.
    pub fn try_reload(&mut self) -> Result<(), SettingsErrors> {
        self.open();
        let settings = self.settings();
        // Watches start and stop tasks, so a runtime must be entered.
        let _entered = self.runtime.enter();
        self.bursar.as_mut().expect("the world is open").reload(settings)
    }

    /// Returns the status.
    pub fn status(&mut self) -> Status {
        self.open();
        self.bursar.as_ref().expect("the world is open").status()
    }

    /// Returns the metrics in the format of Prometheus.
    pub fn metrics(&mut self) -> String {
        self.open();
        self.bursar.as_ref().expect("the world is open").exposition()
    }

    /// Runs `bursar init` with the current configuration.
    pub fn initialise_again(&self) {
        self.initialise("test", &self.servers.cluster);
    }

    /// Returns the policy for `init`. Worlds that share a cluster must accept each other's namespaces, so their pattern
    /// is only `{name}`.
    pub fn policy_for_init(&self, cluster: &ControlPlane) -> Policy {
        let mut policy = self.settings().policy;
        if Arc::strong_count(&self.servers) > 1 || !std::ptr::eq(cluster, &raw const self.servers.cluster) {
            let namespaces = policy.classes.values_mut().filter_map(|class| class.namespace.as_mut());
            namespaces.for_each(|namespace| "{name}".clone_into(namespace));
        }
        policy
    }

    /// Runs `bursar init --cluster NAME`.
    pub fn initialise(&self, name: &str, cluster: &ControlPlane) {
        let (settings, policy) = (self.settings(), self.policy_for_init(cluster));
        let state = self.state_dir();
        let made = self.runtime.block_on(async {
            let (store, _lock) = Store::create(&state).await.expect("the ledger can be opened");
            let ledger = store.state().clone();
            store.close().await.expect("the ledger closes");
            let request = InitRequest {
                policy: &policy,
                cluster: &ClusterName(name.into()),
                admin_kubeconfig: &cluster.admin_kubeconfig,
                daemon_kubeconfig: &settings.clusters[&ClusterName(name.into())],
                state_dir: &state,
                ledger: &ledger,
                administrators: None,
            };
            bootstrap::init(request).await
        });
        made.expect("init succeeds");
    }

    /// Changes the configuration; the next cycle uses it.
    pub fn configure(&mut self, from: &str, to: &str) {
        self.stop();
        let text = fs::read_to_string(self.config()).expect("the world has a configuration");
        assert!(text.contains(from), "{from} is not in the configuration");
        fs::write(self.config(), text.replace(from, to)).expect("the folder is writable");
    }

    /// Loads the configuration from disk.
    pub fn settings(&self) -> Settings {
        Settings::load(&self.config()).unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// Returns the path of the configuration.
    pub fn config(&self) -> PathBuf {
        self.folder.join("bursar.toml")
    }

    /// Returns the folder with the ledger, the keys and the daemon's kubeconfigs.
    pub fn state_dir(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Returns the rows of a query on the ledger.
    pub fn rows(&self, query: impl SqlSafeStr) -> Vec<Map<String, Value>> {
        self.runtime.block_on(async {
            let mut ledger =
                ReadStore::open(&self.state_dir().join("ledger.db")).await.expect("the ledger can be opened");
            ledger.rows(query, &[]).await.expect("the query is valid")
        })
    }

    /// Runs `bursar sync --once` again and again, and kills the run during which `seen` holds. `is_past` accepts that
    /// the state was reached and left before the kill; then only the final result counts.
    pub fn killed_when(&self, seen: impl Fn(&Self) -> bool, is_past: impl Fn(&Self) -> bool) {
        let there = poll(DEADLINE, || {
            let mut command = self.command(&["sync", "--once"]);
            let mut bursar = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bursar is built");
            let _ = poll(DEADLINE, || seen(self) || bursar.try_wait().expect("the child can be waited for").is_some());
            bursar.kill().expect("an ended process can be killed too");
            bursar.wait().expect("the process can be waited for");
            seen(self) || is_past(self)
        });
        assert!(there, "no cycle reached the expected state");
    }

    /// Waits until the watches have noticed a change in the cluster: one line of the plan contains all `parts`.
    pub fn wait_for_drift(&mut self, parts: &[&str]) {
        wait_for(&format!("plan with {parts:?}"), DEADLINE, || {
            let text = self.plan().text;
            text.lines().any(|line| parts.iter().all(|part| line.contains(part))).then_some(())
        });
    }

    /// Returns what `bursar status` reports as wrong with the cluster.
    pub fn trouble(&mut self) -> Option<String> {
        self.status().clusters.into_values().find_map(|cluster| cluster.trouble)
    }

    /// Returns the state of a tool in the ledger.
    pub fn state(&self, tool: &str) -> String {
        let rows = self.rows("SELECT name, state FROM tools");
        let row = rows.iter().find(|row| row["name"] == tool).expect("the ledger knows the tool");
        row["state"].as_str().expect("a state is text").to_owned()
    }

    /// Returns the namespace of a tool.
    pub fn namespace(&self, tool: &str) -> String {
        format!("{}-{tool}", self.name)
    }

    /// Returns the home of a tool.
    pub fn home(&self, tool: &str) -> PathBuf {
        self.folder.join("homes/data/project").join(tool)
    }

    /// Returns the kubeconfig of a tool.
    pub fn kubeconfig(&self, tool: &str) -> PathBuf {
        self.home(tool).join(".kube/config")
    }

    /// Returns the kubeconfig of a person.
    pub fn kubeconfig_of(&self, person: &str) -> PathBuf {
        self.folder.join("homes/home").join(person).join(".kube/config")
    }

    /// Copies the kubeconfig of a tool, as a thief would, and returns the copy.
    pub fn steal(&self, tool: &str) -> PathBuf {
        let stolen = self.folder.join("stolen");
        fs::copy(self.kubeconfig(tool), &stolen).expect("the kubeconfig can be copied");
        stolen
    }

    /// Runs `kubectl` with a tool's own kubeconfig.
    pub fn kubectl_as_tool(&self, tool: &str, arguments: &[&str]) -> Output {
        self.kubectl_with(&self.kubeconfig(tool), arguments)
    }

    /// Whether a kubeconfig gives access to its namespace.
    pub fn works(&self, kubeconfig: &Path) -> bool {
        self.kubectl_with(kubeconfig, &["get", "pods"]).status.success()
    }

    /// Returns `bursar` with the configuration of this site and these arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command.arg("--config").arg(self.config()).args(arguments);
        command
    }

    /// Runs `bursar` with these arguments.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("bursar is built")
    }

    /// Runs `bursar` with this command line, and returns its standard output.
    pub fn bursar(&self, command: &str) -> String {
        stdout(&self.run(&command.split(' ').collect::<Vec<_>>()))
    }

    /// Runs `kubectl` with any kubeconfig.
    pub fn kubectl_with(&self, kubeconfig: &Path, arguments: &[&str]) -> Output {
        self.servers.cluster.kubectl_as(kubeconfig).args(arguments).output().expect("kubectl is installed")
    }

    /// Runs `kubectl` as the cluster's administrator. It must succeed.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.servers.cluster.run(arguments, "")
    }

    /// Kills `bursar-homed` and starts it again, with further arguments.
    pub fn restart_homed(&mut self, more: &[&str]) {
        self.kill_homed();
        self.start_homed(more);
    }

    fn start_homed(&mut self, more: &[&str]) {
        let socket = self.folder.join("homed.sock");
        let mut command = Command::new(program("bursar-homed"));
        command.arg("--socket").arg(&socket).args(["--client-user", "0", "--ssh-keys"]);
        for prefix in ["homes/data/project", "homes/home"] {
            command.arg("--prefix").arg(self.folder.join(prefix));
        }
        command.arg("--create-prefix").arg(self.folder.join("homes/volumes")).args(more);
        self.homed = Some(Process::start("bursar-homed", &command, &self.folder.join("homed.log")));
        wait_for("bursar-homed listens", DEADLINE, || socket.exists().then_some(()));
    }

    /// Stops `bursar-homed` until the result is dropped, as if all its file servers hung.
    pub fn frozen_homed(&self) -> Frozen<'_> {
        self.homed.as_ref().expect("bursar-homed runs").frozen()
    }

    /// Kills `bursar-homed`, as if it had crashed.
    pub fn kill_homed(&mut self) {
        self.homed = None;
        let _ = fs::remove_file(self.folder.join("homed.sock"));
    }

    fn write_config(&self, more: &str) {
        let servers = &self.servers;
        let is_shared = Arc::strong_count(servers) > 1;
        // Worlds that share a cluster share the ledger's id too. A binding without a namespace shows only by the
        // administrator's name to which world it belongs.
        let admins = if is_shared { format!("^{}-[a-z]+$", self.name) } else { "^[a-z-]+$".to_owned() };
        let password = self.folder.join("ldap-password");
        fs::write(&password, READER_PASSWORD).expect("the folder is writable");
        let file = WorldFile {
            name: &self.name,
            folder: &self.folder,
            base: &self.base,
            admins: &admins,
            ldap: (&servers.slapd.ldaps_url, &servers.slapd.ca_pem),
            cluster: (&servers.cluster.url, &servers.cluster.ca_pem),
        };
        let text = file.fill(include_str!("world.toml"));
        fs::write(self.config(), text + more).expect("the folder is writable");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns a tool as the target of an order.
pub fn target(tool: &str) -> Target {
    Target { kind: AccountKind::Tool, name: tool.to_owned(), reason: Some("a test".to_owned()), ticket: None }
}

/// Returns a runtime for a test that is not asynchronous itself.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system allows a runtime")
}

/// Adds fields to an object. They replace fields of the same name.
pub fn extend(object: &mut Value, more: &Value) {
    let more = more.as_object().expect("the value is an object").clone();
    object.as_object_mut().expect("the value is an object").extend(more);
}

/// Checks that the cycle did everything that it had to do.
#[track_caller]
pub fn all_is_well(report: &CycleReport) {
    assert_eq!(report.exit_code(), 0, "{report:#?}");
}

/// Returns what a command printed on standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns what a command printed on standard output and on standard error.
pub fn text(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// Returns what a command printed on standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
