//! A body of the API server becomes a [`Review`], and a [`Decision`] the answer to it (Kubernetes,
//! `admission.k8s.io/v1`). PURE: no runtime, no client, no file system, no clock.
//!
//! Objects stay the JSON they came as: a field that this program does not know is neither lost nor mistaken for absent.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};

use super::decision::{Decision, MOST};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// One request that the API server asks about.
#[derive(Debug, Clone, PartialEq)]
pub struct Review {
    /// Of the review; the answer names it.
    pub uid: String,
    /// What is done.
    pub operation: Operation,
    /// API group of the resource; empty for the core.
    pub group: String,
    /// Version of the resource.
    pub version: String,
    /// `pods`.
    pub resource: String,
    /// `ephemeralcontainers`; empty for the resource itself.
    pub subresource: String,
    /// Empty where the name is still to be generated.
    pub name: String,
    /// Empty for what has none; a namespace has its own name here.
    pub namespace: String,
    /// Who asks.
    pub user: User,
    /// The object as it would be; absent for a deletion.
    pub object: Option<Value>,
    /// The object as it is; absent for a creation.
    pub old_object: Option<Value>,
    /// Nothing will be stored.
    pub dry_run: bool,
}

/// What is done to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `CREATE`.
    Create,
    /// `UPDATE`; a patch is one too.
    Update,
    /// `DELETE`.
    Delete,
    /// `CONNECT`: exec, attach, proxy. None of it is ours.
    Connect,
}

/// `request.userInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct User {
    /// Name.
    #[serde(default, rename = "username")]
    pub name: String,
    /// Groups.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// Why a body is no review. None of its content is in the text, so that it can be logged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// Not JSON, or a field has another type.
    #[error("the body is no AdmissionReview: wrong at line {line}, column {column}")]
    Unreadable {
        /// From 1; 0 where it is not one place.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// Another kind or version.
    #[error("the body is no {KIND} of {API_VERSION}")]
    Version,
    /// An operation that Kubernetes does not have.
    #[error("the review has an unknown operation")]
    Operation,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    operation: String,
    resource: Kind,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    user_info: User,
    #[serde(default)]
    object: Option<Value>,
    #[serde(default)]
    old_object: Option<Value>,
    #[serde(default)]
    dry_run: Option<bool>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    group: String,
    version: String,
    #[serde(rename = "resource")]
    plural: String,
}

impl Review {
    /// From the body of the API server's request.
    pub fn parse(body: &[u8]) -> Result<Self, ReviewError> {
        let body: Body = serde_json::from_slice(body)
            .map_err(|error| ReviewError::Unreadable { line: error.line(), column: error.column() })?;
        let request = match body.request {
            Some(request) if body.api_version == API_VERSION && body.kind == KIND => request,
            _ => return Err(ReviewError::Version),
        };
        let operation = match request.operation.as_str() {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            "DELETE" => Operation::Delete,
            "CONNECT" => Operation::Connect,
            _ => return Err(ReviewError::Operation),
        };
        Ok(Self {
            uid: request.uid,
            operation,
            group: request.resource.group,
            version: request.resource.version,
            resource: request.resource.plural,
            subresource: request.sub_resource.unwrap_or_default(),
            name: request.name.unwrap_or_default(),
            namespace: request.namespace.unwrap_or_default(),
            user: request.user_info,
            object: request.object,
            old_object: request.old_object,
            dry_run: request.dry_run.unwrap_or_default(),
        })
    }
}

/// The body that answers the review `uid`.
#[must_use]
pub fn answer(uid: &str, decision: &Decision) -> Value {
    let mut response = json!({"uid": uid, "allowed": decision.is_allowed()});
    if !decision.is_allowed() {
        response["status"] = json!({
            "status": "Failure",
            "reason": "Forbidden",
            "code": 403,
            "message": decision.message(),
        });
    } else if !decision.patch.is_empty() {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(BASE64.encode(json!(decision.patch).to_string()));
    }
    if !decision.warnings.is_empty() {
        response["warnings"] = decision.warnings.iter().take(MOST).map(ToString::to_string).collect();
    }
    if !decision.audit.is_empty() {
        response["auditAnnotations"] = json!(decision.audit_annotations());
    }
    json!({"apiVersion": API_VERSION, "kind": KIND, "response": response})
}
