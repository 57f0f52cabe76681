//! `bursar revoke --evict`: nothing that an intruder left in a tool's namespace keeps running, and it starts again only
//! if an administrator approves it.

use std::process::Output;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bursar_testkit::Servers;
use bursar_testkit::ready::{DEADLINE, wait_for};

use crate::daemon::Daemon;
use crate::recovery::steps;
use crate::world::{World, all_is_well, stderr};

const RUNBOOK: &str = include_str!("../../docs/runbooks/stolen-laptop.md");

/// Returns a token that Kubernetes wrote into a Secret for the service account `default`.
fn planted(world: &World, namespace: &str) -> String {
    let secret = world.folder.join("secret.yaml");
    let text = format!(
        "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/service-account-token\nmetadata:\n  name: planted\n  \
         namespace: {namespace}\n  annotations: {{kubernetes.io/service-account.name: default}}\n"
    );
    std::fs::write(&secret, text).expect("the folder is writable");
    world.servers.cluster.wait_for_pods(namespace);
    world.kubectl(&["create", "-f", secret.to_str().expect("the path is UTF-8")]);
    let token = ["get", "secret", "planted", "-n", namespace, "-o", "jsonpath={.data.token}"];
    let token =
        wait_for("the Secret has a token", DEADLINE, || Some(world.kubectl(&token)).filter(|token| !token.is_empty()));
    String::from_utf8(BASE64.decode(token).expect("a Secret is base64")).expect("a token is UTF-8")
}

fn uid(world: &World, namespace: &str) -> String {
    world.kubectl(&[
        "get",
        "serviceaccount",
        "default",
        "-n",
        namespace,
        "--ignore-not-found",
        "-o",
        "jsonpath={.metadata.uid}",
    ])
}

/// Returns the answer of the API server to a client with this token.
fn with_token(world: &World, token: &str, namespace: &str) -> Output {
    let admin = &world.servers.cluster.admin_kubeconfig;
    let anonymous = world.folder.join("anonymous");
    let text = std::fs::read_to_string(admin).expect("the cluster has a kubeconfig");
    let kept = text.lines().filter(|line| !line.contains("client-certificate") && !line.contains("client-key"));
    std::fs::write(&anonymous, kept.collect::<Vec<_>>().join("\n")).expect("the folder is writable");
    world.kubectl_with(&anonymous, &["--token", token, "get", "pods", "-n", namespace])
}

#[test]
fn an_eviction_stops_everything_and_resume_starts_only_named_workloads() {
    let mut world = World::on(Arc::new(Servers::start()), "evict", "");
    world.tool("foo", 62_841, &[]);
    all_is_well(&world.cycle());
    let stolen = world.steal("foo");
    world.stop();
    let namespace = world.namespace("foo");
    world.kubectl(&["create", "deployment", "web", "--image=example.org/web", "--replicas=2", "-n", &namespace]);
    world.kubectl(&["create", "cronjob", "miner", "--image=example.org/m", "--schedule=0 3 1 1 *", "-n", &namespace]);
    let token = planted(&world, &namespace);
    let before = uid(&world, &namespace);
    assert!(
        stderr(&with_token(&world, &token, &namespace)).contains("Forbidden"),
        "the API server knows the token, which has no rights"
    );

    let daemon = Daemon::ready(&world);
    let since = "2020-01-01T00:00:00Z";
    let done = world.run(&["revoke", "tool", "foo", "--evict", "--since", since, "--reason", "stolen"]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}{}", stderr(&done));
    for found in [
        "the API server of test refuses older credentials",
        "token Secrets removed: planted",
        "cronjobs.batch/miner",
        "stopped: cronjob/miner, deployment/web",
    ] {
        assert!(said.contains(found), "{found}: {said}");
    }
    assert!(stderr(&world.kubectl_with(&stolen, &["get", "pods"])).contains("Forbidden"));
    assert_eq!(world.rows("SELECT state FROM tools")[0]["state"], "suspended");
    let secrets = world.kubectl(&["get", "secrets", "-n", &namespace, "-o", "name"]);
    assert!(!secrets.contains("planted"), "{secrets}");
    wait_for("the API server refuses the token", DEADLINE, || {
        stderr(&with_token(&world, &token, &namespace)).contains("Unauthorized").then_some(())
    });
    wait_for("the default service account is replaced", DEADLINE, || {
        let after = uid(&world, &namespace);
        (!after.is_empty() && after != before).then_some(())
    });
    let runs =
        |kind: &str, field: &str| world.kubectl(&["get", kind, "-n", &namespace, "-o", &format!("jsonpath={field}")]);
    assert_eq!(runs("cronjob/miner", "{.spec.suspend}"), "true");
    assert_eq!(runs("deployment/web", "{.spec.replicas}"), "0");

    let asked = world.run(&["resume", "tool", "foo"]);
    assert_eq!(asked.status.code(), Some(64), "{}", stderr(&asked));
    assert!(stderr(&asked).contains("stopped are: cronjob/miner, deployment/web"), "{}", stderr(&asked));
    let resumed = world.run(&["resume", "tool", "foo", "--start", "deployment/web"]);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_eq!(runs("cronjob/miner", "{.spec.suspend}"), "true", "nobody approved the cron job");
    assert_eq!(runs("deployment/web", "{.spec.replicas}"), "2");
    assert!(world.kubectl_as_tool("foo", &["get", "pods"]).status.success());
    assert!(stderr(&world.kubectl_with(&stolen, &["get", "pods"])).contains("Forbidden"));

    for words in steps(RUNBOOK, "If somebody was in the namespace", &[]) {
        let done = world.run(&words[1..].iter().map(String::as_str).collect::<Vec<_>>());
        assert!(done.status.success(), "{words:?}: {}{}", String::from_utf8_lossy(&done.stdout), stderr(&done));
    }
    assert_eq!(world.rows("SELECT state FROM tools")[0]["state"], "active");
    daemon.stop();
}
