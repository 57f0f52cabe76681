//! Tests every state with every event of `tests/data/crossings.txt`, because most faults arise from the interaction of
//! two correct mechanisms.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Story;
use crate::desired::of_generation_group;
use crate::identity::{AccountId, AccountKind, ClusterName};
use crate::inventory::{ClusterInventory, ObservedObject};
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::Lifecycle;
use crate::plan::testing::crossings::{Matrix, Meaning};
use crate::plan::testing::{crossings, prod};

type Happening = crossings::Happening<String>;

/// The test of one state with one event.
struct Cell {
    story: Story,
    foo: AccountId,
    /// The inventory of the clusters that do not answer.
    away: BTreeMap<ClusterName, Arc<ClusterInventory>>,
}

impl Cell {
    fn new() -> Self {
        let mut story = Story::new();
        let site =
            ["cluster new b", "add user ann 20001", "add tool foo 52503 ann", "add tool stays 52504 ann", "settle"];
        for line in site {
            story.line(&line.split_whitespace().collect::<Vec<_>>());
        }
        let foo = story.world.id(AccountKind::Tool, "foo");
        Self { story, foo, away: BTreeMap::new() }
    }

    fn tell(&mut self, lines: &[String]) {
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let world = &mut self.story.world;
            match words.as_slice() {
                ["cycle"] => drop(world.cycle()),
                ["cluster", name, "down"] => {
                    self.away.extend(world.inventory.clusters.remove_entry(&ClusterName((*name).into())));
                }
                ["cluster", name, "up"] => {
                    world.inventory.clusters.extend(self.away.remove_entry(&ClusterName((*name).into())));
                }
                // The cluster does not show a binding without our label, but the binding still applies.
                ["unlabelled", ..] => {
                    let binding = self.binding();
                    self.story.world.cluster().objects.remove(&binding);
                }
                ["finalizer", ..] => {
                    let binding = self.binding();
                    self.story.world.cluster().objects.get_mut(&binding).expect("the world has the object").deleting =
                        true;
                }
                ["finalized", ..] => {
                    let objects = &mut self.story.world.cluster().objects;
                    objects.retain(|key, found| key.kind != ManagedKind::RoleBinding || !found.deleting);
                }
                ["terminating", ..] => self.namespace().deleting = true,
                ["remade", ..] => {
                    let key = self.key();
                    let is_in = |known: &ObjectKey| {
                        known.cluster == key.cluster && known.namespace.as_deref() == Some(key.name.as_str())
                    };
                    let objects = &mut self.story.world.cluster().objects;
                    objects.retain(|known, _| *known != key && !is_in(known));
                    self.story.world.bound.retain(|known, _| !is_in(known));
                }
                // The account may have been renamed to food by now.
                [verb, "tool", "foo" | "food", rest @ ..] if *verb != "quota" && *verb != "killed" => {
                    let foo = self.foo.clone();
                    self.story.happens(verb, &foo, rest);
                }
                words => self.story.line(words),
            }
        }
    }

    fn key(&self) -> ObjectKey {
        let tenant = &self.story.world.ledger.tenants[&(self.foo.clone(), prod())];
        ObjectKey::namespace(&prod(), tenant.namespace.as_ref().expect("the tenant has a namespace"))
    }

    fn binding(&self) -> ObjectKey {
        let namespace = Some(self.key().name.clone());
        let mut bound = self.story.world.bound.keys();
        bound
            .find(|key| key.cluster == prod() && key.namespace == namespace)
            .expect("the account has a binding")
            .clone()
    }

    fn namespace(&mut self) -> &mut ObservedObject {
        let key = self.key();
        self.story.world.cluster().objects.get_mut(&key).expect("the world has the object")
    }

    /// Returns the subjects of the bindings in namespaces with this name, in the clusters that answer.
    fn bound(&self, namespace: &str) -> BTreeSet<String> {
        let answers = |key: &ObjectKey| !self.away.contains_key(&key.cluster);
        let bound = self.story.world.bound.iter();
        let bound = bound.filter(|(key, _)| answers(key) && key.namespace.as_deref() == Some(namespace));
        bound.flat_map(|(_, names)| names.iter().cloned()).collect()
    }

    /// Returns the final state of the world, without generations.
    fn end(&mut self) -> BTreeMap<String, String> {
        let world = &mut self.story.world;
        for _ in 0..8 {
            world.now += jiff::SignedDuration::from_hours(1);
            world.cycle();
        }
        let mut end = BTreeMap::new();
        for account in world.ledger.accounts.values() {
            end.insert(format!("state of {}", account.name), account.state.as_str().to_owned());
            let members = account.members.len();
            end.insert(format!("members of {}", account.name), members.to_string());
        }
        let name = |key: &ObjectKey| format!("{} {} {:?} {}", key.cluster, key.kind, key.namespace, key.name);
        for key in world.inventory.clusters.values().flat_map(|cluster| cluster.objects.keys()) {
            end.insert(name(key), String::new());
        }
        for (key, names) in &world.bound {
            let accounts: Vec<String> =
                names.iter().filter_map(|name| Some(of_generation_group(name)?.0.to_string())).collect();
            end.insert(name(key), accounts.join(", "));
        }
        for key in world.ledger.deliveries.keys() {
            let name = &world.ledger.accounts[&key.account].name;
            end.insert(format!("kubeconfig of {name} for {}", key.cluster), String::new());
        }
        end.insert("plan".to_owned(), world.plan().to_string());
        end
    }
}

/// Checks the access after two cycles. `own` and `others` are the names that the bindings of tools `foo` and `stays`
/// had at the beginning.
fn promised(
    cell: &mut Cell,
    meaning: Option<Meaning>,
    (own, others): (&BTreeSet<String>, &BTreeSet<String>),
    had_access: bool,
) -> Result<(), String> {
    for _ in 0..2 {
        cell.story.world.cycle();
        if cell.bound("tool-stays") != *others {
            return Err("tool stays lost its access".to_owned());
        }
    }
    let after = cell.bound("tool-foo");
    let account = cell.story.world.ledger.accounts[&cell.foo].clone();
    let is_present = |name: &String| {
        let group = of_generation_group(name);
        account.state == Lifecycle::Active && group.is_none_or(|(_, generation)| generation == account.generation)
    };
    let wrong = match meaning {
        None => None,
        Some(Meaning::Takes) if !after.is_empty() => Some(format!("foo still has {after:?}")),
        Some(Meaning::Replaces) if own.iter().any(|old| after.contains(old)) => Some(format!("{own:?} still opens it")),
        Some(Meaning::Keeps) if had_access && after.is_empty() => Some("foo lost its access".to_owned()),
        Some(_) => after.iter().find(|name| !is_present(name)).map(|name| format!("{name} is bound")),
    };
    wrong.map_or(Ok(()), Err)
}

fn crossed(state: &Happening, event: &Happening, waits: bool) -> Result<BTreeMap<String, String>, String> {
    let mut cell = Cell::new();
    let (own, others) = (cell.bound("tool-foo"), cell.bound("tool-stays"));
    cell.tell(&state.begins);
    let had_access = !cell.bound("tool-foo").is_empty() && state.name != "suspending";
    let others_then = cell.bound("tool-stays");
    cell.tell(&event.begins);
    let meaning = (!waits).then_some(event.meaning);
    promised(&mut cell, meaning, (&own, &others_then), had_access)?;
    let was_away = !cell.away.is_empty();
    cell.tell(&state.ends);
    if was_away {
        promised(&mut cell, Some(event.meaning), (&own, &others), true)
            .map_err(|why| format!("{why} when it is back"))?;
    }
    cell.tell(&event.ends);
    Ok(cell.end())
}

#[test]
fn every_event_has_its_effect_on_access_in_every_state() {
    let Matrix { states, events, waits } =
        Matrix::read(|lines, _| Some(lines.iter().map(|line| (*line).to_owned()).collect()));
    assert!(states.len() * events.len() >= 280, "{} cells", states.len() * events.len());
    let mut wrong = Vec::new();
    for event in &events {
        let undisturbed = crossed(&states[0], event, false).unwrap_or_else(|why| panic!("{}: {why}", event.name));
        for state in &states {
            let may_wait = waits.contains(&(state.name.clone(), event.name.clone()));
            match crossed(state, event, may_wait) {
                Err(why) => wrong.push(format!("{} x {}: {why}", state.name, event.name)),
                Ok(end) if end != undisturbed => {
                    let differs = |one: &BTreeMap<String, String>, other: &BTreeMap<String, String>| {
                        let differ = one.iter().filter(|(key, value)| other.get(*key) != Some(*value));
                        differ.map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>()
                    };
                    let (more, less) = (differs(&end, &undisturbed), differs(&undisturbed, &end));
                    wrong.push(format!("{} x {} ends with {more:?}, not {less:?}", state.name, event.name));
                }
                Ok(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}
