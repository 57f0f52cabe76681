//! Decides which entries of a kubeconfig are ours. The contents of the file decide, not the caller. Does not read
//! files.
//!
//! An attacker in control of the daemon chooses the names and contents of requests. Even then, a user's own context or
//! cluster of the same name must stay as it is. Therefore our users have a prefix that no other program uses, a context
//! is ours if it names such a user, and a cluster is ours if one of our contexts names it.
//!
//! A user can make any number of entries, so no function here needs more than one pass over them.

use std::collections::{BTreeMap, BTreeSet};

use bursar_protocol::{EntryNames, KubeconfigEntries, USER_PREFIX, is_our_user};

use crate::document::{Node, Value};

/// The relations between the contexts and clusters of a text.
pub(super) struct Standing<'a> {
    contexts: Vec<Context<'a>>,
    /// By context name: whether all contexts with that name are ours.
    ours: BTreeMap<&'a str, bool>,
    /// Clusters that one of our contexts names.
    reached_by_us: BTreeSet<&'a str>,
    /// Clusters that any context names.
    reached: BTreeSet<&'a str>,
    /// By cluster name: the servers of all clusters with that name.
    servers: BTreeMap<&'a str, Vec<Option<&'a str>>>,
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
        let mut servers: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for cluster in clusters {
            if let Some(name) = cluster.get("name").and_then(Node::text) {
                servers.entry(name).or_default().push(inner(cluster, "cluster", "server"));
            }
        }
        let reached_by_us = contexts.iter().filter(|context| context.is_ours()).filter_map(|it| it.cluster).collect();
        let reached = contexts.iter().filter_map(|context| context.cluster).collect();
        Self { contexts, ours, reached_by_us, reached, servers }
    }

    /// Returns the first entry that has one of our names and is not ours. Entries with a name in `taken` count as ours:
    /// root lists there the names that a former system used.
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
            let is_ours = |server: Option<&str>| {
                self.reached_by_us.contains(name) || (is_nobodys && server == Some(cluster.server.as_str()))
            };
            if !self.servers.get(name).is_none_or(|servers| servers.iter().copied().all(is_ours)) {
                return Some(format!("cluster `{name}`"));
            }
        }
        None
    }

    /// Returns the entries that we wrote for endpoints that no longer exist: contexts `prod` and `prod-NAME` of our
    /// user `bursar-prod` whose cluster has the same name. Other contexts, which the user made with our credential,
    /// stay.
    pub(super) fn stale(&self, entries: &KubeconfigEntries) -> EntryNames {
        let wanted: BTreeSet<&str> = entries.contexts.iter().map(|context| context.name.as_str()).collect();
        let names = self.named_after(&entries.user.name).filter(|name| !wanted.contains(name));
        let names: Vec<String> = names.map(str::to_owned).collect();
        self.removable(&EntryNames { clusters: names.clone(), user: entries.user.name.clone(), contexts: names })
    }

    /// Returns our entries with these names, and those that we wrote for endpoints that the caller no longer knows.
    pub(super) fn all_of(&self, names: &EntryNames) -> EntryNames {
        let mut all = names.clone();
        for name in self.named_after(&names.user) {
            all.clusters.push(name.to_owned());
            all.contexts.push(name.to_owned());
        }
        self.removable(&all)
    }

    /// Returns those of our users that contexts name.
    pub(super) fn our_users(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.contexts.iter().filter_map(|context| context.user).filter(|user| is_our_user(user))
    }

    /// Returns the entries that we wrote for any of our users.
    pub(super) fn all_of_ours(&self) -> EntryNames {
        let ours = self.contexts.iter().filter_map(|context| context.written_for(context.user?));
        let names: Vec<String> = ours.map(str::to_owned).collect();
        self.removable(&EntryNames { clusters: names.clone(), user: String::new(), contexts: names })
    }

    fn named_after<'s>(&'s self, user: &'s str) -> impl Iterator<Item = &'a str> + 's {
        self.contexts.iter().filter_map(move |context| context.written_for(user))
    }

    /// Returns those of `names` whose entries are ours and that no remaining context needs.
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
