//! Looks up single accounts that a read did not show. Each server of the source that is not behind is asked for them by
//! their immutable ids, beneath the whole suffix.

use std::collections::BTreeMap;

use bursar_core::identity::DirectoryId;
use bursar_core::snapshot::proof::{Due, Proof};
use bursar_core::snapshot::{Completeness, DirectorySnapshot};
use futures::future::join_all;
use tokio::time::timeout;

use crate::fetch::{Known, Pass, apart, servers};
use crate::source::{SourceConfig, SourceKind};
use crate::sync::kept::ServerHistory;
use crate::{keycloak, ldap};

/// Records in `snapshot` what the servers of `sources` answer about the accounts that are `due`. LDIF sources have no
/// servers, so their reads get no proofs. If a source does not answer within its deadline, it proves nothing.
pub async fn confirm(
    sources: &[SourceConfig],
    pass: &Pass,
    known: &Known,
    due: &BTreeMap<String, Vec<Due>>,
    snapshot: &mut DirectorySnapshot,
) {
    let reads = snapshot.reads.iter_mut().filter(|read| read.completeness == Completeness::Complete);
    let asked = reads.filter_map(|read| {
        let source = sources.iter().find(|source| source.name == read.source)?;
        let due = due.get(&read.source).cloned().unwrap_or_default();
        Some(async move {
            let answered = read.server.clone().unwrap_or_default();
            read.proofs = look_up(source, pass, known, due, answered).await;
        })
    });
    join_all(asked).await;
}

/// Returns what the servers of `source` answer about the accounts that are `due`; `None` if the source has no servers.
/// The server that `answered` the read is preferred among equally fresh servers. If the future is dropped, the look-up
/// ends.
pub async fn look_up(
    source: &SourceConfig,
    pass: &Pass,
    known: &Known,
    due: Vec<Due>,
    answered: String,
) -> Option<BTreeMap<DirectoryId, Proof>> {
    let (source, history) = (source.clone(), servers(source, pass, known));
    apart(history.counters.clone(), async move || proofs(&source, &history, &due, &answered).await).await
}

/// Returns `None` for LDIF files, because they have no servers.
async fn proofs(
    source: &SourceConfig,
    history: &ServerHistory,
    due: &[Due],
    answered: &str,
) -> Option<BTreeMap<DirectoryId, Proof>> {
    let asking = async {
        match &source.kind {
            SourceKind::Ldif(_) => None,
            _ if due.is_empty() => Some(BTreeMap::new()),
            SourceKind::Ldap(config) => Some(ldap::lookup::look_up(config, source, history, due, answered).await),
            SourceKind::Keycloak(config) => Some(keycloak::look_up(config, source, due).await),
        }
    };
    timeout(source.deadline(), asking).await.unwrap_or_else(|_| {
        let deadline = humantime::format_duration(source.deadline()).to_string();
        tracing::warn!(source = source.name, deadline, "absent accounts were not looked up in time");
        Some(BTreeMap::new())
    })
}
