//! The command `bursar` as administrators and scripts use it: exit codes, text and JSON, with a daemon and without. The
//! directory is a file and no cluster answers, so most of these tests need no servers.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use bursar::store::{FILE, SEAL_KEY, Store};
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::folder::Folder;
use bursar_testkit::process::Process;
use bursar_testkit::ready::DEADLINE;
use rustix::process::Signal;
use serde_json::Value;

use crate::quiet::own_servers;
use crate::world::{World, text};

/// The line of `/etc/passwd` for user bursar.
const BURSAR: &str = "bursar:x:61997:61997::/:/bin/false\n";
/// Mounts the file `passwd` in place of `/etc/passwd`.
const OTHER_USERS: &str = "mount --bind passwd /etc/passwd";
/// A uid that is in no group of Bursar's.
const STRANGER: u32 = 61_998;

const PEOPLE: &str = "dn: uid=alice,ou=people,dc=example,dc=org
objectClass: posixAccount
entryUUID: 00000000-0000-0000-0000-000000000001
createTimestamp: 20260101000000Z
uid: alice
cn: Alice
uidNumber: 3001
gidNumber: 3000
homeDirectory: /home/alice

dn: uid=root,ou=people,dc=example,dc=org
objectClass: posixAccount
entryUUID: 00000000-0000-0000-0000-000000000002
createTimestamp: 20260101000000Z
uid: toor
cn: Toor
uidNumber: 0
gidNumber: 3000
homeDirectory: /home/toor
";

/// A site whose only source is a file.
pub struct Site {
    folder: Folder,
}

impl Site {
    /// Returns a site with what `bursar init` leaves in the state folder.
    pub fn new() -> Self {
        let (site, runtime) = (Self::before_init(), tokio::runtime::Runtime::new().expect("a runtime starts"));
        runtime.block_on(async {
            let (store, _lock) = Store::create(&site.path("state")).await.expect("the folder is writable");
            store.close().await.expect("the ledger closes");
        });
        fs::write(site.path("state").join(SEAL_KEY), [7; 32]).expect("the folder is writable");
        site
    }

    fn before_init() -> Self {
        let site = Self { folder: Folder::create("cli") };
        fs::create_dir(site.path("state")).expect("the parent folder is writable");
        fs::write(site.path("people.ldif"), PEOPLE).expect("the folder is writable");
        site.configure("");
        site
    }

    /// Returns a site with a class in an unreachable cluster.
    fn with_student() -> Self {
        let site = Self::new();
        site.configure(&site.student());
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn configure(&self, more: &str) {
        let (state, control) = (self.path("state"), self.path("control.sock"));
        let (state, control) = (state.display(), control.display());
        let text = format!(
            "site = \"cli\"\nstate_dir = \"{state}\"\n[control]\nsocket = \"{control}\"\n[[source]]\nname = \"people\"\n\
             type = \"ldif\"\npreset = \"rfc2307\"\npath = \"people.ldif\"\n\
             [source.users]\nbase = \"ou=people,dc=example,dc=org\"\n{more}"
        );
        fs::write(self.path("bursar.toml"), text).expect("the folder is writable");
    }

    /// Returns the configuration of a class in an unreachable cluster.
    fn student(&self) -> String {
        let authority = bursar_testkit::pki::Authority::new("nobody's");
        fs::write(self.path("ca.pem"), &authority.identity().certificate).expect("the folder is writable");
        "[cluster.prod.endpoint.internal]\nurl = \"https://127.0.0.1:9\"\nca = \"ca.pem\"\n[class.student]\n\
         from = \"users\"\nclusters = [\"prod\"]\nnamespace = \"user-{name}\"\n"
            .to_owned()
    }

    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command.env("BURSAR_CONFIG", self.path("bursar.toml")).args(arguments.split_whitespace());
        command
    }

    /// Returns `bursar` in a mount namespace of its own, in which `script` runs first, in the folder of the site.
    fn unshared(&self, script: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        let script = format!("{script} && exec \"$@\"");
        command.args(["-m", "--propagation", "private", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_bursar")]);
        command.args(arguments).current_dir(self.folder.path()).env("BURSAR_CONFIG", self.path("bursar.toml"));
        command
    }

    /// Runs a command, checks its exit code, and returns its output.
    pub fn run(&self, arguments: &str, exit: i32) -> String {
        ended(&mut self.command(arguments), exit, arguments)
    }

    pub fn json(&self, arguments: &str, exit: i32) -> Value {
        let output = self.run(&format!("--json {arguments}"), exit);
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{arguments}: {error}\n{output}"))
    }

    pub fn daemon(&self) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursard"));
        command.arg("--config").arg(self.path("bursar.toml"));
        let process = Process::start("bursard", &command, &self.path("bursard.log"));
        process.wait_until("the control socket", DEADLINE, || {
            self.command("status").output().is_ok_and(|output| !text(&output).contains("does not run"))
                && self.path("control.sock").exists()
        });
        process
    }
}

/// Returns `/etc/passwd` without the user bursar.
fn users() -> String {
    let users = fs::read_to_string("/etc/passwd").expect("the file is readable");
    users.split_inclusive('\n').filter(|line| !line.starts_with("bursar:")).collect()
}

/// Returns standard output if the exit code is 0, otherwise standard output and standard error.
fn ended(command: &mut Command, exit: i32, what: &str) -> String {
    let output = command.output().expect("bursar is built");
    assert_eq!(output.status.code(), Some(exit), "{what}\n{}", text(&output));
    if exit == 0 { String::from_utf8_lossy(&output.stdout).into_owned() } else { text(&output) }
}

#[test]
fn a_plan_compares_another_configuration_with_the_one_in_force() {
    let site = Site::new();
    let daemon = site.daemon();
    let other = fs::read_to_string(site.path("bursar.toml")).expect("the world has a configuration");
    let other = format!("{other}{}", site.student());
    fs::write(site.path("other.toml"), &other).expect("the folder is writable");
    let file = site.path("other.toml");
    let plan = |more: &str, exit| site.run(&format!("plan --config {} {more}", file.display()), exit);
    let (mut by_option, mut by_variable) = (site.command("plan"), site.command("plan"));
    for command in [by_option.arg("--config").arg(&file), by_variable.env("BURSAR_CONFIG", &file)] {
        let said = text(&command.output().expect("bursar is built"));
        assert!(said.contains("gain access: 1: user alice") && said.contains("lose access: nobody"), "{said}");
        // Nothing is known of a cluster that only the other configuration has.
        assert!(said.contains("as if cluster prod were empty") && said.contains("user-alice"), "{said}");
    }
    assert!(!site.run("plan", 0).contains("gain access"), "the configuration in force is not compared with itself");
    assert!(plan("--at 2020-01-01", 64).contains("is in the past"));
    let in_force = format!("plan --config {} --at 2999-01-01", site.path("bursar.toml").display());
    assert!(site.run(&in_force, 0).contains("nothing falls due"));
    fs::write(&file, format!("{other}[lifecycl]\n")).expect("the folder is writable");
    assert!(plan("", 78).contains("did you mean lifecycle?"));

    // The daemon reads, with its own rights, the files that a configuration names. So only administrators may request a
    // plan for another configuration.
    fs::write(&file, &other).expect("the folder is writable");
    let answer = stranger_asks(&site, &file);
    assert!(answer.contains("reading needs group bursar"), "{answer}");
    drop(daemon);
}

/// Returns the daemon's answer to a stranger's direct request for a plan of a configuration file.
fn stranger_asks(site: &Site, file: &std::path::Path) -> String {
    let body = serde_json::json!({"config": {"file": file, "text": "site = \"x\""}, "at": null}).to_string();
    let mut command = Command::new("curl");
    command.args(["-s", "--unix-socket"]).arg(site.path("control.sock")).args(["-H", "content-type: application/json"]);
    command.args(["-d", &body, "http://bursard/v1/plan"]).uid(STRANGER);
    text(&command.output().expect("curl is installed"))
}

/// Returns the answer of the daemon, whose socket a wrong file cannot hide.
fn status_of(site: &Site) -> String {
    let mut command = Command::new("curl");
    command.args(["-s", "--unix-socket"]).arg(site.path("control.sock")).arg("http://bursard/v1/status");
    text(&command.output().expect("curl is installed"))
}

#[test]
fn the_status_says_why_a_reload_was_refused() {
    let site = Site::new();
    let daemon = site.daemon();
    let guests = "[[source]]\nname = \"guests\"\ntype = \"ldap\"\npreset = \"rfc2307\"\n\
                  urls = [\"ldaps://ldap.example.org\"]\nbind_dn = \"cn=bursar\"\n\
                  password = { credential = \"bursar-no-such\" }\n\
                  [source.users]\nbase = \"ou=people,dc=example,dc=org\"\n";
    site.configure(guests);
    assert!(site.run("check", 0).contains("bursar-no-such"), "the unit may have the credential");
    daemon.signal(Signal::HUP);
    daemon.wait_until("the refusal", DEADLINE, || status_of(&site).contains("was refused at the reload of"));
    let status = status_of(&site);
    assert!(status.contains("bursar-no-such") && !status.contains("systemctl reload bursard"), "{status}");
    site.configure("");
    daemon.signal(Signal::HUP);
    daemon.wait_until("the status without it", DEADLINE, || !status_of(&site).contains("was refused"));
}

#[test]
fn a_reload_is_refused_if_a_key_differs_that_only_a_restart_applies() {
    let site = Site::new();
    let daemon = site.daemon();
    let file = site.path("bursar.toml");
    let right = fs::read_to_string(&file).expect("the site has a configuration");
    let elsewhere = |name: &str| right.replace(&format!("{name}\""), &format!("{name}-2\""));
    let status = || status_of(&site);
    for (key, other) in [
        ("state_dir", elsewhere("/state")),
        ("control.socket", elsewhere("/control.sock")),
        ("metrics.listen", format!("{right}[metrics]\nlisten = \"127.0.0.1:0\"\n")),
    ] {
        fs::write(&file, other.replace("site = \"cli\"", "site = \"other\"")).expect("the folder is writable");
        daemon.signal(Signal::HUP);
        let refused = format!("{key}: cannot change while bursard runs");
        daemon.wait_until(&refused, DEADLINE, || {
            fs::read_to_string(site.path("bursard.log")).is_ok_and(|log| log.contains(&refused))
        });
        let status = status();
        assert!(status.contains("\"site\":\"cli\"") && status.contains("systemctl restart bursard"), "{status}");
    }
    fs::write(&file, right.replace("site = \"cli\"", "site = \"other\"")).expect("the folder is writable");
    daemon.signal(Signal::HUP);
    daemon.wait_until("the other site", DEADLINE, || status().contains("\"site\":\"other\""));
}

#[test]
fn before_init_the_plan_shows_the_accounts_of_the_directories() {
    let site = Site::before_init();
    site.configure(&site.student());
    let said = text(&site.command("plan").output().expect("bursar is built"));
    assert!(said.contains("+ user alice") && said.contains("`bursar init` was not run yet"), "{said}");
    assert!(!site.path("state/ledger.db").exists(), "a preview makes no ledger");
}

#[test]
fn a_cycle_fails_if_a_cluster_is_unreachable() {
    let site = Site::with_student();
    for arguments in ["sync --once", "sync --once"] {
        let said = site.run(arguments, 1);
        assert!(
            said.contains("cluster prod: not reachable: ") && said.contains("tenants that wait for it: 1"),
            "{said}"
        );
    }
    assert!(site.run("status", 0).contains("cluster prod: not reachable: "));
    let plan = text(&site.command("plan").output().expect("bursar is built"));
    assert!(
        plan.contains("! cluster prod: ") && plan.contains("prod.kubeconfig"),
        "the plan names the missing kubeconfig: {plan}"
    );
}

#[test]
fn a_command_without_the_administrators_kubeconfig_names_the_option() {
    let site = Site::with_student();
    let mut command = site.command("takeover");
    command.env("HOME", site.path("nowhere")).env_remove("KUBECONFIG");
    let said = ended(&mut command, 64, "takeover");
    assert!(said.contains("--admin-kubeconfig prod=FILE"), "{said}");
    let said = ended(command.env("KUBECONFIG", "/a:/b"), 64, "takeover with several kubeconfigs");
    assert!(said.contains("KUBECONFIG names several files"), "{said}");
    // Nothing shows yet which cluster is meant.
    let mut command = site.command("init --cluster prod");
    let said = ended(command.env("KUBECONFIG", "/a"), 64, "the first init");
    assert!(said.contains("kubeconfig of cluster prod: --admin-kubeconfig FILE"), "{said}");
}

#[test]
fn errors_about_a_kubeconfig_quote_nothing_of_it() {
    let site = Site::with_student();
    let said = |text: &str| {
        fs::write(site.path("admin"), text).expect("the folder is writable");
        site.run(&format!("init --cluster prod --admin-kubeconfig {}", site.path("admin").display()), 1)
    };
    let twice = said("kind: Config\ntoken: hunter2\nkind: Config\n");
    assert!(twice.contains("admin is not a kubeconfig: line 3 ") && !twice.contains("hunter2"), "{twice}");
    let absent = site.run("init --cluster prod --admin-kubeconfig /nonexistent", 1);
    assert_eq!(absent.matches("/nonexistent").count(), 1, "{absent}");
}

#[test]
fn a_restore_names_what_it_cannot_read() {
    let site = Site::new();
    let folder = site.path("state").display().to_string();
    let said = site.run(&format!("ledger restore {folder}"), 1);
    assert!(said.starts_with(&format!("cannot read {folder}: it is not a regular file")), "{said}");
}

#[test]
fn a_file_is_not_compared_with_a_server() {
    let site = Site::new();
    for source in ["people", ""] {
        let said = site.run(&format!("directory diff {source} --server ldap://127.0.0.1:9"), 64);
        assert!(said.contains("only sources of type ldap and ad have servers"), "{said}");
    }
    let said = site.run("directory diff nosuch --server ldap://127.0.0.1:9", 64);
    assert!(said.contains("no source \"nosuch\"; there are: people"), "{said}");
}

#[test]
fn test_runs_stay_root_on_hosts_with_user_bursar() {
    let site = Site::new();
    fs::set_permissions(site.path("bursar.toml"), fs::Permissions::from_mode(0o600))
        .expect("tests run as root, who may change modes");
    fs::write(site.path("passwd"), users() + BURSAR).expect("the folder is writable");
    let plan = || site.unshared(OTHER_USERS, &["plan"]);
    assert!(!plan().status().expect("unshare runs").success(), "user bursar cannot read the configuration");
    let stayed = plan().env("BURSAR_TEST_STAY_ROOT", "1").output().expect("unshare runs");
    assert!(stayed.status.success(), "{}", text(&stayed));
}

#[test]
fn wrong_arguments_end_with_64() {
    let site = Site::new();
    for arguments in [
        "",
        "nonsense",
        "show tool",
        "show pod foo",
        "suspend tool foo",
        "revoke --reason x",
        "revoke --all --reason x",
    ] {
        let said = site.run(arguments, 64);
        assert!(said.contains("Usage: ") && !said.contains("--config <FILE>"), "{arguments}: {said}");
    }
    for (arguments, example) in [
        ("certs --expiring soon", "for example 30s"),
        ("ensure user alice --timeout x", "for example 30s"),
        ("ensure user alice --timeout 18446744073709551615s", "for example 30s"),
        ("revoke user alice --evict --reason x --since yesterday", "for example 2027-01-01"),
        ("revoke user alice --evict --reason x --since 2999-01-01", "is in the future"),
    ] {
        let said = site.run(arguments, 64);
        assert!(said.contains(example), "{arguments}: {said}");
    }
    site.run("certs who X509SHA256=12", 64);
    site.run("init --admin-kubeconfig x --cluster prod", 64);
    site.run("--help", 0);
    site.run("--version", 0);
}

#[test]
fn a_wrong_configuration_ends_with_78_before_anything_is_touched() {
    let site = Site::before_init();
    site.configure("[limits]\nsuspend_per_cycle = { count = \"many\" }\n[lifecycl]\n");
    for arguments in ["check", "plan", "sync --once", "status", "doctor", "tools"] {
        let said = site.run(arguments, 78);
        assert!(said.contains("bursar.toml: limits.suspend_per_cycle.count: \"many\" is not a number"), "{said}");
        assert!(said.contains("bursar.toml: lifecycl: there is no such key; did you mean lifecycle?"), "{said}");
    }
    assert!(!site.path("state/ledger.db").exists());
    let mut command = site.command("check");
    ended(command.env("BURSAR_CONFIG", "/nonexistent/bursar.toml"), 78, "no file");
}

#[test]
fn control_characters_in_errors_are_replaced() {
    let site = Site::new();
    site.configure("[\"a\\u001b[31mb\"]\n");
    let said = site.run("plan", 78);
    assert!(said.contains("a\u{fffd}[31mb") && !said.contains('\u{1b}'), "{said:?}");
}

#[test]
fn check_prints_json_for_valid_and_invalid_configurations() {
    let site = Site::new();
    let mut stray = site.command("--json check");
    let warned = ended(stray.env("BURSAR_LIMTS__X", "1"), 0, "a stray variable");
    let warned: Value = serde_json::from_str(&warned).expect("the text is JSON");
    assert!(warned["warnings"][0].as_str().is_some_and(|warning| warning.contains("did you mean limits?")), "{warned}");
    site.configure("[lifecycl]\n");
    let wrong = site.json("check", 78);
    assert_eq!(wrong["ok"], false);
    assert!(wrong["errors"][0].as_str().is_some_and(|error| error.contains("lifecycl")), "{wrong}");
}

#[test]
fn doctor_resolves_names_and_check_does_not() {
    let site = Site::new();
    let volume = "{ name = \"home\", kind = \"static\", nfs = { server = \"nfs.site.test\", path = \"/srv/{name}\" } }";
    site.configure(&format!(
        "{}network = \"lab\"\nvolumes = [{volume}]\n[network.lab]\nallow_egress = [{{ cidr = \"198.51.100.0/24\" }}]\n\
         [security]\nstrict_egress = true\n",
        site.student()
    ));
    let resolver = UdpSocket::bind("127.77.14.1:53").expect("the address belongs to this host");
    resolver.set_read_timeout(Some(Duration::from_millis(1))).expect("the timeout is not zero");
    let is_asked = || resolver.recv(&mut [0; 512]).is_ok();
    fs::write(site.path("resolv.conf"), "nameserver 127.77.14.1\noptions timeout:1 attempts:1\n")
        .expect("the folder is writable");
    let run = |arguments: &str| {
        let mut command = site.unshared("mount --bind resolv.conf /etc/resolv.conf", &[arguments]);
        command.output().expect("unshare is installed")
    };
    let check = run("check");
    assert!(check.status.success() && !is_asked(), "{}", text(&check));
    assert!(text(&check).contains("nfs.server nfs.site.test is not an address"), "{}", text(&check));
    let doctor = run("doctor");
    assert!(is_asked() && text(&doctor).contains("nfs.site.test does not resolve"), "{}", text(&doctor));
}

#[test]
fn orders_work_while_the_configuration_file_has_errors() {
    let site = Site::new();
    let daemon = site.daemon();
    site.run("sync", 0);
    assert_eq!(site.json("status", 0)["configuration"], Value::Null);
    site.configure("[lifecycl]\n");
    site.run("check", 78);
    site.run("plan", 78);
    site.run("hold user alice --reason audit", 0);
    site.run("sync", 0);
    site.run("approve 00000000", 1);
    let said = site.run("status", 0);
    assert!(said.contains("differs from the configuration in force, and has errors"), "{said}");
    fs::write(site.path("bursar.toml"), "").expect("the folder is writable");
    let mut named = site.command("release user alice");
    ended(named.env("BURSAR_CONTROL__SOCKET", site.path("control.sock")), 0, "the environment names the socket");
    daemon.signal(Signal::TERM);
    assert!(daemon.wait(DEADLINE).success(), "{}", daemon.log_end());
    site.configure("[lifecycl]\n");
    site.run("hold user alice --reason audit", 78);
}

#[test]
fn without_a_daemon_commands_work_on_the_ledger_themselves() {
    let site = Site::new();
    assert_eq!(site.json("check", 0)["sources"][0], "people");
    site.run("sync", 69);
    site.run("plan", 0);
    let report = site.json("sync --once", 0);
    assert_eq!((report["rejected"].as_u64(), report["trigger"].as_str()), (Some(1), Some("sync")));
    let source = site.json("status", 0)["sources"]["people"].clone();
    assert_eq!((&source["way"], source.get("compared")), (&"full".into(), Some(&Value::Null)));
    let users = site.json("users", 0);
    assert_eq!((users[0]["name"].as_str(), users[0]["uid"].as_u64()), (Some("alice"), Some(3001)));
    assert_eq!(site.json("users --suspended", 0), Value::Array(Vec::new()));
    assert_eq!(site.run("users --suspended", 0), "no suspended users\n");
    assert_eq!(site.run("tools", 0), "no tools in the ledger\n");
    assert!(site.run("status", 0).contains("rejected: user toor: uid 0 is not in 1000..2147483646"));
    assert_eq!(site.json("show user alice", 0)["ledger"]["state"], "new");
    site.run("show user nobody", 4);
    site.run("history tool foo", 4);
    site.run("suspend tool foo --reason x", 4);
    let said = site.run("quota import /nonexistent", 64);
    assert!(said.contains("one order per line"), "{said}");
    site.run("approve 00000000", 1);
    let why = site.json("why user alice", 0);
    let missing = why["steps"].as_array().into_iter().flatten().find(|step| step["at"] == "class");
    assert_eq!(missing.map(|step| step["text"].clone()), Some("no class takes this user".into()));
    let objects = why["steps"].as_array().into_iter().flatten().find(|step| step["at"] == "objects");
    assert_eq!(objects, None, "the missing class is the only reason");
    assert!(site.run("why user toor", 4).contains("is rejected: uid 0 is not in 1000..2147483646"));
    assert_eq!(site.json("hold user alice --reason audit --ticket T1", 0)["report"], Value::Null);
    let history = site.json("history user alice", 0);
    let held = history.as_array().into_iter().flatten().find(|event| event["action"] == "held");
    assert_eq!(
        held.map(|event| (event["reason"].clone(), event["ticket"].clone())),
        Some(("audit".into(), "T1".into()))
    );
    assert_eq!(site.json("ledger verify", 0)["ok"], true);
    let mut other = site.command("users");
    let copy = site.path("copy.db");
    fs::copy(site.path("state/ledger.db"), &copy).expect("the file can be copied");
    let listed = ended(other.arg("--ledger").arg(&copy).env("BURSAR_CONFIG", "/nonexistent"), 0, "--ledger");
    assert!(listed.contains("alice"), "{listed}");
    let said = site.run(&format!("users --ledger {}", site.path("people.ldif").display()), 1);
    assert!(said.contains("people.ldif is neither a ledger") && !said.contains("move ledger.db aside"), "{said}");
    let said = site.run(&format!("users --ledger {}", site.path("nowhere.db").display()), 1);
    assert!(said.contains("nowhere.db: ") && !said.contains("sync --once"), "{said}");
}

#[test]
fn with_a_daemon_commands_ask_the_daemon() {
    let site = Site::new();
    let daemon = site.daemon();
    site.run("sync --once", 75);
    assert_eq!(site.json("sync", 0)["trigger"], "sync");
    assert_eq!(site.json("status", 0)["site"], "cli");
    assert!(site.run("plan", 0).contains("0 to change"));
    site.run("hold user alice --reason audit", 0);
    site.run("release user nobody", 4);
    site.run("release user alice", 0);
    let backup = site.path("backup.db").display().to_string();
    assert!(site.json(&format!("ledger backup {backup}"), 0)["events"].as_i64() > Some(1));
    assert!(site.run(&format!("users --ledger {backup}"), 0).contains("alice"));
    let said = site.run(&format!("status --ledger {backup}"), 0);
    assert!(said.contains(&format!("the last state in {backup}")) && !said.contains("not running"), "{said}");
    let said = site.run("show group nobody", 4);
    assert!(said.contains("compare the name with the directory") && !said.contains("bursar groups"), "{said}");
    assert!(site.run(&format!("ledger backup {backup}"), 1).contains("exists"), "a backup never replaces a file");
    for arguments in ["status", "sync", "hold user alice --reason audit"] {
        let mut stranger = site.command(arguments);
        let said = ended(stranger.uid(STRANGER).gid(STRANGER), 77, arguments);
        assert!(said.contains("group bursar") || said.contains("both groups bursar and bursar-admin"), "{said}");
    }
    let mut stranger = site.command("doctor");
    let said = ended(stranger.uid(STRANGER).gid(STRANGER), 77, "doctor");
    assert!(said.contains("needs root or user bursar"), "{said}");
    daemon.signal(Signal::TERM);
    assert!(daemon.wait(DEADLINE).success(), "{}", daemon.log_end());
    let mut stranger = site.command("sync --once");
    ended(stranger.uid(STRANGER).gid(STRANGER), 69, "a stranger needs the daemon");
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let site = Site::new();
    assert!(site.run("completions bash", 0).contains("_bursar"));
    assert!(site.run("man", 0).contains(".TH"));
    assert_eq!(site.run("names source", 0), "people\n");
    assert!(site.json("completions bash", 0)["script"].as_str().is_some_and(|script| script.contains("_bursar")));
    assert!(site.json("man", 0)["page"].as_str().is_some_and(|page| page.contains(".TH")));
    let pages = site.path("pages");
    assert_eq!(site.json(&format!("man --out {}", pages.display()), 0)["folder"], pages.display().to_string());
    assert!(pages.join("bursar-homed.8").exists(), "the folder is made");
    for arguments in ["completions bash", "man"] {
        let mut head = Command::new("bash");
        head.args(["-c", "set -o pipefail; \"$@\" | head -n 1", "head"]).arg(env!("CARGO_BIN_EXE_bursar"));
        let said = text(&head.args(arguments.split(' ')).output().expect("bash is installed"));
        assert!(!said.contains("Broken pipe"), "{said}");
    }
}

#[test]
fn an_answer_that_is_not_written_is_an_error_unless_nobody_reads_it() {
    let site = Site::before_init();
    site.configure(&site.student());
    for (arguments, exit) in [("completions bash", 0), ("man", 0), ("--help", 0), ("check", 0), ("plan", 2)] {
        let (reader, closed) = std::io::pipe().expect("a pipe is created");
        drop(reader);
        let unread = site.command(arguments).stdout(closed).output().expect("bursar is built");
        assert_eq!((unread.status.code(), text(&unread).contains("pipe")), (Some(exit), false), "{arguments}");
        let full = fs::File::options().write(true).open("/dev/full").expect("Linux has /dev/full");
        let failed = site.command(arguments).stdout(full).output().expect("bursar is built");
        let said = text(&failed);
        assert!(
            failed.status.code() == Some(1) && said.contains("cannot write to standard output"),
            "{arguments}: {said}"
        );
    }
}

#[test]
fn a_terminal_gets_folded_lines_and_colours_unless_options_say_otherwise() {
    let site = Site::new();
    site.run("sync --once", 0);
    let width = |arguments: &str, columns: Option<&str>| {
        let mut command = site.command(arguments);
        command.env_remove("COLUMNS").envs(columns.map(|columns| ("COLUMNS", columns)));
        ended(&mut command, 0, arguments).lines().map(|line| line.chars().count()).max().unwrap_or_default()
    };
    assert!(width("status", None) > 80, "a pipe gets whole lines");
    assert!(width("status", Some("80")) <= 80);
    assert!(width("status --wide", Some("80")) > 80);
    let shown = |no_colour: &str, term: &str| {
        let line = format!("{} why user alice", env!("CARGO_BIN_EXE_bursar"));
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("BURSAR_CONFIG", site.path("bursar.toml"));
        command.env("TERM", term).env("NO_COLOR", no_colour);
        ended(&mut command, 0, "why on a terminal").contains('\u{1b}')
    };
    assert!(shown("", "xterm"));
    assert!(!shown("1", "xterm") && !shown("", "dumb"));
}

/// Commands that need the ledger: queries, orders, and what does the daemon's work.
const OF_THE_LEDGER: [&str; 10] = [
    "tools",
    "status",
    "why user alice",
    "history user alice",
    "ledger verify",
    "archive show x",
    "home show user alice",
    "suspend user alice --reason x",
    "quota list",
    "sync --once",
];

const KUBECONFIG: &str = "{kind: Config, clusters: [{name: prod, cluster: {server: 'https://127.0.0.1:9'}}], users: \
    [{name: admin, user: {}}], contexts: [{name: admin, context: {cluster: prod, user: admin}}], current-context: admin}";

#[test]
fn a_lost_ledger_is_recovered_and_never_replaced_by_an_empty_one() {
    let site = Site::with_student();
    fs::remove_file(site.path("state").join(FILE)).expect("the site has a ledger");
    let must_name_the_remedies = |said: &str| {
        let remedies = ["bursar ledger restore", "bursar ledger rebuild", "bursar takeover"];
        assert!(said.contains("so the ledger was lost") && remedies.iter().all(|it| said.contains(it)), "{said}");
        assert!(!site.path("state").join(FILE).exists(), "{said}");
    };
    fs::write(site.path("admin"), KUBECONFIG).expect("the folder is writable");
    let init = format!("init --cluster prod --admin-kubeconfig {}", site.path("admin").display());
    for arguments in OF_THE_LEDGER.into_iter().chain(["plan", &init, &format!("{init} --dry-run")]) {
        must_name_the_remedies(&site.run(arguments, 78));
    }
    must_name_the_remedies(&site.run("doctor", 1));
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_bursard"));
    must_name_the_remedies(&ended(daemon.arg("--config").arg(site.path("bursar.toml")), 78, "bursard"));
}

#[test]
fn before_init_commands_say_how_the_ledger_is_created() {
    let site = Site::before_init();
    site.configure(&site.student());
    for arguments in OF_THE_LEDGER.into_iter().filter(|arguments| *arguments != "sync --once") {
        let said = site.run(arguments, 1);
        assert!(said.contains("there is no ledger yet; `bursar init` or the first cycle creates it"), "{said}");
        assert!(!site.path("state").join(FILE).exists(), "{arguments}");
    }
}

#[test]
fn an_empty_file_or_a_foreign_database_does_not_become_a_ledger() {
    let site = Site::new();
    let ledger = site.path("state/ledger.db");
    fs::write(&ledger, "").expect("the folder is writable");
    for arguments in ["suspend user alice --reason x", "ledger verify", "users", "plan", "sync --once"] {
        assert!(site.run(arguments, 78).contains("the file is empty"), "{arguments}");
    }
    site.run(&format!("ledger backup {}", site.path("copy").display()), 78);
    assert_eq!(fs::metadata(&ledger).map(|found| found.len()).ok(), Some(0));
    let made = Command::new("sqlite3").arg(&ledger).arg("CREATE TABLE theirs (id)").status();
    assert!(made.expect("sqlite3 is installed").success());
    let refused = site.run("suspend user alice --reason x", 1);
    assert!(refused.contains("a database of another program"), "{refused}");
}

#[test]
fn a_login_does_not_wait_for_a_daemon_that_hangs() {
    let site = Site::new();
    let _silent = UnixListener::bind(site.path("control.sock")).expect("the folder is writable");
    let said = site.run("ensure user alice --timeout 1s", 1);
    assert!(said.contains("not ready within 1 s: bursard does not answer"), "{said}");
}

#[test]
fn a_locked_or_damaged_ledger_is_named_as_such() {
    let site = Site::new();
    site.run("sync --once", 0);
    let ledger = site.path("state/ledger.db");
    let mut command = Command::new("sqlite3");
    command.arg(&ledger).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().expect("sqlite3 is installed");
    let mut typed = program.stdin.take().expect("the input is a pipe");
    typed.write_all(b"BEGIN EXCLUSIVE;\n.print locked\n").expect("sqlite3 reads");
    program.stdout.take().expect("the output is a pipe").read_exact(&mut [0; 7]).expect("the ledger is locked");
    assert!(site.run("users", 75).contains("another program, such as sqlite3, holds the ledger's lock"));
    drop(typed);
    program.wait().expect("sqlite3 ends with its input");
    site.run("users", 0);
    fs::write(&ledger, [7; 5000]).expect("the file is ours");
    for arguments in ["users", "status", "ledger verify", "hold user alice --reason x"] {
        let said = site.run(arguments, 1);
        assert!(said.contains("the ledger is damaged") && said.contains("bursar ledger restore"), "{said}");
    }
}

#[test]
fn a_backup_that_fails_leaves_no_file() {
    let site = Site::new();
    site.run("sync --once", 0);
    fs::write(site.path("passwd"), users() + BURSAR).expect("the folder is writable");
    fs::create_dir(site.path("backups")).expect("the folder is writable");
    let backup = |size: &str, exit: i32| {
        let script = format!(
            "{OTHER_USERS} && mount -t tmpfs -o size={size} none backups && {{ \"$@\"; code=$?; ls -A backups | sed \
             's/^/left: /'; exit $code; }}"
        );
        let mut command = site.unshared(&script, &["ledger", "backup", "backups/copy"]);
        command.env_remove("BURSAR_TEST_STAY_ROOT");
        ended(&mut command, exit, size)
    };
    // User bursar may not read the ledger of root.
    let said = backup("64m", 77);
    assert!(said.contains("reading needs group bursar") && !said.contains("left: "), "{said}");
    for file in ["state", "state/ledger.db"] {
        std::os::unix::fs::chown(site.path(file), Some(61_997), Some(61_997)).expect("tests run as root");
    }
    let said = backup("16k", 1);
    assert!(said.contains("cannot write the backup: No space left") && !said.contains("left: "), "{said}");
    let said = backup("64m", 0);
    assert!(said.contains("verified\nleft: copy\n"), "{said}");
}

#[test]
fn without_a_daemon_the_ledger_shows_people_their_own_account() {
    let site = Site::new();
    site.run("sync --once", 0);
    let backup = site.path("backup.db");
    site.run(&format!("ledger backup {}", backup.display()), 0);
    fs::set_permissions(&backup, fs::Permissions::from_mode(0o644)).expect("the file is ours");
    for command in ["show", "why"] {
        let mut alice = site.command(command);
        let said = ended(alice.arg("--ledger").arg(&backup).uid(3001).gid(3000), 0, command);
        assert!(said.contains("alice"), "{said}");
        let said = site.run(command, 77);
        assert!(said.contains("this account cannot be shown"), "root has no account: {said}");
        let mut stranger = site.command(command);
        ended(stranger.uid(STRANGER).gid(STRANGER), 69, "a person who may not read the ledger needs the daemon");
    }
}

#[test]
fn check_as_root_finds_what_user_bursar_cannot_read() {
    let site = Site::with_student();
    let check = |user: &str, exit: i32| {
        fs::write(site.path("passwd"), users() + user).expect("the folder is writable");
        let mut command = site.unshared(OTHER_USERS, &["check"]);
        ended(command.env_remove("BURSAR_TEST_STAY_ROOT"), exit, user)
    };
    let mode = |name: &str, mode: u32| {
        fs::set_permissions(site.path(name), fs::Permissions::from_mode(mode)).expect("the file is ours");
    };
    check(BURSAR, 0);
    mode("ca.pem", 0o600);
    let said = check(BURSAR, 78);
    assert!(said.contains("ca.pem: Permission denied") && said.contains("let user bursar read the file"), "{said}");
    check("", 0);
    mode("ca.pem", 0o644);
    mode("bursar.toml", 0o600);
    let said = check(BURSAR, 0);
    assert!(said.contains("warning: user bursar may not read") && said.contains("chmod 0640"), "{said}");
    mode("bursar.toml", 0o644);
    fs::create_dir_all(site.path("manifests/student")).expect("the folder is writable");
    mode("manifests/student", 0o700);
    let said = check(BURSAR, 78);
    assert!(said.contains("manifests/student: ") && said.contains("Permission denied"), "{said}");
}

#[test]
fn doctor_finds_no_problem_after_init() {
    let world = World::on(own_servers(&ControlPlaneOptions::default()), "doctor", "");
    let admin = &world.servers.cluster.admin_kubeconfig;
    let bursar = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command.arg("--config").arg(world.config()).arg("--json").args(arguments).env("KUBECONFIG", admin);
        let output = command.output().expect("bursar is built");
        let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
        (output.status.code(), value, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (file, server) = (admin.display().to_string(), &world.servers.cluster.url);
    let announced = format!("cluster test: using kubeconfig {file}, server {server}\n");
    for given in [&["init", "--cluster", "test"][..], &["init", "--cluster", "test", "--admin-kubeconfig", &file]] {
        let (exit, report, said) = bursar(given);
        assert_eq!((exit, report["cluster"].as_str(), &said), (Some(0), Some("test"), &announced), "{report}");
    }
    let (exit, findings, _) = bursar(&["doctor"]);
    let bad: Vec<&Value> =
        findings.as_array().into_iter().flatten().filter(|finding| !finding["remedy"].is_null()).collect();
    // The daemon was never started here. That is the next step, not a problem.
    assert_eq!((exit, bad.len()), (Some(0), 0), "{findings:#}");
    let daemon = findings.as_array().into_iter().flatten().find(|finding| finding["subject"] == "daemon");
    assert!(
        daemon.is_some_and(|daemon| daemon["text"].as_str().unwrap_or_default().contains("enable --now")),
        "{findings:#}"
    );
}
