//! `kind = "service-account"`: tokens for hosts outside the cluster, from the real API server into real folders.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use bursar::daemon;
use bursar::orders::request::OrderRequest;
use bursar_testkit::Servers;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::Value;

use crate::quiet::own_servers;
use crate::world::{World, all_is_well, runtime, stderr, target, text};

/// How long a revoked token may still be accepted (Kubernetes caches successes: `TokenSuccessCacheTTL` is 10 s).
const REFUSED_WITHIN: Duration = Duration::from_mins(1);
const CERTIFICATES: &str =
    "credential   = { kind = \"certificate\", lifetime = \"7d\", endpoints = [\"internal\"] }\nvolumes";

fn servers() -> Arc<Servers> {
    static SERVERS: OnceLock<Arc<Servers>> = OnceLock::new();
    SERVERS.get_or_init(|| own_servers(&ControlPlaneOptions::default())).clone()
}

/// Makes a site whose tools have tokens for two hosts, each with a folder that only that host sees.
fn site(name: &str) -> World {
    let mut world = World::bare(servers(), name, "");
    let volumes = world.folder.join("homes/volumes");
    let tokens = format!(
        "credential = {{ kind = \"service-account\", lifetime = \"10m\", hosts = [\"ce1\", \"ce2\"], \
         directory = \"{}/{{host}}/{{name}}\" }}\nvolumes",
        volumes.display()
    );
    world.configure(CERTIFICATES, &tokens);
    world.configure(
        "homes/data/project\", kubeconfig = \".kube/config\", create = false",
        "homes/data/project\", kubeconfig = \".kube/config\", create = true",
    );
    crate::template::initialise(&world);
    for host in ["ce1", "ce2"] {
        fs::create_dir_all(volumes.join(host)).expect("the parent folder is writable");
    }
    world
}

fn folder(world: &World, host: &str, tool: &str) -> PathBuf {
    world.folder.join("homes/volumes").join(host).join(tool).join(".kube")
}

fn token(kube: &Path) -> String {
    fs::read_to_string(kube.join("bursar-test/token")).expect("the token is readable")
}

/// Returns a copy of the kubeconfig and its files, as a thief would take it.
fn stolen(world: &World, host: &str) -> PathBuf {
    let (from, to) = (folder(world, host, "foo"), world.folder.join(format!("stolen-{host}")));
    let _ = fs::remove_dir_all(&to);
    fs::create_dir_all(to.join("bursar-test")).expect("the parent folder is writable");
    for file in ["config", "bursar-test/token"] {
        fs::copy(from.join(file), to.join(file)).expect("the file can be copied");
    }
    to.join("config")
}

fn works(world: &World, kubeconfig: &Path) {
    let pods = world.kubectl_with(kubeconfig, &["get", "pods"]);
    assert!(pods.status.success(), "{}", stderr(&pods));
}

/// Waits until the API server no longer knows the token's holder (401).
fn unknown(world: &World, kubeconfig: &Path) {
    wait_for("the token is refused", REFUSED_WITHIN, || {
        stderr(&world.kubectl_with(kubeconfig, &["get", "pods"])).contains("Unauthorized").then_some(())
    });
}

fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).expect("a token has three parts");
    let text = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload).expect("the value is base64");
    serde_json::from_slice(&text).expect("the text is JSON")
}

fn good(world: &mut World) {
    all_is_well(&world.cycle());
}

#[test]
fn each_host_has_its_own_token_and_the_files_that_a_workload_needs() {
    let mut world = site("outside");
    world.tool("foo", 62_901, &[]);
    good(&mut world);
    for host in ["ce1", "ce2"] {
        let kube = folder(&world, host, "foo");
        works(&world, &kube.join("config"));
        let elsewhere = world.kubectl_with(&kube.join("config"), &["get", "pods", "-n", "default"]);
        assert!(stderr(&elsewhere).contains("Forbidden"), "{}", stderr(&elsewhere));
        for file in ["config", "bursar-test/token", "bursar-test/kubernetes.env", "bursar-test/ca.crt"] {
            let file = fs::metadata(kube.join(file)).expect("the path exists");
            assert_eq!((file.uid(), file.mode() & 0o777), (62_901, 0o600));
        }
        assert_eq!(fs::metadata(kube.join("bursar-test")).expect("the path exists").mode() & 0o777, 0o700);
        let environment = fs::read_to_string(kube.join("bursar-test/kubernetes.env")).expect("the file is readable");
        let servers = servers();
        let port = servers.cluster.url.rsplit(':').next().expect("the URL has a port");
        let lines: Vec<&str> = environment.lines().collect();
        assert_eq!(lines[..2], ["KUBERNETES_SERVICE_HOST=localhost", &format!("KUBERNETES_SERVICE_PORT={port}")]);
        assert_eq!(
            fs::read_to_string(kube.join("bursar-test/namespace")).expect("the file is readable"),
            world.namespace("foo")
        );
        let claims = claims(&token(&kube));
        let life = claims["exp"].as_i64().zip(claims["iat"].as_i64()).map(|(exp, iat)| exp - iat);
        assert_eq!(life, Some(600));
        assert_eq!(claims["kubernetes.io"]["secret"]["name"], format!("bursar-host-{host}"));
    }
    // A cycle with nothing to do requests no token.
    world.idle_cycle();

    // `certs who` finds the account by the token id that an audit event contains.
    let id = claims(&token(&folder(&world, "ce2", "foo")))["jti"].as_str().expect("an id is a string").to_owned();
    let who = world.bursar(&format!("certs who JTI={id}"));
    assert!(who.contains("tool:foo") && who.contains("ce2"), "{who}");

    // Neither the ledger nor any other file directly in the state folder contains the signature of this token.
    let secret = token(&folder(&world, "ce1", "foo"));
    let signature = secret.split('.').nth(2).expect("a token has three parts").to_owned();
    world.stop();
    for entry in fs::read_dir(world.state_dir())
        .expect("the folder is readable")
        .map(|entry| entry.expect("the folder is readable").path())
    {
        if entry.is_file() {
            let content = fs::read(&entry).expect("the file is readable");
            let found = content.windows(signature.len()).any(|part| part == signature.as_bytes());
            assert!(!found, "{}", entry.display());
        }
    }
}

#[test]
fn deleting_a_secret_cuts_off_one_host_and_a_revocation_cuts_off_all() {
    let mut world = site("cutoff");
    world.tool("foo", 62_911, &[]);
    good(&mut world);
    let namespace = world.namespace("foo");
    let (first, second) = (stolen(&world, "ce1"), stolen(&world, "ce2"));
    world.kubectl(&["delete", "secret", "bursar-host-ce1", "-n", &namespace]);
    unknown(&world, &first);
    works(&world, &second);
    // An administrator who deletes the Secret wants to revoke the old token, so the host gets a new one.
    wait_for("the new token works", DEADLINE, || {
        good(&mut world);
        world.works(&folder(&world, "ce1", "foo").join("config")).then_some(())
    });
    assert_eq!(token(&folder(&world, "ce2", "foo")), token(second.parent().expect("the path has a parent")));
    unknown(&world, &first);

    // A tenant can make Kubernetes fill a Secret with a token that has no expiry. That token ends with the generation,
    // too.
    let account = world.kubectl(&["get", "serviceaccounts", "-n", &namespace, "-o", "name"]);
    let account = account
        .lines()
        .find_map(|name| name.strip_prefix("serviceaccount/bursar-"))
        .expect("the list has an object of Bursar")
        .to_owned();
    let filled = format!(
        r#"{{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": {{"name": "kept",
            "annotations": {{"kubernetes.io/service-account.name": "bursar-{account}"}}}}}}"#
    );
    servers().cluster.run(&["create", "-n", &namespace, "-f", "-"], &filled);
    let kept = wait_for("the Secret has a token", DEADLINE, || {
        let token = world.kubectl(&["get", "secret", "kept", "-n", &namespace, "-o", "jsonpath={.data.token}"]);
        (!token.is_empty()).then_some(token)
    });
    let kept = base64::engine::general_purpose::STANDARD.decode(kept).expect("the value is base64");
    let third = stolen(&world, "ce1");
    fs::write(third.with_file_name("bursar-test").join("token"), kept).expect("the folder is writable");
    works(&world, &third);

    all_is_well(&world.order(&OrderRequest::Revoke(target("foo"))).expect("the order is accepted"));
    // The bindings are removed at once. The token itself is refused when the API server's cache has expired.
    for kubeconfig in [&second, &third] {
        assert!(!world.kubectl_with(kubeconfig, &["get", "pods"]).status.success());
        unknown(&world, kubeconfig);
    }
    for host in ["ce1", "ce2"] {
        works(&world, &folder(&world, host, "foo").join("config"));
    }
    let accounts = world.kubectl(&["get", "serviceaccounts", "-n", &namespace, "-o", "name"]);
    assert!(!accounts.contains(&format!("bursar-{account}\n")), "{accounts}");
}

#[test]
fn a_revocation_does_not_bind_foreign_service_accounts() {
    let mut world = site("planted");
    world.tool("foo", 62_951, &[]);
    good(&mut world);
    let namespace = world.namespace("foo");
    let old = stolen(&world, "ce1");
    let last =
        world.rows("SELECT last_generation FROM ledger")[0]["last_generation"].as_u64().expect("the value is a number");
    let planted: Vec<String> = (last + 1..last + 6).map(|generation| format!("bursar-g{generation}")).collect();
    for name in &planted {
        let account = format!(r#"{{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {{"name": "{name}"}}}}"#);
        // Any client may use this name for its field manager.
        let apply = ["apply", "--server-side", "--field-manager=bursar", "-n", &namespace, "-f", "-"];
        servers().cluster.run(&apply, &account);
    }
    let report = world.order(&OrderRequest::Revoke(target("foo"))).expect("the order is accepted");
    assert_eq!(report.exit_code(), 1, "{report:#?}");
    let why = report.failing.iter().map(|failing| failing.reason.clone()).collect::<Vec<_>>().join("\n");
    assert!(why.contains("kubectl delete serviceaccount bursar-g"), "{why}");
    assert!(!world.kubectl_with(&old, &["get", "pods"]).status.success());
    let admin = world.servers.cluster.admin_kubeconfig.clone();
    for name in &planted {
        let whom = format!("system:serviceaccount:{namespace}:{name}");
        let may = world.kubectl_with(&admin, &["auth", "can-i", "get", "pods", "-n", &namespace, "--as", &whom]);
        assert_eq!(String::from_utf8_lossy(&may.stdout).trim(), "no", "{name}");
        world.kubectl(&["delete", "serviceaccount", name, "-n", &namespace]);
    }
    // A failed step waits before its next try, but an order does not wait.
    all_is_well(&world.order(&OrderRequest::Revoke(target("foo"))).expect("the order is accepted"));
    works(&world, &folder(&world, "ce1", "foo").join("config"));
    unknown(&world, &old);
}

#[test]
fn suspended_tenants_and_removed_hosts_lose_their_tokens() {
    let mut world = site("gone");
    world.tool("foo", 62_921, &[]);
    good(&mut world);
    let old = stolen(&world, "ce1");
    all_is_well(&world.order(&OrderRequest::Suspend(target("foo"))).expect("the order is accepted"));
    assert!(!world.kubectl_with(&old, &["get", "pods"]).status.success());
    unknown(&world, &old);
    let ours = |world: &World| {
        let label = "app.kubernetes.io/managed-by=bursar";
        world.kubectl(&["get", "serviceaccount,secret", "-n", &world.namespace("foo"), "-l", label, "-o", "name"])
    };
    assert_eq!(ours(&world), "");
    for host in ["ce1", "ce2"] {
        assert!(!folder(&world, host, "foo").join("bursar-test").exists(), "{host}");
    }
    world.order(&OrderRequest::Resume(target("foo"))).expect("the order is accepted");
    works(&world, &folder(&world, "ce1", "foo").join("config"));
    unknown(&world, &old);

    let second = stolen(&world, "ce2");
    world.configure("hosts = [\"ce1\", \"ce2\"]", "hosts = [\"ce1\"]");
    good(&mut world);
    unknown(&world, &second);
    assert!(!folder(&world, "ce2", "foo").join("bursar-test").exists());
    assert!(!ours(&world).contains("ce2"), "{}", ours(&world));
    let listed = world.rows("SELECT host FROM expiring_certificates");
    assert_eq!(listed.len(), 1, "{listed:?}");
    works(&world, &folder(&world, "ce1", "foo").join("config"));
    // kubectl can read the file before the removal, and write the credential back.
    let config = folder(&world, "ce2", "foo").join("config");
    let written = fs::read_to_string(&second).expect("the copy is readable");
    fs::write(&config, &written).expect("the removal leaves the file");
    std::thread::sleep(Duration::from_secs(3));
    good(&mut world);
    let left = fs::read_to_string(&config).expect("the removal leaves the file");
    assert!(written.contains("tokenFile") && !left.contains("tokenFile"), "{left}");
    // The kubeconfig moves to another file in the same folder, and the server's address changes. The token stays in
    // that folder.
    world.restart_homed(&["--kubeconfig", ".kube/config", "--kubeconfig", ".kube/other"]);
    for (from, to) in
        [(".kube/config\", create = true", ".kube/other\", create = true"), ("://localhost:", "://127.0.0.1:")]
    {
        world.configure(from, to);
    }
    good(&mut world);
    works(&world, &folder(&world, "ce1", "foo").join("other"));
    let left = fs::read_to_string(folder(&world, "ce1", "foo").join("config")).expect("the removal leaves the file");
    assert!(!left.contains("tokenFile"), "{left}");
    // A removed host can be added again.
    world.configure("hosts = [\"ce1\"]", "hosts = [\"ce1\", \"ce2\"]");
    good(&mut world);
}

#[test]
fn the_kubeconfigs_of_all_hosts_are_restored_even_if_one_has_no_copy() {
    const UID: u32 = 62_961;
    let mut world = site("restore");
    let own = "users:\n- {name: me, user: {token: hunter2}}\n";
    let (first, second) = (folder(&world, "ce1", "foo"), folder(&world, "ce2", "foo"));
    fs::create_dir_all(&second).expect("the parent folder is writable");
    fs::write(second.join("config"), own).expect("the folder is writable");
    let home = second.parent().expect("the folder is in a home");
    for path in [home.to_owned(), second.clone(), second.join("config")] {
        std::os::unix::fs::chown(&path, Some(UID), Some(UID)).expect("tests run as root, who may change owners");
    }
    world.tool("foo", UID, &[]);
    good(&mut world);
    let bursar = |world: &World, command: &str, exit: i32| {
        let output = world.run(&command.split(' ').collect::<Vec<_>>());
        let said = text(&output);
        assert_eq!(output.status.code(), Some(exit), "{command}: {said}");
        said
    };
    let line = |said: &str, host: &str, what: &str| {
        assert!(said.lines().any(|line| line.contains(&format!("/{host}/")) && line.contains(what)), "{host}: {said}");
    };
    // The tool's people lose the file on the second host.
    fs::write(second.join("config"), "").expect("the folder is writable");
    world.stop();
    let said = bursar(&world, "home restore tool foo --reason lost --ticket T-7", 0);
    line(&said, "ce1", "no part of a replaced file is kept");
    line(&said, "ce2", "the user's part is restored; Bursar adds its entries");
    assert_eq!(fs::read_to_string(second.join("config")).expect("the file is readable"), own);
    let history = bursar(&world, "--json history --last 1", 0);
    for part in ["kubeconfig restored", "T-7", "lost", "/ce2/"] {
        assert!(history.contains(part), "{part}: {history}");
    }
    // The order makes the next cycle deliver Bursar's entries.
    good(&mut world);
    works(&world, &second.join("config"));
    assert!(fs::read_to_string(second.join("config")).expect("the file is readable").contains("hunter2"));

    // A file that cannot be restored does not keep the other from being restored.
    fs::write(second.join("config"), "").expect("the folder is writable");
    std::os::unix::fs::chown(&first, Some(0), Some(0)).expect("tests run as root, who may change owners");
    world.stop();
    let said = bursar(&world, "home restore tool foo", 1);
    line(&said, "ce1", "belongs to uid 0");
    line(&said, "ce2", "the user's part is restored");
    std::os::unix::fs::chown(&first, Some(UID), Some(UID)).expect("tests run as root, who may change owners");
    fs::remove_file(second.join("config.bursar-kept")).expect("the file exists");
    let said = bursar(&world, "home restore tool foo", 1);
    assert!(said.contains("Bursar has replaced no file of the user"), "{said}");
}

#[test]
fn the_daemon_and_tenants_cannot_request_other_tokens() {
    let mut world = site("mints");
    world.tool("foo", 62_931, &[]);
    good(&mut world);
    let namespace = world.namespace("foo");
    let accounts = world.kubectl(&["get", "serviceaccounts", "-n", &namespace, "-o", "name"]);
    let ours = accounts
        .lines()
        .find_map(|name| name.strip_prefix("serviceaccount/bursar-"))
        .expect("the list has an object of Bursar");
    let ours = format!("bursar-{ours}");
    let daemon = world.state_dir().join("clusters/test.kubeconfig");
    let bound = ["--bound-object-kind=Secret", "--bound-object-name=bursar-host-ce1"];
    let asks = |kubeconfig: &Path, account: &str, namespace: &str, more: &[&str]| {
        let arguments = [&["create", "token", account, "-n", namespace], more].concat();
        let answer = world.kubectl_with(kubeconfig, &arguments);
        if answer.status.success() { "let through".to_owned() } else { stderr(&answer) }
    };
    assert_eq!(asks(&daemon, &ours, &namespace, &bound), "let through");
    for (account, place, more) in [
        (ours.as_str(), namespace.as_str(), [].as_slice()),
        ("default", &namespace, &bound),
        ("default", "kube-system", &[]),
        (&ours, &namespace, &[bound[0], bound[1], "--duration=10000h"]),
    ] {
        let said = asks(&daemon, account, place, more);
        assert!(said.contains("bursar-cage"), "{account} in {place}: {said}");
    }
    let tenant = folder(&world, "ce1", "foo").join("config");
    let said = asks(&tenant, &ours, &namespace, &bound);
    assert!(said.contains("is forbidden"), "{said}");
    // In the tenant's namespace, the daemon may read only the Secrets `bursar-host-*`, and it may not create them with
    // type `kubernetes.io/service-account-token`.
    let other = world.kubectl_with(&daemon, &["get", "secrets", "-n", &namespace]);
    assert!(stderr(&other).contains("Forbidden"), "{}", stderr(&other));
    let filled = r#"{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata":
        {"name": "bursar-host-ce2", "annotations": {"kubernetes.io/service-account.name": "default"}}}"#;
    world.kubectl(&["delete", "secret", "bursar-host-ce2", "-n", &namespace]);
    let mut command = servers().cluster.kubectl_as(&daemon);
    command.args(["apply", "--server-side", "-n", &namespace, "-f", "-"]);
    let refused = bursar_testkit::process::run(command, filled);
    assert!(stderr(&refused).contains("bursar-cage"), "{}", stderr(&refused));
}

/// Returns a time at which more than two thirds of a token's ten minutes have passed.
fn in_8_minutes() -> Timestamp {
    daemon::now() + SignedDuration::from_mins(8)
}

/// Returns the ids of the tokens that a client has used.
fn shown(agent: &str) -> BTreeSet<String> {
    let log = fs::read_to_string(servers().cluster.audit_log.as_ref().expect("the file is readable"))
        .expect("the cluster writes an audit log");
    let events =
        log.lines().filter(|line| line.contains(agent)).filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ids = events.filter_map(|event| {
        let ids = &event["user"]["extra"]["authentication.kubernetes.io/credential-id"];
        ids[0].as_str().map(|id| id.trim_start_matches("JTI=").to_owned())
    });
    ids.collect()
}

#[test]
fn a_client_keeps_working_while_its_token_is_replaced() {
    const AGENT: &str = "bursar-test-outside";
    let mut world = site("rotate");
    world.tool("foo", 62_941, &[]);
    good(&mut world);
    let kube = folder(&world, "ce1", "foo");
    let (first, file) = (token(&kube), fs::metadata(kube.join("config")).expect("the path exists").ino());
    let runtime = runtime();
    let config = runtime.block_on(async {
        let kubeconfig = Kubeconfig::read_from(kube.join("config")).expect("the kubeconfig is readable");
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .expect("the kubeconfig is valid")
    });
    let mut config = config;
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(AGENT)));
    let pods = runtime
        .block_on(async { Api::<Pod>::default_namespaced(Client::try_from(config).expect("the kubeconfig is valid")) });
    let asks = || runtime.block_on(pods.list(&ListParams::default())).map(drop);
    asks().expect("the client works before the rotation");

    world.clock = in_8_minutes;
    world.stop();
    good(&mut world);
    let second = token(&kube);
    assert_ne!(first, second);
    assert_eq!(
        fs::metadata(kube.join("config")).expect("the path exists").ino(),
        file,
        "only the token's file is replaced"
    );
    let events = world.rows("SELECT action FROM history WHERE action = 'token issued'");
    assert_eq!(events.len(), 2, "one event for each host, and none for the rotation: {events:?}");
    let id = |token: &str| claims(token)["jti"].as_str().expect("an id is a string").to_owned();
    let begun = Instant::now();
    while !shown(AGENT).contains(&id(&second)) {
        asks().expect("the client works during the rotation");
        assert!(begun.elapsed() < DEADLINE, "the client did not read its token again: {:?}", shown(AGENT));
        std::thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(shown(AGENT), BTreeSet::from([id(&first), id(&second)]));
}
