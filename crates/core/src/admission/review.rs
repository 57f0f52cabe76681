//! A body of the API server becomes a [`Review`], and a [`Decision`] the answer to it (Kubernetes,
//! `admission.k8s.io/v1`).
//!
//! Objects stay the JSON they came as: a field that this program does not know is neither lost nor mistaken for absent. The
//! body is read once, and what has a field twice is no review.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::decision::{Decision, MOST};
use super::value::{Json, Text};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// One request that the API server asks about, as far as possible where its body is.
#[derive(Debug, Clone, PartialEq)]
pub struct Review<'a> {
    /// uid of the review; the answer names it.
    pub uid: Cow<'a, str>,
    /// What is done.
    pub operation: Operation,
    /// API group of the resource; empty for the core.
    pub group: Cow<'a, str>,
    /// Version of the resource.
    pub version: Cow<'a, str>,
    /// `pods`.
    pub resource: Cow<'a, str>,
    /// `ephemeralcontainers`; empty for the resource itself.
    pub subresource: Cow<'a, str>,
    /// Empty where the name is still to be generated.
    pub name: Cow<'a, str>,
    /// Empty for what has none; a namespace has its own name here.
    pub namespace: Cow<'a, str>,
    /// Who asks.
    pub user: User<'a>,
    /// The object as it would be; absent for a deletion.
    pub object: Option<Json<'a>>,
    /// The object as it is; absent for a creation.
    pub old_object: Option<Json<'a>>,
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
pub struct User<'a> {
    /// Name.
    #[serde(default, borrow, rename = "username")]
    pub name: Cow<'a, str>,
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
    resource: Kind<'a>,
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
struct Kind<'a> {
    #[serde(default, borrow)]
    group: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(borrow, rename = "resource")]
    plural: Cow<'a, str>,
}

impl<'a> Review<'a> {
    /// From the body of the API server's request.
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
struct Answer<'a> {
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
    status: Option<Refusal>,
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
struct Refusal {
    status: &'static str,
    reason: &'static str,
    code: u16,
    message: String,
}

/// The body that answers the review `uid`.
///
/// # Panics
///
/// Never: texts, lists and maps with text keys are JSON.
#[must_use]
pub fn answer(uid: &str, decision: &Decision) -> String {
    let allowed = decision.is_allowed();
    let refusal = || Refusal { status: "Failure", reason: "Forbidden", code: 403, message: decision.message() };
    let patch = (allowed && !decision.patch.is_empty()).then(|| BASE64.encode(json(&decision.patch)));
    json(&Answer {
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
