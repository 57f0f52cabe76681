//! A table of the configuration that is being read: each value is taken by its key as what it should be, and what is
//! wrong is noted with key, value and an example, so that all errors are told at once.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::identity::is_dns_label;

/// One thing that is wrong.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) key: String,
    pub(super) what: String,
    /// There is no such key, so that its value was not used.
    pub(super) unknown: bool,
}

/// Everything that is wrong.
#[derive(Debug, Default)]
pub(super) struct Errors {
    wrong: RefCell<Vec<Wrong>>,
    /// Keys that are absent because they are misspelt: that is said once, where the misspelt key is.
    misspelt: RefCell<BTreeSet<String>>,
}

impl Errors {
    /// Notes that `key` is wrong.
    pub(super) fn add(&self, key: impl Into<String>, what: impl Into<String>) {
        self.wrong.borrow_mut().push(Wrong { key: key.into(), what: what.into(), unknown: false });
    }

    /// Without what follows from a misspelt key alone.
    pub(super) fn into_inner(self) -> Vec<Wrong> {
        let misspelt = self.misspelt.into_inner();
        self.wrong.into_inner().into_iter().filter(|wrong| !misspelt.contains(&wrong.key)).collect()
    }
}

/// What a value should be, and one that is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind(pub(super) &'static str, pub(super) &'static str);

pub(super) const DURATION: Kind = Kind("a duration", "\"24h\"");
pub(super) const TEXT: Kind = Kind("text", "\"…\"");
pub(super) const NUMBER: Kind = Kind("a number", "5");
pub(super) const SWITCH: Kind = Kind("true or false", "true");
pub(super) const LIST: Kind = Kind("a list of texts", "[\"a\", \"b\"]");

/// An absolute path; `example` is one for this key.
pub(super) const fn absolute_path(example: &'static str) -> Kind {
    Kind("an absolute path", example)
}

/// One table.
#[derive(Clone)]
pub(super) struct Table<'a> {
    path: String,
    fields: Map<String, Value>,
    errors: &'a Errors,
}

impl<'a> Table<'a> {
    /// The table at `path`, the root's being empty.
    pub(super) fn new(path: impl Into<String>, fields: Map<String, Value>, errors: &'a Errors) -> Self {
        Self { path: path.into(), fields, errors }
    }

    /// The full name of `key`.
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

    /// Notes that `key` is wrong.
    pub(super) fn wrong(&self, key: &str, what: impl Into<String>) {
        self.errors.add(self.at(key), what);
    }

    /// Notes that the table is wrong.
    pub(super) fn wrong_itself(&self, what: impl Into<String>) {
        self.errors.add(self.path.clone(), what);
    }

    /// Whether something is noted about `key` already.
    pub(super) fn is_wrong(&self, key: &str) -> bool {
        let key = self.at(key);
        self.errors.wrong.borrow().iter().any(|wrong| wrong.key == key)
    }

    /// Whether `key` is absent because it is misspelt, as far as [`Table::only`] was asked before.
    pub(super) fn misspells(&self, key: &str) -> bool {
        self.errors.misspelt.borrow().contains(&self.at(key))
    }

    /// Notes every key that is none of `known`.
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

    /// The value as text, read by `parse`.
    pub(super) fn parsed<T>(&self, key: &str, kind: Kind, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
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
            self.wrong(key, is_not(value, TEXT));
        }
        text.map(str::to_owned)
    }

    /// The text that must be there; `example` is what it may look like.
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
        self.parsed(key, NUMBER, |text| text.parse().ok())
    }

    pub(super) fn duration(&self, key: &str, default: Duration) -> Duration {
        if !self.has(key) {
            return default;
        }
        self.parsed(key, DURATION, |text| humantime::parse_duration(text).ok()).unwrap_or(default)
    }

    /// One of `words`.
    pub(super) fn choice<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.fields.get(key)?;
        let chosen = words.iter().find(|(word, _)| value.as_str() == Some(word)).map(|(_, chosen)| *chosen);
        if chosen.is_none() {
            self.wrong(key, is_none_of(value, words.iter().map(|(word, _)| *word)));
        }
        chosen
    }

    /// A list of texts; from the environment, also a TOML list in one text.
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

    /// A table within.
    pub(super) fn table(&self, key: &str) -> Option<Table<'a>> {
        let fields = self.fields.get(key)?.as_object();
        if fields.is_none() {
            self.wrong(key, "must be a table; for example { key = \"value\" }");
        }
        fields.map(|fields| Self::new(self.at(key), fields.clone(), self.errors))
    }

    /// A table within, empty if it is not there.
    pub(super) fn section(&self, key: &str) -> Table<'a> {
        let absent = || Self::new(self.at(key), Map::new(), self.errors);
        if self.has(key) { self.table(key).unwrap_or_else(absent) } else { absent() }
    }

    /// The tables of a table of tables, by name, each named as Kubernetes would (`[class.NAME]`).
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

    /// The tables of a list of tables (`[[source]]`, `volumes`). In messages each goes by its name if it has one.
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

/// `"sixteen" is not a quantity; for example "16"`.
pub(super) fn is_not(value: &Value, Kind(kind, example): Kind) -> String {
    format!("{value} is not {kind}; for example {example}")
}

/// `"tols" is none of: tools, users`.
pub(super) fn is_none_of<'w>(value: &Value, words: impl Iterator<Item = &'w str> + Clone) -> String {
    let known: Vec<&str> = words.collect();
    let near = value.as_str().and_then(|text| nearest(text, &known));
    match near {
        Some(near) => format!("{value} is none of: {}; did you mean {near:?}?", known.join(", ")),
        None => format!("{value} is none of: {}", known.join(", ")),
    }
}

fn from_toml_list(text: &str) -> Option<Vec<String>> {
    let document: toml::Table = format!("list = {text}").parse().ok()?;
    document.get("list")?.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// So much of two words must be alike for one to be a slip of the other: `bindn` and `bind_dn` are by 0.71. With much less,
/// short keys that have nothing to do with each other would be suggested.
const ALIKE: f64 = 0.65;

/// The known word that `word` most likely is.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let alike = known.iter().map(|known| (strsim::normalized_damerau_levenshtein(word, known), *known));
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
        assert_eq!(nearest("colour", &["quota", "roles"]), None);
    }

    #[test]
    fn lists_come_from_one_variable_too() {
        assert_eq!(from_toml_list(r#"["/a", "/b"]"#), Some(vec!["/a".to_owned(), "/b".to_owned()]));
        assert_eq!(from_toml_list("[1]"), None);
    }
}
