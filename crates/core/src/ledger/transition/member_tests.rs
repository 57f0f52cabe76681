//! Tests which person a group means by a name that several entries have, or that another person had before.

use std::collections::BTreeSet;

use super::doubt_tests::{HOUR, SOURCE, Story, group, person, read};
use crate::identity::{AccountKind, DirectoryId, Gid};
use crate::ledger::people::PeopleByEntry;
use crate::snapshot::dn::Dn;
use crate::snapshot::held::Held;
use crate::snapshot::named::MemberName;
use crate::snapshot::{Completeness, Entry, RejectedEntry, SourceRead};

fn gid() -> Gid {
    3000.try_into().expect("the gid is valid")
}

/// A group that gives its members a gid.
fn staff(members: &[i64]) -> Entry {
    Entry { gid: Some(gid()), ..group("staff", members) }
}

fn in_staff(mut person: Entry) -> Entry {
    person.posix.as_mut().expect("the person has a uid").groups.insert(gid());
    person
}

/// Returns the read with a `staff` that also names a member for whom there is no entry.
fn naming(mut read: SourceRead, name: MemberName) -> SourceRead {
    read.dangling.add(name, DirectoryId("g-staff".to_owned()), crate::snapshot::Role::Member);
    read
}

fn by_name(name: &str) -> MemberName {
    MemberName::Name(name.to_owned())
}

fn by_dn(dn: &str) -> MemberName {
    MemberName::of(&Dn::parse(dn))
}

/// Returns the members of the group. Names of those who are leaving are in brackets.
fn members(story: &Story) -> Vec<String> {
    let (staff, people) = (story.account("staff"), PeopleByEntry::of(&story.ledger));
    let name = |member: &DirectoryId| people.get(staff, member).map_or_else(|| member.0.clone(), |it| it.name.clone());
    let is_leaving = |member: &DirectoryId| staff.leaving.contains(member);
    let say = |member| if is_leaving(member) { format!("({})", name(member)) } else { name(member) };
    staff.members.keys().map(say).collect()
}

fn gids(story: &Story, name: &str) -> BTreeSet<Gid> {
    story.account(name).posix.as_ref().map(|posix| posix.groups.clone()).unwrap_or_default()
}

fn begin() -> Story {
    let story = Story::begin(vec![in_staff(person(1)), person(2), staff(&[1])]);
    assert_eq!((members(&story), gids(&story, "p1").len()), (vec!["p1".to_owned()], 1));
    story
}

fn called(name: &str, entry: Entry) -> Entry {
    Entry { name: name.to_owned(), ..entry }
}

#[test]
fn a_name_that_two_entries_claim_means_the_account_that_has_it() {
    let mut story = begin();
    for _ in 0..2 {
        let shown = read(vec![person(1), called("p1", person(2)), staff(&[])]);
        story.hears(naming(shown, by_name("p1")));
        assert_eq!((members(&story), gids(&story, "p1").len()), (vec!["p1".to_owned()], 1));
        story.later(48 * HOUR);
    }
    story.hears(read(vec![person(1), person(2), staff(&[])]));
    assert_eq!(
        (members(&story), gids(&story, "p1").len()),
        (vec!["(p1)".to_owned()], 0),
        "the group no longer names p1"
    );
}

/// Groups list a tool by its name with the prefix, which the ledger does not have.
#[test]
fn a_tool_that_groups_list_by_name_keeps_its_membership_and_gid() {
    let tool = || {
        let Entry { posix, .. } = in_staff(person(7));
        Entry { posix, ..Entry::new(AccountKind::Tool, "t1", "uid=tools.bar,dc=x", "bar") }
    };
    let with = |member: Option<&str>, entries: &[Entry]| {
        let members =
            member.map(|id| (DirectoryId(id.to_owned()), crate::snapshot::Role::Member)).into_iter().collect();
        let group = Entry { members, ..staff(&[]) };
        let mut read = read(entries.iter().cloned().chain([person(2), group]).collect());
        read.kinds.insert(AccountKind::Tool);
        read.labels.prefixes.insert(AccountKind::Tool, "tools.".to_owned());
        read
    };
    let keeps = |story: &Story, name: &str| {
        let staff = story.account("staff");
        (staff.members.len() - staff.leaving.len(), gids(story, name).len())
    };
    let mut plain = tool();
    plain.posix.as_mut().expect("the tool has a uid").groups.clear();
    let other = Entry { id: DirectoryId("t2".to_owned()), ..called("other", plain.clone()) };
    let renamed = called("new", plain.clone());
    // Several entries have the name, the tool has no entry, or it was renamed.
    for (shown, name) in [(plain, "bar"), (other, "bar"), (renamed, "new")] {
        let mut story = Story::begin(with(Some("t1"), &[tool()]).entries);
        assert_eq!(keeps(&story, "bar"), (1, 1));
        story.hears(naming(with(None, std::slice::from_ref(&shown)), by_name("tools.bar")));
        assert_eq!(keeps(&story, name), (1, 1), "{name}");
        story.hears(naming(with(None, std::slice::from_ref(&shown)), by_name("bar")));
        assert_eq!(keeps(&story, name).0, 0, "a person may have the name without the prefix");
    }
}

#[test]
fn an_entry_that_may_not_have_its_name_gains_no_membership_by_that_name() {
    let puppet = called("p1", in_staff(person(2)));
    let rejected = RejectedEntry {
        source: SOURCE.to_owned(),
        kind: AccountKind::User,
        dn: puppet.dn.clone(),
        name: Some("p1".to_owned()),
        id: Some(puppet.id.clone()),
        disabled: None,
        why: "no home".to_owned(),
        reason: None,
    };
    let stranger = Entry { id: DirectoryId("u9".to_owned()), ..in_staff(person(1)) };
    let refused = SourceRead { rejected: vec![rejected], ..read(vec![person(3), staff(&[2])]) };
    for shown in [read(vec![puppet, staff(&[2])]), refused, read(vec![stranger, person(2), staff(&[9])])] {
        // The entry of p1 is missing, hidden or was moved elsewhere.
        let mut story = begin();
        story.hears(shown.clone());
        assert_eq!((members(&story), gids(&story, "p2").len()), (vec!["p1".to_owned()], 0), "{shown:?}");
        for _ in 0..26 {
            story.later(HOUR);
            story.hears(shown.clone());
        }
        assert_eq!(members(&story), ["(p1)"], "the absence of p1 is due");
    }
}

#[test]
fn a_member_who_is_renamed_stays_for_a_week() {
    let moved = Entry { dn: "uid=p1,ou=left,dc=x".to_owned(), ..person(1) };
    for (renamed, former) in [(moved, by_dn("uid=p1,ou=people,dc=x")), (called("q1", person(1)), by_name("p1"))] {
        let name = renamed.name.clone();
        let mut story = begin();
        for _ in 0..7 {
            story.hears(naming(read(vec![renamed.clone(), person(2), staff(&[])]), former.clone()));
            assert_eq!((members(&story), gids(&story, &name).len()), (vec![name.clone()], 1), "{former}");
            story.later(24 * HOUR);
        }
        for _ in 0..2 {
            story.hears(naming(read(vec![renamed.clone(), person(2), staff(&[])]), former.clone()));
        }
        assert_eq!((members(&story), gids(&story, &name).len()), (vec![format!("({name})")], 0), "{former}");
        // Nobody joins by another name.
        let mut story = begin();
        for _ in 0..2 {
            story.hears(naming(read(vec![renamed.clone(), person(2), staff(&[])]), by_dn("uid=p2,ou=elsewhere,dc=x")));
        }
        assert_eq!(members(&story), [format!("({name})")], "the group no longer names the account");
    }
}

/// Groups that are not updated with the entry still mean the former holder of a DN or name.
#[test]
fn nobody_joins_by_a_dn_or_name_that_another_account_had_before() {
    let dn = "cn=p1,ou=people,dc=x".to_owned();
    let at = |dn: &str, entry: Entry| Entry { dn: dn.to_owned(), ..entry };
    let (p1, moved) = (at(&dn, in_staff(person(1))), at("cn=q1,ou=people,dc=x", person(1)));
    let renamed = called("q1", at(&dn, person(1)));
    let by_dn = at(&dn.to_uppercase(), in_staff(person(2)));
    let by_name = called("p1", in_staff(person(2)));
    let new = at(&dn, in_staff(person(9)));
    // p1 moved, was renamed, or is missing.
    for (left, heir, days) in [
        (Some(&moved), &by_dn, 7),
        (Some(&moved), &new, 7),
        (Some(&renamed), &by_name, 7),
        (None, &by_dn, 1),
        (None, &new, 1),
    ] {
        let mut story = Story::begin(vec![p1.clone(), person(2), person(3), staff(&[1])]);
        let number = heir.id.0.trim_start_matches('u').parse().expect("the id has a number");
        let others: Vec<Entry> = [person(2), person(3)].into_iter().filter(|other| other.id != heir.id).collect();
        let shown = || {
            let entries = left.into_iter().chain([heir]).cloned().chain(others.clone());
            read(entries.chain([staff(&[number])]).collect())
        };
        for hour in 0..days * 24 {
            story.hears(shown());
            let joined = staff_has(&story, &heir.id) || !gids(&story, &heir.name).is_empty();
            assert_eq!((joined, staff_has(&story, &p1.id)), (false, true), "{heir:?} {hour}");
            let why = story.ledger.rejected.iter().find(|rejected| rejected.id.as_ref() == Some(&heir.id));
            assert!(why.is_some_and(|rejected| rejected.why.contains("does not join")), "{:?}", story.ledger.rejected);
            story.later(HOUR);
        }
        for _ in 0..2 {
            story.later(HOUR);
            story.hears(shown());
        }
        let now = (staff_has(&story, &heir.id), gids(&story, &heir.name).len(), staff_has(&story, &p1.id));
        assert_eq!(now, (true, 1, false), "{heir:?}");
        assert!(story.ledger.rejected.is_empty(), "{:?}", story.ledger.rejected);
    }
    // The entry that has the DN now is rejected.
    let mut story = Story::begin(vec![p1.clone(), person(2), person(3), staff(&[1])]);
    let rejected = RejectedEntry::of(SOURCE, &by_dn, "no home".to_owned());
    story.hears(SourceRead { rejected: vec![rejected], ..read(vec![moved.clone(), person(3), staff(&[2])]) });
    assert_eq!(members(&story), ["p1"]);
    // Active Directory changes the DN in its groups together with the entry.
    let mut story = Story::begin(vec![p1, person(2), staff(&[1])]);
    let mut shown = read(vec![moved, by_dn, staff(&[2])]);
    (shown.labels.stale_dns, shown.labels.stale_names) = (false, false);
    story.hears(shown);
    assert_eq!(members(&story), ["(p1)", "p2"]);
    assert!(story.ledger.rejected.is_empty(), "{:?}", story.ledger.rejected);
}

#[test]
fn accounts_that_exchange_their_dns_and_names_keep_their_memberships() {
    let as_other = |own: i64, other: i64| {
        let (Entry { posix, home, .. }, shown) = (person(own), person(other));
        Entry { posix, home, id: DirectoryId(format!("u{own}")), ..shown }
    };
    let begin = || Story::begin(vec![in_staff(person(1)), person(2), staff(&[1]), group("lab", &[2])]);
    let of = |story: &Story, group: &str| {
        let account = story.account(group);
        account.members.keys().filter(|member| !account.leaving.contains(*member)).cloned().collect::<Vec<_>>()
    };
    let ids = |numbers: &[i64]| numbers.iter().map(|number| DirectoryId(format!("u{number}"))).collect::<Vec<_>>();
    // The server changes the groups together with the entries.
    let mut story = begin();
    story.hears(read(vec![in_staff(as_other(1, 2)), as_other(2, 1), staff(&[1]), group("lab", &[2])]));
    assert_eq!((of(&story, "staff"), of(&story, "lab")), (ids(&[1]), ids(&[2])));
    assert_eq!((story.account("p2").directory_id.0.as_str(), story.ledger.rejected.len()), ("u1", 0));
    // The groups keep the old values, which now mean the other account.
    let mut story = begin();
    for _ in 0..7 {
        story.hears(read(vec![as_other(1, 2), in_staff(as_other(2, 1)), staff(&[2]), group("lab", &[1])]));
        assert_eq!((of(&story, "staff"), of(&story, "lab")), (ids(&[1]), ids(&[2])));
        assert_eq!((gids(&story, "p2").len(), gids(&story, "p1").len()), (1, 0));
        assert_eq!((story.account("p2").directory_id.0.as_str(), story.ledger.rejected.len()), ("u1", 2));
        story.later(23 * HOUR);
    }
    // The group names both, so it was changed after the exchange.
    story.hears(read(vec![in_staff(as_other(1, 2)), in_staff(as_other(2, 1)), staff(&[1, 2]), group("lab", &[1])]));
    assert_eq!((of(&story, "staff"), of(&story, "lab")), (ids(&[1, 2]), ids(&[2])));
    assert_eq!((gids(&story, "p2").len(), gids(&story, "p1").len()), (1, 1));
}

/// The read does not show whether the group is older than the rename.
#[test]
fn a_group_that_did_not_have_the_former_holder_waits_for_one_read() {
    let moved = Entry { dn: "uid=q1,ou=people,dc=x".to_owned(), ..person(1) };
    let heir = Entry { dn: "uid=p1,ou=people,dc=x".to_owned(), ..in_staff(person(9)) };
    let mut story = Story::begin(vec![person(1), person(2), staff(&[2])]);
    let shown = || read(vec![moved.clone(), heir.clone(), in_staff(person(2)), staff(&[2, 9])]);
    story.hears(shown());
    assert_eq!((members(&story), gids(&story, "p9").len()), (vec!["p2".to_owned()], 0));
    story.hears(shown());
    assert_eq!((members(&story), gids(&story, "p9").len()), (vec!["p2".to_owned(), "p9".to_owned()], 1));
    assert!(story.ledger.rejected.is_empty(), "{:?}", story.ledger.rejected);
}

/// A member who is leaving still leaves, even if the group seems to name them by a DN that another member had.
#[test]
fn nobody_returns_or_becomes_manager_by_a_dn_that_another_account_had_before() {
    use crate::snapshot::Role;
    let moved = Entry { dn: "uid=q1,ou=people,dc=x".to_owned(), ..person(1) };
    let heir = Entry { dn: "uid=p1,ou=people,dc=x".to_owned(), ..person(2) };
    let of = |members: &[(i64, Role)]| {
        let members = members.iter().map(|(number, role)| (DirectoryId(format!("u{number}")), *role)).collect();
        Entry { members, ..staff(&[]) }
    };
    let begun = || Story::begin(vec![person(1), person(2), of(&[(1, Role::Manager), (2, Role::Member)])]);
    let mut story = begun();
    story.hears(read(vec![moved.clone(), heir.clone(), of(&[(2, Role::Manager)])]));
    assert_eq!(story.account("staff").members[&DirectoryId("u2".to_owned())], Role::Member);
    let mut story = begun();
    story.hears(read(vec![person(1), person(2), of(&[(1, Role::Manager)])]));
    assert_eq!(members(&story), ["p1", "(p2)"]);
    story.hears(read(vec![moved, heir, of(&[(2, Role::Manager)])]));
    assert_eq!(members(&story), ["p1", "(p2)"]);
}

fn staff_has(story: &Story, member: &DirectoryId) -> bool {
    let staff = story.account("staff");
    staff.members.contains_key(member) && !staff.leaving.contains(member)
}

#[test]
fn a_member_who_is_renamed_during_the_read_stays() {
    // The people were read before the rename, and the groups after it.
    let torn = || naming(read(vec![person(1), person(2), staff(&[])]), by_dn("uid=p1,ou=new,dc=x"));
    let mut story = begin();
    story.hears(torn());
    assert_eq!((members(&story), gids(&story, "p1").len()), (vec!["p1".to_owned()], 1));
    let moved = Entry { dn: "uid=p1,ou=new,dc=x".to_owned(), ..in_staff(person(1)) };
    story.hears(read(vec![moved, person(2), staff(&[1])]));
    assert_eq!((members(&story), gids(&story, "p1").len()), (vec!["p1".to_owned()], 1));
    assert!(story.ledger.doubts.is_empty() && story.ledger.refusals.is_empty());
    // The next complete read began after the rename, so it proves that the member left.
    let mut story = begin();
    story.hears(torn());
    let why = "size limit".to_owned();
    story.hears(SourceRead { completeness: Completeness::Partial { why }, ..torn() });
    assert_eq!(members(&story), ["p1"]);
    story.hears(torn());
    assert_eq!((members(&story), gids(&story, "p1").len()), (vec!["(p1)".to_owned()], 0));
    story.hears(torn());
    assert!(story.ledger.doubts.is_empty(), "{:?}", story.ledger.doubts);
    // If the last read showed the name too, there was no rename during this read.
    let mut story = begin();
    let strange = || by_dn("uid=contractor,ou=elsewhere,dc=x");
    story.hears(naming(read(vec![in_staff(person(1)), person(2), staff(&[1])]), strange()));
    story.hears(naming(read(vec![person(1), person(2), staff(&[])]), strange()));
    assert_eq!(members(&story), ["(p1)"]);
}

#[test]
fn groups_that_become_empty_in_one_read_keep_their_members_and_the_rest_is_believed() {
    let groups = |emptied: i64, last: &[i64]| {
        let one = |number: i64| match number {
            0 => staff(if emptied > 0 { &[] } else { &[1] }),
            19 => group("g19", last),
            _ => group(&format!("g{number}"), if number < emptied { &[] } else { &[1, 2] }),
        };
        (0..20).map(one).collect::<Vec<_>>()
    };
    let all = |people: Vec<Entry>, groups: Vec<Entry>| read([people, groups].concat());
    let begun = || {
        let mut story = Story::begin(vec![in_staff(person(1)), person(2), person(3), person(4)]);
        story.hears(all(vec![in_staff(person(1)), person(2), person(3), person(4)], groups(0, &[2, 3])));
        story
    };
    let mut story = begun();
    for _ in 0..2 {
        let refusals = story.hears(all(vec![person(1), person(2), person(3)], groups(2, &[2])));
        assert_eq!(story.ledger.sources[SOURCE].completeness, Completeness::Complete);
        assert_eq!((members(&story), gids(&story, "p1").len()), (vec!["p1".to_owned()], 1));
        assert!(story.account("g1").leaving.is_empty());
        let texts: Vec<String> = refusals.iter().map(ToString::to_string).collect();
        assert!(texts[0].contains("2 groups of people became empty in the same read, such as g1"), "{texts:?}");
        assert_eq!(story.account("g19").leaving, [DirectoryId("u3".to_owned())].into(), "p3 left this group");
        assert!(story.account("p4").absence.is_some(), "p4 is absent");
        story.later(48 * HOUR);
    }
    let shown = all(vec![in_staff(person(1)), person(2), person(3)], groups(0, &[2]));
    assert!(story.hears(shown).is_empty(), "the groups show their members again");
    // If most groups are empty, an access rule hides their members.
    let mut story = begun();
    story.hears(all(vec![person(1), person(2), person(3)], groups(12, &[2])));
    let completeness = story.ledger.sources[SOURCE].completeness.to_string();
    assert!(completeness.contains("12 groups became empty in the same read"), "{completeness}");
    assert!(story.account("g19").leaving.is_empty() && story.account("p4").absence.is_none());
    // A delegate may create and empty any number of groups in one place.
    let delegated = |members: &[i64]| {
        let moved = |number| {
            let name = format!("x{number}");
            Entry { dn: format!("cn={name},ou=lab,ou=groups,dc=x"), ..group(&name, members) }
        };
        (0..50).map(moved).collect::<Vec<_>>()
    };
    let mut story = begun();
    let both = |members: &[i64], last: &[i64]| [groups(0, last), delegated(members)].concat();
    story.hears(all(vec![in_staff(person(1)), person(2), person(3), person(4)], both(&[1, 3], &[2, 3])));
    story.hears(all(vec![in_staff(person(1)), person(2), person(3), person(4)], both(&[], &[2])));
    assert_eq!(story.ledger.sources[SOURCE].completeness, Completeness::Complete);
    assert_eq!(story.account("g19").leaving.len(), 1);
}

#[test]
fn groups_that_become_empty_keep_their_members_if_the_members_are_rejected_too() {
    let people = || vec![in_staff(person(1)), person(2), person(3)];
    let groups = |emptied: usize| {
        let members = |at: usize, all: &'static [i64]| if at < emptied { &[][..] } else { all };
        let others = (1..20).map(|at| group(&format!("g{at}"), members(at, &[1, 2])));
        [staff(members(0, &[1]))].into_iter().chain(others).collect::<Vec<_>>()
    };
    for (emptied, is_complete) in [(2, true), (20, false)] {
        let mut story = Story::begin([people(), groups(0)].concat());
        let mut shown = read(groups(emptied));
        shown.kinds.insert(AccountKind::User);
        for person in people() {
            shown.held.insert(person.dn.clone(), Held::default());
            shown.rejected.push(RejectedEntry::of(SOURCE, &person, "uidNumber is missing".to_owned()));
        }
        story.hears(shown);
        assert_eq!(story.ledger.sources[SOURCE].completeness == Completeness::Complete, is_complete);
        assert_eq!(story.count(|account| !account.leaving.is_empty()), 0, "{emptied}");
        assert_eq!((members(&story), gids(&story, "p1").len()), (vec!["p1".to_owned()], 1));
    }
}
