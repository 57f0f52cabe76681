//! Compares deliveries into homes with a bare create-fsync-rename loop of the same user, in the same run, on the file
//! system of `TMPDIR`. The goal is 0.7 of the bare loop. Another bare loop uses one process per file, forked by a small
//! process as in homed, and shows the maximum for deliveries by separate processes. Run `cargo bench --bench homes` as
//! root.
//!
//! With `BURSAR_TEST_HOMES=ASKED:PLANTED`, the homes are elsewhere. ASKED is the folder in which homed finds them, for
//! example an NFS mount whose server squashes root. PLANTED is the same folder as root sees it on the server, where
//! they are created: `tests/nfs.sh bench`.

#![expect(clippy::disallowed_methods, reason = "measures real files and a real program")]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bursar_homed::client::HomedClient;
use bursar_protocol::{
    ClusterEntry, ContextEntry, HomeTarget, KubeconfigEntries, Request, SecretText, UserEntry, UserProof, Work,
};
use bursar_testkit::binaries::program;
use futures::StreamExt as _;
use rustix::fs::{Gid, Uid};
use rustix::process::{WaitOptions, wait};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

const UID: u32 = 52503;
/// The arguments with which this program starts itself for the bare loops with threads and with processes.
const BARE: &str = "bare-loop";
const BARE_PROCESSES: &str = "bare-processes";
const HOMES: usize = 400;
/// The number of homes that homed processes at a time on one export.
const AT_A_TIME: usize = 8;
/// Deliveries and loops run in turn. The best result of each counts, because the machine may have other work.
const RUNS: usize = 3;

fn entries(run: usize) -> KubeconfigEntries {
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let certificate =
        rcgen::CertificateParams::default().self_signed(&key).expect("a key signs its own certificate").pem();
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

/// Does the minimum of a delivery: writes and syncs a new file of the same size, and replaces the old file by it.
fn bare(home: &Path, content: &[u8]) {
    let kube = home.join(".kube");
    let (temporary, config) = (kube.join(".new"), kube.join("config"));
    let mut file = File::create(&temporary).expect("the folder is writable");
    file.write_all(content).expect("the disk has space");
    file.sync_all().expect("the disk works");
    fs::rename(&temporary, &config).expect("the folder is writable");
    File::open(&kube).and_then(|kube| kube.sync_all()).expect("the disk works");
}

/// Runs a bare loop in a separate process. It reads the content from standard input and prints the rate.
fn bare_loop(which: &str, folder: &Path, content: &[u8]) -> f64 {
    let mut child = Command::new(std::env::current_exe().expect("the program knows its own path"))
        .arg(which)
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program can be started again");
    child.stdin.take().expect("the child has a pipe").write_all(content).expect("the child reads its input");
    let said = child.wait_with_output().expect("the child can be waited for");
    String::from_utf8_lossy(&said.stdout).trim().parse().expect("the child prints a number")
}

fn become_user() {
    let (user, group) = (Uid::from_raw(UID), Gid::from_raw(UID));
    set_thread_groups(&[]).expect("the loop starts as root, who may change groups");
    set_thread_res_gid(group, group, group).expect("the loop starts as root, who may change groups");
    set_thread_res_uid(user, user, user).expect("the loop starts as root, who may change users");
}

fn content() -> Vec<u8> {
    let mut content = Vec::new();
    std::io::stdin().read_to_end(&mut content).expect("the input is readable");
    content
}

/// The bare loop with [`AT_A_TIME`] threads.
fn be_bare(folder: &Path) {
    let content = content();
    become_user();
    let homes = homes_in(folder);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for part in homes.chunks(homes.len().div_ceil(AT_A_TIME)) {
            scope.spawn(|| part.iter().for_each(|home| bare(home, &content)));
        }
    });
    println!("{}", rate(began));
}

/// The bare loop with [`AT_A_TIME`] processes at a time. Each becomes the user, writes one file, and ends.
fn be_bare_processes(folder: &Path) {
    let content = content();
    let homes = homes_in(folder);
    let began = Instant::now();
    for (number, home) in homes.iter().enumerate() {
        if number >= AT_A_TIME {
            wait(WaitOptions::empty()).expect("a child process runs");
        }
        if is_child() {
            become_user();
            bare(home, &content);
            std::process::exit(0);
        }
    }
    while wait(WaitOptions::empty()).is_ok() {}
    println!("{}", rate(began));
}

#[expect(unsafe_code, reason = "fork(2) has no safe form")]
fn is_child() -> bool {
    // SAFETY: this process has one thread.
    unsafe { nix::unistd::fork() }.expect("the system allows another process").is_child()
}

fn rate(began: Instant) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "the number is a few hundred")]
    let homes = HOMES as f64;
    homes / began.elapsed().as_secs_f64()
}

async fn deliveries(client: &HomedClient, homes: &[PathBuf], run: usize) -> f64 {
    let entries = entries(run);
    let began = Instant::now();
    let delivered = futures::stream::iter(homes).map(async |home| {
        let work = Work::WriteKubeconfig { entries: entries.clone(), replace_unparsable: false };
        client.call(&Request::new(HomeTarget::new(home, UID, UID), work)).await.expect("homed accepts the request");
    });
    delivered.buffer_unordered(AT_A_TIME).collect::<()>().await;
    rate(began)
}

fn homes_in(folder: &Path) -> Vec<PathBuf> {
    (0..HOMES).map(|number| folder.join(format!("h{number}"))).collect()
}

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        // These two run before the process starts another thread, because a process with several threads must not fork.
        (Some(first), Some(folder)) if first == BARE => be_bare(Path::new(&folder)),
        (Some(first), Some(folder)) if first == BARE_PROCESSES => be_bare_processes(Path::new(&folder)),
        _ => tokio::runtime::Runtime::new().expect("the system allows a runtime").block_on(measure()),
    }
}

async fn measure() {
    let (asked, planted) = match std::env::var("BURSAR_TEST_HOMES") {
        Err(_) => (std::env::temp_dir(), std::env::temp_dir()),
        Ok(places) => {
            let (asked, planted) = places.split_once(':').expect("BURSAR_TEST_HOMES is ASKED:PLANTED");
            (asked.into(), planted.into())
        }
    };
    let planted = tempfile::tempdir_in(planted).expect("the system allows a temporary folder");
    fs::set_permissions(planted.path(), fs::Permissions::from_mode(0o755))
        .expect("the benchmark runs as root, who may change modes");
    for home in ["homes", "plain"].iter().flat_map(|folder| homes_in(&planted.path().join(folder))) {
        fs::create_dir_all(home.join(".kube")).expect("the parent folder is writable");
        for path in [home.join(".kube"), home] {
            chown(&path, Some(UID), Some(UID)).expect("the benchmark runs as root, who may change owners");
        }
    }
    let asked = asked.join(planted.path().file_name().expect("the path has a name"));
    let (homes, plain) = (homes_in(&asked.join("homes")), asked.join("plain"));

    let runtime = tempfile::tempdir().expect("the system allows a temporary folder");
    let socket = runtime.path().join("homed.sock");
    let mut server = Command::new(program("bursar-homed"))
        .arg("--socket")
        .arg(&socket)
        .arg("--prefix")
        .arg(asked.join("homes"))
        .args(["--client-user", "0"])
        .stderr(Stdio::null())
        .spawn()
        .expect("bursar-homed is built");
    while UnixStream::connect(&socket).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let client = HomedClient::new(&socket, Duration::from_secs(30));
    deliveries(&client, &homes, 0).await;
    let content = fs::read(planted.path().join("homes/h0/.kube/config")).expect("the kubeconfig is delivered");
    bare_loop(BARE, &plain, &content);

    let (mut best, mut ceiling, mut processes) = (0.0_f64, 0.0_f64, 0.0_f64);
    for run in 1..=RUNS {
        ceiling = ceiling.max(bare_loop(BARE, &plain, &content));
        processes = processes.max(bare_loop(BARE_PROCESSES, &plain, &content));
        best = best.max(deliveries(&client, &homes, run).await);
    }
    let large = large(&client, &homes[0], &planted.path().join("homes/h0/.kube/config")).await;
    server.kill().expect("the process can be killed");
    server.wait().expect("the process can be waited for");
    println!(
        "deliveries: {best:.0}/s; bare create-fsync-rename: {ceiling:.0}/s; ratio {:.2} (goal 0.7); the same by a process for \
         each file: {processes:.0}/s, {:.2} of the bare loop",
        best / ceiling,
        processes / ceiling
    );
    println!("deliveries into a kubeconfig of 1 MiB: {:.0} ms each", large.as_secs_f64() * 1e3);
}

/// Measures a delivery into a file of the maximum size, filled with a user's contexts. Returns the best of several
/// runs.
async fn large(client: &HomedClient, home: &Path, config: &Path) -> Duration {
    let entry = |number: usize| format!("- name: c{number:05}\n  context:\n    cluster: c{number:05}\n    user: me\n");
    let entries_of_a_mebibyte = (1024 * 1024 - 16 * 1024) / entry(0).len();
    let text = format!("contexts:\n{}", (0..entries_of_a_mebibyte).map(entry).collect::<String>());
    fs::write(config, text).expect("the home is writable");
    let mut best = Duration::MAX;
    for run in 0..2 * RUNS {
        let entries = entries(run);
        // homed reads a file twice if it changed a moment ago.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let began = Instant::now();
        let work = Work::WriteKubeconfig { entries, replace_unparsable: false };
        client.call(&Request::new(HomeTarget::new(home, UID, UID), work)).await.expect("homed accepts the request");
        best = best.min(began.elapsed());
    }
    best
}
