//! The lines of a story about workspaces and the people in them.

use std::fmt::Write as _;

use super::Story;
use crate::identity::AccountKind;
use crate::plan::testing::course;
use crate::policy::{From, FromWorkspaces};
use crate::snapshot::Role;

impl Story {
    pub(super) fn workspace(&mut self, words: &[&str]) {
        match words {
            ["workspaces", "begin"] => {
                let course = course();
                self.world.policy.classes.insert(course.name.clone(), course);
            }
            ["workspaces", "give", way] => {
                let way = match *way {
                    "sum" => FromWorkspaces::Sum,
                    "max" => FromWorkspaces::Max,
                    _ => FromWorkspaces::Tier,
                };
                let student = self.world.class("student");
                student.quota.insert("requests.cpu".to_owned(), "1500m".to_owned());
                student.from = From::Users(Some(way));
            }
            ["manages", person, group] => {
                let person = self.world.id(AccountKind::User, person);
                let entry = self.world.account(&person).directory_id.clone();
                let group = self.world.id(AccountKind::Group, group);
                self.world.account(&group).members.insert(entry, Role::Manager);
            }
            ["who", namespace] => self.who(namespace),
            other => panic!("no such line: {other:?}"),
        }
    }

    /// Shows the names in each binding of a namespace.
    fn who(&mut self, namespace: &str) {
        let bindings = self.world.bound.iter().filter(|(key, _)| key.namespace.as_deref() == Some(namespace));
        for (key, names) in bindings {
            writeln!(self.shown, "{namespace} {}: {}", key.name, names.join(", "))
                .expect("writing to a string does not fail");
        }
        writeln!(self.shown).expect("writing to a string does not fail");
    }
}
