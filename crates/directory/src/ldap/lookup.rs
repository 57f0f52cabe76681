//! Looks up single entries by their immutable ids, on every server of a source that is not behind.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use bursar_core::errors::chain;
use bursar_core::identity::{AccountKind, DirectoryId};
use bursar_core::snapshot::freshness::Stamp;
use bursar_core::snapshot::proof::{Due, EntryPlace, Proof};
use ldap3::{Ldap, Scope, SearchResult, ldap_escape};
use tokio::time::timeout;

use super::connection::{Connection, ReadError, meaning};
use super::freshness::contexts;
use super::moved::escaped;
use super::raw;
use super::search::Search;
use crate::entry::raw::RawEntry;
use crate::entry::{id_of, is_guid, windows};
use crate::progress;
use crate::source::{LdapConfig, SourceConfig};
use crate::sync::kept::ServerHistory;

/// Entries that are requested in one search. An id takes about 60 bytes of the filter.
const AT_ONCE: usize = 100;

/// The answer of one server.
struct ServerAnswer {
    /// The time of the newest change that the server has.
    newest: Option<Stamp>,
    answered: bool,
    server: String,
    places: BTreeMap<DirectoryId, EntryPlace>,
}

/// Returns each server's answer about the accounts that are `due`. The server with the newest changes comes first; if
/// several are equal, the server that `answered` the read comes first.
pub(crate) async fn look_up(
    config: &LdapConfig,
    source: &SourceConfig,
    history: &ServerHistory,
    due: &[Due],
    answered: &str,
) -> BTreeMap<DirectoryId, Proof> {
    let mut servers: Vec<ServerAnswer> = Vec::new();
    let mut search = Search::new(history);
    while let Ok(mut connection) = search.open(config, source).await {
        let server = connection.server.clone();
        if servers.iter().any(|known| known.server == server) {
            continue;
        }
        match places(&mut connection, config, source, due).await {
            Ok(places) => {
                let newest = connection.marks.changes.values().max().copied();
                servers.push(ServerAnswer { newest, answered: server == answered, server, places });
            }
            Err(error) => {
                let why = chain(&connection.diagnose(error).await);
                tracing::warn!(source = source.name, server, why, "absent accounts could not be looked up");
            }
        }
    }
    servers.sort_by_key(|one| Reverse((one.newest, one.answered)));
    let mut proofs: BTreeMap<DirectoryId, Proof> = BTreeMap::new();
    for ServerAnswer { server, places, .. } in servers {
        for Due { id, .. } in due {
            let place = places.get(id).cloned().unwrap_or(EntryPlace::Nowhere);
            proofs.entry(id.clone()).or_default().servers.push((server.clone(), place));
        }
    }
    proofs
}

/// Returns where one server has the entries. If an entry is not in the map, the server does not have it.
async fn places(
    connection: &mut Connection,
    config: &LdapConfig,
    source: &SourceConfig,
    due: &[Due],
) -> Result<BTreeMap<DirectoryId, EntryPlace>, ReadError> {
    let limit = config.timeout;
    let mut places = BTreeMap::new();
    let suffixes: Vec<String> =
        contexts(&mut connection.ldap, source, limit).await?.into_iter().map(|(context, _)| context).collect();
    // A server that does not show its suffixes holds at least the bases.
    let bases = due.iter().filter_map(|due| Some(source.tree(due.kind)?.base.clone()));
    let suffixes: BTreeSet<String> = if suffixes.is_empty() { bases.collect() } else { suffixes.into_iter().collect() };
    for some in due.chunks(AT_ONCE) {
        let ids = any_of(source, some);
        for suffix in &suffixes {
            let found = match search(&mut connection.ldap, source, suffix, &ids, limit).await {
                // The bind account is not allowed to search this suffix, so an entry that was moved there counts as
                // gone. Only the searches of the bases must succeed.
                Err(ReadError::Answer(why)) => {
                    tracing::debug!(source = source.name, suffix, why, "not searched for absent accounts");
                    Vec::new()
                }
                found => found?,
            };
            for entry in found {
                if let Some(id) = id_in(source, &entry) {
                    places.insert(id, EntryPlace::Outside { dn: entry.dn });
                }
            }
        }
        let kinds: BTreeSet<AccountKind> = some.iter().map(|due| due.kind).collect();
        for tree in kinds.into_iter().filter_map(|kind| source.tree(kind)) {
            let filter = format!("(&{}{ids})", parenthesized(&tree.filter));
            for entry in search(&mut connection.ldap, source, &tree.base, &filter, limit).await? {
                if let Some(id) = id_in(source, &entry) {
                    places.insert(id, EntryPlace::Inside { dn: entry.dn });
                }
            }
        }
    }
    Ok(places)
}

fn any_of(source: &SourceConfig, due: &[Due]) -> String {
    let attribute = &source.attributes.id;
    let mut any = "(|".to_owned();
    for Due { id, .. } in due {
        let guid = windows::guid_bytes(&id.0).filter(|_| is_guid(attribute)).map(Vec::from);
        if guid.is_none() {
            let _ = write!(any, "({attribute}={})", ldap_escape(id.0.as_str()));
        }
        // An id in hex may stand for bytes, or be the text that the directory has.
        if let Some(bytes) = guid.or_else(|| hex::decode(&id.0).ok()) {
            let _ = write!(any, "({attribute}={})", escaped(&bytes));
        }
    }
    any + ")"
}

fn id_in(source: &SourceConfig, entry: &RawEntry) -> Option<DirectoryId> {
    let attribute = &source.attributes.id;
    id_of(attribute, entry.values(attribute).next()?)
}

fn parenthesized(filter: &str) -> String {
    if filter.starts_with('(') { filter.to_owned() } else { format!("({filter})") }
}

async fn search(
    ldap: &mut Ldap,
    source: &SourceConfig,
    base: &str,
    filter: &str,
    limit: Duration,
) -> Result<Vec<RawEntry>, ReadError> {
    let asking = ldap.search(base, Scope::Subtree, filter, vec![source.attributes.id.as_str()]);
    let SearchResult(items, answer) =
        timeout(limit, asking).await.map_err(|_| ReadError::Timeout(limit))?.map_err(ReadError::Lost)?;
    progress::page(0);
    if answer.rc != 0 {
        return Err(ReadError::Answer(meaning(&answer)));
    }
    let entries = items.into_iter().filter(|item| !item.is_ref() && !item.is_intermediate());
    entries.map(|item| raw(item.0, |_| ()).ok_or(ReadError::Unparsable)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Preset;

    fn source(id: &str) -> SourceConfig {
        let mut source = SourceConfig::of_people(Preset::Rfc2307);
        source.attributes.id = id.to_owned();
        source
    }

    /// An example of a binary id is the attribute `GUID` of eDirectory.
    #[test]
    fn an_entry_with_a_binary_id_is_searched_by_its_bytes_and_recognized() {
        let guid = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
        let bytes = windows::guid_bytes(guid).expect("the GUID is valid");
        for (attribute, value, id, filter) in [
            ("GUID", &[0xff, 0, 0x28][..], "ff0028", "(|(GUID=ff0028)(GUID=\\ff\\00\\28))"),
            ("entryUUID", b" A-1 ", "a-1", "(|(entryUUID=a-1))"),
            ("employeeNumber", b"12", "12", "(|(employeeNumber=12)(employeeNumber=\\12))"),
            (
                "objectGUID",
                &bytes,
                guid,
                "(|(objectGUID=\\ae\\4f\\1d\\f8\\ec\\7d\\d0\\11\\a7\\65\\00\\a0\\c9\\1e\\6b\\f6))",
            ),
        ] {
            let mut entry = RawEntry::new("uid=a,ou=people,dc=x".to_owned());
            entry.add(attribute.as_bytes(), value);
            let (source, id) = (source(attribute), DirectoryId(id.to_owned()));
            assert_eq!(id_in(&source, &entry).as_ref(), Some(&id));
            let due = Due { id, kind: AccountKind::User, dn: entry.dn };
            assert_eq!(any_of(&source, &[due]), filter);
            assert!(ldap3::parse_filter(filter).is_ok(), "{filter}");
        }
    }
}
