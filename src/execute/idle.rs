//! Warns the people of a namespace that it will be suspended, by an event, which `kubectl get events` shows.

use jiff::Timestamp;
use serde_json::json;

use super::StepError;
use super::apply::refused;
use super::reap::{event, key};
use super::request::ApiServer;
use crate::identity::NamespaceName;

/// The event is about the quota, which is Bursar's. An event about the namespace itself would be in `default`, where
/// tenants do not look.
pub async fn warn(
    server: &ApiServer,
    namespace: &NamespaceName,
    (idle_since, until): (Timestamp, Timestamp),
    now: Timestamp,
) -> Result<(), StepError> {
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "namespace": namespace, "name": "bursar"});
    let message = format!(
        "Nothing has run in this namespace since {idle_since:.0}. It will be suspended {until:.0} unless something runs \
         before."
    );
    let told = event(server, namespace, ("bursar-idle-", "Idle"), &quota, &message, now);
    told.await.map_err(|error| refused(&key(server, "Event", namespace, "bursar-idle"), error))
}
