//! The groups of one source, and whom they mean: from flat reads to the resolved members of each, and the gids that
//! belonging to them gives. PURE: no runtime, no client, no file system, no clock.

use std::collections::{BTreeMap, BTreeSet};

use super::Role;
use super::assemble::{Candidate, GROUP_CLASSES};
use super::dn::Dn;
use super::entry::Reading;
use super::membership::{Groups, Member, closure};
use super::source::SourceConfig;
use crate::identity::{AccountKind, DirectoryId, Gid};

/// Accounts by DN and by name. Rejected ones too: who maintains a tool does not depend on a readable uid.
pub(super) struct Index {
    pub(super) by_dn: BTreeMap<Dn, (AccountKind, DirectoryId)>,
    pub(super) by_name: BTreeMap<String, (AccountKind, DirectoryId)>,
    pub(super) people: BTreeSet<DirectoryId>,
}

impl Index {
    pub(super) fn of<'a>(
        candidates: &'a [Candidate],
        id: impl Fn(&Candidate) -> Option<DirectoryId>,
        name: impl Fn(&'a Candidate) -> Option<&'a str>,
    ) -> Self {
        let mut index = Self { by_dn: BTreeMap::new(), by_name: BTreeMap::new(), people: BTreeSet::new() };
        for candidate in candidates.iter().filter(|candidate| candidate.kind != AccountKind::Group) {
            let Some(id) = id(candidate) else { continue };
            if let Some(name) = name(candidate) {
                index.by_name.entry(name.to_owned()).or_insert_with(|| (candidate.kind, id.clone()));
            }
            if candidate.kind == AccountKind::User {
                index.people.insert(id.clone());
            }
            index.by_dn.insert(candidate.dn.clone(), (candidate.kind, id));
        }
        index
    }

    pub(super) fn find(&self, member: &Member) -> Option<&(AccountKind, DirectoryId)> {
        match member {
            Member::Dn(dn) => self.by_dn.get(dn),
            Member::Name(name) => self.by_name.get(name),
        }
    }
}

/// Groups as they were read.
pub(super) struct Flat {
    pub(super) groups: Groups,
    pub(super) managers: BTreeMap<Dn, BTreeSet<Dn>>,
    /// Groups that must have members and show none.
    pub(super) hidden: Vec<Dn>,
}

impl Flat {
    pub(super) fn of(source: &SourceConfig, candidates: &[Candidate], companions: &[Candidate]) -> Self {
        let names = &source.attributes;
        let mut flat = Self { groups: Groups::new(), managers: BTreeMap::new(), hidden: Vec::new() };
        for Candidate { kind, dn, raw } in candidates.iter().chain(companions) {
            let by_dn = names.member_dns.iter().flat_map(|name| raw.texts(name)).map(Dn::parse_with_optional_uid);
            let by_name = names.member_names.iter().flat_map(|name| raw.texts(name)).map(str::to_owned);
            let members: BTreeSet<_> = by_dn.map(Member::Dn).chain(by_name.map(Member::Name)).collect();
            // A tool that lists its own maintainers is a group of them, and of nobody else.
            let is_group = *kind == AccountKind::Group || (*kind == AccountKind::Tool && raw.is_a(&GROUP_CLASSES));
            if is_group {
                if names.members_required && members.is_empty() && raw.is_a(&["groupOfNames", "groupOfUniqueNames"]) {
                    flat.hidden.push(dn.clone());
                }
                flat.groups.insert(dn.clone(), members);
            }
            if let Some(attribute) = &names.managers {
                flat.managers.insert(dn.clone(), raw.texts(attribute).map(Dn::parse).collect());
            }
        }
        flat
    }

    pub(super) fn close(
        &self,
        index: &Index,
        candidates: &[Candidate],
        companions: &[Candidate],
        reading: &Reading<'_>,
    ) -> Closed {
        let mut closed = Closed { members: BTreeMap::new(), too_deep: BTreeSet::new(), gids: BTreeMap::new() };
        for Candidate { dn, raw, .. } in candidates.iter().chain(companions) {
            if !self.groups.contains_key(dn) {
                continue;
            }
            let closure = closure(&self.groups, dn);
            if closure.too_deep {
                closed.too_deep.insert(dn.clone());
            }
            let mut members: BTreeMap<DirectoryId, Role> = closure
                .members
                .iter()
                .filter_map(|member| index.find(member))
                .map(|(_, id)| (id.clone(), Role::Member))
                .collect();
            for manager in self.managers.get(dn).into_iter().flatten() {
                if let Some((_, id)) = index.by_dn.get(manager) {
                    members.insert(id.clone(), Role::Manager);
                }
            }
            if let Ok(Some(gid)) = reading.group_gid(raw) {
                for id in members.keys() {
                    closed.gids.entry(id.clone()).or_default().insert(gid);
                }
            }
            closed.members.insert(dn.clone(), members);
        }
        closed
    }
}

/// Groups with their nested members resolved.
pub(super) struct Closed {
    pub(super) members: BTreeMap<Dn, BTreeMap<DirectoryId, Role>>,
    pub(super) too_deep: BTreeSet<Dn>,
    pub(super) gids: BTreeMap<DirectoryId, BTreeSet<Gid>>,
}

/// For each tool's full name the group of that name: from the tools' tree, else from the groups' tree.
pub(super) fn companions_by_name(
    source: &SourceConfig,
    candidates: &[Candidate],
    companions: &[Candidate],
    reading: &Reading<'_>,
) -> BTreeMap<String, Dn> {
    let mut by_name = BTreeMap::new();
    let tools = candidates.iter().filter(|candidate| candidate.kind == AccountKind::Tool);
    let own = tools
        .filter(|candidate| candidate.raw.is_a(&GROUP_CLASSES))
        .map(|tool| (tool.raw.texts(&source.attributes.tool_name).next().map(str::to_owned), &tool.dn));
    let groups = candidates.iter().filter(|candidate| candidate.kind == AccountKind::Group);
    let named = companions
        .iter()
        .chain(groups)
        .map(|group| (reading.full_name(&group.raw, &group.dn, AccountKind::Group).ok().map(str::to_owned), &group.dn));
    for (name, dn) in own.chain(named) {
        if let Some(name) = name {
            by_name.entry(name).or_insert_with(|| dn.clone());
        }
    }
    by_name
}
