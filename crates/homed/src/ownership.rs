//! Which entries of a kubeconfig are ours: said by the file itself, not by the caller. Values only, no file.
//!
//! An attacker who speaks for the daemon chooses names and contents; that a user's own context or cluster of the same
//! name stays as it is must not depend on them. So our users have a prefix that no other program uses, a context is
//! ours if it names such a user, and a cluster is ours if one of our contexts leads to it.
//!
//! A user decides how many entries there are, so each question costs no more than one pass over them.

use std::collections::{BTreeMap, BTreeSet};

use bursar_protocol::{EntryNames, KubeconfigEntries, USER_PREFIX, is_our_user};

use crate::document::{Node, Value};

/// What contexts and clusters say of each other.
pub(super) struct Standing<'a> {
    contexts: Vec<Context<'a>>,
    /// By name: whether all of that name are ours.
    ours: BTreeMap<&'a str, bool>,
    /// Clusters to which a context of ours leads.
    reached_by_us: BTreeSet<&'a str>,
    /// Clusters to which any context leads.
    reached: BTreeSet<&'a str>,
    /// By name: the servers of all clusters of that name.
    servers: BTreeMap<&'a str, Vec<Option<&'a str>>>,
}

struct Context<'a> {
    name: Option<&'a str>,
    cluster: Option<&'a str>,
    user: Option<&'a str>,
}

impl<'a> Standing<'a> {
    /// Finds out what stands in these two lists.
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

    /// The first entry that stands under one of our names and is not ours. `taken`: names that root said are ours no
    /// matter who wrote them: those of a former system.
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

    /// What we wrote for endpoints that there are no longer: contexts `prod` and `prod-NAME` of our user `bursar-prod` that
    /// are named as their cluster is. Other contexts, which the user made with our credential, stay.
    pub(super) fn stale(&self, entries: &KubeconfigEntries) -> EntryNames {
        let wanted: BTreeSet<&str> = entries.contexts.iter().map(|context| context.name.as_str()).collect();
        let names = self.named_after(&entries.user.name).filter(|name| !wanted.contains(name));
        let names: Vec<String> = names.map(str::to_owned).collect();
        self.removable(&EntryNames { clusters: names.clone(), user: entries.user.name.clone(), contexts: names })
    }

    /// These names, and what we wrote for endpoints that who asks does not know of any more.
    pub(super) fn all_of(&self, names: &EntryNames) -> EntryNames {
        let mut all = names.clone();
        for name in self.named_after(&names.user) {
            all.clusters.push(name.to_owned());
            all.contexts.push(name.to_owned());
        }
        self.removable(&all)
    }

    /// The users of ours that contexts name.
    pub(super) fn our_users(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.contexts.iter().filter_map(|context| context.user).filter(|user| is_our_user(user))
    }

    /// All that we wrote, for whichever of our users.
    pub(super) fn all_of_ours(&self) -> EntryNames {
        let ours = self.contexts.iter().filter_map(|context| context.written_for(context.user?));
        let names: Vec<String> = ours.map(str::to_owned).collect();
        self.removable(&EntryNames { clusters: names.clone(), user: String::new(), contexts: names })
    }

    fn named_after<'s>(&'s self, user: &'s str) -> impl Iterator<Item = &'a str> + 's {
        self.contexts.iter().filter_map(move |context| context.written_for(user))
    }

    /// Those of `names` whose entries are ours and that no context of the user needs any longer.
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

    /// Its name, if we wrote it for this user of ours: `prod` and `prod-NAME` of `bursar-prod`, to clusters of the same
    /// name.
    fn written_for(&self, user: &str) -> Option<&'a str> {
        let rest = self.name?.strip_prefix(user.strip_prefix(USER_PREFIX)?)?;
        let is_named = rest.is_empty() || rest.starts_with('-');
        self.name.filter(|_| is_named && self.user == Some(user) && self.cluster == self.name)
    }
}

/// `entry.key.field`, if it is text.
pub(super) fn inner<'a>(entry: &'a Node, key: &str, field: &str) -> Option<&'a str> {
    entry.get(key)?.get(field)?.text()
}

/// The entries of a list that may not be there.
pub(super) fn items(list: Option<&Node>) -> &[Node] {
    match list.map(|list| &list.value) {
        Some(Value::Sequence(items)) => items,
        _ => &[],
    }
}
