//! Decides which of several groups gives a gid to its members. A gid gives access to files, so like a uid, it has one
//! owner: the group whose account already has the gid, otherwise the oldest group.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::{HashMap, HashMapExt as _, HashSet};

use crate::identity::{AccountKind, DirectoryId, Gid};
use crate::ledger::{Account, LedgerState, Lifecycle};
use crate::policy::Policy;
use crate::snapshot::SourceRead;
use crate::snapshot::held::{GidClaim, Gives};

/// A claim, and the index of its source.
type Placed<'a> = (usize, &'a GidClaim);

/// The effect on the groups of one source if another group owns a gid that they show.
struct Loss {
    gid: Gid,
    /// The index of the source.
    place: usize,
    /// The members that get the gid from its owner.
    keeps: BTreeSet<DirectoryId>,
    /// The members of groups that may be the owner: they keep the gid if they have it.
    may_keep: BTreeSet<DirectoryId>,
    /// Whether everybody who gets the gid in this source may keep it.
    all_may_keep: bool,
    /// The ids of the groups that do not give the gid, each with the reason.
    losers: Vec<(Vec<DirectoryId>, String)>,
}

/// Gives each gid only to the members of the group that owns it. The other groups keep their members, but do not give
/// them the gid.
pub(super) fn withhold(reads: &mut [SourceRead], unasked: &BTreeSet<String>, ledger: &LedgerState, policy: &Policy) {
    let mut by_place: BTreeMap<usize, HashMap<Gid, Loss>> = BTreeMap::new();
    for loss in losses(reads, unasked, ledger, policy) {
        by_place.entry(loss.place).or_default().insert(loss.gid, loss);
    }
    // Each entry is visited once, however many gids are lost.
    for (place, losses) in by_place {
        let SourceRead { entries, rejected, held, kept_gids, remarks, .. } = &mut reads[place];
        for (id, gids) in kept_gids.iter_mut() {
            gids.retain(|gid| losses.get(gid).is_none_or(|loss| loss.may_keep.contains(id)));
        }
        let mut take = |id: Option<&DirectoryId>, groups: &mut BTreeSet<Gid>| {
            let Some(id) = id else { return };
            groups.retain(|gid| {
                let Some(loss) = losses.get(gid).filter(|loss| !loss.keeps.contains(id)) else { return true };
                if loss.all_may_keep || loss.may_keep.contains(id) {
                    kept_gids.entry(id.clone()).or_default().insert(*gid);
                }
                false
            });
        };
        for entry in entries.iter_mut() {
            if let Some(posix) = &mut entry.posix {
                take(Some(&entry.id), &mut posix.groups);
            }
        }
        for rejected in rejected.iter() {
            if let Some(held) = held.get_mut(&rejected.dn) {
                take(rejected.id.as_ref(), &mut held.groups);
            }
        }
        let mut lost: HashMap<&DirectoryId, Vec<(Gid, &str)>> = HashMap::new();
        for (loss, (ids, why)) in losses.values().flat_map(|loss| loss.losers.iter().map(move |loser| (loss, loser))) {
            for id in ids {
                lost.entry(id).or_default().push((loss.gid, why));
            }
        }
        for entry in entries.iter_mut() {
            for (gid, why) in lost.get(&entry.id).into_iter().flatten() {
                entry.gid = entry.gid.filter(|shown| shown != gid);
                remarks.insert(entry.id.clone(), (*why).to_owned());
            }
        }
    }
}

fn losses(reads: &[SourceRead], unasked: &BTreeSet<String>, ledger: &LedgerState, policy: &Policy) -> Vec<Loss> {
    let mut claims: Vec<Placed<'_>> = Vec::new();
    for (place, read) in reads.iter().enumerate() {
        claims.extend(read.gids.iter().map(|claim| (place, claim)));
    }
    if claims.is_empty() {
        return Vec::new();
    }
    claims.sort_by_key(|(place, claim)| (claim.gid, *place));
    let known = Known::of((reads, unasked), &claims, ledger, policy);
    let of_gid = claims.chunk_by(|(_, one), (_, other)| one.gid == other.gid);
    of_gid.flat_map(|claims| known.losses_of(claims)).collect()
}

/// The ledger's knowledge of the gids in the reads.
struct Known<'a> {
    reads: &'a [SourceRead],
    /// The accounts that own each gid.
    holders: HashMap<Gid, Vec<&'a Account>>,
    /// The gid that an entry shows, by source and id, and by whether it is the primary gid.
    shown: HashMap<(usize, &'a DirectoryId, bool), Gid>,
    /// How long an account may be absent before its gid is free, in seconds.
    absent_for: u64,
}

impl<'a> Known<'a> {
    fn of(
        (reads, unasked): (&'a [SourceRead], &BTreeSet<String>),
        claims: &[Placed<'a>],
        ledger: &'a LedgerState,
        policy: &Policy,
    ) -> Self {
        let wanted: HashSet<Gid> = claims.iter().map(|(_, claim)| claim.gid).collect();
        let mut holders: HashMap<Gid, Vec<&Account>> = HashMap::new();
        // A primary gid is a tool's own only if no other account has it.
        let mut primary: HashMap<Gid, Vec<&Account>> = HashMap::new();
        // A source that was removed from the configuration is never asked again.
        let is_configured =
            |source: &String| unasked.contains(source) || reads.iter().any(|read| read.source == *source);
        let holds = |account: &&Account| account.state != Lifecycle::Deleted && is_configured(&account.source);
        for account in ledger.accounts.values().filter(holds) {
            let (gid, list) = match account.kind {
                AccountKind::Group => (account.gid, &mut holders),
                AccountKind::Tool | AccountKind::User => (account.posix.as_ref().map(|ids| ids.gid), &mut primary),
            };
            if let Some(gid) = gid.filter(|gid| wanted.contains(gid)) {
                list.entry(gid).or_default().push(account);
            }
        }
        for (gid, accounts) in primary {
            if let [account] = accounts.as_slice()
                && account.kind == AccountKind::Tool
            {
                holders.entry(gid).or_default().push(account);
            }
        }
        let shown = claims.iter().flat_map(|(place, claim)| {
            claim.ids.iter().map(|id| ((*place, id, claim.gives == Gives::Nobody), claim.gid))
        });
        Self { reads, holders, shown: shown.collect(), absent_for: policy.lifecycle.absent_for.as_secs() }
    }

    fn has(&self, account: &Account, (place, claim): Placed<'_>) -> bool {
        account.source == self.reads[place].source && claim.ids.contains(&account.directory_id)
    }

    /// Whether an account without a claim keeps its gid. It does if its entry is hidden, if its source did not answer,
    /// or if the account has not been absent for long enough.
    fn keeps(&self, account: &Account, gid: Gid) -> bool {
        let place = self.reads.iter().position(|read| read.source == account.source);
        let is_primary = account.kind == AccountKind::Tool;
        let shown = place.and_then(|place| self.shown.get(&(place, &account.directory_id, is_primary)));
        shown.is_none_or(|shown| *shown == gid)
            && account.absence.is_none_or(|absence| absence.seconds < self.absent_for)
    }

    /// Returns the losses for the gid that all of `claims` show.
    fn losses_of(&self, claims: &[Placed<'a>]) -> Vec<Loss> {
        let Some((first_place, first)) = claims.first().copied() else { return Vec::new() };
        let gid = first.gid;
        let holders = self.holders.get(&gid).map_or(&[][..], Vec::as_slice);
        let is_known = |placed: Placed<'_>| holders.iter().any(|account| self.has(account, placed));
        let is_alone = claims.iter().all(|(place, claim)| *place == first_place && claim.belongs_to(first));
        // Another group has the gid too, but its source did not answer. The owner of the gid can be determined only
        // when both groups are read.
        let is_unseen = |account: &&&Account| {
            let is_read = claims.iter().any(|placed| self.has(account, *placed));
            account.kind == AccountKind::Group && !is_read && self.keeps(account, gid)
        };
        let unseen = holders.iter().find(is_unseen);
        if is_alone && (holders.is_empty() || (unseen.is_none() && claims.iter().any(|placed| is_known(*placed)))) {
            return Vec::new();
        }
        let rank = |placed: Placed<'a>| {
            let (claim, is_known) = (placed.1, is_known(placed));
            // A common group takes precedence over a tool whose primary gid is the group's gid.
            let is_primary = is_known && claim.gives == Gives::Nobody;
            (!is_known, is_primary, claim.created.is_none(), claim.created, claim)
        };
        let Some(best) = claims.iter().copied().min_by_key(|placed| rank(*placed)) else { return Vec::new() };
        let hidden = if is_known(best) { unseen } else { holders.iter().find(|account| self.keeps(account, gid)) };
        // Groups with the same name in two sources are one group.
        let is_one = |account: &&Account| {
            account.source != self.reads[best.0].source
                && account.absence.is_none()
                && self.is_named(account, best.0, best.1)
        };
        let hidden = hidden.copied().filter(|account| !is_one(account));
        let owner = match hidden {
            Some(account) => format!("{} ({})", account.account_name(), account.dn),
            None => format!("{} ({})", best.1.name, best.1.dn),
        };
        let mut losses = Vec::new();
        for here in claims.chunk_by(|(one, _), (other, _)| one == other) {
            let place = here[0].0;
            // A group with the same name in another source is the same group.
            let is_best = |placed: &Placed<'_>| placed.0 == best.0 && placed.1.dn == best.1.dn;
            let is_namesake = |placed: &Placed<'_>| placed.0 != best.0 && placed.1.name == best.1.name;
            let may_win = here.iter().copied().filter(|placed| is_best(placed) || is_namesake(placed));
            let winner = may_win.min_by_key(|placed| rank(*placed)).filter(|_| hidden.is_none());
            let wins = |claim: &GidClaim| winner.is_some_and(|(_, winner)| claim.belongs_to(winner));
            let others =
                here.iter().map(|(_, claim)| *claim).filter(|claim| !wins(claim) && claim.gives != Gives::Nobody);
            let why = |name: &str| {
                format!("gid {gid} belongs to {owner}: members of {name} do not get it; give one of them another gid")
            };
            let losers: Vec<_> = others.clone().map(|claim| (claim.ids.clone(), why(&claim.name))).collect();
            if losers.is_empty() {
                continue;
            }
            let winners = |gives: Gives| {
                let winners = here.iter().filter(move |(_, claim)| wins(claim) && claim.gives == gives);
                winners.flat_map(|(_, claim)| claim.members.iter().flatten().cloned())
            };
            // The holder may have been created again under the same name. Such a group gives the gid to nobody, but
            // those of its members who have the gid keep it. The same applies to another group that has the gid.
            let again = others.filter(|claim| {
                let stays = |account| self.is_named(account, place, claim) || is_known((place, *claim));
                hidden.is_some_and(stays)
            });
            losses.push(Loss {
                gid,
                place,
                keeps: winners(Gives::Members).collect(),
                may_keep: winners(Gives::Kept)
                    .chain(again.clone().flat_map(|claim| claim.members.iter().flatten().cloned()))
                    .collect(),
                all_may_keep: again.clone().any(|claim| claim.members.is_none()),
                losers,
            });
        }
        losses
    }

    /// Whether a claim has the name that the account has in the directory.
    fn is_named(&self, account: &Account, place: usize, claim: &GidClaim) -> bool {
        let prefix = self.reads[place].labels.prefixes.get(&account.kind).map_or("", String::as_str);
        claim.name.strip_prefix(prefix) == Some(account.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::PosixIdentity;
    use crate::ledger::change::Change;
    use crate::ledger::transition::transition;
    use crate::merge::merge;
    use crate::plan::testing;
    use crate::snapshot::{DirectorySnapshot, Entry, Role};

    const SHARED: u32 = 3000;

    fn gid(number: u32) -> Gid {
        i64::from(number).try_into().expect("the gid is valid")
    }

    fn id(text: &str) -> DirectoryId {
        DirectoryId(text.to_owned())
    }

    /// A group by its name, gid, year of creation and members.
    type Group<'a> = (&'a str, u32, i64, &'a [&'a str]);

    /// Returns a read as `assemble` makes it.
    fn read(source: &str, people: &[&str], groups: &[Group<'_>]) -> SourceRead {
        let created = |year: i64| jiff::Timestamp::from_second(year * 31_557_600).ok();
        let person = |(at, name): (usize, &&str)| {
            let named = groups.iter().filter(|(_, _, _, members)| members.contains(name));
            let uid = i64::try_from(at).expect("the number is small") + if source == "first" { 20_001 } else { 30_001 };
            let ids = PosixIdentity {
                uid: uid.try_into().expect("the uid is valid"),
                gid: gid(500),
                groups: named.map(|(_, number, ..)| gid(*number)).collect(),
            };
            Entry { posix: Some(ids), ..Entry::new(AccountKind::User, *name, format!("uid={name},o={source}"), *name) }
        };
        let group = |(name, number, year, members): &Group<'_>| Entry {
            gid: Some(gid(*number)),
            created: created(*year),
            members: members.iter().map(|member| (id(member), Role::Member)).collect(),
            ..Entry::new(AccountKind::Group, format!("{source}-{name}"), format!("cn={name},o={source}"), *name)
        };
        let mut entries: Vec<Entry> = people.iter().enumerate().map(person).collect();
        entries.extend(groups.iter().map(group));
        let kinds = [AccountKind::User, AccountKind::Group];
        let mut read = SourceRead::complete(source, kinds, entries);
        let is_contested = |number: u32| groups.iter().filter(|(_, other, ..)| *other == number).count() > 1;
        read.gids = groups
            .iter()
            .map(|(name, number, year, members)| GidClaim {
                gid: gid(*number),
                dn: format!("cn={name},o={source}"),
                name: (*name).to_owned(),
                ids: vec![id(&format!("{source}-{name}"))],
                created: created(*year),
                gives: Gives::Members,
                members: is_contested(*number).then(|| members.iter().map(|member| id(member)).collect()),
            })
            .collect();
        read
    }

    /// A ledger, and the sources of the configuration.
    struct Story(LedgerState, &'static [&'static str]);

    impl Default for Story {
        fn default() -> Self {
            Self(LedgerState::default(), &["first", "second"])
        }
    }

    impl Story {
        fn hears(&mut self, reads: Vec<SourceRead>) {
            let policy = testing::policy();
            let now = jiff::Timestamp::from_second(1_790_000_000).expect("the time is valid");
            let unasked = self.1.iter().filter(|name| reads.iter().all(|read| read.source != **name));
            let unasked = unasked.map(|name| (*name).to_owned()).collect();
            let snapshot: DirectorySnapshot = merge(reads, unasked, &policy, &self.0);
            let changes: Vec<Change> = transition(&self.0, &snapshot, &policy, now).changes;
            self.0.apply_all(&changes);
        }

        /// Returns the people who have the gid.
        fn with(&self, number: u32) -> Vec<&str> {
            let has =
                |account: &&Account| account.posix.as_ref().is_some_and(|posix| posix.groups.contains(&gid(number)));
            let mut names: Vec<&str> =
                self.0.accounts.values().filter(has).map(|account| account.name.as_str()).collect();
            names.sort_unstable();
            names
        }

        fn why(&self) -> Vec<&str> {
            self.0.rejected.iter().map(|rejected| rejected.why.as_str()).collect()
        }

        fn gid_of(&self, name: &str) -> Option<Gid> {
            self.0.accounts.values().find(|account| account.name == name).and_then(|account| account.gid)
        }
    }

    const PEOPLE: &[&str] = &["alice", "bob", "mallory"];
    const FOO: Group<'_> = ("foo", SHARED, 30, &["alice"]);

    #[test]
    fn a_younger_group_does_not_get_the_gid_of_another() {
        let x = ("x", SHARED, 40, &["alice", "mallory"][..]);
        for groups in [[FOO, x], [x, FOO]] {
            let mut story = Story::default();
            story.hears(vec![read("first", PEOPLE, &groups)]);
            assert_eq!(story.with(SHARED), ["alice"]);
            assert!(story.why()[0].starts_with("gid 3000 belongs to foo (cn=foo,o=first)"), "{:?}", story.why());
            assert_eq!((story.gid_of("foo"), story.gid_of("x")), (Some(gid(SHARED)), None));
            let x = story.0.accounts.values().find(|account| account.name == "x").expect("the group has an account");
            assert_eq!(x.members.len(), 2, "the group keeps its members");
        }
    }

    #[test]
    fn an_older_group_does_not_get_the_gid_that_an_account_has() {
        let before = ("x", 4000, 10, &["mallory"][..]);
        let mut story = Story::default();
        story.hears(vec![read("first", PEOPLE, &[FOO, before])]);
        assert_eq!((story.with(SHARED), story.with(4000), story.why().len()), (vec!["alice"], vec!["mallory"], 0));
        story.hears(vec![read("first", PEOPLE, &[FOO, ("x", SHARED, 10, &["mallory"])])]);
        assert_eq!((story.with(SHARED), story.gid_of("x")), (vec!["alice"], Some(gid(4000))));
        // The holder is hidden, or its source does not answer.
        story.hears(vec![read("first", PEOPLE, &[("x", SHARED, 10, &["mallory"])])]);
        assert_eq!(story.with(SHARED), [""; 0]);
        story.hears(vec![read("second", &["eve"], &[("y", SHARED, 10, &["eve"])])]);
        assert_eq!(story.with(SHARED), [""; 0]);
    }

    #[test]
    fn a_group_with_the_same_name_in_another_source_is_the_same_group() {
        let mut story = Story::default();
        let second = |name| read("second", &["eve"], &[(name, SHARED, 10, &["eve"])]);
        story.hears(vec![read("first", PEOPLE, &[FOO]), second("bar")]);
        assert_eq!(story.with(SHARED), ["eve"], "the older group has the gid");
        let mut story = Story::default();
        story.hears(vec![read("first", PEOPLE, &[FOO]), second("foo")]);
        assert_eq!(story.with(SHARED), ["alice", "eve"]);
    }

    #[test]
    fn the_holder_of_a_gid_does_not_depend_on_the_sources_that_answer() {
        let mut story = Story::default();
        let second = || read("second", &["eve"], &[("b", SHARED, 40, &["eve"])]);
        // Before there were owners, both groups got the gid.
        story.hears(vec![read("first", PEOPLE, &[FOO])]);
        story.hears(vec![read("second", &["eve"], &[("b", 4000, 40, &["eve"])])]);
        let number = |account: &mut Account| account.gid = account.gid.map(|_| gid(SHARED));
        let b =
            story.0.accounts.values().find(|account| account.name == "b").cloned().expect("the group has an account");
        let mut both = b.clone();
        number(&mut both);
        story.0.apply(&Change::Account(both.into()));
        story.hears(vec![read("first", PEOPLE, &[FOO]), second()]);
        assert_eq!(story.with(SHARED), ["alice"], "the first source has the older group");
        for reads in [vec![second()], vec![read("first", PEOPLE, &[FOO])], vec![second()]] {
            story.hears(reads);
            assert_eq!(story.with(SHARED), ["alice"], "nobody gets the gid, and nobody loses it");
        }
    }

    #[test]
    fn new_members_of_one_group_in_two_sources_get_its_gid_from_either() {
        let mut story = Story::default();
        story.hears(vec![read("first", PEOPLE, &[FOO]), read("second", &["eve"], &[("foo", SHARED, 40, &[])])]);
        story.hears(vec![read("second", &["eve"], &[("foo", SHARED, 40, &["eve"])])]);
        assert_eq!(story.with(SHARED), ["alice", "eve"]);
    }

    #[test]
    fn a_group_shares_the_primary_gid_of_a_tool_only_if_it_had_the_gid_first() {
        let both = |of_tool: u32, of_group: u32| {
            let mut read = read("first", PEOPLE, &[("foo", of_group, 30, &["alice"])]);
            let ids = PosixIdentity {
                uid: 50_001.try_into().expect("the uid is valid"),
                gid: gid(of_tool),
                groups: BTreeSet::new(),
            };
            read.kinds.insert(AccountKind::Tool);
            read.entries.push(Entry { posix: Some(ids), ..Entry::new(AccountKind::Tool, "bot", "cn=bot", "bot") });
            read.gids[0].members = (of_tool == of_group).then(|| [id("alice")].into());
            read.gids.push(GidClaim {
                gid: gid(of_tool),
                dn: "cn=bot".to_owned(),
                name: "bot".to_owned(),
                ids: vec![id("bot")],
                created: None,
                gives: Gives::Nobody,
                members: (of_tool == of_group).then(BTreeSet::new),
            });
            vec![read]
        };
        let mut story = Story::default();
        story.hears(both(SHARED, 4000));
        // Otherwise anybody who may edit a group could get the files of a tool.
        story.hears(both(SHARED, SHARED));
        assert_eq!(story.with(SHARED), [""; 0]);
        assert!(story.why()[0].starts_with("gid 3000 belongs to bot"), "{:?}", story.why());
        story.hears(both(4000, SHARED));
        assert_eq!(story.with(SHARED), ["alice"]);
        story.hears(both(SHARED, SHARED));
        assert_eq!((story.with(SHARED), story.why().len()), (vec!["alice"], 0));
    }

    #[test]
    fn the_gids_of_a_source_that_was_removed_are_free() {
        let mut story = Story::default();
        story.hears(vec![read("first", PEOPLE, &[FOO])]);
        let second = || vec![read("second", &["eve"], &[("b", SHARED, 40, &["eve"])])];
        story.hears(second());
        assert_eq!(story.with(SHARED), ["alice"]);
        story.1 = &["second"];
        story.hears(second());
        assert_eq!(story.with(SHARED), ["alice", "eve"]);
    }

    #[test]
    fn groups_may_exchange_their_gids() {
        let mut story = Story::default();
        story.hears(vec![read("first", PEOPLE, &[FOO, ("bar", 4000, 40, &["bob"])])]);
        story.hears(vec![read("first", PEOPLE, &[("foo", 4000, 30, &["alice"]), ("bar", SHARED, 40, &["bob"])])]);
        assert_eq!((story.with(SHARED), story.with(4000), story.why().len()), (vec!["bob"], vec!["alice"], 0));
    }

    #[test]
    fn members_of_a_group_that_was_created_again_keep_its_gid_and_nobody_gets_it() {
        let mut story = Story::default();
        story.hears(vec![read("first", PEOPLE, &[FOO])]);
        let mut again = read("first", PEOPLE, &[("foo", SHARED, 50, &["alice", "mallory"])]);
        let new = id("again");
        again.gids[0].ids = vec![new.clone()];
        again
            .entries
            .iter_mut()
            .filter(|entry| entry.kind == AccountKind::Group)
            .for_each(|group| group.id = new.clone());
        story.hears(vec![again]);
        assert_eq!(story.with(SHARED), ["alice"]);
    }
}
