//! Gives a namespace that others made a level of Pod Security, if it has none.

use serde_json::json;

use super::StepError;
use super::apply::refused;
use super::request::{ApiServer, Ask};
use crate::contract::POD_SECURITY_ENFORCE;
use crate::identity::NamespaceName;
use crate::kinds::ObjectKey;
use crate::policy::PodSecurity;

/// Applies the label alone, and never over somebody else's: a namespace that got a level meanwhile, or is another one or gone,
/// is left as it is (`false`).
pub async fn set(
    server: &ApiServer,
    namespace: &NamespaceName,
    uid: &str,
    level: PodSecurity,
) -> Result<bool, StepError> {
    let label = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": namespace, "uid": uid, "labels": {POD_SECURITY_ENFORCE: level.as_str()}},
    });
    match server.ask(&format!("/api/v1/namespaces/{namespace}"), Ask::ApplyUnowned(&label)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_other_uid() || error.code() == Some(404) => Ok(false),
        Err(error) => Err(refused(&ObjectKey::namespace(&server.cluster, namespace), error)),
    }
}
