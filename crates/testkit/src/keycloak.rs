//! A Keycloak server with its data in memory, as an issuer that an API server can trust.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::binaries::made_by;
use crate::folder::Folder;
use crate::https;
use crate::pki::{Authority, write_private, write_public};
use crate::ports::free_port;
use crate::process::{Process, run};

/// On an idle machine with two cores, Keycloak starts in 17 s. Other builds may make this machine slower.
const START_DEADLINE: Duration = Duration::from_mins(4);

/// The name and the password of the first administrator.
const ADMIN: &str = "admin";

/// A running Keycloak.
#[derive(Debug)]
pub struct Keycloak {
    /// `https://localhost:PORT`.
    pub url: String,
    /// The authority that signed the server's certificate.
    pub ca_pem: PathBuf,
    /// The administrator's last token, and when it was requested.
    admin_token: Mutex<Option<(Instant, String)>>,
    // Dropped in this order.
    _process: Process,
    _folder: Folder,
}

impl Keycloak {
    /// The Keycloak that all tests of this process share. It is started at the first call and ends with the process.
    /// Each test has its own realms.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Option<Keycloak>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| std::panic::catch_unwind(Self::start).ok());
        shared.as_ref().expect("the Keycloak that tests share did not start: see the first failure")
    }

    /// Starts a Keycloak. If it is not installed yet, it is downloaded first (a minute, once, with a message).
    #[must_use]
    pub fn start() -> Self {
        let home = made_by("tests/keycloak/fetch.sh");
        let folder = Folder::create("keycloak");
        let authority = Authority::new("bursar test issuer authority");
        let server = authority.server(&[]);
        let ca_pem = write_public(folder.path(), "ca.pem", &authority.identity().certificate);
        let certificate = write_public(folder.path(), "server.pem", &server.certificate);
        let key = write_private(folder.path(), "server.key", &server.key);
        let (port, management) = (free_port(), free_port());
        let url = format!("https://localhost:{port}");
        // The command of bin/kc.sh without the shell. A killed shell would leave Java running.
        let mut command = Command::new("java");
        command
            // Java's second compiler is off: the process lives for a minute, and optimized code would be ready only at
            // its end.
            .args(["-XX:TieredStopAtLevel=1", "-Xms64m", "-Xmx512m"])
            .args(["util", "util.concurrent", "security"].map(|it| format!("--add-opens=java.base/java.{it}=ALL-UNNAMED")))
            .arg("-Djava.util.concurrent.ForkJoinPool.common.threadFactory=io.quarkus.bootstrap.forkjoin.QuarkusForkJoinWorkerThreadFactory")
            .arg("-Djava.util.logging.manager=org.jboss.logmanager.LogManager")
            .arg(format!("-Dkc.home.dir={}", home.display()))
            .arg(format!("-Djboss.server.config.dir={}/conf", home.display()))
            .arg("-cp")
            .arg(home.join("lib/quarkus-run.jar"))
            .arg("io.quarkus.bootstrap.runner.QuarkusEntryPoint")
            .args(["start", "--optimized", "--cache=local", "--http-host=127.0.0.1"])
            .args([format!("--https-port={port}"), format!("--hostname={url}")])
            .arg(format!("--http-management-port={management}"))
            .arg(format!("--https-certificate-file={}", certificate.display()))
            .arg(format!("--https-certificate-key-file={}", key.display()))
            .env("KC_BOOTSTRAP_ADMIN_USERNAME", ADMIN)
            .env("KC_BOOTSTRAP_ADMIN_PASSWORD", ADMIN);
        let process = Process::start("keycloak", &command, &folder.path().join("keycloak.log"));
        let trust = https::trusting(&ca_pem);
        process.wait_until("200 from /realms/master", START_DEADLINE, || {
            https::get(&trust, port, "/realms/master").is_ok_and(|(status, _)| status == 200)
        });
        Self { url, ca_pem, admin_token: Mutex::default(), _process: process, _folder: folder }
    }

    /// The issuer in the tokens of a realm.
    #[must_use]
    pub fn issuer(&self, realm: &str) -> String {
        format!("{}/realms/{realm}", self.url)
    }

    /// Creates a realm with one public client. People can log in there in a browser, with a device code, or with their
    /// password alone.
    pub fn realm(&self, realm: &str, client: &str) {
        let client = json!({
            "clientId": client, "publicClient": true, "directAccessGrantsEnabled": true,
            "redirectUris": ["http://localhost:8000", "http://localhost:18000"],
            "attributes": {"oauth2.device.authorization.grant.enabled": "true"},
        });
        // A login that nobody answers ends within a minute.
        let realm = json!({"realm": realm, "enabled": true, "oauth2DeviceCodeLifespan": 60, "clients": [client]});
        self.create("/admin/realms", &realm);
    }

    /// Adds a user. The password is the name.
    pub fn user(&self, realm: &str, name: &str) {
        let user = json!({
            "username": name, "enabled": true, "emailVerified": true, "email": format!("{name}@example.org"),
            // Without names, the user would have to enter them at the first login.
            "firstName": name, "lastName": "Example",
            "credentials": [{"type": "password", "value": name, "temporary": false}],
        });
        self.create(&format!("/admin/realms/{realm}/users"), &user);
    }

    /// Returns the ID token of a user, by password.
    #[must_use]
    pub fn id_token(&self, realm: &str, client: &str, name: &str) -> String {
        self.token(realm, client, name, "id_token")
    }

    /// Returns a token of a user whose password is the name. `which` is the token's key in the answer.
    fn token(&self, realm: &str, client: &str, name: &str, which: &str) -> String {
        let form = format!("grant_type=password&scope=openid&client_id={client}&username={name}&password={name}");
        let answer = self.curl("POST", &format!("/realms/{realm}/protocol/openid-connect/token"), &[], &form);
        let answer: Value = serde_json::from_str(&answer).expect("the answer is JSON");
        answer[which].as_str().unwrap_or_else(|| panic!("no {which}: {answer}")).to_owned()
    }

    fn create(&self, path: &str, object: &Value) {
        self.ask("POST", path, object);
    }

    /// Sends a request as the administrator, with a body unless it is null. Returns the answer; null if it is empty.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let token = self.admin_token();
        let headers = [format!("Authorization: Bearer {token}"), "Content-Type: application/json".to_owned()];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.curl(method, path, &headers, &body);
        if answer.is_empty() { Value::Null } else { serde_json::from_str(&answer).expect("the answer is JSON") }
    }

    /// For each login, Keycloak computes a slow hash of the password. A token is therefore reused until shortly before
    /// it expires (60 s).
    fn admin_token(&self) -> String {
        let mut last = self.admin_token.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(since, _)| since.elapsed() > Duration::from_secs(30)) {
            *last = Some((Instant::now(), self.token("master", "admin-cli", ADMIN, "access_token")));
        }
        last.as_ref().map(|(_, token)| token.clone()).expect("the token was just set")
    }

    /// Sends a request and returns the answer's body.
    fn curl(&self, method: &str, path: &str, headers: &[String], body: &str) -> String {
        let mut command = Command::new("curl");
        command
            .args([
                "--silent",
                "--show-error",
                "--fail-with-body",
                "--request",
                method,
                "--data-binary",
                "@-",
                "--cacert",
            ])
            .arg(&self.ca_pem);
        for header in headers {
            command.arg("--header").arg(header);
        }
        command.arg(format!("{}{path}", self.url));
        let output = run(command, body);
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{method} {path}: {said}");
        said
    }
}
