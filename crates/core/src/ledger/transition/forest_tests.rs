//! Tests of members from other domains of a forest. Each domain is a source.

use jiff::{SignedDuration, Timestamp};

use super::tests::policy;
use super::transition;
use crate::identity::{AccountKind, DirectoryId};
use crate::ledger::people::PeopleByEntry;
use crate::ledger::{Account, LedgerState};
use crate::policy::Policy;
use crate::snapshot::dn::Dn;
use crate::snapshot::named::MemberName;
use crate::snapshot::{Completeness, DirectorySnapshot, Entry, Role, SourceRead};

struct Forest {
    ledger: LedgerState,
    policy: Policy,
    now: Timestamp,
}

/// A person of the domain `dc=child` with the SID `S-1-5-21-2-2-2-NUMBER`.
fn person(number: u32) -> Entry {
    let name = format!("p{number}");
    let dn = format!("CN={name},CN=Users,DC=child");
    let sid = Some(format!("s-1-5-21-2-2-2-{number}"));
    Entry { sid, ..Entry::new(AccountKind::User, format!("u{number}"), dn, name) }
}

/// The domain `dc=root` with a group that names `members`.
fn root(members: &[(&str, Role)]) -> SourceRead {
    let sid = Some("s-1-5-21-1-1-1-500".to_owned());
    let group = Entry { sid, ..Entry::new(AccountKind::Group, "g", "CN=staff,DC=root", "staff") };
    let anybody = Entry::new(AccountKind::User, "anybody", "CN=anybody,DC=root", "anybody");
    let mut read = SourceRead::complete("root", [AccountKind::Group, AccountKind::User], vec![group, anybody]);
    for (dn, role) in members {
        read.dangling.add(MemberName::of(&Dn::parse(dn)), DirectoryId("g".to_owned()), *role);
    }
    read
}

fn child(people: Vec<Entry>) -> SourceRead {
    SourceRead::complete("child", [AccountKind::User, AccountKind::Group], people)
}

const BY_DN: &str = "cn=P1,cn=users,dc=child";
const BY_SID: &str = "CN=S-1-5-21-2-2-2-2,CN=ForeignSecurityPrincipals,DC=root";
const NOBODY: &str = "CN=S-1-5-21-9-9-9-9,CN=ForeignSecurityPrincipals,DC=root";

impl Forest {
    fn new() -> Self {
        let ledger = LedgerState { ledger_id: "L".to_owned(), ..LedgerState::default() };
        Self {
            ledger,
            policy: policy(24 * 3600),
            now: Timestamp::from_second(1_790_000_000).expect("the time is valid"),
        }
    }

    /// Reads one source. The other sources are not asked.
    fn hears(&mut self, read: SourceRead) {
        let others = ["root", "child", "copy"].into_iter().filter(|source| *source != read.source);
        let unasked = others.map(str::to_owned).collect();
        let snapshot = DirectorySnapshot { reads: vec![read], unasked, ..DirectorySnapshot::default() };
        self.ledger.apply_all(&transition(&self.ledger, &snapshot, &self.policy, self.now).changes);
    }

    fn staff(&self) -> &Account {
        self.ledger.accounts.values().find(|account| account.name == "staff").expect("group staff is known")
    }

    /// Returns the names of the people in the group. Names of those who are leaving are in brackets.
    fn members(&self) -> Vec<String> {
        let (staff, people) = (self.staff(), PeopleByEntry::of(&self.ledger));
        let name = |member: &DirectoryId| people.get(staff, member).expect("the member is a person").name.clone();
        let is_leaving = |member: &DirectoryId| staff.leaving.contains(member);
        let say = |member| if is_leaving(member) { format!("({})", name(member)) } else { name(member) };
        staff.members.keys().map(say).collect()
    }
}

#[test]
fn members_of_another_domain_are_found_by_dn_and_by_sid() {
    let mut forest = Forest::new();
    let named = [(BY_DN, Role::Manager), (BY_SID, Role::Member), (NOBODY, Role::Member)];
    forest.hears(root(&named));
    assert_eq!(forest.members(), [""; 0], "the other domain has not answered yet");
    let unresolved = &forest.ledger.sources["root"].unresolved;
    assert_eq!((unresolved.groups, unresolved.members), (1, 3));
    forest.hears(child(vec![person(1), person(2), person(3)]));
    forest.hears(root(&named));
    assert_eq!(forest.members(), ["p1", "p2"]);
    assert_eq!(forest.staff().members[&DirectoryId("u1".to_owned())], Role::Manager);
    let unresolved = &forest.ledger.sources["root"].unresolved;
    assert_eq!((unresolved.groups, unresolved.members), (1, 1));
    assert_eq!(unresolved.examples[0].example, "s-1-5-21-9-9-9-9");
    // The group no longer names one of these people.
    forest.hears(root(&named[1..]));
    assert_eq!(forest.members(), ["(p1)", "p2"]);
}

#[test]
fn a_member_of_another_domain_stays_while_that_domain_does_not_answer() {
    let mut forest = Forest::new();
    forest.hears(child(vec![person(1), person(2)]));
    forest.hears(root(&[(BY_DN, Role::Member), (BY_SID, Role::Member)]));
    for _ in 0..23 {
        forest.now += SignedDuration::from_hours(1);
        // The entry of one person is missing. The absence is proved only after a day.
        forest.hears(child(vec![person(1)]));
        forest.hears(root(&[(BY_DN, Role::Member), (BY_SID, Role::Member)]));
        assert_eq!(forest.members(), ["p1", "p2"]);
    }
    for _ in 0..3 {
        forest.now += SignedDuration::from_hours(1);
        forest.hears(child(vec![person(1)]));
        forest.hears(root(&[(BY_DN, Role::Member), (BY_SID, Role::Member)]));
    }
    assert_eq!(forest.members(), ["p1", "(p2)"]);
}

#[test]
fn groups_with_members_of_another_domain_do_not_become_empty_in_one_read() {
    let both = |named: bool| {
        let mut read = root(&if named { vec![(BY_DN, Role::Member)] } else { Vec::new() });
        let sid = Some("s-1-5-21-1-1-1-501".to_owned());
        read.entries.push(Entry { sid, ..Entry::new(AccountKind::Group, "h", "CN=more,DC=root", "more") });
        if named {
            read.dangling.add(MemberName::of(&Dn::parse(BY_SID)), DirectoryId("h".to_owned()), Role::Member);
        }
        read
    };
    let mut forest = Forest::new();
    forest.hears(child(vec![person(1), person(2)]));
    forest.hears(both(true));
    assert_eq!(forest.members(), ["p1"]);
    forest.hears(both(false));
    assert_eq!(forest.members(), ["p1"]);
    let why = forest.ledger.sources["root"].completeness.to_string();
    assert!(why.contains("2 groups became empty in the same read"), "{why}");
}

#[test]
fn a_hidden_sid_takes_no_membership_away() {
    let mut forest = Forest::new();
    let named = [(BY_DN, Role::Member), (BY_SID, Role::Member)];
    forest.hears(child(vec![person(1), person(2)]));
    forest.hears(root(&named));
    let hidden = |entry: Entry| Entry { sid: None, ..entry };
    forest.hears(child(vec![hidden(person(1)), hidden(person(2))]));
    forest.hears(root(&named));
    assert_eq!(forest.members(), ["p1", "p2"]);
}

#[test]
fn a_source_outside_a_forest_has_no_members_elsewhere() {
    let mut forest = Forest::new();
    let foreign = |number| Entry { sid: None, ..person(number) };
    forest.hears(child(vec![foreign(1)]));
    forest.hears(root(&[(BY_DN, Role::Member)]));
    assert_eq!(forest.members(), [""; 0], "without SIDs, the sources are not in one forest");
    // The same id in another source does not make a person a member either.
    let mut read = root(&[]);
    read.entries[0].members.insert(DirectoryId("u1".to_owned()), Role::Member);
    forest.hears(read);
    let people = PeopleByEntry::of(&forest.ledger);
    let member = forest.staff().members.keys().next().expect("the id is recorded");
    assert!(people.get(forest.staff(), member).is_none());
}

#[test]
fn a_group_of_another_domain_stands_for_its_members() {
    let mut forest = Forest::new();
    let members = [(DirectoryId("u1".to_owned()), Role::Manager)].into();
    let sid = Some("s-1-5-21-2-2-2-600".to_owned());
    let lab = Entry { members, sid, ..Entry::new(AccountKind::Group, "lab", "CN=lab,DC=child", "lab") };
    forest.hears(child(vec![person(1), person(2), lab]));
    forest.hears(root(&[("cn=lab,dc=child", Role::Member)]));
    assert_eq!(forest.members(), ["p1"]);
    assert_eq!(forest.staff().members[&DirectoryId("u1".to_owned())], Role::Member);
}

#[test]
fn a_dn_means_nobody_if_two_domains_have_its_suffix() {
    let stranger = Entry { sid: Some("s-1-5-21-7-7-7-1".to_owned()), ..person(3) };
    for (others, members) in [(vec![person(1)], vec!["p1"]), (vec![person(1), stranger], vec![])] {
        let mut forest = Forest::new();
        forest.hears(child(others));
        forest.hears(root(&[(BY_DN, Role::Member)]));
        assert_eq!(forest.members(), members);
    }
}

#[test]
fn nobody_joins_from_a_domain_whose_last_read_was_partial() {
    let mut forest = Forest::new();
    forest.hears(child(vec![person(1), person(2)]));
    forest.hears(root(&[(BY_SID, Role::Member)]));
    let why = "down".to_owned();
    forest.hears(SourceRead { completeness: Completeness::Partial { why }, ..child(Vec::new()) });
    forest.hears(root(&[(BY_DN, Role::Member), (BY_SID, Role::Member)]));
    assert_eq!(forest.members(), ["p2"], "a member stays");
    forest.hears(child(vec![person(1), person(2)]));
    forest.hears(root(&[(BY_DN, Role::Member), (BY_SID, Role::Member)]));
    assert_eq!(forest.members(), ["p1", "p2"]);
}

#[test]
fn a_member_whose_dn_changed_stays_while_another_domain_names_the_former_one() {
    let mut forest = Forest::new();
    forest.hears(child(vec![person(1), person(2), person(3)]));
    forest.hears(root(&[(BY_DN, Role::Member)]));
    assert_eq!(forest.members(), ["p1"]);
    let moved = Entry { dn: "CN=p1,OU=moved,DC=child".to_owned(), ..person(1) };
    // Another person gets the former DN. The group does not mean this person.
    let successor = Entry { dn: person(1).dn, ..person(3) };
    forest.hears(child(vec![moved.clone(), person(2), person(3)]));
    forest.hears(root(&[(BY_DN, Role::Member)]));
    assert_eq!(forest.members(), ["p1"]);
    forest.hears(child(vec![moved.clone(), person(2), successor.clone()]));
    forest.now += SignedDuration::from_hours(48);
    forest.hears(root(&[(BY_DN, Role::Member)]));
    assert_eq!(forest.members(), ["p1"]);
    // The other domain has learned the new DN.
    forest.hears(root(&[("CN=p1,OU=moved,DC=child", Role::Member)]));
    assert_eq!(forest.members(), ["p1"]);
    forest.hears(root(&[]));
    assert_eq!(forest.members(), ["(p1)"]);
    // The former DN makes nobody a member; after a week, it means its new owner.
    forest.hears(root(&[("CN=p3,CN=Users,DC=child", Role::Member)]));
    assert_eq!(forest.members(), ["(p1)"]);
    forest.now += SignedDuration::from_hours(7 * 24);
    forest.hears(child(vec![moved, person(2), successor]));
    forest.hears(root(&[(BY_DN, Role::Member)]));
    assert_eq!(forest.members(), ["(p1)", "p3"]);
}

#[test]
fn a_member_stays_while_another_domain_already_names_a_dn_that_is_new() {
    let mut forest = Forest::new();
    forest.hears(child(vec![person(1), person(2)]));
    forest.hears(root(&[(BY_DN, Role::Member)]));
    let new = "CN=p1,OU=moved,DC=child";
    // The source asks a server of the domain that is behind.
    for _ in 0..3 {
        forest.hears(root(&[(new, Role::Member)]));
        assert_eq!(forest.members(), ["p1"]);
        forest.hears(child(vec![person(1), person(2)]));
        forest.now += SignedDuration::from_mins(5);
    }
    forest.now += SignedDuration::from_hours(2);
    forest.hears(root(&[(new, Role::Member)]));
    assert_eq!(forest.members(), ["p1"], "the domain has not answered since then");
    forest.hears(child(vec![Entry { dn: new.to_owned(), ..person(1) }, person(2)]));
    forest.hears(root(&[(new, Role::Member)]));
    assert_eq!(forest.members(), ["p1"]);
    assert!(forest.ledger.doubts.is_empty());
}

#[test]
fn a_member_who_was_replaced_by_somebody_unknown_leaves_if_their_own_domain_shows_no_rename() {
    let mut forest = Forest::new();
    forest.hears(child(vec![person(1), person(2)]));
    forest.hears(root(&[(BY_DN, Role::Member)]));
    forest.hears(root(&[("CN=new,CN=Users,DC=child", Role::Member)]));
    forest.now += SignedDuration::from_mins(31);
    forest.hears(child(vec![person(1), person(2)]));
    forest.hears(root(&[("CN=new,CN=Users,DC=child", Role::Member)]));
    assert_eq!(forest.members(), ["(p1)"]);
    // If the group names nobody any more, no name could mean the member.
    let mut forest = Forest::new();
    forest.hears(child(vec![person(1), person(2)]));
    forest.hears(root(&[(BY_DN, Role::Member)]));
    forest.hears(root(&[("CN=new,CN=Users,DC=child", Role::Member)]));
    forest.hears(root(&[]));
    assert_eq!(forest.members(), ["(p1)"]);
}

#[test]
fn a_nested_group_keeps_its_people_while_another_domain_already_names_its_new_dn() {
    let lab = |dn: &str| {
        let members = [(DirectoryId("u1".to_owned()), Role::Member)].into();
        let sid = Some("s-1-5-21-2-2-2-600".to_owned());
        Entry { members, sid, ..Entry::new(AccountKind::Group, "lab", dn, "lab") }
    };
    let mut forest = Forest::new();
    forest.hears(child(vec![person(1), lab("CN=lab,DC=child")]));
    forest.hears(root(&[("CN=lab,DC=child", Role::Member)]));
    for _ in 0..3 {
        forest.hears(root(&[("CN=lab,OU=groups,DC=child", Role::Member)]));
        assert_eq!(forest.members(), ["p1"]);
    }
    forest.hears(child(vec![person(1), lab("CN=lab,OU=groups,DC=child")]));
    forest.hears(root(&[("CN=lab,OU=groups,DC=child", Role::Member)]));
    assert_eq!(forest.members(), ["p1"]);
}

#[test]
fn nobody_joins_by_a_dn_that_may_be_the_new_one_of_a_member() {
    let swapped = || {
        let mut forest = Forest::new();
        forest.hears(child(vec![person(1), person(2)]));
        forest.hears(root(&[(BY_DN, Role::Member)]));
        // In its own domain, p1 already has the DN that p2 had.
        for _ in 0..2 {
            forest.hears(root(&[("CN=p2,CN=Users,DC=child", Role::Member)]));
            assert_eq!(forest.members(), ["p1"]);
        }
        forest.now += SignedDuration::from_mins(31);
        forest
    };
    let mut forest = swapped();
    let renamed = Entry { dn: person(2).dn, ..person(1) };
    forest.hears(child(vec![renamed, Entry { dn: "CN=p2,OU=moved,DC=child".to_owned(), ..person(2) }]));
    forest.hears(root(&[("CN=p2,CN=Users,DC=child", Role::Member)]));
    assert_eq!(forest.members(), ["p1"]);
    // In the other case, p2 really replaces p1.
    let mut forest = swapped();
    forest.hears(child(vec![person(1), person(2)]));
    forest.hears(root(&[("CN=p2,CN=Users,DC=child", Role::Member)]));
    assert_eq!(forest.members(), ["(p1)", "p2"]);
}

#[test]
fn nobody_joins_from_a_domain_that_two_sources_show() {
    let copy = |people: Vec<Entry>| {
        let other = |entry: Entry| Entry {
            id: DirectoryId(format!("copy-{}", entry.id)),
            name: format!("copy-{}", entry.name),
            ..entry
        };
        let people = people.into_iter().map(other).collect();
        SourceRead { source: "copy".to_owned(), ..child(people) }
    };
    let mut forest = Forest::new();
    forest.hears(child(vec![person(1)]));
    forest.hears(root(&[(BY_DN, Role::Member)]));
    // The domain does not show the account with this SID; the copy has assigned the SID to another account.
    forest.hears(copy(vec![person(1), person(2)]));
    forest.hears(root(&[(BY_DN, Role::Member), (BY_SID, Role::Member)]));
    assert_eq!(forest.members(), ["p1"], "a member stays");
    assert_eq!(forest.ledger.sources["root"].unresolved.members, 1);
}
