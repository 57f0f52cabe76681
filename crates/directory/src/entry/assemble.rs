//! Turns the trees that one source returned into one [`SourceRead`]: accounts and groups, their members, and whether
//! the read is complete. The work uses a second thread, which ends before the call returns.
//!
//! Memberships are resolved within one source, because its DNs and names mean nothing in another.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use bursar_core::identity::{AccountKind, DirectoryId};
use bursar_core::snapshot::dn::Dn;
use bursar_core::snapshot::freshness::{Behind, Marks};
use bursar_core::snapshot::held::Held;
use bursar_core::snapshot::named::AttributeLabels;
use bursar_core::snapshot::{Completeness, Entry, RejectedEntry, SourceRead};
use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use crate::entry::groups::{Closed, Companions, Flat, Holders, Index, gid_claims};
use crate::entry::numbers::Numbers;
use crate::entry::raw::RawEntry;
use crate::entry::{Candidate, EntryRules, Reading};
use crate::source::{Sentinel, SourceConfig, SourceKind};

/// The kinds, in order of precedence if two trees hold the same entry: an entry that is a tool does not also count as a
/// person.
pub const KINDS: [AccountKind; 3] = [AccountKind::Tool, AccountKind::User, AccountKind::Group];

const ACCOUNT_CLASSES: [&str; 2] = ["posixAccount", "user"];
pub(crate) const GROUP_CLASSES: [&str; 5] =
    ["groupOfNames", "groupOfUniqueNames", "groupOfMembers", "posixGroup", "group"];

/// The entries that a source returned, not interpreted yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawRead {
    /// The server that answered, or the file.
    pub server: Option<String>,
    /// The trees that were asked for.
    pub trees: BTreeMap<AccountKind, RawTree>,
    /// Problems of the read. If there are none, accounts that were not returned are absent.
    pub problems: Vec<String>,
    /// The replication state that the server showed.
    pub marks: Box<Marks>,
    /// Servers that were skipped because they are behind.
    pub behind: Vec<(String, Behind)>,
}

/// The entries that a source returned for one tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawTree {
    /// The entries that were returned.
    pub entries: Vec<Arc<RawEntry>>,
    /// Whether all entries were returned.
    pub whole: bool,
}

/// The bases of the trees that were returned completely, and of the other trees.
struct Bases {
    whole: Vec<Dn>,
    cut: Vec<Dn>,
}

impl Bases {
    fn of(source: &SourceConfig, trees: &BTreeMap<AccountKind, RawTree>) -> Self {
        let of = |whole| {
            let trees = trees.iter().filter(|(_, tree)| tree.whole == whole);
            trees.filter_map(|(kind, _)| Some(Dn::parse(&source.tree(*kind)?.base))).collect()
        };
        Self { whole: of(true), cut: of(false) }
    }

    /// Whether the read proves that an entry that was not returned is absent, in spite of other problems.
    fn prove(&self, dn: &Dn) -> bool {
        let is_in = |bases: &[Dn]| bases.iter().any(|base| dn.is_within(base));
        is_in(&self.whole) && !is_in(&self.cut)
    }
}

/// Interprets what `source` returned. `took` is zero; the caller measures the time.
///
/// In a partial read, `members` and supplementary groups may be incomplete, like the entries themselves: an account may
/// be missing only because it was not read.
#[must_use]
pub fn assemble(source: &SourceConfig, mut raw: RawRead, rules: &EntryRules) -> SourceRead {
    if let Some(stale) = stale(source, &raw) {
        return stale;
    }
    let mut problems = std::mem::take(&mut raw.problems);
    let numbers = Numbers::of(&source.sids, &source.attributes, &raw.trees, rules.ids);
    let readings = BTreeMap::from(KINDS.map(|kind| (kind, reading(source, kind, &numbers, rules))));
    let reading_of = |kind: AccountKind| &readings[&kind];
    let bases = Bases::of(source, &raw.trees);
    let (candidates, companions) = sort_out(source, raw.trees, |kind, raw| reading_of(kind).id(raw));
    let is_sure = |dn: &Dn| problems.is_empty() || bases.prove(dn);
    let missing = missing_sentinels(source, candidates.iter().chain(&companions), is_sure);
    let lacks_sentinel = missing.is_some();
    problems.extend(missing);

    let tools = Companions::of(&candidates, &companions, reading_of);
    // The checks of single entries run in parallel with the work that needs all entries. With many entries, each of the
    // two takes a considerable part of a second.
    let (checked, index, groups, closed) = thread::scope(|scope| {
        let check = || candidates.iter().map(|candidate| reading_of(candidate.kind).check(candidate)).collect();
        let checked: ScopedJoinHandle<'_, Vec<_>> = scope.spawn(check);
        let index = Index::of(&candidates, |candidate| reading_of(candidate.kind).member_name_of(candidate));
        let groups = Flat::of(source, &candidates, &companions);
        let closed = groups.close(&index, &candidates, &companions, &tools, reading_of(AccountKind::Group));
        (checked.join().unwrap_or_else(|panic| resume_unwind(panic)), index, groups, closed)
    });
    if let Some(example) = groups.hidden.first() {
        let count = groups.hidden.len();
        problems.push(format!("members are hidden in {count} groups, such as {}", example.canonical()));
    }

    let (mut holders, mut rejected) = (Holders::new(), Vec::new());
    let ambiguous = ambiguous(&candidates);
    let settled = checked.into_iter().zip(&candidates).map(|(checked, candidate)| {
        let Candidate { kind, dn, id, raw } = candidate;
        let own = [dn];
        let members_of: &[&Dn] = match kind {
            AccountKind::Tool => tools.groups_of(dn),
            AccountKind::User => &[],
            AccountKind::Group => &own,
        };
        if let Some(dns) = id.as_ref().and_then(|id| ambiguous.get(id)) {
            let mut entry = checked
                .map_or_else(|rejected| *rejected, |entry| RejectedEntry::of(&source.name, &entry, String::new()));
            let (attribute, id) = (&source.attributes.id, id.as_ref().map(ToString::to_string).unwrap_or_default());
            let other = dns.iter().find(|dn| **dn != raw.dn).unwrap_or(&"another entry");
            entry.why = format!("{attribute} {id} is also that of {other}: neither entry is used until the ids differ");
            // The id is removed, so that statements about one of these entries are not taken for statements about the
            // other.
            return Err(Box::new(RejectedEntry { id: None, ..entry }));
        }
        let mut reject_group =
            || rejected.extend(id.clone().filter(|_| !members_of.is_empty()).map(|id| (id, members_of.to_vec())));
        let mut entry = checked.inspect_err(|_| reject_group())?;
        if let ([group], Some(id)) = (members_of, id) {
            holders.entry(*group).or_default().push(id);
        }
        complete(&mut entry, members_of, &closed, &index).map_err(|why| {
            reject_group();
            Box::new(RejectedEntry::of(&source.name, &entry, why))
        })?;
        Ok(entry)
    });
    let mut read = SourceRead {
        server: raw.server,
        lacks_sentinel,
        marks: Marks { ids: numbers.decided(), ..*raw.marks },
        labels: labels(source),
        behind: raw.behind.into_iter().collect(),
        numbers: numbers.source(&source.attributes),
        ..SourceRead::complete(&source.name, KINDS.into_iter().filter(|kind| source.tree(*kind).is_some()), Vec::new())
    };
    for (settled, candidate) in settled.zip(&candidates) {
        match settled {
            Ok(entry) => read.entries.push(entry),
            Err(rejected) => {
                let groups = candidate.id.as_ref().and_then(|id| closed.gids.get(id)).cloned().unwrap_or_default();
                let reading = reading_of(candidate.kind);
                let created = reading.created(&candidate.raw);
                let ssh_keys = reading.ssh_keys(candidate.kind, &candidate.raw);
                read.held.insert(rejected.dn.clone(), Held { created, uid: None, groups, ssh_keys });
                read.rejected.push(*rejected);
            }
        }
    }
    read.gids = gid_claims(&closed, &tools, &read.entries, reading_of);
    read.kept_gids = closed.kept_gids.iter().map(|(id, gids)| ((*id).clone(), gids.clone())).collect();
    for (id, group) in rejected.iter().flat_map(|(id, groups)| groups.iter().map(move |group| (id, group))) {
        let of = holders.entry(*group).or_default();
        if !of.contains(&id) {
            of.push(id);
        }
    }
    read.dangling = groups.dangling(&index, &holders);
    read.nesting = groups.nesting(&index, rejected);
    let nameless: Vec<_> = read.rejected.iter().filter(|rejected| rejected.id.is_none()).collect();
    if let Some(example) = nameless.first() {
        // An entry without an id cannot be recognised, so no account can be proved absent.
        let attribute = &source.attributes.id;
        problems.push(format!("no usable {attribute} in {} entries, such as {}", nameless.len(), example.dn));
    }
    if !problems.is_empty() {
        read.completeness = Completeness::Partial { why: problems.join("; ") };
    }
    sort(&mut read.entries);
    read.rejected.sort();
    read
}

/// Returns a stale read if every server that answered is behind. The entries that they returned are not used.
fn stale(source: &SourceConfig, raw: &RawRead) -> Option<SourceRead> {
    let (server, _) = raw.behind.first().filter(|_| raw.server.is_none())?;
    let others = raw.behind.iter().map(|(server, behind)| format!("{server}: {}", behind.why));
    let why: Vec<String> = others.chain(raw.problems.iter().cloned()).collect();
    let kinds = KINDS.into_iter().filter(|kind| source.tree(*kind).is_some());
    Some(SourceRead {
        completeness: Completeness::Stale { server: server.clone(), why: why.join("; ") },
        behind: raw.behind.iter().cloned().collect(),
        ..SourceRead::complete(&source.name, kinds, Vec::new())
    })
}

fn labels(source: &SourceConfig) -> AttributeLabels {
    let names = &source.attributes;
    // A domain controller changes the DNs in its groups together with the entries, and a realm lists members by id.
    let may_be_stale = !names.windows && !matches!(source.kind, SourceKind::Keycloak(_));
    AttributeLabels {
        home: names.home.clone(),
        ssh_keys: names.ssh_keys.clone(),
        mail: names.mail.clone(),
        uid: names.uid.clone(),
        gid: names.gid.clone(),
        prefixes: KINDS.into_iter().filter_map(|kind| Some((kind, source.tree(kind)?.strip_prefix.clone()?))).collect(),
        stale_dns: may_be_stale,
        stale_names: may_be_stale && !names.member_names.is_empty(),
    }
}

/// Sorts by kind, name and id. The function sorts indexes, because entries are large.
fn sort(entries: &mut [Entry]) {
    let mut order: Vec<_> =
        entries.iter().enumerate().map(|(at, entry)| (entry.kind, &*entry.name, &entry.id, at)).collect();
    order.sort_unstable();
    let order: Vec<usize> = order.into_iter().map(|(.., at)| at).collect();
    for to in 0..order.len() {
        // If the entry was at an earlier index, it has been swapped to a later one since.
        let mut from = order[to];
        while from < to {
            from = order[from];
        }
        entries.swap(from, to);
    }
}

fn reading<'a>(
    source: &'a SourceConfig,
    kind: AccountKind,
    numbers: &'a Numbers,
    rules: &'a EntryRules,
) -> Reading<'a> {
    Reading {
        source: &source.name,
        attributes: &source.attributes,
        strip_prefix: source.tree(kind).and_then(|tree| tree.strip_prefix.as_deref()),
        id_from_dn: source.id_from_dn(),
        numbers,
        rules,
    }
}

/// Describes the sentinels that are missing or hide an attribute. Only sentinels for whose DN `sure` returns `true`
/// count.
fn missing_sentinels<'a>(
    source: &SourceConfig,
    all: impl Iterator<Item = &'a Candidate>,
    sure: impl Fn(&Dn) -> bool,
) -> Option<String> {
    let sentinels = source.sentinels.iter().map(|sentinel| (Dn::parse(&sentinel.dn), sentinel));
    let mut missing: BTreeMap<Dn, &Sentinel> = sentinels.filter(|(dn, _)| sure(dn)).collect();
    if missing.is_empty() {
        return None;
    }
    let mut hidden = Vec::new();
    for candidate in all {
        let Some(sentinel) = missing.remove(&candidate.dn) else { continue };
        let unseen = sentinel.attributes.iter().filter(|attribute| !candidate.raw.has(attribute));
        hidden.extend(unseen.map(|attribute| format!("sentinel {} does not show {attribute}", sentinel.dn)));
    }
    let names: Vec<_> = missing.into_values().map(|sentinel| sentinel.dn.as_str()).collect();
    let absent = (!names.is_empty()).then(|| format!("sentinel not found: {}", names.join(", ")));
    let problems: Vec<String> = absent.into_iter().chain(hidden).collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}

/// Separates accounts and groups (first list) from the groups that only list a tool's maintainers (second list).
fn sort_out(
    source: &SourceConfig,
    mut trees: BTreeMap<AccountKind, RawTree>,
    id: impl Fn(AccountKind, &RawEntry) -> Option<DirectoryId>,
) -> (Vec<Candidate>, Vec<Candidate>) {
    let count = trees.values().map(|tree| tree.entries.len()).sum();
    let mut candidates = Vec::with_capacity(count);
    let mut companions = Vec::new();
    let mut seen = HashSet::with_capacity(count);
    // Base DNs of trees that were not read completely. If a wider tree shows an entry beneath such a base, the entry is
    // left out, because it may belong to the incomplete tree.
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
            list.push(Candidate { kind, dn, id: id(kind, &raw), raw });
        }
        if !tree.whole {
            unsure.push(base);
        }
    }
    (candidates, companions)
}

/// Returns the ids that several entries have, each with the DNs of these entries. People who may write the id attribute
/// of their own entry can copy the id of another entry, so it is unknown which entry is the account.
fn ambiguous(candidates: &[Candidate]) -> HashMap<&DirectoryId, Vec<&str>> {
    let mut first: HashMap<&DirectoryId, &str> = HashMap::with_capacity(candidates.len());
    let mut ambiguous: HashMap<&DirectoryId, Vec<&str>> = HashMap::new();
    for (id, dn) in candidates.iter().filter_map(|candidate| Some((candidate.id.as_ref()?, &*candidate.raw.dn))) {
        if let Some(other) = first.insert(id, dn) {
            let dns = ambiguous.entry(id).or_default();
            dns.extend(dns.is_empty().then_some(other));
            dns.push(dn);
        }
    }
    ambiguous
}

/// Adds to `entry` the data from other entries: its members, and the gids of its groups.
fn complete(entry: &mut Entry, groups: &[&Dn], closed: &Closed<'_>, index: &Index<'_>) -> Result<(), String> {
    if let Some(posix) = &mut entry.posix {
        posix.groups = closed.gids.get(&entry.id).cloned().unwrap_or_default();
        posix.groups.remove(&posix.gid);
    }
    let group = match groups {
        [] => return Ok(()),
        [group] => *group,
        [one, other, ..] => {
            let (count, one, other) = (groups.len(), one.canonical(), other.canonical());
            return Err(format!(
                "{count} groups have its name, such as {one} and {other}: nobody joins it or leaves it until only one \
                 has that name"
            ));
        }
    };
    if let Some(refused) = closed.refused.get(group) {
        return Err(refused.to_string());
    }
    let members = closed.members.get(group).into_iter().flatten();
    entry.members = members.map(|(id, role)| ((*id).clone(), *role)).collect();
    if entry.kind == AccountKind::Tool {
        // A tool can be a member of another tool's group. The member tool may then act in the other tool, but is not
        // one of its maintainers.
        entry.members.retain(|id, _| index.people.contains(id));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use bursar_core::identity::{Gid, PosixIdentity};
    use bursar_core::snapshot::held::Gives;
    use bursar_core::snapshot::named::MemberName;

    use super::*;
    use crate::ldif;
    use crate::source::{LdifConfig, Preset};

    const SITE: &str = "\
dn: uid=alice,ou=people,dc=x\nobjectClass: posixAccount\nuid: alice\nuidNumber: 2001\ngidNumber: 500\nentryUUID: a\n
dn: uid=bob,ou=people,dc=x\nobjectClass: posixAccount\nuid: bob\nuidNumber: 2002\ngidNumber: 500\nentryUUID: b\n
dn: uid=carol,ou=people,dc=x\nobjectClass: posixAccount\nuid: carol\nentryUUID: c\n
dn: uid=tools.foo,ou=people,ou=servicegroups,dc=x\nobjectClass: posixAccount\nuid: tools.foo\ncn: tools.foo
uidNumber: 52503\ngidNumber: 52503\nentryUUID: f\n
dn: cn=tools.foo,ou=servicegroups,dc=x\nobjectClass: groupOfNames\ncn: tools.foo\nentryUUID: f2\ngidNumber: 52503
member: UID=Alice, ou=people,dc=x\nmember: uid=carol,ou=people,dc=x\nmember: uid=gone,ou=people,dc=x
member: uid=tools.bar,ou=people,ou=servicegroups,dc=x\nmember: cn=staff,ou=groups,dc=x\n
dn: uid=tools.bar,ou=people,ou=servicegroups,dc=x\nobjectClass: posixAccount\nuid: tools.bar\ncn: tools.bar
uidNumber: 52504\ngidNumber: 52504\nentryUUID: r\n
dn: cn=staff,ou=groups,dc=x\nobjectClass: posixGroup\ncn: staff\ngidNumber: 3000\nmemberUid: bob\nmemberUid: tools.bar
entryUUID: s\n
dn: cn=wheel,ou=groups,dc=x\nobjectClass: posixGroup\ncn: wheel\ngidNumber: 10\nmemberUid: bob\nentryUUID: w\n";

    fn source() -> SourceConfig {
        let tree = |kind, base: &str| Some(Preset::Toolforge.tree(kind, base));
        SourceConfig {
            tools: tree(AccountKind::Tool, "ou=servicegroups,dc=x"),
            groups: tree(AccountKind::Group, "ou=groups,dc=x"),
            ..SourceConfig::of_people(Preset::Toolforge)
        }
    }

    /// Returns the answer of a server that holds `text` to the searches of `source`.
    fn answer(source: &SourceConfig, text: &str) -> RawRead {
        let mut entries = Vec::new();
        ldif::parse(text.as_bytes(), &mut entries).expect("the text is valid LDIF");
        let mut raw = RawRead::default();
        for kind in KINDS {
            let Some(tree) = source.tree(kind) else { continue };
            let base = Dn::parse(&tree.base);
            let filter = crate::entry::filter::Filter::parse(&tree.filter).expect("the filter is valid");
            let chosen = entries.iter().filter(|entry| Dn::parse(&entry.dn).is_within(&base) && filter.matches(entry));
            raw.trees.insert(kind, RawTree { entries: chosen.cloned().map(Arc::new).collect(), whole: true });
        }
        raw
    }

    fn read(source: &SourceConfig, text: &str) -> SourceRead {
        assemble(source, answer(source, text), &EntryRules::default())
    }

    fn names(read: &SourceRead) -> Vec<String> {
        read.entries.iter().map(|entry| format!("{}:{}", entry.kind, entry.name)).collect()
    }

    fn members(read: &SourceRead, name: &str) -> Vec<String> {
        let entry = read.entries.iter().find(|entry| entry.name == name).expect("the entry was read");
        entry.members.keys().map(|id| id.0.clone()).collect()
    }

    fn gid(number: i64) -> Gid {
        number.try_into().expect("the gid is valid")
    }

    fn posix(read: &SourceRead, name: &str) -> Option<PosixIdentity> {
        read.entries.iter().find(|entry| entry.name == name).and_then(|entry| entry.posix.clone())
    }

    proptest::proptest! {
        #[test]
        fn sort_orders_all_entries(names in proptest::collection::vec("[ab]{1,3}", 0..60)) {
            let entry = |(at, name): (usize, &String)| Entry::new(AccountKind::User, format!("{at}"), "", name.as_str());
            let mut entries: Vec<Entry> = names.iter().enumerate().map(entry).collect();
            let mut expected = entries.clone();
            expected.sort_by(|a, b| (a.kind, &a.name, &a.id).cmp(&(b.kind, &b.name, &b.id)));
            sort(&mut entries);
            proptest::prop_assert_eq!(entries, expected);
        }
    }

    #[test]
    fn a_tool_has_the_members_of_the_group_with_its_name() {
        let read = read(&source(), SITE);
        assert_eq!(names(&read), ["tool:bar", "tool:foo", "user:alice", "user:bob", "group:staff"]);
        assert_eq!(members(&read, "foo"), ["a", "b", "c"], "no unknown members and no tools, but the rejected carol");
        assert_eq!(members(&read, "bar"), [""; 0], "a tool without a group has no maintainers");
        assert_eq!(read.completeness, Completeness::Complete);
    }

    #[test]
    fn accounts_get_the_gids_of_their_groups() {
        let read = read(&source(), SITE);
        let gids = |name| posix(&read, name).map(|posix| posix.groups.iter().map(|gid| gid.get()).collect::<Vec<_>>());
        assert_eq!(gids("alice"), Some(vec![52503]));
        assert_eq!(gids("bob"), Some(vec![3000, 52503]), "a gid out of range is left out");
        assert_eq!(gids("bar"), Some(vec![3000, 52503]));
        assert_eq!(gids("foo"), Some(vec![]));
    }

    /// Anybody who may create a group can give it the name of another group.
    #[test]
    fn nobody_joins_or_leaves_a_tool_for_which_two_groups_have_its_name() {
        let puppet = "dn: cn=tools.foo,ou=lab,ou=servicegroups,dc=x\nobjectClass: posixGroup\nobjectClass: groupOfNames\n\
                      cn: tools.foo\nentryUUID: p\ngidNumber: 4000\nmember: uid=bob,ou=people,dc=x\n\n";
        let inside = puppet.replace("ou=lab,ou=servicegroups", "ou=lab,ou=groups");
        for text in
            [puppet.to_owned() + SITE, format!("{SITE}\n{puppet}"), inside.clone() + SITE, format!("{SITE}\n{inside}")]
        {
            let read = read(&source(), &text);
            let foo = DirectoryId("f".to_owned());
            let why =
                read.rejected.iter().find(|rejected| rejected.id.as_ref() == Some(&foo)).map(|it| it.why.as_str());
            assert!(why.is_some_and(|why| why.contains("2 groups have its name")), "{why:?}");
            let named: Vec<&str> = read.nesting.members(&foo).into_iter().flatten().map(|id| id.0.as_str()).collect();
            assert_eq!(named, ["a", "b", "c", "r"], "everybody whom one of the groups names stays");
            assert_eq!(posix(&read, "bob").map(|posix| posix.groups), Some(BTreeSet::from([gid(3000)])));
            let kept = |id: &str| read.kept_gids.get(&DirectoryId(id.to_owned())).cloned().unwrap_or_default();
            assert_eq!((kept("a"), kept("b")), (BTreeSet::from([gid(52503)]), BTreeSet::from([gid(4000), gid(52503)])));
            assert!(read.dangling.members.keys().any(|name| name.to_string() == "uid=gone,ou=people,dc=x"));
        }
    }

    #[test]
    fn a_tool_that_lists_its_maintainers_needs_no_group() {
        let listed = SITE
            .replace("posixAccount\nuid: tools.foo", "posixAccount\nobjectClass: groupOfNames\nuid: tools.foo")
            .replace("entryUUID: f\n", "entryUUID: f\nmember: uid=bob,ou=people,dc=x\n");
        assert_eq!(members(&read(&source(), &listed), "foo"), ["b"]);
    }

    #[test]
    fn groups_with_the_same_gid_list_the_accounts_that_they_name() {
        let puppet = "\ndn: cn=x,ou=groups,dc=x\nobjectClass: posixGroup\ncn: x\ngidNumber: 52503\nmemberUid: bob\n\
                      entryUUID: x\n";
        let read = read(&source(), &(SITE.to_owned() + puppet));
        let claims: Vec<_> = read
            .gids
            .iter()
            .map(|claim| (claim.gid.get(), claim.name.as_str(), claim.gives == Gives::Nobody))
            .collect();
        let all = [(3000, "staff", false), (52503, "tools.foo", false), (52503, "x", false), (52503, "foo", true)];
        assert_eq!((&claims[..4], claims.len()), (&all[..], 5), "the fifth claim is bar's");
        let named = |name: &str| {
            let claim = read.gids.iter().find(|claim| claim.name == name).expect("the group claims a gid");
            claim.members.as_ref().map(|members| members.iter().map(|id| id.0.as_str()).collect::<Vec<_>>().concat())
        };
        assert_eq!(
            (named("staff"), named("tools.foo"), named("x")),
            (None, Some("abcr".to_owned()), Some("b".to_owned()))
        );
        let companion = read.gids.iter().find(|claim| claim.name == "tools.foo").expect("the group claims a gid");
        let tool = read
            .gids
            .iter()
            .find(|claim| claim.gives == Gives::Nobody && claim.name == "foo")
            .expect("the tool claims its gid");
        assert!(companion.belongs_to(tool));
    }

    /// Anybody who may create a group among those of the maintainers may be able to write its id, too.
    #[test]
    fn a_group_of_maintainers_with_the_id_of_a_tool_does_not_share_its_gid() {
        let puppet = "\ndn: cn=tools.x,ou=servicegroups,dc=x\nobjectClass: groupOfNames\ncn: tools.x\ngidNumber: 52504\n\
                      member: uid=bob,ou=people,dc=x\nentryUUID: r\n";
        let read = read(&source(), &(SITE.to_owned() + puppet));
        let claim = |gives: Gives, name: &str| {
            let mut claims = read.gids.iter().filter(|claim| claim.gid == gid(52504) && claim.gives == gives);
            claims.find(|claim| claim.name == name).expect("both show the gid")
        };
        assert!(!claim(Gives::Members, "tools.x").belongs_to(claim(Gives::Nobody, "bar")));
    }

    #[test]
    fn a_rejected_entry_shows_the_gids_of_the_groups_that_name_it() {
        let read = read(&source(), SITE);
        let held = &read.held["uid=carol,ou=people,dc=x"];
        assert_eq!((held.created, &held.groups), (None, &BTreeSet::from([gid(52503)])));
    }

    #[test]
    fn an_entry_that_hides_its_uid_is_rejected_with_its_id() {
        let read = read(&source(), SITE);
        let rejected: Vec<_> =
            read.rejected.iter().map(|r| (r.id.as_ref().map(|id| id.0.as_str()), r.why.as_str())).collect();
        let wheel = (Some("w"), "gid 10 is not in 100..2147483646");
        assert_eq!(rejected, [(Some("c"), "uidNumber is missing, or hidden from Bursar"), wheel]);
    }

    #[test]
    fn a_read_with_a_hidden_id_is_partial() {
        let read = read(&source(), &SITE.replace("entryUUID: b", "description: b"));
        let why = "no usable entryUUID in 1 entries, such as uid=bob,ou=people,dc=x";
        assert_eq!(read.completeness, Completeness::Partial { why: why.to_owned() });
    }

    #[test]
    fn a_read_with_hidden_members_is_partial() {
        let text = SITE.replace("member: ", "description: ");
        let why = "members are hidden in 1 groups, such as cn=tools.foo,ou=servicegroups,dc=x";
        assert_eq!(read(&source(), &text).completeness, Completeness::Partial { why: why.to_owned() });
        let mut lax = source();
        lax.attributes.members_required = false;
        assert_eq!(read(&lax, &text).completeness, Completeness::Complete);
    }

    #[test]
    fn entries_of_a_file_without_ids_get_ids_from_their_dns() {
        let mut source = source();
        source.kind = SourceKind::Ldif(LdifConfig { paths: vec![PathBuf::from("a")] });
        let read = read(&source, &SITE.replace("entryUUID: b", "description: b"));
        assert_eq!(read.completeness, Completeness::Complete);
        assert!(read.entries.iter().any(|entry| entry.name == "bob" && entry.id.0.starts_with("dn:")));
    }

    #[test]
    fn two_entries_with_the_same_id_are_both_rejected() {
        let read = read(&source(), &SITE.replace("entryUUID: b", "entryUUID: a"));
        let why: Vec<_> = read.rejected[..2].iter().map(|rejected| (rejected.id.as_ref(), &*rejected.why)).collect();
        let text = |of: &str| {
            format!("entryUUID a is also that of uid={of},ou=people,dc=x: neither entry is used until the ids differ")
        };
        assert_eq!(why, [(None, &*text("bob")), (None, &*text("alice"))]);
        assert_eq!(names(&read), ["tool:bar", "tool:foo", "group:staff"]);
        assert_ne!(read.completeness, Completeness::Complete);
    }

    /// People can give a group of theirs the id of another group, and make their group invalid, so that it is rejected.
    /// The order of the entries must not matter.
    #[test]
    fn an_entry_with_the_id_of_a_group_does_not_affect_its_members() {
        for (gid, name) in [("10", "aaa"), ("10", "zzz"), ("4000", "aaa"), ("4000", "zzz")] {
            let copy = format!(
                "dn: cn={name},ou=groups,dc=x\nobjectClass: posixGroup\ncn: {name}\ngidNumber: {gid}\nentryUUID: s\n\n"
            );
            for text in [format!("{copy}{SITE}"), format!("{SITE}\n{copy}")] {
                let read = read(&source(), &text);
                let id = DirectoryId("s".to_owned());
                assert!(read.nesting.members(&id).is_none() && read.entries.iter().all(|entry| entry.id != id));
                assert!(read.rejected.iter().all(|rejected| rejected.id.as_ref() != Some(&id)), "{:?}", read.rejected);
                assert_ne!(read.completeness, Completeness::Complete);
            }
        }
    }

    #[test]
    fn a_read_without_its_sentinel_is_partial() {
        let mut source = source();
        source.sentinels = vec!["UID=alice,ou=People,dc=x".into()];
        assert_eq!(read(&source, SITE).completeness, Completeness::Complete);
        source.sentinels.push("uid=novaadmin,ou=people,dc=x".into());
        let why = "sentinel not found: uid=novaadmin,ou=people,dc=x".to_owned();
        assert_eq!(read(&source, SITE).completeness, Completeness::Partial { why });
    }

    #[test]
    fn a_sentinel_is_missing_if_its_base_was_read_completely_whatever_else_failed() {
        let mut source = source();
        let lacks = |source: &SourceConfig, cut: AccountKind| {
            let mut raw = answer(source, SITE);
            raw.trees.insert(cut, RawTree::default());
            raw.problems.push("no such base".to_owned());
            let SourceRead { lacks_sentinel, completeness, .. } = assemble(source, raw, &EntryRules::default());
            let why = completeness.to_string();
            assert_eq!((why.contains("no such base"), why.contains("sentinel")), (true, lacks_sentinel), "{why}");
            lacks_sentinel
        };
        assert!(!lacks(&source, AccountKind::Tool));
        source.sentinels = vec!["uid=alice,ou=people,dc=x".into(), "uid=novaadmin,ou=people,dc=x".into()];
        assert!(lacks(&source, AccountKind::Tool));
        assert!(!lacks(&source, AccountKind::User), "the sentinel may be in the part that was not read");
        source.users = Some(Preset::Toolforge.tree(AccountKind::User, "dc=x"));
        source.sentinels = vec!["uid=tools.nova,ou=people,ou=servicegroups,dc=x".into()];
        assert!(!lacks(&source, AccountKind::Tool), "entries below this base are left out of the people");
    }

    #[test]
    fn a_read_is_partial_if_a_sentinel_lacks_a_required_attribute() {
        let mut source = source();
        let dn = "uid=alice,ou=people,dc=x".to_owned();
        source.sentinels = vec![Sentinel { dn, attributes: vec!["PwdAccountLockedTime".to_owned()] }];
        assert!(source.wanted(AccountKind::User).iter().filter(|name| *name == "pwdAccountLockedTime").count() == 1);
        let why = "sentinel uid=alice,ou=people,dc=x does not show PwdAccountLockedTime".to_owned();
        assert_eq!(read(&source, SITE).completeness, Completeness::Partial { why });
        let shown = SITE.replace("entryUUID: a\n", "entryUUID: a\npwdAccountLockedTime: 000001010000Z\n");
        assert_eq!(read(&source, &shown).completeness, Completeness::Complete);
    }

    #[test]
    fn tools_are_not_people_even_if_a_wider_tree_contains_them() {
        let mut source = source();
        source.users = Some(Preset::Toolforge.tree(AccountKind::User, "dc=x"));
        let whole = read(&source, SITE);
        assert_eq!(names(&whole), ["tool:bar", "tool:foo", "user:alice", "user:bob", "group:staff"]);
        let mut half = answer(&source, SITE);
        half.trees.insert(AccountKind::Tool, RawTree::default());
        half.problems.push("cut".to_owned());
        let read = assemble(&source, half, &EntryRules::default());
        assert_eq!(
            names(&read),
            ["user:alice", "user:bob", "group:staff"],
            "tools are left out of the people if the tools were not read"
        );
    }

    #[test]
    fn a_member_name_that_two_entries_have_is_not_resolved() {
        let puppet = "dn: uid=puppet,ou=others,ou=people,dc=x\nobjectClass: posixAccount\nuid: bob\nuidNumber: 2009\n\
                      gidNumber: 500\nentryUUID: p\n\n";
        let read = read(&source(), &(puppet.to_owned() + SITE));
        assert_eq!(members(&read, "staff"), ["r"]);
        assert_eq!(posix(&read, "bob").map(|posix| posix.groups.len()), Some(0));
        let names = &read.dangling.members[&MemberName::Name("bob".to_owned())];
        assert_eq!(
            names.keys().map(|id| id.0.as_str()).collect::<Vec<_>>(),
            ["s", "w"],
            "the read keeps the name for the ledger to resolve"
        );
    }

    #[test]
    fn a_tool_without_a_prefix_is_not_a_member_by_name() {
        let tool = "\ndn: uid=bob,ou=people,ou=servicegroups,dc=x\nobjectClass: posixAccount\nuid: bob\ncn: bob\n\
                    uidNumber: 52509\ngidNumber: 52509\nentryUUID: t\n";
        let mut source = source();
        source.tools.as_mut().expect("the source has tools").strip_prefix = None;
        assert_eq!(members(&read(&source, &(SITE.to_owned() + tool)), "staff"), ["b"]);
        let left = SITE.replace("uid=bob,ou=people", "uid=rob,ou=people").replace("uid: bob", "uid: rob");
        let read = read(&source, &(left + tool));
        assert_eq!(members(&read, "staff"), [""; 0]);
        assert!(read.dangling.members.contains_key(&MemberName::Name("bob".to_owned())));
    }

    #[test]
    fn managers_are_distinguished_from_members() {
        let mut source = source();
        source.attributes.managers = Some("owner".to_owned());
        let text = SITE.replace("cn: staff\n", "cn: staff\nowner: uid=alice,ou=people,dc=x\n");
        let read = read(&source, &text);
        let staff = read.entries.iter().find(|entry| entry.name == "staff").expect("staff was read");
        assert_eq!(staff.members.get(&DirectoryId("a".to_owned())), Some(&bursar_core::snapshot::Role::Manager));
        assert_eq!(staff.members.get(&DirectoryId("b".to_owned())), Some(&bursar_core::snapshot::Role::Member));
    }

    #[test]
    fn a_group_that_is_nested_too_deep_is_rejected() {
        use std::fmt::Write as _;
        let mut text = SITE.to_owned();
        for at in 0..40 {
            let next = at + 1;
            let _ = write!(
                text,
                "\ndn: cn=g{at},ou=groups,dc=x\nobjectClass: groupOfNames\ncn: g{at}\nentryUUID: g{at}\n\
                 member: cn=g{next},ou=groups,dc=x\n"
            );
        }
        let read = read(&source(), &text);
        let why = |name: &str| read.rejected.iter().find(|r| r.name.as_deref() == Some(name)).map(|r| r.why.as_str());
        assert_eq!(why("g0"), Some("groups are nested deeper than 32"));
        assert_eq!(why("g20"), None);
    }

    #[test]
    fn a_rejected_group_still_names_its_members() {
        use std::fmt::Write as _;
        let mut text = SITE.to_owned();
        for at in 0..40 {
            let member =
                if at == 39 { "uid=bob,ou=people,dc=x".to_owned() } else { format!("cn=g{},ou=groups,dc=x", at + 1) };
            let _ = write!(
                text,
                "\ndn: cn=g{at},ou=groups,dc=x\nobjectClass: groupOfNames\ncn: g{at}\nentryUUID: g{at}\n\
                 member: {member}\nmember: cn=g0,ou=groups,dc=x\n"
            );
        }
        text.push_str("member: uid=alice,ou=people,dc=x\nmember: uid=gone,ou=people,dc=x\n");
        let read = read(&source(), &text);
        let members = |id: &str| {
            let members = read.nesting.members(&DirectoryId(id.to_owned()));
            members.map(|members| members.into_iter().map(|member| member.0.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(members("g0"), Some(vec!["a", "b"]), "members beyond the depth limit are included");
        assert_eq!(members("w"), Some(vec!["b"]), "a group that is rejected because of its gid names its members");
        assert_eq!((members("s"), members("c")), (None, None), "s is not rejected, and c is not a group");
        let gone = read.dangling.members.values().flat_map(BTreeMap::keys).any(|holder| holder.0 == "g39");
        assert!(gone, "the missing member of a rejected group is listed");
    }
}
