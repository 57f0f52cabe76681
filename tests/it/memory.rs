//! No other process of the same user may read the memory of a program that holds keys. `homes::spawner` tests the
//! workers of `bursar-homed`.

use std::path::Path;
use std::process::Command;

use bursar_testkit::binaries::program;
use bursar_testkit::folder::Folder;
use bursar_testkit::process::{Process, run};
use bursar_testkit::ready::DEADLINE;

/// Root may read any memory, unless it lacks all capabilities.
const WITHOUT_CAPABILITIES: [&str; 3] = ["--bounding-set=-all", "--inh-caps=-all", "--"];

/// Pipes that nobody writes to. A program that reads one of them waits for ever.
const PIPES: [&str; 7] =
    ["bursar.toml", "admin.kubeconfig", "rules.json", "seal.pub", "tls.crt", "tls.key", "kubeconfig"];

/// Whether the kernel refuses another process of the same user everything that needs the right to read this process's
/// memory.
fn is_private(process: &Process) -> bool {
    let mut look = Command::new("setpriv");
    look.args(WITHOUT_CAPABILITIES).arg("cat").arg(format!("/proc/{}/environ", process.id()));
    String::from_utf8_lossy(&run(look, "").stderr).contains("Permission denied")
}

/// Whether the process executes this program, and no longer `setpriv`, which has all capabilities at its start.
fn executes(process: &Process, program: &str) -> bool {
    let executed = std::fs::read_link(format!("/proc/{}/exe", process.id()));
    executed.is_ok_and(|executed| executed.file_name() == Path::new(program).file_name())
}

#[test]
fn no_other_process_may_read_the_memory_of_a_program_that_holds_keys() {
    let folder = Folder::create("memory");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let made = Command::new("mkfifo").args(PIPES.map(path)).status().expect("mkfifo is installed");
    assert!(made.success());
    let start = |name: &str, program: &str, arguments: &[String]| {
        let mut command = Command::new("setpriv");
        command.args(WITHOUT_CAPABILITIES).arg(program).args(arguments);
        Process::start(name, &command, folder.path().join(format!("{name}.log")).as_path())
    };
    let ordinary = start("cat", "cat", &[path("bursar.toml")]);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let dir = || vec!["--dir".to_owned(), path("")];
    let config = || vec!["--config".to_owned(), path("bursar.toml")];
    let init = [config(), words(&["init", "--cluster", "test", "--admin-kubeconfig"]), vec![path("admin.kubeconfig")]];
    let homed = [words(&["--client-user", "0", "--prefix", "/home", "--socket"]), vec![path("homed.sock")]];
    let [of_homed, of_webhook] = ["bursar-homed", "bursar-webhook"].map(|name| program(name).display().to_string());
    let programs = [
        ("bursard", env!("CARGO_BIN_EXE_bursard"), config()),
        ("bursar", env!("CARGO_BIN_EXE_bursar"), init.concat()),
        ("bursar-homed", of_homed.as_str(), homed.concat()),
        ("bursar-webhook", of_webhook.as_str(), dir()),
        ("approver", of_webhook.as_str(), [words(&["approve"]), dir()].concat()),
    ];
    for (name, program, arguments) in programs {
        let process = start(name, program, &arguments);
        process.wait_until("a private memory", DEADLINE, || executes(&process, program) && is_private(&process));
    }
    assert!(!is_private(&ordinary), "the test itself could read no memory");
}
