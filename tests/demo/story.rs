//! The steps of the demo. Each step prints its results and checks them.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use bursar_testkit::ldif::tool_ldif;
use bursar_testkit::ready::wait_for;
use bursar_testkit::sample::TOOLS;
use bursar_testkit::slapd::BASE_DN;

use crate::site::{Site, print, printed, say};

/// The message about a step that failed.
pub type Failed = String;

const DEADLINE: Duration = Duration::from_mins(2);

/// Runs the steps in order and stops at the first that fails.
pub fn tell(site: &Site) -> Result<(), Failed> {
    first_sync(site)?;
    a_tool_works(site)?;
    nobody_runs_as_somebody_else(site)?;
    what_a_tool_has(site)?;
    a_new_tool(site)?;
    the_ledger_answers(site)?;
    the_recording_is_true()
}

/// Prints commands that the reader may try next.
pub fn what_to_try_next(site: &Site) {
    let config = site.config.display();
    let kubectl = site.servers.cluster.kubectl_path().display();
    let kubeconfig = site.tool_kubeconfig("foo");
    say("running until Ctrl-C; try, in another terminal");
    let mut text = String::new();
    for command in ["status", "tools", "show tool foo", "why tool foo", "suspend tool foo --reason trying", "plan"] {
        let _ = writeln!(text, "  bursar --config {config} {command}");
    }
    let _ = writeln!(text, "  {kubectl} --kubeconfig {} get pods", kubeconfig.display());
    let _ = writeln!(
        text,
        "  sqlite3 -box {} 'SELECT at, actor, account, action, reason FROM history'",
        site.ledger.display()
    );
    println!("{text}(`bursar` is target/debug/bursar)");
}

fn first_sync(site: &Site) -> Result<(), Failed> {
    say("bursar sync: 6 tools and 12 people from LDAP");
    wait_for("the control socket of the daemon accepts connections", DEADLINE, || {
        UnixStream::connect(site.control_socket()).ok()
    });
    show(&succeed(site.bursar().arg("sync"))?);
    show(&succeed(site.bursar().arg("tools"))?);
    let tools = rows(site, "tools")?;
    expect(tools == TOOLS.len(), || format!("{} tools, not {}", tools, TOOLS.len()))?;
    let users = rows(site, "users")?;
    expect(users == 12, || format!("{users} people, not 12"))
}

fn a_tool_works(site: &Site) -> Result<(), Failed> {
    let as_foo = |arguments: &[&str]| {
        let mut kubectl = site.kubectl_as_tool("foo");
        kubectl.args(arguments);
        kubectl
    };
    say("kubectl with tool foo's own kubeconfig");
    let plain = ["run", "hello", "--image=registry.example.org/hello", "--restart=Never"];
    // The controller manager creates the default service account a moment after its namespace.
    wait_for("tool foo can create a pod", DEADLINE, || {
        let output = as_foo(&plain).output().ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success() || text.contains("AlreadyExists")).then_some(())
    });
    let uid = "jsonpath=it runs as uid {.spec.securityContext.runAsUser}, which the webhook filled in{\"\\n\"}";
    let filled = succeed(&mut as_foo(&["get", "pod", "hello", "--output", uid]))?;
    show(&filled);
    expect(text(&filled).contains("52503"), || "the pod does not run as uid 52503".to_owned())?;
    show(&succeed(&mut as_foo(&["get", "pods"]))?);
    let elsewhere = refuse(&mut as_foo(&["get", "pods", "--namespace", "tool-bar"]))?;
    print(&format!("{elsewhere}\n"));
    expect(elsewhere.contains("Forbidden"), || format!("in the namespace of another tool: {elsewhere}"))
}

fn nobody_runs_as_somebody_else(site: &Site) -> Result<(), Failed> {
    say("kubectl run intruder, as tool foo, with runAsUser 52504");
    let other = r#"--overrides={"spec":{"securityContext":{"runAsUser":52504}}}"#;
    let image = "--image=registry.example.org/hello";
    let refused = refuse(site.kubectl_as_tool("foo").args(["run", "intruder", image, "--restart=Never", other]))?;
    print(&refused);
    expect(refused.contains("52503") && refused.contains("remove"), || format!("the webhook says: {refused}"))?;
    let elsewhere = "--image=registry.example.org.evil.example/hello";
    let refused = refuse(site.kubectl_as_tool("foo").args(["run", "intruder", elsewhere, "--restart=Never"]))?;
    print(&refused);
    expect(refused.contains("evil.example"), || format!("the webhook says: {refused}"))
}

fn what_a_tool_has(site: &Site) -> Result<(), Failed> {
    say("the objects in namespace tool-foo, and the kubeconfig in the home");
    let kinds = "resourcequota,limitrange,networkpolicy,persistentvolumeclaim";
    let output = succeed(site.kubectl_as_tool("foo").args(["get", kinds, "--output", "name"]))?;
    show(&output);
    let there = String::from_utf8_lossy(&output.stdout).into_owned();
    for kind in kinds.split(',') {
        expect(there.contains(kind), || format!("no {kind} in tool-foo"))?;
    }
    let kubeconfig = site.tool_kubeconfig("foo");
    let metadata = fs::metadata(&kubeconfig).map_err(|error| format!("{}: {error}", kubeconfig.display()))?;
    print(&format!("{} uid {} mode {:o}\n", kubeconfig.display(), metadata.uid(), metadata.mode() & 0o777));
    expect(metadata.uid() == 52503 && metadata.mode() & 0o777 == 0o600, || {
        "the kubeconfig does not belong to the tool, or its mode is not 0600".to_owned()
    })
}

fn a_new_tool(site: &Site) -> Result<(), Failed> {
    say("a new tool in LDAP, then bursar sync");
    site.make_home_of_tool("fresh", 52599);
    let beneath = format!("homeDirectory: {}/", site.homes.display());
    let ldif = tool_ldif(BASE_DN, "fresh", 52599, &["alice"]).replace("homeDirectory: /", &beneath);
    site.servers.slapd.add_ldif(&ldif);
    let began = Instant::now();
    show(&succeed(site.bursar().arg("sync"))?);
    let allowed = succeed(site.kubectl_as_tool("fresh").args(["auth", "can-i", "create", "pods"]))?;
    let (answer, seconds) = (text(&allowed).trim().to_owned(), began.elapsed().as_secs_f32());
    print(&format!("tool fresh can create pods: {answer} ({seconds:.1} s after it was added)\n"));
    Ok(())
}

fn the_ledger_answers(site: &Site) -> Result<(), Failed> {
    let query = "SELECT name, uid, namespace, state, certificate_until, last_error FROM tools";
    say(&format!("sqlite3 -box ledger.db '{query}'"));
    let output = succeed(Command::new("sqlite3").arg("-box").arg("-readonly").arg(&site.ledger).arg(query))?;
    show(&output);
    let table = text(&output);
    expect(table.contains("tool-fresh") && table.contains("active"), || {
        "the ledger does not know tool fresh".to_owned()
    })?;
    show(&succeed(site.bursar().args(["ledger", "verify"]))?);
    Ok(())
}

/// Checks that the demo still prints the lines of the recording in README.md, in their order, apart from numbers and
/// times.
fn the_recording_is_true() -> Result<(), Failed> {
    let (_, recording) = include_str!("../../README.md")
        .split_once("`make demo DEMO=once` prints (shortened):\n")
        .ok_or("README.md has no recording of the demo")?;
    let indented = recording.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    let recorded: Vec<&str> = indented.filter(|line| !line.is_empty()).collect();
    expect(!recorded.is_empty(), || "the recording in README.md is empty".to_owned())?;
    let printed = printed();
    let mut printed = printed.lines().map(without_numbers);
    match recorded.into_iter().find(|line| !printed.any(|one| one == without_numbers(line))) {
        Some(line) => Err(format!("README.md shows a line that the demo does not print there: {line}")),
        None => Ok(()),
    }
}

/// Returns the words of a line, with each number replaced by `#`.
fn without_numbers(line: &str) -> String {
    let mut text = line.split_whitespace().collect::<Vec<_>>().join(" ").replace(|one: char| one.is_ascii_digit(), "#");
    while text.contains("##") {
        text = text.replace("##", "#");
    }
    text
}

/// Returns how many rows `bursar VIEW --json` prints.
fn rows(site: &Site, view: &str) -> Result<usize, Failed> {
    let output = succeed(site.bursar().args([view, "--json"]))?;
    let rows: Vec<serde_json::Value> =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("bursar {view} --json: {error}"))?;
    Ok(rows.len())
}

fn succeed(command: &mut Command) -> Result<Output, Failed> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(format!("{command:?} ended with {}:\n{}{}", output.status, text(&output), stderr(&output)))
}

fn refuse(command: &mut Command) -> Result<String, Failed> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Err(format!("{command:?} was not refused:\n{}", text(&output)));
    }
    Ok(stderr(&output))
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn show(output: &Output) {
    print(&text(output));
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
