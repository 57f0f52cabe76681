//! Notices that a container was renamed or moved. All entries below it then get new DNs, but a server that reports
//! changes (RFC 4533) reports none of these entries. A DN may then belong to another entry than the mirror says, so a
//! group that names this DN would gain or lose the wrong member.

use bursar_core::identity::AccountKind;
use bursar_core::snapshot::dn::Dn;
use foldhash::{HashMap, HashSet};

use super::moved::naming;
use crate::entry::assemble::KINDS;
use crate::entry::raw::RawEntry;
use crate::source::SourceConfig;
use crate::sync::mirror::{Id, Mirror, News};

/// The DNs that changes bring.
pub(super) struct NewDns {
    /// The DNs that entries got.
    taken: HashSet<Dn>,
    /// The DNs below the bases that groups name for the first time.
    named: HashSet<Dn>,
}

impl NewDns {
    /// Returns the DNs that `news` bring to the entries of `before`.
    pub(super) fn of<'n>(
        source: &SourceConfig,
        before: &Mirror,
        news: impl Iterator<Item = (AccountKind, &'n News)>,
    ) -> Self {
        let trees = KINDS.into_iter().filter_map(|kind| source.tree(kind));
        let bases: Vec<Dn> = trees.map(|tree| Dn::parse(&tree.base)).collect();
        let (mut taken, mut named) = (HashSet::default(), HashSet::default());
        for (kind, news) in news {
            let attributes = naming(source, kind);
            let members = |entry: &RawEntry| {
                let values = attributes.iter().flat_map(|name| entry.texts(name));
                values.map(Dn::parse_with_optional_uid).collect::<HashSet<Dn>>()
            };
            for (id, entry) in news.entries() {
                let known = before.get(kind, id);
                if known.is_none_or(|known| known.dn != entry.dn) {
                    taken.insert(Dn::parse(&entry.dn));
                }
                let known = known.map(members).unwrap_or_default();
                let is_new = |dn: &Dn| !known.contains(dn) && bases.iter().any(|base| dn.is_within(base));
                named.extend(members(entry).into_iter().filter(is_new));
            }
        }
        Self { taken, named }
    }

    /// Whether no two entries of `after` have one of the DNs, and each DN that groups name belongs to an entry of
    /// `before` or `after`.
    pub(super) fn fit(mut self, before: &Mirror, after: &Mirror) -> bool {
        if self.taken.is_empty() && self.named.is_empty() {
            return true;
        }
        let mut holders: HashMap<Dn, &Id> = HashMap::default();
        for (id, entry) in after.entries() {
            let dn = Dn::parse(&entry.dn);
            self.named.remove(&dn);
            if self.taken.contains(&dn) && holders.insert(dn, id).is_some_and(|other| other != id) {
                return false;
            }
        }
        if !self.named.is_empty() {
            for (_, entry) in before.entries() {
                self.named.remove(&Dn::parse(&entry.dn));
            }
        }
        self.named.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Preset;

    const USER: AccountKind = AccountKind::User;
    const GROUP: AccountKind = AccountKind::Group;

    fn source() -> SourceConfig {
        let groups = Some(Preset::Rfc2307bis.tree(GROUP, "ou=groups,dc=x"));
        SourceConfig { groups, ..SourceConfig::of_people(Preset::Rfc2307bis) }
    }

    type Put<'a> = (AccountKind, &'a str, RawEntry);

    fn person<'a>(id: &'a str, dn: &str) -> Put<'a> {
        (USER, id, RawEntry::new(format!("{dn},ou=people,dc=x")))
    }

    fn group<'a>(id: &'a str, members: &[&str]) -> Put<'a> {
        let members: Vec<(&str, &str)> = members.iter().map(|dn| ("member", *dn)).collect();
        (GROUP, id, RawEntry::from_texts(&format!("cn={id},ou=groups,dc=x"), &members))
    }

    fn news(begun: &News, puts: &[Put<'_>]) -> BTreeMap<AccountKind, News> {
        let mut news = BTreeMap::from([(USER, begun.clone()), (GROUP, begun.clone())]);
        for (kind, id, entry) in puts {
            news.get_mut(kind).expect("the source has this kind").put(id.as_bytes().to_vec(), entry.clone());
        }
        news
    }

    #[test]
    fn dns_that_no_known_entry_has_show_that_a_container_was_moved() {
        let (old, new) = ("uid=alice,ou=a,ou=people,dc=x", "UID=Alice,ou=b,ou=people,dc=x");
        let gone = "uid=gone,ou=people,dc=x";
        let first = [person("1", "uid=alice,ou=a"), group("staff", &[gone])];
        let before = Mirror::default().with(news(&News::of_everything(), &first)).expect("all entries are new");
        let fit = |puts: &[Put<'_>]| {
            let changes = news(&News::default(), puts);
            let dns = NewDns::of(&source(), &before, changes.iter().map(|(kind, news)| (*kind, news)));
            dns.fit(&before, &before.with(changes).expect("no entry is reported as unchanged"))
        };
        assert!(fit(&[]) && fit(&[group("lab", &[old])]));
        assert!(fit(&[group("staff", &[gone, old])]), "the group named the missing entry before");
        assert!(fit(&[group("lab", &["uid=alice,ou=elsewhere,dc=x", "cn=staff,ou=groups,dc=x"])]));
        assert!(!fit(&[group("lab", &[gone])]));
        // The server reported that Alice moved.
        assert!(fit(&[person("1", "uid=alice,ou=b"), group("lab", &[old, new])]));
        assert!(fit(&[person("1", "uid=alice,ou=b"), person("2", "uid=alice,ou=a")]));
        // Alice moved with her container, and another entry may get her former DN.
        assert!(!fit(&[group("lab", &[new])]));
        assert!(!fit(&[person("2", "uid=ALICE,ou=a")]));
    }
}
