//! Compares an object of the confinement with its manifest, and with what `init` noted on it.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::bootstrap::daemon_admission_policy::daemon_admission_policy;
use crate::bootstrap::needs::{Confinement, Needs};
use crate::bootstrap::webhook::adopted_rules::{self, Adopting};
use crate::bootstrap::webhook::server_rules::{self, Given};
use crate::certificate::fingerprint;

/// The annotation with the digest of the rules that do not depend on the configuration.
pub(super) const REVISION: &str = "bursar.dev/revision";
/// The annotation with the digest of the spec that `init` wrote.
const DIGEST: &str = "bursar.dev/digest";

/// Adds both annotations to a manifest.
pub(in crate::bootstrap) fn note(manifest: &mut Value) {
    manifest["metadata"]["annotations"] = json!({REVISION: revision(), DIGEST: digest(&manifest["spec"])});
}

/// Returns the digest of the rules that do not depend on the configuration.
fn revision() -> String {
    let [policy, _] = daemon_admission_policy(&Needs::default(), &Confinement::default());
    let rules = server_rules::policies(&Given::default());
    let adopting = adopted_rules::manifests(&[Adopting::example()]);
    let specs: Vec<String> =
        std::iter::once(&policy).chain(&rules).chain(&adopting).map(|policy| digest(&policy["spec"])).collect();
    fingerprint(specs.concat().as_bytes())
}

pub(super) fn changed_since_noted(manifest: &Value, stored: &Value) -> Option<String> {
    let noted = |key: &str| stored["metadata"]["annotations"][key].as_str().unwrap_or_default();
    if noted(REVISION) != manifest["metadata"]["annotations"][REVISION].as_str().unwrap_or_default() {
        return Some("was made by another version of bursar".to_owned());
    }
    (noted(DIGEST) != digest(&stored["spec"])).then(|| "was changed since init made it".to_owned())
}

/// Returns the digest of a spec without the fields that the API server adds.
pub(super) fn digest(spec: &Value) -> String {
    fingerprint(meant(spec).to_string().as_bytes())
}

fn meant(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(meant).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| (key.clone(), meant(value)));
            Value::Object(fields.filter(|(key, value)| !is_empty(value) && !is_default(key, value)).collect())
        }
        other => other.clone(),
    }
}

/// Whether the value is the default that the API server fills in for this field.
fn is_default(key: &str, value: &Value) -> bool {
    matches!(
        (key, value.as_str()),
        ("matchPolicy", Some("Equivalent")) | ("scope", Some("*")) | ("reason", Some("Invalid"))
    )
}

/// Returns the path of the first field that differs between `manifest` and `stored`.
pub(super) fn difference(manifest: &Value, stored: &Value) -> Option<String> {
    let keys = ["spec", "webhooks"];
    keys.iter().find_map(|key| differs(&meant(&manifest[*key]), &meant(&stored[*key]), key))
}

fn differs(wanted: &Value, stored: &Value, path: &str) -> Option<String> {
    match (wanted, stored) {
        (Value::Object(wanted), Value::Object(stored)) => {
            let keys: BTreeSet<&String> = wanted.keys().chain(stored.keys()).collect();
            let field = |fields: &Map<String, Value>, key: &str| fields.get(key).cloned().unwrap_or_default();
            keys.into_iter().find_map(|key| differs(&field(wanted, key), &field(stored, key), &format!("{path}.{key}")))
        }
        (Value::Array(wanted), Value::Array(stored)) if wanted.len() == stored.len() => wanted
            .iter()
            .zip(stored)
            .enumerate()
            .find_map(|(at, (wanted, stored))| differs(wanted, stored, &format!("{path}[{at}]"))),
        _ if wanted == stored => None,
        _ => Some(path.to_owned()),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
