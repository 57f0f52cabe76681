//! Attributes that vanish from most accounts at once, because an access rule hides them or the schema no longer has
//! them. Their last values stay until an administrator approves the loss.

use std::collections::BTreeSet;

use foldhash::HashSet;

use super::Memory;
use super::members::{Named, gid_of, staying};
use crate::identity::{AccountKind, DirectoryId};
use crate::ledger::Account;
use crate::ledger::approval::is_approved;
use crate::ledger::change::Change;
use crate::ledger::doubt::{Doubt, DoubtKey, Question};
use crate::snapshot::held::Gives;
use crate::snapshot::{Entry, SourceRead};

/// If fewer accounts had an attribute, its loss is not a sign of an access rule.
const ENOUGH: u64 = 10;

/// An attribute whose loss is believed only with proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Attribute {
    Home,
    SshKeys,
    Mail,
    Uid,
}

const ATTRIBUTES: [Attribute; 4] = [Attribute::Home, Attribute::SshKeys, Attribute::Mail, Attribute::Uid];

/// Attributes that most accounts of a kind no longer show.
pub(super) type Hidden = BTreeSet<(AccountKind, Attribute)>;

/// How many accounts had an attribute before, and how many of them have it now.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    before: u64,
    now: u64,
}

impl Count {
    const fn is_hidden(self) -> bool {
        self.before >= ENOUGH && self.now * 2 < self.before
    }
}

impl Memory<'_> {
    /// Returns the attributes that a read hides, and records a doubt for each. `known` has the account of each entry.
    /// An approval stays until a read is complete and its server is not behind (`holds`), because that read removes the
    /// values.
    pub(super) fn hidden(
        &mut self,
        read: &SourceRead,
        known: &[Option<&Account>],
        complete: bool,
        holds: bool,
    ) -> Hidden {
        let mut hidden = Hidden::new();
        for kind in [AccountKind::Tool, AccountKind::User].into_iter().filter(|kind| read.kinds.contains(kind)) {
            for attribute in ATTRIBUTES {
                let label = match attribute {
                    Attribute::Home => &read.labels.home,
                    Attribute::SshKeys => &read.labels.ssh_keys,
                    Attribute::Mail => &read.labels.mail,
                    Attribute::Uid => &read.labels.uid,
                };
                let question = match attribute {
                    Attribute::Uid => Question::Uid(label.clone()),
                    Attribute::Home | Attribute::SshKeys | Attribute::Mail => Question::Attribute(label.clone()),
                };
                let key = DoubtKey { source: read.source.clone(), kind, question };
                let count = self.count(read, known, kind, attribute);
                if self.is_hidden(key, count, complete, holds) {
                    hidden.insert((kind, attribute));
                } else if attribute == Attribute::Home && complete {
                    self.homes_shown(&read.source, kind, count_homes(read, kind));
                }
            }
        }
        hidden
    }

    /// Lets members keep the gids of their groups if most groups and tools that gave their gid to a member no longer
    /// show it.
    pub(super) fn doubt_gids(&mut self, read: &SourceRead, named: &mut Named, complete: bool, holds: bool) {
        let claims = read.gids.iter().filter(|claim| claim.gives != Gives::Nobody);
        let claimed: HashSet<&DirectoryId> = claims.flat_map(|claim| &claim.ids).collect();
        let (mut count, mut silent) = (Count::default(), Vec::new());
        for entry in read.entries.iter().filter(|entry| entry.kind != AccountKind::User) {
            let Some(account) = self.known.get(&(read.source.as_str(), &entry.id)).copied() else { continue };
            let Some(gid) = gid_of(account) else { continue };
            let has_it = |member: &DirectoryId| {
                let person = self.known.get(&(read.source.as_str(), member));
                person.and_then(|person| person.posix.as_ref()).is_some_and(|posix| posix.groups.contains(&gid))
            };
            if !staying(account).any(has_it) {
                continue;
            }
            count.before += 1;
            if entry.gid.is_some() || claimed.contains(&entry.id) {
                count.now += 1;
            } else {
                silent.push((account, gid));
            }
        }
        let question = Question::Attribute(read.labels.gid.clone());
        let key = DoubtKey { source: read.source.clone(), kind: AccountKind::Group, question };
        if !self.is_hidden(key, count, complete, holds) {
            return;
        }
        for (account, gid) in silent {
            for member in staying(account) {
                named.gids.entry(member.clone()).or_default().insert(gid);
            }
        }
    }

    /// Whether the attribute of `key` is hidden. If so, records a doubt, otherwise ends it.
    fn is_hidden(&mut self, key: DoubtKey, count: Count, complete: bool, holds: bool) -> bool {
        let approved = is_approved(&self.ledger.approvals, &key.part(), self.now);
        if count.is_hidden() && !approved {
            self.doubt(key, count.before, count.now);
            return true;
        }
        if approved && complete && !holds {
            self.result.changes.push(Change::Approval(key.part(), None));
        }
        if complete || !count.is_hidden() {
            self.believe(key);
        }
        false
    }

    fn homes_shown(&mut self, source: &str, kind: AccountKind, now: u64) {
        let known = self.ledger.homes_shown.get(&(source.to_owned(), kind));
        if known.copied().unwrap_or_default() != now {
            self.result.changes.push(Change::HomesShown(source.to_owned(), kind, now));
        }
    }

    /// Counts only accounts in the read, because a missing account proves nothing about an attribute.
    fn count(&self, read: &SourceRead, known: &[Option<&Account>], kind: AccountKind, attribute: Attribute) -> Count {
        let (mut count, mut present) = (Count::default(), 0);
        for (entry, account) in read.entries.iter().zip(known).filter(|(entry, _)| entry.kind == kind) {
            let Some(account) = account else { continue };
            present += 1;
            count.before += u64::from(attribute.had(account));
            count.now += u64::from(attribute.had(account) && attribute.has(entry));
        }
        let rejected = read.rejected.iter().filter(|entry| entry.kind == kind);
        let rejected = rejected
            .filter_map(|entry| Some((entry, *self.known.get(&(read.source.as_str(), entry.id.as_ref()?))?)))
            .filter(|(_, account)| attribute.had(account));
        match attribute {
            Attribute::Home => {
                // The ledger does not know which homes the directory showed, and which were made from the configured
                // prefix. Therefore this uses the former count of shown homes, limited to the accounts in the read.
                let shown = self.ledger.homes_shown.get(&(read.source.clone(), kind)).copied().unwrap_or_default();
                Count { before: shown.min(present), now: count_homes(read, kind) }
            }
            Attribute::Uid => {
                let lost = rejected.filter(|(entry, _)| entry.why.contains(&read.labels.uid)).count();
                Count { before: count.before + lost as u64, ..count }
            }
            Attribute::SshKeys => {
                // Rejected entries count too. They can take keys away, and an access rule that hides keys may also make
                // entries invalid.
                for held in rejected.filter_map(|(entry, _)| read.held.get(&entry.dn)) {
                    count.before += 1;
                    count.now += u64::from(!held.ssh_keys.is_empty());
                }
                count
            }
            Attribute::Mail => count,
        }
    }

    fn doubt(&mut self, key: DoubtKey, before: u64, now: u64) {
        let known = self.ledger.doubts.get(&key);
        let since = known.map_or(self.now, |known| known.since);
        let doubt = Doubt { since, before, now, accounts: BTreeSet::new(), proof: None, counted: None };
        if known != Some(&doubt) {
            self.result.changes.push(Change::Doubt(key, Some(doubt)));
        }
    }

    /// Ends a doubt, if there is one, because the statement is believed now.
    pub(super) fn believe(&mut self, key: DoubtKey) {
        if self.ledger.doubts.contains_key(&key) {
            self.result.changes.push(Change::Doubt(key, None));
        }
    }
}

impl Attribute {
    fn had(self, account: &Account) -> bool {
        match self {
            Self::Home => account.home.is_some(),
            Self::SshKeys => !account.ssh_keys.is_empty(),
            Self::Mail => account.mail.is_some(),
            Self::Uid => account.posix.is_some(),
        }
    }

    fn has(self, entry: &Entry) -> bool {
        match self {
            Self::Home => entry.home.is_some() && !entry.home_by_default,
            Self::SshKeys => !entry.ssh_keys.is_empty(),
            Self::Mail => entry.mail.is_some(),
            Self::Uid => entry.posix.is_some(),
        }
    }
}

fn count_homes(read: &SourceRead, kind: AccountKind) -> u64 {
    read.entries.iter().filter(|entry| entry.kind == kind && Attribute::Home.has(entry)).count() as u64
}
