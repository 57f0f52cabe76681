//! Sees to it that a revoked certificate is worth nothing: the API server is asked what its holder may do
//! (`SubjectAccessReview`) until it says nothing. A login attempt would prove no more, and needs the key.

use std::time::Duration;

use serde_json::{Value, json};

use super::StepError;
use super::request::{ApiServer, Ask};
use crate::identity::NamespaceName;

const PATH: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// RBAC follows a change of a binding within milliseconds (it watches them).
const WITHIN: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);

/// What every role that is worth having allows one of: verb, API group, resource.
const PROBES: &[(&str, &str, &str)] =
    &[("get", "", "pods"), ("create", "", "pods"), ("get", "", "secrets"), ("get", "apps", "deployments")];
/// The same for admins, whom a role may let become somebody else.
const ADMIN_PROBES: &[(&str, &str, &str)] =
    &[("get", "", "pods"), ("get", "", "namespaces"), ("impersonate", "", "users")];

/// Returns when nothing is allowed to `user` with exactly these groups: in its namespace, or in the whole cluster where it
/// has none. What everybody may do who is authenticated is not asked for.
///
/// # Errors
/// [`StepError::StillAllowed`] with what the API server allows, and by which binding.
pub async fn refused(
    server: &ApiServer,
    user: &str,
    groups: &[String],
    namespace: Option<&NamespaceName>,
) -> Result<(), StepError> {
    let probes = if namespace.is_some() { PROBES } else { ADMIN_PROBES };
    for (verb, group, resource) in probes {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user,
                "groups": groups,
                "resourceAttributes": {"namespace": namespace, "verb": verb, "group": group, "resource": resource},
            },
        });
        let mut why = String::new();
        let denied = async {
            while let Some(allowed) = allowed(server, &review).await? {
                why = allowed;
                tokio::time::sleep(AGAIN).await;
            }
            Ok::<(), StepError>(())
        };
        let asked = tokio::time::timeout(WITHIN, denied).await;
        let Ok(answer) = asked else {
            let what = format!("{verb} {resource}");
            return Err(StepError::StillAllowed { user: user.to_owned(), what, why });
        };
        answer?;
    }
    Ok(())
}

/// By what it is allowed.
async fn allowed(server: &ApiServer, review: &Value) -> Result<Option<String>, StepError> {
    let status = server.ask(PATH, Ask::Create(review)).await?.object["status"].take();
    let why = status["reason"].as_str().unwrap_or_default().to_owned();
    Ok((status["allowed"] == true).then_some(why))
}
