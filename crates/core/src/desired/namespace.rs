//! The namespace of a tenant: its sealed identity, its class and its Pod Security level.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Place;
use crate::contract::exception::ExceptedRule;
use crate::contract::{self, Identity, POD_SECURITY_ENFORCE, Sealer, TenantState};
use crate::policy::PodSecurity;

/// Returns the manifest. The seal covers the generation, the state and the exceptions, so a change of any of them
/// changes the manifest.
#[must_use]
pub fn namespace(place: &Place<'_>, level: PodSecurity, exceptions: BTreeSet<ExceptedRule>, sealer: &Sealer) -> Value {
    let identity = Identity {
        cluster: place.cluster.clone(),
        namespace: place.namespace.clone(),
        id: place.account.id.clone(),
        directory_id: place.account.directory_id.clone(),
        account: place.account.account_name(),
        class: place.class.to_owned(),
        posix: place.account.posix.clone(),
        generation: place.generation,
        state: if place.suspended { TenantState::Suspended } else { TenantState::Active },
        exceptions,
    };
    let mut annotations = contract::annotate(&identity, sealer);
    annotations.extend(place.idle_until.map(|until| (contract::IDLE_UNTIL.to_owned(), format!("{until:.0}"))));
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": place.namespace,
            "labels": {
                contract::CLASS: place.class,
                POD_SECURITY_ENFORCE: level.as_str(),
                "pod-security.kubernetes.io/audit": level.as_str(),
                "pod-security.kubernetes.io/warn": level.as_str(),
            },
            "annotations": annotations,
        },
    })
}
