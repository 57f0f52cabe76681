//! Certificates from the real signer are delivered into real homes, with the daemon's own credential, which its
//! admission policy confines.

use std::collections::BTreeMap;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bursar::archive::Archives;
use bursar::bootstrap;
use bursar::certificate::{Asked, CertificateError};
use bursar::desired::{DesiredCredential, DesiredHome, Proof, Subject};
use bursar::execute::authority::{VerifyError, verified};
use bursar::execute::credential::{Delivering, issue};
use bursar::execute::endpoint_probe::Old;
use bursar::execute::request::ApiServer;
use bursar::execute::{ClusterEffects, Effects, Recorder, StepError};
use bursar::identity::{Gid, HostName, NamespaceName, PosixIdentity, Uid};
use bursar::ledger::change::Change;
use bursar::observed::cluster::ClusterWatch;
use bursar::policy::{Cluster, Endpoint};
use bursar_homed::client::HomedClient;
use bursar_testkit::binaries::program;
use bursar_testkit::process::Process;
use bursar_testkit::ready::{DEADLINE, wait_for};
use jiff::Timestamp;
use serde_json::json;
use tempfile::TempDir;

use super::site::{Site, name, request};
use crate::execute::world::planned;

const UID: u32 = 52503;
const GENERATION: u64 = 1042;

/// Homes with a `bursar-homed`, and the daemon's credential for the site's cluster.
struct World {
    folder: TempDir,
    effects: Effects,
    _homed: Process,
}

impl World {
    async fn new() -> Self {
        let site = Site::shared();
        let folder = TempDir::new().expect("the system allows a temporary folder");
        let socket = folder.path().join("homed.sock");
        let mut command = Command::new(program("bursar-homed"));
        command
            .arg("--socket")
            .arg(&socket)
            .args(["--client-user", "0"])
            .arg("--prefix")
            .arg(folder.path().join("homes"));
        std::fs::create_dir(folder.path().join("homes")).expect("the parent folder is writable");
        let open = |path: &std::path::Path| {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .expect("tests run as root, who may change modes");
        };
        open(folder.path());
        let homed = Process::start("bursar-homed", &command, &folder.path().join("homed.log"));
        wait_for("bursar-homed listens", DEADLINE, || socket.exists().then_some(()));
        let client = bootstrap::client(&site.daemon_kubeconfig()).await.expect("the kubeconfig is valid");
        let watch = ClusterWatch::start(&client, name(), Vec::new(), Arc::default());
        let face = site.settings.policy.clusters[&name()].clone();
        let server = ApiServer::new(name(), client, Arc::default());
        let effects = Effects {
            clusters: BTreeMap::from([(
                name(),
                ClusterEffects { server, watch, face, pods: None, in_use: None, adopted: None },
            )]),
            homes: HomedClient::new(socket, Duration::from_secs(10)),
            archives: Archives::of(std::path::Path::new("/nonexistent"), None),
        };
        Self { folder, effects, _homed: homed }
    }

    fn home(&self, tool: &str) -> DesiredHome {
        let home = self.folder.path().join("homes").join(tool);
        std::fs::create_dir(&home).expect("the parent folder is writable");
        chown(&home, Some(UID), Some(UID)).expect("tests run as root, who may change owners");
        let posix = PosixIdentity {
            uid: Uid::try_from(i64::from(UID)).expect("the number is valid"),
            gid: Gid::try_from(i64::from(UID)).expect("the number is valid"),
            groups: std::iter::empty().collect(),
        };
        DesiredHome { home, posix, kubeconfig: PathBuf::from(".kube/config"), create: false, replace_unparsable: false }
    }

    async fn issue(&self, credential: &DesiredCredential, home: &DesiredHome) -> Result<Vec<Change>, StepError> {
        let account = &planned("foo", Vec::new(), Vec::new());
        let effects = &self.effects.clusters[&name()];
        let what =
            Delivering { credential, generation: GENERATION, home, mount: None, old: Old::Spent, is_first: true };
        let (recorder, mut records) = Recorder::channel();
        tokio::spawn(async move {
            while let Some(record) = records.recv().await {
                let _ = record.stored.send(());
            }
        });
        let homes = &self.effects.homes;
        let issued = issue(effects, homes, account, what, (Timestamp::now, &recorder)).await?;
        issued.write(homes, Timestamp::now).await
    }

    fn credential(&self, tool: &str) -> DesiredCredential {
        let face: &Cluster = &self.effects.clusters[&name()].face;
        DesiredCredential {
            proof: Proof::Certificate {
                subject: Subject {
                    common_name: format!("tool:{tool}"),
                    kind_group: "bursar:tools".to_owned(),
                    generation_group: format!("bursar:tool:{tool}#{GENERATION}"),
                    serial_number: format!("id-{tool}"),
                },
                lifetime: Duration::from_hours(7 * 24),
            },
            host: HostName::any(),
            endpoints: Arc::new(face.endpoints.clone()),
            default_endpoint: "internal".to_owned(),
            namespace: Some(NamespaceName::try_from("tool-foo".to_owned()).expect("the name is valid")),
            digest: "d1".to_owned(),
        }
    }
}

fn requests(holder: &str) -> String {
    let label = format!("bursar.dev/id={holder}");
    Site::shared().cluster.run(&["get", "csr", "-l", &label, "-o", "name"], "")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_issued_and_delivered_and_works() {
    let world = World::new().await;
    let site = Site::shared();
    let (credential, home) = (world.credential("one"), world.home("one"));
    // An earlier request of Bursar's was left behind.
    let mut stale = request("left-behind", "kubernetes.io/kube-apiserver-client");
    stale["metadata"]["labels"]["bursar.dev/id"] = json!("id-one");
    site.must("create", &stale);
    let begun = std::time::Instant::now();
    let changes = world.issue(&credential, &home).await.unwrap_or_else(|error| panic!("{}", error.reason()));
    println!("requested, issued, tested and delivered in {:?}", begun.elapsed());
    let [Change::Certificate(_, Some(certificate)), Change::Delivery(_, Some(delivery)), Change::Requested(_, None)] =
        &changes[..]
    else {
        panic!("{changes:?}");
    };
    assert_eq!((certificate.generation, certificate.subject.as_str()), (GENERATION, "tool:one"));
    let lifetime = certificate.not_after.duration_since(certificate.not_before).as_hours();
    assert!((167..=168).contains(&lifetime), "{lifetime} h");
    assert!(certificate.renew_after > certificate.not_before && certificate.renew_after < certificate.not_after);
    assert_eq!(delivery.digest, "d1");
    let written = std::fs::metadata(&delivery.path).and_then(|file| file.modified()).expect("the file exists");
    assert!(delivery.at >= Timestamp::try_from(written).expect("the time is in range"), "{}", delivery.at);
    assert_eq!(requests("id-one"), "", "neither the new request nor the stale one is left");

    let mut kubectl = site.cluster.kubectl_as(&delivery.path);
    let who =
        kubectl.args(["auth", "whoami", "-o", "json", "--context", "test"]).output().expect("kubectl is installed");
    let who: serde_json::Value = serde_json::from_slice(&who.stdout).expect("the text is JSON");
    let user = &who["status"]["userInfo"];
    assert_eq!(user["username"], "tool:one");
    let groups = user["groups"].to_string();
    assert!(groups.contains("bursar:tools") && groups.contains("bursar:tool:one#1042"), "{groups}");
    let id = user["extra"]["authentication.kubernetes.io/credential-id"].to_string();
    assert!(id.contains(&certificate.fingerprint.to_string()), "{id}");

    let script = "kubectl=$1; \"$kubectl\" --kubeconfig \"$2\" config view --raw \
                  -o jsonpath='{.users[0].user.client-certificate-data}' | base64 -d | \
                  openssl x509 -noout -subject -nameopt RFC2253 -ext extendedKeyUsage";
    let mut openssl = Command::new("sh");
    openssl.args(["-c", script, "sh"]).arg(site.cluster.kubectl_path()).arg(&delivery.path);
    let said = String::from_utf8(openssl.output().expect("openssl is installed").stdout).expect("the output is UTF-8");
    for part in ["CN=tool:one", "O=bursar:tools", "O=bursar:tool:one#1042", "serialNumber=id-one", "TLS Web Client"] {
        assert!(said.replace('\\', "").contains(part), "{part}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_home_no_certificate_is_requested() {
    let world = World::new().await;
    let mut home = world.home("two");
    home.home = home.home.with_file_name("nowhere");
    let mark = Site::shared().cluster.audit_mark();
    let error = world.issue(&world.credential("two"), &home).await.expect_err("the home is missing");
    assert_eq!(error.step(), "home");
    let asked = Site::shared().cluster.requests_since(mark);
    let made = asked.iter().filter(|request| request.verb == "create" && format!("{request:?}").contains("tool-two"));
    assert_eq!(made.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn if_an_endpoint_refuses_the_new_credential_the_old_file_is_kept() {
    let world = World::new().await;
    let home = world.home("three");
    let mut credential = world.credential("three");
    let other = bursar_testkit::pki::Authority::new("of somebody else");
    let endpoint = credential.endpoints["internal"].clone();
    let foreign = Endpoint { ca_pem: other.identity().certificate.clone(), ..endpoint };
    Arc::make_mut(&mut credential.endpoints).insert("internal".to_owned(), foreign);
    let error = world.issue(&credential, &home).await.expect_err("the authority is not trusted");
    assert!(error.reason().contains("the old kubeconfig is kept"), "{}", error.reason());
    assert!(!home.home.join(".kube/config").exists());
    // An endpoint that cannot be reached from here does not prevent the delivery.
    let mut credential = world.credential("three");
    let endpoint = credential.endpoints["internal"].clone();
    let away = Endpoint { url: "https://127.0.0.1:9".to_owned(), ..endpoint };
    Arc::make_mut(&mut credential.endpoints).insert("external".to_owned(), away);
    world.issue(&credential, &home).await.unwrap_or_else(|error| panic!("{}", error.reason()));
    let text = std::fs::read_to_string(home.home.join(".kube/config")).expect("the file is readable");
    assert!(text.contains("test-external") && text.contains("bursar-test"), "{text}");
}

/// Turns the approval of one request into a denial, as an approver of the site would.
const DENIER: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": "denier"},
 "spec": {"reinvocationPolicy": "Never", "failurePolicy": "Fail",
  "matchConstraints": {"resourceRules": [{"apiGroups": ["certificates.k8s.io"], "apiVersions": ["v1"],
   "operations": ["UPDATE"], "resources": ["certificatesigningrequests/approval"]}]},
  "matchConditions": [{"name": "six", "expression": "object.metadata.?labels[?'bursar.dev/id'].orValue('') == 'id-six'"}],
  "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
   "[JSONPatch{op: 'replace', path: '/status/conditions/0/type', value: 'Denied'}, JSONPatch{op: 'replace', path: '/status/conditions/0/message', value: 'never on Fridays'}]"}}]}},
{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
 "metadata": {"name": "denier"}, "spec": {"policyName": "denier"}}]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_request_fails_with_its_reason() {
    let world = World::new().await;
    let site = Site::shared();
    site.cluster.run(&["apply", "-f", "-"], DENIER);
    wait_for("the policy that denies the request is in force", DEADLINE, || {
        let mut request = request("denied", "kubernetes.io/kube-apiserver-client");
        request["metadata"]["labels"]["bursar.dev/id"] = json!("id-six");
        site.cluster.run(&["create", "-f", "-"], &request.to_string());
        site.cluster.run(&["certificate", "approve", "denied"], "");
        let said = site.cluster.run(&["get", "csr", "denied", "-o", "jsonpath={.status.conditions[*].type}"], "");
        site.cluster.run(&["delete", "csr", "denied"], "");
        (said == "Denied").then_some(())
    });
    let error = world.issue(&world.credential("six"), &world.home("six")).await.expect_err("the request was denied");
    assert_eq!(error.step(), "certificate");
    assert!(error.reason().contains("denied: BursarApproved: never on Fridays"), "{}", error.reason());
    assert_eq!(requests("id-six"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_an_untrusted_signer_is_not_used() {
    let site = Site::shared();
    let client = bootstrap::client(&site.daemon_kubeconfig()).await.expect("the kubeconfig is valid");
    let server = ApiServer::new(name(), client, Arc::default());
    let other = bursar_testkit::pki::Authority::new("of somebody else").client("tool:foo", "bursar:tools");
    let key = rcgen::KeyPair::from_pem(&other.key).expect("the key is valid");
    let public_key = rcgen::PublicKeyData::subject_public_key_info(&key);
    let asked = Asked {
        common_name: "tool:foo",
        organizations: ["bursar:tools"].into(),
        serial_number: None,
        public_key: &public_key,
        authorities: None,
    };
    let refused = verified(&server, other.certificate.as_bytes(), &asked).await.expect_err("the signer is unknown");
    assert!(matches!(refused, VerifyError::Certificate(CertificateError::Untrusted(_))), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_or_deleted_request_fails_with_its_reason() {
    let world = World::new().await;
    let site = Site::shared();
    // Stop the signer. These tests run in their own cluster, because every other request would wait.
    let signer = site.cluster.controller_manager().expect("the cluster has a controller manager");
    let _frozen = signer.frozen();
    let failed = r#"[{"op":"add","path":"/status/conditions/-","value":{"type":"Failed","status":"True",
        "reason":"SignerValidationFailure","message":"not today"}}]"#;
    for (tool, arguments, said) in [
        ("four", vec!["patch", "--subresource=status", "--type=json", "-p", failed], "not today"),
        ("five", vec!["delete"], "deleted before it was signed"),
    ] {
        let (credential, home) = (world.credential(tool), world.home(tool));
        let meddled = tokio::task::spawn_blocking(move || {
            let name = wait_for("the daemon approves its request", DEADLINE, || {
                let condition = "jsonpath={range .items[*]}{.metadata.name} {.status.conditions[*].type}{\"\\n\"}{end}";
                let label = format!("bursar.dev/id=id-{tool}");
                let found = Site::shared().cluster.run(&["get", "csr", "-l", &label, "-o", condition], "");
                found.lines().find(|line| line.contains("Approved")).map(|line| line.replace(" Approved", ""))
            });
            let (verb, rest) = arguments.split_first().expect("the list has a verb");
            let mut arguments = vec![*verb, "csr", &name];
            arguments.extend(rest);
            Site::shared().cluster.run(&arguments, "");
        });
        let (issued, _) = tokio::join!(world.issue(&credential, &home), meddled);
        let error = issued.expect_err("no certificate was issued");
        assert!(error.reason().contains(said), "{}", error.reason());
        assert_eq!(requests(&format!("id-{tool}")), "");
    }
}
