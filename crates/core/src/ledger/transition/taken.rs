//! Keeps people out of groups that name them only by a DN or name that another account had before.
//!
//! Values of `member` and `memberUid` are text. After a DN or name has passed to somebody else, such a value still
//! means the former holder, unless the server changes it together with the entries (`refint`). The immutable ids decide
//! who has the DN or name now; only the memberships that come from it are doubted. Nothing else of the two accounts
//! waits.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::{HashMap, HashSet};

use super::Memory;
use super::members::{Named, called_formerly, is_recent, role};
use crate::identity::{AccountKind, AccountName, DirectoryId, Gid, PosixIdentity};
use crate::ledger::{Account, Lifecycle};
use crate::snapshot::dn::Dn;
use crate::snapshot::named::MemberName;
use crate::snapshot::{Entry, SourceRead};

/// An account that had a DN or name.
#[derive(Clone, Copy)]
struct Former<'a> {
    account: &'a Account,
    /// Whether this read is the first one in which the account no longer has it. A group may have been read before this
    /// change.
    is_news: bool,
}

type Formers<'a> = BTreeMap<MemberName, Vec<Former<'a>>>;

/// A group or tool, and everybody whom its entry names.
struct Holder<'r> {
    id: &'r DirectoryId,
    known: Option<&'r Account>,
    names: BTreeSet<&'r DirectoryId>,
}

/// What an entry would gain in this read.
#[derive(Default)]
struct Gain {
    /// Indexes of groups and tools that it would join.
    holders: Vec<usize>,
    gids: Vec<Gid>,
}

/// An entry of the read, valid or rejected.
struct Shown<'r> {
    kind: AccountKind,
    dn: &'r str,
    name: Option<&'r str>,
    posix: Option<&'r PosixIdentity>,
    valid: Option<&'r Entry>,
}

fn shown(read: &SourceRead) -> HashMap<&DirectoryId, Shown<'_>> {
    let rejected = read.rejected.iter().filter_map(|entry| {
        let name = entry.name.as_deref();
        Some((entry.id.as_ref()?, Shown { kind: entry.kind, dn: &entry.dn, name, posix: None, valid: None }))
    });
    let valid = read.entries.iter().map(|entry| {
        let (name, posix) = (Some(entry.name.as_str()), entry.posix.as_ref());
        (&entry.id, Shown { kind: entry.kind, dn: &entry.dn, name, posix, valid: Some(entry) })
    });
    rejected.chain(valid).collect()
}

fn has_gid(posix: Option<&PosixIdentity>, gid: Gid) -> bool {
    posix.is_some_and(|posix| posix.groups.contains(&gid))
}

impl<'a> Memory<'a> {
    /// Withholds the memberships and gids that an entry would gain only because it has the former DN or name of another
    /// account. The other account had these memberships and gids, and the groups no longer name it in any other way.
    /// The other account keeps them meanwhile. Returns a remark for each entry that has to wait.
    pub(super) fn doubt_taken_names<'r>(
        &self,
        read: &'r SourceRead,
        known: &[Option<&'a Account>],
        present: &HashSet<&DirectoryId>,
        named: &mut Named,
    ) -> Vec<(&'r Entry, String)> {
        if !read.labels.stale_dns && !read.labels.stale_names {
            return Vec::new();
        }
        let formers = self.formers(read, known, present);
        if formers.is_empty() {
            return Vec::new();
        }
        let mut remarks = Vec::new();
        let (holders, gains) = self.gains(read, known);
        let shown = shown(read);
        for (id, gain) in gains {
            let Some(entry) = shown.get(id).filter(|entry| entry.kind != AccountKind::Group) else { continue };
            let by_dn = MemberName::Dn(Dn::parse(entry.dn).canonical().to_owned());
            let by_name = entry.name.and_then(|name| read.labels.member_name(entry.kind, name)).map(MemberName::Name);
            let formers = [Some(by_dn), by_name].into_iter().flatten().filter_map(|name| formers.get(&name)).flatten();
            let formers = formers
                .filter(|former| former.account.directory_id != *id && self.adoption(&former.account.id, id).is_none());
            let mut doubted = None;
            for Former { account, is_news } in formers.copied() {
                let other = &account.directory_id;
                for holder in gain.holders.iter().map(|at| &holders[*at]).filter(|holder| !holder.names.contains(other))
                {
                    let had = holder.known.is_some_and(|known| role(known, other).is_some());
                    if had || is_news {
                        named.withheld.entry(holder.id.clone()).or_default().insert(id.clone());
                        doubted = Some(account);
                    }
                    if had {
                        named.keep(holder.id, other);
                    }
                }
                let has = shown.get(other).and_then(|entry| entry.posix);
                for gid in gain.gids.iter().filter(|gid| !has_gid(has, **gid)) {
                    let had = has_gid(account.posix.as_ref(), *gid);
                    if had || is_news {
                        named.withheld_gids.entry(id.clone()).or_default().insert(*gid);
                        doubted = Some(account);
                    }
                    if had {
                        named.gids.entry(other.clone()).or_default().insert(*gid);
                    }
                }
            }
            if let (Some(account), Some(entry)) = (doubted, entry.valid) {
                let name = shown.get(&account.directory_id).and_then(|entry| entry.name).unwrap_or(&account.name);
                let former = AccountName { kind: account.kind, name: name.to_owned() };
                let why = format!(
                    "it has a DN or name that {former} had before, and some groups that use it may still mean that \
                     account: it does not join these groups now; to let it join, write the present DN or name of \
                     {former} into these groups, or remove the old value and add it again after the next read"
                );
                remarks.push((entry, why));
            }
        }
        remarks
    }

    /// Records what [`Self::doubt_taken_names`] returned, after all other rejections.
    pub(super) fn remark(&mut self, source: &str, remarks: Vec<(&Entry, String)>) {
        for (entry, why) in remarks {
            // An entry that is rejected joins nothing, whatever its names are.
            if !self.rejected.iter().any(|other| other.source == source && other.dn == entry.dn) {
                self.reject(source, entry, why);
            }
        }
    }

    /// Returns the DNs and names that accounts of the source no longer have, and that groups may still use for them.
    fn formers(
        &self,
        read: &SourceRead,
        known: &[Option<&'a Account>],
        present: &HashSet<&DirectoryId>,
    ) -> Formers<'a> {
        let limit = self.policy.lifecycle.absent_for.as_secs();
        let mut formers = Formers::new();
        let mut add = |account: &'a Account, name: &str, is_news: bool| {
            let may_be_used = if name.contains('=') { read.labels.stale_dns } else { read.labels.stale_names };
            if let Some(name) = called_formerly(read, account.kind, name).filter(|_| may_be_used) {
                formers.entry(name).or_default().push(Former { account, is_news });
            }
        };
        let is_candidate = |account: &&'a Account| {
            account.source == read.source && account.kind != AccountKind::Group && account.state != Lifecycle::Deleted
        };
        for account in self.ledger.accounts.values().filter(is_candidate) {
            for (name, until) in &account.former_dns {
                if is_recent(*until, self.now) {
                    add(account, name, false);
                }
            }
            if !present.contains(&account.directory_id) && account.absence.is_none_or(|absence| absence.seconds < limit)
            {
                add(account, &account.dn, account.absence.is_none());
                add(account, &account.name, account.absence.is_none());
            }
        }
        for (entry, account) in read.entries.iter().zip(known) {
            let Some(account) = account.filter(is_candidate) else { continue };
            for (before, now) in [(&account.dn, &entry.dn), (&account.name, &entry.name)] {
                if before != now {
                    add(account, before, true);
                }
            }
        }
        for rejected in &read.rejected {
            let account = rejected.id.as_ref().and_then(|id| self.known.get(&(read.source.as_str(), id)));
            let Some(account) = account.copied().filter(is_candidate) else { continue };
            if account.dn != rejected.dn {
                add(account, &account.dn, false);
            }
            if rejected.name.as_ref().is_some_and(|name| account.name != *name) {
                add(account, &account.name, false);
            }
        }
        formers
    }

    /// Returns the groups and tools that somebody would join, and what each entry would gain.
    fn gains<'r>(
        &self,
        read: &'r SourceRead,
        known: &[Option<&'r Account>],
    ) -> (Vec<Holder<'r>>, BTreeMap<&'r DirectoryId, Gain>)
    where
        'a: 'r,
    {
        let (mut holders, mut gains) = (Vec::new(), BTreeMap::<&DirectoryId, Gain>::new());
        let mut note = |id, known: Option<&'r Account>, new: Vec<&'r DirectoryId>, names| {
            if !new.is_empty() {
                for member in new {
                    gains.entry(member).or_default().holders.push(holders.len());
                }
                holders.push(Holder { id, known, names });
            }
        };
        for (entry, account) in read.entries.iter().zip(known) {
            if account.is_some_and(|account| account.members == entry.members && account.leaving.is_empty()) {
                continue;
            }
            let before = |member| account.and_then(|account| role(account, member));
            let new = entry.members.iter().filter(|(member, role)| before(member).is_none_or(|before| before < **role));
            note(&entry.id, *account, new.map(|(member, _)| member).collect(), entry.members.keys().collect());
        }
        for id in read.rejected.iter().filter_map(|rejected| rejected.id.as_ref()) {
            let Some(names) = read.nesting.members(id) else { continue };
            let account = self.known.get(&(read.source.as_str(), id)).copied();
            let is_new = |member: &&&DirectoryId| account.is_none_or(|account| role(account, member).is_none());
            note(id, account, names.iter().filter(is_new).copied().collect(), names);
        }
        for (entry, account) in read.entries.iter().zip(known) {
            let Some(posix) = &entry.posix else { continue };
            let before = account.and_then(|account| account.posix.as_ref());
            let new = posix.groups.iter().filter(|gid| before.is_none_or(|before| !before.groups.contains(gid)));
            let mut new = new.copied().peekable();
            if new.peek().is_some() {
                gains.entry(&entry.id).or_default().gids.extend(new);
            }
        }
        (holders, gains)
    }
}
