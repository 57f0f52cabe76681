//! Removes access to a suspended namespace that does not use a credential from Bursar. Deletes Secrets of type
//! `service-account-token` without reading them. Deletes the default service account; this invalidates the tokens of
//! pods. Then lists the changes in the namespace from the metadata alone.

use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::listing::{ListedPart, when_in_force};
use super::request::{ApiAnswer, ApiServer, Ask, RequestError};
use super::tenant::{Done, TenantExecution};
use super::{ClusterEffects, StepError};
use crate::archive::Listed;
use crate::identity::NamespaceName;
use crate::inventory::Touched;
use crate::packed_text::UuidText;

/// The type of Secrets that Kubernetes fills with a token of a service account.
pub const TOKEN_SECRET: &str = "kubernetes.io/service-account-token";
/// The service account of pods that name none. Its controller recreates it.
pub const DEFAULT_ACCOUNT: &str = "default";

impl TenantExecution<'_> {
    /// Carries out the eviction; see the module.
    pub(super) async fn evict(
        &self,
        effects: &ClusterEffects,
        namespace: &NamespaceName,
        since: Option<Timestamp>,
        done: &mut Done,
    ) -> Result<(), StepError> {
        let server = &effects.server;
        let failed = |source| {
            let (cluster, source) = (self.cluster.clone(), Box::new(source));
            StepError::Eviction { cluster, namespace: namespace.clone(), source }
        };
        let (core, by_type) = (format!("/api/v1/namespaces/{namespace}"), format!("fieldSelector=type={TOKEN_SECRET}"));
        let path = format!("{core}/secrets");
        let removing = when_suspended(server, &path, Ask::DeleteSelected { selector: &by_type });
        let removed = self.with_archive_role(effects, namespace, done, removing).await?;
        let path = format!("{core}/serviceaccounts/{DEFAULT_ACCOUNT}");
        match server.ask(&path, Ask::Get).await {
            Ok(found) => {
                let uid = found.object["metadata"]["uid"].as_str().unwrap_or_default();
                match when_suspended(server, &path, Ask::Delete { uid }).await {
                    Err(error) if error.code() != Some(404) && !error.is_other_uid() => return Err(failed(error)),
                    // Not an error on 404 or another uid: the service account was already deleted or replaced, so its
                    // old tokens are invalid.
                    _ => {}
                }
            }
            Err(error) if error.code() == Some(404) => {}
            Err(error) => return Err(failed(error)),
        }
        // This error is returned only after the service account is deleted. A tenant can cause the error, and would
        // otherwise keep the tokens of pods.
        let removed = removed.map_err(failed)?.object;
        let items = removed["items"].as_array().into_iter().flatten();
        let secrets: Vec<&str> = items.filter_map(|secret| secret["metadata"]["name"].as_str()).collect();
        let generation = self.account.generation;
        let mut detail = json!({"namespace": namespace, "generation": generation, "secrets": secrets});
        // Recorded before the listing, which may fail: the names are kept nowhere else.
        done.events.push(self.event("evicted", self.cause().1, detail.clone()));
        if let Some(since) = since {
            let changed =
                touched(&self.listed(effects, namespace, ListedPart::Metadata, done).await?, since, &self.ours());
            detail["secrets"] = json!([]);
            detail["since"] = json!(since);
            detail["changed"] = json!(changed);
            done.events.push(self.event("evicted", self.cause().1, detail));
        }
        Ok(())
    }

    /// Returns the uids of objects that Bursar made or stopped for the account. In these, a `managedFields` entry of
    /// Bursar is expected.
    fn ours(&self) -> HashSet<UuidText> {
        let (ledger, id) = (self.run.ledger, &self.account.id);
        let made =
            ledger.objects.iter().filter(|(_, record)| record.account == *id).map(|(_, record)| record.uid.clone());
        let stopped =
            ledger.stopped.iter().filter(|((whose, _), _)| whose == id).map(|(_, stopped)| (&*stopped.uid).into());
        made.chain(stopped).collect()
    }
}

/// Repeats the request until admission knows that the namespace is suspended: only while the answer is 403 or 422, and
/// at most as long as [`when_in_force`] waits.
async fn when_suspended(server: &ApiServer, path: &str, ask: Ask<'_>) -> Result<ApiAnswer, RequestError> {
    let too_early = |error: &RequestError| matches!(error.code(), Some(403 | 422)) && !error.is_other_uid();
    when_in_force(too_early, || server.ask(path, ask)).await
}

/// Returns the objects that somebody other than Bursar changed or created since that time. A writer chooses its name in
/// `managedFields` and may empty the field, so a new object is always listed, unless it is Bursar's own.
fn touched(listed: &[Listed], since: Timestamp, ours: &HashSet<UuidText>) -> BTreeSet<Touched> {
    let of_object = |(kind, object): &Listed| {
        let metadata = &object["metadata"];
        let name = format!("{kind}/{}", metadata["name"].as_str().unwrap_or_default());
        let is_ours = metadata["uid"].as_str().is_some_and(|uid| ours.contains(&uid.into()));
        let at = |time: &Value| time.as_str()?.parse::<Timestamp>().ok().filter(|at| *at >= since);
        let touched = |entry: &Value| {
            let by = entry["manager"].as_str().unwrap_or_default();
            let told = !(is_ours && by == "bursar");
            at(&entry["time"]).filter(|_| told).map(|at| Touched { at, object: name.clone(), by: by.to_owned() })
        };
        let mut all: Vec<Touched> =
            metadata["managedFields"].as_array().into_iter().flatten().filter_map(touched).collect();
        if let (true, false, Some(at)) = (all.is_empty(), is_ours, at(&metadata["creationTimestamp"])) {
            all.push(Touched { at, object: name.clone(), by: "unknown".to_owned() });
        }
        all
    };
    listed.iter().flat_map(of_object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_others_since_a_time_are_listed_by_the_metadata() {
        let entry = |by: &str, time: &str| json!({"manager": by, "time": time});
        let listed: Vec<Listed> = vec![
            (
                "cronjobs.batch".to_owned(),
                json!({"metadata": {"name": "miner", "uid": "m", "managedFields": [
                    entry("kubectl-create", "2026-11-20T09:00:00Z"),
                ]}}),
            ),
            (
                "cronjobs.batch".to_owned(),
                json!({"metadata": {"name": "ours", "uid": "o", "creationTimestamp": "2026-11-20T09:00:00Z",
                    "managedFields": [entry("bursar", "2026-11-21T09:00:00Z")]}}),
            ),
            (
                "cronjobs.batch".to_owned(),
                json!({"metadata": {"name": "pretends", "uid": "p",
                    "managedFields": [entry("bursar", "2026-11-21T09:00:00Z")]}}),
            ),
            (
                "secrets".to_owned(),
                json!({"metadata": {"name": "emptied", "uid": "e", "creationTimestamp": "2026-11-20T09:00:00Z"}}),
            ),
            (
                "deployments.apps".to_owned(),
                json!({"metadata": {"name": "web", "managedFields": [entry("helm", "2026-11-01T09:00:00Z")]}}),
            ),
        ];
        let since = "2026-11-20T08:00:00Z".parse().expect("the text is a time");
        let found = touched(&listed, since, &HashSet::from(["o".into()]));
        let found: BTreeSet<(&str, &str)> = found.iter().map(|it| (it.object.as_str(), it.by.as_str())).collect();
        let expected = [
            ("cronjobs.batch/miner", "kubectl-create"),
            ("cronjobs.batch/pretends", "bursar"),
            ("secrets/emptied", "unknown"),
        ];
        assert_eq!(found, expected.into());
    }
}
