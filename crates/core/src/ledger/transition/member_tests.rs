//! Tests which person a group means by a name that several entries have, or that another person had before.

use std::collections::BTreeSet;

use super::doubt_tests::{HOUR, SOURCE, Story, group, person, read};
use crate::identity::{AccountKind, DirectoryId, Gid};
use crate::ledger::people::PeopleByEntry;
use crate::snapshot::dn::Dn;
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
fn a_tool_that_groups_list_by_name_stays_with_the_gid() {
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
