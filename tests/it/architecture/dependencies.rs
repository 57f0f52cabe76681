//! The dependencies of each crate, as Cargo resolves them: which are forbidden, and the whole list for `bursar-homed`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The crates, and the packages that must not be among their dependencies: by name, or by the part before a `-`.
const MUST_NOT: [(&str, &[&str]); 5] = [
    ("bursar-core", &["tokio", "kube", "k8s-openapi", "sqlx", "ldap3", "reqwest", "rustix", "nix", "hyper", "rustls"]),
    // The direct dependencies are listed below.
    ("bursar-protocol", &["tokio", "kube", "sqlx", "ldap3", "reqwest", "rustix", "ring", "rcgen", "jiff"]),
    ("bursar-homed", &["sqlx", "kube", "k8s-openapi", "ldap3", "reqwest", "rcgen", "rustls", "hyper", "openssl"]),
    ("bursar-directory", &["sqlx", "kube", "k8s-openapi", "axum", "rcgen", "age"]),
    ("bursar-webhook", &["sqlx", "ldap3", "reqwest", "rcgen", "age", "tar", "zstd", "axum", "tikv-jemallocator"]),
];

/// The only dependencies of the protocol crate, which core and `bursar-homed` share: serde and small helpers.
const PROTOCOL: [&str; 7] = ["base64", "hex", "serde", "serde_json", "sha2", "thiserror", "zeroize"];

/// The number of columns of a list in ARCHITECTURE.md, and the width of each.
const COLUMNS: usize = 5;
const WIDTH: usize = 24;

/// Returns the packages that a package is built from on Linux, without the package itself.
fn tree(package: &str, depth: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["tree", "--offline", "--locked", "--prefix", "none"]);
    command.args(["-p", package, "-e", "normal", "--depth", depth, "--target", "x86_64-unknown-linux-gnu"]);
    let output = command.output().expect("cargo is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("the output is UTF-8");
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != package).map(str::to_owned).collect()
}

/// Returns the names in columns, from left to right.
fn columns(names: &BTreeSet<String>) -> String {
    let names: Vec<&String> = names.iter().collect();
    let line = |names: &[&String]| {
        let line: Vec<String> = names.iter().map(|name| format!("{name:WIDTH$}")).collect();
        format!("    {}\n", line.concat().trim_end())
    };
    names.chunks(COLUMNS).map(line).collect()
}

#[test]
fn no_crate_has_a_forbidden_dependency() {
    let mut wrong = Vec::new();
    for (package, banned) in MUST_NOT {
        for name in tree(package, "64") {
            let is = |banned: &&&str| {
                name.strip_prefix(**banned).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            };
            if banned.iter().any(|banned| is(&banned)) {
                wrong.push(format!("{package}: {name} (cargo tree -p {package} -i {name})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_protocol_depends_only_on_small_helpers() {
    let direct = tree("bursar-protocol", "1");
    assert!(direct.iter().map(String::as_str).eq(PROTOCOL), "{direct:?}");
}

#[test]
fn architecture_lists_the_dependencies_of_homed() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md");
    let document = std::fs::read_to_string(document).expect("the file is readable");
    for (what, depth) in [("It names", "1"), ("Its whole tree", "64")] {
        let names = tree("bursar-homed", depth);
        let expected = format!("{what} ({}):\n\n{}\n", names.len(), columns(&names));
        assert!(document.contains(&expected), "ARCHITECTURE.md should say:\n\n{expected}");
    }
}

/// Returns the features of everything that the programs are built from, without those that only tests enable.
fn features(package: &str) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["tree", "--offline", "--locked", "--prefix", "none"]);
    command.args(["-p", package, "-e", "normal,features", "--target", "x86_64-unknown-linux-gnu"]);
    let output = command.output().expect("cargo is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

#[test]
fn release_builds_lack_the_test_model_and_sort_json_keys() {
    let features = features("bursar");
    assert!(features.contains("serde_json feature \"std\""), "{features}");
    // Digests, hashes of approvals and golden files need JSON with sorted keys.
    for unwanted in ["bursar-core feature \"testing\"", "serde_json feature \"preserve_order\""] {
        assert!(!features.contains(unwanted), "{unwanted} is on (cargo tree -e normal,features)");
    }
}
