//! Tests of the merge: our entry comes and goes, and all else of a kubeconfig stays as it was.

use bursar_protocol::{ClusterEntry, ContextEntry, SecretText, UserEntry, UserProof};
use proptest::prelude::*;

use super::*;
use crate::document::tests::any_node;

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
    merge(text, &entries(), &[]).expect("merges").expect("changes").to_string()
}

/// What a file says, apart from the spellings of "nothing": no list, null and an empty list; no current context and
/// an empty one.
fn content(text: &str) -> Vec<(Node, Node)> {
    let Some(root) = Document::parse(text).expect("parses").root else { return Vec::new() };
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
    let config: kube::config::Kubeconfig = kube::config::Kubeconfig::from_yaml(&text).expect("kube reads it");
    assert_eq!(config.contexts[1].context.as_ref().expect("context").namespace.as_deref(), Some("tool-foo"));
}

#[test]
fn what_is_the_users_stays_and_its_current_context_too() {
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
    assert!(text.contains("x-mine:\n- 1\n- 2.50\n"));
    assert!(text.contains("current-context: other\n"));
}

#[test]
fn a_current_context_that_does_not_exist_becomes_ours() {
    assert!(merged("current-context: gone\n").contains("current-context: toolforge\n"));
    assert!(merged("contexts: null\ncurrent-context: ~\n").contains("current-context: toolforge\n"));
}

#[test]
fn our_user_entry_holds_our_credential_only() {
    let text = merged(
        "users:\n- name: bursar-prod\n  user: {token: old, exec: {command: x}, extensions: [1]}\n- {name: bursar-prod, user: {token: twice}}\n- name: z\n",
    );
    assert!(!text.contains("token") && !text.contains("exec"), "{text}");
    assert!(text.contains("extensions:\n    - 1\n"), "{text}");
    assert_eq!(text.matches("name: bursar-prod\n").count(), 1, "{text}");
    assert!(text.contains("- name: z\n"), "{text}");
}

#[test]
fn our_cluster_entry_trusts_our_ca_only() {
    let text = merged(
        "contexts:\n- {name: toolforge, context: {cluster: toolforge, user: bursar-prod}}\nclusters:\n- name: toolforge\n  cluster: {insecure-skip-tls-verify: true, certificate-authority: /tmp/x, disable-compression: true, proxy-url: http://evil}\n",
    );
    assert!(!text.contains("insecure") && !text.contains("/tmp/x") && !text.contains("evil"), "{text}");
    assert!(text.contains("disable-compression: true\n"), "{text}");
}

#[test]
fn json_kubeconfigs_stay_json() {
    let text = merged(r#"{"apiVersion":"v1","kind":"Config","users":[{"name":"me","user":{"token":"t"}}],"n":1.50}"#);
    let value: serde_json::Value = serde_json::from_str(&text).expect("is JSON");
    assert_eq!(value["users"][0]["user"]["token"], "t");
    assert_eq!(value["users"][1]["name"], "bursar-prod");
    assert!(text.contains("1.50"));
}

#[test]
fn what_is_no_kubeconfig_is_refused() {
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
    let removed = remove(&text, &entries().names()).expect("removes").expect("changes");
    assert!(!removed.contains("tool") && !removed.contains("bursar"), "{}", *removed);
    assert_eq!(remove(&removed, &entries().names()).expect("removes"), None);
    assert_eq!(remove("", &entries().names()).expect("removes"), None);
}

#[test]
fn digest_changes_with_our_entries_and_with_nothing_else() {
    let names = entries().names();
    let written = entries_digest(&merged(""), &names).expect("inspects").expect("complete");
    assert_eq!(entries_digest(&merged(USERS), &names).expect("inspects"), Some(written.clone()));
    let bent = merged("").replace("https://10.0.0.1:6443", "https://10.0.0.2:6443");
    assert_ne!(entries_digest(&bent, &names).expect("inspects"), Some(written));
    assert_eq!(entries_digest(USERS, &names).expect("inspects"), None);
}

#[test]
fn inspection_finds_a_matching_pair_and_tells_no_key() {
    let key = rcgen::KeyPair::generate().expect("key");
    let certificate = rcgen::CertificateParams::new(vec![]).expect("params").self_signed(&key).expect("signs");
    let mut ours = entries();
    let pair = |certificate_pem: String, key_pem: String| UserProof::Certificate {
        certificate_pem,
        key_pem: SecretText::new(key_pem),
    };
    ours.user.proof = pair(certificate.pem(), key.serialize_pem());
    let text = merge(USERS, &ours, &[]).expect("merges").expect("changes");
    let found = inspect(&text, &ours.names()).expect("inspects");
    assert!(found.parses && found.key_matches);
    assert_eq!(found.current_context, None, "it is the user's");
    let same = |a: &str, b: &str| a.split_whitespace().eq(b.split_whitespace());
    assert!(same(found.certificate_pem.as_deref().expect("certificate"), &certificate.pem()));

    let other = rcgen::KeyPair::generate().expect("key").serialize_pem();
    ours.user.proof = pair(certificate.pem(), other.clone());
    let text = merge(&text, &ours, &[]).expect("merges").expect("changes");
    assert!(!inspect(&text, &ours.names()).expect("inspects").key_matches);

    // A key where the certificate should be is not handed out.
    ours.user.proof = pair(key.serialize_pem(), other);
    let text = merge(&text, &ours, &[]).expect("merges").expect("changes");
    assert_eq!(inspect(&text, &ours.names()).expect("inspects").certificate_pem, None);
}

fn refused(text: &str) -> String {
    merge(text, &entries(), &[]).expect_err("refused").to_string()
}

#[test]
fn what_a_user_calls_by_our_names_stays_the_users() {
    let context = "contexts:\n- {name: toolforge, context: {cluster: mine, user: me}}\n";
    assert_eq!(refused(context), "context `toolforge` in it is not ours");
    let without_user = "contexts:\n- {name: toolforge, context: {cluster: mine}}\n";
    assert_eq!(refused(without_user), "context `toolforge` in it is not ours");
    let cluster = "clusters:\n- {name: toolforge, cluster: {server: 'https://mine'}}\n";
    assert_eq!(refused(cluster), "cluster `toolforge` in it is not ours");
    let used = "clusters:\n- {name: toolforge, cluster: {server: 'https://10.0.0.1:6443'}}\ncontexts:\n- {name: x, context: {cluster: toolforge, user: me}}\n";
    assert_eq!(refused(used), "cluster `toolforge` in it is not ours");
    for text in [context, without_user, cluster, used] {
        assert_eq!(remove(text, &entries().names()).expect("removes"), None, "{text}");
        merge(text, &entries(), &["toolforge".to_owned()]).expect("taken over").expect("changes");
    }
}

#[test]
fn removal_finds_what_we_wrote_by_our_user() {
    let mut ours = entries();
    ours.user.name = "bursar-toolforge".into();
    ours.contexts.iter_mut().for_each(|context| context.user = "bursar-toolforge".into());
    let theirs = "contexts:\n- {name: toolforge-mine, context: {cluster: elsewhere, user: bursar-toolforge}}\n\
                  - {name: toolforge-theirs, context: {cluster: toolforge-theirs, user: me}}\n";
    let text = merge(theirs, &ours, &[]).expect("merges").expect("changes");
    let names = EntryNames { user: ours.user.name, ..EntryNames::default() };
    let removed = remove(&text, &names).expect("removes").expect("changes");
    assert!(content(&removed) == content(theirs), "{}", *removed);
}

#[test]
fn what_a_user_adds_to_our_entries_does_not_make_them_the_users() {
    let ours = merged("");
    let dropped = remove(&ours, &EntryNames { contexts: vec!["toolforge".into()], ..EntryNames::default() });
    let left = dropped.expect("removes").expect("changes");
    assert_eq!(merged(&left).matches("name: toolforge\n").count(), 2, "a cluster that nobody uses, with our server");
    let text = ours.replace("contexts:\n", "contexts:\n- {name: mine, context: {cluster: toolforge, user: me}}\n");
    let mut moved = entries();
    moved.clusters[0].server = "https://10.0.0.9:6443".into();
    let text = merge(&text, &moved, &[]).expect("merges").expect("changes");
    assert!(text.contains("https://10.0.0.9:6443"));
    let removed = remove(&text, &moved.names()).expect("removes").expect("changes");
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

/// A user's file: entries of other names, any fields, any order, lists missing or null or in JSON.
fn any_config() -> impl Strategy<Value = Document> {
    let entry = ("[a-z]{1,6}", any_node(), any_node()).prop_map(|(name, inner, odd)| {
        Node::mapping(vec![
            (Node::string("odd"), odd),
            (Node::string("name"), Node::string(format!("mine-{name}"))),
            (Node::string("cluster"), inner),
        ])
    });
    let list = prop_oneof![
        3 => prop::collection::vec(entry, 0..4).prop_map(Node::sequence),
        1 => Just(Document::parse("a: null").expect("parses").root.expect("root").get("a").expect("a").clone()),
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
        Document { language: Language::Yaml, root: Some(Node::mapping(all)) }
    })
}

proptest! {
    #[test]
    fn merging_loses_nothing_and_removing_gives_the_original(document in any_config()) {
        let names = entries().names();
        let text = document.write().expect("writes");
        let with_ours = merge(&text, &entries(), &[]).expect("merges").expect("changes");

        // Merging twice is merging once.
        prop_assert_eq!(merge(&with_ours, &entries(), &[]).expect("merges"), None);

        // Taking ours away gives what was there; only a `current-context` that named nothing is repaired.
        let removed = remove(&with_ours, &names).expect("removes").expect("changes");
        let mut before = content(&text);
        let exists = |pairs: &Vec<(Node, Node)>, name: &str| entry(pairs, "contexts", name).is_some();
        let dangling = value(&before, "current-context")
            .and_then(Node::text)
            .is_some_and(|current| !exists(&before, current));
        if dangling {
            before.retain(|(key, _)| key.text() != Some("current-context"));
        }
        prop_assert_eq!(before, content(&removed));
        prop_assert_eq!(remove(&removed, &names).expect("removes"), None);
    }
}

#[test]
fn entries_of_an_endpoint_that_is_gone_go_and_the_users_own_stay() {
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
    let before = merge("", &with(&["prod", "prod-out", "prod-kept"]), &[]).expect("merges").expect("changes");
    // Made with our credential: another namespace, a tunnel, and one that needs the cluster of an endpoint that goes.
    let own = "- {name: mine, context: {cluster: prod, user: bursar-prod, namespace: x}}\n\
               - {name: tunnel, context: {cluster: tunnel, user: bursar-prod}}\n\
               - {name: needs, context: {cluster: prod-kept, user: bursar-prod}}\n";
    let before = before.replace("contexts:\n", &format!("contexts:\n{own}"));
    let after = merge(&before, &with(&["prod"]), &[]).expect("merges").expect("changes").to_string();
    let config = kube::config::Kubeconfig::from_yaml(&after).expect("a kubeconfig");
    let mut contexts: Vec<&str> = config.contexts.iter().map(|context| context.name.as_str()).collect();
    contexts.sort_unstable();
    assert_eq!(contexts, ["mine", "needs", "prod", "tunnel"]);
    let clusters: Vec<&str> = config.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    assert_eq!(clusters, ["prod", "prod-kept"]);
    assert_eq!(config.current_context.as_deref(), Some("prod"));
    assert_eq!(merge(&after, &with(&["prod"]), &[]).expect("merges"), None);
}
