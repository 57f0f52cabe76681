//! Reads all sources side by side and makes one [`DirectorySnapshot`] of their answers. Whatever happens to a source
//! is data in its own read; there is no error that could lose what another one answered.

use futures::future::join_all;
use tokio::time::Instant;

use super::assemble::{RawRead, assemble};
use super::entry::EntryRules;
use super::source::{SourceConfig, SourceKind};
use super::{DirectorySnapshot, SourceRead, ldap, ldif, merge};
use crate::policy::Policy;

/// One pass over `sources`, which are in their order of precedence.
pub async fn fetch(sources: &[SourceConfig], policy: &Policy) -> DirectorySnapshot {
    let rules = EntryRules::of(policy);
    let reads = join_all(sources.iter().map(|source| read(source, &rules))).await;
    merge::merge(reads, policy)
}

#[expect(clippy::disallowed_methods, reason = "measures how long a read took")]
async fn read(source: &SourceConfig, rules: &EntryRules) -> SourceRead {
    let begun = Instant::now();
    let raw: RawRead = match &source.kind {
        SourceKind::Ldap(config) => ldap::read(config, source).await,
        SourceKind::Ldif(config) => ldif::read(config, source).await,
    };
    let mut read = assemble(source, raw, rules);
    read.took = begun.elapsed();
    read
}
