//! An LDAP server (`slapd`) with its own configuration, database, certificate authority and ports.

use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::folder::Folder;
use crate::pki::{Authority, write_private, write_public};
use crate::ports::free_port;
use crate::process::{Process, run};
use crate::ready::wait_for;

/// The suffix of the database.
pub const BASE_DN: &str = "dc=example,dc=org";
/// The administrator, who is exempt from access rules and limits.
pub const ROOT_DN: &str = "cn=root,dc=example,dc=org";
/// The password of [`ROOT_DN`].
pub const ROOT_PASSWORD: &str = "root-password";
/// The account that Bursar binds as. It may read everything except passwords, without limits.
pub const READER_DN: &str = "cn=bursar,dc=example,dc=org";
/// The password of [`READER_DN`].
pub const READER_PASSWORD: &str = "reader-password";
/// The password policy that marks disabled accounts at Toolforge (`pwdPolicySubentry`).
pub const DISABLED_POLICY_DN: &str = "cn=disabled,ou=ppolicies,dc=example,dc=org";

/// Debian's paths, also for the modules and schemas below. /usr/sbin is not in every PATH.
const SLAPD: &str = "/usr/sbin/slapd";
const SLAPADD: &str = "/usr/sbin/slapadd";
const SLAPCAT: &str = "/usr/sbin/slapcat";

const START_DEADLINE: Duration = Duration::from_mins(2);

/// The differences from the default server.
#[derive(Debug, Clone)]
pub struct SlapdOptions {
    /// Lines of slapd.conf before the database, such as `sizelimit 5` or `require bind`.
    pub global_lines: Vec<String>,
    /// Lines of the database. They come before the usual access rules and limits and so take precedence, for example
    /// `access to attrs=uidNumber by * none` or `limits dn.exact="…" size=5`.
    pub database_lines: Vec<String>,
    /// Whether the server supports syncrepl (RFC 4533).
    pub syncprov: bool,
    /// Number of deletions that syncrepl remembers. With more deletions, the server sends the ids of all remaining
    /// entries.
    pub sessionlog: u32,
    /// The schema of posixAccount and posixGroup: the one of RFC 2307, or tests/data/rfc2307bis.schema.
    pub posix_schema: PathBuf,
    /// LDIF that slapadd loads before the start (20,000 entries per second). Overlays do not see these entries, so they
    /// have no `memberOf`.
    pub bulk_load: String,
}

impl Default for SlapdOptions {
    fn default() -> Self {
        Self {
            global_lines: Vec::new(),
            database_lines: Vec::new(),
            syncprov: true,
            sessionlog: 1000,
            posix_schema: PathBuf::from("/etc/ldap/schema/nis.schema"),
            bulk_load: String::new(),
        }
    }
}

/// An LDAP server.
#[derive(Debug)]
pub struct Slapd {
    /// `ldap://127.0.0.1:PORT`, which offers `StartTLS`. It contains the address, because the `ldapsearch` tools
    /// replace `localhost` by the machine's name, which the certificate does not have. Other clients can use
    /// `localhost`.
    pub ldap_url: String,
    /// `ldaps://127.0.0.1:PORT`.
    pub ldaps_url: String,
    /// The URL of a Unix socket: `ldapi://%2F…`.
    pub ldapi_url: String,
    /// The certificate of the private authority that signed the server's certificate.
    pub ca_pem: PathBuf,
    /// A client certificate that the server maps to [`READER_DN`]. Its key is `client.key` in the same folder.
    pub client_pem: PathBuf,
    directory: PathBuf,
    process: Mutex<Option<Process>>,
    // `Some` if the folder was created for this server. Last, so that it is removed after the process has ended.
    _folder: Option<Folder>,
}

impl Slapd {
    /// Starts a server in its own temporary folder. The database contains [`BASE_DN`], the reader, the policy, and
    /// `bulk_load`.
    #[must_use]
    pub fn start(options: &SlapdOptions) -> Self {
        let folder = Folder::create("slapd");
        let slapd = Self::start_in(folder.path(), options);
        Self { _folder: Some(folder), ..slapd }
    }

    /// Like [`Self::start`], but in `directory`, which is kept.
    #[must_use]
    pub fn start_in(directory: &Path, options: &SlapdOptions) -> Self {
        std::fs::create_dir_all(directory.join("database")).expect("the folder is writable");
        let authority = Authority::new("bursar test LDAP authority");
        let server = authority.server(&["ldap.example.org"]);
        let ca_pem = write_public(directory, "ca.pem", &authority.identity().certificate);
        write_public(directory, "server.pem", &server.certificate);
        write_private(directory, "server.key", &server.key);
        let client = authority.client("bursar", "daemons");
        let client_pem = write_public(directory, "client.pem", &client.certificate);
        write_private(directory, "client.key", &client.key);
        write_private(directory, "root-password", ROOT_PASSWORD);
        write_private(directory, "slapd.conf", &configuration(directory, options));
        let slapd = Self {
            ldap_url: format!("ldap://127.0.0.1:{}", free_port()),
            ldaps_url: format!("ldaps://127.0.0.1:{}", free_port()),
            ldapi_url: format!("ldapi://{}", directory.join("ldapi").display().to_string().replace('/', "%2F")),
            ca_pem,
            client_pem,
            directory: directory.to_owned(),
            process: Mutex::new(None),
            _folder: None,
        };
        slapd.load(&(base_ldif() + &options.bulk_load));
        slapd.start_again();
        slapd
    }

    /// Adds entries (`ldapadd`).
    pub fn add_ldif(&self, ldif: &str) {
        self.expect_done("ldapadd", &[], ldif);
    }

    /// Applies changes (`ldapmodify`), given as records with a `changetype`.
    pub fn modify_ldif(&self, ldif: &str) {
        self.expect_done("ldapmodify", &[], ldif);
    }

    /// Deletes one entry without children (`ldapdelete`).
    pub fn delete(&self, dn: &str) {
        self.expect_done("ldapdelete", &[dn], "");
    }

    /// Deletes an entry and all entries below it.
    pub fn delete_tree(&self, dn: &str) {
        self.expect_done("ldapdelete", &["-r", dn], "");
    }

    /// Searches as [`ROOT_DN`] over ldaps (`ldapsearch -LLL`) and returns the LDIF with unwrapped lines.
    #[must_use]
    pub fn search(&self, base: &str, filter: &str, attributes: &[&str]) -> String {
        let mut arguments = vec!["-LLL", "-o", "ldif-wrap=no", "-b", base, filter];
        arguments.extend(attributes);
        self.expect_done("ldapsearch", &arguments, "")
    }

    /// Kills the server and waits for its end. The database is kept.
    pub fn stop(&self) {
        self.lock().take();
    }

    /// Starts the server after [`Self::stop`], with the same ports and database, and waits until it answers.
    pub fn start_again(&self) {
        let urls = format!("{} {} {}", self.ldap_url, self.ldaps_url, self.ldapi_url);
        let mut command = Command::new(SLAPD);
        command.arg("-f").arg(self.directory.join("slapd.conf")).args(["-h", &urls, "-d", "0"]);
        let process = Process::start("slapd", &command, &self.directory.join("slapd.log"));
        let address = self.ldaps_url.trim_start_matches("ldaps://");
        process.wait_until("open port", START_DEADLINE, || TcpStream::connect(address).is_ok());
        // The port is open before the database is; a search waits for the database.
        self.expect_done("ldapsearch", &["-s", "base", "-b", BASE_DN, "1.1"], "");
        *self.lock() = Some(process);
    }

    /// Stops the server and starts it with another database: the base entries and `ldif`.
    pub fn start_with(&self, ldif: &str) {
        self.start_from(&(base_ldif() + ldif));
    }

    fn start_from(&self, ldif: &str) {
        self.stop();
        let database = self.directory.join("database");
        std::fs::remove_dir_all(&database).expect("the old database is removed");
        std::fs::create_dir(&database).expect("the folder is writable");
        self.load(ldif);
        self.start_again();
    }

    /// Returns the database as LDIF, with the entries' ids and times (`slapcat`). The server may be running.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut command = Command::new(SLAPCAT);
        // Writes each value on one line.
        command.args(["-o", "ldif-wrap=no", "-f"]).arg(self.directory.join("slapd.conf"));
        let dump = run(command, "");
        require_success("slapcat", &dump);
        String::from_utf8(dump.stdout).expect("LDIF is UTF-8")
    }

    /// Stops the server and starts it with a database that [`Self::dump`] returned.
    pub fn start_copy(&self, dump: &str) {
        self.start_from(dump);
    }

    /// Stops the server and starts it with the same database and another configuration.
    pub fn start_configured(&self, options: &SlapdOptions) {
        self.stop();
        write_private(&self.directory, "slapd.conf", &configuration(&self.directory, options));
        self.start_again();
    }

    /// Stops the server cleanly, edits a dump of its database (`slapcat`), and starts it with the result. Clients are
    /// not told of such a change.
    pub fn edit_unseen(&self, edit: impl FnOnce(&str) -> String) {
        self.with_process(|process| process.signal(Signal::TERM));
        wait_for("the end of slapd", START_DEADLINE, || self.with_process(Process::ended));
        let dump = self.dump();
        self.start_from(&edit(&dump));
    }

    /// Calls `act` with the process, for example `slapd.with_process(|p| p.signal(Signal::STOP))`.
    pub fn with_process<T>(&self, act: impl FnOnce(&Process) -> T) -> T {
        act(self.lock().as_ref().expect("slapd is running"))
    }

    fn load(&self, ldif: &str) {
        let mut command = Command::new(SLAPADD);
        command.args(["-q", "-f"]).arg(self.directory.join("slapd.conf"));
        require_success("slapadd", &run(command, ldif));
    }

    fn expect_done(&self, tool: &str, arguments: &[&str], input: &str) -> String {
        let output = self.client(tool, arguments, input);
        require_success(tool, &output);
        String::from_utf8(output.stdout).expect("LDIF is UTF-8")
    }

    fn client(&self, tool: &str, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(tool);
        command
            .env("LDAPTLS_CACERT", &self.ca_pem)
            .args(["-x", "-H", &self.ldaps_url, "-D", ROOT_DN, "-y"])
            .arg(self.directory.join("root-password"))
            .args(arguments);
        run(command, input)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn require_success(tool: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} failed ({}): {said}", output.status);
}

/// The base entries of every server. The policy only exists as a target of `pwdPolicySubentry`.
fn base_ldif() -> String {
    format!(
        "dn: {BASE_DN}\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: Example\n\n\
         dn: {READER_DN}\nobjectClass: organizationalRole\nobjectClass: simpleSecurityObject\ncn: bursar\n\
         userPassword: {READER_PASSWORD}\n\n\
         dn: ou=ppolicies,{BASE_DN}\nobjectClass: organizationalUnit\nou: ppolicies\n\n\
         dn: {DISABLED_POLICY_DN}\nobjectClass: organizationalRole\nobjectClass: pwdPolicy\ncn: disabled\n\
         pwdAttribute: userPassword\n\n"
    )
}

fn configuration(directory: &Path, options: &SlapdOptions) -> String {
    let path = |name: &str| directory.join(name).display().to_string();
    let mut text = String::from(
        "modulepath /usr/lib/ldap\nmoduleload back_mdb\nmoduleload syncprov\nmoduleload memberof\nmoduleload ppolicy\n",
    );
    let posix = options.posix_schema.display().to_string();
    let schemas = ["core", "cosine", "inetorgperson"].map(|schema| format!("/etc/ldap/schema/{schema}.schema"));
    for schema in [&schemas[0], &schemas[1], &posix, &schemas[2]] {
        let _ = writeln!(text, "include {schema}");
    }
    let (ca, certificate, key) = (path("ca.pem"), path("server.pem"), path("server.key"));
    let (pid, arguments, database) = (path("slapd.pid"), path("slapd.args"), path("database"));
    let sessionlog = options.sessionlog;
    let syncprov = format!("overlay syncprov\nsyncprov-checkpoint 100 10\nsyncprov-sessionlog {sessionlog}");
    let syncprov = if options.syncprov { syncprov } else { String::new() };
    let global_lines = options.global_lines.join("\n");
    let database_lines = options.database_lines.join("\n");
    let _ = write!(
        text,
        "attributetype ( 1.3.6.1.4.1.24552.500.1.1.1.13 NAME 'sshPublicKey' EQUALITY octetStringMatch\n  \
           SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 )\n\
         objectclass ( 1.3.6.1.4.1.24552.500.1.1.2.0 NAME 'ldapPublicKey' SUP top AUXILIARY\n  \
           MAY ( sshPublicKey $ uid ) )\n\
         pidfile {pid}\n\
         argsfile {arguments}\n\
         TLSCACertificateFile {ca}\n\
         TLSCertificateFile {certificate}\n\
         TLSCertificateKeyFile {key}\n\
         TLSVerifyClient try\n\
         authz-regexp \"^.*cn=bursar.*$\" \"{READER_DN}\"\n\
         {global_lines}\n\
         access to dn.base=\"\" by * read\n\
         access to dn.base=\"cn=Subschema\" by * read\n\
         database mdb\n\
         suffix \"{BASE_DN}\"\n\
         rootdn \"{ROOT_DN}\"\n\
         rootpw {ROOT_PASSWORD}\n\
         directory {database}\n\
         maxsize 1073741824\n\
         dbnosync\n\
         index objectClass,entryUUID,entryCSN,uid,cn,uidNumber,member,memberUid eq\n\
         {database_lines}\n\
         limits dn.exact=\"{READER_DN}\" size=unlimited time=unlimited size.prtotal=unlimited\n\
         access to attrs=userPassword by anonymous auth by * none\n\
         access to * by dn.exact=\"{READER_DN}\" read by * none\n\
         {syncprov}\n\
         overlay memberof\n\
         overlay ppolicy\n"
    );
    text
}
