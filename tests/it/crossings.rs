//! The crossings of `tests/data/crossings.txt` on real servers: each state against each event of those that can be made
//! here, one tool a cell, all cells side by side in one site.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::time::Duration;

use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, QuotaSet, Target};
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ldif::{disable_ldif, replace_ldif, tool_account_dn, tool_group_dn};
use bursar_testkit::ready::wait_for;

use crate::quiet::own_servers;
use crate::world::{World, all_is_well, stderr};

const MATRIX: &str = include_str!("../data/crossings.txt");
const FIRST_UID: u32 = 66_000;
const DEADLINE: Duration = Duration::from_mins(5);
const LIMITS: &str = "\n[limits]\nsuspend_per_cycle = { count = 1000 }\nsuspend_per_day = { count = 1000 }\n\
    disable_per_cycle = { count = 1000 }\ndisable_per_day = { count = 1000 }\n\
    remove_members_per_cycle = { count = 1000 }\nresume_per_cycle = { count = 1000 }\nresume_per_day = { count = 1000 }\n";

/// What is done to a tool: `hold`, `release`, …, with the words after its name.
type Step = (String, Vec<String>);

#[derive(Clone)]
struct Happening {
    name: String,
    /// `takes`, `replaces`, `keeps`; nothing for states.
    meaning: String,
    begins: Vec<Step>,
    ends: Vec<Step>,
}

/// States and events of which every step can be made here, and the cells that may wait.
fn matrix() -> (Vec<Happening>, Vec<Happening>, BTreeSet<(String, String)>) {
    let (mut states, mut events, mut waits) = (Vec::new(), Vec::new(), BTreeSet::new());
    for line in MATRIX.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (head, rest) = line.split_once(':').expect("a colon");
        let head: Vec<&str> = head.split_whitespace().collect();
        if let ["waits", state, event] = head[..] {
            waits.insert((state.to_owned(), event.to_owned()));
            continue;
        }
        let (begins, ends) = rest.split_once('|').expect("what begins it | what ends it");
        let (Some(begins), Some(ends)) = (steps(begins, false), steps(ends, true)) else { continue };
        let meaning = head.get(2).copied().unwrap_or_default().to_owned();
        let happening = Happening { name: head[1].to_owned(), meaning, begins, ends };
        if head[0] == "state" { states.push(happening) } else { events.push(happening) }
    }
    (states, events, waits)
}

/// Steps that can be made here.
const KNOWN: [&str; 14] = [
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
];

/// `None`: one of them cannot be made on real servers, or concerns more than one tool.
fn steps(text: &str, of_an_end: bool) -> Option<Vec<Step>> {
    let lines = text.split(';').map(str::trim).filter(|line| !line.is_empty());
    let mut steps = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, rest) = match words[..] {
            // A home takes what is due when it is whole again; nobody has to wait for that here.
            ["time", _] if of_an_end => continue,
            ["cycle"] => ("cycle", &[][..]),
            ["quota", "set", "tool", "foo", ..] => ("quota", &words[4..]),
            ["fails", "tool", "foo", "home", ..] => ("break", &[][..]),
            [verb, "tool", "foo", ..] => (verb, &words[3..]),
            _ => return None,
        };
        if !KNOWN.contains(&verb) && verb != "remade" {
            return None;
        }
        steps.push((verb.to_owned(), rest.iter().map(|word| (*word).to_owned()).collect()));
    }
    Some(steps)
}

struct Cell {
    state: Happening,
    event: Happening,
    tool: String,
    uid: u32,
    /// What it had at the beginning.
    old: PathBuf,
    had_access: bool,
}

struct Site {
    world: World,
    orders: Vec<OrderRequest>,
}

impl Site {
    fn tell(&mut self, cell: (&str, u32), steps: &[Step]) {
        let (tool, uid) = cell;
        let world = &mut self.world;
        let target =
            || Target { kind: AccountKind::Tool, name: tool.to_owned(), reason: Some("x".to_owned()), ticket: None };
        let (base, namespace) = (world.base.clone(), world.namespace(tool));
        for (verb, rest) in steps {
            let modify = |ldif: &str| world.servers.slapd.modify_ldif(ldif);
            match verb.as_str() {
                // All cells have their cycle together.
                "cycle" => {}
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
                "break" => chown(world.home(tool), Some(1), Some(1)).expect("given away"),
                "mend" => chown(world.home(tool), Some(uid), Some(uid)).expect("given back"),
                "disabled" => modify(&disable_ldif(&tool_account_dn(&base, tool))),
                "enabled" => modify(&replace_ldif(&tool_account_dn(&base, tool), "pwdPolicySubentry", &[])),
                "loses" => modify(&format!(
                    "dn: {}\nchangetype: modify\ndelete: member\nmember: uid={},ou=people,{base}\n\n",
                    tool_group_dn(&base, tool),
                    rest[0]
                )),
                "vanish" => drop(world.kubectl(&["delete", "namespace", &namespace])),
                "drift" => {
                    let patch = r#"{"spec":{"hard":{"pods":"99"}}}"#;
                    world.kubectl(&["patch", "resourcequota", "bursar", "-n", &namespace, "--type=merge", "-p", patch]);
                }
                "terminating" => {
                    world.kubectl(&["create", "configmap", "keep", "-n", &namespace]);
                    let kept = r#"{"metadata":{"finalizers":["example.org/keep"]}}"#;
                    world.kubectl(&["patch", "configmap", "keep", "-n", &namespace, "--type=merge", "-p", kept]);
                    world.kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
                }
                "remade" => {
                    let none = r#"{"metadata":{"finalizers":null}}"#;
                    world.kubectl(&["patch", "configmap", "keep", "-n", &namespace, "--type=merge", "-p", none]);
                    world.kubectl(&["wait", "--for=delete", &format!("namespace/{namespace}"), "--timeout=60s"]);
                }
                other => panic!("no such step: {other}"),
            }
        }
    }

    fn cycle(&mut self) {
        let mut orders = std::mem::take(&mut self.orders);
        // Nothing is resumed that is held.
        orders.sort_by_key(|order| !matches!(order, OrderRequest::Release(_)));
        self.world.give(&orders);
        self.world.cycle();
    }

    fn opens(&self, kubeconfig: &std::path::Path) -> bool {
        let said = self.world.kubectl_with(kubeconfig, &["get", "pods"]);
        // A namespace that is gone, or a role that is, is answered in the same way.
        assert!(said.status.success() || stderr(&said).contains("Forbidden"), "{}", stderr(&said));
        said.status.success()
    }

    fn has_access(&self, tool: &str) -> bool {
        let kubeconfig = self.world.home(tool).join(".kube/config");
        let has_user = fs::read_to_string(&kubeconfig).is_ok_and(|text| text.contains("client-certificate-data"));
        has_user && self.opens(&kubeconfig)
    }

    /// What each tool has in the end, but for the generation.
    fn ends(&self) -> BTreeMap<String, String> {
        let rows = self.world.rows(
            "SELECT t.name, t.state, (SELECT count(*) FROM memberships m WHERE m.account = 'tool:' || t.name) AS members
             FROM tools t",
        );
        let pods = "jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name} {.spec.hard.pods}{\"\\n\"}{end}";
        let quotas = self.world.kubectl(&["get", "resourcequota", "-A", "-o", pods]);
        let mut ends = BTreeMap::new();
        for row in rows {
            let tool = row["name"].as_str().expect("a name").to_owned();
            let prefix = format!("{} ", self.world.namespace(&tool));
            let mut own: Vec<&str> = quotas.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
            own.sort_unstable();
            let access = self.has_access(&tool);
            ends.insert(tool, format!("{} {} {own:?} access {access}", row["state"], row["members"]));
        }
        ends
    }
}

/// A home that is whole again ends its state, whatever the text says of the time until the next try.
fn ends(happening: &Happening) -> Vec<Step> {
    let broken = happening.begins.iter().any(|(verb, _)| verb == "break");
    happening.ends.iter().cloned().chain(broken.then(|| ("mend".to_owned(), Vec::new()))).collect()
}

#[test]
fn in_a_sample_of_all_crossings_access_goes_that_should_and_no_other() {
    let (states, events, waits) = matrix();
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), "cross", LIMITS);
    for (uid, name) in (FIRST_UID - 10..).zip(["ann", "bob"]) {
        world.person(name, uid);
    }
    let pairs = events.iter().flat_map(|event| states.iter().map(move |state| (state, event)));
    let mut cells: Vec<Cell> = (FIRST_UID..)
        .zip(pairs)
        .map(|(uid, (state, event))| {
            let tool = format!("x{uid}");
            let old = world.folder.join(format!("old-{tool}"));
            Cell { state: state.clone(), event: event.clone(), tool, uid, old, had_access: false }
        })
        .collect();
    assert!(cells.len() >= 60, "{} cells", cells.len());
    for cell in &cells {
        world.tool(&cell.tool, cell.uid, &["ann", "bob"]);
    }
    world.tool("stays", FIRST_UID - 1, &["ann", "bob"]);
    all_is_well(&world.cycle());
    let stays = world.home("stays").join(".kube/config");
    let mut site = Site { world, orders: Vec::new() };
    for cell in &cells {
        fs::copy(site.world.home(&cell.tool).join(".kube/config"), &cell.old).expect("a copy");
        site.tell((&cell.tool, cell.uid), &cell.state.begins);
    }
    site.cycle();
    for cell in &mut cells {
        cell.had_access = site.has_access(&cell.tool);
    }
    for cell in &cells {
        site.tell((&cell.tool, cell.uid), &cell.event.begins);
    }
    let mut wrong = Vec::new();
    for _ in 0..2 {
        site.cycle();
        assert!(site.opens(&stays), "nothing happened to this one");
    }
    for cell in &cells {
        let (access, old) = (site.has_access(&cell.tool), site.opens(&cell.old));
        let name = format!("{} x {} ({})", cell.state.name, cell.event.name, cell.tool);
        let has_replacement = cell.state.name != "home-full";
        match cell.event.meaning.as_str() {
            _ if waits.contains(&(cell.state.name.clone(), cell.event.name.clone())) => {}
            "takes" if access || old => wrong.push(format!("{name}: still has access")),
            "replaces" if old => wrong.push(format!("{name}: what it had still opens it")),
            "replaces" if cell.had_access && !access && has_replacement => {
                wrong.push(format!("{name}: lost its access"));
            }
            "keeps" if cell.had_access && !access => wrong.push(format!("{name}: lost its access")),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
    for cell in &cells {
        site.tell((&cell.tool, cell.uid), &ends(&cell.state));
        site.tell((&cell.tool, cell.uid), &ends(&cell.event));
    }
    let undisturbed = |event: &str| {
        let found = cells.iter().find(|cell| cell.state.name == "none" && cell.event.name == event);
        found.expect("a state of nothing").tool.clone()
    };
    wait_for("all is as if no state had been", DEADLINE, || {
        site.cycle();
        let ends = site.ends();
        wrong = cells
            .iter()
            .filter_map(|cell| {
                let (end, wanted) = (&ends[&cell.tool], &ends[&undisturbed(&cell.event.name)]);
                (end != wanted).then(|| format!("{} x {}: {end}, not {wanted}", cell.state.name, cell.event.name))
            })
            .collect();
        if !wrong.is_empty() {
            println!("{} cells:\n{}\n", wrong.len(), wrong.join("\n"));
        }
        wrong.is_empty().then_some(())
    });
    assert!(site.opens(&stays));
}
