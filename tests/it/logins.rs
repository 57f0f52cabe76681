//! `kind = "oidc"`: people log in at a real Keycloak with kubelogin, and the real API server accepts their tokens.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;

use bursar::daemon;
use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, Target};
use bursar_testkit::binaries::made_by;
use bursar_testkit::control_plane::{ControlPlane, ControlPlaneOptions};
use bursar_testkit::keycloak::Keycloak;
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::{SignedDuration, Timestamp};
use kube::config::Kubeconfig;
use serde_json::json;

use crate::quiet::own_servers;
use crate::world::{World, all_is_well, stderr};

const CLASS: &str = r#"
[class.person]
from       = "users"
when       = { group = "logins" }
clusters   = ["test"]
namespace  = "logins-u-{name}"
home       = { prefix = "@HOMES@", kubeconfig = ".kube/config", create = false }
roles      = ["bursar-tenant"]
credential = { kind = "oidc", issuer = "@ISSUER@", client_id = "kubernetes", scopes = ["email"], grant = "device-code", user = "sso:{name}", endpoints = ["internal"] }
"#;

/// Returns options of an API server that trusts this issuer (`--authentication-config`, Kubernetes 1.30 and later).
fn trusting(keycloak: &Keycloak, folder: &std::path::Path) -> ControlPlaneOptions {
    let config = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {
                "url": keycloak.issuer("site"),
                "audiences": ["kubernetes"],
                "certificateAuthority": fs::read_to_string(&keycloak.ca_pem).expect("Keycloak has a CA"),
            },
            "claimMappings": {"username": {"claim": "preferred_username", "prefix": "sso:"}},
        }],
    });
    let file = folder.join("authentication.json");
    fs::write(&file, config.to_string()).expect("the folder is writable");
    let argument = format!("--authentication-config={}", file.display());
    ControlPlaneOptions { api_server_arguments: vec![argument], ..ControlPlaneOptions::default() }
}

/// A person with a machine that has kubectl, kubelogin and a browser, and that trusts the authority of the site.
struct Person<'a> {
    name: &'a str,
    machine: PathBuf,
    cluster: &'a ControlPlane,
    trusted: &'a Path,
}

impl<'a> Person<'a> {
    fn new(name: &'a str, world: &World, cluster: &'a ControlPlane, keycloak: &'a Keycloak) -> Self {
        let machine = world.folder.join(format!("machine-{name}"));
        fs::create_dir(&machine).expect("the folder is writable");
        let browser = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keycloak/browser.sh");
        symlink(browser, machine.join("xdg-open")).expect("the folder is writable");
        Self { name, machine, cluster, trusted: &keycloak.ca_pem }
    }

    /// Runs kubectl. The first call opens the browser. Later calls use the token that kubelogin kept.
    fn kubectl(&self, kubeconfig: &Path, arguments: &[&str]) -> Output {
        let mut command = self.cluster.kubectl_as(kubeconfig);
        // The kubeconfig names the command `kubectl oidc-login`, so kubectl and kubelogin are looked up in `PATH`, as
        // on any machine.
        let kubectl = Path::new(command.get_program()).parent().expect("the path has a parent").to_owned();
        let kubelogin = made_by("tests/keycloak/kubelogin.sh");
        let usual = env::var_os("PATH").expect("PATH is set");
        let folders = [self.machine.clone(), kubectl, kubelogin].into_iter().chain(env::split_paths(&usual));
        command
            .args(arguments)
            .env("PATH", env::join_paths(folders).expect("no folder contains a colon"))
            .env("HOME", &self.machine)
            .env("SSL_CERT_FILE", self.trusted)
            .env("BROWSER_USER", self.name);
        command.output().expect("kubectl is installed")
    }
}

fn target() -> Target {
    Target { kind: AccountKind::User, name: "ann".to_owned(), reason: Some("a test".to_owned()), ticket: None }
}

fn in_7_hours() -> Timestamp {
    daemon::now() + SignedDuration::from_hours(7)
}

#[test]
fn people_log_in_with_their_roles_until_they_are_suspended() {
    let keycloak = Keycloak::shared();
    keycloak.realm("site", "kubernetes");
    for name in ["ann", "eve"] {
        keycloak.user("site", name);
    }
    let folder = tempfile::TempDir::new().expect("the system allows a temporary folder");
    let servers = own_servers(&trusting(keycloak, folder.path()));
    let homes = servers.folder().join("logins/homes/home");
    let class = CLASS.replace("@HOMES@", &homes.display().to_string()).replace("@ISSUER@", &keycloak.issuer("site"));
    let mut world = World::on(servers.clone(), "logins", &class);
    for (uid, name) in [(62_951, "ann"), (62_952, "eve")] {
        world.person(name, uid);
    }
    world.group("logins", &["ann"]);
    all_is_well(&world.cycle());

    // The kubeconfig names the issuer and contains no secret.
    let file: PathBuf = homes.join("ann/.kube/config");
    let kubeconfig = Kubeconfig::read_from(&file).expect("the kubeconfig is delivered");
    let user = kubeconfig.auth_infos[0].auth_info.as_ref().expect("the kubeconfig has a user");
    let exec = user.exec.as_ref().expect("the user has a plugin");
    assert_eq!(exec.command.as_deref(), Some("kubectl"));
    let issuer = format!("--oidc-issuer-url={}", keycloak.issuer("site"));
    let arguments = [
        "oidc-login",
        "get-token",
        &issuer,
        "--oidc-client-id=kubernetes",
        "--oidc-extra-scope=email",
        "--grant-type=device-code",
    ];
    assert_eq!(exec.args.as_deref().expect("the plugin has arguments"), arguments);
    let text = fs::read_to_string(&file).expect("the kubeconfig is readable");
    assert!(["secret", "token:", "client-key", "password"].iter().all(|word| !text.contains(word)), "{text}");

    let [ann, eve] = ["ann", "eve"].map(|name| Person::new(name, &world, &servers.cluster, keycloak));
    // The API server fetches the keys of the issuer in the background, some time after its start.
    let pods = ["get", "pods"];
    wait_for("the API server knows ann", DEADLINE, || ann.kubectl(&file, &pods).status.success().then_some(()));
    let who = ann.kubectl(&file, &["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]);
    assert_eq!(String::from_utf8_lossy(&who.stdout), "sso:ann");
    let elsewhere = ann.kubectl(&file, &["get", "pods", "-n", "default"]);
    assert!(stderr(&elsewhere).contains("Forbidden"), "{}", stderr(&elsewhere));
    let by_another = eve.kubectl(&file, &pods);
    assert!(stderr(&by_another).contains("\"sso:eve\" cannot list"), "{}", stderr(&by_another));

    // Nothing is renewed. A damaged kubeconfig is written again. A check alone changes nothing.
    world.idle_cycle();
    fs::write(&file, text.replace("--oidc-client-id=kubernetes", "--oidc-client-id=other"))
        .expect("the home is writable");
    world.clock = in_7_hours;
    world.stop();
    all_is_well(&world.cycle());
    let again = fs::read_to_string(&file).expect("the kubeconfig is readable");
    assert!(again.contains("--oidc-client-id=kubernetes") && !again.contains("client-id=other"), "{again}");
    assert_eq!(world.rows("SELECT account FROM history WHERE action = 'kubeconfig written again'").len(), 1);

    // Bursar cannot revoke the tokens of an issuer. So it refuses a revocation instead of doing half of it.
    let refused = world.order(&OrderRequest::Revoke(target())).expect_err("there is nothing to revoke");
    assert!(refused.text.contains("suspend"), "{}", refused.text);

    let taken_along = world.folder.join("taken-along");
    fs::copy(&file, &taken_along).expect("the kubeconfig can be copied");
    all_is_well(&world.order(&OrderRequest::Suspend(target())).expect("the order is accepted"));
    let later = ann.kubectl(&taken_along, &pods);
    assert!(stderr(&later).contains("Forbidden"), "{}", stderr(&later));
    assert!(!fs::read_to_string(&file).expect("the kubeconfig is readable").contains("oidc-login"));
    all_is_well(&world.order(&OrderRequest::Resume(target())).expect("the order is accepted"));
    assert!(ann.kubectl(&file, &pods).status.success());
}
