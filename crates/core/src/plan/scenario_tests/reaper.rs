//! The lines of a story about reapers, and about the revocation of a class.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::{Story, hours_of};
use crate::inventory::pods::{Lifetime, ObservedPod};
use crate::kinds::ObjectKey;
use crate::orders::request::{OrderRequest, RevokeClass};
use crate::orders::write_all;
use crate::plan::idle::count;
use crate::plan::testing::prod;
use crate::policy::{Evidence, NamespaceReaper, PodReaper};

impl Story {
    pub(super) fn reaper(&mut self, words: &[&str]) {
        match words {
            ["reaper", "pods", lifetime, per_cycle] => {
                let lifetime = crate::contract::lifetime(lifetime);
                let per_cycle = per_cycle.parse().expect("the word is a number");
                self.world.policy.reapers.pods = Some(PodReaper { lifetime, per_cycle, classes: BTreeMap::new() });
            }
            ["reaper", "idle", idle_for, warn_for, per_cycle] => {
                let hours = |text: &str| crate::contract::lifetime(text).expect("the text is a duration");
                let per_cycle = per_cycle.parse().expect("the word is a number");
                let (idle_for, warn_for) = (hours(idle_for), hours(warn_for));
                let rules = NamespaceReaper { idle_for, warn_for, per_cycle, evidence: BTreeMap::new() };
                self.world.policy.reapers.namespaces = Some(rules);
            }
            ["pods", "shown"] => drop(self.world.inventory.pods.entry(prod()).or_default()),
            ["pods", "hidden"] => drop(self.world.inventory.pods.remove(&prod())),
            ["prometheus", "asked"] => {
                let rules = self.world.policy.reapers.namespaces.as_mut().expect("this reaper is configured");
                rules.evidence.insert(prod(), Evidence::default());
            }
            ["prometheus", "silent"] => drop(self.world.inventory.in_use.remove(&prod())),
            ["prometheus", "shows", namespaces @ ..] => {
                let shown = namespaces.iter().map(|namespace| (*namespace).to_owned()).collect();
                self.world.inventory.in_use.insert(prod(), Arc::new(shown));
            }
            ["portal", "opens", namespace, hours] => {
                let namespace = (*namespace).to_owned().try_into().expect("the word is a namespace name");
                let (key, at) = (ObjectKey::namespace(&prod(), &namespace), self.world.now - hours_of(hours));
                let cluster = self.world.inventory.clusters.get_mut(&prod()).expect("the cluster answers");
                let found = Arc::make_mut(cluster).objects.get_mut(&key).expect("the world has the object");
                Arc::make_mut(found.rare.get_or_insert_default()).last_use = Some(at);
            }
            ["pods", "gone", namespace] => {
                let pods = self.world.inventory.pods.get_mut(&prod()).expect("the cluster shows its pods");
                Arc::make_mut(pods).pods.retain(|(place, _), _| place != namespace);
            }
            ["looks", times, hours] => {
                (0..times.parse::<u32>().expect("the word is a number")).for_each(|_| self.look(hours));
            }
            ["pod", namespace, name, began, lifetime, job @ ..] => self.pod(namespace, name, began, lifetime, job),
            other => panic!("no such line: {other:?}"),
        }
    }

    /// Adds a pod that started `began` ago. A lifetime of `-` means that the pod has none.
    fn pod(&mut self, namespace: &str, name: &str, began: &str, lifetime: &str, job: &[&str]) {
        let started = (began != "never").then(|| self.world.now - hours_of(began));
        let pod = ObservedPod {
            uid: format!("uid-{name}"),
            created: "2026-05-01T00:00:00Z".parse().expect("the text is a timestamp"),
            started,
            lifetime: Lifetime::read((lifetime != "-").then_some(lifetime)),
            job: job.first().map(|job| (*job).to_owned()),
            finished: false,
            ends_by: None,
            told: None,
            maker: None,
        };
        let pods = self.world.inventory.pods.entry(prod()).or_default();
        Arc::make_mut(pods).pods.insert((namespace.to_owned(), name.to_owned()), pod);
    }

    /// Lets the time pass, observes the pods, and executes a cycle.
    fn look(&mut self, hours: &str) {
        self.world.now += hours_of(hours);
        let world = &mut self.world;
        let rules = world.policy.reapers.namespaces.clone().expect("this reaper is configured");
        for change in count(&world.ledger, &world.inventory, &rules, world.now) {
            world.ledger.apply(&change);
        }
        let before = self.world.ledger.idle.clone();
        for event in self.world.cycle() {
            let account = event.account.map(|account| account.to_string()).unwrap_or_default();
            writeln!(self.shown, "{:.0} {account} {}: {}", self.world.now, event.action, event.reason)
                .expect("writing to a string does not fail");
        }
        for ((id, _), idle) in &self.world.ledger.idle {
            if idle.warned_at.is_some() && before.values().all(|known| known.warned_at != idle.warned_at) {
                let account = self.world.ledger.accounts[id].account_name();
                writeln!(self.shown, "{:.0} {account} warned: {:.0}", self.world.now, idle.due)
                    .expect("writing to a string does not fail");
            }
        }
    }

    pub(super) fn revoke_class(&mut self, class: &str, reason: &[&str]) {
        let request = RevokeClass { class: class.to_owned(), reason: Some(reason.join(" ")), ticket: None };
        let requests = [OrderRequest::RevokeClass(request)];
        let now = self.world.now;
        let written = write_all(&self.world.ledger, &self.world.policy, "root", &requests, now);
        let refused = written.refused.iter().map(|refusal| &refusal.text);
        for text in written.texts.iter().chain(refused) {
            writeln!(self.shown, "said: {text}\n").expect("writing to a string does not fail");
        }
        written.changes.iter().for_each(|change| self.world.ledger.apply(change));
    }
}
