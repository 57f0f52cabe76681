//! Turns a read of the directories into changes of the ledger: which accounts were seen, changed or missing.
//!
//! This module only records. The plan decides what follows, such as a suspension or a new generation. A read that shows
//! nothing new causes no change.

mod absence;
mod adoption;
mod import;
mod members;
mod person;
mod refused;
mod renamed;
mod servers;
mod shown;
mod taken;
mod waiting;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use foldhash::{HashMap, HashSet};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub use self::absence::due;
use self::import::Imported;
use self::members::{Misnamed, Named};
use self::person::Person;
use self::refused::Bearers;
use self::shown::{Attribute, Hidden};
use self::waiting::{Believed, Waiting};
use super::change::{Change, Event};
use super::people::PeopleByEntry;
use super::server::{Moved, SourceMark};
use super::{Account, Compared, LedgerState, Lifecycle, OrderKind, SourceState, Suspension};
use crate::identity::{AccountId, AccountKind, AccountName, DirectoryId, Gid, PosixIdentity, Uid, kubernetes_name};
use crate::policy::Policy;
use crate::shared_map::SharedMap;
use crate::snapshot::person::{Same, same_people};
use crate::snapshot::{Comparison, Completeness, DirectorySnapshot, Entry, RejectedEntry, Rejection, SourceRead};

/// The changes that a read causes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadChanges {
    /// Changes of the ledger.
    pub changes: Vec<Change>,
    /// Events of the history.
    pub events: Vec<Event>,
}

/// Returns what `snapshot` changes in the ledger.
#[must_use]
pub fn transition(ledger: &LedgerState, snapshot: &DirectorySnapshot, policy: &Policy, now: Timestamp) -> ReadChanges {
    let mut memory = Memory::of(ledger, snapshot, policy, now);
    memory.judged = snapshot.reads.iter().map(|read| (read.source.as_str(), memory.judge(read))).collect();
    for read in &snapshot.reads {
        memory.read(read, memory.judged[read.source.as_str()].clone());
    }
    memory.finish()
}

/// How much of a read is believed.
#[derive(Debug, Clone)]
struct Judged {
    completeness: Completeness,
    /// The last change from one server to another, if the present server may be behind the former one.
    moved: Option<Moved>,
    /// Whether the read may come from another directory. Such a read never adds anything, not even after
    /// [`SETTLES`](crate::snapshot::freshness::SETTLES).
    lacks_sentinel: bool,
}

impl Judged {
    /// Whether the read may show an older state than another server did, or the state of another directory.
    const fn holds(&self) -> bool {
        self.moved.is_some() || self.lacks_sentinel
    }

    /// Whether only new disabling marks are believed.
    fn settles(&self, now: Timestamp) -> bool {
        self.lacks_sentinel || self.moved.as_ref().is_some_and(|moved| moved.is_fresh(now))
    }

    /// Whether an account that the read does not show is proved to be absent.
    fn is_proof(&self, now: Timestamp) -> bool {
        self.completeness == Completeness::Complete && !self.settles(now)
    }
}

struct Memory<'a> {
    ledger: &'a LedgerState,
    policy: &'a Policy,
    now: Timestamp,
    known: HashMap<(&'a str, &'a DirectoryId), &'a Account>,
    /// The account that has each Kubernetes name in the ledger; computed only if an account is new.
    names: OnceCell<BTreeMap<(AccountKind, &'a str), &'a AccountId>>,
    /// Accounts by their current names; computed only if an account is new or renamed.
    bearers: OnceCell<Bearers<'a>>,
    /// The account that gets each new name from this read.
    new_names: BTreeMap<(AccountKind, String), AccountId>,
    uids: SharedMap<Uid, AccountId>,
    /// Accounts by the value that identifies their person.
    persons: BTreeMap<&'a str, Vec<&'a Account>>,
    same: Same<'a>,
    /// People by their entries; computed only if somebody joins a group or tool.
    people: OnceCell<PeopleByEntry<'a>>,
    rejected: BTreeSet<RejectedEntry>,
    sources: BTreeMap<String, SourceState>,
    snapshot: &'a DirectorySnapshot,
    /// Accounts that this read assigns to other entries.
    adopted: BTreeSet<AccountId>,
    /// How much of the read of each source is believed.
    judged: BTreeMap<&'a str, Judged>,
    /// The replication state of servers, to be recorded.
    marks: Vec<(String, SourceMark)>,
    /// For each source whose server changed recently: the statements that are not believed yet.
    waiting: BTreeMap<&'a str, Waiting>,
    result: ReadChanges,
}

impl<'a> Memory<'a> {
    fn of(ledger: &'a LedgerState, snapshot: &'a DirectorySnapshot, policy: &'a Policy, now: Timestamp) -> Self {
        let accounts = ledger.accounts.values();
        Self {
            ledger,
            policy,
            now,
            known: accounts.map(|known| ((known.source.as_str(), &known.directory_id), known)).collect(),
            names: OnceCell::new(),
            bearers: OnceCell::new(),
            new_names: BTreeMap::new(),
            uids: ledger.uid_history.clone(),
            persons: person::by_value(ledger),
            same: same_people(&snapshot.reads),
            people: OnceCell::new(),
            rejected: BTreeSet::new(),
            sources: BTreeMap::new(),
            snapshot,
            adopted: BTreeSet::new(),
            judged: BTreeMap::new(),
            marks: Vec::new(),
            waiting: BTreeMap::new(),
            result: ReadChanges::default(),
        }
    }

    fn judge(&mut self, read: &'a SourceRead) -> Judged {
        let completeness = self.proved(read);
        let moved = self.server(read, completeness == Completeness::Complete);
        let lacks_sentinel = read.lacks_sentinel;
        let shown = moved.as_ref().map(|moved| moved.shown.clone()).filter(|_| !lacks_sentinel);
        if moved.is_some() || lacks_sentinel {
            self.waiting.insert(&read.source, Waiting::after(shown.unwrap_or_default()));
        }
        Judged { completeness, moved, lacks_sentinel }
    }

    fn read(&mut self, read: &SourceRead, judged: Judged) {
        let (holds, settles, completeness) = (judged.holds(), judged.settles(self.now), judged.completeness);
        let complete = completeness == Completeness::Complete;
        let shown = read.entries.iter().map(|entry| &entry.id);
        let present: HashSet<&DirectoryId> =
            shown.chain(read.rejected.iter().filter_map(|entry| entry.id.as_ref())).collect();
        let imported = if complete { self.imported(read, &present) } else { Imported::default() };
        let known: Vec<Option<&Account>> =
            read.entries.iter().map(|entry| self.known.get(&(read.source.as_str(), &entry.id)).copied()).collect();
        // Members are found by their entries, so only a read of people can prove that a member left.
        let proves_leaving = complete && read.kinds.contains(&AccountKind::User);
        let mut named = self.named_members(read);
        let elsewhere = self.renamed_elsewhere(read, &mut named);
        if proves_leaving {
            self.doubt_leavings(read, &mut named, elsewhere);
        }
        let remarks = self.doubt_taken_names(read, &known, &present, &mut named);
        self.note_gids(read, &mut named);
        self.doubt_gids(read, &mut named, complete, holds);
        let trust = Trust {
            complete,
            holds,
            proves_leaving,
            hidden: self.hidden(read, &known, complete, holds),
            named,
            misnamed: self.misnamed(read, &known, &present),
            imported,
        };
        for (entry, known) in read.entries.iter().zip(known) {
            let entry = &*trust.named.settled(entry, known);
            if self.is_same(&read.source, entry, known) {
                continue;
            }
            let believed = match known {
                _ if !holds => Some(Believed::whole(entry)),
                Some(account) => Some(self.believed(&read.source, entry, account)),
                None => self.believed_new(&read.source, entry),
            };
            let Some(believed) = believed else {
                self.wait(read, entry);
                continue;
            };
            if let Some(why) = read.remarks.get(&entry.id) {
                self.reject(&read.source, entry, why.clone());
            }
            match known.or_else(|| self.adopted_by(&read.source, &believed.entry)) {
                Some(account) if settles => {
                    let disabled = believed.entry.disabled.clone();
                    self.changed(account, Account { disabled, ..account.clone() });
                }
                Some(account) => self.seen(account, &read.source, &believed, &trust),
                None => self.new_account(&read.source, &trust.without_misnamed(believed.entry)),
            }
        }
        self.remark(&read.source, remarks);
        for rejected in &read.rejected {
            self.rejected.insert(rejected.clone());
            let Some(id) = &rejected.id else { continue };
            if let Some(account) = self.known.get(&(read.source.as_str(), id)).copied() {
                let is_back = account.absence.is_none() || self.has_settled(&read.source, id, &json!("back"));
                let leaving = if settles { account.leaving.clone() } else { trust.leaving_rejected(account, read) };
                let held = read.held.get(&rejected.dn).filter(|_| complete && !settles);
                let posix = trust.with_gids_left(account, id, held.map(|held| &held.groups));
                let ssh_keys = trust.with_keys_left(account, held.map(|held| &held.ssh_keys));
                let left = Left { leaving, posix, ssh_keys };
                self.refused(account, rejected.disabled.as_ref(), complete, is_back, left);
            }
        }
        if complete {
            if !settles {
                self.count_absences(read, &present, &trust.imported);
            }
        } else {
            // A partial read keeps the rejections of entries that it did not show.
            let shown: BTreeSet<&str> = read.entries.iter().map(|entry| entry.dn.as_str()).collect();
            let before = self.ledger.rejected.iter().filter(|rejected| {
                rejected.source == read.source
                    && !shown.contains(rejected.dn.as_str())
                    && rejected.id.as_ref().is_none_or(|id| !present.contains(id))
            });
            self.rejected.extend(before.cloned());
        }
        let known = self.ledger.sources.get(&read.source);
        let before = known.and_then(|source| source.complete_at);
        let compared = known.and_then(|source| source.compared.clone());
        if let Some(found) = read.compared.as_ref().filter(|found| found.differences > 0) {
            self.repaired(&read.source, found);
        }
        let state = SourceState {
            server: read.server.clone(),
            entries: read.entries.len() as u64,
            took_ms: u64::try_from(read.took.as_millis()).unwrap_or(u64::MAX),
            read_at: self.now,
            complete_at: if complete { Some(self.now) } else { before },
            numbers: read.numbers.clone(),
            completeness,
            // An incomplete read keeps the way of the last complete read.
            way: if complete { read.way } else { known.map_or(read.way, |source| source.way) },
            compared: read.compared.clone().map(|found| Compared { at: self.now, found }).or(compared),
            servers: self.servers(read),
            unresolved: trust.named.unresolved,
            failures: if complete { 0 } else { known.map_or(0, |known| known.failures).saturating_add(1) },
        };
        self.sources.insert(read.source.clone(), state);
    }

    /// Returns the completeness of a read. If the ledger knows accounts of a kind and the answer has none, the base or
    /// the filter is probably wrong, so the read is only partial. An administrator who really removed the last account
    /// of a kind must suspend it first. A kind that the configuration does not ask for is not checked.
    fn proved(&self, read: &SourceRead) -> Completeness {
        let known = |kind| {
            let expected = |account: &&Account| {
                account.source == read.source
                    && account.kind == kind
                    && account.state != Lifecycle::Deleted
                    && !Suspension::is_ordered(account.suspension.as_deref())
            };
            self.ledger.accounts.values().filter(expected).count()
        };
        let answered = |kind| {
            read.entries.iter().any(|entry| entry.kind == kind)
                || read.rejected.iter().any(|entry| entry.kind == kind && entry.id.is_some())
        };
        [AccountKind::Tool, AccountKind::User, AccountKind::Group]
            .into_iter()
            .filter(|_| read.completeness == Completeness::Complete)
            .find(|kind| read.kinds.contains(kind) && !answered(*kind) && known(*kind) > 0)
            .map_or_else(
                || match self.hidden_members(read).filter(|_| read.completeness == Completeness::Complete) {
                    Some(why) => Completeness::Partial { why },
                    None => read.completeness.clone(),
                },
                |kind| Completeness::Partial {
                    why: format!(
                        "the answer has no {kind}, but the ledger knows {}; if they are really gone, \
                         run: bursar suspend",
                        known(kind)
                    ),
                },
            )
    }

    /// Returns the account that has a name in Kubernetes.
    fn named(&self, kind: AccountKind, kubernetes_name: &str) -> Option<&AccountId> {
        let known = self.names.get_or_init(|| {
            let accounts = self.ledger.accounts.values();
            accounts.map(|known| ((known.kind, known.kubernetes_name.as_str()), &known.id)).collect()
        });
        let new = self.new_names.get(&(kind, kubernetes_name.to_owned()));
        new.or_else(|| known.get(&(kind, kubernetes_name)).copied())
    }

    fn new_account(&mut self, source: &str, entry: &Entry) {
        match self.person(source, entry) {
            Person::New => {}
            Person::Served => return,
            Person::Refused(why, reason) => return self.reject_for(source, entry, why, reason),
        }
        let kubernetes_name = kubernetes_name(&entry.name);
        let owner = self.named(entry.kind, &kubernetes_name);
        if let Some(owner) = owner.or_else(|| Some(&self.bearer(entry.kind, &entry.name, None)?.id)) {
            let (why, reason) = self.name_taken(entry, owner);
            return self.reject_for(source, entry, why, Some(reason));
        }
        if let Some(why) = self.uid_taken(entry, None) {
            return self.reject(source, entry, why);
        }
        let id = AccountId::derive(&self.ledger.ledger_id, source, &entry.id);
        if let Some(former) = self.ledger.accounts.get(&id) {
            let name = former.account_name();
            let why = format!(
                "its id belonged to {name} until an administrator gave that account to entry {}",
                former.directory_id
            );
            return self.reject(source, entry, why);
        }
        self.new_names.insert((entry.kind, kubernetes_name), id.clone());
        let name = AccountName { kind: entry.kind, name: entry.name.clone() };
        let account = Account {
            dn: entry.dn.clone(),
            posix: entry.posix.clone(),
            gid: entry.gid,
            home: entry.home.clone(),
            mail: entry.mail.clone(),
            display_name: entry.display_name.clone(),
            ssh_keys: entry.ssh_keys.clone(),
            disabled: entry.disabled.clone(),
            members: entry.members.clone(),
            sid: entry.sid.clone(),
            ..Account::new(id.clone(), name, source, entry.id.clone(), self.now)
        };
        self.event(&account, "seen", &format!("new in {source}"), json!({"dn": entry.dn}));
        self.result.changes.push(Change::Account(account.into()));
        self.remember_person(&id, entry);
        self.record_uid(&id, entry);
    }

    /// Updates the account of a rejected entry. The account keeps the last valid identity. Only statements that take
    /// access away are believed: a mark, and what the entry no longer shows. `left` is the access that remains. A known
    /// mark stays even if the entry shows none, because the entry may be rejected for a mark that cannot be read.
    fn refused(&mut self, account: &Account, mark: Option<&String>, complete: bool, is_back: bool, left: Left) {
        let Left { leaving, posix, ssh_keys } = left;
        let disabled = mark.or(account.disabled.as_ref()).cloned();
        let absence = account.absence.filter(|_| !is_back);
        let ending = self.ending(account, complete);
        self.changed(account, Account { posix, ssh_keys, disabled, leaving, absence, ending, ..account.clone() });
    }

    fn seen(&mut self, account: &Account, source: &str, believed: &Believed<'_>, trust: &Trust) {
        let Trust { complete, proves_leaving, .. } = *trust;
        let Believed { entry, names, is_itself, is_back } = believed;
        if account.kind != entry.kind {
            let why = format!(
                "it was {} before, and a {} cannot become a {}",
                account.account_name(),
                account.kind,
                entry.kind
            );
            self.reject(source, entry, why);
            let leaving = match entry.kind {
                AccountKind::User => account.leaving.clone(),
                AccountKind::Tool | AccountKind::Group => trust.leaving(account, |member| names.contains_key(member)),
            };
            let shown = entry.posix.as_ref().map(|posix| &posix.groups).filter(|_| complete);
            let posix = trust.with_gids_left(account, &entry.id, shown);
            let left = Left { leaving, posix, ssh_keys: account.ssh_keys.clone() };
            return self.refused(account, entry.disabled.as_ref(), complete, *is_back, left);
        }
        self.remember_person(&account.id, entry);
        if self.is_as_known(account, source, entry) {
            return;
        }
        let mut posix = entry.posix.clone().or_else(|| account.posix.clone());
        let order = self.order(&account.id, OrderKind::AdoptUid).filter(|_| *is_itself);
        let moved = Self::uid_moved(account, entry);
        let taken = self.uid_taken(entry, Some(account));
        let adopted = order.is_some() && moved.is_some() && taken.is_none();
        if let Some(order) = order {
            self.uid_adopted(account, entry, order, adopted, taken.as_deref());
        }
        let reason = Some(Rejection::OtherUid).filter(|_| taken.is_none());
        if let Some(why) = taken.or(moved.filter(|_| !adopted)) {
            self.reject_for(source, entry, why, reason);
            // The account keeps its uid and gid, but not the gids of groups that no longer name it.
            posix = account.posix.clone().map(|before| {
                let shown = posix.map(|posix| posix.groups).unwrap_or_default();
                let groups = before.groups.intersection(&shown).copied().collect();
                PosixIdentity { groups, ..before }
            });
        } else if adopted || account.posix.is_none() {
            self.record_uid(&account.id, entry);
        }
        if let (Some(after), Some(before)) = (&mut posix, &account.posix) {
            if trust.misnamed.contains_key(&entry.id) {
                after.groups.retain(|gid| before.groups.contains(gid));
            }
            after
                .groups
                .extend(before.groups.iter().filter(|gid| !complete || trust.named.keeps_gid(&entry.id, **gid)));
        }
        let gid = entry.gid.or(account.gid);
        if let (AccountKind::Group, Some(posix), Some(gid)) = (entry.kind, &mut posix, gid) {
            posix.gid = gid;
        }
        let renamed = entry.name != account.name;
        let owner = if renamed { self.bearer(entry.kind, &entry.name, Some(&account.id)) } else { None };
        let name = owner.map_or(&entry.name, |_| &account.name).clone();
        if let Some(owner) = owner {
            self.reject(source, entry, Self::rename_refused(entry, account, owner));
        }
        let mut members = account.members.clone();
        let joined = entry.members.iter().filter(|(member, _)| trust.may_join(member));
        members.extend(joined.map(|(member, role)| (member.clone(), *role)));
        let is_doubted = trust.named.emptied.contains(&entry.id);
        let emptied = proves_leaving && !is_doubted && self.is_emptied(account, believed);
        let mut leaving = account.leaving.clone();
        if proves_leaving && !emptied {
            leaving.extend(account.members.keys().cloned());
        }
        let kept = trust.named.kept.get(&entry.id);
        let again: BTreeSet<&DirectoryId> = names.keys().filter_map(|member| trust.missing(member)).collect();
        let stays = |member: &DirectoryId| kept.is_some_and(|kept| kept.contains(member)) || again.contains(member);
        leaving.retain(|member| !entry.members.contains_key(member) && !stays(member));
        let absence = if emptied { self.absence(account) } else { account.absence.filter(|_| !is_back) };
        let after = Account {
            former_dns: members::former_names(account, entry, &name, self.now),
            name,
            source: source.to_owned(),
            directory_id: entry.id.clone(),
            dn: entry.dn.clone(),
            posix,
            gid,
            home: trust.home(account, entry),
            mail: entry.mail.clone().or_else(|| trust.last(account.mail.as_ref(), entry.kind, Attribute::Mail)),
            display_name: entry.display_name.clone(),
            ssh_keys: trust.ssh_keys(account, entry),
            disabled: trust.mark(account, entry.disabled.as_ref()),
            members,
            leaving,
            absence,
            ending: self.ending(account, complete),
            sid: entry.sid.clone().or_else(|| account.sid.clone()),
            ..account.clone()
        };
        self.changed(account, after);
    }

    /// Whether the entry only repeats what the ledger knows of the account, and no time has to be counted. Most entries
    /// of most reads are like this. For them, [`Self::seen`] would change nothing.
    fn is_as_known(&self, account: &Account, source: &str, entry: &Entry) -> bool {
        // The account is destructured, so that a new field cannot be forgotten.
        let Account {
            id: _,
            kind,
            name,
            kubernetes_name: _,
            source: from,
            directory_id,
            dn,
            posix,
            gid,
            home,
            mail,
            display_name,
            ssh_keys,
            disabled,
            members,
            leaving,
            absence,
            state: _,
            since: _,
            suspension,
            generation: _,
            revocation: _,
            ending: _,
            sid,
            former_dns: _,
        } = account;
        *name == entry.name
            && *dn == entry.dn
            && *posix == entry.posix
            && *gid == entry.gid
            && *home == entry.home
            && *mail == entry.mail
            && *display_name == entry.display_name
            && *ssh_keys == entry.ssh_keys
            && *disabled == entry.disabled
            && *members == entry.members
            && *sid == entry.sid
            && *directory_id == entry.id
            && from == source
            && (*kind != AccountKind::Group || posix.is_none())
            && leaving.is_empty()
            && absence.is_none()
            && suspension.is_none()
            && self.ledger.orders.is_empty()
            && self.uid_taken(entry, Some(account)).is_none()
    }

    /// Rejects an entry with an unknown id if its server may be behind, or may have another directory. A server that is
    /// behind may show a person who left long ago.
    fn wait(&mut self, read: &SourceRead, entry: &Entry) {
        let why = if read.lacks_sentinel {
            "it is new, and the answer of its source does not show the sentinels: the entry is accepted with the first \
             answer that shows them"
        } else {
            "it is new, and its server replaced another server and may be behind it: the entry is accepted when every \
             answer for half an hour has shown it"
        };
        self.reject(&read.source, entry, why.to_owned());
    }

    fn changed(&mut self, before: &Account, after: Account) {
        if *before == after {
            return;
        }
        if before.name != after.name {
            let detail = json!({"before": before.name, "after": after.name});
            self.event(&after, "renamed", "renamed in the directory", detail);
        }
        if before.absence.is_some() && after.absence.is_none() {
            self.event(&after, "back", "in the directory again", Value::Null);
        }
        match (&before.disabled, &after.disabled) {
            (None, Some(mark)) => {
                self.event(&after, "disabled", &format!("marked in the directory: {mark}"), Value::Null);
            }
            (Some(_), None) => self.event(&after, "enabled", "no longer marked in the directory", Value::Null),
            _ => {}
        }
        let moved = moved(before, &after);
        if !moved.is_empty() {
            self.event(&after, "changed", "changed in the directory", Value::Object(moved));
        }
        let joined: Vec<&DirectoryId> =
            after.members.keys().filter(|member| !before.members.contains_key(*member)).collect();
        if !joined.is_empty() {
            let names: Vec<String> = joined.iter().map(|member| self.member_name(&after, member)).collect();
            self.event(&after, "members joined", &names.join(", "), json!({"members": joined}));
        }
        self.result.changes.push(Change::Account(after.into()));
    }

    fn record_uid(&mut self, id: &AccountId, entry: &Entry) {
        if let Some(posix) = &entry.posix {
            self.uids.insert(posix.uid, id.clone());
            self.result.changes.push(Change::Uid(posix.uid, id.clone()));
        }
    }

    fn reject(&mut self, source: &str, entry: &Entry, why: String) {
        self.reject_for(source, entry, why, None);
    }

    fn reject_for(&mut self, source: &str, entry: &Entry, why: String, reason: Option<Rejection>) {
        self.rejected.insert(RejectedEntry { reason, ..RejectedEntry::of(source, entry, why) });
    }

    fn member_name(&self, group: &Account, member: &DirectoryId) -> String {
        let people = self.people.get_or_init(|| PeopleByEntry::of(self.ledger));
        people.get(group, member).map_or_else(|| member.0.clone(), |person| person.name.clone())
    }

    fn repaired(&mut self, source: &str, found: &Comparison) {
        let reason = format!("a full read of source {source} differs from the entries kept up to date by changes");
        let detail = json!({ "source": source, "differences": found.differences, "examples": found.examples });
        self.result.events.push(Event::new("directory repaired", reason, detail));
    }

    fn event(&mut self, account: &Account, action: &str, reason: &str, detail: Value) {
        self.result.events.push(Event::new(action, reason, detail).about(account));
    }

    /// Keeps the state of sources that were not asked. An entry that conflicts with an account of such a source is
    /// still rejected, because the ledger knows that account. The rejection keeps its former text; otherwise the text
    /// would change whenever the next read asks other sources.
    fn keep_unasked(&mut self) {
        let unasked = &self.snapshot.unasked;
        let known = self.ledger.sources.iter().filter(|(source, _)| unasked.contains(*source));
        self.sources.extend(known.map(|(source, state)| (source.clone(), state.clone())));
        let key = |entry: &RejectedEntry| entry.id.clone().map(|id| (entry.source.clone(), id));
        let before: BTreeMap<_, _> =
            self.ledger.rejected.iter().filter_map(|entry| Some((key(entry)?, entry))).collect();
        let rejected = std::mem::take(&mut self.rejected).into_iter();
        let as_before = |entry: RejectedEntry| {
            // An older version recorded no reason.
            let known = key(&entry).and_then(|key| before.get(&key)).copied();
            known.filter(|known| known.reason.is_some() || entry.reason.is_none()).cloned().unwrap_or(entry)
        };
        self.rejected = rejected.map(as_before).collect();
        self.rejected.extend(self.ledger.rejected.iter().filter(|entry| unasked.contains(&entry.source)).cloned());
    }

    fn finish(mut self) -> ReadChanges {
        self.lapse();
        if !self.snapshot.unasked.is_empty() {
            self.keep_unasked();
        }
        if self.rejected != self.ledger.rejected {
            self.result.changes.push(Change::Rejected(std::mem::take(&mut self.rejected)));
        }
        self.remember_marks();
        self.result.changes.push(Change::Sources(self.sources));
        self.result
    }
}

/// The access that the account of a rejected entry keeps.
struct Left {
    leaving: BTreeSet<DirectoryId>,
    posix: Option<PosixIdentity>,
    ssh_keys: BTreeSet<String>,
}

/// Which parts of a read are believed.
struct Trust {
    complete: bool,
    /// [`Judged::holds`].
    holds: bool,
    proves_leaving: bool,
    hidden: Hidden,
    named: Named,
    misnamed: Misnamed,
    imported: Imported,
}

impl Trust {
    /// Whether groups that name `member` certainly mean this entry.
    fn may_join(&self, member: &DirectoryId) -> bool {
        !self.imported.contains_key(member) && !self.misnamed.contains_key(member)
    }

    /// Returns the missing entry that groups may mean instead of `member`.
    fn missing(&self, member: &DirectoryId) -> Option<&DirectoryId> {
        let imported = self.imported.get(member).map(|old| &old.id);
        imported.or_else(|| self.misnamed.get(member)?.as_ref())
    }

    /// Returns `entry` without the members whose names may mean another account.
    fn without_misnamed<'e>(&self, mut entry: Cow<'e, Entry>) -> Cow<'e, Entry> {
        if entry.members.keys().any(|member| self.misnamed.contains_key(member)) {
            entry.to_mut().members.retain(|member, _| !self.misnamed.contains_key(member));
        }
        entry
    }

    /// Returns the mark that disables the account. Only a complete read can remove a mark.
    fn mark(&self, account: &Account, shown: Option<&String>) -> Option<String> {
        let last = || account.disabled.as_ref().filter(|_| !self.complete);
        shown.or_else(last).cloned()
    }

    /// Returns the members who are leaving a rejected group or tool, because its entry no longer names them. Otherwise
    /// a maintainer could keep members by making the entry invalid. A member who is named again stays, because the
    /// entry may remain rejected for a long time.
    fn leaving_rejected(&self, account: &Account, read: &SourceRead) -> BTreeSet<DirectoryId> {
        let Some(members) = read.nesting.members(&account.directory_id) else { return account.leaving.clone() };
        let withheld = self.named.withheld.get(&account.directory_id);
        self.leaving(account, |member| {
            members.contains(member) && withheld.is_none_or(|withheld| !withheld.contains(member))
        })
    }

    /// Returns the members who are leaving `account`. `names` tells whether its entry names a member.
    fn leaving(&self, account: &Account, names: impl Fn(&DirectoryId) -> bool) -> BTreeSet<DirectoryId> {
        let others: BTreeSet<&DirectoryId> = self.imported.keys().chain(self.misnamed.keys()).collect();
        let again = |member: &DirectoryId| others.iter().any(|new| self.missing(new) == Some(member) && names(new));
        let stays =
            |member: &DirectoryId| names(member) || self.named.has(&account.directory_id, member) || again(member);
        let leaves = |member: &&DirectoryId| {
            let is_leaving = account.leaving.contains(*member);
            // If the server may be behind, its entry may still name a member who left, so a leaving member keeps
            // leaving.
            if stays(member) { is_leaving && self.holds } else { is_leaving || self.proves_leaving }
        };
        account.members.keys().filter(leaves).cloned().collect()
    }

    /// Returns the ids of a rejected account without the gids of groups that no longer name it. `shown` are the gids of
    /// the groups that name it; `None` if the read does not prove that these are all.
    fn with_gids_left(
        &self,
        account: &Account,
        id: &DirectoryId,
        shown: Option<&BTreeSet<Gid>>,
    ) -> Option<PosixIdentity> {
        let mut posix = account.posix.clone();
        if let (Some(posix), Some(shown)) = (&mut posix, shown) {
            posix.groups.retain(|gid| shown.contains(gid) || self.named.keeps_gid(id, *gid));
        }
        posix
    }

    /// Returns the SSH keys of a rejected account that its entry still shows. `shown` is `None` if the read does not
    /// prove that these are all.
    fn with_keys_left(&self, account: &Account, shown: Option<&BTreeSet<String>>) -> BTreeSet<String> {
        let is_hidden = self.hidden.contains(&(account.kind, Attribute::SshKeys));
        match shown.filter(|_| !is_hidden) {
            Some(shown) => account.ssh_keys.intersection(shown).cloned().collect(),
            None => account.ssh_keys.clone(),
        }
    }

    /// Returns the home. If the entry does not name a home, a known home stays.
    fn home(&self, account: &Account, entry: &Entry) -> Option<PathBuf> {
        let known = || account.home.clone();
        if entry.home_by_default || self.hidden.contains(&(entry.kind, Attribute::Home)) && entry.home.is_none() {
            return known().or_else(|| entry.home.clone());
        }
        entry.home.clone().or_else(known)
    }

    fn ssh_keys(&self, account: &Account, entry: &Entry) -> BTreeSet<String> {
        if entry.ssh_keys.is_empty() && self.hidden.contains(&(entry.kind, Attribute::SshKeys)) {
            return account.ssh_keys.clone();
        }
        entry.ssh_keys.clone()
    }

    /// Returns the last known value of an attribute that is hidden now.
    fn last<T: Clone>(&self, known: Option<&T>, kind: AccountKind, attribute: Attribute) -> Option<T> {
        known.filter(|_| self.hidden.contains(&(kind, attribute))).cloned()
    }
}

/// Returns the changes of an account's gid and home: each value before and after. A uid is not included, because the
/// event of its adoption names it.
fn moved(before: &Account, after: &Account) -> Map<String, Value> {
    let gid = |account: &Account| account.posix.as_ref().map(|posix| posix.gid).or(account.gid);
    let mut moved = Map::new();
    if gid(before) != gid(after) {
        moved.insert("gid".to_owned(), json!([gid(before), gid(after)]));
    }
    if before.home != after.home {
        moved.insert("home".to_owned(), json!([before.home, after.home]));
    }
    moved
}

#[cfg(test)]
#[path = "transition/doubt_tests.rs"]
mod doubt_tests;
#[cfg(test)]
#[path = "transition/forest_tests.rs"]
mod forest_tests;
#[cfg(test)]
#[path = "transition/member_tests.rs"]
mod member_tests;
#[cfg(test)]
#[path = "transition/servers_tests.rs"]
mod servers_tests;
#[cfg(test)]
#[path = "transition_tests.rs"]
mod tests;
