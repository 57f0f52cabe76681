//! docs/migration/open-ondemand.md in a cluster as its hooks leave it, with a real Keycloak.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bursar_testkit::Servers;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::folder::Folder;
use bursar_testkit::keycloak::Keycloak;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::json;

use super::{Client, Page, binding, deploy, file_at_home, identity, kubeconfig, make, role, who};
use crate::daemon::Daemon;
use crate::quiet::own_servers;
use crate::world::{World, stderr};

const PAGE: &str = include_str!("../../../docs/migration/open-ondemand.md");
const REALM: &str = "migration";
/// The arguments with which the portal calls kubectl.
const OLD: &[&str] = &["--context", "ondemand", "--namespace", "user-alice", "get", "pods"];
const NEW: &[&str] = &["--context", "test", "--namespace", "user-alice", "get", "pods"];

/// Makes a cluster whose API server uses the names that the issuer has for people.
fn trusting(keycloak: &Keycloak, folder: &Path) -> Arc<Servers> {
    keycloak.realm(REALM, "ondemand");
    // The test may take longer than the default lifetime of a realm's tokens, which is five minutes.
    keycloak.ask("PUT", &format!("/admin/realms/{REALM}"), &json!({"accessTokenLifespan": 3600}));
    let config = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {
                "url": keycloak.issuer(REALM), "audiences": ["ondemand"],
                "certificateAuthority": fs::read_to_string(&keycloak.ca_pem).expect("the file is readable"),
            },
            "claimMappings": {"username": {"claim": "preferred_username", "prefix": ""}},
        }],
    });
    // The API server reads this file again and again.
    let file = folder.join("authentication.json");
    fs::write(&file, config.to_string()).expect("the folder is writable");
    let argument = format!("--authentication-config={}", file.display());
    own_servers(&ControlPlaneOptions { api_server_arguments: vec![argument], ..ControlPlaneOptions::default() })
}

/// Creates what the hooks made when a person's portal started.
fn hooked(world: &World, name: &str) {
    let namespace = format!("user-{name}");
    make(
        world,
        &[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": namespace, "labels": {"app.kubernetes.io/name": "open-ondemand"},
                "annotations": {"openondemand.org/last-hook-execution": "1790000000"},
            }}),
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": "deny-from-other-namespaces", "namespace": namespace},
                "spec": {"podSelector": {}, "ingress": [{"from": [
                    {"podSelector": {}}, {"ipBlock": {"cidr": "127.0.0.1/32"}},
                ]}]},
            }),
            binding(&namespace, &format!("{name}-ood-initializer"), "ood-initializer", ("ServiceAccount", "default")),
            binding(&namespace, &format!("{name}-ood-user"), "ood-user", ("User", name)),
        ],
    );
    deploy(world, &namespace);
}

/// Writes what the hooks wrote in the home.
fn logged_in(world: &World, keycloak: &Keycloak, name: &str) {
    keycloak.user(REALM, name);
    let login = json!({
        "idp-issuer-url": keycloak.issuer(REALM), "client-id": "ondemand", "client-secret": "of-everybody",
        "refresh-token": "none", "id-token": keycloak.id_token(REALM, "ondemand", name),
    });
    let user = json!({"auth-provider": {"name": "oidc", "config": login}});
    let config = kubeconfig(world, "ondemand", &format!("user-{name}"), (name, user));
    file_at_home(&world.folder.join("homes/home").join(name), ".kube/config", &config.to_string());
}

fn open_ondemand(world: &World, keycloak: &Keycloak) {
    make(
        world,
        &[
            role(
                "ood-user",
                &["services", "pods", "configmaps", "secrets", "pods/log"],
                &["get", "list", "watch", "create"],
            ),
            role("ood-initializer", &["secrets", "configmaps"], &["get", "update", "patch"]),
            role("ondemand", &["namespaces"], &["list", "delete"]),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ondemand"}}),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "k8-namespace-reaper"}}),
        ],
    );
    world.kubectl(&["create", "deployment", "k8-namespace-reaper", "--image=x", "-n", "k8-namespace-reaper"]);
    for (name, uid) in [("alice", 61_101), ("carol", 61_102), ("bob", 61_103)] {
        world.person(name, uid);
    }
    for name in ["alice", "carol"] {
        hooked(world, name);
        logged_in(world, keycloak, name);
    }
    // A person who left the directory.
    hooked(world, "erin");
}

#[test]
fn both_logins_work_until_the_portal_switches() {
    let keycloak = Keycloak::shared();
    let folder = Folder::create("migration");
    let servers = trusting(keycloak, folder.path());
    let words = [
        ("--cluster prod", "--cluster test"),
        ("--context prod", "--context test"),
        ("get-contexts prod", "get-contexts test"),
        ("use-context prod", "use-context test"),
        ("[\"prod\"]", "[\"test\"]"),
    ];
    let (world, mut page) = Page::open(&servers, "ood", PAGE, &words);
    open_ondemand(&world, keycloak);
    let alice = world.kubeconfig_of("alice");
    wait_for("the old login works", DEADLINE, || world.kubectl_with(&alice, OLD).status.success().then_some(()));
    let namespaces = ["user-alice", "user-carol", "user-erin"];
    let before = namespaces.map(|namespace| identity(&world, namespace));
    let old = Client::start(&world, &alice, OLD);

    page.done(&world);
    page.done(&world);
    let daemon = Daemon::ready(&world);
    page.done(&world);
    assert!(!world.kubeconfig_of("bob").exists(), "no account was requested for bob yet");
    let said = page.done(&world);
    assert!(said.contains("user:alice"), "{said}");
    assert_eq!(who(&world, &alice, &[]), "alice", "the current context is still that of the portal");
    let new = Client::start(&world, &alice, NEW);
    let said = page.ends(&world, 4);
    assert!(said.contains("no user \"erin\""), "{said}");
    page.done(&world);
    assert_eq!(who(&world, &world.kubeconfig_of("carol"), &["--context", "test"]), "user:carol");
    page.done(&world);
    assert_eq!(who(&world, &world.kubeconfig_of("bob"), &["--context", "test"]), "user:bob");
    page.done(&world);
    let pods = ["auth", "can-i", "patch", "configmaps", "-n", "user-alice", "--as"];
    let initializer = [pods.as_slice(), &["system:serviceaccount:user-alice:default"]].concat();
    old.end();
    page.done(&world);
    wait_for("the old login gives no access", DEADLINE, || {
        stderr(&world.kubectl_with(&alice, OLD)).contains("Forbidden").then_some(())
    });
    assert_eq!(world.kubectl(&initializer).trim(), "yes", "pods keep their rights");
    page.done(&world);
    page.ended();

    new.end();
    assert_eq!(namespaces.map(|namespace| identity(&world, namespace)), before);
    let file = fs::read_to_string(&alice).expect("the kubeconfig is readable");
    assert!(!file.contains("of-everybody"), "the file still contains the client secret:\n{file}");
    assert_eq!(who(&world, &alice, &[]), "user:alice");
    let kept = world.kubectl(&["get", "networkpolicies,rolebindings", "-n", "user-alice", "-o", "name"]);
    assert!(kept.contains("deny-from-other-namespaces") && !kept.contains("alice-ood"), "{kept}");
    assert_eq!(world.rows("SELECT * FROM failing").len(), 0);
    daemon.stop();
}
