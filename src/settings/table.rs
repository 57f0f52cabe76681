//! A table of the configuration while it is being read. Each method reads the value of a key as a certain type. If the
//! value is wrong, the error is recorded with key, value and an example, so that all errors are reported together.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use bursar_directory::source::{LOGIN_IN_URL, has_login};
use serde_json::{Map, Value};

use crate::identity::is_dns_label;

/// One error.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) key: String,
    pub(super) what: String,
    /// Whether there is no such key, so that its value was not used.
    pub(super) unknown: bool,
}

/// The errors so far.
#[derive(Debug, Default)]
pub(super) struct Errors {
    wrong: RefCell<Vec<Wrong>>,
    /// Keys that are missing because they are misspelt. Only the misspelt key is reported.
    misspelt: RefCell<BTreeSet<String>>,
}

impl Errors {
    /// Records an error of `key`.
    pub(super) fn add(&self, key: impl Into<String>, what: impl Into<String>) {
        self.wrong.borrow_mut().push(Wrong { key: key.into(), what: what.into(), unknown: false });
    }

    /// Returns the keys that do not exist, each with its error.
    pub(super) fn unknown(&self) -> Vec<(String, String)> {
        let wrong = self.wrong.borrow();
        let unknown = wrong.iter().filter(|wrong| wrong.unknown);
        unknown.map(|Wrong { key, what, .. }| (key.clone(), what.clone())).collect()
    }

    /// Returns all errors, without those that only follow from a misspelt key.
    pub(super) fn into_inner(self) -> Vec<Wrong> {
        let misspelt = self.misspelt.into_inner();
        self.wrong.into_inner().into_iter().filter(|wrong| !misspelt.contains(&wrong.key)).collect()
    }
}

/// The name of a type of values, and an example.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueKind(pub(super) &'static str, pub(super) &'static str);

pub(super) const DURATION: ValueKind = ValueKind("a duration", "\"24h\"");
pub(super) const TEXT: ValueKind = ValueKind("text", "\"…\"");
pub(super) const NUMBER: ValueKind = ValueKind("a number", "5");
/// The expected kind in errors about a number that is negative, a fraction or too large.
const SMALL: ValueKind = ValueKind("a whole number of 0 or more that fits here", "5");
pub(super) const SWITCH: ValueKind = ValueKind("true or false", "true");
pub(super) const LIST: ValueKind = ValueKind("a list of texts", "[\"a\", \"b\"]");

/// Returns the kind of absolute paths, with an example for this key.
pub(super) const fn absolute_path(example: &'static str) -> ValueKind {
    ValueKind("an absolute path", example)
}

#[derive(Clone)]
pub(super) struct Table<'a> {
    path: String,
    fields: Map<String, Value>,
    errors: &'a Errors,
}

impl<'a> Table<'a> {
    /// Returns the table at `path`, which is empty for the root.
    pub(super) fn new(path: impl Into<String>, fields: Map<String, Value>, errors: &'a Errors) -> Self {
        Self { path: path.into(), fields, errors }
    }

    /// Returns the full name of `key`.
    pub(super) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.fields.contains_key(key)
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.fields.keys().cloned().collect()
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.fields.get(key)
    }

    /// Records an error of `key`.
    pub(super) fn wrong(&self, key: &str, what: impl Into<String>) {
        self.errors.add(self.at(key), what);
    }

    /// Records an error of the table itself.
    pub(super) fn wrong_itself(&self, what: impl Into<String>) {
        self.errors.add(self.path.clone(), what);
    }

    /// Whether an error of `key` was recorded.
    pub(super) fn is_wrong(&self, key: &str) -> bool {
        let key = self.at(key);
        self.errors.wrong.borrow().iter().any(|wrong| wrong.key == key)
    }

    /// Whether `key` is missing because it is misspelt. [`Table::only`] must have been called before.
    pub(super) fn misspells(&self, key: &str) -> bool {
        self.errors.misspelt.borrow().contains(&self.at(key))
    }

    /// Records an error for every key that is not in `known`.
    pub(super) fn only(&self, known: &[&str]) {
        for key in self.fields.keys().filter(|key| !known.contains(&key.as_str())) {
            let near = nearest(key, known);
            let what = match near {
                Some(near) => format!("there is no such key; did you mean {near}?"),
                None => format!("there is no such key; there are: {}", known.join(", ")),
            };
            self.errors.wrong.borrow_mut().push(Wrong { key: self.at(key), what, unknown: true });
            if let Some(near) = near.filter(|near| !self.has(near)) {
                self.errors.misspelt.borrow_mut().insert(self.at(near));
            }
        }
    }

    /// Parses the value, as text, with `parse`.
    pub(super) fn parsed<T>(&self, key: &str, kind: ValueKind, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = self.fields.get(key)?;
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(switch) => switch.to_string(),
            other => other.to_string(),
        };
        let parsed = if value.is_array() || value.is_object() { None } else { parse(&text) };
        if parsed.is_none() {
            self.wrong(key, is_not(value, kind));
        }
        parsed
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        let value = self.fields.get(key)?;
        let text = value.as_str().filter(|text| !text.is_empty());
        if text.is_none() {
            self.wrong(
                key,
                match value {
                    Value::String(_) => "is empty; give it a value".to_owned(),
                    Value::Number(_) | Value::Bool(_) => format!("{value} is not text; for example \"{value}\""),
                    _ => is_not(value, TEXT),
                },
            );
        }
        text.map(str::to_owned)
    }

    /// Returns the text of a required key. If it is missing, the error shows `example`.
    pub(super) fn required(&self, key: &str, example: &str) -> Option<String> {
        if !self.has(key) {
            self.wrong(key, format!("missing; for example {example:?}"));
        }
        self.text(key)
    }

    pub(super) fn switch(&self, key: &str, default: bool) -> bool {
        if self.has(key) { self.parsed(key, SWITCH, |text| text.parse().ok()).unwrap_or(default) } else { default }
    }

    pub(super) fn number<T: FromStr>(&self, key: &str) -> Option<T> {
        let kind = if self.value(key).is_some_and(Value::is_number) { SMALL } else { NUMBER };
        self.parsed(key, kind, |text| text.parse().ok())
    }

    pub(super) fn duration(&self, key: &str, default: Duration) -> Duration {
        if !self.has(key) {
            return default;
        }
        self.parsed(key, DURATION, duration).unwrap_or(default)
    }

    /// Returns the value that `words` gives for the text.
    pub(super) fn choice<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.fields.get(key)?;
        let chosen = words.iter().find(|(word, _)| value.as_str() == Some(word)).map(|(_, chosen)| *chosen);
        if chosen.is_none() {
            self.wrong(key, is_none_of(value, words.iter().map(|(word, _)| *word)));
        }
        chosen
    }

    /// Returns a list of texts. A variable of the environment has the list as TOML in one text.
    pub(super) fn texts(&self, key: &str) -> Option<Vec<String>> {
        let value = self.fields.get(key)?;
        let list = match value {
            Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            Value::String(text) if text.trim_start().starts_with('[') => from_toml_list(text),
            _ => None,
        };
        if list.is_none() {
            self.wrong(key, is_not(value, LIST));
        }
        list
    }

    /// Returns the table of a key.
    pub(super) fn table(&self, key: &str) -> Option<Table<'a>> {
        let fields = self.fields.get(key)?.as_object();
        if fields.is_none() {
            self.wrong(key, "must be a table; for example { key = \"value\" }");
        }
        fields.map(|fields| Self::new(self.at(key), fields.clone(), self.errors))
    }

    /// Returns the table of a key, or an empty table if the key is missing.
    pub(super) fn section(&self, key: &str) -> Table<'a> {
        let absent = || Self::new(self.at(key), Map::new(), self.errors);
        if self.has(key) { self.table(key).unwrap_or_else(absent) } else { absent() }
    }

    /// Returns the tables of a key with their names (`[class.NAME]`), which must be DNS labels.
    pub(super) fn named(&self, key: &str) -> Vec<(String, Table<'a>)> {
        let section = self.section(key);
        let mut tables = Vec::new();
        for name in section.keys() {
            if !is_dns_label(&name) {
                section.wrong(&name, "a name has lower case letters, digits and '-', at most 63; for example \"prod\"");
            }
            if let Some(table) = section.table(&name) {
                tables.push((name, table));
            }
        }
        tables
    }

    /// Returns the tables of a list of tables (`[[source]]`, `volumes`). Messages use the name of a table, if it has
    /// one, instead of its index.
    pub(super) fn list(&self, key: &str) -> Vec<Table<'a>> {
        let Some(value) = self.fields.get(key) else { return Vec::new() };
        let Value::Array(items) = value else {
            self.wrong(key, "must be a list of tables; for example [{ key = \"value\" }]");
            return Vec::new();
        };
        let tables = items.iter().enumerate().filter_map(|(index, item)| {
            let path = self.at(&match item.get("name").and_then(Value::as_str) {
                Some(name) if !name.is_empty() => format!("{key}.{name}"),
                _ => format!("{key}[{index}]"),
            });
            let Value::Object(fields) = item else {
                self.errors.add(path, "must be a table; for example { key = \"value\" }");
                return None;
            };
            Some(Self::new(path, fields.clone(), self.errors))
        });
        tables.collect()
    }
}

/// Returns a message such as `"sixteen" is not a quantity; for example "16"`.
pub(super) fn is_not(value: &Value, ValueKind(kind, example): ValueKind) -> String {
    if value.as_str().is_some_and(has_login) {
        return LOGIN_IN_URL.to_owned();
    }
    format!("{value} is not {kind}; for example {example}")
}

/// Returns a message such as `"tols" is none of: tools, users`, with the nearest word if there is one.
pub(super) fn is_none_of<'w>(value: &Value, words: impl Iterator<Item = &'w str> + Clone) -> String {
    let known: Vec<&str> = words.collect();
    let near = value.as_str().and_then(|text| nearest(text, &known));
    match near {
        Some(near) => format!("{value} is none of: {}; did you mean {near:?}?", known.join(", ")),
        None => format!("{value} is none of: {}", known.join(", ")),
    }
}

/// The longest duration. The sum of a time and a few such durations is still a time.
const LONGEST: Duration = Duration::from_hours(100 * 366 * 24);

/// Parses a duration such as `24h`, of 100 years at most.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    humantime::parse_duration(text).ok().filter(|duration| *duration <= LONGEST)
}

fn from_toml_list(text: &str) -> Option<Vec<String>> {
    let document: toml::Table = format!("list = {text}").parse().ok()?;
    document.get("list")?.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// The similarity from which one word counts as a misspelling of another: that of `bindn` and `bind_dn` is 0.71. With a
/// much lower limit, unrelated short keys would be suggested.
const ALIKE: f64 = 0.65;

/// Returns the known word that `word` most likely means.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let plain = |text: &str| text.replace(['_', '-'], "").to_lowercase();
    let alike = known.iter().map(|known| {
        let same = plain(word) == plain(known);
        (if same { 1.0 } else { strsim::normalized_damerau_levenshtein(word, known) }, *known)
    });
    alike.filter(|(alike, _)| *alike >= ALIKE).max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, near)| near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_miss_of_a_key_is_suggested() {
        assert_eq!(nearest("bindn", &["base", "bind_dn", "url"]), Some("bind_dn"));
        assert_eq!(nearest("bindd_n", &["base", "bind_dn", "url"]), Some("bind_dn"));
        assert_eq!(nearest("quotas", &["quota", "roles"]), Some("quota"));
        assert_eq!(nearest("bindDN", &["base", "bind_dn", "url"]), Some("bind_dn"));
        assert_eq!(nearest("colour", &["quota", "roles"]), None);
    }

    #[test]
    fn an_environment_variable_can_have_a_list() {
        assert_eq!(from_toml_list(r#"["/a", "/b"]"#), Some(vec!["/a".to_owned(), "/b".to_owned()]));
        assert_eq!(from_toml_list("[1]"), None);
    }
}
