//! Claims that several nodes write to, and that name no storage class, get the class that supports it.
//!
//! The API server's own plugin writes the cluster's default class before any webhook is asked. `managedFields` are made
//! before both and name the client that chose a class: a class that no manager claims was chosen by nobody.

use super::decision::{Decision, Finding, PatchOperation, Rule};
use super::json::{Malformed, at, field, list, object, quoted, text, texts};
use super::tenant::Tenant;
use super::value::Json;
use crate::contract::KEEP_STORAGE_CLASS;
use crate::rules::Mode;

/// Where a class stood before `spec.storageClassName`; the API server still reads it first.
const BETA: &str = "volume.beta.kubernetes.io/storage-class";

/// Looks at a new claim, and puts the class that it should have into the patch.
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
    let why = format!("claims of {} that do so get {}", tenant.who(), quoted(class));
    let remedy = format!("write spec.storageClassName: {class}");
    decision.found(rules.mode, Finding { rule: Rule::Claims, what, why, remedy });
    Ok(())
}

/// Whether nobody said what stores it.
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

/// Whether somebody wrote the class; where nothing tells, somebody did.
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
