//! A long random history of a domain. After each part of it, the polled result equals a full read, row for row.

use std::collections::{BTreeMap, BTreeSet};

use bursar_directory::source::Ids;
use bursar_testkit::samba::{Samba, group_ldif, person_ldif};

use super::{Polled, by_usn, change, delete, rename, unit_ldif};
use crate::active_directory::proxy::Proxy;
use crate::active_directory::{LONG_AGO, rid, with};

/// The number of changes, and how many happen between two polls.
const CHANGES: usize = 500;
const AT_ONCE: usize = 20;

/// The people, groups and units of the test, after the changes that were made.
struct Domain<'a> {
    samba: &'a Samba,
    base: String,
    /// The units of the people: two beneath the base, and one elsewhere.
    units: [String; 3],
    /// Names, with the index in `units`.
    people: BTreeMap<String, usize>,
    /// The names of the groups, all beneath the base, with the names of the members that they list.
    groups: BTreeMap<String, BTreeSet<String>>,
    /// A person's primary group, if it is one of these groups.
    primary: BTreeMap<String, String>,
    /// LDIF that has not been sent yet.
    waiting: String,
    made: usize,
    random: u64,
}

impl Domain<'_> {
    /// Returns a number below `limit` (xorshift64, so that each run has the same history).
    fn any(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % limit.max(1) as u64).expect("the number is below the limit")
    }

    fn one_of(&mut self, names: impl Iterator<Item = String>) -> Option<String> {
        let names: Vec<String> = names.collect();
        let at = self.any(names.len());
        names.into_iter().nth(at)
    }

    fn person(&mut self) -> Option<String> {
        self.one_of(self.people.keys().cloned().collect::<Vec<_>>().into_iter())
    }

    fn group(&mut self) -> Option<String> {
        self.one_of(self.groups.keys().cloned().collect::<Vec<_>>().into_iter())
    }

    fn dn(&self, name: &str) -> String {
        match self.people.get(name) {
            Some(unit) => format!("CN={name},{}", self.units[*unit]),
            None => format!("CN={name},{}", self.base),
        }
    }

    fn name(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("rnd-{kind}{}", self.made)
    }

    fn add(&mut self, ldif: &str) {
        self.waiting += &ldif.replacen("\nobjectClass", "\nchangetype: add\nobjectClass", 1);
    }

    fn send(&mut self) {
        let ldif = std::mem::take(&mut self.waiting);
        if !ldif.is_empty() {
            self.samba.modify_ldif(&ldif);
        }
    }

    fn new_person(&mut self) {
        let (name, unit) = (self.name("p"), self.any(3));
        let ldif = person_ldif(&self.units[unit], &name, "");
        self.add(&ldif);
        self.people.insert(name, unit);
    }

    fn new_group(&mut self) {
        let name = self.name("g");
        let ldif = group_ldif(&self.base, &name, &[]);
        self.add(&ldif);
        self.groups.insert(name, BTreeSet::new());
    }

    /// Makes one change. Returns whether there was something to change.
    fn step(&mut self) -> bool {
        match self.any(16) {
            0 => self.new_person(),
            1 => self.new_group(),
            2 => return self.rename_person(),
            3 | 4 => return self.move_person(),
            5 => return self.delete_person(),
            6 => return self.rename_group(),
            7 => return self.delete_group(),
            8..=10 => return self.join(),
            11 => return self.leave(),
            12 => return self.primary_group(),
            13 => self.rename_unit(),
            _ => return self.modify(),
        }
        true
    }

    fn modify(&mut self) -> bool {
        let Some(name) = self.person() else { return false };
        let dn = self.dn(&name);
        let (attribute, value) = match self.any(8) {
            0 => ("mail", format!("{name}@example.org")),
            1 => ("displayName", format!("Person {}", self.any(9))),
            2 => ("userAccountControl", "546".to_owned()),
            3 => ("userAccountControl", "544".to_owned()),
            4 => ("accountExpires", LONG_AGO.to_owned()),
            5 => ("unixHomeDirectory", format!("/home/{name}")),
            6 => ("sAMAccountName", self.name("s")),
            // The filter leaves out people whose department is hidden.
            _ => ("department", ["hidden", "physics"][self.any(2)].to_owned()),
        };
        self.waiting += &change(&dn, "replace", attribute, &value);
        true
    }

    fn rename_person(&mut self) -> bool {
        let Some(name) = self.person() else { return false };
        let (dn, new, unit) = (self.dn(&name), self.name("p"), self.people[&name]);
        self.waiting += &rename(&dn, &format!("CN={new}"), &self.units[unit]);
        self.people.remove(&name);
        self.people.insert(new.clone(), unit);
        if let Some(group) = self.primary.remove(&name) {
            self.primary.insert(new.clone(), group);
        }
        self.renamed(&name, Some(&new));
        true
    }

    fn move_person(&mut self) -> bool {
        let Some(name) = self.person() else { return false };
        let (dn, unit) = (self.dn(&name), self.any(3));
        if unit == self.people[&name] {
            return false;
        }
        self.waiting += &rename(&dn, &format!("CN={name}"), &self.units[unit]);
        self.people.insert(name, unit);
        true
    }

    fn delete_person(&mut self) -> bool {
        let Some(name) = self.person().filter(|_| self.people.len() > 10) else { return false };
        self.waiting += &delete(&self.dn(&name));
        self.people.remove(&name);
        self.primary.remove(&name);
        self.renamed(&name, None);
        true
    }

    fn rename_group(&mut self) -> bool {
        let Some(name) = self.group().filter(|name| name != "rnd-banned") else { return false };
        let new = self.name("g");
        self.waiting += &rename(&self.dn(&name), &format!("CN={new}"), &self.base);
        let members = self.groups.remove(&name).expect("the group exists");
        self.groups.insert(new.clone(), members);
        self.primary.values_mut().filter(|group| **group == name).for_each(|group| group.clone_from(&new));
        self.renamed(&name, Some(&new));
        true
    }

    fn delete_group(&mut self) -> bool {
        let Some(name) = self.group().filter(|name| name != "rnd-banned") else { return false };
        // The server refuses to delete a group that is a person's primary one.
        if self.primary.values().any(|group| *group == name) || self.groups.len() < 5 {
            return false;
        }
        self.waiting += &delete(&self.dn(&name));
        self.groups.remove(&name);
        self.renamed(&name, None);
        true
    }

    fn renamed(&mut self, name: &str, new: Option<&str>) {
        for members in self.groups.values_mut() {
            if members.remove(name) {
                members.extend(new.map(str::to_owned));
            }
        }
    }

    fn join(&mut self) -> bool {
        let is_group = self.any(4) == 0;
        let (Some(group), Some(member)) = (self.group(), if is_group { self.group() } else { self.person() }) else {
            return false;
        };
        if group == member || self.primary.get(&member) == Some(&group) || self.groups[&group].contains(&member) {
            return false;
        }
        self.waiting += &change(&self.dn(&group), "add", "member", &self.dn(&member));
        self.groups.get_mut(&group).expect("the group exists").insert(member);
        true
    }

    fn leave(&mut self) -> bool {
        let Some(group) = self.group() else { return false };
        let members = self.groups[&group].clone();
        let Some(member) = self.one_of(members.into_iter()) else { return false };
        self.waiting += &change(&self.dn(&group), "delete", "member", &self.dn(&member));
        self.groups.get_mut(&group).expect("the group exists").remove(&member);
        true
    }

    /// Makes one of a person's groups the primary one. The group then no longer lists the person, but the previous one
    /// does.
    fn primary_group(&mut self) -> bool {
        let Some(group) = self.group().filter(|name| name != "rnd-banned") else { return false };
        let people = self.groups[&group].iter().filter(|name| self.people.contains_key(*name)).cloned();
        let people: Vec<String> = people.collect();
        let Some(name) = self.one_of(people.into_iter()) else { return false };
        self.send();
        let number = rid(self.samba, &self.dn(&group));
        self.waiting += &change(&self.dn(&name), "replace", "primaryGroupID", &number.to_string());
        self.groups.get_mut(&group).expect("the group exists").remove(&name);
        if let Some(before) = self.primary.insert(name.clone(), group) {
            self.groups.get_mut(&before).expect("the group exists").insert(name);
        }
        true
    }

    fn rename_unit(&mut self) {
        let (at, new) = (self.any(2), self.name("u"));
        self.waiting += &rename(&self.units[at], &format!("OU={new}"), &self.base);
        self.units[at] = format!("OU={new},{}", self.base);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn polled_changes_equal_a_full_read() {
    let (samba, base) = Samba::with_unit("rnd");
    let away = samba.unit("rnd-away");
    let units = [format!("OU=one,{base}"), format!("OU=two,{base}"), away];
    units[..2].iter().for_each(|unit| samba.add_ldif(&unit_ldif(unit)));
    let mut domain = Domain {
        samba,
        base: base.clone(),
        units,
        people: BTreeMap::new(),
        groups: BTreeMap::from([("rnd-banned".to_owned(), BTreeSet::new())]),
        primary: BTreeMap::new(),
        waiting: String::new(),
        made: 0,
        random: 0x2545_f491_4f6c_dd1d,
    };
    let banned = group_ldif(&base, "rnd-banned", &[]);
    domain.add(&banned);
    (0..40).for_each(|_| domain.new_person());
    (0..8).for_each(|_| domain.new_group());
    domain.send();
    let proxy = Proxy::before(samba).await;
    let mut shown = with(proxy.ldap(samba), &base);
    shown.sids.ids = Ids::Sid;
    let by_usn = by_usn(shown.clone(), &format!("CN=rnd-banned,{base}"));
    shown.users.as_mut().expect("the source has users").filter =
        "(&(objectCategory=person)(objectClass=user)(!(department=hidden)))".to_owned();
    let (by_dirsync, by_usn) = (Polled::new(shown), Polled::new(by_usn));
    let mut done = 0;
    while done <= CHANGES {
        by_dirsync.check(&format!("by DirSync, after {done} changes")).await;
        by_usn.check(&format!("by uSNChanged, after {done} changes")).await;
        assert_eq!(proxy.started_over(), done == 0, "after {done} changes");
        proxy.begin();
        let goal = done + AT_ONCE;
        while done < goal {
            done += usize::from(domain.step());
        }
        domain.send();
    }
    assert!(domain.groups.values().map(BTreeSet::len).sum::<usize>() > 10, "the history must contain memberships");
}
