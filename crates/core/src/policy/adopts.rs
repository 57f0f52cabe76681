//! Namespaces that others create: which of them a class adopts, and where they say whose they are.

use std::fmt;

use super::PodSecurity;
use crate::rules::server::{ServerRule, ServerRules};
use crate::rules::{AllowedVolume, HostRules, Mode};

/// Stands in patterns of an adopting class for the name of the namespace.
pub const PLACEHOLDER: &str = "{namespace}";

/// What a class with `from = "adopted"` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopts {
    /// Which namespaces.
    pub selector: Selector,
    /// The annotation that names the owner.
    pub owner_annotation: String,
    /// What may be in these namespaces.
    pub admission: Box<AdoptedAdmission>,
    /// The level of Pod Security that a namespace gets if its maker gave it none.
    pub pod_security: Option<PodSecurity>,
}

/// `[class.NAME.admission]` of a class with `from = "adopted"`: what the API server judges without knowing whose a namespace
/// is. A rule that the class does not have is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptedAdmission {
    /// What an Ingress or route may serve; patterns have [`PLACEHOLDER`].
    pub hosts: HostRules,
    /// What happens to volumes from outside the namespace that are not in [`Self::allowed_volumes`].
    pub volumes: Mode,
    /// Volumes from outside; paths may have [`PLACEHOLDER`].
    pub allowed_volumes: Vec<AllowedVolume>,
    /// Storage classes of `ReadWriteMany` claims: `class NAME`.
    pub read_write_many: ServerRule,
    /// The rules that tenants' namespaces have, too. Each has a mode.
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
    /// Patterns of hosts as classes of tenants write them: the name of the namespace is the tenant's.
    pub fn host_patterns(&self) -> impl Iterator<Item = String> {
        self.hosts.allow.iter().map(|pattern| pattern.replace(PLACEHOLDER, "{name}"))
    }
}

/// A label selector as `kubectl --selector` takes it
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#list-and-watch-filtering>). At least
/// one of its requirements asks for a label: without one it would select nearly everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    text: String,
    requirements: Vec<Requirement>,
}

/// One of the requirements of a [`Selector`]; all of them hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    /// The label has one of these values.
    In(String, Vec<String>),
    /// It is not there, or has another value.
    NotIn(String, Vec<String>),
    /// It is there.
    Exists(String),
    /// It is not.
    Absent(String),
}

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// For people: what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let requirements: Vec<Requirement> = parts(text).into_iter().map(requirement).collect::<Result<_, _>>()?;
        let asks = |one: &Requirement| matches!(one, Requirement::In(..) | Requirement::Exists(_));
        if !requirements.iter().any(asks) {
            return Err("asks for no label, so it would select nearly every namespace".to_owned());
        }
        Ok(Self { text: text.trim().to_owned(), requirements })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What it requires.
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

/// At commas outside of parentheses.
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
    let of_a_key = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let good = (1..=63).contains(&name.len()) && text.len() <= 253 + 64 && text.chars().all(of_a_key);
    if good { Ok(text.to_owned()) } else { Err(format!("{text:?} is no label")) }
}

fn value(text: &str) -> Result<String, String> {
    let good = text.len() <= 63 && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if good { Ok(text.to_owned()) } else { Err(format!("{text:?} is no label's value")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read_as_kubectl_reads_them() {
        let list = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        let read = Selector::parse("app.kubernetes.io/part-of=kubeflow-profile, tier in (a, b),!own , x != y,z");
        assert_eq!(
            read.expect("a selector").requirements,
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
