//! The configuration as one tree of plain values: the TOML file, and over it the environment
//! (`BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT=2`). The only place that names the `config` crate. It judges no value.

use std::collections::BTreeMap;
use std::path::Path;

use config::{Config, File, FileFormat};
use serde_json::{Map, Value};
use toml::de::DeTable;

/// What every variable begins with.
const PREFIX: &str = "BURSAR_";
/// Variables that are options of the programs, not keys.
const OPTIONS: [&str; 2] = ["BURSAR_CONFIG", "BURSAR_LEDGER"];
/// Variables of the test suite.
const TEST_PREFIX: &str = "BURSAR_TEST_";

/// File and environment, merged.
pub(super) struct Merged {
    /// The tree; every value of the environment is text in it.
    pub(super) root: Map<String, Value>,
    /// Variables by the key they set, as errors name it, so that an error names the variable.
    pub(super) variables: BTreeMap<String, String>,
    /// Variables by the keys, and the tables above them, that are not in the file.
    pub(super) added: BTreeMap<String, String>,
    /// Variables that set nothing.
    pub(super) warnings: Vec<String>,
}

/// Lays `environment` over the `text` of the file at `path`. The error is for people.
pub(super) fn merged(path: &Path, text: &str, environment: &BTreeMap<String, String>) -> Result<Merged, String> {
    let name = super::file_name(path);
    let table = text.parse::<toml::Table>().map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        format!("{name}: line {line}: {}", error.message())
    })?;
    let of_file = serde_json::to_value(table).map_err(|error| format!("{name}: {error}"))?;
    let mut builder = Config::builder().add_source(File::from_str(text, FileFormat::Toml));
    let (mut used, mut warnings) = (Vec::new(), Vec::new());
    for (variable, value) in environment {
        let Some(parts) = parts_of(variable) else { continue };
        if let Some(why) = gap(&parts, &of_file, environment) {
            return Err(format!("{variable}: {why}"));
        }
        let set = builder.clone().set_override(key_of(&parts), value.as_str());
        match set.ok().filter(|_| !is_within_a_value(&parts, &of_file)) {
            Some(set) => {
                builder = set;
                used.push((parts, variable));
            }
            None => {
                warnings.push(format!("{variable}: sets no key; for example BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT"));
            }
        }
    }
    let merged = builder.build().map_err(|error| format!("{name}: {error}"))?;
    let root: Map<String, Value> = merged.try_deserialize().map_err(|error| format!("{name}: {error}"))?;
    let tree = Value::Object(root.clone());
    let (mut variables, mut added) = (BTreeMap::new(), BTreeMap::new());
    for (parts, variable) in used {
        let absent = (1..=parts.len()).filter(|count| beneath(&of_file, &parts[..*count]).is_none());
        added.extend(absent.map(|count| (shown(&parts[..count], &tree), variable.clone())));
        variables.insert(shown(&parts, &tree), variable.clone());
    }
    Ok(Merged { root, variables, added, warnings })
}

/// The value at a key, by its parts.
fn beneath<'v>(tree: &'v Value, parts: &[String]) -> Option<&'v Value> {
    parts.iter().try_fold(tree, |value, part| match value {
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        other => other.get(part),
    })
}

/// Says that `parts` name an item of a list although one before it is neither in the file nor in the environment: it would
/// be empty, and every key of it missing.
fn gap(parts: &[String], of_file: &Value, environment: &BTreeMap<String, String>) -> Option<String> {
    parts.iter().enumerate().find_map(|(place, part)| {
        let index: usize = part.parse().ok()?;
        let list = &parts[..place];
        let Some(Value::Array(items)) = beneath(of_file, list) else { return None };
        let is_set = |index: usize| {
            let mut others = environment.keys().filter_map(|variable| parts_of(variable));
            others.any(|other| {
                other.starts_with(list) && other.get(place).is_some_and(|part| part.parse::<usize>() == Ok(index))
            })
        };
        let absent = (items.len()..index).find(|index| !is_set(*index))?;
        Some(format!("{} has no item {absent}, and so none of number {index}; the first is number 0", key_of(list)))
    })
}

/// `BURSAR_SITE__NAME`, where `site` is a text.
fn is_within_a_value(parts: &[String], tree: &Value) -> bool {
    let above = (1..parts.len()).filter_map(|count| beneath(tree, &parts[..count]));
    above.into_iter().any(|value| !value.is_array() && !value.is_object())
}

/// The key as errors name it: with the name of a list's item instead of its index, if it has one.
fn shown(parts: &[String], tree: &Value) -> String {
    let mut text = String::new();
    for (place, part) in parts.iter().enumerate() {
        let name = beneath(tree, &parts[..=place]).and_then(|item| item.get("name")?.as_str());
        match (part.parse::<usize>(), name.filter(|name| !name.is_empty())) {
            (Ok(_), Some(name)) => text.extend([".", name]),
            (Ok(index), None) => text.extend(["[", &index.to_string(), "]"]),
            (Err(_), _) if place == 0 => text.push_str(part),
            (Err(_), _) => text.extend([".", part]),
        }
    }
    text
}

/// The text of `control.socket`, also in a file that is no configuration, or no TOML after it.
pub(super) fn control_socket(path: &Path, environment: &BTreeMap<String, String>) -> Option<String> {
    if let Some(socket) = environment.get("BURSAR_CONTROL__SOCKET") {
        return Some(socket.clone());
    }
    let text = std::fs::read_to_string(path).ok()?;
    let (table, _) = DeTable::parse_recoverable(&text);
    let control = table.get_ref().get("control")?.get_ref().as_table()?;
    control.get("socket")?.get_ref().as_str().map(str::to_owned)
}

/// The parts of the key that a variable sets; `None` if it is another program's, or an option.
fn parts_of(variable: &str) -> Option<Vec<String>> {
    if OPTIONS.contains(&variable) || variable.starts_with(TEST_PREFIX) {
        return None;
    }
    Some(variable.strip_prefix(PREFIX)?.to_ascii_lowercase().split("__").map(str::to_owned).collect())
}

/// `BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT` sets `limits.suspend_per_cycle.count`; `BURSAR_SOURCE__0__CA` sets
/// `source[0].ca`.
fn key_of(parts: &[String]) -> String {
    shown(parts, &Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_name_keys() {
        let key = |variable| parts_of(variable).map(|parts| key_of(&parts));
        assert_eq!(key("BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT").as_deref(), Some("limits.suspend_per_cycle.count"));
        assert_eq!(key("BURSAR_SOURCE__0__CA").as_deref(), Some("source[0].ca"));
        assert_eq!(key("BURSAR_STATE_DIR").as_deref(), Some("state_dir"));
        assert_eq!(key("BURSAR_CONFIG"), None);
        assert_eq!(key("HOME"), None);
    }

    #[test]
    fn the_control_socket_is_found_in_a_wrong_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bursar.toml");
        let found = |text: &str| {
            std::fs::write(&path, text).expect("written");
            control_socket(&path, &BTreeMap::new())
        };
        let socket = Some("/run/x.sock".to_owned());
        for wrong in ["", "sight = 1\n[lifecycl]\n", "site = \n", "[class\n", "site = \"a\n", "a = 1\na = 2\n"] {
            assert_eq!(found(&format!("{wrong}[control]\nsocket = \"/run/x.sock\"\n")), socket, "{wrong}");
            assert_eq!(found(&format!("[control]\nsocket = \"/run/x.sock\"\n{wrong}")), socket, "{wrong}");
        }
        assert_eq!(found("site = \"a\"\n"), None);
        let variable = BTreeMap::from([("BURSAR_CONTROL__SOCKET".to_owned(), "/run/x.sock".to_owned())]);
        assert_eq!(control_socket(Path::new("/nonexistent"), &variable), socket);
    }
}
