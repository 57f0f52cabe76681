//! Decides what to believe of an entry while its server may be behind another one that answered recently.
//!
//! Changes that reduce access are believed at once. New access, names, ids and places are believed only when every
//! answer within [`SETTLES`] has shown them, because an answer that contradicts them may be newer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Memory;
use super::members::staying;
use crate::digest::digest;
use crate::identity::{DirectoryId, Gid, PosixIdentity};
use crate::ledger::{Account, OrderKind};
use crate::snapshot::freshness::SETTLES;
use crate::snapshot::{Entry, Role};

/// The statements that all recent answers have shown. Each has the time of the first of these answers.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    before: BTreeMap<String, Timestamp>,
    shown: BTreeMap<String, Timestamp>,
}

impl Waiting {
    pub(super) const fn after(before: BTreeMap<String, Timestamp>) -> Self {
        Self { before, shown: BTreeMap::new() }
    }

    /// Returns the statements that this answer showed. All other waiting statements are dropped, because this answer
    /// contradicts them.
    pub(super) fn into_shown(self) -> BTreeMap<String, Timestamp> {
        self.shown
    }

    /// Records that this answer shows `what`. Returns whether every answer within [`SETTLES`] showed it.
    fn has_settled(&mut self, what: &Value, now: Timestamp) -> bool {
        let digest: String = digest(what).chars().take(32).collect();
        let since = self.before.get(&digest).copied().filter(|since| *since <= now).unwrap_or(now);
        self.shown.insert(digest, since);
        now.duration_since(since) >= SETTLES
    }
}

/// The believed part of an entry.
pub(super) struct Believed<'e> {
    pub(super) entry: Cow<'e, Entry>,
    /// The members that the entry names, believed or not.
    pub(super) names: &'e BTreeMap<DirectoryId, Role>,
    /// Whether the name, ids and places of the entry are believed.
    pub(super) is_itself: bool,
    /// Whether the end of the account's absence is believed.
    pub(super) is_back: bool,
}

impl<'e> Believed<'e> {
    pub(super) const fn whole(entry: &'e Entry) -> Self {
        Self { entry: Cow::Borrowed(entry), names: &entry.members, is_itself: true, is_back: true }
    }
}

impl Memory<'_> {
    /// Returns the believed part of the entry of `account`, from a server that may be behind.
    pub(super) fn believed<'e>(&mut self, source: &str, entry: &'e Entry, account: &Account) -> Believed<'e> {
        if self.is_as_known(account, source, entry) {
            return Believed::whole(entry);
        }
        let known = Entry {
            posix: account.posix.clone(),
            gid: account.gid,
            home: account.home.clone(),
            mail: account.mail.clone(),
            person: self.ledger.persons.get(&account.id).cloned(),
            display_name: account.display_name.clone(),
            ssh_keys: account.ssh_keys.clone(),
            disabled: account.disabled.clone(),
            created: entry.created,
            members: staying(account).map(|member| (member.clone(), account.members[member])).collect(),
            sid: account.sid.clone(),
            ..Entry::new(entry.kind, entry.id.0.as_str(), account.dn.as_str(), account.name.as_str())
        };
        let identity = identity(entry, entry);
        let is_same = self::identity(&known, entry) == identity;
        let is_asked = !is_same || self.order(&account.id, OrderKind::AdoptUid).is_some();
        let is_itself = !is_asked || self.has_settled(source, &entry.id, &identity);
        let is_back = account.absence.is_none() || self.has_settled(source, &entry.id, &json!("back"));
        let mut believed = self.without_gains(source, entry, &known);
        if !is_itself && !is_same {
            let Entry { posix, ssh_keys, disabled, members, .. } = believed;
            let posix =
                known.posix.zip(posix).map(|(ids, PosixIdentity { groups, .. })| PosixIdentity { groups, ..ids });
            believed = Entry { posix, ssh_keys, disabled, members, ..known };
        }
        Believed { entry: Cow::Owned(believed), names: &entry.members, is_itself, is_back }
    }

    /// Returns the believed part of an entry without an account. Returns `None` if the entry has to wait.
    pub(super) fn believed_new<'e>(&mut self, source: &str, entry: &'e Entry) -> Option<Believed<'e>> {
        let nothing = Entry::new(entry.kind, entry.id.0.as_str(), "", "");
        let believed = self.without_gains(source, entry, &nothing);
        let who = json!({ "new": identity(entry, entry), "disabled": entry.disabled.is_some() });
        let is_itself = self.has_settled(source, &entry.id, &who);
        is_itself.then_some(Believed { entry: Cow::Owned(believed), names: &entry.members, is_itself, is_back: true })
    }

    /// Returns `entry` without the access that `known` lacks, except what every recent answer has shown.
    fn without_gains(&mut self, source: &str, entry: &Entry, known: &Entry) -> Entry {
        let mut has_settled = |what: Value| self.has_settled(source, &entry.id, &what);
        let mut believed = entry.clone();
        if entry.disabled.is_none() && known.disabled.is_some() && !has_settled(json!("enabled")) {
            believed.disabled.clone_from(&known.disabled);
        }
        believed.ssh_keys.retain(|key| known.ssh_keys.contains(key) || has_settled(json!({ "key": key })));
        if let Some(posix) = &mut believed.posix {
            let groups = known.posix.as_ref().map(|posix| &posix.groups);
            let is_known = |gid: &Gid| groups.is_some_and(|groups| groups.contains(gid));
            posix.groups.retain(|gid| is_known(gid) || has_settled(json!({ "gid": gid })));
        }
        believed.members.retain(|member, role| {
            let before = known.members.get(member);
            let gains = before.is_none_or(|before| *before < *role);
            if gains && !has_settled(json!({ "member": member, "role": role })) {
                *role = before.copied().unwrap_or(*role);
                return before.is_some();
            }
            true
        });
        believed
    }

    /// Whether every answer within [`SETTLES`] showed `what` of this entry.
    pub(super) fn has_settled(&mut self, source: &str, entry: &DirectoryId, what: &Value) -> bool {
        let now = self.now;
        self.waiting.get_mut(source).is_none_or(|waiting| waiting.has_settled(&json!([entry, what]), now))
    }
}

/// Returns the name, ids and places of an entry, limited to the fields that `shown` has.
fn identity(entry: &Entry, shown: &Entry) -> Value {
    let ids = entry.posix.as_ref().filter(|_| shown.posix.is_some()).map(|posix| (posix.uid, posix.gid));
    json!({
        "name": entry.name,
        "dn": entry.dn,
        "ids": ids,
        "gid": entry.gid.filter(|_| shown.gid.is_some()),
        "home": entry.home.as_ref().filter(|_| !shown.home_by_default),
        "mail": entry.mail,
        "person": entry.person.as_ref().filter(|_| shown.person.is_some()),
        "display_name": entry.display_name,
        "sid": entry.sid.as_ref().filter(|_| shown.sid.is_some()),
    })
}
