//! `bursar who`: which accounts and people a name in a log belongs to, from a ledger with a history and from a real
//! cluster.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use bursar::store::FILE;
use bursar_testkit::folder::Folder;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::ledger::{sqlite3, story};
use crate::world::{World, all_is_well, runtime, stderr};

const ANN: u32 = 63_501;
const BEN: u32 = 63_502;
const RULES: &str =
    "\n[class.tool.admission]\nhosts = { mode = \"enforce\", allow = [\"{name}.tools.example.org\"] }\n";

/// Runs `bursar who` with a ledger but without a configuration.
fn of_ledger(ledger: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
    command.arg("--ledger").arg(ledger).args(["--json", "who"]).args(words.split_whitespace());
    command.env("BURSAR_CONFIG", "/nonexistent/bursar.toml").output().expect("bursar is built")
}

fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("bursar prints JSON")
}

fn members(answer: &Value) -> BTreeSet<&str> {
    answer["people"].as_array().into_iter().flatten().filter_map(|person| person["member"].as_str()).collect()
}

#[test]
fn an_answer_shows_the_ledger_at_the_given_time() {
    let folder = Folder::create("who-story");
    let runtime = runtime();
    let store = runtime.block_on(story(folder.path()));
    runtime.block_on(store.close()).expect("the ledger closes");
    let ledger = folder.path().join(FILE);
    let who = |words: &str| json_of(&of_ledger(&ledger, words));

    let now = &who("52503")["answers"][0];
    assert_eq!(
        (&now["account"], &now["state"], &now["name_now"]),
        (&json!("tool:web"), &json!("active"), &Value::Null)
    );
    assert_eq!(now["namespaces"], json!([{"cluster": "prod", "namespace": "tool-foo", "first_class": "tool"}]));
    assert_eq!((members(now), &now["access"]), (BTreeSet::from(["user:bob"]), &json!(true)));

    // Asks about a time before the tool's name changed, and about a time at which the tool was suspended.
    let then = &who("52503 --at 2026-05-03")["answers"][0];
    assert_eq!((&then["account"], &then["name_now"]), (&json!("tool:foo"), &json!("tool:web")));
    assert_eq!(members(then), BTreeSet::from(["user:alice"]));
    assert_eq!(then["people"][0]["mail"], "alice@example.org");
    let suspended = &who("tool-foo/web-1 --at 2026-05-10T12:00:00Z")["answers"][0];
    let expected = (json!("suspended"), json!("2026-05-10T09:00:00Z"), json!(false));
    assert_eq!((suspended["state"].clone(), suspended["since"].clone(), suspended["access"].clone()), expected);
    let early = of_ledger(&ledger, "52503 --at 2026-04-01");
    assert_eq!(early.status.code(), Some(4));
    assert!(
        stderr(&early)
            .contains("it belonged to tool:web later: the ledger has known that account only since 2026-05-01")
    );

    // On each day, the members in the answer are those of the view `access_on`.
    for hour in ["05-01T09", "05-04T00", "05-06T00", "05-11T00", "05-13T00", "05-21T00", "05-26T00"] {
        let at = format!("2026-{hour}:00:00Z");
        let answer = who(&format!("52503 --at {at}"))["answers"][0].clone();
        let found = if answer["access"] == true { members(&answer) } else { BTreeSet::new() };
        let query = format!(
            "SELECT member FROM access_on WHERE account = 'tool:web' AND at_start <= '{at}' AND at_end > '{at}'"
        );
        let view = String::from_utf8(sqlite3(&ledger, &query).stdout).expect("sqlite3 prints UTF-8");
        assert_eq!(found, view.lines().skip(2).map(str::trim).collect(), "{at}");
    }

    let digits = "9a19ac7c".repeat(8);
    let issued = who(&format!("X509SHA256={digits} --at 2026-05-21"));
    assert_eq!((&issued["answers"][0]["account"], &issued["credential"]["good"]), (&json!("tool:web"), &json!(true)));
    assert!(issued["notes"][0].as_str().is_some_and(|note| note.contains("it was not valid then")), "{issued}");
    let mut certs = Command::new(env!("CARGO_BIN_EXE_bursar"));
    certs.arg("--ledger").arg(&ledger).args(["--json", "certs", "who", &digits]);
    assert_eq!(
        json_of(&certs.output().expect("bursar is built")),
        issued["credential"],
        "both commands give the same answer"
    );

    let person = who("Alice@Example.org");
    assert_eq!(
        (&person["answers"][0]["account"], &person["answers"][0]["access"]),
        (&json!("user:alice"), &json!(false))
    );
    let admin = &who("3003")["answers"][0];
    assert_eq!((members(admin), &admin["namespaces"][0]["namespace"]), (BTreeSet::from(["user:carol"]), &Value::Null));

    for (words, exit, says) in [
        ("4711", 4, "4711 belongs to no account"),
        ("nobody@example.org", 4, "nobody@example.org belongs to no account"),
        ("tool:foo", 64, "NAMESPACE/POD"),
        ("X509SHA256=12", 64, "64 digits"),
        ("52503 --at 2999-01-01", 64, "is in the future"),
    ] {
        let output = of_ledger(&ledger, words);
        assert_eq!(output.status.code(), Some(exit), "{words}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{words}: {}", stderr(&output));
    }
}

fn bursar(world: &World, uid: Option<u32>, words: &[&str]) -> Output {
    let mut command = world.command(words);
    command.current_dir("/");
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    command.output().expect("bursar is built")
}

#[test]
fn a_pod_a_host_and_a_uid_lead_to_the_tool_and_its_people() {
    let mut world = World::with("who", RULES);
    world.person("who-ann", ANN);
    world.person("who-ben", BEN);
    world.tool("foo", 63_503, &["who-ann"]);
    world.tool("bar", 63_504, &["who-ben"]);
    all_is_well(&world.cycle());
    world.stop();
    let namespace = world.namespace("foo");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 63_503, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "web", "image": "example.org/web",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    world.servers.cluster.run(&["create", "-f", "-"], &pod.to_string());

    let at = jiff::Timestamp::now().to_string();
    let who = |what: &str| json_of(&bursar(&world, None, &["--json", "who", what]));
    let found = who(&format!("{namespace}/web"));
    assert_eq!((&found["answers"][0]["account"], &found["notes"]), (&json!("tool:foo"), &json!([])), "{found:#}");
    assert_eq!((&found["pods"][0]["uids"], &found["pods"][0]["cluster"]), (&json!([63_503]), &json!("test")));
    assert_eq!(found["pods"][0]["made_with"], "kubectl-create");
    let then = json_of(&bursar(&world, None, &["--json", "who", &format!("{namespace}/web"), "--at", &at]));
    let expected = json!(["the ledger keeps no pods, so the answer names the owner of the namespace at that time"]);
    assert_eq!((&then["answers"][0]["account"], &then["pods"]), (&json!("tool:foo"), &Value::Null), "{then:#}");
    assert_eq!(then["notes"], expected);
    let gone = who(&format!("{namespace}/gone"));
    assert_eq!(gone["notes"], json!([format!("cluster test has no pod {namespace}/gone now")]));
    let served = who("foo.tools.example.org");
    assert_eq!((&served["answers"][0]["account"], &served["answers"][1]), (&json!("tool:foo"), &Value::Null));
    let nobody = bursar(&world, None, &["who", "x.foo.tools.example.org"]);
    assert_eq!(nobody.status.code(), Some(4), "{nobody:?}");

    let text = String::from_utf8(bursar(&world, None, &["who", "63503"]).stdout).expect("bursar prints UTF-8");
    for part in ["tool:foo: its uid", "active", namespace.as_str(), "user:who-ann", "who-ann@example.org"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    // People get answers only about their own accounts, and only for now.
    let daemon = Daemon::ready(&world);
    let own = json_of(&bursar(&world, Some(ANN), &["--json", "who", "63503"]));
    assert_eq!((&own["answers"][0]["account"], own["answers"].as_array().map(Vec::len)), (&json!("tool:foo"), Some(1)));
    json_of(&bursar(&world, Some(ANN), &["--json", "who", "who-ann@example.org"]));
    let refused = |words: &[&str]| {
        let output = bursar(&world, Some(ANN), &[&["who"], words].concat());
        assert_eq!(output.status.code(), Some(77), "{words:?}: {output:?}");
        assert!(output.stdout.is_empty());
        stderr(&output)
    };
    assert_eq!(
        refused(&["63504"]),
        refused(&["4711"]),
        "the answer is the same for accounts of others and for unknown ones"
    );
    refused(&["bar.tools.example.org"]);
    refused(&["63503", "--at", "2026-05-03"]);
    daemon.stop();

    // Without the cluster, the answer comes from the ledger and says so.
    let kubeconfig = world.state_dir().join("clusters/test.kubeconfig");
    let text = std::fs::read_to_string(&kubeconfig).expect("the daemon has a kubeconfig");
    let other = text.replace(&world.servers.cluster.url, "https://127.0.0.1:9");
    assert_ne!(text, other);
    std::fs::write(&kubeconfig, other).expect("the folder is writable");
    let away = who(&format!("{namespace}/web"));
    assert_eq!((&away["answers"][0]["account"], &away["pods"]), (&json!("tool:foo"), &json!([])));
    assert!(away["notes"][0].as_str().is_some_and(|note| note.starts_with("the pod was not looked up")), "{away}");
}
