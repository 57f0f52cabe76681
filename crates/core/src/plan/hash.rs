//! Computes the hash by which an administrator approves a set of actions. It stays the same from cycle to cycle.
//!
//! The hash covers (cluster, account id, kind, object, desired digest), sorted, without times, generations and
//! renewals. Each account's part is hashed first, and the hash of a set is made from the sorted hashes of its parts.
//! Therefore an approval of a set is also valid for a subset of its parts.

use std::collections::BTreeSet;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{AccountPlan, Action};
use crate::contract::follows_the_generation;
use crate::desired::credential::service_account;
use crate::desired::{Transition, generation_group};
use crate::digest::digest;
use crate::kinds::{ManagedKind, ObjectKey, Stage};
use crate::ledger::Suspension;

/// The number of hex digits of a hash that people see and type. Few digits are enough, because only a few sets of one
/// ledger wait for an approval, and only the guard makes such sets.
const SHOWN: usize = 8;

/// A line of the set: cluster, account id, kind, object, desired digest. Lines are sorted in this order.
type Line = (String, String, String, String, String);

/// Returns the hash of one account's part.
#[must_use]
pub fn part(plan: &AccountPlan) -> String {
    let lines = lines(plan);
    let mut hash = Sha256::new();
    for (cluster, account, kind, object, digest) in &lines {
        for text in [cluster, account, kind, object, digest] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
    }
    hex::encode(hash.finalize())
}

/// Returns the hash of a set, shortened for people. The hashes of its parts may be in any order.
#[must_use]
pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a String>) -> String {
    let sorted: BTreeSet<&String> = parts.into_iter().collect();
    let mut hash = Sha256::new();
    for part in sorted {
        hash.update(part);
    }
    hex::encode(hash.finalize())[..SHOWN].to_owned()
}

fn lines(plan: &AccountPlan) -> BTreeSet<Line> {
    let id = &plan.id.0.to_string();
    let line = |cluster: &str, kind: &str, object: String, digest: String| {
        (cluster.to_owned(), id.clone(), kind.to_owned(), object, digest)
    };
    let actions = plan.steps().filter_map(|action| {
        let cluster = &action.cluster().0;
        match action {
            // Writes in other stages are repairs, which are done even if the removal is refused.
            Action::Apply { key, manifest, .. } if is_of_a_removal(key.kind.stage()) => {
                Some(line(cluster, key.kind.as_str(), object(key), stable_digest(manifest.value(), plan)))
            }
            Action::Delete { key, .. } => Some(line(cluster, key.kind.as_str(), object(key), "delete".to_owned())),
            Action::StopWorkloads { namespace, .. } => {
                Some(line(cluster, "Workloads", namespace.to_string(), "stop".to_owned()))
            }
            Action::Evict { namespace, .. } => {
                Some(line(cluster, "Tokens", namespace.to_string(), "delete".to_owned()))
            }
            Action::RemoveKubeconfig { home, .. } => {
                Some(line(cluster, "Kubeconfig", home.home.display().to_string(), "remove".to_owned()))
            }
            Action::SshKeys { home, keys, .. } if keys.is_empty() => {
                Some(line("", "SshKeys", home.home.display().to_string(), "remove".to_owned()))
            }
            Action::DeleteNamespace { namespace, .. } => {
                Some(line(cluster, ManagedKind::Namespace.row().kind, namespace.to_string(), "delete".to_owned()))
            }
            // The other actions are not part of a removal, or are renewals.
            Action::Apply { .. }
            | Action::Archive { .. }
            | Action::AwaitDeletion { .. }
            | Action::MakeDirectory { .. }
            | Action::SetLevel { .. }
            | Action::ResumeWorkloads { .. }
            | Action::ProveRevoked { .. }
            | Action::ReapPod { .. }
            | Action::WarnPod { .. }
            | Action::WarnIdle { .. }
            | Action::Deliver { .. }
            | Action::SshKeys { .. }
            | Action::InspectKubeconfig { .. } => None,
        }
    });
    let members = plan.leaving.keys().map(|member| line("", "Member", member.0.clone(), "remove".to_owned()));
    let suspension = plan.transition.iter().filter_map(|transition| match transition {
        Transition::Suspend(why) => Some(line("", "Suspension", cause(why).to_owned(), String::new())),
        Transition::Delete { .. } => Some(line("", "Deletion", String::new(), String::new())),
        Transition::Resume => Some(line("", "Resumption", String::new(), String::new())),
        Transition::Create | Transition::Archive | Transition::Gone => None,
    });
    actions.chain(members).chain(suspension).collect()
}

/// Whether a removal of access applies objects of this stage: the sealed namespace, and bindings with the new
/// generation.
const fn is_of_a_removal(stage: Stage) -> bool {
    match stage {
        Stage::Namespace | Stage::Access => true,
        Stage::Limits | Stage::Volume | Stage::Content => false,
    }
}

fn object(key: &ObjectKey) -> String {
    format!("{}/{}/{}", key.kind.api_version(), key.namespace.as_deref().unwrap_or_default(), key.name)
}

fn cause(why: &Suspension) -> &'static str {
    match why {
        Suspension::Absent => "absent",
        Suspension::Disabled { .. } => "disabled",
        Suspension::Ordered { .. } => "ordered",
        Suspension::Evicted { .. } => "evicted",
        Suspension::Left => "left",
        Suspension::Idle { .. } => "idle",
    }
}

/// Returns the digest of a manifest without the fields that depend on the generation.
fn stable_digest(mut manifest: Value, plan: &AccountPlan) -> String {
    if let Some(annotations) = manifest.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !follows_the_generation(key));
    }
    forget(&mut manifest, &[generation_group(&plan.account, plan.generation), service_account(plan.generation)]);
    digest(&manifest)
}

fn forget(value: &mut Value, holders: &[String]) {
    match value {
        Value::String(text) if holders.contains(text) => text.clear(),
        Value::Array(items) => items.iter_mut().for_each(|item| forget(item, holders)),
        Value::Object(fields) => fields.values_mut().for_each(|field| forget(field, holders)),
        _ => {}
    }
}
