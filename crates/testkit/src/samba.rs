//! An Active Directory: Samba's domain controller, in its own network namespace.
//!
//! The server's ports (389, 636) cannot be changed. It therefore runs in a network namespace, where these ports are
//! free. Threads of this process listen on other ports of 127.0.0.1 outside, enter the namespace, and forward the
//! connections.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::binaries::made_by;
use crate::folder::Folder;
use crate::pki::{Authority, write_private, write_public};
use crate::ports::free_port;
use crate::process::{Process, run};

/// The DN of the domain.
pub const DOMAIN_DN: &str = "DC=ad,DC=example,DC=org";
/// The SID of the domain. The uids of its accounts begin at [`SLICE`].
pub const DOMAIN_SID: &str = "S-1-5-21-123-456-789";
/// The id that SSSD computes for RID 0 of [`DOMAIN_SID`].
pub const SLICE: u32 = 1_842_600_000;
/// An account without further rights, as Bursar's should be.
pub const READER: &str = "bursar@ad.example.org";
/// The password of [`READER`].
pub const READER_PASSWORD: &str = "Reader-Passw0rd";

/// The administrator of the domain.
pub const ADMINISTRATOR: &str = "Administrator@ad.example.org";
/// The password in tests/cluster/samba.sh.
pub const ADMINISTRATOR_PASSWORD: &str = "Passw0rd!x";
const START_DEADLINE: Duration = Duration::from_mins(2);

/// A domain controller.
#[derive(Debug)]
pub struct Samba {
    /// `ldap://127.0.0.1:PORT`; offers `StartTLS`.
    pub ldap_url: String,
    /// `ldaps://127.0.0.1:PORT`.
    pub ldaps_url: String,
    /// The certificate of the private authority that signed the server's certificate.
    pub ca_pem: PathBuf,
    /// A file with [`READER_PASSWORD`].
    pub reader_password: PathBuf,
    process: Process,
    folder: Folder,
}

impl Samba {
    /// The domain that all tests of this process share, started at the first call. Each test uses its own
    /// organizational unit and prefixes names with it, because names must be unique in a domain.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Option<Samba>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| std::panic::catch_unwind(Self::start).ok());
        shared.as_ref().expect("the domain controller that tests share did not start: see the first failure")
    }

    /// Returns the shared domain, and the DN of a new organizational unit in it.
    pub fn with_unit(name: &str) -> (&'static Self, String) {
        (Self::shared(), Self::shared().unit(name))
    }

    /// Starts a controller on a copy of the domain that tests/cluster/samba.sh creates. It takes 3 s, and 20 s the
    /// first time.
    #[must_use]
    pub fn start() -> Self {
        let samba = Self::start_on(&made_by("tests/cluster/samba.sh"));
        let password = password(READER_PASSWORD);
        samba.add_ldif(&person_ldif(&format!("CN=Users,{DOMAIN_DN}"), "bursar", &format!("unicodePwd:: {password}\n")));
        samba
    }

    /// Starts the same controller again on a copy of its present database. Later changes of one are not known to the
    /// other, as if one machine had been set back to a snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self::start_on(&self.folder.path().join("dc"))
    }

    /// Starts a controller on a copy of this database.
    fn start_on(database: &Path) -> Self {
        let folder = Folder::create("samba");
        let directory = folder.path();
        let copy = Command::new("cp").args(["-a", "--reflink=auto"]).arg(database).arg(directory.join("dc")).output();
        let copy = copy.expect("`cp` is installed");
        assert!(copy.status.success(), "cp: {}", String::from_utf8_lossy(&copy.stderr));
        let authority = Authority::new("bursar test domain authority");
        let server = authority.server(&["dc1.ad.example.org"]);
        let ca_pem = write_public(directory, "ca.pem", &authority.identity().certificate);
        write_public(directory, "server.pem", &server.certificate);
        write_private(directory, "server.key", &server.key);
        write_private(directory, "password", ADMINISTRATOR_PASSWORD);
        write_private(directory, "smb.conf", &configuration(directory));
        let mut command = Command::new("unshare");
        let start = "ip link set lo up && exec /usr/sbin/samba -F --no-process-group -M single -s \"$1\"";
        command.args(["-n", "sh", "-c", start, "sh"]).arg(directory.join("smb.conf"));
        let process = Process::start("samba", &command, &directory.join("samba.log"));
        let network = PathBuf::from(format!("/proc/{}/ns/net", process.id()));
        let outside = std::fs::read_link("/proc/self/ns/net").expect("our own network is known");
        process.wait_until("network of its own", START_DEADLINE, || {
            std::fs::read_link(&network).is_ok_and(|network| network != outside)
        });
        let samba = Self {
            ldap_url: format!("ldap://127.0.0.1:{}", forward(&network, 389)),
            ldaps_url: format!("ldaps://127.0.0.1:{}", forward(&network, 636)),
            ca_pem,
            reader_password: write_private(directory, "reader-password", READER_PASSWORD),
            process,
            folder,
        };
        samba.process.wait_until("answer", START_DEADLINE, || {
            let mut search = samba.client("ldapsearch");
            search.args(["-LLL", "-s", "base", "-b", DOMAIN_DN, "1.1"]);
            search.stderr(Stdio::null()).stdout(Stdio::null()).status().is_ok_and(|status| status.success())
        });
        samba
    }

    /// Adds an organizational unit to the domain and returns its DN.
    pub fn unit(&self, name: &str) -> String {
        let dn = format!("OU={name},{DOMAIN_DN}");
        self.add_ldif(&format!("dn: {dn}\nobjectClass: organizationalUnit\nou: {name}\n\n"));
        dn
    }

    /// Adds entries as the domain's administrator.
    pub fn add_ldif(&self, ldif: &str) {
        self.expect_done("ldapadd", &[], ldif);
    }

    /// Applies changes, given as records with a `changetype`.
    pub fn modify_ldif(&self, ldif: &str) {
        self.expect_done("ldapmodify", &[], ldif);
    }

    /// Restores a deleted object at `dn` (MS-ADTS 3.1.1.5.3.7).
    pub fn restore(&self, deleted: &str, dn: &str) {
        let back = "changetype: modify\ndelete: isDeleted\n-\nreplace: distinguishedName\ndistinguishedName";
        let show_deleted = "!1.2.840.113556.1.4.417";
        self.expect_done("ldapmodify", &["-e", show_deleted], &format!("dn: {deleted}\n{back}: {dn}\n\n"));
    }

    /// Searches as the administrator and returns the LDIF with unwrapped lines.
    #[must_use]
    pub fn search(&self, base: &str, filter: &str, attributes: &[&str]) -> String {
        let mut arguments = vec!["-LLL", "-o", "ldif-wrap=no", "-b", base, filter];
        arguments.extend(attributes);
        self.expect_done("ldapsearch", &arguments, "")
    }

    fn expect_done(&self, tool: &str, arguments: &[&str], input: &str) -> String {
        let mut command = self.client(tool);
        command.args(arguments);
        let output = run(command, input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{tool} failed ({}): {said}", output.status);
        String::from_utf8(output.stdout).expect("LDIF is UTF-8")
    }

    fn client(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        command.env("LDAPTLS_CACERT", &self.ca_pem).args(["-x", "-H", &self.ldaps_url, "-D", ADMINISTRATOR, "-y"]);
        command.arg(self.folder.path().join("password"));
        command
    }
}

/// A person who may log on. `more` contains further lines of LDIF, for example `userAccountControl: 514` for a disabled
/// person.
#[must_use]
pub fn person_ldif(base: &str, name: &str, more: &str) -> String {
    // NORMAL_ACCOUNT and PASSWD_NOTREQD (MS-ADTS 2.2.16), because most accounts here have no password.
    let control = if more.contains("userAccountControl:") { "" } else { "userAccountControl: 544\n" };
    format!("dn: CN={name},{base}\nobjectClass: user\nsAMAccountName: {name}\n{control}{more}\n")
}

/// A security group with these members, given by DN.
#[must_use]
pub fn group_ldif(base: &str, name: &str, members: &[String]) -> String {
    let members = members.iter().fold(String::new(), |lines, member| lines + "member: " + member + "\n");
    format!("dn: CN={name},{base}\nobjectClass: group\nsAMAccountName: {name}\n{members}\n")
}

/// A password in the form of `unicodePwd` (MS-ADTS 3.1.1.3.1.5.1), in base64 for LDIF.
#[must_use]
pub fn password(text: &str) -> String {
    let bytes: Vec<u8> = format!("\"{text}\"").encode_utf16().flat_map(u16::to_le_bytes).collect();
    STANDARD.encode(bytes)
}

fn configuration(directory: &Path) -> String {
    let (folder, dc) = (directory.display(), directory.join("dc").display().to_string());
    format!(
        "[global]\n\
         netbios name = DC1\n\
         realm = AD.EXAMPLE.ORG\n\
         workgroup = ADX\n\
         server role = active directory domain controller\n\
         server services = ldap\n\
         interfaces = lo\n\
         bind interfaces only = yes\n\
         idmap_ldb:use rfc2307 = yes\n\
         private dir = {dc}/private\n\
         state directory = {dc}/state\n\
         cache directory = {dc}/cache\n\
         lock directory = {dc}\n\
         binddns dir = {dc}/bind-dns\n\
         pid directory = {folder}/run\n\
         ncalrpc dir = {folder}/run/ncalrpc\n\
         log file = {folder}/log.%m\n\
         tls cafile = {folder}/ca.pem\n\
         tls certfile = {folder}/server.pem\n\
         tls keyfile = {folder}/server.key\n"
    )
}

/// Returns a port of 127.0.0.1 that forwards to `port` of 127.0.0.1 in `network`, as long as this process lives.
fn forward(network: &Path, port: u16) -> u16 {
    let network = File::open(network).expect("the network of our own process is readable");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).expect("the port is free");
    let outside = listener.local_addr().expect("the listener has an address").port();
    let enter_and_serve = move || {
        // Only this thread and those that it starts enter the namespace. The listener stays outside.
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter a network");
        for client in listener.incoming().filter_map(Result::ok) {
            // If the server does not listen yet, the client's connection is closed.
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
            let ends = client.try_clone().and_then(|client| Ok((client, server.try_clone()?)));
            let Ok((client_again, server_again)) = ends else { continue };
            std::thread::spawn(move || pass(client, server));
            std::thread::spawn(move || pass(server_again, client_again));
        }
    };
    std::thread::Builder::new()
        .name(format!("forward {port}"))
        .spawn(enter_and_serve)
        .expect("the system starts a thread");
    outside
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    // A copy ends with an error if one side has closed; the other side is then closed too.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
