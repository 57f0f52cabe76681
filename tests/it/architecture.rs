//! The structure is what ARCHITECTURE.md says: who may import whom, and what PURE means.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What stands further down may import what stands further up, and what stands beside it.
const ORDER: [&[&str]; 12] = [
    &["identity"],
    &["contract", "policy", "observed::digest"],
    &["directory", "homes"],
    &["ledger"],
    &["desired", "telemetry", "privilege"],
    // What was decided and what is there know of each other's words; neither knows who carries it out.
    &["observed", "plan", "control::api", "report", "orders"],
    &["execute", "access"],
    &["settings"],
    &["engine"],
    &["cycle"],
    &["control", "daemon"],
    &["cli"],
];

/// Words that no pure file has outside its tests.
const IMPURE: [&str; 12] = [
    "tokio::",
    "kube::Client",
    "kube::Api",
    "sqlx::",
    "ldap3::",
    "reqwest::",
    "std::fs",
    "std::net",
    "std::process",
    "SystemTime",
    "Timestamp::now",
    "Instant::now",
];

struct Source {
    module: String,
    text: String,
    pure: bool,
}

/// All of `src`, without tests: what a file says before its `mod tests`.
fn sources() -> BTreeMap<PathBuf, Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&root).expect("beneath src").to_path_buf();
            let is_test = name.to_string_lossy().contains("test");
            if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
                found.insert(name.clone(), source(&name, &fs::read_to_string(&path).expect("text")));
            }
        }
    }
    found
}

fn source(name: &Path, text: &str) -> Source {
    let header: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let module = name.with_extension("");
    let module = module.to_string_lossy().replace('/', "::");
    Source { module: module.trim_end_matches("::mod").to_owned(), text: code.join("\n"), pure: header.contains("PURE") }
}

/// Place in [`ORDER`] of a module path, by its longest known beginning.
fn place(module: &str) -> Option<usize> {
    let known = ORDER.iter().enumerate().flat_map(|(place, names)| names.iter().map(move |name| (place, *name)));
    known
        .filter(|(_, name)| module == *name || module.starts_with(&format!("{name}::")))
        .max_by_key(|(_, name)| name.len())
        .map(|(place, _)| place)
}

#[test]
fn every_module_imports_only_what_stands_above_it() {
    let mut wrong = Vec::new();
    for (file, source) in sources() {
        if source.module == "lib" || source.module.starts_with("bin::") {
            continue;
        }
        let Some(own) = place(&source.module) else {
            wrong.push(format!("{}: not in the order of tests/it/architecture.rs", file.display()));
            continue;
        };
        for used in source.text.split("crate::").skip(1) {
            let used: String =
                used.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_' || *c == ':').collect();
            if let Some(above) = place(&used).filter(|place| *place > own) {
                wrong.push(format!("{}: uses {used}, which stands below it ({above} > {own})", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_files_name_no_runtime_client_file_system_or_clock() {
    let mut wrong = Vec::new();
    let mut pure = 0;
    for (file, source) in sources().into_iter().filter(|(_, source)| source.pure) {
        pure += 1;
        for word in IMPURE.iter().filter(|word| source.text.contains(**word)) {
            wrong.push(format!("{}: {word}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(pure > 20, "only {pure} files say that they are PURE");
}
