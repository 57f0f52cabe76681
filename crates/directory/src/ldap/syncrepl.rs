//! Reads the changes that a server reports by RFC 4533 (OpenLDAP's syncrepl). Each search of a tree ends with a cookie,
//! and a later search with this cookie returns the changes since then.
//!
//! A refresh is collected first and then applied as a whole. An answer does not fit if the server does not know the
//! cookie, reports an entry as unchanged that it never sent, or uses DNs that contradict the known ones. The refresh
//! then starts again with new cookies and a full read. In a first refresh, or if the changes are older than the session
//! log, the server names the entries that are left. An entry that the server does not name may still exist: after a
//! crash, and until the next write, `slapd` does not name entries that were written after its last checkpoint
//! (`contextCSN`). Therefore everything is read in this case, too. A server that cannot report changes is read in full
//! each time. If a connection ends early, the cache stays as it was.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bursar_core::errors::chain;
use bursar_core::identity::AccountKind;
use bursar_core::snapshot::freshness::Marks;
use futures::FutureExt as _;
use ldap3::controls::{
    Control, ControlType, EntryState, MakeCritical as _, RefreshMode, SyncDone, SyncInfo, SyncRequest, SyncState,
    parse_syncinfo,
};
use ldap3::{Ldap, ResultEntry, Scope, SearchStream, parse_refs};
use tokio::time::timeout;

use super::connection::{Connection, ReadError, meaning, search};
use super::freshness::{witness, witnesses_after};
use super::new_dns::NewDns;
use crate::entry::assemble::{KINDS, RawRead};
use crate::entry::raw::RawEntry;
use crate::source::{LdapConfig, SourceConfig, Tree};
use crate::sync::kept::{Kept, Mark, ServerHistory};
use crate::sync::mirror::{Id, Mirror, News};

/// The control by which a server shows that it supports syncrepl (RFC 4533, 2.2).
const SYNC_REQUEST: &str = "1.3.6.1.4.1.4203.1.9.1.1";
/// The length of an entry's id in bytes (RFC 4533, 2.1.1: syncUUID).
const ID_LENGTH: usize = 16;
/// The number of messages that must arrive within the time limit of one page.
const PAGE: usize = 1000;

/// Returns all entries as they are now; see [`crate::sync::incremental`].
pub(super) async fn refresh(
    mut connection: Connection,
    config: &LdapConfig,
    source: &SourceConfig,
    kept: Option<&Kept>,
    history: &ServerHistory,
) -> Result<Kept, RawRead> {
    let mut cookies = None;
    // If another server answered last, the cached times do not cover the entries that it showed.
    let is_last = |server: &str| history.answered.is_empty() || history.answered == server;
    if let Some(known) = kept.filter(|kept| kept.server == connection.server && is_last(&kept.server)) {
        match tried(&mut connection, async |connection| advance(connection, config, source, known).await).await {
            Ok(Advance::Told(kept)) => {
                // The unbind is a courtesy: all answers have arrived.
                let _ = timeout(Duration::from_secs(1), connection.ldap.unbind()).await;
                return Ok(*kept);
            }
            Ok(Advance::Silence(after)) => cookies = Some(after),
            Err(error) => told_not(&error, &connection, source)?,
        }
    }
    if cookies.is_none() {
        match tried(&mut connection, async |connection| begin(connection, config, source).await).await {
            Ok(now) => cookies = Some(now),
            Err(error) => told_not(&error, &connection, source)?,
        }
    }
    let server = connection.server.clone();
    let read = super::read_all(connection, config, source, history).await;
    match (cookies, Mirror::of(&read, |entry| id_of(source, entry))) {
        (Some(cookies), Some(mirror)) => {
            let (mark, marks) = (Mark::Syncrepl(cookies), *read.marks);
            Ok(Kept { asked: source.clone(), server, marks, behind: Vec::new(), mark, mirror })
        }
        _ => Err(read),
    }
}

/// The result of asking for changes.
enum Advance {
    Told(Box<Kept>),
    /// The server named the entries that are left, but not the deleted entries. After a full read, changes can be
    /// requested with these cookies.
    Silence(BTreeMap<AccountKind, Vec<u8>>),
}

/// Runs `asking`. Malformed messages make ldap3 panic; a panic becomes an error.
async fn tried<T>(
    connection: &mut Connection,
    asking: impl AsyncFnOnce(&mut Connection) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    match AssertUnwindSafe(asking(connection)).catch_unwind().await.unwrap_or(Err(ReadError::Unparsable)) {
        Ok(told) => Ok(told),
        Err(error) => Err(connection.diagnose(error).await),
    }
}

/// Logs why changes cannot be read. Returns `Err` if nothing more can be asked on this connection.
fn told_not(error: &ReadError, connection: &Connection, source: &SourceConfig) -> Result<(), RawRead> {
    let (server, why) = (&connection.server, chain(error));
    if error.ends_connection() {
        let problems = vec![format!("{server}: changes: {why}")];
        return Err(RawRead { server: Some(server.clone()), problems, ..super::unread(source) });
    }
    tracing::info!(source = source.name, server, why, "the server does not report changes; reading everything");
    Ok(())
}

/// Returns the state of all trees of `source`: `known` with the changes since then.
async fn advance(
    connection: &mut Connection,
    config: &LdapConfig,
    source: &SourceConfig,
    known: &Kept,
) -> Result<Advance, ReadError> {
    let trees = tell(connection, config, source, Some(known)).await?;
    believe(known, &trees)?;
    if trees.values().any(|told| told.news.is_by_silence()) {
        return cookies(&trees).map(Advance::Silence);
    }
    let kept = taken(source, &connection.server, known, trees)?;
    let marks = Marks { entries: kept.marks.entries, ..connection.marks.clone() };
    Ok(Advance::Told(Box::new(Kept { marks, ..kept })))
}

/// Returns the cookies from which changes can be asked, if everything is read afterwards. The server's messages are
/// checked, but not kept.
async fn begin(
    connection: &mut Connection,
    config: &LdapConfig,
    source: &SourceConfig,
) -> Result<BTreeMap<AccountKind, Vec<u8>>, ReadError> {
    offered(&mut connection.ldap, config.timeout).await?;
    cookies(&tell(connection, config, source, None).await?)
}

/// Returns the cookie of each tree.
fn cookies(trees: &BTreeMap<AccountKind, Told>) -> Result<BTreeMap<AccountKind, Vec<u8>>, ReadError> {
    trees.iter().map(|(kind, told)| Ok((*kind, told.mark()?))).collect()
}

/// Asks for the changes of all trees of `source` since `known`.
async fn tell(
    connection: &mut Connection,
    config: &LdapConfig,
    source: &SourceConfig,
    known: Option<&Kept>,
) -> Result<BTreeMap<AccountKind, Told>, ReadError> {
    let mut trees = BTreeMap::new();
    for kind in KINDS {
        let Some(tree) = source.tree(kind) else { continue };
        let mut told = Told { keeps: known.is_some(), ..Told::since(source, known, kind) };
        let cookie = told.cookie();
        let mode = RefreshMode::RefreshOnly;
        let mut stream = ask(connection, source, (kind, tree), mode, cookie, config.timeout).await?;
        told.refresh(&mut stream, config.timeout).await?;
        trees.insert(kind, told);
    }
    Ok(trees)
}

/// Returns the id of an entry in the form of RFC 4533 (RFC 4530: as text, it is written as in RFC 4122).
fn id_of(source: &SourceConfig, entry: &RawEntry) -> Option<Id> {
    uuid(entry.texts(&source.attributes.id).next()?)
}

/// Parses a UUID into its bytes.
fn uuid(text: &str) -> Option<Id> {
    let digits: String = text.chars().filter(|digit| *digit != '-').collect();
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let id: Option<Id> = (0..digits.len()).step_by(2).map(byte).collect();
    id.filter(|id| id.len() == ID_LENGTH)
}

/// Fails if the server sent known entries again. If a cookie has no content, `slapd` sends all entries as changes, and
/// names no deletions.
pub(super) fn believe(known: &Kept, trees: &BTreeMap<AccountKind, Told>) -> Result<(), ReadError> {
    let again = |(kind, told): (&AccountKind, &Told)| known.mirror.is_told_again_by(*kind, &told.news);
    if trees.iter().any(again) {
        return Err(ReadError::Answer("the server sent all entries instead of the changes".to_owned()));
    }
    Ok(())
}

/// Applies `trees`, the changes since `known`, to `known`.
pub(super) fn taken(
    source: &SourceConfig,
    server: &str,
    known: &Kept,
    trees: BTreeMap<AccountKind, Told>,
) -> Result<Kept, ReadError> {
    let mark = Mark::Syncrepl(cookies(&trees)?);
    let told = trees.values().flat_map(|told| told.news.entries()).filter_map(|(_, entry)| witness(source, entry));
    let marks = Marks { entries: witnesses_after(&known.marks.entries, told), ..known.marks.clone() };
    let dns = NewDns::of(source, &known.mirror, trees.iter().map(|(kind, told)| (*kind, &told.news)));
    let mirror = known.mirror.with(trees.into_iter().map(|(kind, told)| (kind, told.news)).collect());
    let unknown = || ReadError::Answer("the server reports an entry as unchanged that it never sent".to_owned());
    let mirror = mirror.ok_or_else(unknown)?;
    if !dns.fit(&known.mirror, &mirror) {
        let why = "the DNs of the changes do not fit those of the known entries, as after the move of a container";
        return Err(ReadError::Answer(why.to_owned()));
    }
    let (asked, server) = (source.clone(), server.to_owned());
    Ok(Kept { asked, server, marks, behind: Vec::new(), mark, mirror })
}

/// Fails if the server does not offer syncrepl.
async fn offered(ldap: &mut Ldap, limit: Duration) -> Result<(), ReadError> {
    let found = search(ldap, "", Scope::Base, "(objectClass=*)", &["supportedControl"], limit).await?;
    if found.iter().any(|root| root.texts("supportedControl").any(|control| control == SYNC_REQUEST)) {
        return Ok(());
    }
    Err(ReadError::Answer("the server does not offer syncrepl".to_owned()))
}

/// A running search.
pub(super) type Stream = SearchStream<'static, String, Vec<String>>;

/// Begins a search of a tree for the changes after `cookie`.
pub(super) async fn ask(
    connection: &mut Connection,
    source: &SourceConfig,
    (kind, tree): (AccountKind, &Tree),
    mode: RefreshMode,
    cookie: Option<Vec<u8>>,
    limit: Duration,
) -> Result<Stream, ReadError> {
    let attributes = source.wanted(kind).into_iter().chain(super::stamps(source)).collect();
    let ldap = &mut connection.ldap;
    ldap.with_controls(SyncRequest { mode, cookie, reload_hint: false }.critical());
    let search = ldap.streaming_search(&tree.base, Scope::Subtree, &tree.filter, attributes);
    timeout(limit, search).await.map_err(|_| ReadError::Timeout(limit))?.map_err(ReadError::Lost)
}

/// The messages of the server about one tree.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) news: News,
    /// The cookie of the request, until the server sends another. An empty cookie counts too: the server has none.
    cookie: Option<Vec<u8>>,
    /// Whether everything that changed before the search began has arrived.
    pub(super) refreshed: bool,
    /// Whether entries are kept, and not only the cookie.
    keeps: bool,
    /// The attribute with the id by which full reads keep an entry.
    id: String,
}

impl Told {
    /// Returns an empty value for a search that continues from `known` in the tree of `kind`.
    pub(super) fn since(source: &SourceConfig, known: Option<&Kept>, kind: AccountKind) -> Self {
        let cookie = known.and_then(|known| match &known.mark {
            Mark::Syncrepl(cookies) => cookies.get(&kind).cloned(),
            Mark::DirSync { .. } | Mark::Usn { .. } => None,
        });
        let news = if cookie.is_some() { News::default() } else { News::of_everything() };
        Self { news, cookie, refreshed: false, keeps: true, id: source.attributes.id.clone() }
    }

    /// Takes the messages so far out, and continues from their cookie.
    pub(super) fn next(&mut self) -> Self {
        let next = Self { news: News::default(), cookie: self.cookie.clone(), id: self.id.clone(), ..*self };
        std::mem::replace(self, next)
    }

    /// Returns the cookie that was sent with the request, or the last one that the server sent.
    pub(super) fn cookie(&self) -> Option<Vec<u8>> {
        self.cookie.clone()
    }

    fn mark(&self) -> Result<Vec<u8>, ReadError> {
        let none = || ReadError::Answer("the server sent no cookie that can be used next time".to_owned());
        self.cookie.clone().filter(|cookie| !cookie.is_empty()).ok_or_else(none)
    }

    fn set_cookie(&mut self, cookie: Option<Vec<u8>>) {
        // `None` means that nothing changed, and the old cookie stays valid.
        self.cookie = cookie.or_else(|| self.cookie.take());
    }

    /// Takes all messages of a search until it ends.
    async fn refresh(&mut self, stream: &mut Stream, limit: Duration) -> Result<(), ReadError> {
        let mut ended = false;
        while !ended {
            let page = async {
                for count in 0..PAGE {
                    match super::next(stream).await? {
                        Some(item) => self.take(item)?,
                        None => return Ok::<(bool, usize), ReadError>((true, count)),
                    }
                }
                Ok((false, PAGE))
            };
            let (is_end, count) = timeout(limit, page).await.map_err(|_| ReadError::Timeout(limit))??;
            ended = is_end;
            crate::progress::page(if self.keeps { count } else { 0 });
        }
        let answer = stream.finish().await;
        if answer.rc != 0 {
            return Err(ReadError::Answer(meaning(&answer)));
        }
        let done = answer.ctrls.iter().find_map(|Control(kind, raw)| {
            matches!(kind, Some(ControlType::SyncDone)).then(|| raw.parse::<SyncDone>())
        });
        let done = done.ok_or_else(|| ReadError::Answer("the answer has no sync cookie".to_owned()))?;
        if !done.refresh_deletes {
            self.only_what_was_told(done.cookie.as_ref())?;
        }
        self.set_cookie(done.cookie);
        self.refreshed = true;
        Ok(())
    }

    /// Handles a list of all entries that are left. If a known entry is not in the list, the server's state has
    /// changed, so the server must have sent a cookie.
    fn only_what_was_told(&mut self, cookie: Option<&Vec<u8>>) -> Result<(), ReadError> {
        if self.cookie.is_some() && cookie.is_none() {
            return Err(ReadError::Answer(
                "the server ended a list of the remaining entries without a cookie".to_owned(),
            ));
        }
        self.news.only([]);
        Ok(())
    }

    /// Takes one message. ldap3 panics at some malformed messages; a panic becomes an error.
    pub(super) fn take(&mut self, item: ResultEntry) -> Result<(), ReadError> {
        catch_unwind(AssertUnwindSafe(|| self.take_well_formed(item))).unwrap_or(Err(ReadError::Unparsable))
    }

    fn take_well_formed(&mut self, item: ResultEntry) -> Result<(), ReadError> {
        if item.is_ref() {
            let to = parse_refs(item.0).join(" ");
            return Err(ReadError::Answer(format!("referral to {to} was not followed")));
        }
        if item.is_intermediate() {
            return self.take_info(parse_syncinfo(item));
        }
        let state = item.1.iter().find_map(|Control(kind, raw)| {
            matches!(kind, Some(ControlType::SyncState)).then(|| raw.parse::<SyncState>())
        });
        let SyncState { state, entry_uuid, cookie } = state.ok_or(ReadError::Unparsable)?;
        let [id] = checked([entry_uuid])?.try_into().map_err(|_| ReadError::Unparsable)?;
        match state {
            EntryState::Add | EntryState::Modify => {
                let entry = super::raw(item.0, |_| ()).ok_or(ReadError::Unparsable)?;
                // RFC 4533, 2.2: the syncUUID is the entryUUID. If a full read kept the entry under another id, the
                // server could never remove it.
                if let Some(own) = entry.texts(&self.id).next().and_then(uuid).filter(|own| *own != id) {
                    let (own, told) = (hex::encode(own), hex::encode(&id));
                    let why = format!("{} has {} {own}, but the server reports it as {told}", entry.dn, self.id);
                    return Err(ReadError::Answer(why));
                }
                if self.keeps {
                    self.news.put(id, entry);
                }
            }
            EntryState::Delete => self.news.remove(id),
            EntryState::Present => self.news.only([id]),
        }
        self.set_cookie(cookie);
        Ok(())
    }

    fn take_info(&mut self, info: SyncInfo) -> Result<(), ReadError> {
        match info {
            SyncInfo::NewCookie(cookie) => self.set_cookie(Some(cookie)),
            SyncInfo::RefreshDelete { cookie, refresh_done } => {
                self.set_cookie(cookie);
                self.refreshed |= refresh_done;
            }
            SyncInfo::RefreshPresent { cookie, refresh_done } => {
                self.only_what_was_told(cookie.as_ref())?;
                self.set_cookie(cookie);
                self.refreshed |= refresh_done;
            }
            SyncInfo::SyncIdSet { cookie, refresh_deletes, sync_uuids } => {
                let ids = checked(sync_uuids)?;
                if refresh_deletes {
                    for id in ids {
                        self.news.remove(id);
                    }
                } else {
                    self.news.only(ids);
                }
                self.set_cookie(cookie);
            }
        }
        Ok(())
    }
}

fn checked(ids: impl IntoIterator<Item = Id>) -> Result<Vec<Id>, ReadError> {
    let ids: Vec<Id> = ids.into_iter().collect();
    if ids.iter().all(|id| id.len() == ID_LENGTH) { Ok(ids) } else { Err(ReadError::Unparsable) }
}
