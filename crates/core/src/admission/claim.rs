//! Adds a storage class that supports several writers to each `ReadWriteMany` claim without a class.
//!
//! The API server fills in the cluster's default class before it calls webhooks, but records `managedFields` even
//! earlier. Therefore, if no field manager owns the class, the class is the default, and no client chose it.

use super::decision::{Decision, Finding, PatchOperation, Rule};
use super::json::{Malformed, at, field, list, object, quoted, text, texts};
use super::tenant::Tenant;
use super::value::Json;
use crate::contract::KEEP_STORAGE_CLASS;
use crate::rules::Mode;

/// The annotation that named the class before `spec.storageClassName` existed. The API server still reads it first.
const BETA: &str = "volume.beta.kubernetes.io/storage-class";

/// Checks a new claim. If no client chose its storage class, adds the configured class to the patch.
pub(super) fn check(claim: &Json<'_>, tenant: &Tenant<'_>, decision: &mut Decision) -> Result<(), Malformed> {
    let rules = &tenant.rules.claims;
    let (Some(class), false) = (&rules.storage_class, rules.mode == Mode::Off) else { return Ok(()) };
    if !is_open(claim)? || text(&claim["spec"], "storageClassName")? == class {
        return Ok(());
    }
    if rules.mode == Mode::Enforce {
        let op = if claim["spec"].get("storageClassName").is_some() { "replace" } else { "add" };
        let path = "/spec/storageClassName".to_owned();
        decision.patch.push(PatchOperation { op, path, value: class.as_str().into() });
        return Ok(());
    }
    let what = "the claim is for several nodes and names no storage class".to_owned();
    let why = format!("such claims of {} get {}", tenant.who(), quoted(class));
    let remedy = format!("write spec.storageClassName: {class}");
    decision.found(rules.mode, Finding { rule: Rule::Claims, what, why, remedy });
    Ok(())
}

/// Whether the claim is `ReadWriteMany`, and nobody chose a storage class or a volume for it.
fn is_open(claim: &Json<'_>) -> Result<bool, Malformed> {
    let spec = field(claim, "spec").ok_or_else(|| Malformed("spec is missing".to_owned()))?;
    let is_kept = at(claim, &["metadata", "labels", KEEP_STORAGE_CLASS]).and_then(Json::as_str) == Some("true");
    let is_beta = at(claim, &["metadata", "annotations", BETA]).is_some();
    if is_kept || is_beta || !text(spec, "volumeName")?.is_empty() {
        return Ok(false);
    }
    if !texts(spec, "accessModes")?.contains(&"ReadWriteMany") {
        return Ok(false);
    }
    match text(spec, "storageClassName")? {
        "" => Ok(field(spec, "storageClassName").is_none()),
        _ => Ok(!is_chosen(claim)?),
    }
}

/// Whether a client chose the class. Returns true if `managedFields` are absent or empty.
fn is_chosen(claim: &Json<'_>) -> Result<bool, Malformed> {
    let managers = object(claim, "metadata")?.and_then(|metadata| metadata.get("managedFields"));
    let Some(Json::Unread(managers)) = managers else { return Ok(true) };
    let unreadable = |_| Malformed("managedFields cannot be read".to_owned());
    let metadata = Json::object([("managedFields", Json::read(managers).map_err(unreadable)?)]);
    let managers = list(&metadata, "managedFields")?;
    for manager in managers {
        if let Some(fields) = field(manager, "fieldsV1")
            && let Some(spec) = object(fields, "f:spec")?
            && spec.contains_key("f:storageClassName")
        {
            return Ok(true);
        }
    }
    Ok(managers.is_empty())
}
