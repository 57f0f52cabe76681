//! Endpoints of a cluster: several contexts, proxies, `tls-server-name`, an endpoint that fails, and a CA that is
//! replaced while tenants keep working.

mod proxy;
mod rollover;

use std::fs;

use bursar::orders::request::OrderRequest;
use bursar_testkit::Servers;
use bursar_testkit::pki::Authority;
use bursar_testkit::ready::DEADLINE;

use self::proxy::Proxy;
use crate::world::{World, all_is_well, stderr, target};

/// The port of the API server that all tests share.
fn port() -> u16 {
    Servers::shared().cluster.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("the URL has a port")
}

/// Adds another endpoint beside `internal` and uses it for the class `tool`.
fn with_endpoint(world: &mut World, name: &str, lines: &str) {
    let table = format!("[cluster.test.endpoint.{name}]\n{lines}\n\n[homes]\n");
    world.configure("[homes]\n", &table);
    world.configure(
        "7d\", endpoints = [\"internal\"] }\nvolumes",
        &format!("7d\", endpoints = [\"internal\", \"{name}\"] }}\nvolumes"),
    );
}

fn config(world: &World, tool: &str) -> String {
    fs::read_to_string(world.kubeconfig(tool)).expect("the kubeconfig is delivered")
}

fn works(world: &World, tool: &str, context: &str) -> bool {
    world.kubectl_as_tool(tool, &["get", "pods", "--context", context]).status.success()
}

fn ca() -> String {
    Servers::shared().cluster.ca_pem.display().to_string()
}

#[test]
fn each_endpoint_becomes_a_context_and_uses_its_proxy() {
    let mut world = World::new("contexts");
    world.tool("foo", 62_701, &[]);
    let (http, socks) = (Proxy::http(port()), Proxy::socks5(port()));
    // Only the proxies resolve this host. The certificate has the name `kubernetes`.
    for (name, proxy) in [("web", &http), ("socks", &socks)] {
        let table = format!(
            "[cluster.test.endpoint.{name}]\nurl = \"https://api.elsewhere.invalid:6443\"\nca = \"{}\"\n\
             tls_server_name = \"kubernetes\"\nproxy = \"{}\"\n\n[homes]\n",
            ca(),
            proxy.url
        );
        world.configure("[homes]\n", &table);
    }
    world.configure(
        "7d\", endpoints = [\"internal\"] }\nvolumes",
        "7d\", endpoints = [\"internal\", \"web\", \"socks\"] }\nvolumes",
    );
    all_is_well(&world.cycle());
    assert!(http.used() > 0 && socks.used() > 0, "the daemon tries the new credential through both proxies");
    assert_eq!(world.status().clusters["test"].endpoints, [].into());

    let contexts = ["test", "test-socks", "test-web"];
    let names = world.kubectl_as_tool("foo", &["config", "get-contexts", "-o", "name"]);
    assert_eq!(String::from_utf8_lossy(&names.stdout).lines().collect::<Vec<_>>(), contexts);
    let current = world.kubectl_as_tool("foo", &["config", "current-context"]);
    assert_eq!(String::from_utf8_lossy(&current.stdout).trim(), "test");
    for (context, proxy) in [("test", None), ("test-web", Some(&http)), ("test-socks", Some(&socks))] {
        let before = proxy.map(Proxy::used);
        let got = world.kubectl_as_tool("foo", &["get", "pods", "--context", context]);
        assert!(got.status.success(), "{context}: {}", stderr(&got));
        assert!(proxy.map(Proxy::used) > before || proxy.is_none(), "{context} does not use its proxy");
    }

    // Endpoints that the class no longer names are removed from the kubeconfig.
    world.configure("endpoints = [\"internal\", \"web\", \"socks\"]", "endpoints = [\"internal\"]");
    assert_eq!(world.cycle().exit_code(), 0);
    let names = world.kubectl_as_tool("foo", &["config", "get-contexts", "-o", "name"]);
    assert_eq!(String::from_utf8_lossy(&names.stdout).trim(), "test");
    assert!(!config(&world, "foo").contains("elsewhere"), "{}", config(&world, "foo"));
}

#[test]
fn an_endpoint_that_fails_is_reported_and_nobody_loses_a_credential() {
    let mut world = World::new("failing");
    for (tool, uid) in [("foo", 62_711), ("bar", 62_712), ("baz", 62_713)] {
        world.tool(tool, uid, &[]);
    }
    assert_eq!(world.cycle().exit_code(), 0);
    let tools = ["foo", "bar", "baz"];
    let before = tools.map(|tool| config(&world, tool));

    // With a foreign CA, no credential works there. Tools with a working kubeconfig keep it. Only one of them is tried.
    let foreign = world.folder.join("foreign.pem");
    fs::write(&foreign, &Authority::new("of somebody else").identity().certificate).expect("the folder is writable");
    let url = format!("https://127.0.0.1:{}", port());
    with_endpoint(&mut world, "outside", &format!("url = \"{url}\"\nca = \"{}\"", foreign.display()));
    for _ in 0..2 {
        let report = world.cycle();
        let [failing] = &report.failing[..] else { panic!("{report:#?}") };
        assert!(failing.reason.contains("endpoint outside") && failing.reason.contains("is kept"), "{failing:?}");
        assert_eq!(tools.map(|tool| config(&world, tool)), before);
    }
    assert!(tools.iter().all(|tool| works(&world, tool, "test")));
    let findings = world.status().clusters["test"].endpoints.clone();
    assert!(findings["outside"].contains("does not accept Bursar's credentials"), "{findings:?}");
    let metrics = world.metrics();
    for line in ["endpoint=\"outside\"} 1", "endpoint=\"internal\"} 0"] {
        assert!(metrics.contains(&format!("bursar_endpoint_failing{{cluster=\"test\",{line}")), "{metrics}");
    }

    // A tool whose certificate is revoked gets a new one for the endpoint that works.
    world.order(&OrderRequest::Revoke(target("bar"))).expect("the order is accepted");
    assert!(works(&world, "bar", "test") && config(&world, "bar") != before[1]);
    world.tool("new", 62_714, &[]);
    world.cycle();
    assert!(works(&world, "new", "test"), "a new tool does not wait for an endpoint");

    // After the repair, every tool gets the context, and the finding is gone.
    world.configure(&foreign.display().to_string(), &ca());
    bursar_testkit::ready::wait_for("every tool has the new context", DEADLINE, || {
        world.cycle();
        tools.iter().all(|tool| config(&world, tool).contains("test-outside")).then_some(())
    });
    assert!(tools.iter().all(|tool| works(&world, tool, "test-outside") && works(&world, tool, "test")));
    assert_eq!(world.status().clusters["test"].endpoints, [].into());
}

#[test]
fn a_url_with_a_wrong_port_replaces_no_kubeconfig() {
    let mut world = World::new("slip");
    world.tool("foo", 62_721, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let before = config(&world, "foo");
    world.configure(&Servers::shared().cluster.url, "https://127.0.0.1:9");
    let report = world.cycle();
    assert!(report.failing[0].reason.contains("endpoint internal (https://127.0.0.1:9)"), "{report:#?}");
    assert_eq!(config(&world, "foo"), before);
    assert!(works(&world, "foo", "test"));
    let findings = world.status().clusters["test"].endpoints.clone();
    assert!(findings["internal"].contains("cannot be reached from this host"), "{findings:?}");
}
