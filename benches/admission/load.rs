//! Sends recorded reviews as the API server does, over one HTTP/2 connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;

use crate::site::Site;

/// The number of reviews that wait for an answer at the same time.
const OPEN: usize = 64;
const FULL: Duration = Duration::from_secs(5);
/// The steady load: reviews per millisecond, and the number of milliseconds.
const EACH_MILLISECOND: usize = 2;
const STEADY: u64 = 10_000;

pub struct Load {
    runtime: tokio::runtime::Runtime,
    send: SendRequest<Full<Bytes>>,
    url: Arc<str>,
}

impl Load {
    /// Connects to a server on loopback with the webhook's certificate.
    pub fn new(site: &Site, port: u16) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("the system allows a runtime");
        let authorities = site.dir().with_file_name("authorities.pem");
        std::fs::write(&authorities, site.authorities()).expect("the folder is writable");
        let mut tls = (*bursar_testkit::https::trusting(&authorities)).clone();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let send = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("the server listens");
            stream.set_nodelay(true).expect("a TCP socket has this option");
            let name = ServerName::try_from("127.0.0.1").expect("the address is valid");
            let stream = tokio_rustls::TlsConnector::from(Arc::new(tls))
                .connect(name, stream)
                .await
                .expect("the server's certificate is trusted");
            let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
            let (send, connection) = shaken.expect("the server speaks HTTP/2");
            tokio::spawn(connection);
            send
        });
        Self { runtime, send, url: format!("https://127.0.0.1:{port}/mutate").into() }
    }

    /// Sends reviews as fast as possible. Returns reviews per second.
    pub fn full(&self, recorded: &[Vec<u8>]) -> f64 {
        let bodies: Arc<[Bytes]> = recorded.iter().map(|body| Bytes::from(body.clone())).collect();
        let done = Arc::new(AtomicU64::new(0));
        let began = Instant::now();
        self.runtime.block_on(async {
            let senders = (0..OPEN).map(|sender| {
                let (mut send, bodies, done, url) =
                    (self.send.clone(), Arc::clone(&bodies), Arc::clone(&done), Arc::clone(&self.url));
                tokio::spawn(async move {
                    for body in bodies.iter().cycle().skip(sender) {
                        if began.elapsed() > FULL {
                            break;
                        }
                        review(&mut send, &url, body.clone()).await;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
            futures::future::join_all(senders.collect::<Vec<_>>()).await
        });
        #[expect(clippy::cast_precision_loss, reason = "the number is in the tens of thousands")]
        let done = done.load(Ordering::Relaxed) as f64;
        done / began.elapsed().as_secs_f64()
    }

    /// Sends 2,000 reviews per second without waiting for answers. Returns for each review the time from the moment at
    /// which it was due until its answer.
    pub fn steady(&self, recorded: &[Vec<u8>]) -> Vec<Duration> {
        let bodies: Vec<Bytes> = recorded.iter().map(|body| Bytes::from(body.clone())).collect();
        self.runtime.block_on(async {
            let mut bodies = bodies.iter().cycle();
            let began = Instant::now();
            let mut open = Vec::new();
            for millisecond in 0..STEADY {
                let due = began + Duration::from_millis(millisecond);
                tokio::time::sleep_until(due.into()).await;
                for body in bodies.by_ref().take(EACH_MILLISECOND) {
                    let (mut send, url, body) = (self.send.clone(), Arc::clone(&self.url), body.clone());
                    open.push(tokio::spawn(async move {
                        review(&mut send, &url, body).await;
                        due.elapsed()
                    }));
                }
            }
            let times = futures::future::join_all(open).await;
            times.into_iter().map(|time| time.expect("every review is answered")).collect()
        })
    }
}

async fn review(send: &mut SendRequest<Full<Bytes>>, url: &str, body: Bytes) {
    let request = http::Request::post(url).header("Content-Type", "application/json").body(Full::new(body));
    send.ready().await.expect("the connection holds");
    let response = send.send_request(request.expect("the request is valid")).await.expect("the server answers");
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.expect("the whole answer");
}

/// Returns the time within which `part` of the reviews were answered.
pub fn percentile(times: &[Duration], part: f64) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the number is in the tens of thousands"
    )]
    let at = ((times.len() - 1) as f64 * part) as usize;
    times[at]
}
