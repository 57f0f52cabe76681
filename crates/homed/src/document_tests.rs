//! Tests of the parser: texts that it reads, and texts that it refuses.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::document_writer::block;

/// Returns a tree as text in block style.
pub fn written(root: &Node) -> String {
    block(root, 0, "\n").to_string() + "\n"
}

fn root(text: &str) -> Node {
    Document::parse(text).expect(text).root.expect(text)
}

fn piece<'t>(text: &'t str, node: &Node) -> &'t str {
    &text[node.place.start..node.place.end]
}

/// Generates trees of the size of a kubeconfig, with odd strings and plain scalars of every kind.
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
        "[a-z0-9]{0,4}".prop_map(|text| Node {
            tag: Some("!!str".to_owned()),
            ..Node::untagged(Value::Scalar(text, Style::Quoted))
        }),
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
                .prop_map(|(tag, items)| Node { tag, ..Node::sequence(items) }),
            (tag, prop::collection::vec((key, inner), 0..5))
                .prop_map(|(tag, pairs)| Node { tag, ..Node::mapping(pairs) }),
        ]
    })
}

proptest! {
    #[test]
    fn a_written_tree_reads_back_the_same(root in any_node()) {
        let text = written(&root);
        let read = Document::parse(&text);
        prop_assert_eq!(read.expect(&text).root, Some(root).filter(|root| !root.is_null()));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = Document::parse(&text);
    }
}

#[test]
fn a_plain_scalar_is_kept_as_text() {
    for text in ["0o17", "1.10", "yes", "123456789012345678901234567890", "2001-12-14", "1e3"] {
        assert_eq!(root(&format!("a: {text}\n")).get("a").and_then(Node::text), Some(text));
    }
    assert_ne!(root("a: \"017\"\n"), root("a: 017\n"));
    assert_eq!(root("a: \"prod\"\n"), root("a: prod\n"));
}

#[test]
fn every_node_records_its_place() {
    let text = "\u{feff}é: \"x\" # c\nlist:\n- a: b\n  c:\n-\n- !!str z\nflow: [1, {k: v} ]\nnone:   # c\nblock: |\n  x\n\nlast: y";
    let root = root(text);
    let at = |key: &str| piece(text, root.get(key).expect(key));
    assert_eq!((at("é"), at("flow"), at("last")), ("\"x\"", "[1, {k: v} ]", "y"));
    assert_eq!(at("list"), "a: b\n  c:\n-\n- !!str z");
    let Value::Sequence(items) = &root.get("list").expect("the document has the list").value else { panic!("a list") };
    let items: Vec<&str> = items.iter().map(|item| piece(text, item)).collect();
    assert_eq!(items, ["a: b\n  c:", "", "!!str z"]);
    let none = root.get("none").expect("the document has the key");
    assert!(text[..none.place.start].ends_with("none:") && none.place.start == none.place.end);
    assert_eq!(at("block"), "x\n");
}

#[test]
fn a_block_scalar_ends_at_its_last_line() {
    for (scalar, behind) in [
        ("|\n    x\n", "\n  # c\n"),
        (">-\n    x\n", "   \n\n   # c\n"),
        ("| # +\n    x \n", "\n  # c\n"),
        ("|+\n    x\n\n", "  # c\n"),
        ("|2+\n    x\n\n", "# c\n"),
        ("|\n    x\n      \n", "  # c\n"),
        ("|\r\n    x\r\n", "\r\n  # c\r\n"),
        ("!!str |\n    x\n", "\n"),
    ] {
        for next in ["  c: d\n", "e: f\n", ""] {
            let text = format!("a:\n  b: {scalar}{behind}{next}");
            let root = root(&text);
            let node = root.get("a").and_then(|a| a.get("b")).expect("the document has the key");
            assert_eq!(&text[..node.place.end], format!("a:\n  b: {scalar}"), "{text:?}");
        }
    }
}

#[test]
fn characters_and_tabs_that_kubectl_reads_differently_are_refused() {
    for (name, character) in
        [("U+2028", '\u{2028}'), ("U+2029", '\u{2029}'), ("U+0085", '\u{85}'), ("U+FEFF", '\u{feff}')]
    {
        for text in
            [format!("a: \"x{character}y\"\n"), format!("a: x{character}b: y\n"), format!("# x{character}b: y\n")]
        {
            let error = Document::parse(&text).expect_err(name).to_string();
            assert!(error.starts_with("line 1 has a raw ") && error.contains(name), "{error}");
        }
    }
    assert!(matches!(Document::parse("a: 1\nb: \u{7}\n"), Err(DocumentError::Character { line: 2, .. })));
    for text in ["a:\n\tb: 1\n", "a:\n-\tb: 1\n", "a: 1\n\t\nb: 1\n", "a: 1\n \t# c\nb: 1\n", "a: 1\n\t"] {
        let error = Document::parse(text).expect_err(text);
        assert!(matches!(error, DocumentError::Tab { .. } | DocumentError::Syntax { .. }), "{text:?}: {error}");
    }
    for text in ["a:\t1\t\nb: {c:\td,\t}\n", "a: |\n  x\n  \ty\n", "\u{feff}a: 1\r\n", "a: \"x\ty\"\n"] {
        Document::parse(text).expect(text);
    }
}

#[test]
fn alias_bomb_is_refused_quickly() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let below = level - 1;
        let aliases = vec![format!("*a{below}"); 9].join(", ");
        writeln!(text, "a{level}: &a{level} [{aliases}]").expect("writing to a string never fails");
    }
    assert_eq!(Document::parse(&text).err(), Some(DocumentError::TooMuch));
}

#[test]
fn an_alias_within_its_own_anchor_is_refused() {
    assert!(Document::parse("a: &a [*a]\n").is_err());
}

#[test]
fn deep_nesting_is_refused() {
    let text = "[".repeat(100) + &"]".repeat(100);
    assert_eq!(Document::parse(&text).err(), Some(DocumentError::TooDeep));
    assert!(Document::parse(&"[".repeat(100_000)).is_err());
    assert!(Document::parse(&"- ".repeat(100_000)).is_err());
}

#[test]
fn a_file_of_comments_is_empty() {
    for text in ["", "\n", "# hi\n", "---\n", "null\n", "\u{feff}", "~"] {
        assert_eq!(Document::parse(text).expect(text).root, None, "{text:?}");
    }
}

#[test]
fn errors_name_the_position_and_not_the_content() {
    let error = Document::parse("a: b\nsecret: \"hunter2\n").expect_err("the quote is not closed");
    assert!(!error.to_string().contains("hunter2"));
    assert!(matches!(error, DocumentError::Unusual { .. }), "{error}");
    let why = |text| Document::parse(text).err();
    assert_eq!(why("a: 1\n---\nb: 2\n"), Some(DocumentError::SeveralDocuments));
    assert_eq!(why("a: 1\n---\n# nothing\n"), None);
    assert_eq!(why("---\n---\na: 1\n"), Some(DocumentError::SeveralDocuments));
    assert_eq!(why("? [a]\n: 1\n"), Some(DocumentError::ComplexKey));
    for text in ["a: b: c\n", "a: [b\n", "{a: b]\n", "a: *b\n"] {
        assert!(matches!(why(text), Some(DocumentError::Syntax { .. })), "{text}: {:?}", why(text));
    }
    // kubectl reads these texts, or the part before the fault.
    for text in [
        "a: !!s!t b\n",
        "a: \"b\nc\"\n",
        "a: \"b\"#c\n",
        "a: 1\n...\n}}}\n",
        "a: 1\n---\nb: c: d\n",
        "{}\n}\n",
        "a: 1\n%X y\n",
    ] {
        assert!(matches!(why(text), Some(DocumentError::Unusual { .. })), "{text}: {:?}", why(text));
    }
}
