//! Tests the messages and exit codes of `bursar-homed` when it cannot start. Because this file exists, `cargo test`
//! builds the program, which other tests run.

use std::process::{Command, Output};

use bursar_homed::server::{HomedError, listener};

fn homed(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bursar-homed"));
    command.args(arguments).env_remove("LISTEN_FDS").output().expect("bursar-homed starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_unknown_argument_is_a_usage_error() {
    let output = homed(&["--prefixes", "/home"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(said(&output).contains("unexpected argument '--prefixes'"), "{}", said(&output));
}

#[test]
fn the_version_is_not_an_error() {
    let output = homed(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let version = concat!("bursar-homed ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), version);
}

#[test]
fn a_wrong_setup_is_named_and_exits_with_78() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let socket = folder.path().join("homed.sock");
    let socket = socket.to_str().expect("the path is UTF-8");
    for (arguments, message) in [
        (&["--client-user", "nobody-of-that-name"][..], "no user `nobody-of-that-name` in /etc/passwd"),
        (&["--client-user", "0"], "no prefix: without --prefix PATH no home may be touched"),
        (&["--client-user", "0", "--prefix", "/home"], "no socket: start bursar-homed.socket, or give --socket PATH"),
        (&["--client-user", "0", "--socket", socket], "no prefix: without --prefix PATH no home may be touched"),
        (&["--client-user", "0", "--socket", socket, "--prefix", "/"], "prefix `/` must be an absolute path"),
        (
            &["--client-user", "0", "--prefix", "/home", "--kubeconfig", "/etc/shadow"],
            "kubeconfig `/etc/shadow` must be a path relative to a home",
        ),
    ] {
        let output = homed(arguments);
        assert_eq!(output.status.code(), Some(78), "{arguments:?}");
        assert!(said(&output).contains(message), "{arguments:?}: {}", said(&output));
    }
}

#[test]
fn a_socket_that_cannot_be_made_exits_with_1_so_that_systemd_restarts() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let taken = folder.path().join("taken");
    std::fs::write(&taken, "").expect("the folder is writable");
    for socket in [taken, folder.path().join("missing/homed.sock")] {
        let socket = socket.to_str().expect("the path is UTF-8");
        let output = homed(&["--client-user", "0", "--prefix", "/home", "--socket", socket]);
        assert_eq!(output.status.code(), Some(1), "{socket}: {}", said(&output));
        assert!(said(&output).contains(socket), "{}", said(&output));
    }
}

#[test]
fn only_a_dead_socket_is_replaced() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let path = folder.path().join("homed.sock");
    std::fs::write(&path, "notes").expect("the folder is writable");
    assert!(matches!(listener(Some(&path)), Err(HomedError::Socket { .. })));
    assert_eq!(std::fs::read_to_string(&path).expect("the file stays"), "notes");
    std::fs::remove_file(&path).expect("the file can be removed");
    let living = listener(Some(&path)).expect("the folder is writable");
    assert!(listener(Some(&path)).is_err(), "another program listens there");
    drop(living);
    listener(Some(&path)).expect("the dead socket is replaced");
}
