//! Tests of documents: what a kubeconfig of any shape is read as, and what is refused.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

fn again(text: &str) -> String {
    Document::parse(text).expect("parses").write().expect("writes")
}

/// Any tree of kubeconfig-like size, with odd strings and plain scalars of every kind.
pub fn any_node() -> impl Strategy<Value = Node> {
    let plain = prop::sample::select(vec![
        "1",
        "0o17",
        "017",
        "1.10",
        "1e3",
        "yes",
        "No",
        "true",
        "null",
        "~",
        "2001-12-14",
        "1_000",
        ".inf",
        "0x1F",
        "123456789012345678901234567890",
        "a b",
        "x:y",
        "<<",
        "a'b",
        "http://h:1/?a=b&c",
        "-1",
        "1:20",
        "é",
    ]);
    let leaf = prop_oneof![
        plain.prop_map(|text| Node::untagged(Value::Scalar(text.to_owned(), Style::Plain))),
        any::<String>().prop_map(|text| Node::untagged(Value::Scalar(text, Style::Quoted))),
        "[a-z: #\\-\n'\"|>{}\\[\\]&*!%@`,?]{0,20}".prop_map(|text| Node::untagged(Value::Scalar(text, Style::Block))),
        "[a-z]{1,8}".prop_map(Node::string),
        "[a-z0-9]{0,4}"
            .prop_map(|text| Node { tag: Some("!!str".to_owned()), value: Value::Scalar(text, Style::Quoted) }),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let key = prop_oneof![
            "[a-z-]{1,8}".prop_map(Node::string),
            any::<String>()
                .prop_filter("simple keys end at 1,024 characters", |key| key.len() < 150)
                .prop_map(|text| Node::untagged(Value::Scalar(text, Style::Quoted))),
            Just(Node::untagged(Value::Scalar("1".to_owned(), Style::Plain))),
        ];
        let tag = prop_oneof![4 => Just(None), 1 => Just(Some("!x".to_owned()))];
        prop_oneof![
            (tag.clone(), prop::collection::vec(inner.clone(), 0..5))
                .prop_map(|(tag, items)| Node { tag, value: Value::Sequence(items) }),
            (tag, prop::collection::vec((key, inner), 0..5))
                .prop_map(|(tag, pairs)| Node { tag, value: Value::Mapping(pairs) }),
        ]
    })
}

proptest! {
    #[test]
    fn any_tree_is_written_so_that_it_reads_the_same(root in any_node()) {
        let document = Document { language: Language::Yaml, root: Some(root).filter(|root| !root.is_null()) };
        prop_assert!(document.write().is_ok(), "{document:?}");
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = Document::parse(&text);
    }
}

#[test]
fn plain_scalars_keep_their_text() {
    let text = "a: 0o17\nb: 1.10\nc: yes\nd: 123456789012345678901234567890\ne: 2001-12-14\nf: ~\ng: 1e3\n";
    assert_eq!(again(text), text);
}

#[test]
fn quotes_that_matter_stay() {
    let text = "a: \"017\"\nb: \"yes\"\nc: \"null\"\nd: \"\"\n";
    assert_eq!(again(text), text);
}

#[test]
fn layout_is_that_of_kubectl() {
    let text = "apiVersion: v1\nclusters:\n- cluster:\n    server: https://10.0.0.1:6443\n  name: a\nextra:\n- - 1\n  - 2\n- []\nnotes: |\n  first\n    second\n";
    assert_eq!(again(text), text);
}

#[test]
fn aliases_are_replaced_and_merge_keys_stay() {
    assert_eq!(again("a: &x {k: v}\nb: *x\nc:\n  <<: *x\n"), "a:\n  k: v\nb:\n  k: v\nc:\n  <<:\n    k: v\n");
}

#[test]
fn duplicate_keys_and_tags_stay() {
    let text = "a: 1\na: 2\nb: !!binary aGk=\nc: !x\n  d: 1\n";
    assert_eq!(again(text), text);
}

#[test]
fn alias_bomb_is_refused_quickly() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let below = level - 1;
        let aliases = vec![format!("*a{below}"); 9].join(", ");
        writeln!(text, "a{level}: &a{level} [{aliases}]").expect("a string takes it");
    }
    assert_eq!(Document::parse(&text), Err(DocumentError::TooMuch));
}

#[test]
fn an_alias_within_its_own_anchor_is_refused() {
    assert!(Document::parse("a: &a [*a]\n").is_err());
}

#[test]
fn deep_nesting_is_refused() {
    let text = "[".repeat(100) + &"]".repeat(100);
    assert_eq!(Document::parse(&text), Err(DocumentError::TooDeep));
    assert!(Document::parse(&"[".repeat(100_000)).is_err());
    assert!(Document::parse(&"- ".repeat(100_000)).is_err());
}

#[test]
fn json_stays_json() {
    let text = "{\n  \"a\": [\n    1,\n    1.10,\n    true,\n    null,\n    \"x\\ny\"\n  ],\n  \"b\": {}\n}\n";
    assert_eq!(again(text), text);
    assert_eq!(again("{\"a\":\t[1,\n\t2]\r\n}"), "{\n  \"a\": [\n    1,\n    2\n  ]\n}\n");
    assert_eq!(again(r#"{"a":"\/\ud83d\ude00\u0000"}"#), "{\n  \"a\": \"/😀\\u0000\"\n}\n");
}

#[test]
fn nothing_but_comments_is_nothing() {
    for text in ["", "\n", "# hi\n", "---\n", "null\n", "\u{feff}", "~"] {
        assert_eq!(Document::parse(text).expect(text).root, None, "{text:?}");
    }
}

#[test]
fn errors_name_a_place_and_no_content() {
    let error = Document::parse("a: b\nsecret: \"hunter2\n").expect_err("unterminated");
    assert!(!error.to_string().contains("hunter2"));
    assert!(matches!(error, DocumentError::Syntax { .. }), "{error}");
    assert_eq!(Document::parse("a: 1\n---\nb: 2\n"), Err(DocumentError::SeveralDocuments));
    assert_eq!(Document::parse("? [a]\n: 1\n"), Err(DocumentError::ComplexKey));
}
