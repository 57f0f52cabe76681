//! Parses the files of `--dir`, and parses them again when they change. If the new content is wrong, the old content
//! stays in force.
//!
//! The files are read once a second instead of being watched: Kubernetes swaps a whole folder by a symlink (`..data`),
//! editors rename files, and NFS sends no events. Five small reads a second cost little and notice every change.

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

/// The number of TLS sessions that clients can resume: the default of rustls.
const SESSIONS: usize = 256;

/// The serving certificate and its key.
#[derive(Debug)]
pub struct Certificate {
    signer: Arc<SingleCertAndKey>,
    /// When the certificate expires.
    pub not_after: Timestamp,
}

/// A file or a pair of files, with the value of its last valid content.
#[derive(Debug)]
struct Slot<T> {
    names: &'static str,
    parse: fn(&[Vec<u8>]) -> Result<T, String>,
    /// The content of `value`.
    content: Vec<Vec<u8>>,
    value: Arc<T>,
    wrong: Option<String>,
    /// Content that was wrong when it was first seen. It is read once more before it is reported, because a pair of
    /// files is not always replaced at one moment.
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

    /// Reads new content. Returns whether the value changed.
    fn look(&mut self, content: io::Result<Vec<Vec<u8>>>) -> bool {
        let content = match content {
            Ok(content) if content == self.content => {
                // The last valid content is back.
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
                tracing::info!(file = self.names, "the new content is in force");
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
            tracing::error!(file = self.names, error = why, "the new content is wrong; the old content stays in force");
            self.wrong = Some(why);
        }
    }
}

/// The content of `rules.json`.
#[derive(Debug)]
struct Decisive {
    rules: Arc<Rules>,
    clients: Option<Arc<Clients>>,
}

/// All files of the webhook's folder.
#[derive(Debug)]
pub struct Files {
    dir: PathBuf,
    certificate: Slot<Certificate>,
    rules: Slot<Decisive>,
    keys: Slot<Vec<[u8; 32]>>,
    kubeconfig: Slot<Option<Kubeconfig>>,
}

/// The parts that changed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Whether the certificate, the key or the rules changed.
    pub answers: bool,
    /// Whether the address of the API server, the cluster or its seals changed, so that namespaces must be read again.
    pub index: bool,
}

impl Files {
    /// Reads all files of `dir`.
    ///
    /// # Errors
    /// Returns the first file that is wrong, and why.
    pub fn open(dir: &Path) -> Result<Self, String> {
        let now = folder(dir);
        Ok(Self {
            certificate: Slot::new("tls.crt, tls.key", read(&now, &[CERTIFICATE, KEY]), certificate)?,
            rules: Slot::new(RULES, read(&now, &[RULES]), rules)?,
            keys: Slot::new(SEAL, read(&now, &[SEAL]), keys)?,
            kubeconfig: Slot::new(KUBECONFIG, read_kubeconfig(&now), kubeconfig)?,
            dir: dir.to_owned(),
        })
    }

    /// Reads the files again.
    pub fn look(&mut self) -> Changed {
        let now = folder(&self.dir);
        let cluster = self.rules.value.rules.cluster.clone();
        let certificate = self.certificate.look(read(&now, &[CERTIFICATE, KEY]));
        let rules = self.rules.look(read(&now, &[RULES]));
        let keys = self.keys.look(read(&now, &[SEAL]));
        let kubeconfig = self.kubeconfig.look(read_kubeconfig(&now));
        Changed {
            answers: certificate || rules,
            index: keys || kubeconfig || cluster != self.rules.value.rules.cluster,
        }
    }

    /// Returns the serving certificate.
    #[must_use]
    pub fn certificate(&self) -> Arc<Certificate> {
        Arc::clone(&self.certificate.value)
    }

    /// Returns the rules of decisions.
    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.value.rules)
    }

    /// Returns the clients that are answered; `None` for all.
    #[must_use]
    pub fn clients(&self) -> Option<Arc<Clients>> {
        self.rules.value.clients.clone()
    }

    /// Returns the TLS configuration for new connections.
    ///
    /// # Panics
    /// Never, because ring supports the versions of TLS that rustls supports.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        let demanded = self.clients();
        // A client that resumes a session does not show its certificate again, which may have expired meanwhile.
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

    /// Returns the keys that verify seals.
    #[must_use]
    pub fn keys(&self) -> Vec<[u8; 32]> {
        self.keys.value.to_vec()
    }

    /// Returns the kubeconfig for the API server; `None` if the program runs as a pod.
    #[must_use]
    pub fn kubeconfig(&self) -> Option<Kubeconfig> {
        self.kubeconfig.value.as_ref().clone()
    }

    /// Returns the files, and whether their newest content is refused.
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

/// All files of the approver's folder.
#[derive(Debug)]
pub struct ApproverFiles {
    dir: PathBuf,
    rules: Slot<ApproverRules>,
    kubeconfig: Slot<Option<Kubeconfig>>,
}

/// The approver's files that changed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ApproverChanged {
    /// Whether the rules or the keys that verify seals changed.
    pub rules: bool,
    /// Whether the kubeconfig changed.
    pub access: bool,
}

impl ApproverFiles {
    /// Reads all files of `dir`.
    ///
    /// # Errors
    /// Returns the first file that is wrong, and why.
    pub fn open(dir: &Path) -> Result<Self, String> {
        let now = folder(dir);
        Ok(Self {
            rules: Slot::new(RULES, read(&now, &[RULES]), approver_rules)?,
            kubeconfig: Slot::new(KUBECONFIG, read_kubeconfig(&now), kubeconfig)?,
            dir: dir.to_owned(),
        })
    }

    /// Reads the files again.
    pub fn look(&mut self) -> ApproverChanged {
        let now = folder(&self.dir);
        ApproverChanged {
            rules: self.rules.look(read(&now, &[RULES])),
            access: self.kubeconfig.look(read_kubeconfig(&now)),
        }
    }

    /// Returns the rules of approvals.
    #[must_use]
    pub fn rules(&self) -> Arc<ApproverRules> {
        Arc::clone(&self.rules.value)
    }

    /// Returns the kubeconfig for the API server; `None` if the program runs as a pod.
    #[must_use]
    pub fn kubeconfig(&self) -> Option<Kubeconfig> {
        self.kubeconfig.value.as_ref().clone()
    }
}

fn approver_rules(content: &[Vec<u8>]) -> Result<ApproverRules, String> {
    ApproverRules::parse(content.first().map_or(&[], Vec::as_slice)).map_err(|error| error.to_string())
}

/// Returns the folder that holds the files now. In a Kubernetes volume, this is the target of `..data`, so that all
/// files come from the same swap.
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

/// Returns nothing if there is no kubeconfig, because the program runs as a pod.
fn read_kubeconfig(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    match read(folder, &[KUBECONFIG]) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

fn certificate(content: &[Vec<u8>]) -> Result<Certificate, String> {
    let [certificate, key] = content else { return Err("tls.crt and tls.key are both needed".to_owned()) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| format!("{CERTIFICATE}: {error}"))?;
    let first = chain.first().ok_or_else(|| format!("{CERTIFICATE} has no certificate"))?;
    let (_, parsed) = x509_parser::parse_x509_certificate(first).map_err(|error| format!("{CERTIFICATE}: {error}"))?;
    let not_after = Timestamp::from_second(parsed.validity().not_after.timestamp()).map_err(|e| e.to_string())?;
    // The error of a key contains nothing of the key.
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| format!("{KEY} has no private key"))?;
    let signer = CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())
        .map_err(|error| format!("the key does not belong to the certificate: {error}"))?;
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
    keys.filter(|keys| !keys.is_empty())
        .ok_or_else(|| "is not a list of Ed25519 keys in base64, one per line".to_owned())
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
        let key = rcgen::KeyPair::generate().expect("ring makes a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("localhost is a DNS name");
        (params.self_signed(&key).expect("the parameters are valid").pem(), key.serialize_pem())
    }

    fn rules_text(cluster: &str) -> String {
        format!(r#"{{"version": 1, "cluster": "{cluster}", "daemon": "d", "exempt": [], "classes": {{}}}}"#)
    }

    fn fill(dir: &Path, cluster: &str) {
        let (certificate, key) = pair();
        let seal = seal_text(&[[7; 32], [8; 32]]);
        for (name, text) in [(CERTIFICATE, certificate), (KEY, key), (RULES, rules_text(cluster)), (SEAL, seal)] {
            std::fs::write(dir.join(name), text).expect("the folder is writable");
        }
    }

    #[test]
    fn wrong_content_is_not_used_and_is_reported_if_it_stays() {
        let folder = tempfile::TempDir::new().expect("the temporary folder is writable");
        fill(folder.path(), "prod");
        let mut files = Files::open(folder.path()).expect("all files are valid");
        assert_eq!(files.keys(), [[7; 32], [8; 32]]);
        assert!(files.kubeconfig().is_none());
        assert_eq!(files.look(), Changed::default());

        let (certificate, before) =
            (files.certificate(), std::fs::read(folder.path().join(KEY)).expect("the key was written"));
        std::fs::write(folder.path().join(KEY), pair().1).expect("the folder is writable");
        std::fs::write(folder.path().join(RULES), "{}").expect("the folder is writable");
        assert_eq!(files.look(), Changed::default());
        assert_eq!(
            files.wrong().map(|(_, wrong)| wrong),
            [false; 4],
            "the file may belong to a pair that is being replaced"
        );
        assert_eq!(files.look(), Changed::default());
        assert_eq!(files.wrong().map(|(_, wrong)| wrong), [true, true, false, false]);
        assert!(Arc::ptr_eq(&certificate, &files.certificate()));
        assert_eq!(files.rules().cluster.0, "prod");

        std::fs::write(folder.path().join(KEY), before).expect("the folder is writable");
        std::fs::write(folder.path().join(RULES), rules_text("other")).expect("the folder is writable");
        assert_eq!(files.look(), Changed { answers: true, index: true });
        assert_eq!(files.wrong().map(|(_, wrong)| wrong), [false; 4]);
        std::fs::remove_file(folder.path().join(SEAL)).expect("the folder is writable");
        assert_eq!(files.look(), Changed::default());
        assert!(files.wrong()[2].1 && files.keys().len() == 2);
    }

    #[test]
    fn a_swapped_kubernetes_volume_is_read_as_a_whole() {
        let volume = tempfile::TempDir::new().expect("the temporary folder is writable");
        for (name, cluster) in [("..1", "prod"), ("..2", "next")] {
            std::fs::create_dir(volume.path().join(name)).expect("the folder is writable");
            fill(&volume.path().join(name), cluster);
        }
        let link = |target: &str| {
            std::os::unix::fs::symlink(target, volume.path().join("..data_tmp")).expect("the folder is writable");
            std::fs::rename(volume.path().join("..data_tmp"), volume.path().join("..data"))
                .expect("the folder is writable");
        };
        link("..1");
        for name in [CERTIFICATE, KEY, RULES, SEAL] {
            std::os::unix::fs::symlink(format!("..data/{name}"), volume.path().join(name))
                .expect("the folder is writable");
        }
        let mut files = Files::open(volume.path()).expect("all files are valid");
        assert_eq!(files.rules().cluster.0, "prod");
        link("..2");
        assert_eq!(files.look(), Changed { answers: true, index: true });
        assert_eq!(files.rules().cluster.0, "next");
    }

    #[test]
    fn an_error_at_the_start_names_the_file() {
        let folder = tempfile::TempDir::new().expect("the temporary folder is writable");
        let error = || Files::open(folder.path()).expect_err("a file is missing or wrong");
        assert!(error().contains("tls.crt"), "{}", error());
        fill(folder.path(), "prod");
        std::fs::write(folder.path().join(SEAL), "short\n").expect("the folder is writable");
        assert!(error().contains("seal.pub: is not a list"), "{}", error());
    }
}
