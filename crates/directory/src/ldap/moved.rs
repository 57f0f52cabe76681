//! Turns objects that may have changed in a domain into the mirror that a full read would give. Each object is
//! requested again by its id, together with the groups that name the object by a DN that it no longer has.
//!
//! A group shows its members by DN but stores them by id. After a member is renamed, the server shows the new DN in the
//! group, but does not report a change of the group (MS-ADTS 3.1.1.1.6). If one object gives up a DN, another may take
//! it, and must not inherit its groups.

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

/// The number of the object's last change, in the count of one domain controller.
const USN: &str = "uSNChanged";
/// Objects that are requested in one search. An id takes 61 bytes of the filter.
const AT_ONCE: usize = 100;
/// The most objects that are requested by their ids. For more, a full read is less work.
const MANY: usize = 2_000;
/// The most rounds from changed objects to the groups that name them. One round is enough unless names change
/// meanwhile.
const ROUNDS: usize = 8;

/// Lists the objects of the trees, and returns the ids that were added, removed or renamed since `mirror`, or changed
/// after `usn`.
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

/// Requests the objects `changed` again, and returns `mirror` with their state. Returns `None` if a full read is less
/// work.
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

/// DNs that objects gave up, and DNs that objects took.
#[derive(Default)]
struct Names {
    left: HashSet<Dn>,
    taken: Vec<String>,
}

/// A mirror, and the entries that were read since.
struct Now<'a> {
    mirror: &'a Mirror,
    /// The new entries; `None` if an object is gone.
    news: BTreeMap<AccountKind, BTreeMap<Id, Option<Arc<RawEntry>>>>,
}

impl Now<'_> {
    fn get(&self, kind: AccountKind, id: &[u8]) -> Option<&RawEntry> {
        match self.news.get(&kind).and_then(|news| news.get(id)) {
            Some(entry) => entry.as_deref(),
            None => self.mirror.get(kind, id),
        }
    }

    /// Requests the objects `ids`, in each tree as a full read does, and returns the DNs that changed.
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

    /// Returns the ids of known entries that name one of `left`.
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

    /// Returns the ids of entries that name one of `taken` on the server. The mirror does not know all of them: an
    /// entry may have named the object before the mirror knew the object, or by an older DN.
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

/// Returns the attributes of entries of `kind` that name other entries by DN.
pub(super) fn naming(source: &SourceConfig, kind: AccountKind) -> Vec<&str> {
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

/// Returns `tree`, limited to entries that have one of `values`, which are escaped already.
fn narrowed<'a>(tree: &Tree, values: impl Iterator<Item = (&'a str, String)>) -> Tree {
    let filter = &tree.filter;
    let filter = if filter.starts_with('(') { filter.clone() } else { format!("({filter})") };
    let mut any = String::new();
    for (name, value) in values {
        let _ = write!(any, "({name}={value})");
    }
    Tree { filter: format!("(&{filter}(|{any}))"), ..tree.clone() }
}

/// Returns an id as the value of a filter.
pub(super) fn escaped(id: &[u8]) -> String {
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
