//! The upper bound for the webhook: the same TLS and HTTP stack reads the body and always gives the same answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bursar_webhook::server::files::Files;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio_rustls::TlsAcceptor;

const ANSWER: &str =
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"0","allowed":true}}"#;

/// Serves until the process is killed. Bodies are written to files in folder `record`, unless `record` is empty.
pub fn serve(port: u16, dir: &Path, record: &Path) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("the system allows a runtime");
    let files = Files::open(dir).expect("the webhook's files are valid");
    let tls = TlsAcceptor::from(files.config());
    let record: Arc<PathBuf> = Arc::new(record.to_owned());
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let _ = stream.set_nodelay(true);
            tokio::spawn(connection(stream, tls.clone(), Arc::clone(&record)));
        }
    });
}

async fn connection(stream: tokio::net::TcpStream, tls: TlsAcceptor, record: Arc<PathBuf>) {
    let Ok(stream) = tls.accept(stream).await else { return };
    let service = hyper::service::service_fn(move |request| answer(request, Arc::clone(&record)));
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, record: Arc<PathBuf>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let body = request.into_body().collect().await?.to_bytes();
    if !record.as_os_str().is_empty() {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        std::fs::write(record.join(format!("{number}.json")), &body).expect("the folder is writable");
    }
    let mut response = Response::new(Full::new(Bytes::from_static(ANSWER.as_bytes())));
    response.headers_mut().insert("Content-Type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}
