//! The certificates of the clients that send reviews. The server requests a certificate from every client. Without
//! `client` in `rules.json`, it accepts any certificate or none, so that `bursar webhook install` can find out what
//! clients show before a certificate is required. With `client`, a handshake needs a verified certificate, and older
//! connections without one get no answers.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bursar_core::admission::sender::Known;
use bursar_core::rules::senders::ClientRules;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use x509_parser::extensions::GeneralName;

/// The most bytes of certificates that a client may show, so that 1,024 clients take at most 32 MiB. A chain of three
/// certificates has 6 KiB.
const CHAIN: usize = 16 << 10;
/// The most addresses that an answer lists.
const TOLD: usize = 5;

/// The authorities and the name that a client's certificate must have.
#[derive(Debug)]
pub struct Clients {
    verifier: Arc<dyn ClientCertVerifier>,
    name: String,
}

impl Clients {
    /// Parses the key `client` of `rules.json`.
    pub fn new(rules: &ClientRules) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(rules.authorities.as_bytes()) {
            let certificate = certificate.map_err(|error| format!("client.authorities: {error}"))?;
            roots.add(certificate).map_err(|error| format!("client.authorities: {error}"))?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| format!("client.authorities: {error}"))?;
        Ok(Self { verifier, name: rules.name.clone() })
    }

    /// Checks a chain of certificates. If it is not accepted, returns the reason.
    fn check(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Error> {
        let (first, rest) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.verifier.verify_client_cert(first, rest, now)?;
        let names = names(first);
        if names.contains(&self.name) {
            return Ok(());
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Err(Error::General(format!("it is for {:?}, and not for {:?}", names.join(", "), self.name)))
    }
}

/// Returns the common name and the DNS names of a certificate.
fn names(certificate: &[u8]) -> BTreeSet<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return BTreeSet::new() };
    let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = parsed.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    common.chain(alternative).map(str::to_owned).collect()
}

/// Verifies the certificates of clients in handshakes.
pub(super) struct Handshake {
    algorithms: WebPkiSupportedAlgorithms,
    demanded: Option<Arc<Clients>>,
}

impl Handshake {
    pub(super) fn new(demanded: Option<Arc<Clients>>) -> Self {
        Self { algorithms: ring::default_provider().signature_verification_algorithms, demanded }
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("demanded", &self.demanded).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for Handshake {
    fn client_auth_mandatory(&self) -> bool {
        self.demanded.is_some()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.demanded.as_ref().map_or(&[], |clients| clients.verifier.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        first: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let chain: Vec<CertificateDer<'_>> = std::iter::once(first).chain(rest).cloned().collect();
        if chain.iter().map(|one| one.len()).sum::<usize>() > CHAIN {
            return Err(Error::General("the client shows more than 16 KiB of certificates".to_owned()));
        }
        if let Some(clients) = &self.demanded {
            clients.check(&chain, now)?;
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The client of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    address: IpAddr,
    /// The certificates that the client has shown, with proof of the key; empty if none.
    chain: Vec<CertificateDer<'static>>,
    /// Whether a review came over the connection.
    reviews: AtomicBool,
    /// The last required clients, and whether the connection's client is one of them.
    is_one: Mutex<Option<(Arc<Clients>, bool)>>,
}

impl Peer {
    pub(super) fn new(address: IpAddr, chain: Option<&[CertificateDer<'_>]>) -> Self {
        let chain = chain.unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect();
        Self { address, chain, reviews: AtomicBool::new(false), is_one: Mutex::new(None) }
    }

    /// Whether the connection's client is one of `clients`. The result is kept until other clients are required.
    pub(super) fn is_one_of(&self, clients: &Arc<Clients>, now: Timestamp) -> bool {
        let mut known = self.is_one.lock();
        match &*known {
            Some((before, is_one)) if Arc::ptr_eq(before, clients) => *is_one,
            _ => {
                let is_one = clients.check(&self.chain, time(now)).is_ok();
                *known = Some((Arc::clone(clients), is_one));
                is_one
            }
        }
    }

    /// Records that a review came over the connection.
    pub(super) fn sent_a_review(&self) {
        self.reviews.store(true, Ordering::Relaxed);
    }
}

/// The clients of all open connections.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<Vec<Weak<Peer>>>);

impl Peers {
    /// Adds a client. It is forgotten when its last `Arc` is dropped.
    pub(super) fn add(&self, peer: &Arc<Peer>) {
        let mut peers = self.0.lock();
        peers.retain(|peer| peer.strong_count() > 0);
        peers.push(Arc::downgrade(peer));
    }

    /// Returns whether the asking client, and all other clients that have sent reviews, would be accepted under
    /// `rules`. `bursar webhook install` asks this.
    pub(super) fn known(&self, asker: &Peer, rules: &ClientRules, now: Timestamp) -> Known {
        let clients = match Clients::new(rules) {
            Ok(clients) => clients,
            Err(why) => return Known::Unverified(why),
        };
        let check = |peer: &Peer| clients.check(&peer.chain, time(now));
        match check(asker) {
            Ok(()) => {}
            Err(Error::NoCertificatesPresented) => return Known::Unverified("it has none".to_owned()),
            Err(Error::General(why)) => return Known::Unverified(why),
            Err(error) => return Known::Unverified(error.to_string()),
        }
        let peers: Vec<Weak<Peer>> = self.0.lock().clone();
        let senders = peers.iter().filter_map(Weak::upgrade).filter(|peer| peer.reviews.load(Ordering::Relaxed));
        let others: BTreeSet<IpAddr> = senders.filter(|peer| check(peer).is_err()).map(|peer| peer.address).collect();
        if others.is_empty() {
            return Known::Verified;
        }
        let told: Vec<String> = others.iter().take(TOLD).map(IpAddr::to_string).collect();
        let more = others.len().saturating_sub(TOLD);
        Known::OthersToo(told.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() })
    }
}

fn time(now: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
    };

    use super::*;

    struct Authority {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
    }

    fn authority() -> Authority {
        let key = KeyPair::generate().expect("ring makes a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("the parameters are valid").pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    impl Authority {
        fn client(&self, name: &str, dns: &[&str], until: i32) -> Vec<CertificateDer<'static>> {
            self.certificate(name, dns, until, ExtendedKeyUsagePurpose::ClientAuth)
        }

        fn certificate(
            &self,
            name: &str,
            dns: &[&str],
            until: i32,
            usage: ExtendedKeyUsagePurpose,
        ) -> Vec<CertificateDer<'static>> {
            let names: Vec<String> = dns.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names).expect("the names are DNS names");
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages = vec![usage];
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until, 1, 1));
            let key = KeyPair::generate().expect("ring makes a key");
            vec![params.signed_by(&key, &self.issuer).expect("the parameters are valid").der().clone()]
        }

        fn asked(&self) -> ClientRules {
            ClientRules { authorities: self.pem.clone(), name: "kube-apiserver".to_owned() }
        }
    }

    fn peer(last: u8, chain: &[CertificateDer<'static>]) -> Arc<Peer> {
        Arc::new(Peer::new(IpAddr::from([192, 0, 2, last]), Some(chain)))
    }

    fn now() -> Timestamp {
        "2026-11-23T12:00:00Z".parse().expect("the text is a time")
    }

    #[test]
    fn a_certificate_is_verified_by_authority_name_usage_and_time() {
        let (ours, other) = (authority(), authority());
        let known = |chain: &[CertificateDer<'static>]| Peers::default().known(&peer(1, chain), &ours.asked(), now());
        assert_eq!(known(&ours.client("kube-apiserver", &[], 2027)), Known::Verified);
        assert_eq!(known(&ours.client("x", &["a.example.org", "kube-apiserver"], 2027)), Known::Verified);
        assert_eq!(known(&[]), Known::Unverified("it has none".to_owned()));
        let server = ExtendedKeyUsagePurpose::ServerAuth;
        for (what, chain) in [
            // Signed by another authority with the same name.
            ("BadSignature", other.client("kube-apiserver", &[], 2027)),
            ("it is for \"b.example.org, kubelet\", and not", ours.client("kubelet", &["b.example.org"], 2027)),
            ("xpired", ours.client("kube-apiserver", &[], 2026)),
            ("extended key usage", ours.certificate("kube-apiserver", &[], 2027, server)),
        ] {
            let Known::Unverified(why) = known(&chain) else { panic!("{what}") };
            assert!(why.contains(what), "{what}: {why}");
        }
        let none = ClientRules { authorities: "none".to_owned(), ..ours.asked() };
        assert!(Clients::new(&none).is_err(), "a list without a certificate is rejected");
    }

    #[test]
    fn connected_senders_without_a_certificate_are_listed() {
        let ours = authority();
        let chain = ours.client("kube-apiserver", &[], 2027);
        let (asker, silent, sender) = (peer(1, &chain), peer(2, &[]), peer(3, &[]));
        let peers = Peers::default();
        for peer in [&asker, &silent, &sender] {
            peers.add(peer);
        }
        asker.sent_a_review();
        sender.sent_a_review();
        assert_eq!(peers.known(&asker, &ours.asked(), now()), Known::OthersToo("192.0.2.3".to_owned()));
        drop(sender);
        assert_eq!(peers.known(&asker, &ours.asked(), now()), Known::Verified);
    }

    #[test]
    fn a_connection_is_verified_again_when_other_clients_are_required() {
        let (ours, other) = (authority(), authority());
        let of = |rules: &ClientRules| Arc::new(Clients::new(rules).expect("the authorities are valid"));
        let (first, second) = (of(&ours.asked()), of(&other.asked()));
        let peer = peer(1, &ours.client("kube-apiserver", &[], 2027));
        assert!(peer.is_one_of(&first, now()) && peer.is_one_of(&first, now()));
        assert!(!peer.is_one_of(&second, now()));
        assert!(peer.is_one_of(&first, now()));
    }
}
