//! Sends an HTTPS request without credentials, to check whether a server on loopback is ready.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// After this time the request fails, and the caller repeats it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A client configuration that trusts only the certificates of a PEM file.
#[must_use]
pub fn trusting(ca_pem: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca_pem).expect("our own CA file is readable") {
        roots.add(certificate.expect("our own CA file is PEM")).expect("our own authority is valid");
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring knows TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// `GET https://localhost:PORT/PATH`. Returns the status and the whole answer with its headers.
pub fn get(config: &Arc<ClientConfig>, port: u16, path: &str) -> io::Result<(u16, String)> {
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
        _ => {}
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.map(|status| (status, answer)).ok_or_else(|| io::Error::other("not an HTTP answer"))
}
