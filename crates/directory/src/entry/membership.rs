//! Resolves the members of nested groups.
//!
//! Servers are asked only for direct members: `memberOf` and the matching rule `LDAP_MATCHING_RULE_IN_CHAIN` give
//! different answers on different servers, and their changes are not reported. Cycles are cut. If groups are nested
//! deeper than [`DEPTH`], the result says so.

use std::collections::BTreeSet;

use bursar_core::snapshot::dn::Dn;
use foldhash::{HashMap, HashSet};

/// How deep groups may be nested. Real directories stay below ten; deeper nesting is a mistake or an attack.
pub const DEPTH: usize = 32;

/// A member as a group names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member {
    /// A value of `member` or `uniqueMember`.
    Dn(Dn),
    /// A value of `memberUid`: the name as the directory writes it.
    Name(String),
}

/// Groups by DN, each with its direct members.
pub type Groups = HashMap<Dn, BTreeSet<Member>>;

/// The members of a group that are not groups themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Closure<'a> {
    /// Direct members and those of nested groups.
    pub members: HashSet<&'a Member>,
    /// Whether groups deeper than [`DEPTH`] were not resolved, so that `members` may be incomplete.
    pub too_deep: bool,
}

/// Resolves the members of `start`. A group that contains itself, directly or through others, is resolved once.
#[must_use]
pub fn closure<'a>(groups: &'a Groups, start: &'a Dn) -> Closure<'a> {
    let mut closure = Closure::default();
    let mut seen = HashSet::from_iter([start]);
    let mut level = vec![start];
    for _ in 0..=DEPTH {
        let mut next = Vec::new();
        for member in level.iter().filter_map(|group| groups.get(*group)).flatten() {
            match member {
                Member::Dn(dn) if groups.contains_key(dn) => {
                    if seen.insert(dn) {
                        next.push(dn);
                    }
                }
                leaf => {
                    closure.members.insert(leaf);
                }
            }
        }
        if next.is_empty() {
            return closure;
        }
        level = next;
    }
    closure.too_deep = true;
    closure
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dn(number: usize) -> Dn {
        Dn::parse(&format!("cn=g{number}"))
    }

    fn name(text: &str) -> Member {
        Member::Name(text.to_owned())
    }

    #[test]
    fn nested_groups_are_resolved_and_cycles_cut() {
        let groups = Groups::from_iter([
            (dn(0), BTreeSet::from([Member::Dn(dn(1)), name("a")])),
            (dn(1), BTreeSet::from([Member::Dn(dn(2)), Member::Dn(dn(1)), name("b")])),
            (dn(2), BTreeSet::from([Member::Dn(dn(0)), Member::Dn(Dn::parse("uid=c"))])),
        ]);
        let all = BTreeSet::from([name("a"), name("b"), Member::Dn(Dn::parse("uid=c"))]);
        for start in 0..3 {
            assert_eq!(closure(&groups, &dn(start)), Closure { members: all.iter().collect(), too_deep: false });
        }
    }

    #[test]
    fn nesting_beyond_the_limit_is_reported() {
        let chain = |length: usize| -> Groups {
            (0..length).map(|at| (dn(at), BTreeSet::from([Member::Dn(dn(at + 1)), name(&format!("u{at}"))]))).collect()
        };
        let (groups, start) = (chain(DEPTH + 1), dn(0));
        let fits = closure(&groups, &start);
        assert!(!fits.too_deep);
        assert!(fits.members.contains(&name(&format!("u{DEPTH}"))));
        assert!(closure(&chain(DEPTH + 2), &dn(0)).too_deep);
    }

    #[test]
    fn an_unknown_group_has_no_members() {
        assert_eq!(closure(&Groups::default(), &dn(0)), Closure::default());
    }

    /// Returns all members that can be reached from `start` by following edges until no new group is found.
    fn reachable(edges: &[(usize, usize)], leaves: &[(usize, usize)], start: usize) -> BTreeSet<Member> {
        let mut reached = BTreeSet::from([start]);
        loop {
            let more: Vec<_> =
                edges.iter().filter(|(from, to)| reached.contains(from) && !reached.contains(to)).collect();
            if more.is_empty() {
                break;
            }
            reached.extend(more.iter().map(|(_, to)| *to));
        }
        leaves.iter().filter(|(group, _)| reached.contains(group)).map(|(_, user)| name(&format!("u{user}"))).collect()
    }

    proptest! {
        #[test]
        fn the_closure_holds_exactly_the_reachable_members(
            edges in proptest::collection::vec((0..12_usize, 0..12_usize), 0..40),
            leaves in proptest::collection::vec((0..12_usize, 0..20_usize), 0..40),
        ) {
            let mut groups: Groups = (0..12).map(|group| (dn(group), BTreeSet::new())).collect();
            for (from, to) in &edges {
                groups.entry(dn(*from)).or_default().insert(Member::Dn(dn(*to)));
            }
            for (group, user) in &leaves {
                groups.entry(dn(*group)).or_default().insert(name(&format!("u{user}")));
            }
            for start in 0..12 {
                let from = dn(start);
                let found = closure(&groups, &from);
                prop_assert!(!found.too_deep);
                let found: BTreeSet<_> = found.members.into_iter().cloned().collect();
                prop_assert_eq!(found, reachable(&edges, &leaves, start));
            }
        }
    }
}
