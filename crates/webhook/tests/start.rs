//! The errors of `bursar-webhook` at its start. Because this file exists, `cargo test` builds the program, which the
//! integration tests run.

use std::process::{Command, Output};

fn webhook(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bursar-webhook"));
    command.args(arguments).env_remove("RUST_LOG").output().expect("bursar-webhook starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_unknown_argument_is_a_usage_error() {
    let output = webhook(&["--folder", "/tmp"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(said(&output).contains("unexpected argument '--folder'"), "{}", said(&output));
}

#[test]
fn the_version_is_not_an_error() {
    let output = webhook(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let version = concat!("bursar-webhook ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), version);
}

#[test]
fn a_folder_without_files_is_an_error_of_the_configuration() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let output = webhook(&["--dir", folder.path().to_str().expect("the path is UTF-8")]);
    assert_eq!(output.status.code(), Some(78), "{}", said(&output));
    assert!(said(&output).contains("`bursar webhook install` makes these files"), "{}", said(&output));
}
