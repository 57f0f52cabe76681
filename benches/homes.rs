//! Deliveries into homes beside a bare create-fsync-rename loop of the same run, on the file system of `TMPDIR`, or of
//! `BURSAR_TEST_HOMES`. `cargo bench --bench homes`, as root. Goal: at least 0.7 of the bare loop.

#![expect(clippy::disallowed_methods, reason = "measures real files and a real program")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bursar::homes::client::HomedClient;
use bursar::homes::{
    ClusterEntry, ContextEntry, HomeTarget, KubeconfigEntries, Request, SecretText, UserEntry, UserProof, Work,
};
use futures::StreamExt as _;

const UID: u32 = 52503;
/// Homes of each run.
const HOMES: usize = 400;
/// As many as homed works on of one export.
const AT_A_TIME: usize = 8;
/// Both loops, in turn; the best of each counts, for the machine is not ours alone.
const RUNS: usize = 3;

fn entries(run: usize) -> KubeconfigEntries {
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate").pem();
    KubeconfigEntries {
        clusters: vec![ClusterEntry {
            name: "prod".to_owned(),
            server: format!("https://10.0.0.{run}:6443"),
            ca_pem: certificate.clone(),
            tls_server_name: None,
            proxy: None,
        }],
        user: UserEntry {
            name: "bursar-prod".to_owned(),
            proof: UserProof::Certificate {
                certificate_pem: certificate,
                key_pem: SecretText::new(key.serialize_pem()),
            },
        },
        contexts: vec![ContextEntry {
            name: "prod".to_owned(),
            cluster: "prod".to_owned(),
            user: "bursar-prod".to_owned(),
            namespace: None,
        }],
    }
}

/// What no delivery can do without: a new file of the same size, synced, in the place of the old one.
fn bare(home: &Path, content: &[u8]) {
    let kube = home.join(".kube");
    let (temporary, config) = (kube.join(".new"), kube.join("config"));
    let mut file = File::create(&temporary).expect("a file");
    file.write_all(content).expect("written");
    file.sync_all().expect("synced");
    fs::rename(&temporary, &config).expect("renamed");
    File::open(&kube).and_then(|kube| kube.sync_all()).expect("synced");
}

fn rate(began: Instant) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    let homes = HOMES as f64;
    homes / began.elapsed().as_secs_f64()
}

fn bare_loop(homes: &[PathBuf], content: &[u8]) -> f64 {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for part in homes.chunks(homes.len().div_ceil(AT_A_TIME)) {
            scope.spawn(move || part.iter().for_each(|home| bare(home, content)));
        }
    });
    rate(began)
}

async fn deliveries(client: &HomedClient, homes: &[PathBuf], run: usize) -> f64 {
    let entries = entries(run);
    let began = Instant::now();
    let delivered = futures::stream::iter(homes).map(async |home| {
        let work = Work::WriteKubeconfig { entries: entries.clone(), replace_unparsable: false };
        client.call(&Request::new(HomeTarget::new(home, UID, UID), work)).await.expect("delivered");
    });
    delivered.buffer_unordered(AT_A_TIME).collect::<()>().await;
    rate(began)
}

#[tokio::main]
async fn main() {
    let place = std::env::var_os("BURSAR_TEST_HOMES").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(place).expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    let make = |path: PathBuf| {
        fs::create_dir_all(path.join(".kube")).expect("a home");
        for path in [path.join(".kube"), path.clone()] {
            chown(&path, Some(UID), Some(UID)).expect("owner");
        }
        path
    };
    let homes: Vec<PathBuf> = (0..HOMES).map(|number| make(folder.path().join(format!("homes/h{number}")))).collect();
    let plain: Vec<PathBuf> = (0..HOMES).map(|number| make(folder.path().join(format!("plain/h{number}")))).collect();

    let socket = folder.path().join("homed.sock");
    let mut server = Command::new(env!("CARGO_BIN_EXE_bursar-homed"))
        .arg("--socket")
        .arg(&socket)
        .arg("--prefix")
        .arg(folder.path().join("homes"))
        .args(["--client-user", "0"])
        .stderr(Stdio::null())
        .spawn()
        .expect("bursar-homed");
    while UnixStream::connect(&socket).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let client = HomedClient::new(&socket, Duration::from_secs(30));
    deliveries(&client, &homes, 0).await;
    let content = fs::read(homes[0].join(".kube/config")).expect("delivered");
    bare_loop(&plain, &content);

    let (mut best, mut ceiling) = (0.0_f64, 0.0_f64);
    for run in 1..=RUNS {
        ceiling = ceiling.max(bare_loop(&plain, &content));
        best = best.max(deliveries(&client, &homes, run).await);
    }
    server.kill().expect("ended");
    server.wait().expect("ended");
    println!(
        "deliveries: {best:.0}/s; bare create-fsync-rename: {ceiling:.0}/s; ratio {:.2} (goal 0.7)",
        best / ceiling
    );
}
