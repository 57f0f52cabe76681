//! After random changes of a directory, a read of changes shows the same as a full read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use bursar::snapshot::Way;
use bursar_directory::{Pass, SyncCache};
use bursar_testkit::ldif::{person_dn, person_ldif, tool_account_dn, tool_group_dn, tool_ldif};
use bursar_testkit::slapd::{BASE_DN, SlapdOptions};

use super::{assert_same, ldap, read, read_by, site, toolforge};

/// A small random generator (`SplitMix64`). The same seed gives the same history.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).expect("the number is below the bound")
    }

    fn of<'a, T>(&mut self, list: &[&'a T]) -> Option<&'a T> {
        if list.is_empty() { None } else { Some(list[self.below(list.len())]) }
    }
}

/// The place of a person in the directory.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Here,
    /// Without posixAccount, so the filter does not match.
    Unseen,
    /// In another part of the directory.
    Elsewhere,
}

/// The entries in addition to the sample, and the changes that made them.
pub struct Model {
    random: Random,
    next: u32,
    people: BTreeMap<String, Place>,
    /// Tools with their maintainers, and groups with their members.
    tools: BTreeMap<String, BTreeSet<String>>,
    groups: BTreeMap<String, BTreeSet<String>>,
    ldif: String,
}

impl Model {
    /// Returns an empty model. The same seed gives the same history.
    pub fn of(seed: u64) -> Self {
        Self {
            random: Random(seed),
            next: 0,
            people: BTreeMap::new(),
            tools: BTreeMap::new(),
            groups: BTreeMap::new(),
            ldif: String::new(),
        }
    }

    /// Returns the next changes as LDIF.
    pub fn changes(&mut self, count: u64) -> String {
        (0..count).for_each(|_| self.change());
        std::mem::take(&mut self.ldif)
    }

    fn new_name(&mut self, begin: &str) -> (String, u32) {
        self.next += 1;
        (format!("{begin}{}", self.next), 10_000 + self.next)
    }

    fn change(&mut self) {
        match self.random.below(12) {
            0 | 1 => self.add_person(),
            2 => self.modify_person(),
            3 => self.rename_person(),
            4 => self.delete_person(),
            5 => self.hide_or_show(),
            6 => self.leave_or_return(),
            7 => self.add_tool(),
            8 => self.delete_tool(),
            9 | 10 => self.change_members(),
            _ => self.change_group(),
        }
    }

    fn somebody(&mut self, place: Place) -> Option<String> {
        let people: Vec<&String> = self.people.iter().filter(|(_, at)| **at == place).map(|(name, _)| name).collect();
        self.random.of(&people).cloned()
    }

    fn write(&mut self, dn: &str, change: &str) {
        let _ = write!(self.ldif, "dn: {dn}\n{change}\n\n");
    }

    fn add(&mut self, records: &str) {
        self.ldif.push_str(
            &records.replace("\nobjectClass: inetOrgPerson\n", "\nchangetype: add\nobjectClass: inetOrgPerson\n"),
        );
    }

    fn add_person(&mut self) {
        let (name, uid) = self.new_name("p");
        self.add(&person_ldif(BASE_DN, &name, uid));
        self.people.insert(name, Place::Here);
    }

    fn modify_person(&mut self) {
        let Some(name) = self.somebody(Place::Here) else { return };
        let (_, uid) = self.new_name("");
        let change = ["uidNumber", "displayName", "mail"][self.random.below(3)];
        let value = if change == "uidNumber" { uid.to_string() } else { format!("v{uid}@example.org") };
        self.write(&person_dn(BASE_DN, &name), &format!("changetype: modify\nreplace: {change}\n{change}: {value}"));
    }

    fn rename_person(&mut self) {
        let Some(name) = self.somebody(Place::Here) else { return };
        let (new, _) = self.new_name("r");
        self.write(&person_dn(BASE_DN, &name), &format!("changetype: modrdn\nnewrdn: uid={new}\ndeleteoldrdn: 1"));
        self.people.remove(&name);
        self.people.insert(new, Place::Here);
    }

    fn delete_person(&mut self) {
        let Some(name) = self.somebody(Place::Here) else { return };
        self.write(&person_dn(BASE_DN, &name), "changetype: delete");
        self.people.remove(&name);
    }

    fn hide_or_show(&mut self) {
        let attributes = ["uidNumber", "gidNumber", "homeDirectory", "loginShell"];
        if let Some(name) = self.somebody(Place::Unseen) {
            let (_, uid) = self.new_name("");
            let values = [uid.to_string(), "500".to_owned(), format!("/home/{name}"), "/bin/sh".to_owned()];
            let mut change = "changetype: modify\nadd: objectClass\nobjectClass: posixAccount\n-\n".to_owned();
            for (attribute, value) in attributes.iter().zip(values) {
                let _ = write!(change, "add: {attribute}\n{attribute}: {value}\n-\n");
            }
            self.write(&person_dn(BASE_DN, &name), change.trim_end());
            self.people.insert(name, Place::Here);
        } else if let Some(name) = self.somebody(Place::Here) {
            let mut change = "changetype: modify\ndelete: objectClass\nobjectClass: posixAccount\n-\n".to_owned();
            for attribute in attributes {
                let _ = write!(change, "delete: {attribute}\n-\n");
            }
            self.write(&person_dn(BASE_DN, &name), change.trim_end());
            self.people.insert(name, Place::Unseen);
        }
    }

    fn leave_or_return(&mut self) {
        let moved = |name: &str, to: &str| {
            format!("changetype: modrdn\nnewrdn: uid={name}\ndeleteoldrdn: 0\nnewsuperior: {to}{BASE_DN}")
        };
        if let Some(name) = self.somebody(Place::Elsewhere) {
            self.write(&format!("uid={name},{BASE_DN}"), &moved(&name, "ou=people,"));
            self.people.insert(name, Place::Here);
        } else if let Some(name) = self.somebody(Place::Here) {
            self.write(&person_dn(BASE_DN, &name), &moved(&name, ""));
            self.people.insert(name, Place::Elsewhere);
        }
    }

    fn add_tool(&mut self) {
        let (name, uid) = self.new_name("t");
        let maintainers: BTreeSet<String> = (0..3).filter_map(|_| self.somebody(Place::Here)).collect();
        if maintainers.is_empty() {
            return;
        }
        let listed: Vec<&str> = maintainers.iter().map(String::as_str).collect();
        let records = tool_ldif(BASE_DN, &name, uid, &listed);
        self.ldif.push_str(
            &records
                .replace("\nobjectClass: person\n", "\nchangetype: add\nobjectClass: person\n")
                .replace("\nobjectClass: groupOfNames\n", "\nchangetype: add\nobjectClass: groupOfNames\n"),
        );
        self.tools.insert(name, maintainers);
    }

    fn delete_tool(&mut self) {
        let Some(name) = self.random.of(&self.tools.keys().collect::<Vec<_>>()).cloned() else { return };
        self.write(&tool_account_dn(BASE_DN, &name), "changetype: delete");
        self.write(&tool_group_dn(BASE_DN, &name), "changetype: delete");
        self.tools.remove(&name);
    }

    fn change_members(&mut self) {
        let Some(person) = self.somebody(Place::Here) else { return };
        let of_tool = self.random.below(2) == 0;
        let lists = if of_tool { &mut self.tools } else { &mut self.groups };
        let Some(name) = self.random.of(&lists.keys().collect::<Vec<_>>()).cloned() else { return };
        let members = lists.get_mut(&name).expect("the list has the chosen name");
        let member = person_dn(BASE_DN, &person);
        let change = if members.contains(&person) && members.len() > 1 {
            members.remove(&person);
            "delete"
        } else if members.insert(person) {
            "add"
        } else {
            return;
        };
        let dn = if of_tool { tool_group_dn(BASE_DN, &name) } else { format!("cn={name},ou=groups,{BASE_DN}") };
        self.write(&dn, &format!("changetype: modify\n{change}: member\nmember: {member}"));
    }

    /// Adds a group, which may also contain another group. If there are many groups, deletes or renames one.
    fn change_group(&mut self) {
        let known: Vec<&String> = self.groups.keys().collect();
        let other = self.random.of(&known).cloned();
        let chosen = other.clone().filter(|_| self.groups.len() > 8);
        if let Some(name) = chosen {
            let dn = format!("cn={name},ou=groups,{BASE_DN}");
            let members = self.groups.remove(&name).expect("the group exists");
            if self.random.below(2) == 0 {
                self.write(&dn, "changetype: delete");
            } else {
                let (new, _) = self.new_name("g");
                self.write(&dn, &format!("changetype: modrdn\nnewrdn: cn={new}\ndeleteoldrdn: 1"));
                self.groups.insert(new, members);
            }
            return;
        }
        let Some(person) = self.somebody(Place::Here) else { return };
        let (name, _) = self.new_name("g");
        let nested = other.map(|other| format!("\nmember: cn={other},ou=groups,{BASE_DN}")).unwrap_or_default();
        let member = person_dn(BASE_DN, &person);
        let change = format!("changetype: add\nobjectClass: groupOfNames\ncn: {name}\nmember: {member}{nested}");
        self.write(&format!("cn={name},ou=groups,{BASE_DN}"), &change);
        self.groups.insert(name, BTreeSet::from([person]));
    }
}

/// `BURSAR_TEST_CHANGES=20000 BURSAR_TEST_SEED=7` makes a longer and different history.
#[tokio::test]
async fn after_2000_random_changes_a_read_of_changes_agrees_with_a_full_read() {
    let asked = |name: &str, default: u64| {
        std::env::var(name)
            .ok()
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
    };
    let (changes, seed) = (asked("BURSAR_TEST_CHANGES", 2000), asked("BURSAR_TEST_SEED", 4533));
    // The session log is so small that about every second batch exceeds it.
    let slapd = site(SlapdOptions { sessionlog: 40, ..SlapdOptions::default() });
    let source = toolforge(ldap(&[&slapd.ldaps_url], &slapd));
    let memory = SyncCache::default();
    let mut model = Model::of(seed);
    let mut done = 0;
    while done < changes {
        let batch = 1 + model.random.below(80) as u64;
        done += batch;
        slapd.modify_ldif(&model.changes(batch));
        let told = read_by(&source, &Pass::Changes(memory.clone())).await;
        assert_eq!(told.way, Way::Incremental);
        assert_same(&told, &read(source.clone()).await);
        if model.random.below(12) == 0 {
            slapd.stop();
            slapd.start_again();
        }
    }
    let compared = read_by(&source, &Pass::Whole(memory)).await.compared;
    assert_eq!(compared.map(|found| found.differences), Some(0));
    assert!(model.people.len() > 20 && !model.tools.is_empty() && !model.groups.is_empty());
}
