//! Our entries into a user's kubeconfig, and out of it again, without touching what is the user's.
//!
//! Text in, text out; no file and no clock. Entries are found by our names. Every byte outside of them stays as it is:
//! [`edit`](crate::edit) replaces spans. `current-context` is set only where there is none. Format:
//! `k8s.io/client-go/tools/clientcmd/api/v1.Config`.
//!
//! The cost is linear in the text, whatever is in it.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bursar_protocol::{
    EntryNames, Inspection, KubeconfigEntries, OurEntries, TOKEN, UserEntry, UserProof, is_our_user,
};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::document::{Document, DocumentError, Node, Style, Value};
use crate::edit::Edits;
use crate::keypair;
use crate::ownership::{Standing, items};

/// Why a text cannot be merged into.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KubeconfigError {
    /// It cannot be read, or not be written again.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// It can, and is something else than a kubeconfig.
    #[error("{0}")]
    Shape(&'static str),
    /// A top level that kubectl reads in its own way.
    #[error("{0}")]
    Unclear(&'static str),
    /// Something in a list of ours that means something elsewhere, or means what stands elsewhere.
    #[error("an anchor (`&`), an alias (`*`) or a merge key (`<<`) is in its `{0}`: write out what it stands for")]
    Shared(&'static str),
    /// A key that readers disagree about.
    #[error("an entry of its `{0}` has a key twice")]
    Twice(&'static str),
    /// What stands under one of our names is the user's own.
    #[error("{0} in it is not ours")]
    Foreign(String),
}

/// The lists that have entries of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum List {
    Clusters,
    Contexts,
    Users,
}

impl List {
    const ALL: [Self; 3] = [Self::Clusters, Self::Contexts, Self::Users];

    /// Its key at the top level.
    fn key(self) -> &'static str {
        match self {
            Self::Clusters => "clusters",
            Self::Contexts => "contexts",
            Self::Users => "users",
        }
    }

    /// The key in each of its entries, beside `name`.
    fn inner(self) -> &'static str {
        match self {
            Self::Clusters => "cluster",
            Self::Contexts => "context",
            Self::Users => "user",
        }
    }

    /// Whether a field of an entry that is there stays beside what we write.
    fn keeps(self, field: &str) -> bool {
        match self {
            Self::Clusters => !CLUSTER_CONTRADICTIONS.contains(&field),
            Self::Contexts => true,
            Self::Users => field == "extensions",
        }
    }
}

/// What a delivery comes to.
#[derive(Debug)]
pub struct Delivered {
    /// The text with our entries in it; `None` if they are there already, just so.
    pub text: Option<Zeroizing<String>>,
    /// [`Inspection::entries_digest`] of it.
    pub digest: Option<String>,
    /// What was the user's own before, if there was anything: without any entry of ours, so that no revoked key comes back.
    pub kept: Option<Zeroizing<String>>,
}

/// The text with our entries in it; `None` if they are there already, just so. `taken`: names that count as ours no
/// matter who wrote what stands there.
pub fn merge(
    text: &str,
    entries: &KubeconfigEntries,
    taken: &[String],
) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    deliver(text, entries, taken).map(|delivered| delivered.text)
}

/// As [`merge`], with what else there is to say of it. Reads each text once: a file of 1 MiB takes its time.
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
        None | Some("") => Current::Unset,
        Some(current) if gone.names[List::Contexts as usize].contains(current) => Current::Ours,
        Some(_) => Current::Users,
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
    let kept = if text.is_some() { config.kept()? } else { None };
    Ok(Delivered { text, digest, kept })
}

/// The text without the entries of these names that are ours; `None` if there are none.
pub fn remove(text: &str, names: &EntryNames) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    let document = Document::parse(text)?;
    let Some(config) = Config::of(&document)? else { return Ok(None) };
    let ours = config.standing().all_of(names);
    let gone = Gone {
        names: [self::names(&ours.clusters), self::names(&ours.contexts), BTreeSet::from([ours.user.as_str()])],
        once: [const { BTreeSet::new() }; 3],
    };
    config.without(&gone)
}

/// What in a text is ours.
pub fn ours(text: &str) -> Result<OurEntries, KubeconfigError> {
    let document = Document::parse(text)?;
    Ok(Config::of(&document)?.map(|config| config.ours()).unwrap_or_default())
}

/// The text without anything of ours.
pub fn users_part(text: &str) -> Result<Zeroizing<String>, KubeconfigError> {
    let document = Document::parse(text)?;
    let without = match Config::of(&document)? {
        Some(config) => config.without(&Gone::all(&config.ours()))?,
        None => None,
    };
    Ok(without.unwrap_or_else(|| Zeroizing::new(text.to_owned())))
}

/// Entries of ours as they stand in a text, for [`put_back`].
#[derive(Debug, Default)]
pub struct Taken([Vec<(String, Node)>; 3]);

impl Taken {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }
}

/// The entries of a text that are ours.
pub fn take(text: &str) -> Result<Taken, KubeconfigError> {
    let document = Document::parse(text)?;
    let Some(config) = Config::of(&document)? else { return Ok(Taken::default()) };
    let (ours, entries) = (config.ours(), config.by_name());
    let of = |list: List, names: BTreeSet<String>| {
        let found = |name: String| entries[list as usize].get(name.as_str()).map(|entry| (name, (*entry).clone()));
        names.into_iter().filter_map(found).collect()
    };
    Ok(Taken([of(List::Clusters, ours.clusters), of(List::Contexts, ours.contexts), of(List::Users, ours.users)]))
}

/// The text with these entries in it, which were taken out of another.
pub fn put_back(text: &str, taken: &Taken) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    let document = Document::parse(text)?;
    let Some(config) = Config::of(&document)? else {
        return if taken.is_empty() { Ok(None) } else { fresh(&document, &taken.0).map(Some) };
    };
    let is_unset = matches!(config.current(), None | Some(""));
    config.with(&taken.0, if is_unset { Current::Unset } else { Current::Users })
}

/// The text without anything of ours; `None` if nothing is left then that its user could miss: no entry, no field that
/// kubectl does not write by itself, no comment.
pub fn users_part_worth_keeping(text: &str) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    let document = Document::parse(text)?;
    match Config::of(&document)? {
        Some(config) => config.kept(),
        None => Ok(text.contains('#').then(|| Zeroizing::new(text.to_owned()))),
    }
}

/// What a text holds under our names. `exists`, `owner` and `mode` are the file's and not filled in here.
pub fn inspect(text: &str, names: &EntryNames) -> Result<Inspection, KubeconfigError> {
    let document = Document::parse(text)?;
    let mut found = Inspection { parses: true, ..Inspection::default() };
    let Some(config) = Config::of(&document)? else { return Ok(found) };
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

/// [`Inspection::entries_digest`] of a text that our entries were just merged into.
pub fn entries_digest(text: &str, names: &EntryNames) -> Result<Option<String>, KubeconfigError> {
    Ok(inspect(text, names)?.entries_digest)
}

/// Fields of `clusters[].cluster` that would overrule what we write: another CA, or none.
const CLUSTER_CONTRADICTIONS: [&str; 2] = ["certificate-authority", "insecure-skip-tls-verify"];
/// Fields that [`merge`] writes into a cluster.
const CLUSTER_FIELDS: [&str; 4] = ["certificate-authority-data", "proxy-url", "server", "tls-server-name"];
/// Fields that [`merge`] writes into a context.
const CONTEXT_FIELDS: [&str; 3] = ["cluster", "namespace", "user"];
/// Fields of `users[].user` that do not make a credential of their own.
const USER_FIELDS: [&str; 3] = ["client-certificate-data", "client-key-data", "extensions"];

type Pairs = Vec<(Node, Node)>;
/// For each [`List`], by name: the fields within the entry that we write, or all of an entry.
type Wanted = [Vec<(String, Node)>; 3];

fn names(names: &[String]) -> BTreeSet<&str> {
    names.iter().map(String::as_str).collect()
}

fn name_of(entry: &Node) -> Option<&str> {
    entry.get("name").and_then(Node::text)
}

/// What is to stand in each list, in the order in which new entries are added. A field that is null is not to be there.
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

/// Fields of an entry that are ours to write: what stands there of them otherwise goes.
fn is_managed(list: List, field: &str) -> bool {
    match list {
        List::Clusters => CLUSTER_FIELDS.contains(&field),
        List::Contexts => CONTEXT_FIELDS.contains(&field),
        List::Users => field != "extensions",
    }
}

/// Fields of `users[].user`; whatever else stands there would be another credential, and goes.
fn user_fields(user: &UserEntry) -> Vec<(&'static str, Option<Node>)> {
    match &user.proof {
        UserProof::Certificate { certificate_pem, key_pem } => vec![
            ("client-certificate-data", Some(Node::string(STANDARD.encode(certificate_pem)))),
            ("client-key-data", Some(Node::string(STANDARD.encode(key_pem.expose())))),
        ],
        // From where the kubeconfig is (client-go, `clientcmd.ResolveLocalPaths`): hosts see homes at other places.
        UserProof::Token(_) => vec![("tokenFile", Some(Node::string(format!("{}/{TOKEN}", user.name))))],
        UserProof::Login(login) => vec![("exec", Some(plugin("kubectl", &login.arguments(), "IfAvailable")))],
        UserProof::Notice(notice) => vec![("exec", Some(plugin("sh", &notice.arguments(), "Never")))],
    }
}

/// `users[].user.exec`.
fn plugin(command: &str, arguments: &[String], mode: &str) -> Node {
    let text = |key: &str, value: &str| (Node::string(key), Node::string(value));
    Node::mapping(vec![
        text("apiVersion", "client.authentication.k8s.io/v1"),
        (Node::string("args"), Node::sequence(arguments.iter().map(Node::string).collect())),
        text("command", command),
        text("interactiveMode", mode),
    ])
}

/// A file without anything: a whole one, as `kubectl config` makes it.
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

/// Whose `current-context` is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Current {
    /// Nobody's: it becomes our first.
    Unset,
    /// It named an entry of ours that is gone.
    Ours,
    Users,
}

/// What is left of the lists that entries were taken out of.
type Left<'d> = Vec<(List, Vec<&'d Node>)>;

/// Which entries go.
struct Gone<'a> {
    /// All of these names.
    names: [BTreeSet<&'a str>; 3],
    /// All entries of these names but the first: client-go refuses a file with two.
    once: [BTreeSet<&'a str>; 3],
}

impl<'a> Gone<'a> {
    fn all(ours: &'a OurEntries) -> Self {
        let lists = [&ours.clusters, &ours.contexts, &ours.users];
        Self {
            names: lists.map(|names| names.iter().map(String::as_str).collect()),
            once: [const { BTreeSet::new() }; 3],
        }
    }
}

/// A kubeconfig in which something stands, checked to be something that we can edit.
struct Config<'d> {
    document: &'d Document<'d>,
    root: &'d Node,
    pairs: &'d Pairs,
}

impl<'d> Config<'d> {
    fn of(document: &'d Document<'d>) -> Result<Option<Self>, KubeconfigError> {
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

    /// `current-context`, if it says one.
    fn current(&self) -> Option<&'d str> {
        self.pair("current-context").filter(|(_, value)| !value.is_null()).and_then(|(_, value)| value.text())
    }

    /// What is ours, of whichever cluster: said by our users.
    fn ours(&self) -> OurEntries {
        let standing = self.standing();
        let entries = items(self.list(List::Users)).iter().filter_map(name_of).filter(|name| is_our_user(name));
        let users: BTreeSet<String> = entries.chain(standing.our_users()).map(str::to_owned).collect();
        let EntryNames { clusters, contexts, user: _ } = standing.all_of_ours();
        OurEntries { users, clusters: clusters.into_iter().collect(), contexts: contexts.into_iter().collect() }
    }

    fn standing(&self) -> Standing<'d> {
        Standing::of(items(self.list(List::Contexts)), items(self.list(List::Clusters)))
    }

    /// The first entry of each name.
    fn by_name(&self) -> [BTreeMap<&'d str, &'d Node>; 3] {
        List::ALL.map(|list| {
            let named = items(self.list(list)).iter().rev().filter_map(|entry| Some((name_of(entry)?, entry)));
            named.collect()
        })
    }

    /// See [`users_part_worth_keeping`].
    fn kept(&self) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
        let text = self.document.text;
        let ours = self.ours();
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
        let (edits, _) = self.removal(&Gone::all(&ours))?;
        Ok(Some(if edits.is_empty() { Zeroizing::new(text.to_owned()) } else { edits.apply()? }))
    }

    /// The text without some entries; `None` if there are none of them.
    fn without(&self, gone: &Gone<'_>) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
        let (edits, left) = self.removal(gone)?;
        let goes = |current: &&str| gone.names[List::Contexts as usize].contains(*current);
        let current = self.current().map(|current| if goes(&current) { "" } else { current });
        self.applied(edits, &left, current)
    }

    /// The edits that take some entries out, and what is left of the lists that they are in.
    fn removal(&self, gone: &Gone<'_>) -> Result<(Edits<'d>, Left<'d>), KubeconfigError> {
        let mut edits = Edits::new(self.document);
        let mut left = Vec::new();
        for list in List::ALL {
            let Some((key, found)) = self.pair(list.key()) else { continue };
            let mut seen = BTreeSet::new();
            let goes = |entry: &Node| {
                name_of(entry).is_some_and(|name| {
                    gone.names[list as usize].contains(name)
                        || (gone.once[list as usize].contains(name) && !seen.insert(name.to_owned()))
                })
            };
            let all = items(Some(found));
            let goes: Vec<bool> = all.iter().map(goes).collect();
            let positions: Vec<usize> = (0..all.len()).filter(|position| goes[*position]).collect();
            if !positions.is_empty() {
                edits.remove((key, found), &positions)?;
                left.push((list, all.iter().zip(goes).filter(|(_, goes)| !goes).map(|(entry, _)| entry).collect()));
            }
        }
        if let Some((key, value)) = self.pair("current-context")
            && value.text().is_some_and(|current| gone.names[List::Contexts as usize].contains(current))
        {
            edits.set(key, value, &Node::untagged(Value::Scalar(String::new(), Style::Quoted)))?;
        }
        Ok((edits, left))
    }

    /// The text with these entries; `None` if they are there, just so.
    fn with(&self, wanted: &Wanted, current: Current) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
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

    /// Each wanted entry as it is to stand there, and its position if one of its name does: that one keeps its place, and of
    /// its inner fields those that [`List::keeps`] lets stay.
    fn entries(&self, list: List, wanted: &[(String, Node)]) -> Vec<(Option<usize>, Node)> {
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

    /// The edited text, if it reads as it should: the lists and `current-context` as given, all else as before.
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

/// A text that we edited, as a document. If it is none, that is not the user's doing.
fn again(text: &str) -> Result<Document<'_>, DocumentError> {
    Document::parse(text).map_err(|_| DocumentError::NotWritable)
}

/// Whether an entry has one of the keys twice by which it is told whose it is: readers take one or the other.
fn says_twice(list: List, entry: &Node) -> bool {
    let twice = |node: &Node, key: &str| match &node.value {
        Value::Mapping(pairs) => pairs.iter().filter(|(name, _)| name.text() == Some(key)).count() > 1,
        _ => false,
    };
    let within = |key: &str| entry.get(list.inner()).is_some_and(|inner| twice(inner, key));
    twice(entry, "name") || twice(entry, list.inner()) || ["cluster", "user", "server"].into_iter().any(within)
}

/// An entry that is there, saying what we manage.
fn merged(list: List, found: &Node, wanted: &Node) -> Node {
    let Value::Mapping(pairs) = &found.value else { return wanted.clone() };
    let mut outer = pairs.clone();
    let fields = |entry: &Node| match entry.get(list.inner()).map(|inner| &inner.value) {
        Some(Value::Mapping(fields)) => fields.clone(),
        _ => Vec::new(),
    };
    let (mut inner, new) = (fields(found), fields(wanted));
    let is_wanted = |key: &str| new.iter().any(|(name, _)| name.text() == Some(key));
    inner
        .retain(|(key, _)| key.text().is_some_and(|key| is_wanted(key) || (list.keeps(key) && !is_managed(list, key))));
    for (key, value) in new {
        set(&mut inner, key.text().unwrap_or_default(), value);
    }
    set(&mut outer, list.inner(), Node::mapping(inner));
    Node { tag: found.tag.clone(), ..Node::mapping(outer) }
}

/// Sets a key once, in its place.
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

/// SHA-256 over what we manage of the entries under our names, and over what contradicts it.
fn digest(entries: &[BTreeMap<&str, &Node>; 3], names: &EntryNames) -> Option<String> {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        // Length first, so that two lists of parts never hash alike.
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
        for field in CONTEXT_FIELDS {
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
            // The value of every other field stays out of the digest: it may be a secret.
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
