//! Describes the steps of an account in words.

use std::collections::{BTreeMap, BTreeSet};

use crate::desired::quota::stops_pods;
use crate::desired::{DesiredCredential, Proof, Regeneration, Transition};
use crate::identity::AccountKind;
use crate::kinds::{Detail, ObjectKey};
use crate::plan::adopted::is_of_others;
use crate::plan::wording::{counted, objects};
use crate::plan::{AccountPlan, Action, Reason};

/// Returns the sign and the summary of a plan without a change of the lifecycle state: its most important reason, such
/// as `quota changed`.
pub(super) fn only_reason(plan: &AccountPlan) -> (char, String) {
    let mut reasons: BTreeSet<(u8, String)> = BTreeSet::new();
    let mut gone = plan.steps().next().is_some();
    for action in plan.steps() {
        let (thing, reason) = match action {
            Action::Apply { key, reason, .. } | Action::Delete { key, reason, .. } => (key.kind.noun(), reason),
            Action::Deliver { credential, reason, .. } => (credential.proof.noun(), reason),
            Action::RemoveKubeconfig { reason, .. } => ("kubeconfig", reason),
            Action::SshKeys { reason: Some(reason), .. } => ("SSH keys", reason),
            Action::ReapPod { reason, .. } => ("pod", reason),
            _ => continue,
        };
        gone &= matches!(reason, Reason::Orphaned | Reason::Suspended | Reason::Outlived(_));
        reasons.insert((weight(reason), said(thing, reason)));
    }
    let what = reasons.into_iter().next().map_or_else(|| "unfinished".to_owned(), |(_, what)| what);
    (if gone { '-' } else { '~' }, what)
}

/// Returns the rank of a reason. A summary shows only the reason with the lowest rank.
fn weight(reason: &Reason) -> u8 {
    match reason {
        Reason::Changed(_) => 0,
        Reason::Drifted(_) => 1,
        Reason::Missing => 2,
        Reason::Orphaned => 3,
        Reason::Suspended => 4,
        Reason::Revoked => 5,
        Reason::Expiring(_) => 6,
        Reason::Outlived(_) => 7,
    }
}

fn said(thing: &str, reason: &Reason) -> String {
    match reason {
        // The details show the amounts.
        Reason::Changed(_) if thing == "quota" => "quota changed".to_owned(),
        Reason::Drifted(_) if thing == "quota" => "quota edited by somebody else".to_owned(),
        Reason::Changed(fields) if fields.is_empty() => format!("{thing} changed"),
        Reason::Changed(fields) => format!("{} changed", fields.join(", ")),
        Reason::Drifted(fields) if fields.is_empty() => format!("{thing} edited by somebody else"),
        Reason::Drifted(fields) => format!("{} edited by somebody else", fields.join(", ")),
        Reason::Outlived(_) => format!("{thing} past its lifetime"),
        Reason::Revoked => format!("{thing} of an older generation"),
        other => format!("{thing} {other}"),
    }
}

/// Lists the steps, such as `namespace tool-foo, quota, limits, 4 network policies, role binding, certificate,
/// kubeconfig`.
pub(super) fn details(plan: &AccountPlan) -> String {
    let written = written(plan);
    let deleted = placed(
        plan,
        plan.steps().filter_map(|action| match action {
            Action::Delete { key, .. } if !stops_pods(key) => Some(key),
            _ => None,
        }),
    );
    let deleted = deleted.into_iter().map(|object| format!("{object} removed"));
    let starts = plan.steps().any(|action| matches!(action, Action::Delete { key, .. } if stops_pods(key)));
    let deleted = deleted.chain(starts.then(|| "new pods allowed".to_owned()));
    // A group has no certificate; its people have their own.
    let holds = plan.account.kind != AccountKind::Group;
    let revoked = holds && matches!(plan.regenerated, Some(Regeneration::Suspended));
    let revoked = revoked.then(|| "certificates revoked".to_owned());
    let others = plan.steps().filter_map(|action| match action {
        Action::Apply { .. }
        | Action::Delete { .. }
        | Action::ProveRevoked { .. }
        | Action::SshKeys { reason: None, .. }
        | Action::InspectKubeconfig { .. } => None,
        Action::MakeDirectory { directory, .. } => Some(format!("directory {}", directory.path.display())),
        Action::StopWorkloads { .. } => Some("workloads stopped".to_owned()),
        Action::Evict { .. } => Some("tokens of service accounts removed".to_owned()),
        Action::ResumeWorkloads { stopped, .. } => {
            Some(format!("{} resumed", counted(stopped.len() as u64, "workload")))
        }
        Action::Deliver { credential, reason, .. } => Some(delivered(credential, reason)),
        Action::RemoveKubeconfig { host, notice, .. } => {
            let what = if notice.is_some() { "replaced by a notice" } else { "removed" };
            let of = if host.is_any() { String::new() } else { format!(" of {host}") };
            Some(format!("kubeconfig{of} {what}"))
        }
        Action::SshKeys { keys, .. } if keys.is_empty() => Some("SSH keys removed".to_owned()),
        Action::SshKeys { keys, .. } => Some(counted(keys.len() as u64, "SSH key")),
        Action::SetLevel { namespace, level, .. } => {
            Some(format!("foreign namespace {namespace} gets Pod Security level {}", level.as_str()))
        }
        Action::WarnIdle { namespace, until, .. } => {
            Some(format!("people of {namespace} warned: suspended {until:.0} if nothing runs until then"))
        }
        Action::WarnPod { namespace, name, until, .. } => {
            Some(format!("people of pod {namespace}/{name} told that it ends {until:.0}"))
        }
        Action::ReapPod { namespace, name, job, .. } => Some(match job {
            Some(job) => format!("pod {namespace}/{name} deleted, with all of job {job}"),
            None => format!("pod {namespace}/{name} deleted"),
        }),
        Action::Archive { namespace, .. } => Some(format!("namespace {namespace} archived")),
        Action::DeleteNamespace { namespace, .. } => Some(format!("namespace {namespace} deleted")),
        Action::AwaitDeletion { namespace, .. } => Some(format!("namespace {namespace} is being deleted")),
    });
    let suspends = matches!(plan.transition, Some(Transition::Suspend(_)));
    let all: Vec<String> = if suspends {
        // Objects that are written stay. The text says so; next to removals, they would otherwise seem to be removed
        // too.
        let (stays, written): (Vec<String>, Vec<String>) =
            written.into_iter().partition(|what| what.starts_with("namespace "));
        let is_said = |what: &String| what == NO_PODS || what.contains('→');
        let written = written.into_iter().map(|what| if is_said(&what) { what } else { format!("{what} updated") });
        let stays = (!stays.is_empty()).then(|| format!("{} and all data stay", stays.join(", ")));
        deleted.chain(revoked).chain(others).chain(written).chain(stays).collect()
    } else {
        written.into_iter().chain(deleted).chain(others).collect()
    };
    let all = all.join(", ");
    if plan.transition == Some(Transition::Archive) {
        return if all.is_empty() {
            "archived: it may be deleted".to_owned()
        } else {
            format!("archived: it may be deleted; {all}")
        };
    }
    if suspends && !all.is_empty() { format!("suspend: {all}") } else { all }
}

/// Describes a delivery, such as `certificate, kubeconfig`.
fn delivered(credential: &DesiredCredential, reason: &Reason) -> String {
    let ends = match reason {
        Reason::Expiring(at) => format!(" (the old one expires {at:.0})"),
        _ => String::new(),
    };
    match &credential.proof {
        Proof::Certificate { .. } => format!("certificate{ends}, kubeconfig"),
        Proof::Token(_) => format!("token for {}{ends}, kubeconfig", credential.host),
        Proof::Oidc(_) => "kubeconfig for logins".to_owned(),
    }
}

/// The text for a quota that stops new pods.
const NO_PODS: &str = "new pods refused";

/// Lists the objects that are applied. For a quota, lists the changed amounts instead if they are known.
fn written(plan: &AccountPlan) -> Vec<String> {
    let applied = || {
        plan.steps().filter_map(|action| match action {
            Action::Apply { key, reason, .. } if !stops_pods(key) => Some((key, amounts(key, reason))),
            _ => None,
        })
    };
    let adopted = plan.adopted.iter().map(|adoption| {
        format!("{} becomes an override; it was edited with {}", adoption.said(), adoption.editors.join(", "))
    });
    let amounts = applied().flat_map(|(_, amounts)| amounts.iter().cloned());
    let others = placed(plan, applied().filter(|(_, amounts)| amounts.is_empty()).map(|(key, _)| key));
    let stops = plan.steps().any(|action| matches!(action, Action::Apply { key, .. } if stops_pods(key)));
    adopted.chain(amounts).chain(others).chain(stops.then(|| NO_PODS.to_owned())).collect()
}

/// Lists objects like [`objects`]. Objects in foreign namespaces are listed with the namespace.
fn placed<'a>(plan: &AccountPlan, keys: impl Iterator<Item = &'a ObjectKey>) -> Vec<String> {
    let mut own = Vec::new();
    let mut elsewhere: BTreeMap<&str, Vec<&ObjectKey>> = BTreeMap::new();
    for key in keys {
        match key.namespace.as_deref().filter(|_| is_of_others(key, |there| plan.owns(there))) {
            Some(there) => elsewhere.entry(there).or_default().push(key),
            None => own.push(key),
        }
    }
    let elsewhere = elsewhere.into_iter().flat_map(|(there, keys)| {
        objects(keys.into_iter()).into_iter().map(move |object| format!("{object} in {there}"))
    });
    objects(own.into_iter()).into_iter().chain(elsewhere).collect()
}

fn amounts<'a>(key: &ObjectKey, reason: &'a Reason) -> &'a [String] {
    match reason {
        Reason::Changed(fields) | Reason::Drifted(fields) if key.kind.detail() == Detail::QuotaHard => fields,
        _ => &[],
    }
}
