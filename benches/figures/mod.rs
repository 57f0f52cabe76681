//! What the benches print figures with.

#![allow(dead_code, reason = "each bench uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use bursar::settings::Settings;

use crate::servers::slapd::{BASE_DN, READER_DN, READER_PASSWORD};

/// The middle one: a machine on which others compile makes the mean meaningless.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// As a number to print.
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The most memory this process ever had (`VmHWM`, proc(5)).
pub fn peak_memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    format!("peak memory: {}", line.trim())
}

/// Begins [`peak_memory`] anew (proc(5), `clear_refs`).
pub fn forget_peak_memory() {
    // Without it the figure is too large, which it then says by being the same as before.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The settings of the tests' sites, with everything in `folder`.
pub fn settings(folder: &Path, ldap: (&str, &Path), cluster: (&str, &Path)) -> Settings {
    let text = include_str!("../../tests/it/world.toml")
        .replace("@NAME@", "bench")
        .replace("@FOLDER@", &folder.display().to_string())
        .replace("@BASE@", BASE_DN)
        .replace("@LDAP_URL@", ldap.0)
        .replace("@LDAP_CA@", &ldap.1.display().to_string())
        .replace("@BIND_DN@", READER_DN)
        .replace("@K8S_URL@", cluster.0)
        .replace("@K8S_CA@", &cluster.1.display().to_string());
    let path = folder.join("bursar.toml");
    fs::write(folder.join("ldap-password"), READER_PASSWORD).expect("the password's file");
    fs::write(&path, text).expect("the configuration");
    Settings::load_with(&path, &BTreeMap::new()).unwrap_or_else(|errors| panic!("{errors}"))
}
