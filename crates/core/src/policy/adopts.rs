//! Namespaces that others create: which of them a class adopts, and which annotation names the owner.

use std::fmt;

use serde_json::{Value, json};

use super::PodSecurity;
use crate::rules::server::{ServerRule, ServerRules};
use crate::rules::{AllowedVolume, HostRules, Mode, PLACEHOLDER};

/// The settings of a class with `from = "adopted"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopts {
    /// The namespaces that the class adopts.
    pub selector: Selector,
    /// The annotation that names the owner.
    pub owner_annotation: String,
    /// The rules for objects in these namespaces.
    pub admission: Box<AdoptedAdmission>,
    /// The Pod Security level for namespaces that have none.
    pub pod_security: Option<PodSecurity>,
}

/// `[class.NAME.admission]` of a class with `from = "adopted"`: the rules that the API server can evaluate without
/// knowing the owner of a namespace. A rule that the class does not set is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptedAdmission {
    /// The hosts that an Ingress or a route may serve. Patterns may contain [`PLACEHOLDER`].
    pub hosts: HostRules,
    /// What happens to volumes from outside the namespace that are not in [`Self::allowed_volumes`].
    pub volumes: Mode,
    /// Volumes from outside that pods may mount. Paths may contain [`PLACEHOLDER`].
    pub allowed_volumes: Vec<AllowedVolume>,
    /// The storage classes that `ReadWriteMany` claims may have, each as `class NAME`.
    pub read_write_many: ServerRule,
    /// The rules that apply to tenants' namespaces too. Each of them has a mode here.
    pub server: ServerRules,
}

impl Default for AdoptedAdmission {
    fn default() -> Self {
        let off = || ServerRule { mode: Some(Mode::Off), ..ServerRule::default() };
        let default = ServerRules::default();
        Self {
            hosts: HostRules { mode: Mode::Off, allow: Vec::new(), annotations: Vec::new() },
            volumes: Mode::Off,
            allowed_volumes: Vec::new(),
            read_write_many: off(),
            server: ServerRules {
                services: off(),
                scheduling: ServerRule { mode: Some(Mode::Off), ..default.scheduling },
                sysctls: off(),
                ..default
            },
        }
    }
}

impl AdoptedAdmission {
    /// Returns the patterns of hosts in the form that a tenant's class uses, with `{name}` for the namespace.
    pub fn host_patterns(&self) -> impl Iterator<Item = String> {
        self.hosts.allow.iter().map(|pattern| pattern.replace(PLACEHOLDER, "{name}"))
    }
}

/// A label selector in the syntax of `kubectl --selector`
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#list-and-watch-filtering>). At least one
/// requirement demands a label, because a selector without one would match nearly every namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    text: String,
    requirements: Vec<Requirement>,
}

/// One requirement of a [`Selector`]. A namespace must satisfy all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    /// The label has one of these values.
    In(String, Vec<String>),
    /// The label is absent, or has a value other than these.
    NotIn(String, Vec<String>),
    /// The label is present.
    Exists(String),
    /// The label is absent.
    Absent(String),
}

impl Requirement {
    /// Returns the requirement as an item of `matchExpressions`.
    #[must_use]
    pub fn expression(&self) -> Value {
        match self {
            Self::In(key, values) => json!({"key": key, "operator": "In", "values": values}),
            Self::NotIn(key, values) => json!({"key": key, "operator": "NotIn", "values": values}),
            Self::Exists(key) => json!({"key": key, "operator": "Exists"}),
            Self::Absent(key) => json!({"key": key, "operator": "DoesNotExist"}),
        }
    }
}

impl Selector {
    /// Parses a selector.
    ///
    /// # Errors
    /// Returns a text that tells the administrator what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let requirements: Vec<Requirement> = parts(text).into_iter().map(requirement).collect::<Result<_, _>>()?;
        let asks = |one: &Requirement| matches!(one, Requirement::In(..) | Requirement::Exists(_));
        if !requirements.iter().any(asks) {
            return Err("asks for no label, so it would select nearly every namespace".to_owned());
        }
        Ok(Self { text: text.trim().to_owned(), requirements })
    }

    /// Returns the selector as the configuration writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Splits at commas outside parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let at_commas = text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    at_commas.map(str::trim).collect()
}

fn requirement(text: &str) -> Result<Requirement, String> {
    if let Some((key, values)) = text.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(|| format!("{text:?} has no )"))?;
        let values = values.split(',').map(|one| value(one.trim())).collect::<Result<Vec<_>, _>>()?;
        return match key.split_whitespace().collect::<Vec<_>>().as_slice() {
            [key, "in"] => Ok(Requirement::In(self::key(key)?, values)),
            [key, "notin"] => Ok(Requirement::NotIn(self::key(key)?, values)),
            _ => Err(format!("{text:?} is neither KEY in (…) nor KEY notin (…)")),
        };
    }
    if let Some((key, other)) = text.split_once("!=") {
        return Ok(Requirement::NotIn(self::key(key.trim())?, vec![value(other.trim())?]));
    }
    if let Some((key, one)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Requirement::In(self::key(key.trim())?, vec![value(one.trim())?]));
    }
    match text.strip_prefix('!') {
        Some(key) => Ok(Requirement::Absent(self::key(key.trim())?)),
        None => Ok(Requirement::Exists(key(text)?)),
    }
}

fn key(text: &str) -> Result<String, String> {
    let name = text.split_once('/').map_or(text, |(_, name)| name);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let good = (1..=63).contains(&name.len()) && text.len() <= 253 + 64 && text.chars().all(is_allowed);
    if good { Ok(text.to_owned()) } else { Err(format!("{text:?} is not a label key")) }
}

fn value(text: &str) -> Result<String, String> {
    let good = text.len() <= 63 && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if good { Ok(text.to_owned()) } else { Err(format!("{text:?} is not a label value")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_have_the_syntax_of_kubectl() {
        let list = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        let read = Selector::parse("app.kubernetes.io/part-of=kubeflow-profile, tier in (a, b),!own , x != y,z");
        assert_eq!(
            read.expect("the selector is valid").requirements,
            [
                Requirement::In("app.kubernetes.io/part-of".to_owned(), list(&["kubeflow-profile"])),
                Requirement::In("tier".to_owned(), list(&["a", "b"])),
                Requirement::Absent("own".to_owned()),
                Requirement::NotIn("x".to_owned(), list(&["y"])),
                Requirement::Exists("z".to_owned()),
            ]
        );
    }

    #[test]
    fn a_selector_without_a_required_label_is_refused() {
        for wrong in ["", "!x", "x!=y", "x notin (y)", "a b", "x=y z", "x in y", "x in (y", "x='", "a=b,"] {
            assert!(Selector::parse(wrong).is_err(), "{wrong}");
        }
    }
}
