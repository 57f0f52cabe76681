//! A proxy between Bursar and a domain controller. It terminates TLS on both sides, so that a test can change messages.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bursar_directory::source::LdapConfig;
use bursar_testkit::https::trusting;
use bursar_testkit::pki::Authority;
use bursar_testkit::samba::Samba;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The fault of a connection, in its requests or its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The connection ends after this many bytes of answers.
    Cut(usize),
    /// Nothing is sent after this many bytes of answers, and the connection stays open.
    Silent(usize),
    /// Bytes that are not LDAP are inserted after this many bytes of answers.
    Noise(usize),
    /// Each piece is sent after this delay.
    Late(Duration),
    /// The result with this index (the bind has 0) gets this code instead of success.
    Result(usize, u8),
    /// In requests, the first bytes are replaced by the second ones, which have the same length.
    Question(&'static [u8], &'static [u8]),
    /// Like [`Fault::Question`], but in answers.
    Answer(&'static [u8], &'static [u8]),
}

/// A proxy that ends with its test.
pub struct Proxy {
    /// `ldaps://127.0.0.1:PORT`.
    pub url: String,
    /// The authority of the proxy's certificate.
    ca_pem: String,
    state: Arc<Mutex<State>>,
}

struct State {
    always: Fault,
    /// The fault of the next connection only.
    next: Option<Fault>,
    asked: Vec<u8>,
    /// The number of bytes that were answered on the last connection.
    answered: usize,
}

impl Proxy {
    pub async fn before(samba: &Samba) -> Self {
        let authority = Authority::new("the proxy's authority");
        let identity = authority.server(&[]);
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("the PEM is valid");
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("the PEM is valid");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring knows TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("the key fits the certificate");
        let (acceptor, connector) = (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(trusting(&samba.ca_pem)));
        let port = samba.ldaps_url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("the URL has a port");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("the system has a free port");
        let url = format!("ldaps://{}", listener.local_addr().expect("a listener has an address"));
        let state = Arc::new(Mutex::new(State { always: Fault::None, next: None, asked: Vec::new(), answered: 0 }));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, connector, state) = (acceptor.clone(), connector.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    // An error means that one end has closed its connection. The other end notices it.
                    let _ = serve(socket, &acceptor, &connector, port, &state).await;
                });
            }
        });
        Self { url, ca_pem: authority.identity().certificate.clone(), state }
    }

    /// Sets the fault of all connections from now on.
    pub fn always(&self, fault: Fault) {
        self.state.lock().expect("no thread panics with the lock").always = fault;
    }

    /// Sets the fault of the next connection.
    pub fn next(&self, fault: Fault) {
        self.state.lock().expect("no thread panics with the lock").next = Some(fault);
    }

    /// Forgets the requests so far, so that they are counted from here on.
    pub fn begin(&self) {
        self.state.lock().expect("no thread panics with the lock").asked.clear();
    }

    /// Returns how often `word` occurred in the requests.
    pub fn asked(&self, word: &str) -> usize {
        let state = self.state.lock().expect("no thread panics with the lock");
        state.asked.windows(word.len()).filter(|part| part.eq_ignore_ascii_case(word.as_bytes())).count()
    }

    /// Whether everything was read again, including the schema, as when polling starts.
    pub fn started_over(&self) -> bool {
        self.asked("attributeSchema") > 0
    }

    /// Returns the connection of an account without special rights, through this proxy.
    pub fn ldap(&self, samba: &Samba) -> LdapConfig {
        LdapConfig { ca_pem: Some(self.ca_pem.clone()), ..super::ldap(samba, &self.url) }
    }

    /// Returns the number of bytes that were answered on the last connection.
    pub fn answered(&self) -> usize {
        self.state.lock().expect("no thread panics with the lock").answered
    }
}

async fn serve(
    socket: TcpStream,
    acceptor: &TlsAcceptor,
    connector: &TlsConnector,
    port: u16,
    state: &Mutex<State>,
) -> io::Result<()> {
    let fault = {
        let mut state = state.lock().expect("no thread panics with the lock");
        state.answered = 0;
        state.next.take().unwrap_or(state.always)
    };
    let (mut questions, mut near) = tokio::io::split(acceptor.accept(socket).await?);
    let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let (mut answers, mut far) = tokio::io::split(connector.connect(name, far).await?);
    let asking = async {
        let mut piece = vec![0; 1 << 16];
        loop {
            let length = questions.read(&mut piece).await?;
            if length == 0 {
                return io::Result::Ok(());
            }
            let mut asked = piece[..length].to_vec();
            if let Fault::Question(one, other) = fault {
                replace(&mut asked, one, other);
            }
            state.lock().expect("no thread panics with the lock").asked.extend(&asked);
            far.write_all(&asked).await?;
            far.flush().await?;
        }
    };
    let answering = async {
        let (mut piece, mut before, mut results) = (vec![0; 1 << 16], 0, 0);
        loop {
            let length = answers.read(&mut piece).await?;
            if length == 0 {
                return io::Result::Ok(());
            }
            let mut answer = piece[..length].to_vec();
            let ends = |at: usize| (before..before + length).contains(&at).then(|| at - before);
            match fault {
                Fault::None | Fault::Question(..) => {}
                Fault::Cut(at) | Fault::Silent(at) => {
                    if let Some(end) = ends(at) {
                        near.write_all(&answer[..end]).await?;
                        near.flush().await?;
                        if matches!(fault, Fault::Silent(_)) {
                            tokio::time::sleep(Duration::from_mins(1)).await;
                        }
                        return Ok(());
                    }
                }
                Fault::Noise(at) => {
                    if let Some(end) = ends(at) {
                        answer.splice(end..end, [0; 16]);
                    }
                }
                Fault::Late(time) => tokio::time::sleep(time).await,
                Fault::Result(place, code) => spoil(&mut answer, &mut results, place, code),
                Fault::Answer(one, other) => replace(&mut answer, one, other),
            }
            before += length;
            state.lock().expect("no thread panics with the lock").answered = before;
            near.write_all(&answer).await?;
            near.flush().await?;
        }
    };
    tokio::select! {
        ended = asking => ended,
        ended = answering => ended,
    }
}

fn replace(bytes: &mut [u8], one: &[u8], other: &[u8]) {
    assert_eq!(one.len(), other.len());
    for at in 0..bytes.len() {
        if bytes[at..].starts_with(one) {
            bytes[at..at + one.len()].copy_from_slice(other);
        }
    }
}

/// Replaces a result, which is an ENUMERATED of one byte with the value 0 for success.
fn spoil(bytes: &mut [u8], results: &mut usize, place: usize, code: u8) {
    for at in 0..bytes.len() {
        if bytes[at..].starts_with(&[0x0a, 1, 0]) {
            if *results == place {
                bytes[at + 2] = code;
            }
            *results += 1;
        }
    }
}
