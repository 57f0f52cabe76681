//! The test servers have the properties that the tests rely on.

use std::path::PathBuf;
use std::process::{Command, Output};

use bursar_testkit::ldif::{disable_ldif, enable_ldif, person_dn, tool_account_dn, tool_group_dn};
use bursar_testkit::pki::write_public;
use bursar_testkit::process::Process;
use bursar_testkit::ready::{DEADLINE, poll, wait_for};
use bursar_testkit::slapd::{BASE_DN, READER_DN, READER_PASSWORD, Slapd, SlapdOptions};
use bursar_testkit::{Servers, folder::Folder, sample};
use rustix::process::Signal;

#[test]
fn api_server_is_ready() {
    assert_eq!(Servers::shared().cluster.run(&["get", "--raw", "/readyz"], ""), "ok");
}

#[test]
fn api_server_shows_its_version() {
    let version = Servers::shared().cluster.run(&["version"], "");
    assert!(version.contains("Server Version: v1.36."), "{version}");
}

#[test]
fn approved_request_becomes_a_certificate() {
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "harness");
    let request = params.serialize_request(&key).and_then(|request| request.pem()).expect("the request is valid");
    let object = serde_json::json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "harness"},
        "spec": {
            "request": base64(&request), "usages": ["client auth"],
            "signerName": "kubernetes.io/kube-apiserver-client", "expirationSeconds": 3600,
        },
    });
    let cluster = &Servers::shared().cluster;
    cluster.run(&["create", "-f", "-"], &object.to_string());
    cluster.run(&["certificate", "approve", "harness"], "");
    let certificate = wait_for("the certificate is in the status of the request", DEADLINE, || {
        let certificate = cluster.run(&["get", "csr", "harness", "-o", "jsonpath={.status.certificate}"], "");
        Some(certificate).filter(|certificate| !certificate.is_empty())
    });
    let file = write_public(Servers::shared().folder(), "harness.pem.base64", &certificate);
    let subject = shell("base64 -d \"$1\" | openssl x509 -noout -subject -nameopt RFC2253", &file);
    assert_eq!(stdout(&subject).trim(), "subject=CN=harness");
}

#[test]
fn controllers_make_the_default_service_account_and_remove_namespaces() {
    let cluster = &Servers::shared().cluster;
    cluster.run(&["create", "namespace", "harness"], "");
    wait_for("the namespace has its default service account", DEADLINE, || {
        let found = cluster.run(&["get", "serviceaccounts", "-n", "harness", "-o", "name"], "");
        found.contains("serviceaccount/default").then_some(())
    });
    cluster.run(&["delete", "namespace", "harness", "--timeout=240s"], "");
}

#[test]
fn audit_log_names_the_user_of_a_request() {
    let cluster = &Servers::shared().cluster;
    let mark = cluster.audit_mark();
    cluster.run(&["get", "namespace", "kube-public"], "");
    let request = wait_for("the audit log has the admin's request", DEADLINE, || {
        let mut requests = cluster.requests_since(mark).into_iter();
        requests.find(|request| request.user == "admin" && request.uri == "/api/v1/namespaces/kube-public")
    });
    assert_eq!((request.verb.as_str(), request.status), ("get", 200));
}

#[test]
fn reader_finds_twelve_people_and_six_tools_over_ldaps() {
    let slapd = &Servers::shared().slapd;
    let people =
        reader_search(slapd, &slapd.ldaps_url, &["-b", "ou=people,dc=example,dc=org", "objectClass=inetOrgPerson"]);
    assert_eq!(stdout(&people).matches("uidNumber: ").count(), sample::PEOPLE.len());
    let tools = reader_search(slapd, &slapd.ldaps_url, &["-b", "ou=servicegroups,dc=example,dc=org", "cn=tools.*"]);
    assert_eq!(stdout(&tools).matches("dn: uid=tools.").count(), sample::TOOLS.len());
    assert_eq!(stdout(&tools).matches("dn: cn=tools.").count(), sample::TOOLS.len());
}

#[test]
fn starttls_works_and_an_unknown_authority_is_refused() {
    let slapd = &Servers::shared().slapd;
    require(&reader_search(slapd, &slapd.ldap_url, &["-ZZ", "-b", BASE_DN, "uid=novaadmin"]));
    let mut stranger = ldapsearch(slapd, &slapd.ldaps_url, &["-b", BASE_DN, "uid=novaadmin"]);
    let answer = stranger.env_remove("LDAPTLS_CACERT").output().expect("ldapsearch is installed");
    assert!(!answer.status.success(), "a server with a certificate of an unknown authority was trusted");
}

#[test]
fn server_keeps_member_of_and_disabled_marks() {
    let slapd = &Servers::shared().slapd;
    let account = tool_account_dn(BASE_DN, "corge");
    let found = slapd.search(&person_dn(BASE_DN, "alice"), "(objectClass=*)", &["memberOf"]);
    assert!(found.contains(&format!("memberOf: {}", tool_group_dn(BASE_DN, "foo"))), "{found}");
    slapd.modify_ldif(&disable_ldif(&account));
    let found = slapd.search(&account, "(pwdPolicySubentry=*)", &["pwdPolicySubentry"]);
    assert!(found.contains("pwdPolicySubentry: cn=disabled,"), "{found}");
    slapd.modify_ldif(&enable_ldif(&account));
    assert_eq!(slapd.search(&account, "(pwdPolicySubentry=*)", &["pwdPolicySubentry"]), "");
}

#[test]
fn second_server_can_hide_an_attribute_and_limit_answers() {
    let slapd = Slapd::start(&SlapdOptions {
        global_lines: vec!["sizelimit 2".to_owned()],
        database_lines: vec![
            "access to attrs=uidNumber by * none".to_owned(),
            format!("limits dn.exact=\"{READER_DN}\" size=2"),
        ],
        bulk_load: sample::toolforge(),
        ..SlapdOptions::default()
    });
    let answer = reader_search(&slapd, &slapd.ldaps_url, &["-b", BASE_DN, "uid=*"]);
    assert_eq!(answer.status.code(), Some(4), "LDAP result 4 is sizeLimitExceeded");
    assert!(!stdout(&answer).contains("uidNumber"), "{}", stdout(&answer));
}

#[test]
fn stopped_server_comes_back_with_its_entries() {
    let slapd = Slapd::start(&SlapdOptions { bulk_load: sample::toolforge(), ..SlapdOptions::default() });
    slapd.delete_tree("ou=groups,dc=example,dc=org");
    slapd.stop();
    assert!(!reader_search(&slapd, &slapd.ldaps_url, &["-b", BASE_DN, "uid=alice"]).status.success());
    slapd.start_again();
    assert_eq!(slapd.search(BASE_DN, "(ou=groups)", &["1.1"]), "");
    assert!(!slapd.search(BASE_DN, "(uid=alice)", &["1.1"]).is_empty());
}

#[test]
fn dropped_server_leaves_no_process_and_no_file() {
    let slapd = Slapd::start(&SlapdOptions::default());
    let pid = slapd.with_process(Process::id);
    let folder = slapd.ca_pem.parent().expect("the CA is in the server's folder").to_owned();
    drop(slapd);
    assert!(!is_running(pid), "slapd {pid} still runs after it was dropped");
    assert!(!folder.exists(), "{} still exists after slapd was dropped", folder.display());
}

/// If this variable is set, this binary runs as the process that the test kills. The variable names the file for the
/// victim's note.
const VICTIM: &str = "BURSAR_TEST_VICTIM";

#[test]
fn killed_test_run_leaves_no_process_and_no_file() {
    let folder = Folder::create("victim");
    let note = folder.path().join("note");
    let mut command = Command::new(std::env::current_exe().expect("the test knows its own path"));
    command.args(["--exact", "harness::victim_of_a_kill", "--ignored", "--nocapture"]).env(VICTIM, &note);
    let victim = Process::start("victim", &command, &folder.path().join("victim.log"));
    let text = || std::fs::read_to_string(&note).ok().filter(|text| text.ends_with('\n'));
    victim.wait_until("note of the victim's server", DEADLINE, || text().is_some());
    let text = text().expect("the note was just found");
    let (pid, path) = text.trim_end().split_once(' ').expect("the note has an id and a folder");
    let (pid, path) = (pid.parse().expect("the note begins with a process id"), PathBuf::from(path));
    assert!(is_running(pid) && path.exists(), "the victim's server must run before the victim is killed");
    victim.signal(Signal::KILL);
    assert!(poll(DEADLINE, || !is_running(pid)), "slapd {pid} still runs after its test run was killed");
    assert!(poll(DEADLINE, || !path.exists()), "{} still exists after its test run was killed", path.display());
}

#[test]
#[ignore = "is run, and killed, by killed_test_run_leaves_no_process_and_no_file"]
fn victim_of_a_kill() {
    let Some(note) = std::env::var_os(VICTIM) else { return };
    let slapd = Slapd::start(&SlapdOptions::default());
    let folder = slapd.ca_pem.parent().expect("the CA is in the server's folder").display().to_string();
    let text = format!("{} {folder}\n", slapd.with_process(Process::id));
    std::fs::write(note, text).expect("the note can be written");
    assert!(!poll(DEADLINE, || false), "this process was not killed");
}

/// Whether the process runs. A zombie has ended: not every container has an init that reaps it at once.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn ldapsearch(slapd: &Slapd, url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("ldapsearch");
    command
        .env("LDAPTLS_CACERT", &slapd.ca_pem)
        .args(["-x", "-LLL", "-H", url, "-D", READER_DN, "-w", READER_PASSWORD])
        .args(arguments);
    command
}

fn reader_search(slapd: &Slapd, url: &str, arguments: &[&str]) -> Output {
    ldapsearch(slapd, url, arguments).output().expect("ldapsearch (`make packages` installs it)")
}

fn shell(script: &str, file: &std::path::Path) -> Output {
    Command::new("sh").args(["-c", script, "sh"]).arg(file).output().expect("sh is installed")
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn require(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
