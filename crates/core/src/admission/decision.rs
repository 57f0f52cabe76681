//! What is decided of a review: refusals, warnings and audit annotations, each with what, why and remedy, and the patch.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::value::Json;
use crate::contract::exception::ExceptedRule;
use crate::rules::Mode;

/// Findings of one kind that are told, and findings of one rule that are kept. A pod can have thousands of containers, an
/// answer must fit into an event, and no review may take more memory than its body.
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
    /// How many findings beyond [`MOST`] each rule had, by what would have become of them.
    pub left_out: BTreeMap<(Mode, Rule), u64>,
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

/// What can be broken. The first eight have a mode in each class (`Annotations` has that of `Hosts`); the others are always
/// enforced.
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
    /// What an ingress controller is told besides.
    Annotations,
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
            Self::Annotations => "annotations",
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

    /// The exception that there can be from it.
    #[must_use]
    pub const fn exception(self) -> Option<ExceptedRule> {
        match self {
            Self::Images => Some(ExceptedRule::Images),
            Self::Hosts => Some(ExceptedRule::Hosts),
            Self::Volumes => Some(ExceptedRule::Volumes),
            Self::Lifetime => Some(ExceptedRule::Lifetime),
            // Who a pod runs as; and what the node is, a pod on its network is for every NFS server.
            // By annotations, some ingress controllers take code, which then reads every TLS secret.
            // `Claims` refuses nothing, and the label of a claim turns it off; the last five are no rules of a class.
            Self::Uid
            | Self::Host
            | Self::Annotations
            | Self::Claims
            | Self::Identity
            | Self::Suspended
            | Self::Objects
            | Self::Approval
            | Self::Malformed => None,
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
        lines(&self.refusals, self.left_out(Mode::Enforce, |_| true))
    }

    /// Annotations of the audit event by rule; the API server puts the webhook's name before each.
    #[must_use]
    pub fn audit_annotations(&self) -> BTreeMap<&'static str, String> {
        let mut by_rule: BTreeMap<Rule, Vec<Finding>> = BTreeMap::new();
        for finding in &self.audit {
            by_rule.entry(finding.rule).or_default().push(finding.clone());
        }
        let said = |rule, findings: &[Finding]| lines(findings, self.left_out(Mode::Audit, |other| other == rule));
        by_rule.into_iter().map(|(rule, findings)| (rule.as_str(), said(rule, &findings))).collect()
    }

    fn left_out(&self, mode: Mode, is_asked: impl Fn(Rule) -> bool) -> usize {
        let of_mode = self.left_out.iter().filter(|((of, rule), _)| *of == mode && is_asked(*rule));
        of_mode.map(|(_, count)| usize::try_from(*count).unwrap_or(usize::MAX)).sum()
    }

    /// Notes what a rule of `mode` found.
    pub(super) fn found(&mut self, mode: Mode, finding: Finding) {
        if !self.leaves_out(mode, finding.rule)
            && let Some(list) = self.list(mode)
        {
            list.push(finding);
        }
    }

    /// Whether another finding is not kept; it is counted then. Rules that may find one for each value ask before they write
    /// its text.
    pub(super) fn leaves_out(&mut self, mode: Mode, rule: Rule) -> bool {
        if let Some(count) = self.left_out.get_mut(&(mode, rule)) {
            *count += 1;
            return true;
        }
        let of_rule = self.list(mode).into_iter().flatten().filter(|finding| finding.rule == rule);
        let is_full = of_rule.count() >= MOST;
        if is_full {
            self.left_out.insert((mode, rule), 1);
        }
        is_full
    }

    fn list(&mut self, mode: Mode) -> Option<&mut Vec<Finding>> {
        match mode {
            Mode::Off => None,
            Mode::Audit => Some(&mut self.audit),
            Mode::Warn => Some(&mut self.warnings),
            Mode::Enforce => Some(&mut self.refusals),
        }
    }

    /// Leaves only a note for the audit log of what breaks a rule that the account is excepted from.
    pub(super) fn except(&mut self, exceptions: &BTreeSet<ExceptedRule>) {
        let is_excepted = |rule: Rule| rule.exception().is_some_and(|rule| exceptions.contains(&rule));
        for findings in [&mut self.refusals, &mut self.warnings] {
            self.audit.extend(findings.extract_if(.., |finding| is_excepted(finding.rule)));
        }
        let left_out = std::mem::take(&mut self.left_out);
        for ((mode, rule), count) in left_out {
            let mode = if is_excepted(rule) { Mode::Audit } else { mode };
            *self.left_out.entry((mode, rule)).or_default() += count;
        }
    }

    /// Notes what no class can allow.
    pub(super) fn refuse(&mut self, finding: Finding) {
        self.found(Mode::Enforce, finding);
    }
}

/// Every finding is a line, as far as a message can be read. `left_out`: how many there were besides.
fn lines(findings: &[Finding], left_out: usize) -> String {
    let mut lines: Vec<String> = findings.iter().take(MOST).map(Finding::to_string).collect();
    let more = findings.len().saturating_sub(MOST) + left_out;
    if more > 0 {
        lines.push(format!("and {more} more"));
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
        assert_eq!((decision.refusals.len(), decision.left_out.len()), (MOST, 1), "and what is not told is not kept");
        (0..20).for_each(|_| decision.found(Mode::Audit, Finding { rule: Rule::Images, ..finding.clone() }));
        decision.found(Mode::Audit, finding);
        let said = decision.audit_annotations();
        assert!(said["images"].ends_with("\nand 4 more") && said["uid"] == "a; b: c", "{said:?}");
    }
}
