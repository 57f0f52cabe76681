//! Merges the TOML file and the environment (`BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT=2`) into one tree of plain
//! values. The environment takes precedence. Only this module uses the `config` crate. It does not check values.

use std::collections::BTreeMap;
use std::path::Path;

use config::{Config, File, FileFormat};
use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

use super::table::nearest;

/// The prefix of all variables.
const PREFIX: &str = "BURSAR_";
/// Variables that are options of the programs and not keys.
const OPTIONS: [&str; 2] = ["BURSAR_CONFIG", "BURSAR_LEDGER"];
/// Variables of the test suite.
const TEST_PREFIX: &str = "BURSAR_TEST_";

/// The merged configuration.
pub(super) struct Merged {
    /// The tree. Every value from the environment is a text.
    pub(super) root: Map<String, Value>,
    /// The variable that sets a key, by the name of the key in errors, so that an error can name the variable.
    pub(super) variables: BTreeMap<String, String>,
    /// The variable that adds a key, or a table above it, that is not in the file.
    pub(super) added: BTreeMap<String, String>,
    /// Warnings about variables that set nothing.
    pub(super) warnings: Vec<String>,
}

/// Merges `environment` into the `text` of the file at `path`. The error is a message for administrators.
pub(super) fn merged(path: &Path, text: &str, environment: &BTreeMap<String, String>) -> Result<Merged, String> {
    let name = super::file_name(path);
    let table = text.parse::<toml::Table>().map_err(|error| {
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        // Other errors do not quote the file, because the text may be a password without quotes.
        let key = error.span().filter(|_| error.message() == "duplicate key").and_then(|span| text.get(span));
        let key = key.map(|key| format!(" {key}")).unwrap_or_default();
        // The message of such an error quotes the number, which may be a password.
        let is_number = error.message().starts_with("invalid type: integer");
        let said = if is_number { "a number is too large" } else { error.message() };
        let remedy = if error.message() == "duplicate key" { "; remove one of the two" } else { "" };
        format!("{name}: line {line}: {said}{key}{remedy}")
    })?;
    let of_file = serde_json::to_value(table).map_err(|error| format!("{name}: {error}"))?;
    let mut builder = Config::builder().add_source(File::from_str(text, FileFormat::Toml));
    let (mut used, mut warnings) = (Vec::new(), Vec::new());
    for (variable, value) in environment {
        let Some(parts) = parts_of(variable) else { continue };
        let is_new = beneath(&of_file, &parts[..1]).is_none();
        let why = gap(&parts, &of_file, environment).or_else(|| within_a_value(&parts, &of_file));
        // Such characters have a meaning in the keys of the library.
        let is_plain = parts.iter().all(|part| !part.contains(['[', ']', '.']));
        let is_key = why.is_none() && is_plain;
        let set = is_key.then(|| builder.clone().set_override(key_of(&parts), value.as_str()));
        if let Some(set) = set.and_then(Result::ok) {
            builder = set;
            used.push((parts, variable));
        } else {
            let why = why.filter(|_| !is_new);
            let why = why.unwrap_or_else(|| "for example BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT".to_owned());
            warnings.push(format!("{variable}: sets no key; {why}"));
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

/// The line of each key and table in the text of a TOML file, by its name in errors.
pub(super) struct Lines(BTreeMap<String, usize>);

impl Lines {
    pub(super) fn of(text: &str) -> Self {
        let mut lines = Self(BTreeMap::new());
        lines.add(text, "", DeTable::parse_recoverable(text).0.get_ref());
        lines
    }

    /// Returns the line of a key, or of the innermost table around it if the key is missing; `None` if a variable of
    /// the environment adds the key or that table.
    pub(super) fn find(&self, mut key: &str, added: &BTreeMap<String, String>) -> Option<usize> {
        while !added.contains_key(key) {
            match self.0.get(key) {
                Some(line) => return Some(*line),
                None => key = &key[..key.rfind(['.', '['])?],
            }
        }
        None
    }

    fn add(&mut self, text: &str, path: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let (name, line) = (key.get_ref(), line_at(text, key.span().start));
            let path = if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
            self.add_value(text, path, line, value.get_ref());
        }
    }

    fn add_value(&mut self, text: &str, path: String, line: usize, value: &DeValue<'_>) {
        match value {
            DeValue::Table(table) => self.add(text, &path, table),
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let name = item.get_ref().get("name").and_then(|name| name.get_ref().as_str());
                    let path = match name.filter(|name| !name.is_empty()) {
                        Some(name) => format!("{path}.{name}"),
                        None => format!("{path}[{index}]"),
                    };
                    self.add_value(text, path, line_at(text, item.span().start), item.get_ref());
                }
            }
            _ => {}
        }
        self.0.entry(path).or_insert(line);
    }
}

/// Returns the number of the line at a place in the text; the first line is 1.
fn line_at(text: &str, place: usize) -> usize {
    text.as_bytes().iter().take(place).filter(|byte| **byte == b'\n').count() + 1
}

/// Returns the value of a key, given by its parts.
fn beneath<'v>(tree: &'v Value, parts: &[String]) -> Option<&'v Value> {
    parts.iter().try_fold(tree, |value, part| match value {
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        other => other.get(part),
    })
}

/// Returns why a variable cannot set an item of a list: `parts` do not number an item, or an item before it is neither
/// in the file nor in the environment. That item would be empty and miss every key.
fn gap(parts: &[String], of_file: &Value, environment: &BTreeMap<String, String>) -> Option<String> {
    parts.iter().enumerate().find_map(|(place, part)| {
        let list = &parts[..place];
        let items = match beneath(of_file, list) {
            Some(Value::Array(items)) => Some(items),
            Some(_) => return None,
            None => None,
        };
        let Ok(index) = part.parse::<usize>() else {
            let named = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_ascii_lowercase);
            let item = items?.iter().position(|item| named(item).as_ref() == Some(part));
            let right = [list, &[item.unwrap_or(0).to_string()], &parts[place + 1..]].concat();
            let (list, right) = (key_of(list), variable_of(&right));
            return Some(match item {
                Some(_) => format!("{list} is a list; {list}.{part} is {right}"),
                None => format!("{list} is a list, and {part:?} is no number of an item; the first is {right}"),
            });
        };
        let is_set = |index: usize| {
            let mut others = environment.keys().filter_map(|variable| parts_of(variable));
            others.any(|other| {
                other.starts_with(list) && other.get(place).is_some_and(|part| part.parse::<usize>() == Ok(index))
            })
        };
        let absent = (items.map_or(0, Vec::len)..index).find(|index| !is_set(*index))?;
        Some(format!("{} has no item {absent}, so item {index} cannot be set; the first is item 0", key_of(list)))
    })
}

/// Returns why a variable sets no key, if a part of its key before the last has a value that is neither a table nor a
/// list, such as `site` in `BURSAR_SITE__NAME`.
fn within_a_value(parts: &[String], tree: &Value) -> Option<String> {
    let is_value = |count: &usize| beneath(tree, &parts[..*count]).is_some_and(|it| !it.is_array() && !it.is_object());
    let value = &parts[..(1..parts.len()).find(is_value)?];
    Some(format!("{} has no keys; did you mean {}?", key_of(value), variable_of(value)))
}

/// Returns the variable that sets a key, given by its parts.
fn variable_of(parts: &[String]) -> String {
    PREFIX.to_owned() + &parts.join("__").to_ascii_uppercase()
}

/// Returns the key as errors name it. If an item of a list has a name, the name replaces the index.
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

/// Returns the text of a key, given by its parts, even if the file is not a valid configuration, or has a TOML error or
/// bytes that are not UTF-8 elsewhere.
pub(super) fn text_of(path: &Path, environment: &BTreeMap<String, String>, key: &[&str]) -> Option<String> {
    let variable = PREFIX.to_owned() + &key.join("__").to_ascii_uppercase();
    if let Some(text) = environment.get(&variable) {
        return Some(text.clone());
    }
    let bytes = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let (root, _) = DeTable::parse_recoverable(&text);
    let (last, tables) = key.split_last()?;
    let table = tables.iter().try_fold(root.get_ref(), |table, name| table.get(*name)?.get_ref().as_table())?;
    table.get(*last)?.get_ref().as_str().map(str::to_owned)
}

/// Returns the parts of the key that a variable sets; `None` for variables of other programs, and for options.
fn parts_of(variable: &str) -> Option<Vec<String>> {
    if OPTIONS.contains(&variable) || variable.starts_with(TEST_PREFIX) {
        return None;
    }
    Some(variable.strip_prefix(PREFIX)?.to_ascii_lowercase().split("__").map(str::to_owned).collect())
}

/// Returns the option that a variable most likely means, such as `BURSAR_CONFIG` for `BURSAR_CONFG`.
pub(super) fn option_like(variable: &str) -> Option<&'static str> {
    let plain = |name: &str| name.trim_start_matches(PREFIX).to_owned();
    OPTIONS.into_iter().find(|option| nearest(&plain(variable), &[plain(option).as_str()]).is_some())
}

/// Returns the key for its parts: `BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT` sets `limits.suspend_per_cycle.count`, and
/// `BURSAR_SOURCE__0__CA` sets `source[0].ca`.
fn key_of(parts: &[String]) -> String {
    shown(parts, &Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_becomes_the_key_that_it_sets() {
        let key = |variable| parts_of(variable).map(|parts| key_of(&parts));
        assert_eq!(key("BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT").as_deref(), Some("limits.suspend_per_cycle.count"));
        assert_eq!(key("BURSAR_SOURCE__0__CA").as_deref(), Some("source[0].ca"));
        assert_eq!(key("BURSAR_STATE_DIR").as_deref(), Some("state_dir"));
        assert_eq!(key("BURSAR_CONFIG"), None);
        assert_eq!(key("HOME"), None);
    }

    #[test]
    fn socket_and_state_folder_are_found_in_a_wrong_file() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let path = folder.path().join("bursar.toml");
        let found = |text: &[u8], key: &[&str]| {
            std::fs::write(&path, text).expect("the folder is writable");
            text_of(&path, &BTreeMap::new(), key)
        };
        let key = ["control", "socket"];
        let (socket, state) = (Some("/run/x.sock".to_owned()), Some("/srv/bursar".to_owned()));
        let control = b"[control]\nsocket = \"/run/x.sock\"\n".as_slice();
        for wrong in [
            b"".as_slice(),
            b"sight = 1\n[lifecycl]\n",
            b"site = \n",
            b"[class\n",
            b"site = \"a\n",
            b"a = 1\na = 2\n",
            // These are not UTF-8.
            b"# caf\xe9\n",
            b"site = \"caf\xe9\"\n",
        ] {
            let shown = String::from_utf8_lossy(wrong);
            assert_eq!(found(&[wrong, control].concat(), &key), socket, "{shown}");
            assert_eq!(found(&[control, wrong].concat(), &key), socket, "{shown}");
            let text = [b"state_dir = \"/srv/bursar\"\n".as_slice(), wrong, control].concat();
            assert_eq!(found(&text, &["state_dir"]), state, "{shown}");
        }
        assert_eq!(found(b"site = \"a\"\n", &key), None);
        let variable = BTreeMap::from([("BURSAR_CONTROL__SOCKET".to_owned(), "/run/x.sock".to_owned())]);
        assert_eq!(text_of(Path::new("/nonexistent"), &variable, &key), socket);
        let variable = BTreeMap::from([("BURSAR_STATE_DIR".to_owned(), "/srv/bursar".to_owned())]);
        assert_eq!(text_of(Path::new("/nonexistent"), &variable, &["state_dir"]), state);
    }
}
