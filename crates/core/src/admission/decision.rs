//! The decision on a review: the patch, and refusals, warnings and audit annotations, each with problem, reason and
//! remedy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::value::Json;
use crate::contract::exception::ExceptedRule;
use crate::rules::Mode;

/// The most findings that one message lists. Also the most findings of one rule that are kept in one mode. A pod can
/// have thousands of containers, but an answer must fit into an event, and a review must not use more memory than its
/// body.
pub(super) const MOST: usize = 16;

/// The answer to the API server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Why the request is refused; if empty, the request is allowed.
    pub refusals: Vec<Finding>,
    /// Findings that the user sees as warnings.
    pub warnings: Vec<Finding>,
    /// Findings that only the audit log shows.
    pub audit: Vec<Finding>,
    /// The number of findings beyond [`MOST`] that were dropped, by mode and rule.
    pub left_out: BTreeMap<(Mode, Rule), u64>,
    /// Changes to the object (RFC 6902); empty if the request is refused or the object needs no change.
    pub patch: Vec<PatchOperation>,
}

/// The breach of a rule by a part of an object. Its text is the sentence `what; why: remedy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub rule: Rule,
    /// The problem, such as `container "web" would run as uid 0`.
    pub what: String,
    /// The reason, such as `tool foo runs as 52503`.
    pub why: String,
    /// What the user can do, such as `remove securityContext.runAsUser`.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}: {}", self.what, self.why, self.remedy)
    }
}

/// Declares the enum of rules, the list of all rules and their names in one place, so that the list cannot lack a rule.
macro_rules! rules {
    ($($(#[$doc:meta])+ $rule:ident = $name:literal,)+) => {
        /// A rule that an object can break. The first eight have a mode in each class (`Annotations` has the mode of
        /// `Hosts`); the others are always enforced.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $($(#[$doc])+ $rule,)+
        }

        impl Rule {
            /// All rules.
            pub const ALL: &'static [Self] = &[$(Self::$rule,)+];

            /// Returns the rule's name in the configuration, in metrics and in audit annotations.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$rule => $name,)+
                }
            }
        }
    };
}

rules! {
    /// The user and groups that a pod runs as.
    Uid = "uid",
    /// Namespaces, ports and privileges of the node.
    Host = "host",
    /// The registries that images come from.
    Images = "images",
    /// The hosts that an Ingress or a route serves.
    Hosts = "hosts",
    /// The annotations of Ingresses and routes.
    Annotations = "annotations",
    /// The volumes that a pod mounts.
    Volumes = "volumes",
    /// The storage class of a claim.
    Claims = "claims",
    /// How long a pod lives.
    Lifetime = "lifetime",
    /// The tenant of the namespace is unknown.
    Identity = "identity",
    /// A new pod of a suspended tenant.
    Suspended = "suspended",
    /// A write to objects or namespaces that belong to Bursar.
    Objects = "objects",
    /// An approval, by the daemon, of a certificate that is not for a tenant or a program of Bursar.
    Approval = "approval",
    /// The object does not have the structure of its kind.
    Malformed = "malformed",
}

impl Rule {
    /// Returns the exception that an administrator can give from this rule, if there is one.
    #[must_use]
    pub const fn exception(self) -> Option<ExceptedRule> {
        match self {
            Self::Images => Some(ExceptedRule::Images),
            Self::Hosts => Some(ExceptedRule::Hosts),
            Self::Volumes => Some(ExceptedRule::Volumes),
            Self::Lifetime => Some(ExceptedRule::Lifetime),
            // `Uid` and `Host`: with an exception, an NFS server could mistake a pod for another account, or for the
            // node. `Annotations`: some ingress controllers run code from annotations, and that code can read every TLS
            // Secret. `Claims` refuses nothing, and a claim's label `bursar.dev/keep-storage-class` turns it off. The
            // last five are not configured by a class.
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
    /// Either `add` or `replace`.
    pub op: &'static str,
    /// A JSON pointer (RFC 6901).
    pub path: String,
    pub value: Value,
}

impl Decision {
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.refusals.is_empty()
    }

    /// Returns the refusals, one per line.
    #[must_use]
    pub fn message(&self) -> String {
        lines(&self.refusals, self.left_out(Mode::Enforce, |_| true))
    }

    /// Returns the annotations of the audit event by rule. The API server puts the webhook's name before each key.
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

    /// Records the finding of a rule with this mode.
    pub(super) fn found(&mut self, mode: Mode, finding: Finding) {
        if !self.leaves_out(mode, finding.rule)
            && let Some(list) = self.list(mode)
        {
            list.push(finding);
        }
    }

    /// Returns whether one more finding of this rule would be dropped, and counts it if so. A rule that can have a
    /// finding for each value asks first, so that it does not build a text that is dropped.
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

    /// Moves the findings of rules that the account is excepted from to the audit log.
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

    /// Records a refusal that no class can turn off.
    pub(super) fn refuse(&mut self, finding: Finding) {
        self.found(Mode::Enforce, finding);
    }
}

/// Returns one line for each of the first [`MOST`] findings, and a last line with the number of the others. The
/// `left_out` findings, which were dropped before, are included in that number.
fn lines(findings: &[Finding], left_out: usize) -> String {
    let mut lines: Vec<String> = findings.iter().take(MOST).map(Finding::to_string).collect();
    let more = findings.len().saturating_sub(MOST) + left_out;
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.join("\n")
}

/// Returns the operations that change `old`, which is at `path` of the object, into `new`. Fields are added, lists are
/// extended, and single values are replaced. If anything else differs, the enclosing value is replaced as a whole.
#[must_use]
pub(super) fn difference(path: &str, old: &Json<'_>, new: &Json<'_>) -> Vec<PatchOperation> {
    let mut operations = Vec::new();
    compare(&Place::Root(path), old, new, &mut operations);
    operations
}

/// A place in an object. It becomes a text, a JSON pointer (RFC 6901), only for an operation.
enum Place<'p> {
    Root(&'p str),
    Field(&'p Self, &'p str),
    Item(&'p Self, usize),
    /// After the last item of a list.
    End(&'p Self),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(path) => f.write_str(path),
            Self::Field(parent, key) => write!(f, "{parent}/{}", key.replace('~', "~0").replace('/', "~1")),
            Self::Item(parent, index) => write!(f, "{parent}/{index}"),
            Self::End(parent) => write!(f, "{parent}/-"),
        }
    }
}

fn compare(place: &Place<'_>, old: &Json<'_>, new: &Json<'_>, operations: &mut Vec<PatchOperation>) {
    let operation =
        |op, place: &Place<'_>, value: &Json<'_>| PatchOperation { op, path: place.to_string(), value: value.into() };
    match (old, new) {
        (Json::Object(fields), Json::Object(others)) => {
            let before = operations.len();
            let mut fields = fields.iter().peekable();
            for (key, value) in others.iter() {
                let field = Place::Field(place, key);
                match fields.next_if(|(own, _)| *own == key) {
                    Some((_, old)) => compare(&field, old, value, operations),
                    None => operations.push(operation("add", &field, value)),
                }
            }
            // Both objects are sorted by key, so a field of `old` that is left over is missing in `new`.
            if fields.next().is_some() {
                operations.truncate(before);
                operations.push(operation("replace", place, new));
            }
        }
        (Json::List(old), Json::List(new)) if old.len() <= new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                compare(&Place::Item(place, index), old, new, operations);
            }
            let added = new[old.len()..].iter();
            operations.extend(added.map(|value| operation("add", &Place::End(place), value)));
        }
        (old, new) if old == new => {}
        (_, new) => operations.push(operation("replace", place, new)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_becomes_json_patch_operations() {
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
    fn a_message_lists_at_most_16_findings() {
        let finding = Finding { rule: Rule::Uid, what: "a".to_owned(), why: "b".to_owned(), remedy: "c".to_owned() };
        let mut decision = Decision::default();
        (0..1000).for_each(|_| decision.refuse(finding.clone()));
        assert_eq!(decision.message().lines().count(), MOST + 1);
        assert!(decision.message().ends_with("a; b: c\nand 984 more"));
        assert_eq!(
            (decision.refusals.len(), decision.left_out.len()),
            (MOST, 1),
            "findings that the message leaves out are not kept"
        );
        (0..20).for_each(|_| decision.found(Mode::Audit, Finding { rule: Rule::Images, ..finding.clone() }));
        decision.found(Mode::Audit, finding);
        let said = decision.audit_annotations();
        assert!(said["images"].ends_with("\nand 4 more") && said["uid"] == "a; b: c", "{said:?}");
    }
}
