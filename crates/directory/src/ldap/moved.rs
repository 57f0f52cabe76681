//! From what may have changed in a domain to what a full read of it would show: each object is asked for again by its id,
//! and with it the groups that name it by a name it no longer has.
//!
//! A group names its members by DN, but knows them by id: the server shows them under their new names, and tells nobody
//! that the group looks different now (MS-ADTS 3.1.1.1.6). Where somebody leaves a name, another may take it, and must
//! not find groups with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use bursar_core::identity::AccountKind;
use bursar_core::snapshot::dn::Dn;
use foldhash::HashSet;
use ldap3::{Ldap, ldap_escape};

use super::active_directory::{ID, id_of};
use super::connection::ReadError;
use super::{asked, read_matching};
use crate::entry::assemble::KINDS;
use crate::entry::raw::RawEntry;
use crate::source::{LdapConfig, SourceConfig, Tree};
use crate::sync::mirror::{Id, Mirror, News};

/// The count of a controller's changes that an object had part in last.
const USN: &str = "uSNChanged";
/// Objects asked for in one search. An id is 61 bytes of its filter.
const AT_ONCE: usize = 100;
/// Objects that are asked for one by one, at most: of more, a full read asks less.
const MANY: usize = 2_000;
/// Rounds from objects to groups that name them. One is enough unless names change meanwhile.
const ROUNDS: usize = 8;

/// What in `mirror` is not where a list of the objects that are there has it, or has changed after `usn`.
pub(super) async fn listed(
    ldap: &mut Ldap,
    config: &LdapConfig,
    source: &SourceConfig,
    mirror: &Mirror,
    usn: u64,
) -> Result<BTreeSet<Id>, ReadError> {
    let mut changed = BTreeSet::new();
    for kind in KINDS {
        let Some(tree) = source.tree(kind) else { continue };
        let mut there = BTreeSet::new();
        for entry in matching(ldap, config, source, tree, &[ID, USN]).await? {
            let id = id_of(&entry).ok_or(ReadError::Unparsable)?;
            let at = entry.texts(USN).next().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
            if at > usn || mirror.get(kind, &id).is_none_or(|known| known.dn != entry.dn) {
                changed.insert(id.clone());
            }
            there.insert(id);
        }
        changed.extend(mirror.ids(kind).filter(|id| !there.contains(*id)).cloned());
    }
    Ok(changed)
}

/// `mirror` as it is after all that `changed` was asked for again. `None`: a full read is less work.
pub(super) async fn follow(
    ldap: &mut Ldap,
    config: &LdapConfig,
    source: &SourceConfig,
    mirror: &Mirror,
    mut changed: BTreeSet<Id>,
) -> Result<Option<Mirror>, ReadError> {
    let mut now = Now { mirror, news: BTreeMap::new() };
    for _ in 0..ROUNDS {
        if changed.is_empty() {
            return Ok(now.into_mirror());
        }
        if changed.len() > MANY {
            return Ok(None);
        }
        let names = now.ask(ldap, config, source, &changed).await?;
        changed = now.holding(source, &names.left);
        changed.extend(now.naming(ldap, config, source, &names.taken).await?);
    }
    Ok(None)
}

/// Names that objects left and took.
#[derive(Default)]
struct Names {
    left: HashSet<Dn>,
    taken: Vec<String>,
}

/// A mirror, and what is known beyond it.
struct Now<'a> {
    mirror: &'a Mirror,
    /// `None`: it is not there any more.
    news: BTreeMap<AccountKind, BTreeMap<Id, Option<Arc<RawEntry>>>>,
}

impl Now<'_> {
    fn get(&self, kind: AccountKind, id: &[u8]) -> Option<&RawEntry> {
        match self.news.get(&kind).and_then(|news| news.get(id)) {
            Some(entry) => entry.as_deref(),
            None => self.mirror.get(kind, id),
        }
    }

    /// Asks for the objects `ids`, in each tree as a full read does.
    async fn ask(
        &mut self,
        ldap: &mut Ldap,
        config: &LdapConfig,
        source: &SourceConfig,
        ids: &BTreeSet<Id>,
    ) -> Result<Names, ReadError> {
        let mut names = Names::default();
        let all: Vec<&Id> = ids.iter().collect();
        for kind in KINDS {
            let Some(tree) = source.tree(kind) else { continue };
            let attributes = asked(config, source, kind);
            let mut found = BTreeMap::new();
            for some in all.chunks(AT_ONCE) {
                let tree = narrowed(tree, some.iter().map(|id| (ID, escaped(id))));
                let mut entries = Vec::new();
                read_matching(ldap, config, source, &tree, &attributes, &mut entries).await?;
                for entry in entries {
                    found.insert(id_of(&entry).ok_or(ReadError::Unparsable)?, entry);
                }
            }
            for id in ids {
                let (before, after) = (self.get(kind, id), found.remove(id));
                if before == after.as_deref() {
                    continue;
                }
                let dn = |entry: &RawEntry| entry.dn.clone();
                let (left, taken) = (before.map(dn), after.as_deref().map(dn));
                if left != taken {
                    names.left.extend(left.map(|dn| Dn::parse(&dn)));
                    names.taken.extend(taken);
                }
                self.news.entry(kind).or_default().insert(id.clone(), after);
            }
        }
        Ok(names)
    }

    /// Entries known here that name one of `left`.
    fn holding(&self, source: &SourceConfig, left: &HashSet<Dn>) -> BTreeSet<Id> {
        let mut holding = BTreeSet::new();
        if left.is_empty() {
            return holding;
        }
        for kind in KINDS {
            let names = naming(source, kind);
            let news = self.news.get(&kind).into_iter().flat_map(BTreeMap::keys);
            for id in self.mirror.ids(kind).chain(news) {
                let Some(entry) = self.get(kind, id) else { continue };
                let mut values = names.iter().flat_map(|name| entry.texts(name));
                if values.any(|dn| left.contains(&Dn::parse(dn))) {
                    holding.insert(id.clone());
                }
            }
        }
        holding
    }

    /// Entries that name one of `taken`, as the server has it: they may have named it before it was known here, and by
    /// a name that was not.
    async fn naming(
        &self,
        ldap: &mut Ldap,
        config: &LdapConfig,
        source: &SourceConfig,
        taken: &[String],
    ) -> Result<BTreeSet<Id>, ReadError> {
        let mut ids = BTreeSet::new();
        for kind in KINDS {
            let names = naming(source, kind);
            let Some(tree) = source.tree(kind).filter(|_| !names.is_empty()) else { continue };
            for some in taken.chunks(AT_ONCE) {
                let values =
                    some.iter().flat_map(|dn| names.iter().map(|name| (*name, ldap_escape(dn.as_str()).into_owned())));
                for entry in matching(ldap, config, source, &narrowed(tree, values), &[ID]).await? {
                    ids.insert(id_of(&entry).ok_or(ReadError::Unparsable)?);
                }
            }
        }
        Ok(ids)
    }

    fn into_mirror(self) -> Option<Mirror> {
        let mut trees = BTreeMap::new();
        for (kind, entries) in self.news {
            let mut news = News::default();
            for (id, entry) in entries {
                match entry {
                    Some(entry) => news.put(id, entry),
                    None => news.remove(id),
                }
            }
            trees.insert(kind, news);
        }
        self.mirror.with(trees)
    }
}

/// Attributes of entries of `kind` that name others by DN.
fn naming(source: &SourceConfig, kind: AccountKind) -> Vec<&str> {
    if kind == AccountKind::User {
        return Vec::new();
    }
    source.attributes.member_dns.iter().chain(&source.attributes.managers).map(String::as_str).collect()
}

async fn matching(
    ldap: &mut Ldap,
    config: &LdapConfig,
    source: &SourceConfig,
    tree: &Tree,
    attributes: &[&str],
) -> Result<Vec<Arc<RawEntry>>, ReadError> {
    let attributes: Vec<String> = attributes.iter().map(|name| (*name).to_owned()).collect();
    let mut entries = Vec::new();
    read_matching(ldap, config, source, tree, &attributes, &mut entries).await?;
    Ok(entries)
}

/// `tree`, but only what has one of these values, which are escaped.
fn narrowed<'a>(tree: &Tree, values: impl Iterator<Item = (&'a str, String)>) -> Tree {
    let filter = &tree.filter;
    let filter = if filter.starts_with('(') { filter.clone() } else { format!("({filter})") };
    let mut any = String::new();
    for (name, value) in values {
        let _ = write!(any, "({name}={value})");
    }
    Tree { filter: format!("(&{filter}(|{any}))"), ..tree.clone() }
}

fn escaped(id: &[u8]) -> String {
    let mut text = String::with_capacity(3 * id.len());
    for byte in id {
        let _ = write!(text, "\\{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Preset;

    #[test]
    fn a_tree_is_narrowed_to_ids() {
        let mut tree = Preset::Ad.tree(AccountKind::Group, "dc=x");
        let values = || [(ID, escaped(&[1, 0xab])), (ID, escaped(&[0x28]))].into_iter();
        let wanted = "(&(objectClass=group)(|(objectGUID=\\01\\ab)(objectGUID=\\28)))";
        assert_eq!(narrowed(&tree, values()).filter, wanted);
        tree.filter = "objectClass=group".to_owned();
        assert_eq!(narrowed(&tree, values()).filter, wanted);
        assert!(ldap3::parse_filter(wanted).is_ok());
    }
}
