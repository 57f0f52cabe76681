//! Tests the crossings of `tests/data/crossings.txt` on real servers: each state with each event, as far as they can be
//! produced here. Each cell has its own tool, and all cells of a site are tested in parallel. States of clusters and of
//! the source are tested on a site with two clusters, one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bursar::daemon;
use bursar::desired::of_generation_group;
use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, QuotaSet, Target};
use bursar::plan::testing::crossings::{self, Matrix, Meaning};
use bursar_testkit::control_plane::{ControlPlane, ControlPlaneOptions};
use bursar_testkit::folder::Folder;
use bursar_testkit::ldif::{disable_ldif, replace_ldif, tool_account_dn, tool_group_dn};
use bursar_testkit::pki::Authority;
use bursar_testkit::ready::wait_for;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::quiet::own_servers;
use crate::world::{World, all_is_well, runtime};

const FIRST_UID: u32 = 66_000;
const DEADLINE: Duration = Duration::from_mins(5);
const CONFIG: &str = "\n[limits]\nsuspend_per_cycle = { count = 1000 }\nsuspend_per_day = { count = 1000 }\n\
    disable_per_cycle = { count = 1000 }\ndisable_per_day = { count = 1000 }\n\
    remove_members_per_cycle = { count = 1000 }\nresume_per_cycle = { count = 1000 }\nresume_per_day = { count = 1000 }\n\
    remove_access_per_cycle = { count = 1000 }\nremove_access_per_day = { count = 1000 }\n\
    [lifecycle]\nabsent_for = \"4h\"\n";
/// The API server notices bindings by its own watch, which takes a moment.
const AUTHORIZER: Duration = Duration::from_millis(500);
/// The number of reads, an hour apart, after which absence is proved and every retry was due. All hours of a test must
/// be less than two thirds of the lifetime of a certificate, or each cycle would renew all certificates.
const READS: usize = 6;

/// A step: a verb such as `hold`, with the words after the tool's name; `cluster`, with the cluster's name and `up` or
/// `down`; or `source` with `partial` or `complete`.
type Step = (String, Vec<String>);

type Happening = crossings::Happening<Step>;

fn begins_with(happening: &Happening, step: &str) -> bool {
    happening.begins.iter().any(|(verb, _)| verb == step)
}

/// Whether the state concerns all tools of a site.
fn is_of_site(state: &Happening) -> bool {
    begins_with(state, "cluster") || begins_with(state, "source")
}

/// Returns a cell with its own tool for each event and each state that `is_of` selects.
fn cells(matrix: &Matrix<Step>, world: &World, is_of: impl Fn(&Happening) -> bool) -> Vec<Cell> {
    let states = matrix.states.iter().filter(|state| is_of(state));
    let pairs = states.flat_map(|state| matrix.events.iter().map(move |event| (state, event)));
    let cell = |(uid, (state, event)): (u32, (&Happening, &Happening))| {
        let tool = format!("x{uid}");
        let (old, namespace) = (world.folder.join(format!("old-{tool}")), world.namespace(&tool));
        Cell { state: state.clone(), event: event.clone(), tool, namespace, uid, old, had_access: true }
    };
    (FIRST_UID..).zip(pairs).map(cell).collect()
}

/// Verbs of steps that can be done here.
const KNOWN: [&str; 20] = [
    "cycle",
    "quota",
    "break",
    "hold",
    "release",
    "suspend",
    "resume",
    "revoke",
    "disabled",
    "enabled",
    "loses",
    "vanish",
    "drift",
    "terminating",
    "unlabelled",
    "stray",
    "finalizer",
    "absent",
    "rename",
    "home",
];
/// Verbs that end some of these steps.
const ENDS: [&str; 3] = ["remade", "finalized", "back"];

/// Parses steps. Returns `None` if one of them cannot be done on real servers, or concerns more than one tool.
fn steps(lines: &[&str], of_an_end: bool) -> Option<Vec<Step>> {
    // Only the model adds another cause to a hold.
    if lines.len() > 1 && lines.iter().any(|line| line.starts_with("hold ")) {
        return None;
    }
    let mut steps = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, rest) = match words[..] {
            // Time passes only to reach the next try for a home. These tests repeat cycles until that try.
            ["time", _] if of_an_end => continue,
            ["cycle"] => ("cycle", &[][..]),
            ["cluster", _, "up" | "down"] => ("cluster", &words[1..]),
            ["source", "partial" | "complete", ..] => ("source", &words[1..2]),
            ["quota", "set", "tool", "foo", ..] => ("quota", &words[4..]),
            ["fails", "tool", "foo", "home", ..] => ("break", &[][..]),
            // These tests let so many hours pass that a missing entry is always proved to be absent.
            ["absent", "tool", "foo", hours] if hours != "30h" => return None,
            [verb, "tool", "foo", ..] => (verb, &words[3..]),
            _ => return None,
        };
        let is_known = ["cluster", "source"].contains(&verb) || KNOWN.contains(&verb);
        if !(is_known || of_an_end && ENDS.contains(&verb)) {
            return None;
        }
        steps.push((verb.to_owned(), rest.iter().map(|word| (*word).to_owned()).collect()));
    }
    Some(steps)
}

/// The hours by which the clocks of the two sites are ahead.
static AHEAD: [AtomicI64; 2] = [const { AtomicI64::new(0) }; 2];

fn ahead(site: usize) -> Timestamp {
    daemon::now() + SignedDuration::from_hours(AHEAD[site].load(Ordering::Relaxed))
}

#[derive(Clone)]
struct Cell {
    state: Happening,
    event: Happening,
    /// The current name of the cell's tool.
    tool: String,
    namespace: String,
    uid: u32,
    /// A copy of the tool's first kubeconfig.
    old: PathBuf,
    had_access: bool,
}

struct Site {
    world: World,
    orders: Vec<OrderRequest>,
    /// The names of homes that were moved, by tool.
    homes: BTreeMap<String, String>,
    other: Option<ControlPlane>,
    /// The clusters that do not answer.
    away: BTreeSet<&'static str>,
    ahead: &'static AtomicI64,
    runtime: tokio::runtime::Runtime,
}

/// Returns LDIF that moves an entry. The entry keeps its id.
fn moved(rdn: &str, from: &str, to: &str) -> String {
    format!("dn: {rdn},{from}\nchangetype: modrdn\nnewrdn: {rdn}\ndeleteoldrdn: 0\nnewsuperior: {to}\n\n")
}

/// Adds a binding with Bursar's label that the ledger does not know. It gives the same access as the tool's own one.
fn add_stray(world: &World, namespace: &str) {
    let bindings = world.kubectl(&["get", "rolebindings", "-n", namespace, "-o", "json"]);
    let bindings: Value = serde_json::from_str(&bindings).expect("the text is JSON");
    let mut stray = bindings["items"][0].clone();
    let labels = json!({"app.kubernetes.io/managed-by": "bursar"});
    stray["metadata"] = json!({"name": "bursar-stray", "namespace": namespace, "labels": labels});
    world.servers.cluster.run(&["create", "-f", "-"], &stray.to_string());
}

impl Site {
    fn new(world: World, other: Option<ControlPlane>, ahead: &'static AtomicI64) -> Self {
        let runtime = runtime();
        Self { world, orders: Vec::new(), homes: BTreeMap::new(), other, away: BTreeSet::new(), ahead, runtime }
    }

    /// Adds all accounts, runs their first cycle, and copies the kubeconfigs.
    fn begin(&mut self, cells: &[Cell]) {
        for (uid, name) in (FIRST_UID - 10..).zip(["ann", "bob"]) {
            self.world.person(name, uid);
        }
        for cell in cells {
            self.world.tool(&cell.tool, cell.uid, &["ann", "bob"]);
        }
        self.world.tool("stays", FIRST_UID - 1, &["ann", "bob"]);
        all_is_well(&self.world.cycle());
        for cell in cells {
            fs::copy(self.kubeconfig(&cell.tool), &cell.old).expect("the file can be copied");
        }
    }

    /// Returns the clusters that answer, by their contexts in kubeconfigs.
    fn answering(&self) -> Vec<(&'static str, &ControlPlane)> {
        let all = [("test", Some(&self.world.servers.cluster)), ("other", self.other.as_ref())];
        let all = all.into_iter().filter_map(|(name, cluster)| Some((name, cluster?)));
        all.filter(|(name, _)| !self.away.contains(name)).collect()
    }

    /// Performs the steps that concern all tools. Without its sentinel, the read of the source is partial.
    fn tell_site(&mut self, steps: &[Step]) {
        for (_, words) in steps.iter().filter(|(verb, _)| verb == "source") {
            let (base, people) = (self.world.base.as_str(), format!("ou=people,{}", self.world.base));
            let (from, to) = if words[0] == "partial" { (people.as_str(), base) } else { (base, people.as_str()) };
            self.world.servers.slapd.modify_ldif(&moved("uid=novaadmin", from, to));
        }
        for (_, words) in steps.iter().filter(|(verb, _)| verb == "cluster") {
            let (name, cluster) = match words[0].as_str() {
                "prod" => ("test", &self.world.servers.cluster),
                _ => ("other", self.other.as_ref().expect("the site has two clusters")),
            };
            let server = cluster.api_server().expect("the cluster has its own API server");
            if words[1] == "down" {
                server.signal(Signal::STOP);
                self.away.insert(name);
            } else {
                server.signal(Signal::CONT);
                self.away.remove(name);
            }
        }
    }

    /// Performs steps for the tool of a cell.
    fn tell(&mut self, cell: &mut Cell, steps: &[Step]) {
        let world = &self.world;
        for (verb, rest) in steps {
            let (tool, namespace, base) = (&cell.tool, &cell.namespace, &world.base);
            let home = world.home(self.homes.get(tool).unwrap_or(tool));
            let target =
                || Target { kind: AccountKind::Tool, name: tool.clone(), reason: Some("x".to_owned()), ticket: None };
            let (account, group) = (tool_account_dn(base, tool), tool_group_dn(base, tool));
            let modify = |ldif: &str| world.servers.slapd.modify_ldif(ldif);
            let in_namespace = |arguments: &[&str]| world.kubectl(&[arguments, &["-n", namespace]].concat());
            let binding = || in_namespace(&["get", "rolebindings", "-o", "name"]).trim().to_owned();
            let finalizers = |object: &str, finalizers: &str| {
                let patch = format!(r#"{{"metadata":{{"finalizers":{finalizers}}}}}"#);
                in_namespace(&["patch", object, "--type=merge", "-p", &patch]);
            };
            let (kept, none) = (r#"["example.org/keep"]"#, "null");
            match verb.as_str() {
                // All cells share the cycles, and the clusters and the source change for all of them.
                "cycle" | "cluster" | "source" => {}
                "hold" => self.orders.push(OrderRequest::Hold(target())),
                "release" => self.orders.push(OrderRequest::Release(target())),
                "suspend" => self.orders.push(OrderRequest::Suspend(target())),
                "resume" => self.orders.push(OrderRequest::Resume(target())),
                "revoke" => self.orders.push(OrderRequest::Revoke(target())),
                "quota" => {
                    let amounts = rest.iter().filter_map(|word| word.split_once('='));
                    let amounts = amounts.map(|(what, amount)| (what.to_owned(), amount.to_owned())).collect();
                    let set = QuotaSet { target: target(), amounts, until: None, cluster: None };
                    self.orders.push(OrderRequest::QuotaSet(set));
                }
                "break" => chown(home, Some(1), Some(1)).expect("the test runs as root"),
                "mend" => chown(home, Some(cell.uid), Some(cell.uid)).expect("the test runs as root"),
                "disabled" => modify(&disable_ldif(&account)),
                "enabled" => modify(&replace_ldif(&account, "pwdPolicySubentry", &[])),
                "loses" => modify(&format!(
                    "dn: {group}\nchangetype: modify\ndelete: member\nmember: uid={},ou=people,{base}\n\n",
                    rest[0]
                )),
                "absent" | "back" => {
                    for dn in [account, group] {
                        let (rdn, place) = dn.split_once(',').expect("the DN has several parts");
                        let (from, to) = if verb == "absent" { (place, base.as_str()) } else { (base.as_str(), place) };
                        modify(&moved(rdn, from, to));
                    }
                }
                "rename" => {
                    let name = format!("{tool}r");
                    let home = world.home(&name);
                    fs::rename(world.home(tool), &home).expect("the parent folder is writable");
                    for (dn, attribute) in [(account, "uid"), (group, "cn")] {
                        modify(&format!(
                            "dn: {dn}\nchangetype: modrdn\nnewrdn: {attribute}=tools.{name}\ndeleteoldrdn: 1\n\n"
                        ));
                    }
                    let account = tool_account_dn(base, &name);
                    modify(&replace_ldif(&account, "cn", &[&format!("tools.{name}")]));
                    modify(&replace_ldif(&account, "homeDirectory", &[&home.display().to_string()]));
                    cell.tool = name;
                }
                "home" => {
                    let name = format!("{tool}h");
                    fs::rename(home, world.home(&name)).expect("the parent folder is writable");
                    let new = world.home(&name).display().to_string();
                    modify(&replace_ldif(&account, "homeDirectory", &[&new]));
                    self.homes.insert(tool.clone(), name);
                }
                "vanish" => drop(world.kubectl(&["delete", "namespace", namespace])),
                "drift" => {
                    let patch = r#"{"spec":{"hard":{"pods":"99"}}}"#;
                    in_namespace(&["patch", "resourcequota", "bursar", "--type=merge", "-p", patch]);
                }
                "terminating" => {
                    in_namespace(&["create", "configmap", "keep"]);
                    finalizers("configmap/keep", kept);
                    world.kubectl(&["delete", "namespace", namespace, "--wait=false"]);
                }
                "remade" => {
                    finalizers("configmap/keep", none);
                    world.kubectl(&["wait", "--for=delete", &format!("namespace/{namespace}"), "--timeout=240s"]);
                }
                "unlabelled" => drop(in_namespace(&["label", &binding(), "app.kubernetes.io/managed-by-"])),
                "stray" => add_stray(world, namespace),
                "finalizer" => {
                    let binding = binding();
                    finalizers(&binding, kept);
                    in_namespace(&["delete", &binding, "--wait=false"]);
                }
                "finalized" => {
                    let binding = binding();
                    if !binding.is_empty() {
                        finalizers(&binding, none);
                    }
                }
                other => panic!("unknown step: {other}"),
            }
        }
    }

    fn tell_all(&mut self, cells: &mut [Cell], steps: impl Fn(&Cell) -> Vec<Step>) {
        for cell in cells {
            let steps = steps(cell);
            self.tell(cell, &steps);
        }
    }

    /// Gives the orders that steps have collected.
    fn order(&mut self) {
        let mut orders = std::mem::take(&mut self.orders);
        // A tool that is held cannot be resumed, so releases come first.
        orders.sort_by_key(|order| !matches!(order, OrderRequest::Release(_)));
        self.world.give(&orders);
    }

    fn cycle(&mut self) {
        self.order();
        self.world.cycle();
        std::thread::sleep(AUTHORIZER);
        wait_for("the undisturbed tool has access", DEADLINE, || {
            self.is_whole(&self.kubeconfig("stays")).then_some(())
        });
    }

    /// Runs [`READS`] cycles, an hour apart. They prove that entries that are not in the directory are gone.
    fn hours_pass(&mut self) {
        for _ in 0..READS {
            self.ahead.fetch_add(1, Ordering::Relaxed);
            self.world.cycle();
        }
    }

    fn kubeconfig(&self, tool: &str) -> PathBuf {
        self.world.home(self.homes.get(tool).map_or(tool, String::as_str)).join(".kube/config")
    }

    /// Returns in how many of the clusters that answer a kubeconfig opens its namespace.
    fn opens(&self, kubeconfig: &Path) -> Result<usize, String> {
        let answers = self.answering().into_iter().map(|(at, _)| self.runtime.block_on(opens(kubeconfig, at)));
        answers.map(|answer| answer.map(usize::from)).sum()
    }

    fn is_whole(&self, kubeconfig: &Path) -> bool {
        self.opens(kubeconfig) == Ok(self.answering().len())
    }

    /// Returns the violations of the promises about access, by cell. Cells in `waits` are left out: they may violate
    /// the promises for now.
    fn wrong(&self, cells: &[Cell], waits: &BTreeSet<(String, String)>) -> Vec<String> {
        let mut wrong = Vec::new();
        let granted = self.granted_wrongly();
        for cell in cells {
            if waits.contains(&(cell.state.name.clone(), cell.event.name.clone())) {
                continue;
            }
            let kubeconfig = self.kubeconfig(&cell.tool);
            let report = |why: &str| format!("{} x {} ({}): {why}", cell.state.name, cell.event.name, cell.tool);
            let (present, old) = match (self.opens(&kubeconfig), self.opens(&cell.old)) {
                (Ok(present), Ok(old)) => (present, old),
                (Err(why), _) | (_, Err(why)) => {
                    wrong.push(report(&why));
                    continue;
                }
            };
            let lost = cell.had_access && present < self.answering().len();
            // A home that cannot be written gets no replacement, and a binding that a finalizer keeps is made again
            // only when the old one is gone.
            let has_replacement = !begins_with(&cell.state, "break") && !begins_with(&cell.state, "finalizer");
            let why = match cell.event.meaning {
                Meaning::Takes if present + old > 0 => "its kubeconfigs still give access",
                Meaning::Replaces if old > 0 => "its old kubeconfig still gives access",
                Meaning::Replaces if lost && has_replacement => "lost its access",
                Meaning::Keeps if lost => "lost its access",
                _ if granted.contains(&cell.namespace) => {
                    "a binding has a wrong generation or an account that is not active"
                }
                _ => continue,
            };
            wrong.push(report(why));
        }
        wrong
    }

    /// Returns the namespaces with a binding to an old generation or to an account that is not active.
    fn granted_wrongly(&self) -> BTreeSet<String> {
        let tools = self.world.rows("SELECT name, generation FROM tools WHERE state = 'active'");
        let present: BTreeSet<(&str, u64)> = tools
            .iter()
            .map(|row| {
                (
                    row["name"].as_str().expect("a name is a string"),
                    row["generation"].as_u64().expect("the value is a number"),
                )
            })
            .collect();
        let mut wrong = BTreeSet::new();
        for (_, cluster) in self.answering() {
            let bindings = cluster.run(&["get", "rolebindings", "-A", "-o", "json"], "");
            let bindings: Value = serde_json::from_str(&bindings).expect("the text is JSON");
            for binding in bindings["items"].as_array().expect("the value is a list") {
                let subjects = binding["subjects"].as_array().into_iter().flatten();
                let mut groups = subjects.filter_map(|subject| of_generation_group(subject["name"].as_str()?));
                if groups.any(|(account, generation)| !present.contains(&(account.name.as_str(), generation))) {
                    wrong.insert(binding["metadata"]["namespace"].as_str().expect("the value is a string").to_owned());
                }
            }
        }
        wrong
    }

    /// Returns the final state of each tool by namespace, without its name and generation.
    fn ends(&self) -> BTreeMap<String, String> {
        let rows = self.world.rows(
            "SELECT t.name, t.namespace, t.state,
               (SELECT count(*) FROM memberships m WHERE m.account = 'tool:' || t.name) AS members FROM tools t",
        );
        let pods = "jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name} {.spec.hard.pods}{\"\\n\"}{end}";
        let quotas: Vec<String> = self
            .answering()
            .iter()
            .map(|(_, cluster)| cluster.run(&["get", "resourcequota", "-A", "-o", pods], ""))
            .collect();
        let mut ends = BTreeMap::new();
        for row in rows {
            let namespace = row["namespace"].as_str().expect("the value is a string").to_owned();
            let prefix = format!("{namespace} ");
            let lines = quotas.iter().flat_map(|quotas| quotas.lines());
            let mut own: Vec<&str> = lines.filter_map(|line| line.strip_prefix(&prefix)).collect();
            own.sort_unstable();
            let access = self.opens(&self.kubeconfig(row["name"].as_str().expect("a name is a string")));
            let access = access.map_or_else(|why| why, |clusters| clusters.to_string());
            ends.insert(namespace, format!("{} {} {own:?} access {access}", row["state"], row["members"]));
        }
        ends
    }

    /// Ends all states and events, and waits until each cell has the same result as its event without a state.
    fn end(&mut self, mut cells: Vec<Cell>) {
        // An entry that was removed must return before it is changed.
        self.tell_all(&mut cells, |cell| [ends(&cell.event), ends(&cell.state)].concat());
        let undisturbed = |event: &str| {
            let found = cells.iter().find(|cell| cell.state.name == "none" && cell.event.name == event);
            found.expect("a cell without a state has this event").namespace.clone()
        };
        wait_for("each cell has the result of its event alone", DEADLINE, || {
            self.ahead.fetch_add(1, Ordering::Relaxed);
            self.cycle();
            let ends = self.ends();
            let wrong: Vec<String> = cells
                .iter()
                .filter_map(|cell| {
                    let (end, wanted) = (&ends[&cell.namespace], &ends[&undisturbed(&cell.event.name)]);
                    (end != wanted).then(|| format!("{} x {}: {end}, not {wanted}", cell.state.name, cell.event.name))
                })
                .collect();
            if !wrong.is_empty() {
                println!("{} cells:\n{}\n", wrong.len(), wrong.join("\n"));
            }
            wrong.is_empty().then_some(())
        });
    }
}

/// Whether a context of a kubeconfig gives access to its namespace. If the namespace or the role is gone, the API
/// server refuses too. An error, such as a timeout, proves nothing about access.
async fn opens(kubeconfig: &Path, context: &str) -> Result<bool, String> {
    let Ok(file) = Kubeconfig::read_from(kubeconfig) else { return Ok(false) };
    let user =
        file.contexts.iter().find(|named| named.name == context).and_then(|named| named.context.as_ref()?.user.clone());
    let user = file.auth_infos.iter().find(|named| Some(&named.name) == user.as_ref());
    if user.and_then(|named| named.auth_info.as_ref()?.client_certificate_data.as_ref()).is_none() {
        return Ok(false);
    }
    let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(file, &options).await.expect("the kubeconfig is valid");
    let namespace = config.default_namespace.clone();
    let pods: Api<Pod> = Api::namespaced(Client::try_from(config).expect("the kubeconfig is valid"), &namespace);
    match pods.list(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(false),
        Err(error) => Err(format!("{} in {context}: no answer: {error:?}", kubeconfig.display())),
    }
}

/// Returns the steps that end a state or event. For a broken home, the steps of the file only wait for the next try, so
/// the repair of the home is added here.
fn ends(happening: &Happening) -> Vec<Step> {
    let broken = begins_with(happening, "break").then(|| ("mend".to_owned(), Vec::new()));
    happening.ends.iter().cloned().chain(broken).collect()
}

#[test]
fn a_server_without_an_answer_is_an_error_and_not_a_refusal() {
    let client = Authority::new("crossings").client("tool:x", "bursar:tools");
    let free = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("the system has a free port");
    let folder = Folder::create("crossings-silent");
    let kubeconfig = folder.path().join("config");
    let text = json!({
        "apiVersion": "v1", "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": format!("https://{free}")}}],
        "users": [{"name": "x", "user": {
            "client-certificate-data": BASE64.encode(client.certificate),
            "client-key-data": BASE64.encode(client.key),
        }}],
        "contexts": [{"name": "bursar", "context": {"cluster": "c", "user": "x", "namespace": "tool-x"}}],
    });
    fs::write(&kubeconfig, text.to_string()).expect("the folder is writable");
    let runtime = runtime();
    let answer = runtime.block_on(opens(&kubeconfig, "bursar"));
    assert!(answer.is_err_and(|why| why.contains("config in bursar: no answer")));
    assert_eq!(runtime.block_on(opens(&folder.path().join("none"), "bursar")), Ok(false));
}

#[test]
fn each_crossing_removes_exactly_the_access_that_it_should() {
    let matrix = Matrix::read(steps);
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "cross", CONFIG);
    world.clock = || ahead(0);
    let mut cells = cells(&matrix, &world, |state| !is_of_site(state));
    assert!(cells.len() >= 100, "{} cells", cells.len());
    println!("{} cells in one cluster", cells.len());
    let mut site = Site::new(world, None, &AHEAD[0]);
    site.begin(&cells);
    // States whose text contains a cycle come first. Otherwise that cycle would repair what other states break before
    // their events happen.
    site.tell_all(
        &mut cells,
        |cell| if begins_with(&cell.state, "cycle") { cell.state.begins.clone() } else { Vec::new() },
    );
    site.cycle();
    site.tell_all(
        &mut cells,
        |cell| if begins_with(&cell.state, "cycle") { Vec::new() } else { cell.state.begins.clone() },
    );
    site.order();
    for cell in &mut cells {
        cell.had_access = site.is_whole(&site.kubeconfig(&cell.tool));
    }
    site.tell_all(&mut cells, |cell| cell.event.begins.clone());
    (0..2).for_each(|_| site.cycle());
    let (mut absent, others): (Vec<Cell>, Vec<Cell>) =
        cells.into_iter().partition(|cell| begins_with(&cell.event, "absent"));
    let wrong = site.wrong(&others, &matrix.waits);
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
    site.hours_pass();
    (0..2).for_each(|_| site.cycle());
    let wrong = [site.wrong(&others, &matrix.waits), site.wrong(&absent, &matrix.waits)].concat();
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
    absent.extend(others);
    site.end(absent);
}

#[test]
fn a_cluster_or_source_that_returns_does_not_restore_revoked_access() {
    let matrix = Matrix::read(steps);
    let mut waits = matrix.waits.clone();
    // Here the read is partial because the source does not show its sentinel, and such a source renames nobody.
    waits.insert(("partial".to_owned(), "rename".to_owned()));
    let other = ControlPlane::start(&ControlPlaneOptions::default());
    let mut world = crate::clusters::world_on(own_servers(&ControlPlaneOptions::default()), "crossaw", &other, CONFIG);
    world.clock = || ahead(1);
    let all = cells(&matrix, &world, |state| state.name == "none" || is_of_site(state));
    assert!(all.len() >= 48, "{} cells", all.len());
    println!("{} cells in two clusters", all.len());
    let mut site = Site::new(world, Some(other), &AHEAD[1]);
    site.begin(&all);
    let mut done: Vec<Cell> = Vec::new();
    for state in matrix.states.iter().filter(|state| state.name == "none" || is_of_site(state)) {
        let mut cells: Vec<Cell> = all.iter().filter(|cell| cell.state.name == state.name).cloned().collect();
        site.tell_site(&state.begins);
        site.tell_all(&mut cells, |cell| cell.event.begins.clone());
        (0..2).for_each(|_| site.cycle());
        site.hours_pass();
        (0..2).for_each(|_| site.cycle());
        let mut wrong = if site.answering().is_empty() { Vec::new() } else { site.wrong(&cells, &waits) };
        if !site.away.is_empty() {
            let open: BTreeSet<String> =
                site.world.status().unfinished.iter().map(|one| one.account.name.clone()).collect();
            let removals = cells.iter().filter(|cell| ["suspend", "revoke"].contains(&cell.event.name.as_str()));
            let unsaid = removals.filter(|cell| !open.contains(&cell.tool));
            wrong.extend(
                unsaid.map(|cell| format!("{} x {}: the order is reported as done", state.name, cell.event.name)),
            );
        }
        site.tell_site(&state.ends);
        wait_for("all clusters answer", DEADLINE, || {
            site.world.cycle();
            site.world.status().clusters.values().all(|cluster| cluster.ready).then_some(())
        });
        if begins_with(state, "source") {
            // Only complete reads prove absences.
            site.hours_pass();
        }
        (0..2).for_each(|_| site.cycle());
        wrong.extend(site.wrong(&cells, &BTreeSet::new()));
        assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
        done.extend(cells);
    }
    site.end(done);
}
