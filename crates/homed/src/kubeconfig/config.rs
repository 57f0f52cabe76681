//! A parsed kubeconfig, and the edits that add our entries to it and remove them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bursar_protocol::{EntryNames, OurEntries, is_our_user};
use zeroize::Zeroizing;

use super::{KubeconfigError, List, Pairs, Wanted, is_managed, name_of};
use crate::document::{Document, DocumentError, Node, Style, Value};
use crate::edit::Edits;
use crate::ownership::{Standing, items};

/// The state of `current-context`, which decides whether we set it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Current {
    /// Missing or empty: it is set to our first context.
    Unset,
    /// It names a context of ours that is removed: it is set to our first context.
    Ours,
    /// It names another context and stays.
    Users,
}

/// The entries to remove, for each [`List`].
pub(super) struct Gone<'a> {
    /// All entries with these names.
    pub(super) names: [BTreeSet<&'a str>; 3],
    /// All entries with these names but the first, because client-go refuses a file with two entries of one name.
    pub(super) once: [BTreeSet<&'a str>; 3],
}

impl<'a> Gone<'a> {
    pub(super) fn all(ours: &'a OurEntries) -> Self {
        let lists = [&ours.clusters, &ours.contexts, &ours.users];
        Self {
            names: lists.map(|names| names.iter().map(String::as_str).collect()),
            once: [const { BTreeSet::new() }; 3],
        }
    }
}

/// A kubeconfig that has content and has passed the checks of [`Config::of`], so that it can be edited.
pub(super) struct Config<'d> {
    document: &'d Document<'d>,
    root: &'d Node,
    pairs: &'d Pairs,
}

impl<'d> Config<'d> {
    pub(super) fn of(document: &'d Document<'d>) -> Result<Option<Self>, KubeconfigError> {
        let Some(root) = &document.root else { return Ok(None) };
        let Value::Mapping(pairs) = &root.value else {
            return Err(KubeconfigError::Shape("its top level is not a mapping"));
        };
        if pairs.iter().any(|(key, _)| key.text() == Some("<<") || matches!(key.value, Value::Alias(_))) {
            return Err(KubeconfigError::Unclear("its top level is merged from elsewhere (`<<`)"));
        }
        for key in ["clusters", "contexts", "users", "current-context"] {
            if pairs.iter().filter(|(name, _)| name.text() == Some(key)).count() > 1 {
                return Err(KubeconfigError::Unclear("one of its top-level keys is there twice"));
            }
        }
        let config = Self { document, root, pairs };
        for list in List::ALL {
            let Some(found) = config.list(list) else { continue };
            if found.shares() {
                return Err(KubeconfigError::Shared(list.key()));
            }
            match &found.value {
                Value::Sequence(_) => {}
                _ if found.is_null() => {}
                _ => return Err(KubeconfigError::Shape("its clusters, contexts or users are not a list")),
            }
            if items(Some(found)).iter().any(|entry| says_twice(list, entry)) {
                return Err(KubeconfigError::Twice(list.key()));
            }
        }
        Ok(Some(config))
    }

    fn pair(&self, key: &str) -> Option<(&'d Node, &'d Node)> {
        self.pairs.iter().find(|(name, _)| name.text() == Some(key)).map(|(key, value)| (key, value))
    }

    fn list(&self, list: List) -> Option<&'d Node> {
        self.pair(list.key()).map(|(_, value)| value)
    }

    /// Returns `current-context`; `None` if it is missing, null or not a scalar.
    pub(super) fn current(&self) -> Option<&'d str> {
        self.pair("current-context").filter(|(_, value)| !value.is_null()).and_then(|(_, value)| value.text())
    }

    /// Whether `current-context` is missing or empty. An alias has no text here, but is a choice of the user.
    pub(super) fn has_no_current(&self) -> bool {
        self.pair("current-context").is_none_or(|(_, value)| value.is_null() || value.text() == Some(""))
    }

    /// Returns our entries for all clusters. The names of the users in the text show which entries are ours.
    pub(super) fn ours(&self) -> OurEntries {
        let EntryNames { clusters, contexts, user: _ } = self.standing().all_of_ours();
        let users = self.our_users().filter_map(name_of).map(str::to_owned).collect();
        OurEntries { users, clusters: clusters.into_iter().collect(), contexts: contexts.into_iter().collect() }
    }

    fn our_users(&self) -> impl Iterator<Item = &'d Node> {
        items(self.list(List::Users)).iter().filter(|entry| name_of(entry).is_some_and(is_our_user))
    }

    /// Returns the byte ranges of the users with this name. Each ends at the next user, because the parser does not report
    /// exactly where a block scalar ends.
    pub(super) fn places_of(&self, user: &str) -> Vec<Range<usize>> {
        let all = items(self.list(List::Users));
        let ends = all.iter().skip(1).map(|next| next.place.start).chain([self.document.text.len()]);
        let named = all.iter().zip(ends).filter(|(entry, _)| name_of(entry) == Some(user));
        named.map(|(entry, end)| entry.place.start..end).collect()
    }

    /// Whether a user of ours has content, which may be a credential.
    pub(super) fn has_a_credential(&self) -> bool {
        self.our_users().any(|entry| *entry != stub(name_of(entry).unwrap_or_default()))
    }

    pub(super) fn standing(&self) -> Standing<'d> {
        Standing::of(items(self.list(List::Contexts)), items(self.list(List::Clusters)))
    }

    /// Returns the entries of each list by name. If several have one name, the first counts.
    pub(super) fn by_name(&self) -> [BTreeMap<&'d str, &'d Node>; 3] {
        List::ALL.map(|list| {
            let named = items(self.list(list)).iter().rev().filter_map(|entry| Some((name_of(entry)?, entry)));
            named.collect()
        })
    }

    /// See [`users_part_worth_keeping`]. The entries with the names in `stale` count as the user's: they have our names,
    /// but may be the user's own.
    pub(super) fn kept(&self, stale: &EntryNames) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
        let text = self.document.text;
        let mut ours = self.ours();
        let [clusters, contexts] = [&stale.clusters, &stale.contexts].map(|names| super::names(names));
        ours.clusters.retain(|name| !clusters.contains(name.as_str()));
        ours.contexts.retain(|name| !contexts.contains(name.as_str()));
        let is_ours = |list: List, entry: &Node| {
            let names = [&ours.clusters, &ours.contexts, &ours.users][list as usize];
            name_of(entry).is_some_and(|name| names.contains(name))
        };
        let is_usual = |(key, value): &(Node, Node)| match key.text() {
            Some("apiVersion" | "kind") => true,
            Some("current-context") if value.text().is_some_and(|current| ours.contexts.contains(current)) => true,
            key => match (List::ALL.into_iter().find(|list| Some(list.key()) == key), &value.value) {
                (Some(list), Value::Sequence(entries)) => entries.iter().all(|entry| is_ours(list, entry)),
                (None, Value::Sequence(entries)) => entries.is_empty(),
                (_, Value::Mapping(pairs)) => pairs.is_empty(),
                (_, Value::Scalar(text, _)) => text.is_empty() || value.is_null(),
                (_, Value::Alias(_)) => false,
            },
        };
        if !text.contains('#') && self.pairs.iter().all(is_usual) {
            return Ok(None);
        }
        Ok(Some(self.without_credentials(&Gone::all(&ours))?.unwrap_or_else(|| Zeroizing::new(text.to_owned()))))
    }

    /// Returns the text without the entries in `gone`; `None` if it has none of them.
    pub(super) fn without(&self, gone: &Gone<'_>) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
        self.removed(gone, &List::ALL)
    }

    /// Returns the text without the entries in `gone`, like [`Config::without`]. If an entry cannot be removed without
    /// damage to the user's text, a context or cluster stays, and a user becomes a [`stub`]: no layout may keep a
    /// credential in the file.
    pub(super) fn without_credentials(&self, gone: &Gone<'_>) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
        let is_stuck = |result: &Result<_, _>| *result == Err(KubeconfigError::Document(DocumentError::NotWritable));
        let all = self.without(gone);
        if !is_stuck(&all) {
            return all;
        }
        let users = self.removed(gone, &[List::Users]);
        let mut done = if is_stuck(&users) { self.stubbed(gone)? } else { users? };
        for list in [List::Contexts, List::Clusters] {
            let document = again(done.as_ref().map_or(self.document.text, |text| text.as_str()))?;
            let config = Config::of(&document)?.ok_or(DocumentError::NotWritable)?;
            if let Ok(Some(text)) = config.removed(gone, &[list]) {
                done = Some(text);
            }
        }
        Ok(done)
    }

    fn removed(&self, gone: &Gone<'_>, lists: &[List]) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
        let mut edits = Edits::new(self.document);
        let mut left = Vec::new();
        for list in lists {
            let Some((key, found)) = self.pair(list.key()) else { continue };
            let mut seen = BTreeSet::new();
            let goes = |entry: &Node| {
                name_of(entry).is_some_and(|name| {
                    gone.names[*list as usize].contains(name)
                        || (gone.once[*list as usize].contains(name) && !seen.insert(name.to_owned()))
                })
            };
            let all = items(Some(found));
            let goes: Vec<bool> = all.iter().map(goes).collect();
            let positions: Vec<usize> = (0..all.len()).filter(|position| goes[*position]).collect();
            if !positions.is_empty() {
                edits.remove((key, found), &positions)?;
                left.push((*list, all.iter().zip(goes).filter(|(_, goes)| !goes).map(|(entry, _)| entry).collect()));
            }
        }
        let mut current = self.current();
        if let Some((key, value)) = self.pair("current-context")
            && lists.contains(&List::Contexts)
            && value.text().is_some_and(|current| gone.names[List::Contexts as usize].contains(current))
        {
            let none = Node::untagged(Value::Scalar(String::new(), Style::Quoted));
            // A value that cannot be edited, such as a block scalar, stays: it must not keep our key in the file.
            if edits.set(key, value, &none).is_ok() {
                current = Some("");
            }
        }
        self.applied(edits, &left, current)
    }

    /// Replaces the users in `gone` by stubs.
    fn stubbed(&self, gone: &Gone<'_>) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
        let all = items(self.list(List::Users));
        let goes =
            |entry: &Node| name_of(entry).filter(|name| gone.names[List::Users as usize].contains(name)).map(stub);
        let stubs: Vec<Option<Node>> = all.iter().map(goes).collect();
        let mut edits = Edits::new(self.document);
        for (entry, stub) in all.iter().zip(&stubs).filter_map(|(entry, stub)| Some((entry, stub.as_ref()?))) {
            if entry != stub {
                edits.replace_content(entry, stub)?;
            }
        }
        let left = all.iter().zip(&stubs).map(|(entry, stub)| stub.as_ref().unwrap_or(entry)).collect();
        self.applied(edits, &[(List::Users, left)], self.current())
    }

    /// Returns the text with the entries in `wanted`; `None` if it has exactly these entries already.
    pub(super) fn with(&self, wanted: &Wanted, current: Current) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
        let mut edits = Edits::new(self.document);
        let mut after: Vec<(List, Vec<&Node>)> = Vec::new();
        let entries = List::ALL.map(|list| self.entries(list, &wanted[list as usize]));
        if let (Current::Unset | Current::Ours, Some((name, _)), Some((key, value))) =
            (current, wanted[List::Contexts as usize].first(), self.pair("current-context"))
        {
            edits.set(key, value, &Node::string(name))?;
        }
        for (list, entries) in List::ALL.into_iter().zip(&entries) {
            let Some((key, found)) = self.pair(list.key()) else { continue };
            let mut all: Vec<&Node> = items(Some(found)).iter().collect();
            let mut new = Vec::new();
            for (position, entry) in entries {
                match position {
                    None => {
                        all.push(entry);
                        new.push(entry.clone());
                    }
                    Some(position) if all[*position] != entry => {
                        all[*position] = entry;
                        edits.replace((key, found), *position, entry)?;
                    }
                    Some(_) => {}
                }
            }
            edits.append(self.root, (key, found), &new)?;
            after.push((list, all));
        }
        for (list, entries) in List::ALL.into_iter().zip(&entries) {
            if self.pair(list.key()).is_none() && !entries.is_empty() {
                let value = Node::sequence(entries.iter().map(|(_, entry)| entry.clone()).collect());
                edits.add_key(self.root, list.key(), &value)?;
                after.push((list, entries.iter().map(|(_, entry)| entry).collect()));
            }
        }
        if let (Current::Unset | Current::Ours, Some((name, _)), None) =
            (current, wanted[List::Contexts as usize].first(), self.pair("current-context"))
        {
            edits.add_key(self.root, "current-context", &Node::string(name))?;
        }
        let first = wanted[List::Contexts as usize].first().map(|(name, _)| name.as_str());
        let current = if current == Current::Users { None } else { first };
        self.applied(edits, &after, current.or(self.current()))
    }

    /// Returns the new content of each wanted entry. If the list has an entry of that name, its position is returned
    /// too: the entry keeps its place, and the inner fields that [`List::keeps`] allows.
    pub(super) fn entries(&self, list: List, wanted: &[(String, Node)]) -> Vec<(Option<usize>, Node)> {
        let mut positions = BTreeMap::new();
        for (position, entry) in items(self.list(list)).iter().enumerate().rev() {
            if let Some(name) = name_of(entry) {
                positions.insert(name, (position, entry));
            }
        }
        let entry = |(name, wanted): &(String, Node)| match positions.get(name.as_str()) {
            None => (None, wanted.clone()),
            Some((position, found)) => (Some(*position), merged(list, found, wanted)),
        };
        wanted.iter().map(entry).collect()
    }

    /// Applies the edits, and parses the result as a check: the lists must be equal to `after`, `current-context` to
    /// `current`, and all else must be as before. Returns `None` if there are no edits.
    fn applied(
        &self,
        edits: Edits<'_>,
        after: &[(List, Vec<&Node>)],
        current: Option<&str>,
    ) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
        if edits.is_empty() {
            return Ok(None);
        }
        let text = edits.apply()?;
        let reads_so = {
            let document = again(&text)?;
            let again = Config::of(&document).ok().flatten().ok_or(DocumentError::NotWritable)?;
            let rest = |config: &Config<'_>| {
                let is_touched = |key: Option<&str>| {
                    key == Some("current-context") || after.iter().any(|(list, _)| key == Some(list.key()))
                };
                let pairs = config.pairs.iter().filter(|(key, _)| !is_touched(key.text()));
                pairs.map(|(key, value)| (key.clone(), value.clone())).collect::<Pairs>()
            };
            document.language == self.document.language
                && rest(self) == rest(&again)
                && current == again.current()
                && after.iter().all(|(list, entries)| items(again.list(*list)).iter().eq(entries.iter().copied()))
        };
        if reads_so { Ok(Some(text)) } else { Err(DocumentError::NotWritable.into()) }
    }
}

/// Returns a user without content.
fn stub(name: &str) -> Node {
    Node::mapping(vec![(Node::string("name"), Node::string(name)), (Node::string("user"), Node::mapping(Vec::new()))])
}

/// Parses a text that we edited. If it does not parse, our edit is to blame and not the user's text.
pub(super) fn again(text: &str) -> Result<Document<'_>, DocumentError> {
    Document::parse(text).map_err(|_| DocumentError::NotWritable)
}

/// Whether an entry has a key twice on which its ownership depends. Readers disagree about which of the two counts.
fn says_twice(list: List, entry: &Node) -> bool {
    let twice = |node: &Node, key: &str| match &node.value {
        Value::Mapping(pairs) => pairs.iter().filter(|(name, _)| name.text() == Some(key)).count() > 1,
        _ => false,
    };
    let within = |key: &str| entry.get(list.inner()).is_some_and(|inner| twice(inner, key));
    twice(entry, "name") || twice(entry, list.inner()) || ["cluster", "user", "server"].into_iter().any(within)
}

/// Returns the existing entry `found` with the fields of `wanted`.
fn merged(list: List, found: &Node, wanted: &Node) -> Node {
    let Value::Mapping(pairs) = &found.value else { return wanted.clone() };
    let mut outer = pairs.clone();
    let fields = |entry: &Node| match entry.get(list.inner()).map(|inner| &inner.value) {
        Some(Value::Mapping(fields)) => fields.clone(),
        _ => Vec::new(),
    };
    let (mut inner, new) = (fields(found), fields(wanted));
    let is_wanted = |key: &str| new.iter().any(|(name, _)| name.text() == Some(key));
    // If our context has no namespace, a default namespace is the user's choice.
    let is_users = |key: &str| !is_managed(list, key) || (list, key) == (List::Contexts, "namespace");
    inner.retain(|(key, _)| key.text().is_some_and(|key| is_wanted(key) || (list.keeps(key) && is_users(key))));
    for (key, value) in new {
        set(&mut inner, key.text().unwrap_or_default(), value);
    }
    set(&mut outer, list.inner(), Node::mapping(inner));
    Node { tag: found.tag.clone(), ..Node::mapping(outer) }
}

/// Sets the value of a key in its place, and removes duplicates of the key.
fn set(pairs: &mut Pairs, key: &str, wanted: Node) {
    let position = pairs.iter().position(|(name, _)| name.text() == Some(key));
    let mut index = 0;
    pairs.retain(|(name, _)| {
        index += 1;
        name.text() != Some(key) || Some(index - 1) == position
    });
    match position {
        Some(position) => pairs[position].1 = wanted,
        None => pairs.push((Node::string(key), wanted)),
    }
}
