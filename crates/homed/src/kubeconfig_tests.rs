//! Tests of the merge: our entries are added and removed, and the rest of a kubeconfig stays as it was.

use std::fmt::Write as _;

use bursar_protocol::{ClusterEntry, ContextEntry, SecretText, UserEntry, UserProof};
use proptest::prelude::*;

use super::*;
use crate::document::tests::{any_node, written};

fn merge(
    text: &str,
    entries: &KubeconfigEntries,
    taken: &[String],
) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
    deliver(text, entries, taken).map(|delivered| delivered.text)
}

fn entries_digest(text: &str, names: &EntryNames) -> Result<Option<String>, KubeconfigError> {
    Ok(inspect(text, names)?.entries_digest)
}

fn entries() -> KubeconfigEntries {
    let cluster = |name: &str, server: &str| ClusterEntry {
        name: name.into(),
        server: server.into(),
        ca_pem: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(),
        tls_server_name: None,
        proxy: None,
    };
    let context = |name: &str| ContextEntry {
        name: name.into(),
        cluster: name.into(),
        user: "bursar-prod".into(),
        namespace: Some("tool-foo".into()),
    };
    KubeconfigEntries {
        clusters: vec![
            cluster("toolforge", "https://10.0.0.1:6443"),
            cluster("toolforge-ext", "https://k8s.example.org:6443"),
        ],
        user: UserEntry {
            name: "bursar-prod".into(),
            proof: UserProof::Certificate {
                certificate_pem: "not a certificate".into(),
                key_pem: SecretText::new("not a key".into()),
            },
        },
        contexts: vec![context("toolforge"), context("toolforge-ext")],
    }
}

fn merged(text: &str) -> String {
    merge(text, &entries(), &[]).expect("the text can be merged").expect("the text changes").to_string()
}

fn refused(text: &str) -> String {
    merge(text, &entries(), &[]).expect_err("the text must be refused").to_string()
}

/// Returns the top-level pairs of a file, except empty ones: a list that is null or empty, and an empty
/// `current-context`, count as missing.
fn content(text: &str) -> Vec<(Node, Node)> {
    let Some(root) = Document::parse(text).expect("the text parses").root else { return Vec::new() };
    let Value::Mapping(mut pairs) = root.value else { panic!("not a mapping") };
    pairs.retain(|(key, value)| match key.text() {
        Some("clusters" | "contexts" | "users") => !value.is_null() && *value != Node::sequence(Vec::new()),
        Some("current-context") => !value.is_null() && value.text() != Some(""),
        _ => true,
    });
    pairs
}

const USERS: &str = "\
apiVersion: v1
kind: Config
clusters:
- cluster:
    server: https://other:6443
    certificate-authority: /etc/other.crt
    extensions:
    - name: mine
      extension: {a: 1}
  name: other
contexts:
- name: other
  context: {cluster: other, user: me}
current-context: other
users:
- name: me
  user:
    token: hunter2
    password: 007
preferences:
  colors: true
x-mine: [1, 2.50]
";

#[test]
fn a_new_file_is_what_kubectl_would_write() {
    let text = merged("");
    assert!(text.starts_with("apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: "), "{text}");
    assert!(text.contains("\n    server: https://10.0.0.1:6443\n  name: toolforge\n"), "{text}");
    assert!(text.contains("\ncurrent-context: toolforge\nkind: Config\npreferences: {}\nusers:\n"), "{text}");
    let config: kube::config::Kubeconfig = kube::config::Kubeconfig::from_yaml(&text).expect("kube can read the text");
    assert_eq!(
        config.contexts[1].context.as_ref().expect("the context has content").namespace.as_deref(),
        Some("tool-foo")
    );
}

#[test]
fn the_users_entries_and_current_context_stay() {
    let text = merged(USERS);
    let (before, after) = (content(USERS), content(&text));
    assert_eq!(before.len(), after.len());
    for ((key, value), (key_after, value_after)) in before.iter().zip(&after) {
        assert_eq!(key, key_after);
        match (&value.value, &value_after.value) {
            (Value::Sequence(items), Value::Sequence(items_after)) if key.text() != Some("x-mine") => {
                assert_eq!(items[..], items_after[..items.len()]);
            }
            _ => assert_eq!(value, value_after),
        }
    }
    assert!(text.contains("password: 007\n"));
    assert!(text.contains("x-mine: [1, 2.50]\n"));
    assert!(text.contains("current-context: other\n"));
}

#[test]
fn a_current_context_is_set_where_there_is_none_or_an_empty_one() {
    for text in
        ["contexts: null\ncurrent-context: ~\n", "current-context: \"\"\n", "current-context:   # mine\n", "x: 1\n"]
    {
        assert!(merged(text).contains("current-context: toolforge"), "{}", merged(text));
    }
    assert!(
        merged("current-context: gone # mine\n").contains("current-context: gone # mine\n"),
        "the user's current-context stays, even if that context does not exist"
    );
    let mut ours = entries();
    ours.user.name = "bursar-toolforge".into();
    ours.contexts.iter_mut().for_each(|context| context.user = "bursar-toolforge".into());
    let ours = merge("", &ours, &[]).expect("the text can be merged").expect("the text changes");
    let taken = take(&ours).expect("the text can be read");
    // These are the user's choice too.
    for text in ["x: &a mine\ncurrent-context: *a\n", "current-context: !!str null\nx: 1\n", "current-context: [a]\n"] {
        assert!(merged(text).starts_with(text), "{}", merged(text));
        let restored = put_back(text, &taken).expect("the text can be merged").expect("the text changes");
        assert!(restored.starts_with(text), "{}", *restored);
    }
    for text in ["current-context: |\n  \nx: 1\n", "current-context: >-\n\n\nx: 1\n", "current-context: |\n"] {
        assert_eq!(refused(text), DocumentError::NotWritable.to_string(), "{text}");
    }
    let context = "contexts:\n- {name: prod-old, context: {cluster: prod-old, user: bursar-prod}}\n";
    let ours_in_a_block = format!("current-context: |-\n  prod-old\n{context}");
    assert_eq!(refused(&ours_in_a_block), DocumentError::NotWritable.to_string());
}

#[test]
fn a_current_context_that_cannot_be_edited_does_not_keep_our_key_in_the_file() {
    for current in ["current-context: |-\n  toolforge\n", "current-context: &a toolforge\nx: *a\n"] {
        let text = merged(current);
        let removed = remove(&text, &entries().names()).expect("the entries can be removed").expect("the text changes");
        assert!(removed.starts_with(current) && !removed.contains("bursar-prod"), "{}", *removed);
    }
}

/// Removes our user from a text, as a suspension does.
fn without_user(text: &str) -> Option<Zeroizing<String>> {
    let names = EntryNames { user: "bursar-prod".into(), ..EntryNames::default() };
    remove(text, &names).expect("the entries can be removed")
}

#[test]
fn our_key_is_removed_even_if_its_entry_cannot_be() {
    for own in ["    note: |\n      text\n", "    note: >+\n      text\n\n"] {
        let own = format!("users:\n  - name: me\n{own}");
        let behind = "      # mine\n  - name: more\n";
        let text = format!("{own}  - name: bursar-prod\n    user:\n      client-key-data: a2V5\n{behind}");
        let removed = without_user(&text).expect("the text changes");
        assert_eq!(*removed, format!("{own}  - {{\"name\": \"bursar-prod\", \"user\": {{}}}}\n{behind}"));
        assert!(has_a_credential(&text).expect("the text parses") && !has_a_credential(&removed).expect("it parses"));
        assert_eq!(without_user(&removed), None);
        // The copy of the user's part has the same comment outside the block scalar.
        let delivered = deliver(&text, &entries(), &[]).expect("the text can be merged");
        assert_eq!(*delivered.kept.expect("the user has an entry"), *removed);
        assert!(
            merge(&removed, &entries(), &[]).expect("the text can be merged").expect("it changes").contains(behind)
        );
    }
}

#[test]
fn what_follows_a_block_scalar_at_the_end_of_our_entry_stays() {
    let text = "users:\n  - name: bursar-prod\n    user: {}\n    extensions: |\n      x\n  # mine\n  - name: me\n    user: {token: t}\n";
    let left = "users:\n  # mine\n  - name: me\n    user: {token: t}\n";
    assert_eq!(*without_user(text).expect("the text changes"), left);
}

#[test]
fn our_user_entry_holds_our_credential_only() {
    let text = merged(
        "users:\n- name: bursar-prod\n  user: {token: old, exec: {command: x}, extensions: [1]}\n- {name: bursar-prod, user: {token: twice}}\n- name: z\n",
    );
    assert!(!text.contains("token") && !text.contains("exec"), "{text}");
    assert!(text.contains("extensions:\n    - 1"), "{text}");
    assert_eq!(text.matches("name: bursar-prod\n").count(), 1, "{text}");
    assert!(text.contains("- name: z\n"), "{text}");
}

#[test]
fn our_cluster_entry_trusts_our_ca_only() {
    let text = merged(
        "contexts:\n- {name: toolforge, context: {cluster: toolforge, user: bursar-prod}}\nclusters:\n- name: toolforge\n  cluster: {insecure-skip-tls-verify: true, certificate-authority: /tmp/x, disable-compression: true, proxy-url: http://evil}\n",
    );
    assert!(!text.contains("insecure") && !text.contains("/tmp/x") && !text.contains("evil"), "{text}");
    assert!(text.contains("disable-compression: true"), "{text}");
}

#[test]
fn json_kubeconfigs_stay_json() {
    let text = merged(r#"{"apiVersion":"v1","kind":"Config","users":[{"name":"me","user":{"token":"t"}}],"n":1.50}"#);
    let value: serde_json::Value = serde_json::from_str(&text).expect("the text is JSON");
    assert_eq!(value["users"][0]["user"]["token"], "t");
    assert_eq!(value["users"][1]["name"], "bursar-prod");
    assert!(text.contains("1.50"));
}

#[test]
fn a_file_that_is_not_a_kubeconfig_is_refused() {
    for text in [
        "- a\n",
        "hello",
        "clusters: 1\n",
        "clusters: {}\n",
        "users: []\nusers: []\n",
        "<<: {a: 1}\n",
        "a: b: c\n",
        "\u{0}",
    ] {
        assert!(merge(text, &entries(), &[]).is_err(), "{text:?}");
    }
}

#[test]
fn removal_takes_our_entries_and_our_current_context() {
    let text = merged("");
    let removed = remove(&text, &entries().names()).expect("the entries can be removed").expect("the text changes");
    assert!(!removed.contains("tool") && !removed.contains("bursar"), "{}", *removed);
    assert_eq!(remove(&removed, &entries().names()).expect("the entries can be removed"), None);
    assert_eq!(remove("", &entries().names()).expect("the entries can be removed"), None);
}

#[test]
fn digest_changes_with_our_entries_and_with_nothing_else() {
    let names = entries().names();
    let written =
        entries_digest(&merged(""), &names).expect("the text can be inspected").expect("the text has all entries");
    assert_eq!(entries_digest(&merged(USERS), &names).expect("the text can be inspected"), Some(written.clone()));
    let bent = merged("").replace("https://10.0.0.1:6443", "https://10.0.0.2:6443");
    assert_ne!(entries_digest(&bent, &names).expect("the text can be inspected"), Some(written));
    assert_eq!(entries_digest(USERS, &names).expect("the text can be inspected"), None);
}

#[test]
fn inspection_finds_a_matching_pair_and_returns_no_key() {
    let key = rcgen::KeyPair::generate().expect("ring makes a key");
    let certificate = rcgen::CertificateParams::new(vec![])
        .expect("the parameters are valid")
        .self_signed(&key)
        .expect("the certificate can be signed");
    let mut ours = entries();
    let pair = |certificate_pem: String, key_pem: String| UserProof::Certificate {
        certificate_pem,
        key_pem: SecretText::new(key_pem),
    };
    ours.user.proof = pair(certificate.pem(), key.serialize_pem());
    let text = merge(USERS, &ours, &[]).expect("the text can be merged").expect("the text changes");
    let found = inspect(&text, &ours.names()).expect("the text can be inspected");
    assert!(found.parses && found.key_matches);
    assert_eq!(found.current_context, None, "the current context is the user's");
    let same = |a: &str, b: &str| a.split_whitespace().eq(b.split_whitespace());
    assert!(same(found.certificate_pem.as_deref().expect("the entry has a certificate"), &certificate.pem()));

    let other = rcgen::KeyPair::generate().expect("ring makes a key").serialize_pem();
    ours.user.proof = pair(certificate.pem(), other.clone());
    let text = merge(&text, &ours, &[]).expect("the text can be merged").expect("the text changes");
    assert!(!inspect(&text, &ours.names()).expect("the text can be inspected").key_matches);

    // If a key stands in the place of the certificate, it is not returned.
    ours.user.proof = pair(key.serialize_pem(), other);
    let text = merge(&text, &ours, &[]).expect("the text can be merged").expect("the text changes");
    assert_eq!(inspect(&text, &ours.names()).expect("the text can be inspected").certificate_pem, None);
}

#[test]
fn entries_that_a_user_named_like_ours_stay_the_users() {
    let context = "contexts:\n- {name: toolforge, context: {cluster: mine, user: me}}\n";
    assert_eq!(refused(context), "context `toolforge` in it is not Bursar's");
    let without_user = "contexts:\n- {name: toolforge, context: {cluster: mine}}\n";
    assert_eq!(refused(without_user), "context `toolforge` in it is not Bursar's");
    let cluster = "clusters:\n- {name: toolforge, cluster: {server: 'https://mine'}}\n";
    assert_eq!(refused(cluster), "cluster `toolforge` in it is not Bursar's");
    let used = "clusters:\n- {name: toolforge, cluster: {server: 'https://10.0.0.1:6443'}}\ncontexts:\n- {name: x, context: {cluster: toolforge, user: me}}\n";
    assert_eq!(refused(used), "cluster `toolforge` in it is not Bursar's");
    for text in [context, without_user, cluster, used] {
        assert_eq!(remove(text, &entries().names()).expect("the entries can be removed"), None, "{text}");
        merge(text, &entries(), &["toolforge".to_owned()]).expect("the names count as ours").expect("the text changes");
    }
}

#[test]
fn removal_finds_what_we_wrote_by_our_user() {
    let mut ours = entries();
    ours.user.name = "bursar-toolforge".into();
    ours.contexts.iter_mut().for_each(|context| context.user = "bursar-toolforge".into());
    let theirs = "contexts:\n- {name: toolforge-mine, context: {cluster: elsewhere, user: bursar-toolforge}}\n\
                  - {name: toolforge-theirs, context: {cluster: toolforge-theirs, user: me}}\n";
    let text = merge(theirs, &ours, &[]).expect("the text can be merged").expect("the text changes");
    let names = EntryNames { user: ours.user.name, ..EntryNames::default() };
    let removed = remove(&text, &names).expect("the entries can be removed").expect("the text changes");
    assert!(content(&removed) == content(theirs), "{}", *removed);
}

#[test]
fn fields_that_a_user_adds_leave_our_entries_ours() {
    let ours = merged("");
    let dropped = remove(&ours, &EntryNames { contexts: vec!["toolforge".into()], ..EntryNames::default() });
    let left = dropped.expect("the entries can be removed").expect("the text changes");
    assert_eq!(
        merged(&left).matches("name: toolforge\n").count(),
        2,
        "a cluster that no context uses and that has our server is ours"
    );
    let text = ours.replace("contexts:\n", "contexts:\n- {name: mine, context: {cluster: toolforge, user: me}}\n");
    let mut moved = entries();
    moved.clusters[0].server = "https://10.0.0.9:6443".into();
    let text = merge(&text, &moved, &[]).expect("the text can be merged").expect("the text changes");
    assert!(text.contains("https://10.0.0.9:6443"));
    let removed = remove(&text, &moved.names()).expect("the entries can be removed").expect("the text changes");
    assert!(removed.contains("https://10.0.0.9:6443") && !removed.contains("bursar-prod"), "{}", *removed);
}

#[test]
fn names_that_cannot_be_ours_are_refused() {
    let with_user = |user: &str| EntryNames { user: user.into(), contexts: vec!["x".into()], ..EntryNames::default() };
    assert!(with_user("bursar-prod").check().is_ok());
    for user in ["me", "", "Bursar-prod", "bursar-a\nb"] {
        assert!(with_user(user).check().is_err(), "{user}");
    }
    assert!(EntryNames { contexts: vec!["a".repeat(254)], ..with_user("bursar-prod") }.check().is_err());
}

/// Returns a null, as the parser makes it.
fn null() -> Node {
    let root = Document::parse("a: null").expect("the text parses").root.expect("the document has a root");
    root.get("a").expect("the mapping has the key").clone()
}

/// Generates a user's file: entries with other names and any fields in any order; lists may be missing or null.
fn any_config() -> impl Strategy<Value = Node> {
    let entry = ("[a-z]{1,6}", any_node(), any_node()).prop_map(|(name, inner, odd)| {
        Node::mapping(vec![
            (Node::string("odd"), odd),
            (Node::string("name"), Node::string(format!("mine-{name}"))),
            (Node::string("cluster"), inner),
        ])
    });
    let list = prop_oneof![
        3 => prop::collection::vec(entry, 0..4).prop_map(Node::sequence),
        1 => Just(null()),
    ];
    let pairs = prop::collection::vec((prop::sample::select(vec!["clusters", "contexts", "users"]), list), 0..4);
    let others = prop::collection::vec(("x[a-z]{0,5}", any_node()), 0..4);
    let current = prop::option::of("mine-[a-z]{1,2}|toolforge|");
    (pairs, others, current).prop_map(|(pairs, others, current)| {
        let mut all: Vec<(Node, Node)> = Vec::new();
        for (key, value) in pairs {
            if !all.iter().any(|(name, _)| name.text() == Some(key)) {
                all.push((Node::string(key), value));
            }
        }
        for (key, value) in others {
            all.insert(all.len() / 2, (Node::string(key), value));
        }
        if let Some(current) = current {
            all.push((Node::string("current-context"), Node::string(current)));
        }
        Node::mapping(all)
    })
}

proptest! {
    #[test]
    fn merging_loses_nothing_and_removing_gives_the_original(root in any_config()) {
        let names = entries().names();
        let text = written(&root);
        let with_ours = merge(&text, &entries(), &[]).expect("the text can be merged").expect("the text changes");

        // A second merge changes nothing.
        prop_assert_eq!(merge(&with_ours, &entries(), &[]).expect("the text can be merged"), None);

        // Removing our entries restores the original content.
        let removed = remove(&with_ours, &names).expect("the entries can be removed").expect("the text changes");
        let mut before = content(&text);
        // A current context that had our name before the merge counts as ours, and is removed.
        before.retain(|(key, value)| key.text() != Some("current-context") || value.text() != Some("toolforge"));
        prop_assert_eq!(before, content(&removed));
        prop_assert_eq!(remove(&removed, &names).expect("the entries can be removed"), None);
    }

    #[test]
    fn our_entry_leaves_the_users_bytes_wherever_it_is(
        text in any_text_with_places(),
        place in any::<prop::sample::Index>(),
        end in prop::sample::select(vec!["", "  note: |\n        x\n", "  note: >-\n        x\n\n        y\n", "  note: # c\n"]),
    ) {
        let own = without_places(&text);
        let places: Vec<&str> = text.split_inclusive('\n').filter(|line| line.trim() == PLACE).collect();
        prop_assume!(!places.is_empty());
        let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
        let indent = " ".repeat(places[0].find(PLACE).unwrap_or_default());
        let ours = |entry: &str| {
            let entry: Vec<String> = entry.lines().map(|line| format!("{indent}{line}{newline}")).collect();
            let entry = entry.concat();
            let place = place.index(places.len());
            let mut number = 0;
            let lines = text.split_inclusive('\n').map(|line| {
                let is_place = line.trim() == PLACE;
                number += usize::from(is_place);
                if !is_place { line } else if number == place + 1 { entry.as_str() } else { "" }
            });
            lines.collect::<String>()
        };
        let with = ours(&format!("- name: bursar-prod\n  user:\n    client-key-data: a2V5\n{end}"));
        let removed = without_user(&with).expect("the text changes");
        let comment = if end.contains('#') { " # c" } else { "" };
        let emptied = |comment| ours(&format!("- {{\"name\": \"bursar-prod\", \"user\": {{}}}}{comment}"));
        prop_assert!(
            *removed == own || [emptied(""), emptied(comment)].contains(&removed),
            "{}\n=>\n{}", with, *removed
        );
    }

    #[test]
    fn everything_outside_our_entries_is_identical(text in any_text()) {
        let names = entries().names();
        let with_ours = merge(&text, &entries(), &[]).expect("the text can be merged").expect("the text changes");
        prop_assert!(is_part_of(&text, &with_ours), "{}\n=>\n{}", text, *with_ours);
        let mut renewed = entries();
        renewed.clusters[0].server = "https://10.0.0.9:6443".into();
        renewed.clusters[0].proxy = Some("http://proxy:3128".into());
        let renewed = merge(&with_ours, &renewed, &[]).expect("the text can be merged").expect("the text changes");
        prop_assert!(is_part_of(&text, &renewed), "{}\n=>\n{}", text, *renewed);
        let removed = remove(&renewed, &names).expect("the entries can be removed").expect("the text changes");
        prop_assert_eq!(&*removed, &text);
    }
}

/// Whether `of` contains all bytes of `text` in the same order. The bytes between them are ours.
fn is_part_of(text: &str, of: &str) -> bool {
    let mut bytes = of.bytes();
    text.bytes().all(|byte| bytes.any(|other| other == byte))
}

/// A line of this character marks a place for an entry among the users.
const PLACE: &str = "@";

fn without_places(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| line.trim() != PLACE).collect()
}

fn any_text() -> impl Strategy<Value = String> {
    any_text_with_places().prop_map(|text| without_places(&text))
}

/// Generates a user's file in any layout: with comments, CRLF, and lists that are indented, on one line, or in JSON
/// style.
fn any_text_with_places() -> impl Strategy<Value = String> {
    let note = prop::sample::select(vec!["", " # mine", "   # \"é\": [{", "\t# tab"]);
    let gap = prop::sample::select(vec!["", "\n", "# own: [line]\n", "\n    # - name: toolforge\n\n", "  # x\n"]);
    let block = (0_usize..3, prop::collection::vec((note.clone(), gap.clone(), 0_usize..7), 1..4)).prop_map(|(deep, items)| {
        let mut text = String::new();
        for (number, (note, gap, which)) in items.into_iter().enumerate() {
            let dash = format!("{}- ", " ".repeat(deep));
            let inner = " ".repeat(deep + 2);
            let item = match which {
                0 => format!("{dash}name: m{number}{note}\n{inner}cluster: {{server: 'https://x', a: [1,  2]}}\n{gap}"),
                1 => format!("{dash}{{name: m{number}, context: {{user: me , cluster: x}}}}{note}\n{gap}"),
                2 => format!("{dash}name:   'm{number}'\n{inner}user:{note}\n{inner}  token: \"a\\u2028b\"\n{gap}"),
                3 => format!("{dash}user:\n{gap}{inner}    note: |{note}\n{inner}      # no comment\n\n{inner}      x\n{inner}name: m{number}\n"),
                4 => format!("{dash}name: >-\n{inner}  m{number}\n{gap}"),
                5 => format!("{dash}# first\n{inner}name: m{number}\n{inner}user:{note}\n{gap}"),
                _ => format!("-\n{inner}\"name\": !!str m{number}{note}\n{inner}x: [ a,\n{inner}  b ]\n{gap}").replacen('-', dash.trim_end(), 1),
            };
            text.push_str(&item);
            text += &" ".repeat(deep);
            text += PLACE;
            text.push('\n');
        }
        format!("\n{}{PLACE}\n{text}", " ".repeat(deep))
    });
    let flow = prop::collection::vec((0_usize..3, note.clone()), 1..4).prop_map(|items| {
        let items: Vec<String> = items
            .iter()
            .enumerate()
            .map(|(number, (which, _))| match which {
                0 => format!("{{name: m{number}, user: {{}}}}"),
                1 => format!("{{ \"name\":\"m{number}\" }}"),
                _ => format!("{{\n  name: m{number} # inside\n  }}"),
            })
            .collect();
        format!(" [{}] # behind\n", items.join(" , "))
    });
    let lines = prop::collection::vec(note.clone(), 1..4).prop_map(|notes| {
        let items: Vec<String> =
            notes.iter().enumerate().map(|(number, note)| format!("  {{name: m{number}}},{note}\n")).collect();
        format!(" [\n{}]\n", items.concat())
    });
    let list = prop_oneof![4 => block, 1 => flow, 1 => lines];
    let lists = (list.clone(), list.clone(), list, 0_usize..6);
    let extra = prop::sample::select(vec![
        "x-a: &a {k: v}\nx-b: *a\n",
        "preferences: {}\n",
        "x: |\n  clusters:\n  - name: toolforge\n",
        "\"y\" : 'z'\n",
    ]);
    (lists, gap.clone(), gap, extra, any::<bool>(), any::<bool>()).prop_map(
        |((a, b, c, turn), first, middle, extra, crlf, open)| {
            let mut parts = [
                without_places(&format!("clusters:{a}")),
                without_places(&format!("contexts:{b}")),
                format!("users:{c}"),
                "current-context: m0 # here\n".to_owned(),
                extra.to_owned(),
            ];
            parts.rotate_left(turn % 5);
            let text = format!("{first}{}{middle}kind: Config\n# the end", parts.join(middle));
            let text = if open { text } else { text + "\n" };
            // The text always ends with a comment, because the last line of a block scalar needs a line break.
            if crlf { text.replace('\n', "\r\n") } else { text }
        },
    )
}

#[test]
fn json_is_edited_in_its_own_layout() {
    let lines = "{\n    \"kind\": \"Config\",\n    \"users\": [\n        {\n            \"name\": \"me\"\n        }\n    ],\n    \"contexts\": [],\n    \"n\": 1.50\n}";
    let text = merged(lines);
    assert!(text.starts_with("{\n    \"kind\": \"Config\",\n    \"users\": [\n        {\n            \"name\": \"me\"\n        },\n        {\n            \"user\": {\n"), "{text}");
    assert!(text.contains("    \"contexts\": [\n        {\n            \"context\": {\n"), "{text}");
    assert!(is_part_of(lines, &text) && text.contains("\n    \"n\": 1.50,\n    \"clusters\": ["), "{text}");
    let removed = remove(&text, &entries().names()).expect("the entries can be removed").expect("the text changes");
    assert!(serde_json::from_str::<serde_json::Value>(&removed).is_ok() && !removed.contains("tool"), "{}", *removed);
    let one = r#"{"kind":"Config","users":[{"name":"me"}],"clusters":[],"contexts":null,"current-context":""}"#;
    let text = merged(one);
    assert!(!text.contains('\n') && text.starts_with(r#"{"kind":"Config","users":[{"name":"me"}, {"#), "{text}");
    assert_eq!(
        remove(&merged("{}"), &entries().names())
            .expect("the entries can be removed")
            .expect("the text changes")
            .matches('[')
            .count(),
        3
    );
}

#[test]
fn comments_layout_and_the_end_of_the_document_stay() {
    let text = "# hi\r\n---\r\nclusters: # none yet\r\ncontexts: []  # nor here\r\nx: 'y'\r\n---\r\n";
    let with = merged(text);
    assert!(with.starts_with("# hi\r\n---\r\nclusters: # none yet\r\n- cluster:\r\n    cert"), "{with:?}");
    assert!(
        with.contains("\r\ncontexts:  # nor here\r\n- context:\r\n")
            && with.ends_with("\r\ncurrent-context: toolforge\r\n---\r\n"),
        "{with:?}"
    );
    assert!(!with.replace("\r\n", "").contains('\n'));
    for (text, begins) in [
        ("# only\n", "# only\napiVersion: v1\n"),
        ("---\n", "---\napiVersion"),
        ("null # x\n", "apiVersion"),
        ("# no end", "# no end\napiV"),
    ] {
        assert!(merged(text).starts_with(begins), "{:?}", merged(text));
    }
    assert!(merged("\u{feff}kind: Config").starts_with("\u{feff}kind: Config\nclusters:\n- "));
}

#[test]
fn anchors_and_aliases_in_clusters_contexts_and_users_are_refused() {
    for (text, list) in [
        ("clusters:\n- &a {name: x}\n", "clusters"),
        ("x: &a [{name: x}]\ncontexts: *a\n", "contexts"),
        ("x: &a {token: t}\nusers:\n- name: me\n  user: *a\n", "users"),
        ("x: &a {token: t}\nusers:\n- name: me\n  user: {<<: *a}\n", "users"),
        ("users: &all\n- name: me\n", "users"),
    ] {
        let error = refused(text);
        assert!(error.contains("an anchor (`&`), an alias (`*`)") && error.contains(&format!("`{list}`")), "{error}");
        assert!(remove(text, &entries().names()).is_err());
    }
    assert!(refused("users:\n- name: me\n  name: bursar-prod\n").contains("has a key twice"));
}

#[test]
fn the_cost_is_linear_in_the_file() {
    let of = |count: usize| {
        let mut text = String::from("contexts:\n");
        for number in 0..count {
            writeln!(text, "- {{name: toolforge-{number}, context: {{cluster: c{number}, user: bursar-toolforge}}}}")
                .expect("writing to a string never fails");
            writeln!(text, "- {{name: u{number}, context: {{cluster: u{number}, user: bursar-u{number}}}}}")
                .expect("writing to a string never fails");
        }
        text.push_str("users:\n");
        for number in 0..count {
            writeln!(text, "- {{name: bursar-u{number}, user: {{}}}}").expect("writing to a string never fails");
        }
        text + "clusters:\n" + &"- {name: c, cluster: {server: x}}\n".repeat(count)
    };
    let mut ours = entries();
    ours.user.name = "bursar-toolforge".into();
    ours.contexts.iter_mut().for_each(|context| context.user = "bursar-toolforge".into());
    // Processor time of this thread, in nanoseconds.
    let cpu = || -> u64 {
        let said = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts processor time");
        said.split(' ').next().and_then(|nanoseconds| nanoseconds.parse().ok()).expect("the kernel writes a number")
    };
    let took = |count: usize| {
        let (text, began) = (of(count), cpu());
        merge(&text, &ours, &[]).expect("the text can be merged").expect("the text changes");
        remove(&text, &ours.names()).expect("the entries can be removed");
        users_part_worth_keeping(&text).expect("the text can be read");
        cpu() - began
    };
    let (small, large) = (took(500), took(4_000));
    assert!(large < 40 * small, "{small} ns for 500 entries, {large} ns for 4,000");
}

#[test]
fn our_entries_are_taken_out_and_put_back() {
    let mut ours = entries();
    ours.user.name = "bursar-toolforge".into();
    ours.contexts.iter_mut().for_each(|context| context.user = "bursar-toolforge".into());
    let names = ours.names();
    let text = merge(USERS, &ours, &[]).expect("the text can be merged").expect("the text changes");
    let taken = take(&text).expect("the text can be read");
    let without = remove(&text, &names).expect("the entries can be removed").expect("the text changes");
    assert_eq!(&*without, USERS);
    assert_eq!(*put_back(&without, &taken).expect("the text can be merged").expect("the text changes"), *text);
    let kept = |text: &str| users_part_worth_keeping(text).expect("the text can be read").map(|kept| kept.to_string());
    assert_eq!(kept(&text).as_deref(), Some(USERS));
    let only_ours = merge("", &ours, &[]).expect("the text can be merged").expect("the text changes");
    assert_eq!((kept(&only_ours), kept(""), kept("clusters: []\n")), (None, None, None));
    for own in ["# mine\n", "x: 1\n", "users:\n- {name: me}\n", "current-context: mine\n"] {
        assert_eq!(kept(own).as_deref(), Some(own));
    }
}

#[test]
fn a_context_of_ours_stays_the_current_one_when_it_is_put_back() {
    let named = |name: &str| {
        let user = format!("bursar-{name}");
        KubeconfigEntries {
            clusters: vec![ClusterEntry { name: name.into(), ..entries().clusters[0].clone() }],
            contexts: vec![ContextEntry {
                name: name.into(),
                cluster: name.into(),
                user: user.clone(),
                namespace: None,
            }],
            user: UserEntry { name: user, ..entries().user },
        }
    };
    for current in ["dev", "prod"] {
        let mut text = Zeroizing::new(format!("current-context: {current}\nusers:\n- {{name: me, user: {{}}}}\n"));
        for name in ["dev", "prod"] {
            text = merge(&text, &named(name), &[]).expect("the text can be merged").expect("the text changes");
        }
        let kept = users_part_worth_keeping(&text).expect("the text can be read").expect("the user has an entry");
        let taken = take(&text).expect("the text can be read");
        let restored = put_back(&kept, &taken).expect("the text can be merged").expect("the text changes");
        let found = inspect(&restored, &named(current).names()).expect("the text can be read");
        assert_eq!(found.current_context.as_deref(), Some(current), "{}", *restored);
    }
}

#[test]
fn entries_of_a_removed_endpoint_are_removed_and_the_users_own_stay() {
    let named = |name: &str| ContextEntry {
        name: name.into(),
        cluster: name.into(),
        user: "bursar-prod".into(),
        namespace: None,
    };
    let with = |names: &[&str]| KubeconfigEntries {
        clusters: names
            .iter()
            .map(|name| ClusterEntry { name: (*name).into(), ..entries().clusters[0].clone() })
            .collect(),
        contexts: names.iter().map(|name| named(name)).collect(),
        ..entries()
    };
    let before = merge("", &with(&["prod", "prod-out", "prod-kept"]), &[])
        .expect("the text can be merged")
        .expect("the text changes");
    // The user's own contexts with our credential: for another namespace, for a tunnel, and for the cluster of an
    // endpoint that is removed.
    let own = "- {name: mine, context: {cluster: prod, user: bursar-prod, namespace: x}}\n\
               - {name: tunnel, context: {cluster: tunnel, user: bursar-prod}}\n\
               - {name: needs, context: {cluster: prod-kept, user: bursar-prod}}\n\
               - {name: prod-mine, context: {cluster: prod-mine, user: bursar-prod}}\n";
    let before = before.replace("contexts:\n", &format!("contexts:\n{own}"));
    let tunnel = "- {name: prod-mine, cluster: {server: 'https://localhost:6443'}}\n";
    let before = before.replace("clusters:\n", &format!("clusters:\n{tunnel}"));
    let delivered = deliver(&before, &with(&["prod"]), &[]).expect("the text can be merged");
    let after = delivered.text.expect("the text changes").to_string();
    // A removed entry could be the user's own, so a copy is kept.
    let kept = delivered.kept.expect("the user's part is worth keeping");
    assert!(kept.contains("prod-out") && !kept.contains("client-key-data"), "{}", *kept);
    let config = kube::config::Kubeconfig::from_yaml(&after).expect("the text is a kubeconfig");
    let mut contexts: Vec<&str> = config.contexts.iter().map(|context| context.name.as_str()).collect();
    contexts.sort_unstable();
    assert_eq!(contexts, ["mine", "needs", "prod", "prod-mine", "tunnel"]);
    let clusters: Vec<&str> = config.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    assert_eq!(clusters, ["prod-mine", "prod", "prod-kept"]);
    assert_eq!(config.current_context.as_deref(), Some("prod"));
    // A current context that names a removed endpoint of ours is replaced.
    let of_gone = before.replace("current-context: prod\n", "current-context: prod-out\n");
    let again = merge(&of_gone, &with(&["prod"]), &[]).expect("the text can be merged").expect("the text changes");
    assert!(again.contains("current-context: prod\n"), "{}", *again);
    assert_eq!(merge(&after, &with(&["prod"]), &[]).expect("the text can be merged"), None);
}

#[test]
fn the_users_own_endpoint_survives_a_removal_and_a_restoration() {
    let own_context = "- {name: prod-mine, context: {cluster: prod-mine, user: bursar-prod}}\n";
    let ours = "- name: prod\n  cluster: {server: 'https://10.0.0.1:6443', certificate-authority-data: Q0E=}\n\
                - name: prod-out\n  cluster: {server: 'https://10.0.0.2:6443', certificate-authority-data: Q0E=}\n";
    let names = EntryNames { clusters: vec!["prod".into()], contexts: vec!["prod".into()], user: "bursar-prod".into() };
    for fields in ["insecure-skip-tls-verify: true", "certificate-authority-data: bWluZQ==", "tls-server-name: x"] {
        let own = format!("- name: prod-mine\n  cluster: {{server: 'https://localhost:6443', {fields}}}\n");
        let text = format!(
            "clusters:\n{own}{ours}contexts:\n{own_context}- {{name: prod, context: {{cluster: prod, user: bursar-prod}}}}\n\
             - {{name: prod-out, context: {{cluster: prod-out, user: bursar-prod}}}}\n\
             users:\n- {{name: bursar-prod, user: {{}}}}\n"
        );
        let left = format!("clusters:\n{own}contexts:\n{own_context}users: []\n");
        assert_eq!(*remove(&text, &names).expect("the entries can be removed").expect("the text changes"), left);
        let kept = users_part_worth_keeping(&text).expect("the text can be read").expect("the user has an entry");
        assert_eq!(*kept, left);
        // A restoration brings back what an earlier copy retained for an endpoint.
        let earlier =
            text.replace("  cluster: {server: 'https://10.0.0.2", "  x: 1\n  cluster: {server: 'https://10.0.0.2");
        let restored = without_our_users(&earlier).expect("the text can be read");
        assert_eq!(*restored, earlier.replace("users:\n- {name: bursar-prod, user: {}}\n", "users: []\n"));
    }
}

#[test]
fn a_default_namespace_of_the_user_stays_where_we_want_none() {
    let mut without = entries();
    without.contexts[0].namespace = None;
    let ours = merge("", &without, &[]).expect("the text can be merged").expect("the text changes");
    let place = "    cluster: toolforge\n";
    assert!(ours.contains(place), "{}", *ours);
    let own = ours.replace(place, &format!("{place}    namespace: kube-system\n"));
    assert_eq!(merge(&own, &without, &[]).expect("the text can be merged"), None);
    let wanted = merge(&own, &entries(), &[]).expect("the text can be merged").expect("the text changes");
    assert!(wanted.contains("namespace: tool-foo") && !wanted.contains("kube-system"), "{}", *wanted);
}
