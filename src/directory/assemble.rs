//! The trees that one source answered become one [`SourceRead`]: which entry is what, who belongs to whom, and what
//! may be said about completeness. PURE: no runtime, no client, no file system, no clock.
//!
//! Memberships are resolved within one source: its DNs and names mean nothing in another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::dn::Dn;
use super::entry::{EntryRules, RawEntry, Reading};
use super::membership::{DEPTH, Groups, Member, closure};
use super::source::{SourceConfig, SourceKind};
use super::{Completeness, Entry, RejectedEntry, Role, SourceRead};
use crate::identity::{AccountKind, DirectoryId, Gid};

/// Kinds in the order in which an entry that two trees hold is taken: a tool is not a person as well.
pub const KINDS: [AccountKind; 3] = [AccountKind::Tool, AccountKind::User, AccountKind::Group];

const ACCOUNT_CLASSES: [&str; 1] = ["posixAccount"];
const GROUP_CLASSES: [&str; 5] = ["groupOfNames", "groupOfUniqueNames", "groupOfMembers", "posixGroup", "group"];

/// What a source answered, uninterpreted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawRead {
    /// The server that answered, or the file.
    pub server: Option<String>,
    /// The trees that were asked for.
    pub trees: BTreeMap<AccountKind, RawTree>,
    /// What went wrong; none: the read proves absence.
    pub problems: Vec<String>,
}

/// What a source answered for one tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawTree {
    /// The entries that came.
    pub entries: Vec<RawEntry>,
    /// Whether they all came.
    pub whole: bool,
}

/// An entry that is, or should be, an account.
struct Candidate {
    kind: AccountKind,
    dn: Dn,
    raw: RawEntry,
}

/// Interprets what `source` answered. `took` is zero; the caller knows the time.
///
/// In a Partial read `members` and supplementary groups are lower bounds, as the entries themselves are: who is not
/// there may only not have been read.
#[must_use]
pub fn assemble(source: &SourceConfig, mut raw: RawRead, rules: &EntryRules) -> SourceRead {
    let mut problems = std::mem::take(&mut raw.problems);
    problems.extend(missing_sentinels(source, &raw));
    let (candidates, companions) = sort_out(source, raw.trees);
    let readings = BTreeMap::from(KINDS.map(|kind| (kind, reading(source, kind, rules))));
    let reading_of = |kind: AccountKind| &readings[&kind];

    let index = Index::of(
        &candidates,
        |candidate| reading_of(candidate.kind).id(&candidate.raw),
        |candidate| reading_of(candidate.kind).full_name(&candidate.raw, candidate.kind).ok(),
    );
    let groups = Flat::of(source, &candidates, &companions);
    let closed = groups.close(&index, &candidates, &companions, reading_of(AccountKind::Group));

    let mut read = SourceRead {
        source: source.name.clone(),
        server: raw.server,
        completeness: Completeness::Complete,
        entries: Vec::new(),
        rejected: Vec::new(),
        took: Duration::ZERO,
    };
    let mut taken: BTreeMap<DirectoryId, String> = BTreeMap::new();
    let companion_of = companions_by_name(source, &candidates, &companions, reading_of(AccountKind::Group));
    for candidate in &candidates {
        match reading_of(candidate.kind).check(&candidate.raw, candidate.kind) {
            Ok(mut entry) => {
                if let Some(other) = taken.get(&entry.id) {
                    let why = format!("{} {} is also that of {other}", source.attributes.id, entry.id);
                    read.rejected.push(reject(source, &entry, why));
                    continue;
                }
                taken.insert(entry.id.clone(), entry.dn.clone());
                let full = reading_of(candidate.kind).full_name(&candidate.raw, candidate.kind).unwrap_or_default();
                let members_of = match candidate.kind {
                    AccountKind::Tool => companion_of.get(full),
                    AccountKind::User => None,
                    AccountKind::Group => Some(&candidate.dn),
                };
                match complete(&mut entry, members_of, &closed, &index) {
                    Ok(()) => read.entries.push(entry),
                    Err(why) => read.rejected.push(reject(source, &entry, why)),
                }
            }
            Err(rejected) => read.rejected.push(*rejected),
        }
    }
    let nameless: Vec<_> = read.rejected.iter().filter(|rejected| rejected.id.is_none()).collect();
    if let Some(example) = nameless.first() {
        // Whoever has no id cannot be recognised, so nobody is known to be absent.
        let attribute = &source.attributes.id;
        problems.push(format!(
            "{attribute} is missing or hidden in {} entries, such as {}",
            nameless.len(),
            example.dn
        ));
    }
    if !problems.is_empty() {
        read.completeness = Completeness::Partial { why: problems.join("; ") };
    }
    read.entries.sort_by(|a, b| (a.kind, &a.name, &a.id).cmp(&(b.kind, &b.name, &b.id)));
    read.rejected.sort();
    read
}

fn reading<'a>(source: &'a SourceConfig, kind: AccountKind, rules: &'a EntryRules) -> Reading<'a> {
    Reading {
        source: &source.name,
        attributes: &source.attributes,
        strip_prefix: source.tree(kind).and_then(|tree| tree.strip_prefix.as_deref()),
        id_from_dn: matches!(source.kind, SourceKind::Ldif(_)),
        rules,
    }
}

fn missing_sentinels(source: &SourceConfig, raw: &RawRead) -> Option<String> {
    if source.sentinels.is_empty() {
        return None;
    }
    let seen: BTreeSet<Dn> =
        raw.trees.values().flat_map(|tree| &tree.entries).map(|entry| Dn::parse(&entry.dn)).collect();
    let missing: Vec<_> = source.sentinels.iter().filter(|dn| !seen.contains(&Dn::parse(dn))).cloned().collect();
    (!missing.is_empty()).then(|| format!("sentinel not found: {}", missing.join(", ")))
}

/// Which entry is what: accounts and groups, and apart from them the groups that only list a tool's maintainers.
fn sort_out(source: &SourceConfig, mut trees: BTreeMap<AccountKind, RawTree>) -> (Vec<Candidate>, Vec<Candidate>) {
    let mut candidates = Vec::new();
    let mut companions = Vec::new();
    let mut seen = BTreeSet::new();
    // A tree that was not read to its end may hold more than came: what a wider tree shows beneath its base is then
    // nobody's until a whole read has said whose.
    let mut unsure: Vec<Dn> = Vec::new();
    for kind in KINDS {
        let Some(base) = source.tree(kind).map(|tree| Dn::parse(&tree.base)) else { continue };
        let tree = trees.remove(&kind).unwrap_or_default();
        for raw in tree.entries {
            let dn = Dn::parse(&raw.dn);
            if unsure.iter().any(|base| dn.is_within(base)) || !seen.insert(dn.clone()) {
                continue;
            }
            let is_account = raw.is_a(&ACCOUNT_CLASSES) || raw.has(&source.attributes.uid);
            let list = if kind == AccountKind::Tool && !is_account && raw.is_a(&GROUP_CLASSES) {
                &mut companions
            } else {
                &mut candidates
            };
            list.push(Candidate { kind, dn, raw });
        }
        if !tree.whole {
            unsure.push(base);
        }
    }
    (candidates, companions)
}

/// Accounts by DN and by name. Rejected ones too: who maintains a tool does not depend on a readable uid.
struct Index {
    by_dn: BTreeMap<Dn, (AccountKind, DirectoryId)>,
    by_name: BTreeMap<String, (AccountKind, DirectoryId)>,
    people: BTreeSet<DirectoryId>,
}

impl Index {
    fn of<'a>(
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

    fn find(&self, member: &Member) -> Option<&(AccountKind, DirectoryId)> {
        match member {
            Member::Dn(dn) => self.by_dn.get(dn),
            Member::Name(name) => self.by_name.get(name),
        }
    }
}

/// Groups as they were read.
struct Flat {
    groups: Groups,
    managers: BTreeMap<Dn, BTreeSet<Dn>>,
}

impl Flat {
    fn of(source: &SourceConfig, candidates: &[Candidate], companions: &[Candidate]) -> Self {
        let names = &source.attributes;
        let mut flat = Self { groups: Groups::new(), managers: BTreeMap::new() };
        for Candidate { kind, dn, raw } in candidates.iter().chain(companions) {
            let by_dn = names.member_dns.iter().flat_map(|name| raw.texts(name)).map(Dn::parse_with_optional_uid);
            let by_name = names.member_names.iter().flat_map(|name| raw.texts(name)).map(str::to_owned);
            let members: BTreeSet<_> = by_dn.map(Member::Dn).chain(by_name.map(Member::Name)).collect();
            // A tool that lists its own maintainers is a group of them, and of nobody else.
            let is_group = *kind == AccountKind::Group || (*kind == AccountKind::Tool && raw.is_a(&GROUP_CLASSES));
            if is_group {
                flat.groups.insert(dn.clone(), members);
            }
            if let Some(attribute) = &names.managers {
                flat.managers.insert(dn.clone(), raw.texts(attribute).map(Dn::parse).collect());
            }
        }
        flat
    }

    fn close(
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
struct Closed {
    members: BTreeMap<Dn, BTreeMap<DirectoryId, Role>>,
    too_deep: BTreeSet<Dn>,
    gids: BTreeMap<DirectoryId, BTreeSet<Gid>>,
}

/// For each tool's full name the group of that name: from the tools' tree, else from the groups' tree.
fn companions_by_name(
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
        .map(|group| (reading.full_name(&group.raw, AccountKind::Group).ok().map(str::to_owned), &group.dn));
    for (name, dn) in own.chain(named) {
        if let Some(name) = name {
            by_name.entry(name).or_insert_with(|| dn.clone());
        }
    }
    by_name
}

/// Adds to `entry` what other entries say: its members, and the gids of the groups that name it.
fn complete(entry: &mut Entry, group: Option<&Dn>, closed: &Closed, index: &Index) -> Result<(), String> {
    if let Some(posix) = &mut entry.posix {
        posix.groups = closed.gids.get(&entry.id).cloned().unwrap_or_default();
        posix.groups.remove(&posix.gid);
    }
    let Some(group) = group else { return Ok(()) };
    if closed.too_deep.contains(group) {
        return Err(format!("groups are nested deeper than {DEPTH}"));
    }
    entry.members = closed.members.get(group).cloned().unwrap_or_default();
    if entry.kind == AccountKind::Tool {
        // One tool may be in another's group; that lets it act there, but makes nobody a maintainer.
        entry.members.retain(|id, _| index.people.contains(id));
    }
    Ok(())
}

fn reject(source: &SourceConfig, entry: &Entry, why: String) -> RejectedEntry {
    RejectedEntry {
        source: source.name.clone(),
        kind: entry.kind,
        dn: entry.dn.clone(),
        name: Some(entry.name.clone()),
        id: Some(entry.id.clone()),
        why,
    }
}
