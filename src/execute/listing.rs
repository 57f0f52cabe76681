//! Lists every object of a namespace, page by page, whatever its kind. A kind that cannot be listed is an error, never
//! an empty list.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::StepError;
use super::request::{ApiServer, Ask, RequestError};
use crate::archive::Listed;
use crate::identity::NamespaceName;
use crate::kinds::ServedKind;

/// How long to wait until a role binding or a new state of a namespace takes effect, which is when the API server's own
/// watch has seen it.
const IN_FORCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);

/// How much of each object is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedPart {
    /// The complete object.
    Whole,
    /// Only the metadata, so that no Secret is read.
    Metadata,
}

/// Returns the objects, each with the name under which its kind is listed. An object that several API groups show (an
/// Event) is returned once. Objects without a UID are computed on request (`PodMetrics`), and are left out.
pub async fn everything(
    server: &ApiServer,
    namespace: &NamespaceName,
    extent: ListedPart,
) -> Result<Vec<Listed>, StepError> {
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    for kind in kinds(server).await? {
        let group = kind.api_version.split_once('/').map(|(group, _)| format!(".{group}")).unwrap_or_default();
        let name = format!("{}{group}", kind.plural);
        for mut object in
            list(server, &kind, namespace, extent).await.map_err(|source| failed(server, &name, source))?
        {
            let Some(uid) = object["metadata"]["uid"].as_str() else { continue };
            if known.insert(uid.to_owned()) {
                // The API server omits both fields from the items of a list.
                object["apiVersion"] = Value::from(kind.api_version.clone());
                object["kind"] = Value::from(kind.kind.clone());
                found.push((name.clone(), object));
            }
        }
    }
    Ok(found)
}

fn failed(server: &ApiServer, what: &str, source: RequestError) -> StepError {
    StepError::Listing { cluster: server.cluster.clone(), what: what.to_owned(), source: Box::new(source) }
}

/// Repeats the request while the answer is `too_early`, because the API server's watches need a moment to see what was
/// written.
#[expect(clippy::disallowed_methods, reason = "bounds a wait")]
pub(super) async fn when_in_force<T, A: Future<Output = Result<T, RequestError>>>(
    too_early: impl Fn(&RequestError) -> bool,
    mut ask: impl FnMut() -> A,
) -> Result<T, RequestError> {
    let until = Instant::now() + IN_FORCE;
    loop {
        match ask().await {
            Err(error) if too_early(&error) && Instant::now() < until => tokio::time::sleep(AGAIN).await,
            answer => return answer,
        }
    }
}

async fn list(
    server: &ApiServer,
    kind: &ServedKind,
    namespace: &NamespaceName,
    extent: ListedPart,
) -> Result<Vec<Value>, RequestError> {
    let path = &kind.path(Some(namespace.as_str()), None);
    let listed = when_in_force(
        |error| error.code() == Some(403),
        || async move {
            match extent {
                ListedPart::Whole => server.list(path).await,
                ListedPart::Metadata => server.list_metadata(path).await,
            }
        },
    );
    match listed.await {
        // The kind was removed meanwhile, or cannot be listed.
        Err(error) if matches!(error.code(), Some(404 | 405)) => Ok(Vec::new()),
        // Objects that are computed on request have no metadata to list.
        Err(error) if extent == ListedPart::Metadata && error.code() == Some(406) => Ok(Vec::new()),
        listed => listed,
    }
}

/// Returns the namespaced kinds that can be listed, each in the version that its group prefers.
async fn kinds(server: &ApiServer) -> Result<Vec<ServedKind>, StepError> {
    let core = of_version(server, "v1").await?;
    let mut kinds: Vec<ServedKind> = core;
    let groups = server.ask("/apis", Ask::Get).await?.object;
    for group in groups["groups"].as_array().into_iter().flatten() {
        let version = |version: &Value| version["groupVersion"].as_str().map(str::to_owned);
        let versions = group["versions"].as_array().into_iter().flatten().filter_map(version);
        let mut seen = BTreeSet::new();
        let mut names = BTreeSet::new();
        for version in version(&group["preferredVersion"]).into_iter().chain(versions) {
            if seen.insert(version.clone()) {
                let of_version = of_version(server, &version).await?;
                kinds.extend(of_version.into_iter().filter(|kind| names.insert(kind.plural.clone())));
            }
        }
    }
    Ok(kinds)
}

async fn of_version(server: &ApiServer, version: &str) -> Result<Vec<ServedKind>, StepError> {
    let root = if version.contains('/') { "/apis" } else { "/api" };
    let answer = server.ask(&format!("{root}/{version}"), Ask::Get).await;
    let answer = answer.map_err(|source| failed(server, version, source))?.object;
    let resources = answer["resources"].as_array().into_iter().flatten().filter(|resource| {
        let verbs = resource["verbs"].as_array();
        resource["namespaced"] == true && verbs.is_some_and(|verbs| verbs.iter().any(|verb| verb == "list"))
    });
    let kind = |resource: &Value| {
        let text = |key: &str| resource[key].as_str().map(str::to_owned);
        let plural = text("name").filter(|name| !name.contains('/'))?;
        Some(ServedKind { api_version: version.to_owned(), kind: text("kind")?, plural, namespaced: true })
    };
    Ok(resources.filter_map(kind).collect())
}
