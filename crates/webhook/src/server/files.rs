//! The files of `--dir` become what the server works with, and become it again when they change. A new one that is wrong
//! replaces nothing.
//!
//! Files are looked at once a second instead of being watched for events: Kubernetes swaps a whole folder by a symlink
//! (`..data`), editors rename, NFS tells nothing; five small reads a second cost nothing and see all of it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bursar_core::errors::chain;
use bursar_core::rules::approver::ApproverRules;
use bursar_core::rules::{CERTIFICATE, KEY, KUBECONFIG, RULES, Rules, SEAL};
use jiff::Timestamp;
use kube::config::Kubeconfig;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, StoresServerSessions};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::clients::{Clients, Handshake};

/// Sessions that peers may resume: as many as rustls keeps if nobody says.
const SESSIONS: usize = 256;

/// What the server shows of itself.
#[derive(Debug)]
pub struct Certificate {
    signer: Arc<SingleCertAndKey>,
    /// When it ends.
    pub not_after: Timestamp,
}

/// A file, and what it was when it was last right.
#[derive(Debug)]
struct Slot<T> {
    names: &'static str,
    parse: fn(&[Vec<u8>]) -> Result<T, String>,
    /// What was last looked at.
    content: Vec<Vec<u8>>,
    value: Arc<T>,
    wrong: Option<String>,
    /// Seen once, and wrong: files that belong together are not always replaced in one moment.
    suspect: Option<Vec<Vec<u8>>>,
}

impl<T> Slot<T> {
    fn new(
        names: &'static str,
        content: io::Result<Vec<Vec<u8>>>,
        parse: fn(&[Vec<u8>]) -> Result<T, String>,
    ) -> Result<Self, String> {
        let content = content.map_err(|error| error.to_string())?;
        let value = Arc::new(parse(&content).map_err(|error| format!("{names}: {error}"))?);
        Ok(Self { names, parse, content, value, wrong: None, suspect: None })
    }

    /// Whether the value is another now.
    fn look(&mut self, content: io::Result<Vec<Vec<u8>>>) -> bool {
        let content = match content {
            Ok(content) if content == self.content => {
                // Back to what it was.
                (self.wrong, self.suspect) = (None, None);
                return false;
            }
            Ok(content) => content,
            Err(error) => {
                self.is_wrong(error.to_string());
                return false;
            }
        };
        match (self.parse)(&content) {
            Ok(value) => {
                (self.value, self.content) = (Arc::new(value), content);
                (self.wrong, self.suspect) = (None, None);
                tracing::info!(file = self.names, "taken over");
                true
            }
            Err(error) if self.suspect.as_ref() == Some(&content) => {
                self.is_wrong(error);
                false
            }
            Err(_) => {
                self.suspect = Some(content);
                false
            }
        }
    }

    fn is_wrong(&mut self, why: String) {
        if self.wrong.as_ref() != Some(&why) {
            tracing::error!(file = self.names, error = why, "the old one stays in force");
            self.wrong = Some(why);
        }
    }
}

/// What `rules.json` says.
#[derive(Debug)]
struct Decisive {
    rules: Arc<Rules>,
    clients: Option<Arc<Clients>>,
}

/// All files of the folder.
#[derive(Debug)]
pub struct Files {
    dir: PathBuf,
    certificate: Slot<Certificate>,
    rules: Slot<Decisive>,
    keys: Slot<Vec<[u8; 32]>>,
    kubeconfig: Slot<Option<Kubeconfig>>,
}

/// What is another than before.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Certificate, key or rules.
    pub answers: bool,
    /// The API server's place, the cluster or its seals: namespaces must be read again.
    pub index: bool,
}

impl Files {
    /// Reads all of `dir`.
    ///
    /// # Errors
    /// The first file that is wrong, and what is wrong with it.
    pub fn open(dir: &Path) -> Result<Self, String> {
        let now = folder(dir);
        Ok(Self {
            certificate: Slot::new("tls.crt, tls.key", read(&now, &[CERTIFICATE, KEY]), certificate)?,
            rules: Slot::new(RULES, read(&now, &[RULES]), rules)?,
            keys: Slot::new(SEAL, read(&now, &[SEAL]), keys)?,
            kubeconfig: Slot::new(KUBECONFIG, read_optional(&now, KUBECONFIG), kubeconfig)?,
            dir: dir.to_owned(),
        })
    }

    /// Reads what has changed.
    pub fn look(&mut self) -> Changed {
        let now = folder(&self.dir);
        let cluster = self.rules.value.rules.cluster.clone();
        let certificate = self.certificate.look(read(&now, &[CERTIFICATE, KEY]));
        let rules = self.rules.look(read(&now, &[RULES]));
        let keys = self.keys.look(read(&now, &[SEAL]));
        let kubeconfig = self.kubeconfig.look(read_optional(&now, KUBECONFIG));
        Changed {
            answers: certificate || rules,
            index: keys || kubeconfig || cluster != self.rules.value.rules.cluster,
        }
    }

    /// What the server shows.
    #[must_use]
    pub fn certificate(&self) -> Arc<Certificate> {
        Arc::clone(&self.certificate.value)
    }

    /// What it decides by.
    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.value.rules)
    }

    /// Who is answered; `None`: everybody.
    #[must_use]
    pub fn clients(&self) -> Option<Arc<Clients>> {
        self.rules.value.clients.clone()
    }

    /// For the connections to come.
    ///
    /// # Panics
    /// Never: ring has the versions of TLS that rustls has.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        let demanded = self.clients();
        // A resumed session would not show its certificate again, which may have expired meanwhile.
        let sessions: Arc<dyn StoresServerSessions> = if demanded.is_some() {
            Arc::new(NoServerSessionStorage {})
        } else {
            ServerSessionMemoryCache::new(SESSIONS)
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has TLS 1.2 and 1.3")
            .with_client_cert_verifier(Arc::new(Handshake::new(demanded)))
            .with_cert_resolver(self.certificate.value.signer.clone());
        config.session_storage = sessions;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// Who seals.
    #[must_use]
    pub fn keys(&self) -> Vec<[u8; 32]> {
        self.keys.value.to_vec()
    }

    /// How the API server is reached; `None`: as a pod.
    #[must_use]
    pub fn kubeconfig(&self) -> Option<Kubeconfig> {
        self.kubeconfig.value.as_ref().clone()
    }

    /// The files whose newest content is not in force.
    #[must_use]
    pub fn wrong(&self) -> [(&'static str, bool); 4] {
        [
            ("tls", self.certificate.wrong.is_some()),
            ("rules", self.rules.wrong.is_some()),
            ("seal", self.keys.wrong.is_some()),
            ("kubeconfig", self.kubeconfig.wrong.is_some()),
        ]
    }
}

/// The approver's files.
#[derive(Debug)]
pub struct ApproverFiles {
    dir: PathBuf,
    rules: Slot<ApproverRules>,
    kubeconfig: Slot<Option<Kubeconfig>>,
}

/// Which of the approver's files changed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ApproverChanged {
    /// What is approved, and whose seals prove it.
    pub rules: bool,
    /// The way to the API server.
    pub access: bool,
}

impl ApproverFiles {
    /// Reads all of `dir`.
    ///
    /// # Errors
    /// The first file that is wrong, and what is wrong with it.
    pub fn open(dir: &Path) -> Result<Self, String> {
        let now = folder(dir);
        Ok(Self {
            rules: Slot::new(RULES, read(&now, &[RULES]), approver_rules)?,
            kubeconfig: Slot::new(KUBECONFIG, read_optional(&now, KUBECONFIG), kubeconfig)?,
            dir: dir.to_owned(),
        })
    }

    /// Reads what has changed.
    pub fn look(&mut self) -> ApproverChanged {
        let now = folder(&self.dir);
        ApproverChanged {
            rules: self.rules.look(read(&now, &[RULES])),
            access: self.kubeconfig.look(read_optional(&now, KUBECONFIG)),
        }
    }

    /// What it approves by.
    #[must_use]
    pub fn rules(&self) -> Arc<ApproverRules> {
        Arc::clone(&self.rules.value)
    }

    /// How the API server is reached; `None`: as a pod.
    #[must_use]
    pub fn kubeconfig(&self) -> Option<Kubeconfig> {
        self.kubeconfig.value.as_ref().clone()
    }
}

fn approver_rules(content: &[Vec<u8>]) -> Result<ApproverRules, String> {
    ApproverRules::parse(content.first().map_or(&[], Vec::as_slice)).map_err(|error| error.to_string())
}

/// The folder as it is at this moment. In a Kubernetes volume it is the one that `..data` leads to, so that all files
/// come from the same swap.
fn folder(dir: &Path) -> PathBuf {
    let data = dir.join("..data");
    std::fs::canonicalize(data).unwrap_or_else(|_| dir.to_owned())
}

fn read(folder: &Path, names: &[&str]) -> io::Result<Vec<Vec<u8>>> {
    names
        .iter()
        .map(|name| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        })
        .collect()
}

fn read_optional(folder: &Path, name: &str) -> io::Result<Vec<Vec<u8>>> {
    match read(folder, &[name]) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

fn certificate(content: &[Vec<u8>]) -> Result<Certificate, String> {
    let [certificate, key] = content else { return Err("two files make it".to_owned()) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| format!("{CERTIFICATE}: {error}"))?;
    let first = chain.first().ok_or_else(|| format!("{CERTIFICATE} has no certificate"))?;
    let (_, parsed) = x509_parser::parse_x509_certificate(first).map_err(|error| format!("{CERTIFICATE}: {error}"))?;
    let not_after = Timestamp::from_second(parsed.validity().not_after.timestamp()).map_err(|e| e.to_string())?;
    // The error of a key tells nothing of it.
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| format!("{KEY} has no private key"))?;
    let signer = CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())
        .map_err(|error| format!("the key is not the certificate's: {error}"))?;
    Ok(Certificate { signer: Arc::new(SingleCertAndKey::from(signer)), not_after })
}

fn rules(content: &[Vec<u8>]) -> Result<Decisive, String> {
    let rules = Rules::parse(content.first().map_or(&[], Vec::as_slice)).map_err(|error| error.to_string())?;
    let clients = rules.client.as_ref().map(Clients::new).transpose()?;
    Ok(Decisive { rules: Arc::new(rules), clients: clients.map(Arc::new) })
}

fn keys(content: &[Vec<u8>]) -> Result<Vec<[u8; 32]>, String> {
    let text = String::from_utf8_lossy(content.first().map_or(&[], Vec::as_slice)).into_owned();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Option<Vec<[u8; 32]>> = lines.map(|line| BASE64.decode(line).ok()?.try_into().ok()).collect();
    keys.filter(|keys| !keys.is_empty()).ok_or_else(|| "is no list of Ed25519 keys in base64, a line each".to_owned())
}

fn kubeconfig(content: &[Vec<u8>]) -> Result<Option<Kubeconfig>, String> {
    let Some(text) = content.first() else { return Ok(None) };
    Kubeconfig::from_yaml(&String::from_utf8_lossy(text)).map(Some).map_err(|error| chain(&error))
}

#[cfg(test)]
mod tests {
    use bursar_core::rules::seal_text;

    use super::*;

    fn pair() -> (String, String) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
    }

    fn rules_text(cluster: &str) -> String {
        format!(r#"{{"version": 1, "cluster": "{cluster}", "daemon": "d", "exempt": [], "classes": {{}}}}"#)
    }

    fn fill(dir: &Path, cluster: &str) {
        let (certificate, key) = pair();
        let seal = seal_text(&[[7; 32], [8; 32]]);
        for (name, text) in [(CERTIFICATE, certificate), (KEY, key), (RULES, rules_text(cluster)), (SEAL, seal)] {
            std::fs::write(dir.join(name), text).expect("written");
        }
    }

    #[test]
    fn a_wrong_new_file_keeps_the_old_one_and_is_told_when_it_stays() {
        let folder = tempfile::TempDir::new().expect("a folder");
        fill(folder.path(), "prod");
        let mut files = Files::open(folder.path()).expect("all right");
        assert_eq!(files.keys(), [[7; 32], [8; 32]]);
        assert!(files.kubeconfig().is_none());
        assert_eq!(files.look(), Changed::default());

        let (certificate, before) = (files.certificate(), std::fs::read(folder.path().join(KEY)).expect("a key"));
        std::fs::write(folder.path().join(KEY), pair().1).expect("written");
        std::fs::write(folder.path().join(RULES), "{}").expect("written");
        assert_eq!(files.look(), Changed::default());
        assert_eq!(files.wrong().map(|(_, wrong)| wrong), [false; 4], "it may be half of a change");
        assert_eq!(files.look(), Changed::default());
        assert_eq!(files.wrong().map(|(_, wrong)| wrong), [true, true, false, false]);
        assert!(Arc::ptr_eq(&certificate, &files.certificate()));
        assert_eq!(files.rules().cluster.0, "prod");

        std::fs::write(folder.path().join(KEY), before).expect("written");
        std::fs::write(folder.path().join(RULES), rules_text("other")).expect("written");
        assert_eq!(files.look(), Changed { answers: true, index: true });
        assert_eq!(files.wrong().map(|(_, wrong)| wrong), [false; 4]);
        std::fs::remove_file(folder.path().join(SEAL)).expect("removed");
        assert_eq!(files.look(), Changed::default());
        assert!(files.wrong()[2].1 && files.keys().len() == 2);
    }

    #[test]
    fn a_swapped_folder_of_kubernetes_is_seen_whole() {
        let volume = tempfile::TempDir::new().expect("a folder");
        for (name, cluster) in [("..1", "prod"), ("..2", "next")] {
            std::fs::create_dir(volume.path().join(name)).expect("a folder");
            fill(&volume.path().join(name), cluster);
        }
        let link = |target: &str| {
            std::os::unix::fs::symlink(target, volume.path().join("..data_tmp")).expect("a link");
            std::fs::rename(volume.path().join("..data_tmp"), volume.path().join("..data")).expect("swapped");
        };
        link("..1");
        for name in [CERTIFICATE, KEY, RULES, SEAL] {
            std::os::unix::fs::symlink(format!("..data/{name}"), volume.path().join(name)).expect("a link");
        }
        let mut files = Files::open(volume.path()).expect("all right");
        assert_eq!(files.rules().cluster.0, "prod");
        link("..2");
        assert_eq!(files.look(), Changed { answers: true, index: true });
        assert_eq!(files.rules().cluster.0, "next");
    }

    #[test]
    fn errors_at_the_start_name_the_file() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let error = || Files::open(folder.path()).expect_err("wrong");
        assert!(error().contains("tls.crt"), "{}", error());
        fill(folder.path(), "prod");
        std::fs::write(folder.path().join(SEAL), "short\n").expect("written");
        assert!(error().contains("seal.pub: is no list"), "{}", error());
    }
}
