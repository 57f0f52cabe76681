//! Reads entries from an LDAP server: one connection for a pass, and each tree in pages.
//!
//! Each failure becomes a reason in [`RawRead::problems`] that names the server. Entries that were read before the
//! failure are returned too. This module does not interpret entries, and never writes to the directory.

mod active_directory;
mod connection;
mod dirsync;
pub mod follow;
pub(crate) mod freshness;
pub mod lookup;
mod moved;
mod new_dns;
pub mod range;
pub mod refusals;
mod search;
mod service;
mod syncrepl;

use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bursar_core::errors::chain;
use bursar_core::identity::AccountKind;
use bursar_core::snapshot::Way;
use bursar_core::snapshot::freshness::Stamp;
use futures::FutureExt as _;
use ldap3::asn1::StructureTag;
use ldap3::controls::{Control, ControlType, PagedResults};
use ldap3::{Ldap, LdapResult, ResultEntry, Scope, SearchStream, parse_refs};
use tokio::time::timeout;

use self::connection::{Connection, meaning};
pub use self::connection::{ReadError, words};
use self::freshness::{STAMPS, stamps, witnesses};
use self::range::Part;
use self::search::Search;
use crate::entry::assemble::{KINDS, RawRead, RawTree};
use crate::entry::raw::RawEntry;
use crate::entry::windows::is_of_no_people;
use crate::progress;
use crate::source::{LdapConfig, ServerUrl, SourceConfig, Tree};
use crate::sync::kept::{Kept, ServerHistory};

/// How long to let entries accumulate before they are taken. A server sends each entry separately, and waking up for an
/// entry takes longer than reading it.
const COALESCE: Duration = Duration::from_micros(250);
/// The number of consecutive pages without entries after which a read fails, because the server might never finish.
/// Access rules that hide entries cause a few such pages.
const EMPTY_PAGES: u32 = 100;

/// Returns the servers of `config`. A name with SRV records is replaced by the targets of the records; if none are
/// found, it is left out.
pub async fn servers(config: &LdapConfig) -> Vec<ServerUrl> {
    service::servers(config, &mut Vec::new()).await
}

/// Reads all trees of `source` from the first server that accepts the bind account and is not behind the known state.
pub async fn read(config: &LdapConfig, source: &SourceConfig, history: &ServerHistory) -> RawRead {
    let mut search = Search::new(history);
    loop {
        let raw = match search.open(config, source).await {
            Ok(connection) => read_all(connection, config, source, history).await,
            Err(raw) => return raw,
        };
        match search.judge(raw) {
            ControlFlow::Break(raw) => return raw,
            ControlFlow::Continue(()) => {}
        }
    }
}

/// Returns all entries of `source` as they are now: `kept` with the changes since then, or a first read if it is
/// `None`. Returns `Err` with a full read if the server cannot report changes, and with an incomplete read if the read
/// failed.
pub(super) async fn refresh(
    config: &LdapConfig,
    source: &SourceConfig,
    kept: Option<&Kept>,
    history: &ServerHistory,
) -> Result<Kept, RawRead> {
    if config.way == Way::Full || !(source.attributes.windows || source.tells_changes()) {
        return Err(read(config, source, history).await);
    }
    let mut search = Search::new(history);
    loop {
        let connection = search.open(config, source).await?;
        let told = if source.attributes.windows {
            active_directory::refresh(&mut search, connection, config, source, kept, history).await
        } else {
            syncrepl::refresh(connection, config, source, kept, history).await
        };
        match told {
            Ok(mut kept) => match search.judge_marks(&kept.server, &kept.marks) {
                ControlFlow::Break(behind) => {
                    kept.behind = behind;
                    return Ok(kept);
                }
                ControlFlow::Continue(()) => {}
            },
            Err(raw) => match search.judge(raw) {
                ControlFlow::Break(raw) => return Err(raw),
                ControlFlow::Continue(()) => {}
            },
        }
    }
}

/// Returns a read in which no tree was answered.
fn unread(source: &SourceConfig) -> RawRead {
    let asked = KINDS.into_iter().filter(|kind| source.tree(*kind).is_some());
    RawRead { trees: asked.map(|kind| (kind, RawTree::default())).collect(), ..RawRead::default() }
}

/// Reads all trees of `source` over `connection`.
async fn read_all(
    mut connection: Connection,
    config: &LdapConfig,
    source: &SourceConfig,
    history: &ServerHistory,
) -> RawRead {
    let mut raw = RawRead {
        server: Some(connection.server.clone()),
        marks: Box::new(connection.marks.clone()),
        ..unread(source)
    };
    let mut is_open = true;
    for (kind, into) in &mut raw.trees {
        let Some(tree) = source.tree(*kind) else { continue };
        let reading = read_tree(&mut connection.ldap, config, source, *kind, &mut into.entries);
        let outcome = AssertUnwindSafe(reading).catch_unwind().await.unwrap_or(Err(ReadError::Unparsable));
        let Err(error) = outcome else {
            into.whole = true;
            continue;
        };
        let error = connection.diagnose(error).await;
        let (server, read) = (&connection.server, into.entries.len());
        let why = chain(&error);
        raw.problems.push(format!("{server}: {kind}s beneath {}: {why} (after {read} entries)", tree.base));
        is_open = !error.ends_connection();
        if !is_open {
            break;
        }
    }
    if is_open {
        // The unbind is a courtesy: all answers have arrived.
        let _ = timeout(Duration::from_secs(1), connection.ldap.unbind()).await;
    }
    // Entries that were read before the connection broke may prove, too, that the server is behind.
    raw.marks.entries = witnesses(source, raw.trees.values().flat_map(|tree| &tree.entries), history);
    raw
}

/// Reads the tree of `kind`. Each entry is added to `entries` as soon as it arrives.
async fn read_tree(
    ldap: &mut Ldap,
    config: &LdapConfig,
    source: &SourceConfig,
    kind: AccountKind,
    entries: &mut Vec<Arc<RawEntry>>,
) -> Result<(), ReadError> {
    let Some(tree) = source.tree(kind) else { return Ok(()) };
    read_matching(ldap, config, source, tree, &asked(config, source, kind), entries).await
}

/// Reads `attributes` of the entries that `tree` matches, page by page (RFC 2696). Each entry is added to `entries` as
/// soon as it arrives; missing values of long attributes are read at the end.
///
/// The pages are requested here and not by ldap3's adapter, because the adapter checks only the result of the last
/// page. Every page must answer with success, and without a referral to follow.
async fn read_matching(
    ldap: &mut Ldap,
    config: &LdapConfig,
    source: &SourceConfig,
    tree: &Tree,
    attributes: &[String],
    entries: &mut Vec<Arc<RawEntry>>,
) -> Result<(), ReadError> {
    let mut pages = Pages { entries, parts: Vec::new(), referrals: Vec::new() };
    let size = i32::try_from(config.page_size).unwrap_or(i32::MAX);
    let mut cookie = Vec::new();
    let mut empty = 0;
    loop {
        let before = pages.entries.len();
        let first = cookie.is_empty();
        let page = read_page(ldap, PagedResults { size, cookie }, tree, attributes, &mut pages);
        let answer = timeout(config.timeout, page).await.map_err(|_| ReadError::Timeout(config.timeout))??;
        progress::page(pages.entries.len() - before);
        pages.referrals.extend(answer.refs.iter().cloned());
        if answer.rc != 0 {
            return Err(ReadError::Answer(meaning(&answer)));
        }
        let next = answer.ctrls.iter().find_map(|Control(kind, raw)| {
            matches!(kind, Some(ControlType::PagedResults)).then(|| raw.parse::<PagedResults>().cookie)
        });
        match next {
            Some(next) if !next.is_empty() => cookie = next,
            None if !first => {
                return Err(ReadError::Answer("the server stopped paging before the last page".to_owned()));
            }
            _ => break,
        }
        empty = if pages.entries.len() == before { empty + 1 } else { 0 };
        if empty > EMPTY_PAGES {
            return Err(ReadError::Answer(format!("{EMPTY_PAGES} empty pages in a row")));
        }
    }
    for (at, part) in &pages.parts {
        range::complete(ldap, Arc::make_mut(&mut pages.entries[*at]), part, config.members_at_once, config.timeout)
            .await?;
    }
    let missed = |referral: &&String| !(source.attributes.windows && is_of_no_people(referral));
    match pages.referrals.iter().find(missed) {
        None => Ok(()),
        Some(referral) => Err(ReadError::Answer(format!("referral to {referral} was not followed"))),
    }
}

/// Returns the attributes to request, including the attributes with the time of the last change. If the configuration
/// limits how many members are requested at once, only the first part of the members is requested.
fn asked(config: &LdapConfig, source: &SourceConfig, kind: AccountKind) -> Vec<String> {
    let is_long = |name: &String| source.attributes.member_dns.iter().any(|long| long.eq_ignore_ascii_case(name));
    let part = |name: String| match config.members_at_once {
        Some(size) if is_long(&name) => range::ask(&name, 0, Some(size)),
        _ => name,
    };
    source.wanted(kind).into_iter().map(part).chain(stamps(source)).collect()
}

/// The content of the pages of one tree.
struct Pages<'a> {
    entries: &'a mut Vec<Arc<RawEntry>>,
    /// Incomplete attributes, each with the index of its entry.
    parts: Vec<(usize, Part)>,
    referrals: Vec<String>,
}

async fn read_page(
    ldap: &mut Ldap,
    page: PagedResults,
    tree: &Tree,
    attributes: &[String],
    into: &mut Pages<'_>,
) -> Result<LdapResult, ReadError> {
    ldap.with_controls(page);
    let mut stream =
        ldap.streaming_search(&tree.base, Scope::Subtree, &tree.filter, attributes).await.map_err(ReadError::Lost)?;
    loop {
        let Some(item) = next(&mut stream).await? else { break };
        if item.is_ref() {
            into.referrals.extend(parse_refs(item.0));
        } else if item.is_intermediate() {
            // RFC 4511, 4.13: a server sends an intermediate response only if it was requested. Bursar did not request
            // one, so an entry may be missing.
            return Err(ReadError::Unparsable);
        } else {
            let at = into.entries.len();
            let entry = raw(item.0, |part| into.parts.push((at, part))).ok_or(ReadError::Unparsable)?;
            into.entries.push(Arc::new(entry));
        }
    }
    Ok(stream.finish().await)
}

/// Returns the next item of a search; `None` at its end.
async fn next<'a, S, A>(stream: &mut SearchStream<'a, S, A>) -> Result<Option<ResultEntry>, ReadError>
where
    S: AsRef<str> + Send + Sync + 'a,
    A: AsRef<[S]> + Send + Sync + 'a,
{
    let item = if let Some(item) = stream.next().now_or_never() {
        item
    } else {
        // The sleep blocks the whole thread, which only this read uses. Entries that arrive meanwhile wait in the
        // socket.
        std::thread::sleep(COALESCE);
        stream.next().await
    };
    item.map_err(ReadError::Lost)
}

/// Parses an entry as the server sent it (RFC 4511, 4.5.2). ldap3's `SearchEntry` is not used, because it copies every
/// value to separate text from binary attributes. `parts` is called for each attribute that comes in parts.
fn raw(entry: StructureTag, mut parts: impl FnMut(Part)) -> Option<RawEntry> {
    let mut fields = entry.expect_constructed()?.into_iter();
    let dn = String::from_utf8(fields.next()?.expect_primitive()?).ok()?;
    let mut raw = RawEntry::new(dn);
    for attribute in fields.next()?.expect_constructed()? {
        let mut fields = attribute.expect_constructed()?.into_iter();
        let name = fields.next()?.expect_primitive()?;
        let part = Part::parse(&name);
        let stamps = STAMPS.iter().any(|stamp| name.eq_ignore_ascii_case(stamp.as_bytes()));
        let name = part.as_ref().map_or(name.as_slice(), |part| part.attribute.as_bytes());
        for value in fields.next()?.expect_constructed()? {
            let value = value.expect_primitive()?;
            if stamps {
                raw.stamp = raw.stamp.max(std::str::from_utf8(&value).ok().and_then(Stamp::parse));
            } else {
                raw.add(name, &value);
            }
        }
        part.into_iter().for_each(&mut parts);
    }
    Some(raw.shrunk())
}
