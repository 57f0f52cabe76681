//! Reads one source in one pass: in full, or only the changes since the last pass. If something fails, the cache stays
//! as it was, and the pass is either partial or replaced by a full read.

use std::sync::Arc;

use bursar_core::snapshot::freshness::Marks;
use bursar_core::snapshot::{Completeness, SourceRead, Way};

use crate::entry::EntryRules;
use crate::entry::assemble::{RawRead, assemble};
use crate::source::{SourceConfig, SourceKind};
use crate::sync::difference::compare;
use crate::sync::kept::{Kept, ServerHistory, SyncCache};
use crate::{keycloak, ldap, ldif};

/// Reads all of `source`, without a cache.
pub(crate) async fn full(source: &SourceConfig, known: &ServerHistory) -> RawRead {
    match &source.kind {
        SourceKind::Ldap(config) => ldap::read(config, source, known).await,
        SourceKind::Ldif(config) => ldif::read(config, source, known).await,
        SourceKind::Keycloak(config) => keycloak::read(config, source).await,
    }
}

/// Returns the current entries: `kept` with the changes since then, or a first read if it is `None`. If the source
/// cannot report changes, returns `Err` with a full read.
async fn refresh(source: &SourceConfig, kept: Option<&Kept>, known: &ServerHistory) -> Result<Kept, RawRead> {
    match &source.kind {
        SourceKind::Ldap(config) => ldap::refresh(config, source, kept, known).await,
        SourceKind::Ldif(_) | SourceKind::Keycloak(_) => Err(full(source, known).await),
    }
}

/// Reads what changed since the last pass.
pub(crate) async fn changes(
    source: &SourceConfig,
    memory: &SyncCache,
    known: &ServerHistory,
    rules: &EntryRules,
) -> SourceRead {
    if let Some(kept) = memory.live(source) {
        let read = told(source, &kept, Way::Persist, rules);
        let shown = memory.last_shown(&source.name);
        let marks = shown.map(|shown| Marks { entries: read.marks.entries.clone(), ids: read.marks.ids, ..shown });
        let mut marks = marks.unwrap_or_else(|| read.marks.clone());
        // The pushed changes are newer than the state that the server showed last.
        for (key, shown) in &mut marks.changes {
            *shown = known.marks.changes.get(key).map_or(*shown, |known| (*known).max(*shown));
        }
        return SourceRead { marks, ..read };
    }
    match refresh(source, memory.of(source).as_deref(), known).await {
        Ok(kept) => {
            let read = told(source, &kept, Way::Incremental, rules);
            memory.keep(&source.name, Arc::new(kept));
            read
        }
        Err(raw) => assemble(source, raw, rules),
    }
}

/// Reads everything in full, and compares it with the entries that were read incrementally. If they differ, the cache
/// is dropped and the source is read in full again.
pub(crate) async fn whole(
    source: &SourceConfig,
    memory: &SyncCache,
    history: &ServerHistory,
    rules: &EntryRules,
) -> SourceRead {
    let known = memory.of(source);
    let way = if memory.live(source).is_some() { Way::Persist } else { Way::Incremental };
    let before = match refresh(source, known.as_deref(), history).await {
        Ok(kept) => kept,
        Err(raw) => return assemble(source, raw, rules),
    };
    let full = assemble(source, full(source, history).await, rules);
    if full.completeness != Completeness::Complete {
        return full;
    }
    let after = match refresh(source, Some(&before), history).await {
        Ok(kept) => kept,
        Err(raw) => return assemble(source, raw, rules),
    };
    let read = told(source, &after, way, rules);
    let found = compare(&told(source, &before, way, rules), &full, &read);
    if found.differences == 0 {
        memory.keep(&source.name, Arc::new(after));
        return SourceRead { compared: Some(found), ..read };
    }
    memory.forget(&source.name);
    let read = match refresh(source, None, history).await {
        Ok(kept) => {
            let read = told(source, &kept, Way::Incremental, rules);
            memory.keep(&source.name, Arc::new(kept));
            read
        }
        Err(_) => full,
    };
    SourceRead { compared: Some(found), ..read }
}

/// Interprets the entries of `kept`.
fn told(source: &SourceConfig, kept: &Kept, way: Way, rules: &EntryRules) -> SourceRead {
    let raw =
        RawRead { marks: Box::new(kept.marks.clone()), behind: kept.behind.clone(), ..kept.mirror.read(&kept.server) };
    SourceRead { way, ..assemble(source, raw, rules) }
}
