//! Reads how recent the state of a server is: `contextCSN`, `highestCommittedUSN`, or the times at which its entries
//! changed.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bursar_core::identity::DirectoryId;
use bursar_core::snapshot::dn::Dn;
use bursar_core::snapshot::freshness::{Marks, Stamp, WITNESSES, newest};
use futures::FutureExt as _;
use ldap3::{Ldap, Scope, SearchOptions, SearchResult};
use tokio::time::timeout;

use super::active_directory::Controller;
use super::connection::{ReadError, search};
use crate::entry::assemble::KINDS;
use crate::entry::id_of;
use crate::entry::raw::RawEntry;
use crate::source::{LdapConfig, SourceConfig};
use crate::sync::kept::ServerHistory;

/// The time of an entry's last change: OpenLDAP's attribute, and the one of other servers. `whenChanged` is not used,
/// because each domain controller has its own value.
pub(crate) const STAMPS: [&str; 2] = ["entryCSN", "modifyTimestamp"];
/// Returns the attributes with the time of the last change that are requested of each entry of `source`.
pub(super) fn stamps(source: &SourceConfig) -> impl Iterator<Item = String> {
    STAMPS.iter().filter(|_| !source.attributes.windows).map(|stamp| (*stamp).to_owned())
}

/// The newest changes of a database of OpenLDAP (RFC 4533 leaves the name to the server).
const CONTEXT_CSN: &str = "contextCSN";
/// The most entries of a search for an entry that a server must have.
const SOME: i32 = 50;

/// Reads the state of the server before the entries, so that the entries are at least as new. Malformed messages make
/// ldap3 panic; a panic becomes an error.
pub(super) async fn marks(ldap: &mut Ldap, config: &LdapConfig, source: &SourceConfig) -> Result<Marks, ReadError> {
    AssertUnwindSafe(shown(ldap, config, source)).catch_unwind().await.unwrap_or(Err(ReadError::Unparsable))
}

async fn shown(ldap: &mut Ldap, config: &LdapConfig, source: &SourceConfig) -> Result<Marks, ReadError> {
    let mut marks = Marks::default();
    if source.attributes.windows {
        if let Some(controller) = Controller::ask(ldap, config.timeout).await? {
            marks.counts.extend(controller.life.map(|life| (life, controller.usn)));
            marks.controller = Some(controller.service);
        }
        return Ok(marks);
    }
    for (context, suffix) in contexts(ldap, source, config.timeout).await? {
        let entries = found(ldap, &context, "(objectClass=*)", &[CONTEXT_CSN], config.timeout).await?;
        marks.changes.extend(entries.iter().flat_map(|entry| newest_changes(entry, &suffix)));
    }
    Ok(marks)
}

/// Returns the times in the `contextCSN` of the entry at `suffix`, by suffix and server id.
pub(crate) fn newest_changes<'e>(entry: &'e RawEntry, suffix: &'e Dn) -> impl Iterator<Item = (String, Stamp)> + 'e {
    let one = move |csn: &str| Some((format!("{} {}", suffix.canonical(), server_id(csn)?), Stamp::parse(csn)?));
    entry.texts(CONTEXT_CSN).filter_map(one)
}

/// Returns the databases of a server that hold a tree of `source`: their suffixes, as text and parsed.
pub(super) async fn contexts(
    ldap: &mut Ldap,
    source: &SourceConfig,
    limit: Duration,
) -> Result<Vec<(String, Dn)>, ReadError> {
    let bases: Vec<Dn> =
        KINDS.into_iter().filter_map(|kind| source.tree(kind)).map(|tree| Dn::parse(&tree.base)).collect();
    let root = found(ldap, "", "(objectClass=*)", &["namingContexts"], limit).await?;
    let all: BTreeSet<&str> = root.iter().flat_map(|root| root.texts("namingContexts")).collect();
    let all = all.into_iter().map(|context| (context.to_owned(), Dn::parse(context)));
    Ok(all.filter(|(_, suffix)| bases.iter().any(|base| base.is_within(suffix))).collect())
}

/// Whether a server has the known changes although it shows an older `contextCSN`, as `slapd` does after a crash: it
/// then shows the value of its last checkpoint. For each server id that is behind, the server must have an entry that
/// this id wrote at the known time or later.
pub(super) async fn has_newer_entries(
    ldap: &mut Ldap,
    config: &LdapConfig,
    known: &Marks,
    shown: &Marks,
) -> Result<bool, ReadError> {
    if known.counts.iter().any(|(id, count)| shown.counts.get(id).is_some_and(|has| has < count)) {
        return Ok(false);
    }
    for (key, stamp) in &known.changes {
        if !shown.changes.get(key).is_some_and(|has| has.is_before(*stamp)) {
            continue;
        }
        let Some((suffix, id)) = key.rsplit_once(' ') else { return Ok(false) };
        let filter = format!("(entryCSN>={stamp}#000000#{id}#000000)");
        let options = SearchOptions::new().sizelimit(SOME);
        let search = ldap.with_search_options(options).search(suffix, Scope::Subtree, &filter, vec!["entryCSN"]);
        let SearchResult(items, _) = timeout(config.timeout, search)
            .await
            .map_err(|_| ReadError::Timeout(config.timeout))?
            .map_err(ReadError::Lost)?;
        let mut has = false;
        for item in items.into_iter().filter(|item| !item.is_ref() && !item.is_intermediate()) {
            let is_late = |csn: &str| Stamp::parse(csn).is_some_and(|written| !written.is_before(*stamp));
            has |= raw_csn(item.0).is_some_and(|csn| server_id(&csn) == Some(id) && is_late(&csn));
        }
        if !has {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the whole `entryCSN` of an entry, because [`super::raw`] keeps only its time; `None` if the entry shows none.
fn raw_csn(entry: ldap3::asn1::StructureTag) -> Option<String> {
    let mut fields = entry.expect_constructed()?.into_iter().skip(1);
    let attribute = fields.next()?.expect_constructed()?.into_iter().next()?;
    let value = attribute.expect_constructed()?.into_iter().nth(1)?.expect_constructed()?.into_iter().next()?;
    String::from_utf8(value.expect_primitive()?).ok()
}

/// Returns the third part of a CSN such as `20261122100000.000000Z#000000#001#000000`.
fn server_id(csn: &str) -> Option<&str> {
    csn.split('#').nth(2)
}

/// Returns the times of the last change of the most recently changed `entries`, and of the entries that are already
/// known. Times in the future are not recorded, so they must not displace others.
pub(crate) fn witnesses<'a>(
    source: &SourceConfig,
    entries: impl Iterator<Item = &'a std::sync::Arc<RawEntry>>,
    history: &ServerHistory,
) -> BTreeMap<DirectoryId, Stamp> {
    let ServerHistory { marks: known, now, .. } = history;
    let mut stamped: Vec<(Stamp, &RawEntry)> = entries.filter_map(|entry| Some((entry.stamp?, &**entry))).collect();
    if WITNESSES < stamped.len() {
        let rank = |(stamp, _): &(Stamp, &RawEntry)| (!stamp.is_past(*now), std::cmp::Reverse(*stamp));
        stamped.select_nth_unstable_by_key(WITNESSES, rank);
    }
    let (newest, others) = stamped.split_at(WITNESSES.min(stamped.len()));
    let newest = newest.iter().filter_map(|(_, entry)| witness(source, entry));
    let others = others.iter().filter_map(|(_, entry)| witness(source, entry));
    newest.chain(others.filter(|(id, _)| known.entries.contains_key(id))).collect()
}

/// Returns the id of an entry and the time of its last change; `None` if it shows no time.
pub(super) fn witness(source: &SourceConfig, entry: &RawEntry) -> Option<(DirectoryId, Stamp)> {
    let stamp = entry.stamp?;
    let attribute = &source.attributes.id;
    Some((id_of(attribute, entry.values(attribute).next()?)?, stamp))
}

/// Returns the known times of last changes, updated by the entries `told` that the server reported. An entry whose time
/// went back is always contained, because it proves that the server is behind.
pub(super) fn witnesses_after(
    known: &BTreeMap<DirectoryId, Stamp>,
    told: impl Iterator<Item = (DirectoryId, Stamp)>,
) -> BTreeMap<DirectoryId, Stamp> {
    let mut after = known.clone();
    let mut older = BTreeMap::new();
    for (id, stamp) in told {
        if known.get(&id).is_some_and(|known| stamp.is_before(*known)) {
            older.insert(id.clone(), stamp);
        }
        after.insert(id, stamp);
    }
    let mut after = newest(after, WITNESSES);
    after.append(&mut older);
    after
}

/// Returns the entry at `base`, or an empty list if there is none or it is hidden.
async fn found(
    ldap: &mut Ldap,
    base: &str,
    filter: &str,
    attributes: &[&str],
    limit: Duration,
) -> Result<Vec<RawEntry>, ReadError> {
    match search(ldap, base, Scope::Base, filter, attributes, limit).await {
        Err(ReadError::Answer(why)) => {
            tracing::debug!(base, why, "the server does not show its replication state");
            Ok(Vec::new())
        }
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Preset;

    #[test]
    fn times_in_the_future_displace_no_others() {
        let source = SourceConfig::of_people(Preset::Rfc2307);
        let entry = |at: usize| {
            let id = format!("e{at}");
            let mut entry = RawEntry::from_texts("uid=a,dc=x", &[("entryUUID", id.as_str())]);
            entry.stamp = Stamp::parse(if at < WITNESSES { "20301121100000Z" } else { "20261121100000Z" });
            Arc::new(entry)
        };
        let entries: Vec<_> = (0..=WITNESSES).map(entry).collect();
        let shown = |now: &str| {
            let history = ServerHistory { now: now.parse().expect("the time is valid"), ..ServerHistory::default() };
            witnesses(&source, entries.iter(), &history)
        };
        let past = DirectoryId(format!("e{WITNESSES}"));
        assert!(shown("2026-11-21T11:00:00Z").contains_key(&past));
        assert!(!shown("2031-11-21T11:00:00Z").contains_key(&past), "the other entries are newer");
    }

    #[test]
    fn reported_entries_replace_the_known_times_and_an_older_time_stays() {
        let at = |second: usize| {
            Stamp::parse(&format!("2026112110{:02}{:02}Z", second / 60, second % 60)).expect("the text is a timestamp")
        };
        let id = |number: usize| DirectoryId(format!("e{number}"));
        let known: BTreeMap<_, _> = (0..WITNESSES).map(|number| (id(number), at(100 + number))).collect();
        let after = witnesses_after(&known, [(id(999), at(600)), (id(200), at(601))].into_iter());
        assert_eq!((after.len(), after[&id(999)], after[&id(200)]), (WITNESSES, at(600), at(601)));
        assert!(!after.contains_key(&id(0)), "the oldest time is dropped");
        let after = witnesses_after(&known, [(id(200), at(1))].into_iter());
        assert_eq!(after[&id(200)], at(1));
    }
}
