//! Resolves the groups of one source. Turns groups as they were read into the members of each group, and into the gids
//! that members get from their groups.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use bursar_core::identity::{AccountKind, DirectoryId, Gid};
use bursar_core::snapshot::dn::Dn;
use bursar_core::snapshot::held::{GidClaim, Gives};
use bursar_core::snapshot::named::{Dangling, MemberName, Nested, Nesting};
use bursar_core::snapshot::{self, Role};
use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use crate::entry::assemble::GROUP_CLASSES;
use crate::entry::membership::{DEPTH, Groups, Member, closure};
use crate::entry::numbers::{by_sid, is_account, primary_group};
use crate::entry::{Candidate, Reading};
use crate::source::SourceConfig;

/// The most nested memberships that all groups of a read may have together. If one large group is nested in many
/// others, its members are counted in each of them. Everybody who may edit a group can nest a large group in it. For
/// 100,000 people, the limit is 50 memberships per person.
const MOST_NESTED: usize = 5_000_000;

/// Accounts by DN and by name, including rejected accounts: a person whose uid cannot be read stays a maintainer of
/// their tools.
pub(crate) struct Index<'a> {
    by_dn: HashMap<&'a Dn, &'a DirectoryId>,
    /// `None` if several entries have the name. In that case, the directory does not show which account is meant, but
    /// the ledger may know.
    by_name: HashMap<&'a str, Option<&'a DirectoryId>>,
    pub(crate) people: HashSet<&'a DirectoryId>,
}

impl<'a> Index<'a> {
    /// `name` returns the name by which groups may list an account (`memberUid`).
    pub(crate) fn of(candidates: &'a [Candidate], name: impl Fn(&'a Candidate) -> Option<&'a str>) -> Self {
        let most = candidates.len();
        let mut index = Self {
            by_dn: HashMap::with_capacity(most),
            by_name: HashMap::with_capacity(most),
            people: HashSet::with_capacity(most),
        };
        for candidate in candidates.iter().filter(|candidate| candidate.kind != AccountKind::Group) {
            let Some(id) = &candidate.id else { continue };
            if let Some(name) = name(candidate) {
                index
                    .by_name
                    .entry(name)
                    .and_modify(|known| *known = known.filter(|known| *known == id))
                    .or_insert(Some(id));
            }
            if candidate.kind == AccountKind::User {
                index.people.insert(id);
            }
            index.by_dn.insert(&candidate.dn, id);
        }
        index
    }

    fn find(&self, member: &Member) -> Option<&'a DirectoryId> {
        match member {
            Member::Dn(dn) => self.by_dn.get(dn).copied(),
            Member::Name(name) => self.by_name.get(name.as_str()).copied().flatten(),
        }
    }
}

/// The groups as they were read, before nested groups are resolved.
pub(crate) struct Flat {
    pub(crate) groups: Groups,
    pub(crate) managers: BTreeMap<Dn, BTreeSet<Dn>>,
    /// Groups that must have members, but show none.
    pub(crate) hidden: Vec<Dn>,
}

impl Flat {
    pub(crate) fn of(source: &SourceConfig, candidates: &[Candidate], companions: &[Candidate]) -> Self {
        let names = &source.attributes;
        let mut flat = Self { groups: Groups::default(), managers: BTreeMap::new(), hidden: Vec::new() };
        for candidate in candidates.iter().chain(companions) {
            let Candidate { dn, raw, .. } = candidate;
            if is_group(candidate) {
                let by_dn = names.member_dns.iter().flat_map(|name| raw.texts(name)).map(Dn::parse_with_optional_uid);
                let by_name = names.member_names.iter().flat_map(|name| raw.texts(name)).map(str::to_owned);
                let members: BTreeSet<_> = by_dn.map(Member::Dn).chain(by_name.map(Member::Name)).collect();
                if names.members_required && members.is_empty() && raw.is_a(&["groupOfNames", "groupOfUniqueNames"]) {
                    flat.hidden.push(dn.clone());
                }
                flat.groups.insert(dn.clone(), members);
            }
            if let Some(attribute) = &names.managers {
                flat.managers.insert(dn.clone(), raw.texts(attribute).map(Dn::parse).collect());
            }
        }
        if !names.member_of.is_empty() {
            flat.add_member_of(source, candidates);
        }
        if names.windows {
            flat.add_primary_groups(candidates);
        }
        flat
    }

    /// Adds members to groups that show none, from the `memberOf` of accounts and nested groups. If a group lists
    /// members, its list is used alone: a plugin maintains `memberOf` in 389-ds and OpenLDAP, and may lag behind.
    fn add_member_of(&mut self, source: &SourceConfig, candidates: &[Candidate]) {
        let silent: HashSet<Dn> =
            self.groups.iter().filter(|(_, members)| members.is_empty()).map(|(dn, _)| dn.clone()).collect();
        for Candidate { dn, raw, .. } in candidates {
            let groups = source.attributes.member_of.iter().flat_map(|name| raw.texts(name)).map(Dn::parse);
            for group in groups.filter(|group| silent.contains(group)) {
                self.groups.entry(group).or_default().insert(Member::Dn(dn.clone()));
            }
        }
    }

    /// Adds accounts to their primary group, which does not list them (MS-ADA3 2.120).
    fn add_primary_groups(&mut self, candidates: &[Candidate]) {
        let groups = candidates.iter().filter(|candidate| candidate.kind == AccountKind::Group);
        let by_sid = by_sid(groups.map(|group| (&group.dn, &*group.raw)));
        for account in candidates.iter().filter(|candidate| is_account(candidate.kind)) {
            let Ok(Some(sid)) = primary_group(&account.raw) else { continue };
            if let Some(group) = by_sid.get(&sid) {
                self.groups.entry(group.clone()).or_default().insert(Member::Dn(account.dn.clone()));
            }
        }
    }

    pub(crate) fn close<'a>(
        &self,
        index: &Index<'a>,
        candidates: &'a [Candidate],
        companions: &'a [Candidate],
        tools: &Companions<'a>,
        reading: &Reading<'_>,
    ) -> Closed<'a> {
        let mut closed = Closed::default();
        let (mut nested, mut total) = (BTreeSet::new(), 0);
        for group in candidates.iter().chain(companions).filter(|candidate| is_group(candidate)) {
            let Candidate { dn, raw, .. } = group;
            let closure = closure(&self.groups, dn);
            if closure.too_deep {
                closed.refused.insert(dn, Refused::TooDeep);
            }
            let found = closure.members.into_iter().filter_map(|member| index.find(member));
            let mut members: BTreeMap<&DirectoryId, Role> = found.map(|id| (id, Role::Member)).collect();
            for manager in self.managers.get(dn).into_iter().flatten() {
                if let Some(id) = index.by_dn.get(manager) {
                    members.insert(id, Role::Manager);
                }
            }
            if let Ok(Some(gid)) = reading.group_gid(raw) {
                closed.gives.push((group, gid));
            }
            let direct = self.groups.get(dn).map_or(0, BTreeSet::len);
            let by_nesting = members.len().saturating_sub(direct);
            closed.members.insert(dn, members);
            nested.insert((by_nesting, dn));
            total += by_nesting;
            while total > MOST_NESTED {
                let Some((largest, dn)) = nested.pop_last() else { break };
                total -= largest;
                closed.members.remove(dn);
                closed.refused.insert(dn, Refused::TooLarge { members: largest });
            }
        }
        for (group, gid) in &closed.gives {
            let gids = if tools.is_ambiguous(&group.dn) { &mut closed.kept_gids } else { &mut closed.gids };
            for id in closed.members.get(&group.dn).into_iter().flat_map(BTreeMap::keys) {
                gids.entry(id).or_default().insert(*gid);
            }
        }
        closed
    }
}

/// The ids of the entries that have a group: the group's own entry, or the tools whose maintainers it lists.
pub(super) type Holders<'a> = HashMap<&'a Dn, Vec<&'a DirectoryId>>;

impl Flat {
    /// Returns the accounts that the groups of `rejected` entries name.
    pub(super) fn nesting(&self, index: &Index<'_>, rejected: Vec<(DirectoryId, Vec<&Dn>)>) -> Nesting {
        let (mut nesting, mut found) = (Nesting::default(), HashMap::new());
        // Each group is visited and numbered once, before the groups inside it.
        let mut order: Vec<&Dn> = Vec::new();
        let mut next: Vec<&Dn> = rejected.iter().flat_map(|(_, dns)| dns).copied().collect();
        while let Some(dn) = next.pop() {
            if let Entry::Vacant(place) = found.entry(dn) {
                place.insert(order.len());
                order.push(dn);
                next.extend(self.parts(dn));
            }
        }
        for dn in order {
            let named = self.groups.get(dn).into_iter().flatten().filter_map(|member| index.find(member));
            let managers = self.managers.get(dn).into_iter().flatten();
            let managers = managers.filter_map(|manager| index.by_dn.get(manager).copied());
            let members = named.chain(managers).cloned().collect();
            nesting.add(Nested { members, parts: self.parts(dn).map(|part| found[part]).collect() });
        }
        for (id, dns) in rejected {
            let parts: Vec<usize> = dns.iter().map(|dn| found[*dn]).collect();
            let group = match parts.as_slice() {
                [group] => *group,
                _ => nesting.add(Nested { members: BTreeSet::new(), parts }),
            };
            nesting.name(id, group);
        }
        nesting
    }

    /// Returns the groups that a group names as members.
    fn parts<'a>(&'a self, dn: &Dn) -> impl Iterator<Item = &'a Dn> {
        self.groups.get(dn).into_iter().flatten().filter_map(|member| match member {
            Member::Dn(dn) if self.groups.contains_key(dn) => Some(dn),
            Member::Dn(_) | Member::Name(_) => None,
        })
    }

    /// Returns the members that match no entry, and which groups contain their groups.
    pub(super) fn dangling(&self, index: &Index<'_>, holders: &Holders<'_>) -> Dangling {
        let mut dangling = Dangling::default();
        let mut parts: Vec<(&Dn, &Dn)> = Vec::new();
        for (group, members) in &self.groups {
            for member in members {
                match member {
                    Member::Dn(dn) if self.groups.contains_key(dn) => parts.push((dn, group)),
                    member if index.find(member).is_some() => {}
                    Member::Dn(dn) => hold(&mut dangling, &MemberName::of(dn), holders.get(group), Role::Member),
                    Member::Name(name) => {
                        hold(&mut dangling, &MemberName::Name(name.clone()), holders.get(group), Role::Member);
                    }
                }
            }
        }
        for (group, managers) in &self.managers {
            for manager in managers.iter().filter(|manager| !index.by_dn.contains_key(manager)) {
                hold(&mut dangling, &MemberName::of(manager), holders.get(group), Role::Manager);
            }
        }
        if dangling.members.is_empty() {
            return dangling;
        }
        for (part, whole) in parts {
            for id in holders.get(part).into_iter().flatten() {
                let wholes = holders.get(whole).into_iter().flatten().map(|id| (*id).clone());
                dangling.parents.entry((*id).clone()).or_default().extend(wholes);
            }
        }
        dangling
    }
}

fn hold(dangling: &mut Dangling, name: &MemberName, holders: Option<&Vec<&DirectoryId>>, role: Role) {
    for id in holders.into_iter().flatten() {
        dangling.add(name.clone(), (*id).clone(), role);
    }
}

/// Whether an entry is a group with members. A tool that lists its own maintainers is such a group.
fn is_group(candidate: &Candidate) -> bool {
    match candidate.kind {
        AccountKind::Group => true,
        AccountKind::Tool => candidate.raw.is_a(&GROUP_CLASSES),
        AccountKind::User => false,
    }
}

/// The groups with their nested members resolved.
#[derive(Default)]
pub(crate) struct Closed<'a> {
    pub(crate) members: HashMap<&'a Dn, BTreeMap<&'a DirectoryId, Role>>,
    /// Groups whose members could not be resolved.
    pub(crate) refused: HashMap<&'a Dn, Refused>,
    pub(crate) gids: HashMap<&'a DirectoryId, BTreeSet<Gid>>,
    /// Gids of groups that may or may not belong to a tool. Accounts that have such a gid already keep it, and no other
    /// account gets it.
    pub(crate) kept_gids: HashMap<&'a DirectoryId, BTreeSet<Gid>>,
    /// The groups that give a gid.
    gives: Vec<(&'a Candidate, Gid)>,
}

/// Why the members of a group are not resolved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("groups are nested deeper than {DEPTH}")]
    TooDeep,
    #[error(
        "nested groups give it {members} members, and all groups together have more than {MOST_NESTED} nested \
         members; nest fewer groups in it"
    )]
    TooLarge { members: usize },
}

/// The groups that list the maintainers of tools.
pub(crate) struct Companions<'a> {
    /// For each tool (by its DN), the groups with its full name, in the tree of the tools or of the groups. If there are
    /// several, it is unknown which one is meant: anybody who may create a group can give it the name.
    groups: HashMap<&'a Dn, Vec<&'a Dn>>,
    /// The ids of the tools of each group.
    tools: HashMap<&'a Dn, Vec<&'a DirectoryId>>,
    ambiguous: HashSet<&'a Dn>,
}

impl<'a> Companions<'a> {
    /// `reading` returns how the entries of a kind are interpreted.
    pub(crate) fn of<'r>(
        candidates: &'a [Candidate],
        companions: &'a [Candidate],
        reading: impl Fn(AccountKind) -> &'r Reading<'r>,
    ) -> Self {
        let tools = || candidates.iter().filter(|candidate| candidate.kind == AccountKind::Tool);
        let mut by_name: HashMap<&str, Vec<&Dn>> = HashMap::new();
        for name in tools().filter_map(|tool| reading(AccountKind::Tool).name_of(tool)) {
            by_name.insert(name, Vec::new());
        }
        let groups = candidates.iter().filter(|candidate| candidate.kind == AccountKind::Group);
        for group in companions.iter().chain(groups) {
            let name = reading(AccountKind::Group).full_name(&group.raw, &group.dn, AccountKind::Group);
            if let Some(named) = name.ok().and_then(|name| by_name.get_mut(name)) {
                named.push(&group.dn);
            }
        }
        for named in by_name.values_mut() {
            named.sort_unstable();
        }
        let mut all = Self { groups: HashMap::new(), tools: HashMap::new(), ambiguous: HashSet::new() };
        for tool in tools() {
            let name = reading(AccountKind::Tool).name_of(tool);
            let named = name.and_then(|name| by_name.get(name)).cloned().unwrap_or_default();
            // A tool that lists its maintainers itself needs no group.
            let named = if is_group(tool) { vec![&tool.dn] } else { named };
            if named.len() > 1 {
                all.ambiguous.extend(&named);
            }
            for group in &named {
                all.tools.entry(*group).or_default().extend(&tool.id);
            }
            all.groups.insert(&tool.dn, named);
        }
        all
    }

    pub(crate) fn groups_of(&self, tool: &Dn) -> &[&'a Dn] {
        self.groups.get(tool).map_or(&[], Vec::as_slice)
    }

    fn is_ambiguous(&self, group: &Dn) -> bool {
        self.ambiguous.contains(group)
    }
}

/// Returns which groups and tools show which gid, sorted.
pub(crate) fn gid_claims<'a, 'r>(
    closed: &Closed<'a>,
    tools: &Companions<'a>,
    entries: &[snapshot::Entry],
    reading: impl Fn(AccountKind) -> &'r Reading<'r>,
) -> Vec<GidClaim> {
    let mut claims: Vec<(GidClaim, Option<&Dn>)> = Vec::new();
    for (group, gid) in &closed.gives {
        let reading = reading(group.kind);
        let listed = tools.tools.get(&group.dn).into_iter().flatten().copied();
        // A group that only lists the maintainers of tools has no account, so its own id means nothing. If the id
        // counted, its creator could copy the id of another group or tool, and thereby get the gid of that one.
        let own = group.id.iter().filter(|_| group.kind == AccountKind::Group);
        let kind = if tools.groups.contains_key(&group.dn) { AccountKind::Tool } else { AccountKind::Group };
        let claim = GidClaim {
            gid: *gid,
            dn: group.raw.dn.clone(),
            name: reading.full_name(&group.raw, &group.dn, kind).unwrap_or_default().to_owned(),
            ids: own.chain(listed).cloned().collect(),
            created: reading.created(&group.raw),
            gives: if tools.is_ambiguous(&group.dn) { Gives::Kept } else { Gives::Members },
            members: None,
        };
        claims.push((claim, Some(&group.dn)));
    }
    let mut primary: HashMap<Gid, Vec<&snapshot::Entry>> = HashMap::new();
    if entries.iter().any(|entry| entry.kind == AccountKind::Tool) {
        for entry in entries {
            if let Some(posix) = &entry.posix {
                primary.entry(posix.gid).or_default().push(entry);
            }
        }
    }
    for (gid, accounts) in primary {
        // If several accounts have the same primary gid, it is the gid of a common group.
        let [entry] = accounts.as_slice() else { continue };
        if entry.kind != AccountKind::Tool {
            continue;
        }
        let claim = GidClaim {
            gid,
            dn: entry.dn.clone(),
            name: entry.name.clone(),
            ids: vec![entry.id.clone()],
            created: entry.created,
            gives: Gives::Nobody,
            members: None,
        };
        claims.push((claim, None));
    }
    claims.sort_unstable();
    for of_one in claims.chunk_by_mut(|(one, _), (other, _)| one.gid == other.gid) {
        if of_one.iter().all(|(claim, _)| claim.belongs_to(&of_one[0].0)) {
            continue;
        }
        for (claim, group) in of_one {
            let members = group.and_then(|group| closed.members.get(group));
            claim.members = Some(members.into_iter().flat_map(BTreeMap::keys).map(|id| (*id).clone()).collect());
        }
    }
    claims.into_iter().map(|(claim, _)| claim).collect()
}
