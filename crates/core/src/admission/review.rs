//! Parses the body of a request of the API server into a [`Review`], and writes the answer from a [`Decision`]
//! (Kubernetes, `admission.k8s.io/v1`).
//!
//! Objects are kept as the JSON that was sent, so fields that this program does not know are not lost. The body is
//! parsed once. If an object has a field twice, the body is refused.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::decision::{Decision, MOST};
use super::value::{Json, Text};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// One request that the API server asks about. Its texts borrow from the body where possible.
#[derive(Debug, Clone, PartialEq)]
pub struct Review<'a> {
    /// The uid of the review, which the answer repeats.
    pub uid: Cow<'a, str>,
    pub operation: Operation,
    /// The API group of the resource; empty for the core group.
    pub group: Cow<'a, str>,
    pub version: Cow<'a, str>,
    /// The plural of the kind, such as `pods`.
    pub resource: Cow<'a, str>,
    /// The subresource, such as `ephemeralcontainers`; empty for the resource itself.
    pub subresource: Cow<'a, str>,
    /// The name of the object; empty if the API server has yet to generate it.
    pub name: Cow<'a, str>,
    /// The namespace of the object; empty for cluster-scoped objects. If the object is a namespace, this is its own
    /// name.
    pub namespace: Cow<'a, str>,
    /// The client that sent the request.
    pub user: User<'a>,
    /// The object after the request; `None` for a deletion.
    pub object: Option<Json<'a>>,
    /// The object before the request; `None` for a creation.
    pub old_object: Option<Json<'a>>,
    /// Whether the request is a dry run, so that the API server stores nothing.
    pub dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `CREATE`.
    Create,
    /// `UPDATE`; a patch is an update too.
    Update,
    /// `DELETE`.
    Delete,
    /// `CONNECT`: exec, attach, proxy. Bursar has no rules for these.
    Connect,
}

/// `request.userInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct User<'a> {
    #[serde(default, borrow, rename = "username")]
    pub name: Cow<'a, str>,
    #[serde(default)]
    pub groups: Vec<String>,
}

/// Why a body is not a review. The text contains nothing of the body, so it can be logged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The body is not JSON, or a field has the wrong type.
    #[error("the body is not an AdmissionReview: it is wrong at line {line}, column {column}")]
    Unreadable {
        /// The line, counted from 1; 0 if the error has no position.
        line: usize,
        /// The column, counted from 1.
        column: usize,
    },
    /// The body has another kind or version.
    #[error("the body is not an {KIND} of {API_VERSION}")]
    Version,
    /// Kubernetes does not have this operation.
    #[error("the review has an unknown operation")]
    Operation,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(default, borrow)]
    api_version: Cow<'a, str>,
    #[serde(default, borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    operation: Cow<'a, str>,
    #[serde(borrow)]
    resource: GroupResource<'a>,
    #[serde(borrow)]
    sub_resource: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    namespace: Option<Text<'a>>,
    #[serde(default, borrow)]
    user_info: User<'a>,
    #[serde(borrow)]
    object: Option<Json<'a>>,
    #[serde(borrow)]
    old_object: Option<Json<'a>>,
    dry_run: Option<bool>,
}

#[derive(Deserialize)]
struct GroupResource<'a> {
    #[serde(default, borrow)]
    group: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(borrow, rename = "resource")]
    plural: Cow<'a, str>,
}

impl<'a> Review<'a> {
    /// Parses the body of a request of the API server.
    pub fn parse(body: &'a [u8]) -> Result<Self, ReviewError> {
        let text = std::str::from_utf8(body).map_err(|_| ReviewError::Unreadable { line: 0, column: 0 })?;
        let body: Body<'a> = serde_json::from_str(text)
            .map_err(|error| ReviewError::Unreadable { line: error.line(), column: error.column() })?;
        let request = match body.request {
            Some(request) if body.api_version == API_VERSION && body.kind == KIND => request,
            _ => return Err(ReviewError::Version),
        };
        let operation = match &*request.operation {
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
            subresource: request.sub_resource.unwrap_or_default().0,
            name: request.name.unwrap_or_default().0,
            namespace: request.namespace.unwrap_or_default().0,
            user: request.user_info,
            object: request.object,
            old_object: request.old_object,
            dry_run: request.dry_run.unwrap_or_default(),
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnsweredReview<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<DeniedStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
struct DeniedStatus {
    status: &'static str,
    reason: &'static str,
    code: u16,
    message: String,
}

/// Returns the body that answers the review `uid`.
///
/// # Panics
///
/// Never, because texts, lists and maps with text keys can always be written as JSON.
#[must_use]
pub fn answer(uid: &str, decision: &Decision) -> String {
    let allowed = decision.is_allowed();
    let refusal = || DeniedStatus { status: "Failure", reason: "Forbidden", code: 403, message: decision.message() };
    let patch = (allowed && !decision.patch.is_empty()).then(|| BASE64.encode(json(&decision.patch)));
    json(&AnsweredReview {
        api_version: API_VERSION,
        kind: KIND,
        response: Response {
            uid,
            allowed,
            status: (!allowed).then(refusal),
            patch_type: patch.as_ref().map(|_| "JSONPatch"),
            patch,
            warnings: decision.warnings.iter().take(MOST).map(ToString::to_string).collect(),
            audit_annotations: decision.audit_annotations(),
        },
    })
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts, lists and maps with text keys are JSON")
}
