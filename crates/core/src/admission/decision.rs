//! What is decided of a review: refusals, warnings and audit annotations, each with what, why and remedy, and the patch.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::value::Json;
use crate::rules::Mode;

/// Findings of one kind that are told. A pod can have thousands of containers, and an answer must fit into an event.
pub(super) const MOST: usize = 16;

/// What the API server is told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Why the request is refused; none: it is allowed.
    pub refusals: Vec<Finding>,
    /// What the user is warned of.
    pub warnings: Vec<Finding>,
    /// What only the audit log says.
    pub audit: Vec<Finding>,
    /// Changes to the object (RFC 6902); empty if it is refused, or as it should be.
    pub patch: Vec<PatchOperation>,
}

/// One rule that one part of an object breaks. Its text is one sentence: `what; why: remedy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which rule.
    pub rule: Rule,
    /// `container "web" would run as uid 0`.
    pub what: String,
    /// `tool foo runs as 52503`.
    pub why: String,
    /// `remove securityContext.runAsUser`.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}: {}", self.what, self.why, self.remedy)
    }
}

/// What can be broken. The first seven have a mode in each class; the others are always enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Who a pod runs as.
    Uid,
    /// Host namespaces, ports, privileges.
    Host,
    /// Where images come from.
    Images,
    /// What is served under which name.
    Hosts,
    /// What is mounted.
    Volumes,
    /// Claims.
    Claims,
    /// How long a pod lives.
    Lifetime,
    /// Whose namespace it is.
    Identity,
    /// No new pods.
    Suspended,
    /// Objects and namespaces of ours.
    Objects,
    /// What the daemon approves.
    Approval,
    /// Not the shape that Kubernetes gives such an object.
    Malformed,
}

impl Rule {
    /// The word of configuration, metrics and audit annotations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Uid => "uid",
            Self::Host => "host",
            Self::Images => "images",
            Self::Hosts => "hosts",
            Self::Volumes => "volumes",
            Self::Claims => "claims",
            Self::Lifetime => "lifetime",
            Self::Identity => "identity",
            Self::Suspended => "suspended",
            Self::Objects => "objects",
            Self::Approval => "approval",
            Self::Malformed => "malformed",
        }
    }
}

/// An operation of RFC 6902.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PatchOperation {
    /// `add` or `replace`.
    pub op: &'static str,
    /// JSON pointer (RFC 6901).
    pub path: String,
    /// The new value.
    pub value: Value,
}

impl Decision {
    /// Whether the request goes on.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.refusals.is_empty()
    }

    /// All refusals, a line each.
    #[must_use]
    pub fn message(&self) -> String {
        lines(&self.refusals)
    }

    /// Annotations of the audit event by rule; the API server puts the webhook's name before each.
    #[must_use]
    pub fn audit_annotations(&self) -> BTreeMap<&'static str, String> {
        let mut by_rule: BTreeMap<&'static str, Vec<Finding>> = BTreeMap::new();
        for finding in &self.audit {
            by_rule.entry(finding.rule.as_str()).or_default().push(finding.clone());
        }
        by_rule.into_iter().map(|(rule, findings)| (rule, lines(&findings))).collect()
    }

    /// Notes what a rule of `mode` found.
    pub(super) fn found(&mut self, mode: Mode, finding: Finding) {
        match mode {
            Mode::Off => {}
            Mode::Audit => self.audit.push(finding),
            Mode::Warn => self.warnings.push(finding),
            Mode::Enforce => self.refusals.push(finding),
        }
    }

    /// Notes what no class can allow.
    pub(super) fn refuse(&mut self, finding: Finding) {
        self.found(Mode::Enforce, finding);
    }
}

/// Every finding is a line, as far as a message can be read.
fn lines(findings: &[Finding]) -> String {
    let mut lines: Vec<String> = findings.iter().take(MOST).map(Finding::to_string).collect();
    if findings.len() > MOST {
        lines.push(format!("and {} more", findings.len() - MOST));
    }
    lines.join("\n")
}

/// The operations that make `old`, which is at `path` of the object, into `new`. What is made here only adds to objects,
/// appends to lists and replaces single values; whatever else differs is replaced whole.
#[must_use]
pub(super) fn difference(path: &str, old: &Json<'_>, new: &Json<'_>) -> Vec<PatchOperation> {
    let mut operations = Vec::new();
    compare(path, old, new, &mut operations);
    operations
}

fn compare(path: &str, old: &Json<'_>, new: &Json<'_>, operations: &mut Vec<PatchOperation>) {
    let operation = |op, path: String, value: &Json<'_>| PatchOperation { op, path, value: value.into() };
    match (old, new) {
        (Json::Object(fields), Json::Object(others)) => {
            let before = operations.len();
            let mut fields = fields.iter().peekable();
            for (key, value) in others.iter() {
                let path = || format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                match fields.next_if(|(own, _)| *own == key) {
                    Some((_, old)) if old == value => {}
                    Some((_, old)) => compare(&path(), old, value, operations),
                    None => operations.push(operation("add", path(), value)),
                }
            }
            // Both are in order, so what is left is a field that is gone.
            if fields.next().is_some() {
                operations.truncate(before);
                operations.push(operation("replace", path.to_owned(), new));
            }
        }
        (Json::List(old), Json::List(new)) if old.len() <= new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new) {
                compare(&format!("{path}/{index}"), old, new, operations);
            }
            for value in &new[old.len()..] {
                operations.push(operation("add", format!("{path}/-"), value));
            }
        }
        (old, new) if old == new => {}
        (_, new) => operations.push(operation("replace", path.to_owned(), new)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_become_pointers() {
        let patch =
            difference("", &Json::from(&json!({"a": [1, null]})), &Json::from(&json!({"a": [1, 2, 3], "b/c~d": true})));
        let expected = json!([
            {"op": "replace", "path": "/a/1", "value": 2},
            {"op": "add", "path": "/a/-", "value": 3},
            {"op": "add", "path": "/b~1c~0d", "value": true},
        ]);
        assert_eq!(json!(patch), expected);
    }

    #[test]
    fn a_message_ends() {
        let finding = Finding { rule: Rule::Uid, what: "a".to_owned(), why: "b".to_owned(), remedy: "c".to_owned() };
        let mut decision = Decision::default();
        (0..1000).for_each(|_| decision.refuse(finding.clone()));
        assert_eq!(decision.message().lines().count(), MOST + 1);
        assert!(decision.message().ends_with("a; b: c\nand 984 more"));
    }
}
