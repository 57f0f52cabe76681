//! Warns the people of a namespace that it will be suspended, by an event, which `kubectl get events` shows.

use jiff::Timestamp;
use serde_json::json;

use super::StepError;
use super::apply::refused;
use super::request::{ApiServer, Ask};
use crate::identity::NamespaceName;
use crate::kinds::{ObjectKey, ObjectKind, ObjectName};

/// The event is about the quota, which is Bursar's. An event about the namespace itself would be in `default`, where
/// tenants do not look.
pub async fn warn(
    server: &ApiServer,
    namespace: &NamespaceName,
    (idle_since, until): (Timestamp, Timestamp),
    now: Timestamp,
) -> Result<(), StepError> {
    let at = format!("{now:.0}");
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "bursar-idle-", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "ResourceQuota", "namespace": namespace, "name": "bursar"},
        "type": "Warning",
        "reason": "Idle",
        "message": format!(
            "Nothing has run in this namespace since {idle_since:.0}. It will be \
             suspended {until:.0} unless something runs before."
        ),
        "source": {"component": "bursar"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    });
    let key = ObjectKey::from(ObjectName {
        cluster: server.cluster.clone(),
        kind: ObjectKind::of("v1", "Event"),
        namespace: Some(namespace.to_string()),
        name: "bursar-idle".to_owned(),
    });
    let path = format!("/api/v1/namespaces/{namespace}/events");
    server.ask(&path, Ask::Create(&event)).await.map(drop).map_err(|error| refused(&key, error))
}
