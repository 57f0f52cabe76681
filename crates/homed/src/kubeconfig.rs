//! Merges our entries into the text of a user's kubeconfig, and removes them again, without changing the user's part.
//!
//! Uses no file and no clock. Entries are found by our names, and every byte outside them stays as it is, because
//! [`edit`](crate::edit) replaces spans. `current-context` is set only if it is missing, empty, or names an entry of
//! ours that is removed. The format is `k8s.io/client-go/tools/clientcmd/api/v1.Config`.
//!
//! The cost is linear in the length of the text, for any content.

mod config;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bursar_protocol::{EntryNames, Inspection, KubeconfigEntries, OurEntries, TOKEN, UserEntry, UserProof};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

use self::config::{Config, Current, Gone, again};
use crate::document::{Document, DocumentError, Node, Value};
use crate::edit::Edits;
use crate::keypair;

/// Why our entries cannot be merged into a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KubeconfigError {
    /// The text cannot be parsed, or cannot be edited without loss.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The text parses, but is not a kubeconfig.
    #[error("{0}")]
    Shape(&'static str),
    /// The top level has a merge key, an alias or a duplicate key, which kubectl could read differently.
    #[error("{0}")]
    Unclear(&'static str),
    /// One of the lists that we edit shares nodes with another place in the text.
    #[error("an anchor (`&`), an alias (`*`) or a merge key (`<<`) is in its `{0}`: write out what it stands for")]
    Shared(&'static str),
    /// An entry has a key twice. Readers disagree about which of the two counts.
    #[error("an entry of its `{0}` has a key twice")]
    Twice(&'static str),
    /// An entry with one of our names belongs to the user.
    #[error("{0} in it is not Bursar's")]
    Foreign(String),
}

/// The lists in which we have entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum List {
    Clusters,
    Contexts,
    Users,
}

impl List {
    const ALL: [Self; 3] = [Self::Clusters, Self::Contexts, Self::Users];

    /// The key of the list at the top level.
    fn key(self) -> &'static str {
        match self {
            Self::Clusters => "clusters",
            Self::Contexts => "contexts",
            Self::Users => "users",
        }
    }

    /// The key in each entry of the list besides `name`.
    fn inner(self) -> &'static str {
        match self {
            Self::Clusters => "cluster",
            Self::Contexts => "context",
            Self::Users => "user",
        }
    }

    /// Whether a field of an existing entry stays in addition to the fields that we write.
    fn keeps(self, field: &str) -> bool {
        match self {
            Self::Clusters => !CLUSTER_CONTRADICTIONS.contains(&field),
            Self::Contexts => true,
            Self::Users => field == "extensions",
        }
    }
}

/// The result of a delivery.
#[derive(Debug)]
pub struct Delivered {
    /// The text with our entries; `None` if it has exactly these entries already.
    pub text: Option<Zeroizing<String>>,
    /// [`Inspection::entries_digest`] of the text with our entries.
    pub digest: Option<String>,
    /// The user's part of the old text, if it is worth keeping. It has no entry of ours, so that a backup cannot bring
    /// back a revoked key.
    pub kept: Option<Zeroizing<String>>,
}

/// Adds our entries to a text. Entries with a name in `taken` count as ours even if another program wrote them. All
/// results come from one pass, because parsing a file of 1 MiB takes time.
pub fn deliver(text: &str, entries: &KubeconfigEntries, taken: &[String]) -> Result<Delivered, KubeconfigError> {
    let document = Document::parse(text)?;
    let (wanted, names) = (wanted(entries), entries.names());
    let Some(config) = Config::of(&document)? else {
        let ours = wanted.each_ref().map(|list| list.iter().map(|(name, entry)| (name.as_str(), entry)).collect());
        let kept = text.contains('#').then(|| Zeroizing::new(text.to_owned()));
        return Ok(Delivered { text: Some(fresh(&document, &wanted)?), digest: digest(&ours, &names), kept });
    };
    let standing = config.standing();
    if let Some(foreign) = standing.foreign(entries, taken) {
        return Err(KubeconfigError::Foreign(foreign));
    }
    let stale = standing.stale(entries);
    let gone = Gone {
        names: [self::names(&stale.clusters), self::names(&stale.contexts), BTreeSet::new()],
        once: wanted.each_ref().map(|list| list.iter().map(|(name, _)| name.as_str()).collect()),
    };
    let current = match config.current() {
        _ if config.has_no_current() => Current::Unset,
        Some(current) if gone.names[List::Contexts as usize].contains(current) => Current::Ours,
        _ => Current::Users,
    };
    let after = List::ALL.map(|list| config.entries(list, &wanted[list as usize]));
    let ours = after.each_ref().map(|list| {
        list.iter().filter_map(|(_, entry)| Some((name_of(entry)?, entry))).collect::<BTreeMap<&str, &Node>>()
    });
    let digest = digest(&ours, &names);
    let without = config.without(&gone)?;
    let text = match &without {
        None => config.with(&wanted, current)?,
        Some(text) => {
            let document = again(text)?;
            let config = Config::of(&document).ok().flatten().ok_or(DocumentError::NotWritable)?;
            config.with(&wanted, current)?.or_else(|| without.clone())
        }
    };
    let kept = if text.is_some() { config.kept(&stale)? } else { None };
    Ok(Delivered { text, digest, kept })
}

/// Returns the text without our entries with these names; `None` if it has none. Entries of the user with these names
/// stay. If the layout does not allow the removal of an entry, only its credential is removed.
pub fn remove(text: &str, names: &EntryNames) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    let document = Document::parse(text)?;
    let Some(config) = Config::of(&document)? else { return Ok(None) };
    let ours = config.standing().all_of(names);
    let gone = Gone {
        names: [self::names(&ours.clusters), self::names(&ours.contexts), BTreeSet::from([ours.user.as_str()])],
        once: [const { BTreeSet::new() }; 3],
    };
    config.without_credentials(&gone)
}

/// Returns the byte ranges of a text that may hold the credential of a user.
pub fn places_of(text: &str, user: &str) -> Result<Vec<Range<usize>>, KubeconfigError> {
    let document = Document::parse(text)?;
    Ok(Config::of(&document)?.map(|config| config.places_of(user)).unwrap_or_default())
}

/// Whether a text has an entry of a user of ours, for any cluster.
pub fn has_a_credential(text: &str) -> Result<bool, KubeconfigError> {
    let document = Document::parse(text)?;
    Ok(Config::of(&document)?.is_some_and(|config| config.has_a_credential()))
}

/// Returns the text without the entries of our users, which may hold a revoked credential.
pub fn without_our_users(text: &str) -> Result<Zeroizing<String>, KubeconfigError> {
    let document = Document::parse(text)?;
    let without = match Config::of(&document)? {
        Some(config) => {
            let users = OurEntries { users: config.ours().users, ..OurEntries::default() };
            config.without_credentials(&Gone::all(&users))?
        }
        None => None,
    };
    Ok(without.unwrap_or_else(|| Zeroizing::new(text.to_owned())))
}

/// Our entries as a text contains them, for [`put_back`].
#[derive(Debug, Default)]
pub struct Taken([Vec<(String, Node)>; 3]);

impl Taken {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }
}

/// Returns our entries in a text.
pub fn take(text: &str) -> Result<Taken, KubeconfigError> {
    let document = Document::parse(text)?;
    let Some(config) = Config::of(&document)? else { return Ok(Taken::default()) };
    let (ours, entries) = (config.ours(), config.by_name());
    let of = |list: List, names: BTreeSet<String>| {
        let found = |name: String| entries[list as usize].get(name.as_str()).map(|entry| (name, (*entry).clone()));
        names.into_iter().filter_map(found).collect()
    };
    let mut contexts: Vec<(String, Node)> = of(List::Contexts, ours.contexts);
    // [`put_back`] makes the first context the current one of a text that has none.
    contexts.sort_by_key(|(name, _)| config.current() != Some(name));
    Ok(Taken([of(List::Clusters, ours.clusters), contexts, of(List::Users, ours.users)]))
}

/// Returns the text with these entries, which [`take`] found in another text; `None` if it has them already.
pub fn put_back(text: &str, taken: &Taken) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    let document = Document::parse(text)?;
    let Some(config) = Config::of(&document)? else {
        return if taken.is_empty() { Ok(None) } else { fresh(&document, &taken.0).map(Some) };
    };
    config.with(&taken.0, if config.has_no_current() { Current::Unset } else { Current::Users })
}

/// Returns the text without our entries. `None` if the rest is not worth keeping: it has no entry, no comment and no
/// field other than those that kubectl writes by itself.
pub fn users_part_worth_keeping(text: &str) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    let document = Document::parse(text)?;
    match Config::of(&document)? {
        Some(config) => config.kept(&EntryNames::default()),
        None => Ok(text.contains('#').then(|| Zeroizing::new(text.to_owned()))),
    }
}

/// Returns what a text has under our names, and the names of our entries for all clusters. The caller fills in `exists`,
/// `owner` and `mode`, which come from the file.
pub fn inspect(text: &str, names: &EntryNames) -> Result<Inspection, KubeconfigError> {
    let document = Document::parse(text)?;
    let mut found = Inspection { parses: true, ..Inspection::default() };
    let Some(config) = Config::of(&document)? else { return Ok(found) };
    found.ours = config.ours();
    let entries = config.by_name();
    if let Some(user) = entries[List::Users as usize].get(names.user.as_str()).and_then(|entry| entry.get("user")) {
        let decoded = |field| {
            let text = user.get(field)?.text()?;
            Some(Zeroizing::new(STANDARD.decode(text.trim()).ok()?))
        };
        if let Some(certificate) = decoded("client-certificate-data").and_then(|pem| keypair::certificate(&pem)) {
            found.key_matches = decoded("client-key-data").is_some_and(|key| keypair::belongs_to(&key, &certificate));
            found.certificate_pem = Some(certificate.pem);
        }
    }
    found.current_context =
        config.current().filter(|current| names.contexts.iter().any(|name| name == current)).map(str::to_owned);
    found.entries_digest = digest(&entries, names);
    Ok(found)
}

/// Fields of `clusters[].cluster` that would overrule what we write: another CA, or no verification at all.
const CLUSTER_CONTRADICTIONS: [&str; 2] = ["certificate-authority", "insecure-skip-tls-verify"];
/// Fields that [`deliver`] writes into a cluster.
pub(super) const CLUSTER_FIELDS: [&str; 4] = ["certificate-authority-data", "proxy-url", "server", "tls-server-name"];
/// Fields that [`deliver`] writes into a context.
const CONTEXT_FIELDS: [&str; 3] = ["cluster", "namespace", "user"];
/// Fields of `users[].user` other than a second credential.
const USER_FIELDS: [&str; 3] = ["client-certificate-data", "client-key-data", "extensions"];

type Pairs = Vec<(Node, Node)>;
/// For each [`List`], the names and contents of the entries that we write.
type Wanted = [Vec<(String, Node)>; 3];

fn names(names: &[String]) -> BTreeSet<&str> {
    names.iter().map(String::as_str).collect()
}

fn name_of(entry: &Node) -> Option<&str> {
    entry.get("name").and_then(Node::text)
}

/// Returns the entries that each list must have, in the order in which new entries are added. Fields without a value
/// are left out.
fn wanted(entries: &KubeconfigEntries) -> Wanted {
    let entry = |list: List, name: &str, fields: Vec<(&str, Option<Node>)>| {
        let fields = fields.into_iter().filter_map(|(key, value)| Some((Node::string(key), value?))).collect();
        let pairs =
            vec![(Node::string(list.inner()), Node::mapping(fields)), (Node::string("name"), Node::string(name))];
        (name.to_owned(), Node::mapping(pairs))
    };
    let clusters = entries.clusters.iter().map(|cluster| {
        let fields = vec![
            ("certificate-authority-data", Some(Node::string(STANDARD.encode(&cluster.ca_pem)))),
            ("proxy-url", cluster.proxy.as_ref().map(Node::string)),
            ("server", Some(Node::string(&cluster.server))),
            ("tls-server-name", cluster.tls_server_name.as_ref().map(Node::string)),
        ];
        entry(List::Clusters, &cluster.name, fields)
    });
    let contexts = entries.contexts.iter().map(|context| {
        let fields = vec![
            ("cluster", Some(Node::string(&context.cluster))),
            ("namespace", context.namespace.as_ref().map(Node::string)),
            ("user", Some(Node::string(&context.user))),
        ];
        entry(List::Contexts, &context.name, fields)
    });
    let user = entry(List::Users, &entries.user.name, user_fields(&entries.user));
    [clusters.collect(), contexts.collect(), vec![user]]
}

/// Whether Bursar manages a field of an entry. If the delivery does not set such a field, it is removed, except the
/// namespace of a context.
fn is_managed(list: List, field: &str) -> bool {
    match list {
        List::Clusters => CLUSTER_FIELDS.contains(&field),
        List::Contexts => CONTEXT_FIELDS.contains(&field),
        List::Users => field != "extensions",
    }
}

/// Returns the fields of `users[].user`. All others but `extensions` are removed: they could hold another credential.
fn user_fields(user: &UserEntry) -> Vec<(&'static str, Option<Node>)> {
    match &user.proof {
        UserProof::Certificate { certificate_pem, key_pem } => vec![
            ("client-certificate-data", Some(Node::string(STANDARD.encode(certificate_pem)))),
            ("client-key-data", Some(Node::string(STANDARD.encode(key_pem.expose())))),
        ],
        // The path is relative to the folder of the kubeconfig (client-go, `clientcmd.ResolveLocalPaths`), because
        // hosts mount the same home at different paths.
        UserProof::Token(_) => vec![("tokenFile", Some(Node::string(format!("{}/{TOKEN}", user.name))))],
        UserProof::Login(login) => vec![("exec", Some(plugin("kubectl", &login.arguments(), "IfAvailable")))],
        UserProof::Notice(notice) => vec![("exec", Some(plugin("sh", &notice.arguments(), "Never")))],
    }
}

/// Returns a value for `users[].user.exec`.
fn plugin(command: &str, arguments: &[String], mode: &str) -> Node {
    let text = |key: &str, value: &str| (Node::string(key), Node::string(value));
    Node::mapping(vec![
        text("apiVersion", "client.authentication.k8s.io/v1"),
        (Node::string("args"), Node::sequence(arguments.iter().map(Node::string).collect())),
        text("command", command),
        text("interactiveMode", mode),
    ])
}

/// Returns a complete kubeconfig, as `kubectl config` makes it, for a file without content.
fn fresh(document: &Document<'_>, wanted: &Wanted) -> Result<Zeroizing<String>, KubeconfigError> {
    let of = |list: List| Node::sequence(wanted[list as usize].iter().map(|(_, entry)| entry.clone()).collect());
    let pair = |key: &str, value| (Node::string(key), value);
    let first = wanted[List::Contexts as usize].first().map_or("", |(name, _)| name);
    let root = Node::mapping(vec![
        pair("apiVersion", Node::string("v1")),
        pair("clusters", of(List::Clusters)),
        pair("contexts", of(List::Contexts)),
        pair("current-context", Node::string(first)),
        pair("kind", Node::string("Config")),
        pair("preferences", Node::mapping(Vec::new())),
        pair("users", of(List::Users)),
    ]);
    let mut edits = Edits::new(document);
    edits.fill(&root);
    let text = edits.apply()?;
    let reads_so = Document::parse(&text).is_ok_and(|again| again.root.as_ref() == Some(&root));
    if reads_so { Ok(text) } else { Err(DocumentError::NotWritable.into()) }
}

/// Returns a SHA-256 digest of the fields that we manage in the entries with our names, and of the fields that overrule
/// them; `None` if an entry is missing.
fn digest(entries: &[BTreeMap<&str, &Node>; 3], names: &EntryNames) -> Option<String> {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        // Each part follows its length, so that two different lists of parts never have the same hash input.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    let text = |inner: &Node, field: &str| inner.get(field).and_then(Node::text).unwrap_or_default().to_owned();
    let entry = |list: List, name: &str| entries[list as usize].get(name)?.get(list.inner());
    for name in &names.clusters {
        let inner = entry(List::Clusters, name)?;
        add(name);
        for field in CLUSTER_FIELDS.iter().chain(&CLUSTER_CONTRADICTIONS) {
            add(&text(inner, field));
        }
    }
    for name in &names.contexts {
        let inner = entry(List::Contexts, name)?;
        add(name);
        // The user may choose another namespace.
        for field in ["cluster", "user"] {
            add(&text(inner, field));
        }
    }
    let user = entry(List::Users, &names.user)?;
    add(&names.user);
    if let Value::Mapping(fields) = &user.value {
        for (field, value) in
            fields.iter().filter(|(field, _)| !USER_FIELDS.contains(&field.text().unwrap_or_default()))
        {
            let field = field.text().unwrap_or_default();
            add(field);
            // The value of any other field stays out of the digest, because it may be a secret.
            if field == "tokenFile" {
                add(value.text().unwrap_or_default());
            }
        }
    }
    Some(hex::encode(hash.finalize()))
}

#[cfg(test)]
#[path = "kubeconfig_tests.rs"]
mod tests;
