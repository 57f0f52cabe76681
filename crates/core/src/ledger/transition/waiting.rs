//! What is believed of an entry while its server may be behind another one that was heard lately.
//!
//! What narrows is believed at once. What widens, and what an entry is called and where it is, waits until every
//! answer within the settling time has shown it: an answer against it may be the newer one.

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

/// What the last answers showed without a break, and since when.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    before: BTreeMap<String, Timestamp>,
    shown: BTreeMap<String, Timestamp>,
}

impl Waiting {
    pub(super) const fn after(before: BTreeMap<String, Timestamp>) -> Self {
        Self { before, shown: BTreeMap::new() }
    }

    /// What this answer showed. It is against the rest.
    pub(super) fn into_shown(self) -> BTreeMap<String, Timestamp> {
        self.shown
    }

    /// This answer shows `what`: whether every answer of the settling time did.
    fn has_settled(&mut self, what: &Value, now: Timestamp) -> bool {
        let digest: String = digest(what).chars().take(32).collect();
        let since = self.before.get(&digest).copied().filter(|since| *since <= now).unwrap_or(now);
        self.shown.insert(digest, since);
        now.duration_since(since) >= SETTLES
    }
}

/// An entry as far as it is believed.
pub(super) struct Believed<'e> {
    pub(super) entry: Cow<'e, Entry>,
    /// Whom the entry names, believed or not.
    pub(super) names: &'e BTreeMap<DirectoryId, Role>,
    /// Its name, ids and places are those of the directory.
    pub(super) is_itself: bool,
    /// If it was absent, it is there again.
    pub(super) is_back: bool,
}

impl<'e> Believed<'e> {
    pub(super) const fn whole(entry: &'e Entry) -> Self {
        Self { entry: Cow::Borrowed(entry), names: &entry.members, is_itself: true, is_back: true }
    }
}

impl Memory<'_> {
    /// What is believed of the entry of `account`, from a server that may be behind.
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

    /// What is believed of an entry that no account has. `None`: it waits.
    pub(super) fn believed_new<'e>(&mut self, source: &str, entry: &'e Entry) -> Option<Believed<'e>> {
        let nothing = Entry::new(entry.kind, entry.id.0.as_str(), "", "");
        let believed = self.without_gains(source, entry, &nothing);
        let who = json!({ "new": identity(entry, entry), "disabled": entry.disabled.is_some() });
        let is_itself = self.has_settled(source, &entry.id, &who);
        is_itself.then_some(Believed { entry: Cow::Owned(believed), names: &entry.members, is_itself, is_back: true })
    }

    /// `entry` with what `known` has as well, and with what has settled.
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

    /// Whether every answer of the settling time showed this of an entry.
    pub(super) fn has_settled(&mut self, source: &str, entry: &DirectoryId, what: &Value) -> bool {
        let now = self.now;
        self.waiting.get_mut(source).is_none_or(|waiting| waiting.has_settled(&json!([entry, what]), now))
    }
}

/// What an entry is called and where it is, as far as `shown` says it.
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
