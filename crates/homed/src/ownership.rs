//! Which entries of a kubeconfig are ours: said by the file itself, not by who asks. Values only, no file.
//!
//! Whoever speaks for the daemon chooses names and contents; that a user's own context or cluster of the same name stays
//! what it is must not depend on it. So our users have a prefix that nobody else's have, a context is ours if it names
//! such a user, and a cluster is ours if one of our contexts leads to it.

use bursar_protocol::{EntryNames, KubeconfigEntries, USER_PREFIX, is_our_user};

use crate::document::{Node, Value};

type Pairs = Vec<(Node, Node)>;

/// The first entry that stands under one of our names and is not ours. `taken`: names that root said are ours, whoever
/// wrote them: those of a former system.
pub(super) fn foreign(pairs: &Pairs, entries: &KubeconfigEntries, taken: &[String]) -> Option<String> {
    let is_taken = |name: &String| taken.contains(name);
    let contexts = entries.contexts.iter().map(|context| &context.name).filter(|name| !is_taken(name));
    for name in contexts {
        if named(pairs, "contexts", name).any(|context| !is_our_context(context)) {
            return Some(format!("context `{name}`"));
        }
    }
    for cluster in entries.clusters.iter().filter(|cluster| !is_taken(&cluster.name)) {
        let name = &cluster.name;
        let is_same = |found: &Node| inner(found, "cluster", "server") == Some(cluster.server.as_str());
        let is_nobodys =
            !items(pairs, "contexts").any(|context| inner(context, "context", "cluster") == Some(name.as_str()));
        let mut standing = named(pairs, "clusters", name);
        if standing.any(|found| !(leads_to(pairs, name) || (is_nobodys && is_same(found)))) {
            return Some(format!("cluster `{name}`"));
        }
    }
    None
}

/// What we wrote for endpoints that there are no longer: contexts `prod` and `prod-NAME` of our user `bursar-prod` that are
/// named as their cluster is. Other contexts, which the user made with our credential, stay.
pub(super) fn stale(pairs: &Pairs, entries: &KubeconfigEntries) -> EntryNames {
    let is_wanted = |name: &str| entries.contexts.iter().any(|context| context.name == name);
    let mut names = named_after(pairs, &entries.user.name);
    names.retain(|name| !is_wanted(name));
    let names = EntryNames { clusters: names.clone(), user: entries.user.name.clone(), contexts: names };
    removable(pairs, &names)
}

/// These names, and what we wrote for endpoints that who asks does not know of any more.
pub(super) fn all_of(pairs: &Pairs, names: &EntryNames) -> EntryNames {
    let mut all = names.clone();
    for name in named_after(pairs, &names.user) {
        all.clusters.push(name.clone());
        all.contexts.push(name);
    }
    removable(pairs, &all)
}

/// Contexts that we wrote for our user: `prod` and `prod-NAME` of `bursar-prod`, to clusters of the same name.
fn named_after(pairs: &Pairs, user: &str) -> Vec<String> {
    let Some(prefix) = user.strip_prefix(USER_PREFIX) else { return Vec::new() };
    let is_of_us = |name: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    let name = |context: &Node| {
        let name = context.get("name").and_then(Node::text)?;
        let is_ours =
            inner(context, "context", "user") == Some(user) && inner(context, "context", "cluster") == Some(name);
        (is_ours && is_of_us(name)).then(|| name.to_owned())
    };
    items(pairs, "contexts").filter_map(name).collect()
}

/// Of these names, those whose entries are ours and are no longer needed by a context of the user's.
pub(super) fn removable(pairs: &Pairs, names: &EntryNames) -> EntryNames {
    let contexts: Vec<String> =
        names.contexts.iter().filter(|name| named(pairs, "contexts", name).all(is_our_context)).cloned().collect();
    let stays = |context: &&Node| {
        let name = context.get("name").and_then(Node::text);
        !name.is_some_and(|name| contexts.iter().any(|ours| ours == name))
    };
    let is_needed = |name: &String| {
        items(pairs, "contexts")
            .filter(stays)
            .any(|context| inner(context, "context", "cluster") == Some(name.as_str()))
    };
    let clusters = names.clusters.iter().filter(|name| leads_to(pairs, name) && !is_needed(name)).cloned().collect();
    EntryNames { clusters, user: names.user.clone(), contexts }
}

fn is_our_context(context: &Node) -> bool {
    inner(context, "context", "user").is_some_and(is_our_user)
}

/// Whether one of our contexts leads to the cluster.
fn leads_to(pairs: &Pairs, cluster: &str) -> bool {
    items(pairs, "contexts")
        .filter(|context| is_our_context(context))
        .any(|context| inner(context, "context", "cluster") == Some(cluster))
}

fn items<'a>(pairs: &'a Pairs, key: &str) -> impl Iterator<Item = &'a Node> {
    let list = pairs.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, list)| &list.value);
    let items = match list {
        Some(Value::Sequence(items)) => items.as_slice(),
        _ => &[],
    };
    items.iter()
}

fn named<'a>(pairs: &'a Pairs, key: &str, name: &'a str) -> impl Iterator<Item = &'a Node> {
    items(pairs, key).filter(move |item| item.get("name").and_then(Node::text) == Some(name))
}

fn inner<'a>(entry: &'a Node, key: &str, field: &str) -> Option<&'a str> {
    entry.get(key)?.get(field)?.text()
}
