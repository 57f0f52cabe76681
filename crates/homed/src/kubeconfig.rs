//! Our entries into a user's kubeconfig, and out of it again, without touching what is the user's.
//!
//! Text in, text out; no file and no clock. Entries are found by our names. Everything else keeps its content and
//! its order: other entries, unknown fields, extensions, preferences, and `current-context` if it names a context
//! that exists. Format: `k8s.io/client-go/tools/clientcmd/api/v1.Config`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bursar_protocol::{EntryNames, Inspection, KubeconfigEntries, TOKEN, UserEntry, UserProof};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::document::{Document, DocumentError, Language, Node, Value};
use crate::{keypair, ownership};

/// Why a text cannot be merged into.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KubeconfigError {
    /// It cannot be read, or not be written again.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// It can, and is something else than a kubeconfig.
    #[error("{0}")]
    Shape(&'static str),
    /// What stands under one of our names is the user's own.
    #[error("{0} in it is not ours")]
    Foreign(String),
}

/// The text with our entries in it; `None` if they are there already, just so. `taken`: names that are ours, whoever
/// wrote what stands there.
pub fn merge(
    text: &str,
    entries: &KubeconfigEntries,
    taken: &[String],
) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    change(text, |pairs| {
        if let Some(foreign) = ownership::foreign(pairs, entries, taken) {
            return Err(KubeconfigError::Foreign(foreign));
        }
        let stale = ownership::stale(pairs, entries);
        list(pairs, "contexts")?.retain(|entry| !is_one_of(entry, &stale.contexts));
        let clusters = list(pairs, "clusters")?;
        clusters.retain(|entry| !is_one_of(entry, &stale.clusters));
        for cluster in &entries.clusters {
            let fields = [
                ("certificate-authority-data", Some(Node::string(STANDARD.encode(&cluster.ca_pem)))),
                ("proxy-url", cluster.proxy.as_ref().map(Node::string)),
                ("server", Some(Node::string(&cluster.server))),
                ("tls-server-name", cluster.tls_server_name.as_ref().map(Node::string)),
            ];
            upsert(clusters, "cluster", &cluster.name, &fields, |field| !CLUSTER_CONTRADICTIONS.contains(&field));
        }
        let contexts = list(pairs, "contexts")?;
        for context in &entries.contexts {
            let fields = [
                ("cluster", Some(Node::string(&context.cluster))),
                ("namespace", context.namespace.as_ref().map(Node::string)),
                ("user", Some(Node::string(&context.user))),
            ];
            upsert(contexts, "context", &context.name, &fields, |_| true);
        }
        let fields = user_fields(&entries.user);
        upsert(list(pairs, "users")?, "user", &entries.user.name, &fields, |field| field == "extensions");
        choose_current_context(pairs, entries);
        Ok(())
    })
}

/// The text without the entries of these names that are ours; `None` if there are none.
pub fn remove(text: &str, names: &EntryNames) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    if Document::parse(text)?.root.is_none() {
        return Ok(None);
    }
    change(text, |pairs| {
        let names = &ownership::all_of(pairs, names);
        let is_current_ours = value(pairs, "current-context")
            .and_then(Node::text)
            .is_some_and(|current| names.contexts.iter().any(|name| name == current));
        for (key, ours) in [
            ("clusters", names.clusters.as_slice()),
            ("contexts", names.contexts.as_slice()),
            ("users", std::slice::from_ref(&names.user)),
        ] {
            if value(pairs, key).is_some_and(|list| !list.is_null()) {
                list(pairs, key)?.retain(|entry| !is_one_of(entry, ours));
            }
        }
        if is_current_ours {
            pairs.retain(|(key, _)| key.text() != Some("current-context"));
        }
        Ok(())
    })
}

/// What a text holds under our names. `exists`, `owner` and `mode` are the file's and not filled in here.
pub fn inspect(text: &str, names: &EntryNames) -> Result<Inspection, KubeconfigError> {
    let document = Document::parse(text)?;
    let empty = Vec::new();
    let pairs = match &document.root {
        Some(root) => top_level(root)?,
        None => &empty,
    };
    let mut found = Inspection { parses: true, ..Inspection::default() };
    if let Some(user) = entry(pairs, "users", &names.user).and_then(|entry| entry.get("user")) {
        let decoded = |field| {
            let text = user.get(field)?.text()?;
            Some(Zeroizing::new(STANDARD.decode(text.trim()).ok()?))
        };
        if let Some(certificate) = decoded("client-certificate-data").and_then(|pem| keypair::certificate(&pem)) {
            found.key_matches = decoded("client-key-data").is_some_and(|key| keypair::belongs_to(&key, &certificate));
            found.certificate_pem = Some(certificate.pem);
        }
    }
    found.current_context = value(pairs, "current-context")
        .and_then(Node::text)
        .filter(|current| names.contexts.iter().any(|name| name == current))
        .map(str::to_owned);
    found.entries_digest = digest(pairs, names);
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

/// Fields of `users[].user`; whatever else stands there would be another credential, and goes.
fn user_fields(user: &UserEntry) -> Vec<(&'static str, Option<Node>)> {
    match &user.proof {
        UserProof::Certificate { certificate_pem, key_pem } => vec![
            ("client-certificate-data", Some(Node::string(STANDARD.encode(certificate_pem)))),
            ("client-key-data", Some(Node::string(STANDARD.encode(key_pem.expose())))),
        ],
        // From where the kubeconfig is (client-go, `clientcmd.ResolveLocalPaths`): hosts see homes at other places.
        UserProof::Token(_) => vec![("tokenFile", Some(Node::string(format!("{}/{TOKEN}", user.name))))],
        UserProof::Login(login) => {
            let text = |key: &str, value: &str| (Node::string(key), Node::string(value));
            let arguments = login.arguments().iter().map(Node::string).collect();
            vec![(
                "exec",
                Some(Node::mapping(vec![
                    text("apiVersion", "client.authentication.k8s.io/v1"),
                    (Node::string("args"), Node::sequence(arguments)),
                    text("command", "kubectl"),
                    text("interactiveMode", "IfAvailable"),
                ])),
            )]
        }
    }
}

fn change(
    text: &str,
    edit: impl FnOnce(&mut Pairs) -> Result<(), KubeconfigError>,
) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    let before = Document::parse(text)?;
    let language = before.language;
    let mut pairs = match &before.root {
        Some(root) => top_level(root)?.clone(),
        None => new_config(),
    };
    edit(&mut pairs)?;
    let tag = before.root.as_ref().and_then(|root| root.tag.clone());
    let after = Document { language, root: Some(Node { tag, value: Value::Mapping(pairs) }) };
    // An empty text is no JSON, whatever its file's name.
    debug_assert!(before.root.is_some() || after.language == Language::Yaml || text.trim() == "null");
    if after.root == before.root {
        return Ok(None);
    }
    Ok(Some(Zeroizing::new(after.write()?)))
}

/// The top level, checked to be something that we can edit.
fn top_level(root: &Node) -> Result<&Pairs, KubeconfigError> {
    let Value::Mapping(pairs) = &root.value else {
        return Err(KubeconfigError::Shape("its top level is not a mapping"));
    };
    for key in ["clusters", "contexts", "users", "current-context"] {
        if pairs.iter().filter(|(name, _)| name.text() == Some(key)).count() > 1 {
            return Err(KubeconfigError::Shape("one of its top-level keys is there twice"));
        }
    }
    if pairs.iter().any(|(name, _)| name.text() == Some("<<")) {
        return Err(KubeconfigError::Shape("its top level is merged from elsewhere (`<<`)"));
    }
    Ok(pairs)
}

/// As `kubectl config` makes one.
fn new_config() -> Pairs {
    let pair = |key: &str, value| (Node::string(key), value);
    vec![
        pair("apiVersion", Node::string("v1")),
        pair("clusters", Node::sequence(Vec::new())),
        pair("contexts", Node::sequence(Vec::new())),
        pair("current-context", Node::string("")),
        pair("kind", Node::string("Config")),
        pair("preferences", Node::mapping(Vec::new())),
        pair("users", Node::sequence(Vec::new())),
    ]
}

fn value<'a>(pairs: &'a Pairs, key: &str) -> Option<&'a Node> {
    pairs.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
}

/// The list under a top-level key, made if it is not there or null (as kubectl writes empty ones).
fn list<'a>(pairs: &'a mut Pairs, key: &str) -> Result<&'a mut Vec<Node>, KubeconfigError> {
    let position = pairs.iter().position(|(name, _)| name.text() == Some(key)).unwrap_or_else(|| {
        pairs.push((Node::string(key), Node::sequence(Vec::new())));
        pairs.len() - 1
    });
    let node = &mut pairs[position].1;
    if node.is_null() {
        *node = Node::sequence(Vec::new());
    }
    match &mut node.value {
        Value::Sequence(items) => Ok(items),
        _ => Err(KubeconfigError::Shape("its clusters, contexts or users are not a list")),
    }
}

fn is_one_of(entry: &Node, names: &[String]) -> bool {
    entry.get("name").and_then(Node::text).is_some_and(|name| names.iter().any(|ours| ours == name))
}

fn entry<'a>(pairs: &'a Pairs, key: &str, name: &str) -> Option<&'a Node> {
    match &value(pairs, key)?.value {
        Value::Sequence(items) => items.iter().find(|item| item.get("name").and_then(Node::text) == Some(name)),
        _ => None,
    }
}

/// Makes one entry say what we manage. An entry that is there keeps its place, and of its inner fields those that
/// `keeps` lets stay; further entries of the same name are dropped (client-go refuses such a file).
fn upsert(
    items: &mut Vec<Node>,
    inner_key: &str,
    name: &str,
    fields: &[(&str, Option<Node>)],
    keeps: impl Fn(&str) -> bool,
) {
    let is_ours = |item: &Node| item.get("name").and_then(Node::text) == Some(name);
    let position = items.iter().position(is_ours);
    let mut outer: Pairs = match position.map(|position| &items[position].value) {
        Some(Value::Mapping(pairs)) => pairs.clone(),
        _ => vec![(Node::string(inner_key), Node::mapping(Vec::new())), (Node::string("name"), Node::string(name))],
    };
    let mut inner: Pairs = match value(&outer, inner_key).map(|inner| &inner.value) {
        Some(Value::Mapping(pairs)) => pairs.clone(),
        _ => Vec::new(),
    };
    let is_managed = |key: &str| fields.iter().any(|(field, _)| *field == key);
    inner.retain(|(key, _)| key.text().is_some_and(|key| is_managed(key) || (keeps(key) && key != "<<")));
    for (field, wanted) in fields {
        set(&mut inner, field, wanted.clone());
    }
    set(&mut outer, inner_key, Some(Node::mapping(inner)));
    let entry = Node::mapping(outer);
    match position {
        Some(position) => {
            items[position] = entry;
            let mut index = 0;
            items.retain(|item| {
                index += 1;
                index - 1 <= position || !is_ours(item)
            });
        }
        None => items.push(entry),
    }
}

/// Sets a key once, in its place, or removes it.
fn set(pairs: &mut Pairs, key: &str, wanted: Option<Node>) {
    let position = pairs.iter().position(|(name, _)| name.text() == Some(key));
    let mut index = 0;
    pairs.retain(|(name, _)| {
        index += 1;
        name.text() != Some(key) || (wanted.is_some() && Some(index - 1) == position)
    });
    match (wanted, position) {
        (Some(node), Some(position)) => pairs[position].1 = node,
        (Some(node), None) => pairs.push((Node::string(key), node)),
        (None, _) => {}
    }
}

/// `current-context` stays if it names a context that exists; otherwise it becomes our first.
fn choose_current_context(pairs: &mut Pairs, entries: &KubeconfigEntries) {
    let is_good = value(pairs, "current-context")
        .and_then(Node::text)
        .is_some_and(|current| !current.is_empty() && entry(pairs, "contexts", current).is_some());
    if let (false, Some(first)) = (is_good, entries.contexts.first()) {
        set(pairs, "current-context", Some(Node::string(&first.name)));
    }
}

/// SHA-256 over what we manage of the entries under our names, and over what contradicts it.
fn digest(pairs: &Pairs, names: &EntryNames) -> Option<String> {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        // Length first, so that two lists of parts never hash alike.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    let text = |inner: &Node, field: &str| inner.get(field).and_then(Node::text).unwrap_or_default().to_owned();
    for name in &names.clusters {
        let inner = entry(pairs, "clusters", name)?.get("cluster")?;
        add(name);
        for field in CLUSTER_FIELDS.iter().chain(&CLUSTER_CONTRADICTIONS) {
            add(&text(inner, field));
        }
    }
    for name in &names.contexts {
        let inner = entry(pairs, "contexts", name)?.get("context")?;
        add(name);
        for field in CONTEXT_FIELDS {
            add(&text(inner, field));
        }
    }
    let user = entry(pairs, "users", &names.user)?.get("user")?;
    add(&names.user);
    if let Value::Mapping(fields) = &user.value {
        for (field, value) in
            fields.iter().filter(|(field, _)| !USER_FIELDS.contains(&field.text().unwrap_or_default()))
        {
            let field = field.text().unwrap_or_default();
            add(field);
            // Of the value of any other nothing is told: it may be a secret.
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
