//! Decides which entries of a kubeconfig are ours. The contents of the file decide, not the caller. Does not read
//! files.
//!
//! An attacker in control of the daemon chooses the names and contents of requests. Even then, a user's own context or
//! cluster of the same name must stay as it is. Therefore our users have a prefix that no other program uses, a context
//! is ours if it names such a user, and a cluster is ours if one of our contexts names it.
//!
//! A user can make any number of entries, so no function here needs more than one pass over them.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bursar_protocol::{EntryNames, KubeconfigEntries, USER_PREFIX, is_our_user};

use crate::document::{Node, Value};
use crate::kubeconfig::CLUSTER_FIELDS;

/// The field of a cluster with its CA.
const CA: &str = "certificate-authority-data";

/// The relations between the contexts and clusters of a text.
pub(super) struct Standing<'a> {
    contexts: Vec<Context<'a>>,
    /// Whether all contexts with a name are ours, by that name.
    ours: BTreeMap<&'a str, bool>,
    /// Clusters that one of our contexts names.
    reached_by_us: BTreeSet<&'a str>,
    /// Clusters that any context names.
    reached: BTreeSet<&'a str>,
    /// All clusters with a name, by their names.
    clusters: BTreeMap<&'a str, Vec<&'a Node>>,
    /// The names of clusters with their CAs.
    authorities: BTreeSet<(&'a str, &'a str)>,
}

struct Context<'a> {
    name: Option<&'a str>,
    cluster: Option<&'a str>,
    user: Option<&'a str>,
}

impl<'a> Standing<'a> {
    pub(super) fn of(contexts: &'a [Node], clusters: &'a [Node]) -> Self {
        let contexts: Vec<Context<'a>> = contexts
            .iter()
            .map(|context| Context {
                name: context.get("name").and_then(Node::text),
                cluster: inner(context, "context", "cluster"),
                user: inner(context, "context", "user"),
            })
            .collect();
        let mut ours = BTreeMap::new();
        for context in &contexts {
            if let Some(name) = context.name {
                *ours.entry(name).or_insert(true) &= context.is_ours();
            }
        }
        let (mut named, mut authorities) = (BTreeMap::<&str, Vec<&Node>>::new(), BTreeSet::new());
        for cluster in clusters {
            if let Some(name) = cluster.get("name").and_then(Node::text) {
                named.entry(name).or_default().push(cluster);
                authorities.extend(inner(cluster, "cluster", CA).map(|authority| (name, authority)));
            }
        }
        let reached_by_us = contexts.iter().filter(|context| context.is_ours()).filter_map(|it| it.cluster).collect();
        let reached = contexts.iter().filter_map(|context| context.cluster).collect();
        Self { contexts, ours, reached_by_us, reached, clusters: named, authorities }
    }

    /// Returns the first entry that has one of our names and is not ours. Entries with a name in `taken` count as ours:
    /// root listed the names that a former system used.
    pub(super) fn foreign(&self, entries: &KubeconfigEntries, taken: &[String]) -> Option<String> {
        let is_taken = |name: &String| taken.contains(name);
        for context in entries.contexts.iter().filter(|context| !is_taken(&context.name)) {
            if self.ours.get(context.name.as_str()) == Some(&false) {
                return Some(format!("context `{}`", context.name));
            }
        }
        for cluster in entries.clusters.iter().filter(|cluster| !is_taken(&cluster.name)) {
            let name = cluster.name.as_str();
            let is_nobodys = !self.reached.contains(name);
            let is_ours = |found: &&Node| {
                let is_same = inner(found, "cluster", "server") == Some(cluster.server.as_str());
                self.reached_by_us.contains(name) || (is_nobodys && is_same)
            };
            if !self.named(name).iter().all(is_ours) {
                return Some(format!("cluster `{name}`"));
            }
        }
        None
    }

    /// Returns the entries that we wrote for endpoints that no longer exist: contexts `prod` and `prod-NAME` of our
    /// user `bursar-prod` whose cluster has the same name, and only our fields and a CA of ours. Other contexts, which
    /// the user made with our credential, stay.
    pub(super) fn stale(&self, entries: &KubeconfigEntries) -> EntryNames {
        let wanted: BTreeSet<&str> = entries.contexts.iter().map(|context| context.name.as_str()).collect();
        let new = entries.clusters.iter().map(|cluster| STANDARD.encode(&cluster.ca_pem));
        // If the CA changes together with the endpoints, entries of a removed endpoint still have the CA that the other
        // entries in the file have.
        let names = entries.clusters.iter().flat_map(|cluster| self.named(&cluster.name));
        let old = names.filter_map(|cluster| inner(cluster, "cluster", CA)).map(str::to_owned);
        let authorities: BTreeSet<String> = new.chain(old).collect();
        let could_be_ours = |name: &str| self.could_be_ours(name, |authority| authorities.contains(authority));
        let names = self.written_for(|user| user == entries.user.name).into_iter().map(|(_, name)| name);
        let names = names.filter(|name| !wanted.contains(name) && could_be_ours(name));
        let names: Vec<String> = names.map(str::to_owned).collect();
        self.removable(&EntryNames { clusters: names.clone(), user: entries.user.name.clone(), contexts: names })
    }

    /// Returns our entries with these names, and our entries for endpoints that the caller no longer knows.
    pub(super) fn all_of(&self, names: &EntryNames) -> EntryNames {
        let mut all = names.clone();
        for name in self.ours_for(|user| user == names.user) {
            all.clusters.push(name.to_owned());
            all.contexts.push(name.to_owned());
        }
        self.removable(&all)
    }

    /// Returns the entries that we wrote for any of our users.
    pub(super) fn all_of_ours(&self) -> EntryNames {
        let names: Vec<String> = self.ours_for(|_| true).map(str::to_owned).collect();
        self.removable(&EntryNames { clusters: names.clone(), user: String::new(), contexts: names })
    }

    /// Returns the names of the entries that we wrote for these users. An entry `prod-NAME` that is not like the
    /// cluster `prod` is the user's own, for example for a tunnel.
    fn ours_for(&self, is_user: impl Fn(&str) -> bool) -> impl Iterator<Item = &'a str> {
        let own = |user: &'a str| user.strip_prefix(USER_PREFIX).unwrap_or_default();
        let has_its_authority = move |name: &str, user: &'a str| {
            self.could_be_ours(name, |authority| self.authorities.contains(&(own(user), authority)))
        };
        let written = self.written_for(is_user).into_iter();
        written.filter(move |(user, name)| own(user) == *name || has_its_authority(name, user)).map(|(_, name)| name)
    }

    /// Whether all clusters with this name have only our fields, and a CA of ours.
    fn could_be_ours(&self, name: &str, is_our_authority: impl Fn(&str) -> bool) -> bool {
        let is_our_field = |key: &Node| key.text().is_some_and(|key| CLUSTER_FIELDS.contains(&key));
        self.named(name).iter().all(|cluster| {
            let fields = match cluster.get("cluster").map(|inner| &inner.value) {
                Some(Value::Mapping(fields)) => fields.as_slice(),
                _ => &[],
            };
            fields.iter().all(|(key, _)| is_our_field(key))
                && inner(cluster, "cluster", CA).is_some_and(&is_our_authority)
        })
    }

    fn named(&self, cluster: &str) -> &[&'a Node] {
        self.clusters.get(cluster).map_or(&[], Vec::as_slice)
    }

    /// Returns the users of our contexts with the names of the contexts. See [`Context::written_for`].
    fn written_for(&self, is_user: impl Fn(&str) -> bool) -> BTreeSet<(&'a str, &'a str)> {
        let contexts = self.contexts.iter().filter(|context| context.user.is_some_and(&is_user));
        contexts.filter_map(|context| Some((context.user?, context.written_for(context.user?)?))).collect()
    }

    /// Returns the names in `names` whose entries are ours and are not needed by any remaining context.
    fn removable(&self, names: &EntryNames) -> EntryNames {
        let is_ours = |name: &&String| self.ours.get(name.as_str()).is_none_or(|ours| *ours);
        let contexts: BTreeSet<&str> = names.contexts.iter().filter(is_ours).map(String::as_str).collect();
        let stays = |context: &&Context<'_>| !context.name.is_some_and(|name| contexts.contains(name));
        let needed: BTreeSet<&str> = self.contexts.iter().filter(stays).filter_map(|context| context.cluster).collect();
        let goes = |name: &&String| self.reached_by_us.contains(name.as_str()) && !needed.contains(name.as_str());
        let clusters: BTreeSet<&String> = names.clusters.iter().filter(goes).collect();
        EntryNames {
            clusters: clusters.into_iter().cloned().collect(),
            user: names.user.clone(),
            contexts: contexts.into_iter().map(str::to_owned).collect(),
        }
    }
}

impl<'a> Context<'a> {
    fn is_ours(&self) -> bool {
        self.user.is_some_and(is_our_user)
    }

    /// Returns the name of the context if we wrote it for `user`: for `bursar-prod`, a context `prod` or `prod-NAME`
    /// whose cluster has the same name.
    fn written_for(&self, user: &str) -> Option<&'a str> {
        let rest = self.name?.strip_prefix(user.strip_prefix(USER_PREFIX)?)?;
        let is_named = rest.is_empty() || rest.starts_with('-');
        self.name.filter(|_| is_named && self.user == Some(user) && self.cluster == self.name)
    }
}

/// Returns the text of `entry.key.field`.
pub(super) fn inner<'a>(entry: &'a Node, key: &str, field: &str) -> Option<&'a str> {
    entry.get(key)?.get(field)?.text()
}

/// Returns the entries of a list; none if the list is missing or not a list.
pub(super) fn items(list: Option<&Node>) -> &[Node] {
    match list.map(|list| &list.value) {
        Some(Value::Sequence(items)) => items,
        _ => &[],
    }
}
