//! The unit that runs homed, as systemd judges it.

use std::path::Path;
use std::process::Command;

/// The exposure that `systemd-analyze security` gives a unit, in tenths.
fn exposure(unit: &str) -> u32 {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(unit);
    let arguments = ["security", "--offline=true", "--no-pager"];
    let output = Command::new("systemd-analyze").args(arguments).arg(file).output().expect("systemd-analyze");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let level = text.lines().find_map(|line| line.split("Overall exposure level for ").nth(1));
    let number = level.and_then(|level| level.split_whitespace().nth(1)).unwrap_or_else(|| panic!("{text}"));
    number.replace('.', "").parse().unwrap_or_else(|_| panic!("{number}"))
}

#[test]
fn homed_is_exposed_by_no_more_than_what_its_work_needs() {
    assert!(exposure("bursar-homed.service") <= 20);
}

#[test]
fn homed_has_no_network_and_a_list_of_system_calls() {
    let unit = include_str!("../../../systemd/bursar-homed.service");
    for line in [
        "PrivateNetwork=yes",
        "IPAddressDeny=any",
        "RestrictAddressFamilies=AF_UNIX",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@resources",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_CHOWN CAP_KILL",
    ] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
}
