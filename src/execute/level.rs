//! Sets the Pod Security level of a foreign namespace that has none.

use serde_json::json;

use super::StepError;
use super::apply::refused;
use super::request::{ApiServer, Ask};
use crate::contract::POD_SECURITY_ENFORCE;
use crate::identity::NamespaceName;
use crate::kinds::ObjectKey;
use crate::policy::PodSecurity;

/// Applies only the label, and never over another value. If the namespace got a level meanwhile, was recreated or is
/// gone, it is left alone, and the result is `false`.
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
