//! Checks what ARCHITECTURE.md says and Cargo cannot enforce: which modules of a crate may import which others, and
//! that pure files name nothing that has effects.

mod dependencies;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of `crates/core`, and which others each may use. Only modules further up in the table are allowed.
const CORE: [(&str, &[&str]); 23] = [
    ("errors", &[]),
    ("json_text", &[]),
    ("packed_text", &[]),
    ("shared_map", &[]),
    ("shared_text", &[]),
    ("identity", &["packed_text", "shared_text"]),
    ("quantity", &[]),
    ("contract", &["identity"]),
    ("digest", &["contract"]),
    ("rules", &["identity"]),
    ("snapshot", &["identity"]),
    ("kinds", &["identity", "shared_text"]),
    ("policy", &["contract", "identity", "kinds", "rules"]),
    ("select", &["identity", "policy", "snapshot"]),
    // The webhook's decisions use nothing else, not even the policy, so that little can be wrong with them.
    ("admission", &["contract", "identity", "rules"]),
    (
        "ledger",
        &["contract", "digest", "identity", "json_text", "kinds", "packed_text", "policy", "shared_map", "snapshot"],
    ),
    ("merge", &["identity", "ledger", "policy", "select", "snapshot"]),
    ("inventory", &["contract", "identity", "kinds", "packed_text", "policy", "shared_map"]),
    (
        "desired",
        &[
            "contract",
            "digest",
            "identity",
            "json_text",
            "kinds",
            "ledger",
            "packed_text",
            "policy",
            "quantity",
            "rules",
            "select",
            "snapshot",
        ],
    ),
    (
        "plan",
        &[
            "contract",
            "desired",
            "digest",
            "identity",
            "inventory",
            "json_text",
            "kinds",
            "ledger",
            "packed_text",
            "policy",
            "quantity",
            "select",
            "shared_map",
            "snapshot",
        ],
    ),
    ("evolve", &["contract", "desired", "inventory", "ledger", "plan", "policy", "snapshot"]),
    ("outlook", &["desired", "evolve", "identity", "kinds", "ledger", "plan", "policy", "snapshot"]),
    ("orders", &["contract", "desired", "identity", "kinds", "ledger", "plan", "policy", "quantity", "snapshot"]),
];

/// The modules of the root, in layers. A module may import modules of its own layer and of those further up.
const ORDER: [&[&str]; 9] = [
    &["telemetry", "privilege", "archive", "certificate"],
    &["store", "observed"],
    &["control::api", "report"],
    &["execute", "bootstrap"],
    &["settings"],
    &["runtime", "recovery"],
    &["cycle"],
    &["control", "daemon"],
    &["cli"],
];

/// The pure files outside `crates/core`, which is pure as a whole: they have no effects, and time is a parameter.
const PURE: [&str; 40] = [
    "crates/directory/src/entry/assemble.rs",
    "crates/directory/src/entry/filter.rs",
    "crates/directory/src/entry/groups.rs",
    "crates/directory/src/entry/idmap.rs",
    "crates/directory/src/entry/mark.rs",
    "crates/directory/src/entry/membership.rs",
    "crates/directory/src/entry/mod.rs",
    "crates/directory/src/entry/numbers.rs",
    "crates/directory/src/entry/preset.rs",
    "crates/directory/src/entry/raw.rs",
    "crates/directory/src/entry/sid.rs",
    "crates/directory/src/entry/windows.rs",
    "crates/directory/src/keycloak/answer.rs",
    "crates/directory/src/sync/difference.rs",
    "crates/directory/src/sync/kept.rs",
    "crates/directory/src/sync/mirror.rs",
    "crates/homed/src/authorized_keys.rs",
    "crates/homed/src/bounds.rs",
    "crates/webhook/src/server/metrics.rs",
    "src/bootstrap/daemon_admission_policy.rs",
    "src/bootstrap/daemon_admission_policy/adopted.rs",
    "src/bootstrap/daemon_admission_policy/own_namespace.rs",
    "src/bootstrap/daemon_admission_policy/validations.rs",
    "src/bootstrap/needs.rs",
    "src/bootstrap/roles.rs",
    "src/bootstrap/webhook/adopted_rules.rs",
    "src/bootstrap/webhook/backstop.rs",
    "src/bootstrap/webhook/configurations.rs",
    "src/bootstrap/webhook/grace.rs",
    "src/bootstrap/webhook/manifests.rs",
    "src/bootstrap/webhook/server_rules.rs",
    "src/certificate.rs",
    "src/cli/probes/mounts.rs",
    "src/cli/probes/remedy.rs",
    "src/control/api.rs",
    "src/observed/cache.rs",
    "src/report.rs",
    "src/report/own.rs",
    "src/report/unfinished.rs",
    "src/report/why.rs",
];

/// Path prefixes that no pure file may use outside its tests.
const IMPURE: [&str; 18] = [
    "tokio",
    "kube::Client",
    "kube::Api",
    "kube::Config",
    "kube::runtime",
    "kube::client",
    "sqlx",
    "ldap3",
    "reqwest",
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "rustix",
];

/// This file is pure although it uses threads: they are scoped, so they end before the call returns.
const SHARES_WORK: &str = "crates/directory/src/entry/assemble.rs";

/// Calls that read a clock, whatever path they are imported by.
const CLOCKS: [&str; 4] = ["SystemTime::now", "Timestamp::now", "Zoned::now", "Instant::now"];

struct Source {
    module: String,
    text: String,
    /// Every path in the file, with groups of `use` expanded, and `self` and `super` resolved.
    paths: Vec<String>,
}

/// Returns all sources of the root's `src`.
fn own_sources() -> BTreeMap<PathBuf, Source> {
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
}

/// Returns all sources of the root and of the workspace's crates. Paths are relative to each `src`.
fn all_sources() -> Vec<(PathBuf, Source)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let crates = fs::read_dir(crates)
        .expect("the folder is readable")
        .map(|entry| entry.expect("the folder is readable").path().join("src"));
    own_sources()
        .into_iter()
        .chain(crates.filter(|folder| folder.is_dir()).flat_map(|folder| sources(&folder)))
        .collect()
}

/// Returns all sources of `crates/core`.
fn core_sources() -> BTreeMap<PathBuf, Source> {
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/core/src"))
}

/// Returns all sources of a folder without their tests: the code before `mod tests`.
fn sources(root: &Path) -> BTreeMap<PathBuf, Source> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is readable") {
            let path = entry.expect("the folder is readable").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(root).expect("every file is below src").to_path_buf();
            let is_test = name.to_string_lossy().contains("test");
            if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
                found.insert(name.clone(), source(&name, &fs::read_to_string(&path).expect("the file is readable")));
            }
        }
    }
    found
}

fn source(name: &Path, text: &str) -> Source {
    let code = without_tests(text);
    let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let module = name.with_extension("").to_string_lossy().replace('/', "::");
    let module = module.trim_end_matches("::mod").to_owned();
    let text = code.join("\n");
    let paths = paths(&text).into_iter().map(|path| absolute(&module, &path)).collect();
    Source { module, text, paths }
}

/// Returns the text without code that exists only for tests: declarations of modules in files of their own, and the
/// module at the end of the file.
fn without_tests(text: &str) -> String {
    let mut parts = text.split("#[cfg(test)]");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // `mod tests;` ends with its semicolon; `mod tests {` with the file.
        let (declared, after) = part.split_once(';').unwrap_or((part, ""));
        if declared.contains('{') {
            break;
        }
        code.push_str(after);
    }
    code
}

/// Returns all paths that contain `::`. `use a::{b, c::{d, e}};` gives `a::b`, `a::c::d` and `a::c::e`.
fn paths(code: &str) -> Vec<String> {
    // The path before each open brace; empty for blocks.
    let mut groups: Vec<String> = Vec::new();
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len());
        let (word, after) = if end == 0 { rest.split_at(first.len_utf8()) } else { rest.split_at(end) };
        let path = groups.last().map_or_else(|| word.to_owned(), |group| format!("{group}{word}"));
        match word {
            "{" => groups.push(String::new()),
            "}" => drop(groups.pop()),
            _ if end > 0 && word.ends_with("::") && after.starts_with('{') => {
                groups.push(path);
                rest = &after[1..];
                continue;
            }
            _ if end > 0 && path.contains("::") => found.push(path),
            _ => {}
        }
        rest = after;
    }
    found
}

/// Resolves `self` and `super` in a file of `module` to a path of the crate without the leading `crate::`. No crate
/// that is used has the name of one of Bursar's modules, so paths stay unambiguous.
fn absolute(module: &str, path: &str) -> String {
    let mut place: Vec<&str> = module.split("::").collect();
    let mut rest = path;
    let mut relative = false;
    while let Some((first, after)) = rest.split_once("::") {
        match first {
            "crate" => place.clear(),
            "self" => {}
            "super" => drop(place.pop()),
            _ => break,
        }
        relative = true;
        rest = after;
    }
    if relative { place.into_iter().chain([rest]).collect::<Vec<_>>().join("::") } else { path.to_owned() }
}

#[test]
fn code_for_tests_is_left_out() {
    let code =
        "a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\n#[path = \"x\"]\nmod more;\nc\n#[cfg(test)]\nmod t {\n d;\n}";
    assert_eq!(without_tests(code), "a\n\nb\n\nc\n");
}

#[test]
fn paths_are_found_in_groups_and_relative_to_their_module() {
    let code =
        "use crate::{a, b::{self, C}};\nuse super::d;\nfn f() { if x { std::fs::read(y) } }\nuse super::super::e;";
    let found: Vec<String> = paths(code).iter().map(|path| absolute("plan::guard", path)).collect();
    assert_eq!(found, ["a", "b::self", "b::C", "plan::d", "std::fs::read", "e"]);
}

/// Returns the longest of `names` that is a prefix of the path.
fn unit(names: impl Iterator<Item = &'static str>, path: &str) -> Option<&'static str> {
    names
        .filter(|name| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::")))
        .max_by_key(|name| name.len())
}

#[test]
fn modules_of_core_use_what_the_table_allows() {
    let unit = |path: &str| unit(CORE.iter().map(|(name, _)| *name), path);
    let mut wrong = Vec::new();
    for (file, source) in core_sources().into_iter().filter(|(_, source)| source.module != "lib") {
        let Some(own) = unit(&source.module) else {
            wrong.push(format!("{}: not in the table of tests/it/architecture.rs", file.display()));
            continue;
        };
        let allowed = |other: &str| CORE.iter().any(|(name, uses)| *name == own && uses.contains(&other));
        for path in &source.paths {
            if unit(path).is_some_and(|other| other != own && !allowed(other)) {
                wrong.push(format!("{}: {own} uses {path}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn modules_of_the_root_import_only_their_own_layer_and_those_above() {
    let unit = |path: &str| unit(ORDER.into_iter().flatten().copied(), path);
    let place = |unit: &str| ORDER.iter().position(|names| names.contains(&unit));
    let mut wrong = Vec::new();
    for (file, source) in own_sources() {
        if source.module == "lib" || source.module.starts_with("bin::") {
            continue;
        }
        let Some(own) = unit(&source.module) else {
            wrong.push(format!("{}: not in the order of tests/it/architecture.rs", file.display()));
            continue;
        };
        for path in &source.paths {
            if unit(path).is_some_and(|other| place(other) > place(own)) {
                wrong.push(format!("{}: {own} uses {path}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_of_core_has_no_cycle() {
    for (at, (module, uses)) in CORE.iter().enumerate() {
        for used in *uses {
            assert!(
                CORE[..at].iter().any(|(above, _)| above == used),
                "{module} uses {used}, which is not further up in the table"
            );
        }
    }
}

#[test]
fn unsafe_code_is_in_one_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_unsafe = |text: &str| text.contains("unsafe_code") || text.contains("unsafe ");
    let crates = fs::read_dir(root.join("crates"))
        .expect("the folder is readable")
        .map(|entry| entry.expect("the folder is readable").path());
    let mut found = Vec::new();
    for folder in crates.chain([root.to_owned()]).map(|package| package.join("src")) {
        let sources = sources(&folder).into_iter().filter(|(_, source)| is_unsafe(&source.text));
        found.extend(sources.map(|(file, _)| folder.join(file)));
    }
    assert_eq!(found, [root.join("crates/homed/src/fork.rs")]);
}

#[test]
fn pure_files_name_no_runtime_client_file_system_or_clock() {
    let mut wrong = Vec::new();
    let core = core_sources();
    assert!(core.len() > 80, "only {} files of core are found", core.len());
    let listed = PURE.into_iter().map(|file| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"));
        let (_, name) = file.split_once("src/").expect("every source is below src");
        (PathBuf::from(file), source(Path::new(name), &text))
    });
    for (file, source) in core.into_iter().chain(listed) {
        let begins = |path: &str, word: &str| {
            path.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let is_allowed = |word: &str| word == "std::thread" && file == Path::new(SHARES_WORK);
        let impure = |path: &str| IMPURE.iter().any(|word| begins(path, word) && !is_allowed(word));
        for path in source.paths.iter().filter(|path| impure(path)) {
            wrong.push(format!("{}: {path}", file.display()));
        }
        for clock in CLOCKS.iter().filter(|clock| source.text.contains(**clock)) {
            wrong.push(format!("{}: {clock}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files that handle tenants' objects of any kind, with the reason why they compare the name of a kind.
const ANY_KIND: [(&str, &str); 2] = [
    ("recovery/archive.rs", "an archive holds tenants' objects, mostly of kinds that Bursar does not create"),
    ("execute/reap.rs", "objects of a job are deleted by their label without being read"),
];

/// Whether the code compares with a name: by `== "Name"`, an arm of a `match`, or an element of a list.
fn compares_with(code: &str, name: &str) -> bool {
    let quoted = format!("\"{name}\"");
    code.match_indices(&quoted).any(|(at, _)| {
        let (before, after) = (code[..at].trim_end(), code[at + quoted.len()..].trim_start());
        ["==", "!=", "|", "[", "Some("].iter().any(|sign| before.ends_with(sign))
            || ["==", "!=", "=>", "|", "if ", "]"].iter().any(|sign| after.starts_with(sign))
    })
}

#[test]
fn comparisons_with_a_name_are_recognised() {
    for code in [
        "if key.kind == \"Secret\" {",
        "match kind {\n    \"Secret\" => 1,",
        "matches!(kind, \"Secret\" | \"Pod\")",
        "[\"Secret\", \"Pod\"].contains(&kind)",
        "Some(\"Secret\") if x",
    ] {
        assert!(compares_with(code, "Secret"), "{code}");
    }
    assert!(!compares_with("json!({\"kind\": \"Secret\", \"name\": name})", "Secret"));
}

#[test]
fn no_kind_is_compared_as_a_string_outside_the_table() {
    let mut wrong = Vec::new();
    let is_table = |source: &Source| source.module == "kinds" || source.module.starts_with("kinds::");
    let is_any = |file: &Path| ANY_KIND.iter().any(|(known, _)| file == Path::new(known));
    for (file, source) in all_sources().into_iter().filter(|(file, source)| !is_table(source) && !is_any(file)) {
        for kind in bursar::kinds::ManagedKind::ALL {
            let name = kind.row().kind;
            if compares_with(&source.text, name) {
                wrong.push(format!("{}: compares with {name:?}; use ManagedKind::{name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files that name every kind. If a kind is added, the compiler reports these files; `make new-kind` runs the compiler.
#[test]
fn few_files_name_every_kind() {
    let names_all = |source: &Source| {
        let mut kinds = bursar::kinds::ManagedKind::ALL.iter().map(|kind| kind.row().kind);
        kinds.all(|name| source.text.contains(&format!("ManagedKind::{name}")))
    };
    let found: BTreeSet<_> =
        all_sources().into_iter().filter(|(_, source)| names_all(source)).map(|(_, source)| source.module).collect();
    let found: Vec<_> = found.into_iter().collect();
    assert_eq!(found, ["bootstrap::needs", "desired::credential"], "in addition to the table in kinds::managed");
}
