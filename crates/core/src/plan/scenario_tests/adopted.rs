//! The lines of a story about foreign namespaces.

use std::collections::{BTreeMap, BTreeSet};

use super::Story;
use crate::identity::NamespaceName;
use crate::inventory::adopted::FoundNamespace;
use crate::plan::testing::{prod, profile};
use crate::policy::{Class, From, Selector, When};

impl Story {
    pub(super) fn profiles(&mut self, words: &[&str]) {
        let found = self.world.inventory.adopted.entry(prod()).or_default();
        match words {
            ["profiles", "begin"] => drop(self.world.policy.classes.insert("profile".to_owned(), profile())),
            ["profiles", "end"] => {
                self.world.policy.classes.remove("profile");
                self.world.inventory.adopted.clear();
            }
            ["profiles", "select", selector] => select(self.world.class("profile"), selector),
            ["profiles", "for", group] => {
                self.world.class("profile").when = Some(When::Group((*group).to_owned()));
            }
            ["profiles", "twice"] => {
                let mut twin = profile();
                "another".clone_into(&mut twin.name);
                select(&mut twin, "team");
                self.world.policy.classes.insert(twin.name.clone(), twin);
                for one in found.values_mut() {
                    one.selectors.insert("team".to_owned());
                }
            }
            ["profile", name, "gone"] => drop(found.remove(&named(name))),
            ["profile", name, "anew", owner @ ..] => drop(found.insert(named(name), one("anew", owner))),
            ["profile", name, "ours"] => {
                found.get_mut(&named(name)).expect("the cluster has this namespace").ours = true;
            }
            ["profile", name, "deleting"] => {
                found.get_mut(&named(name)).expect("the cluster has this namespace").deleting = true;
            }
            ["profile", name, "of", owner @ ..] => drop(found.insert(named(name), one("first", owner))),
            other => panic!("no such line: {other:?}"),
        }
    }

    /// Observes the cluster, and shows the events.
    pub(super) fn see(&mut self) {
        let taught = self.world.look();
        if !taught.is_empty() {
            self.show("seen:", &taught);
            self.shown.push('\n');
        }
    }
}

fn named(name: &str) -> NamespaceName {
    NamespaceName::try_from(name.to_owned()).expect("the word is a namespace name")
}

fn one(uid: &str, owner: &[&str]) -> FoundNamespace {
    FoundNamespace {
        uid: uid.to_owned(),
        selectors: BTreeSet::from(["part-of=profiles".to_owned()]),
        annotations: owner.iter().map(|owner| ("owner".to_owned(), (*owner).to_owned())).collect::<BTreeMap<_, _>>(),
        ..FoundNamespace::default()
    }
}

/// Sets the selector of a class that adopts namespaces.
fn select(class: &mut Class, selector: &str) {
    let From::Adopted(adopts) = &mut class.from else { panic!("class {} adopts nothing", class.name) };
    adopts.selector = Selector::parse(selector).expect("the selector is valid");
}
