//! Whether single accounts are there, which a read did not show: each server of the source that is not behind is asked for them
//! by their immutable ids, from the suffix.

use std::collections::BTreeMap;

use bursar_core::identity::DirectoryId;
use bursar_core::snapshot::proof::{Due, Proof};
use bursar_core::snapshot::{Completeness, DirectorySnapshot};
use futures::future::join_all;

use crate::fetch::Known;
use crate::source::{SourceConfig, SourceKind};
use crate::sync::kept::ServerHistory;
use crate::{keycloak, ldap};

/// Notes in `snapshot` what the servers of `sources` say of the accounts that are `due`. Files have no servers: what was read
/// of them is all that there is.
pub async fn confirm(
    sources: &[SourceConfig],
    known: &Known,
    due: &BTreeMap<String, Vec<Due>>,
    snapshot: &mut DirectorySnapshot,
) {
    let reads = snapshot.reads.iter_mut().filter(|read| read.completeness == Completeness::Complete);
    let asked = reads.filter_map(|read| {
        let source = sources.iter().find(|source| source.name == read.source)?;
        let due = due.get(&read.source).map_or(&[][..], Vec::as_slice);
        Some(async move {
            let history = ServerHistory::after(known.get(&source.name).cloned().unwrap_or_default());
            let answered = read.server.clone().unwrap_or_default();
            read.proofs = proofs(source, &history, due, &answered).await;
        })
    });
    join_all(asked).await;
}

async fn proofs(
    source: &SourceConfig,
    history: &ServerHistory,
    due: &[Due],
    answered: &str,
) -> Option<BTreeMap<DirectoryId, Proof>> {
    match &source.kind {
        SourceKind::Ldif(_) => None,
        _ if due.is_empty() => Some(BTreeMap::new()),
        SourceKind::Ldap(config) => Some(ldap::lookup::look_up(config, source, history, due, answered).await),
        SourceKind::Keycloak(config) => Some(keycloak::look_up(config, source, due).await),
    }
}
