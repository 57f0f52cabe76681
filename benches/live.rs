//! Measures a whole site by number of tools: a real slapd, API server, `bursard` and `bursar-homed`, with as many
//! people as tools. Run `cargo bench --bench live`, or with numbers of tools:
//! `cargo bench --bench live -- 20 1000 10000`. Each site has servers of its own.
//!
//! The daemon starts with an empty ledger and creates all tenants. It is then measured at rest and after a restart. New
//! tools, repairs and removals are timed one after the other, while nothing else happens. Then a tenth as many new
//! tools are added that fail, because their homes belong to another user, and as many that do not fail. Meanwhile the
//! removals are timed again. The time of a removal begins before `ldapmodify` or `bursar` is started. It ends with the
//! first 403, while requests with the old certificate are sent continuously.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod figures;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/template.rs"]
mod template;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/world.rs"]
mod world;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bursar_testkit::ldif::{disable_ldif, person_ldif, tool_account_dn, tool_ldif};
use bursar_testkit::process::Process;
use bursar_testkit::ready::wait_for;
use figures::milliseconds;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{DeleteParams, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rustix::process::Signal;
use sqlx::AssertSqlSafe;
use world::World;

/// Numbers of tools if no arguments are given.
const SIZES: [&str; 1] = ["1000"];
/// The greatest number of removals of each kind, without and with other work. All three numbers are smaller if there
/// are few tools.
const REMOVALS: u32 = 100;
const NEW_TOOLS: u32 = 200;
const REPAIRS: u32 = 50;
/// Cycles in which nothing changed.
const CYCLES: u32 = 20;
const DEADLINE: Duration = Duration::from_mins(2);
/// The signer needs a second for each hundred certificates.
const ALL_TENANTS: Duration = Duration::from_hours(2);
/// The interval between two requests, and between two checks of a home.
const LOOK: Duration = Duration::from_millis(2);
/// The interval between two queries of the ledger while all tenants are created. Each query opens the ledger, and a
/// shorter interval would slow down the daemon.
const QUERY: Duration = Duration::from_secs(2);
/// The allocator returns freed memory within this time.
const REST: Duration = Duration::from_secs(30);
/// With these settings, only the benchmark starts cycles, and no limit holds back removals.
const SETTINGS: &str = "\n[schedule]\ncycle = \"0 0 1 1 *\"\nfull_read = \"0 0 1 1 *\"\n\n[limits]\n\
    disable_per_cycle = { count = 100000 }\ndisable_per_day = { count = 100000 }\n";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["site", tools] => measure(tools.parse().expect("the argument is a number")),
        sizes => figures::table(if sizes.is_empty() { &SIZES } else { sizes }, |size| {
            vec![vec!["site".to_owned(), size.to_owned()]]
        }),
    }
}

fn measure(tools: u32) {
    assert!(tools >= 10, "each kind of removal uses one tool in ten");
    let (new_tools, repairs, each) =
        (NEW_TOOLS.min(tools / 5), REPAIRS.min((tools / 20).max(1)), REMOVALS.min(tools / 10));
    let site = Site::new(tools);
    let began = Instant::now();
    let daemon = site.start("bursard.log");
    // A failed first attempt is retried, so a tool counts when it has its kubeconfig.
    site.wait_for_rows(
        &format!("SELECT 1 WHERE (SELECT count(delivered_at) FROM tools) >= {tools}"),
        QUERY,
        ALL_TENANTS,
    );
    let took = began.elapsed().as_secs_f64();
    println!("bootstrap, s\t{took:.0}");
    println!("bootstrap, tools/s\t{:.1}", f64::from(tools) / took);
    println!("bootstrap, CPU s of the daemon\t{:.0}", figures::cpu_of(daemon.id()));
    site.sync();
    at_rest(&site, &daemon);
    println!("peak memory of the bootstrap, MiB\t{}", figures::memory_of(daemon.id(), "VmHWM"));
    stop(&daemon);

    let daemon = restart(&site);
    wait_for("bursard is told of changes", DEADLINE, || {
        daemon.log_end().contains("the server pushes changes").then_some(())
    });
    print("new tool to working kubeconfig", (0..new_tools).map(|number| site.new_tool(number)));
    let mut numbers = 0..tools;
    print("deleted quota to its repair", numbers.by_ref().take(repairs as usize).map(|number| site.repair(number)));
    let mut removals = |what: &str| {
        for (name, begin) in [("disabled in LDAP", disable as Begin), ("`bursar revoke`", revoke as Begin)] {
            let numbers = numbers.by_ref().take(each as usize);
            print(&format!("{name} to no access, {what}"), numbers.map(|number| site.removal(number, begin)));
        }
    };
    removals("nothing else happens");
    commands(&site);
    site.add("fail", 700_000, tools / 10, false);
    site.add("more", 500_000, tools / 10, true);
    removals("a tenth as many new tools fail, and as many are created");
    stop(&daemon);
    standby(&site);
}

/// Prints memory, CPU time and requests of a daemon without work.
fn at_rest(site: &Site, daemon: &Process) {
    std::thread::sleep(REST);
    site.sync();
    println!("memory at rest, MiB\t{}", figures::memory_of(daemon.id(), "VmRSS"));
    let (mark, before) = (site.world.servers.cluster.audit_mark(), figures::cpu_of(daemon.id()));
    for _ in 0..CYCLES {
        site.sync();
    }
    let used = (figures::cpu_of(daemon.id()) - before) / f64::from(CYCLES);
    println!("CPU ms of a cycle in which nothing changed\t{:.0}", used * 1e3);
    let requests = site.world.servers.cluster.requests_since(mark);
    let own = requests.iter().filter(|request| request.user == "bursar:daemon" && request.verb != "watch").count();
    println!("requests in {CYCLES} such cycles\t{own}");
}

/// Starts the daemon with the ledger of all tenants.
fn restart(site: &Site) -> Process {
    let cycles = site.world.rows("SELECT 1 FROM cycle").len();
    let began = Instant::now();
    let daemon = site.start("restarted.log");
    let socket = site.world.folder.join("control.sock");
    while UnixStream::connect(&socket).is_err() {
        assert!(began.elapsed() < DEADLINE, "{}", daemon.log_end());
        std::thread::sleep(LOOK);
    }
    println!("start to ready, ms\t{:.0}", milliseconds(began.elapsed()));
    site.wait_for_rows(&format!("SELECT 1 WHERE (SELECT count(*) FROM cycle) > {cycles}"), QUERY / 20, DEADLINE);
    println!("start to the end of the first cycle, ms\t{:.0}", milliseconds(began.elapsed()));
    println!("the same, CPU s\t{:.1}", figures::cpu_of(daemon.id()));
    println!("peak memory of the start, MiB\t{}", figures::memory_of(daemon.id(), "VmHWM"));
    daemon
}

fn stop(daemon: &Process) {
    daemon.signal(Signal::TERM);
    daemon.wait(DEADLINE);
}

/// Prints how long an administrator waits for a command: median of five.
fn commands(site: &Site) {
    for command in ["status", "plan", "why tool tool9", "tools", "history --last 100"] {
        let times = (0..5).map(|_| {
            let began = Instant::now();
            assert!(!site.world.bursar(command).is_empty(), "{command}");
            began.elapsed()
        });
        println!("`bursar {command}`, ms\t{:.0}", milliseconds(figures::median(times.collect())));
    }
}

/// Prints how long it takes until a standby host with a backup of the ledger owns the cluster.
fn standby(site: &Site) {
    let backup = site.world.folder.join("backup.db");
    let (backup, administrator) = (backup.display(), site.world.servers.cluster.admin_kubeconfig.display());
    for (what, command) in [
        ("ledger backup", format!("ledger backup {backup}")),
        ("ledger restore", format!("ledger restore {backup} --older")),
        ("takeover", format!("takeover --admin-kubeconfig {administrator}")),
    ] {
        let mut bursar = Command::new(env!("CARGO_BIN_EXE_bursar"));
        bursar.arg("--config").arg(site.world.config()).args(command.split(' ')).stdout(Stdio::null());
        let began = Instant::now();
        assert!(bursar.status().expect("bursar is built").success(), "{command}");
        println!("`bursar {what}`, ms\t{:.0}", milliseconds(began.elapsed()));
    }
}

/// Starts a removal without waiting for its end.
type Begin = fn(&World, &str);

fn disable(world: &World, tool: &str) {
    let (base, tool) = (world.base.clone(), tool.to_owned());
    let servers = Arc::clone(&world.servers);
    std::thread::spawn(move || servers.slapd.modify_ldif(&disable_ldif(&tool_account_dn(&base, &tool))));
}

fn revoke(world: &World, tool: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
    command.arg("--config").arg(world.config()).args(["revoke", "tool", tool, "--reason", "bench"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bursar is built");
    std::thread::spawn(move || child.wait());
}

/// A site with its servers.
struct Site {
    world: World,
    runtime: tokio::runtime::Runtime,
    administrator: Client,
}

impl Site {
    fn new(tools: u32) -> Self {
        let mut world = World::with("live", SETTINGS);
        world.configure("preset    = \"toolforge\"\n", "preset    = \"toolforge\"\npersist   = true\n");
        let people: Vec<String> =
            (0..tools).map(|number| person_ldif(&world.base, &format!("p{number}"), 300_000 + number)).collect();
        world.add(&people.join("\n"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("the system allows a runtime");
        let administrator = runtime.block_on(client(&world.servers.cluster.admin_kubeconfig));
        let site = Self { world, runtime, administrator };
        site.add("tool", 100_000, tools, true);
        site
    }

    fn start(&self, log: &str) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursard"));
        command.arg("--config").arg(self.world.config());
        Process::start("bursard", &command, &self.world.folder.join(log))
    }

    /// Runs a cycle that reads the directory, and waits for its end.
    fn sync(&self) {
        self.world.bursar("sync");
    }

    /// Adds tools. Unless they work, their homes belong to another user, so that their deliveries fail.
    fn add(&self, prefix: &str, first_uid: u32, count: u32, work: bool) {
        let tool = |number: u32| {
            let (name, uid) = (format!("{prefix}{number}"), first_uid + number);
            self.world.home_of(&name, if work { uid } else { 1 });
            tool_ldif(&self.world.base, &name, uid, &[&format!("p{number}")])
        };
        self.world.add(&(0..count).map(tool).collect::<Vec<_>>().join("\n"));
    }

    fn wait_for_rows(&self, query: &str, interval: Duration, deadline: Duration) {
        let end = Instant::now() + deadline;
        while self.world.rows(AssertSqlSafe(query.to_owned())).is_empty() {
            assert!(Instant::now() < end, "no result of {query}");
            std::thread::sleep(interval);
        }
    }

    /// Adds a tool, and returns the time until the API server has answered a request with its kubeconfig.
    fn new_tool(&self, number: u32) -> Duration {
        let (name, uid) = (format!("new{number}"), 600_000 + number);
        self.world.home_of(&name, uid);
        let kubeconfig = self.world.home(&name).join(".kube/config");
        let began = Instant::now();
        self.world.add(&tool_ldif(&self.world.base, &name, uid, &[]));
        while !kubeconfig.exists() {
            assert!(began.elapsed() < DEADLINE, "{name} has no kubeconfig");
            std::thread::sleep(LOOK);
        }
        self.runtime.block_on(async {
            let pods = pods(&kubeconfig).await;
            while let Err(error) = pods.list(&ListParams::default()).await {
                assert!(began.elapsed() < DEADLINE, "{name}: {error}");
            }
        });
        began.elapsed()
    }

    /// Deletes a tool's quota, and returns the time until the quota is there again.
    fn repair(&self, number: u32) -> Duration {
        let namespace = self.world.namespace(&format!("tool{number}"));
        let quotas: Api<ResourceQuota> = Api::namespaced(self.administrator.clone(), &namespace);
        self.runtime.block_on(async {
            let began = Instant::now();
            quotas.delete("bursar", &DeleteParams::default()).await.expect("the administrator may delete quotas");
            while quotas.get_opt("bursar").await.expect("the administrator may read quotas").is_none() {
                assert!(began.elapsed() < DEADLINE, "the quota of {namespace} was not repaired");
                tokio::time::sleep(LOOK).await;
            }
            began.elapsed()
        })
    }

    fn removal(&self, number: u32, start: Begin) -> Duration {
        let tool = format!("tool{number}");
        let old = self.copy(&tool);
        self.runtime.block_on(async {
            let pods = pods(&old).await;
            pods.list(&ListParams::default()).await.expect("the old certificate is accepted");
            let began = Instant::now();
            start(&self.world, &tool);
            loop {
                match pods.list(&ListParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 403 => return began.elapsed(),
                    _ => assert!(began.elapsed() < DEADLINE, "{tool} has access"),
                }
                tokio::time::sleep(LOOK).await;
            }
        })
    }

    fn copy(&self, tool: &str) -> PathBuf {
        let kubeconfig = self.world.home(tool).join(".kube/config");
        let old = self.world.folder.join("old");
        wait_for("the tool's kubeconfig", DEADLINE, || std::fs::copy(&kubeconfig, &old).ok());
        old
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let file = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig is readable");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("the kubeconfig has a context")).expect("the kubeconfig is valid")
}

/// Returns the pods of the kubeconfig's namespace.
async fn pods(kubeconfig: &Path) -> Api<Pod> {
    let client = client(kubeconfig).await;
    let namespace = client.default_namespace().to_owned();
    Api::namespaced(client, &namespace)
}

fn print(what: &str, times: impl Iterator<Item = Duration>) {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    let at = |share: usize| milliseconds(times[(times.len() - 1) * share / 100]);
    println!("{what}: p50, p99, longest, ms\t{:.0}, {:.0}, {:.0}", at(50), at(99), at(100));
}
