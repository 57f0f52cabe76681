//! Parses a YAML or JSON text into a tree that records the byte range of each node, so that an [edit](crate::edit)
//! replaces one node and leaves every other byte as it is.
//!
//! A plain scalar is kept as text, never as a number or a boolean, because YAML 1.1 and 1.2 differ in what `0o17`,
//! `1.10`, `yes` or a number of forty digits means. Therefore this module uses the events of `granit-parser` (the
//! parser beneath `serde-saphyr`, with which `kube` reads kubeconfigs) instead of a deserializer. Aliases stay aliases;
//! the nodes that they expand to are only counted, up to [`MAX_NODES`].
//!
//! kubectl reads YAML 1.1. A text that kubectl could read differently is refused, with an error that names the cause.

mod reader;

use thiserror::Error;

use self::reader::Reader;

/// The most nodes that a text may have after its aliases are expanded. A kubeconfig of [1
/// MiB](crate::files::MAX_FILE_BYTES) has fewer than 100,000. Nine lines of nested aliases ("billion laughs") have
/// 10^9, and kubectl refuses them too.
pub const MAX_NODES: usize = 200_000;

/// The deepest nesting that is read. The deepest known kubeconfigs (exec plugins) have 7 levels; each level here uses
/// stack.
const MAX_DEPTH: usize = 64;

/// Why a text cannot be read as a document. Errors name positions only, because a user's file may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DocumentError {
    /// The text is not UTF-8. The number is the offset of the first wrong byte.
    #[error("it is not UTF-8 from byte {0}")]
    NotUtf8(usize),
    /// The byte order mark says UTF-16. kubectl can read such a file.
    #[error("it is in UTF-16: save it in UTF-8")]
    Utf16,
    /// The text is not YAML for kubectl either.
    #[error("it does not parse as YAML at line {line}, column {column}")]
    Syntax {
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
    },
    /// The text is not YAML 1.2, but kubectl may read it, or may stop reading before the fault.
    #[error("it does not parse at line {line}, column {column}; kubectl may read it (see `kubectl config view --raw`)")]
    Unusual {
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
    },
    /// A character that YAML 1.1 refuses, or reads as a line break or a byte order mark where YAML 1.2 reads text.
    #[error("line {line} has a raw {name}, which kubectl does not read as text: write it in quotes as \\u{code:04X}")]
    Character {
        /// The line, counted from 1.
        line: usize,
        /// The name of the character, for example `U+2028 (line separator)`.
        name: String,
        /// The code point.
        code: u32,
    },
    /// A line is indented by a tab, which kubectl does not accept.
    #[error("line {line} is indented by a tab, which kubectl does not read: use spaces")]
    Tab {
        /// The line, counted from 1.
        line: usize,
    },
    /// The text has more than one YAML document (`---`).
    #[error("it has more than one YAML document")]
    SeveralDocuments,
    /// The text has more than [`MAX_NODES`] nodes.
    #[error("it has more than {MAX_NODES} nodes, counting those that its aliases expand to")]
    TooMuch,
    /// The text is nested deeper than `MAX_DEPTH`.
    #[error("it is nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// A key is a list or a mapping. The YAML reader of Kubernetes refuses this too.
    #[error("a mapping key is itself a list or a mapping")]
    ComplexKey,
    /// The layout is one that kubectl never writes. Such a file is not changed, because an edit could damage it.
    #[error("its layout cannot be edited without losing content")]
    NotWritable,
}

/// How a scalar is written, which decides whether a reader can take it for a number, a boolean or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A text without quotes: the reader decides on the type.
    Plain,
    /// A string in quotes.
    Quoted,
    /// A string after `|` or `>`. The writer makes it a block again if a simple block can hold it.
    Block,
}

/// The position of a node in the text. A node that was not read from a text has the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodePosition {
    /// Offset of the first byte. If a tag is on the same line, it is included.
    pub start: usize,
    /// Offset of the first byte after the node. The line break after a block scalar is part of the node; blank lines
    /// after it are only if they are part of its value.
    pub end: usize,
    /// Whether the node is a collection in `[]` or `{}`.
    pub flow: bool,
    /// Whether the node has an anchor.
    pub anchored: bool,
}

/// A node with its tag, if it has one.
#[derive(Clone, Debug)]
pub struct Node {
    /// The tag as written, e.g. `!!binary` or `!<tag:example.com,2000:x>`.
    pub tag: Option<String>,
    pub value: Value,
    pub place: NodePosition,
}

impl Eq for Node {}

impl PartialEq for Node {
    /// Whether every reader sees the same in both nodes. Their places may differ.
    fn eq(&self, other: &Self) -> bool {
        self.tag == other.tag && self.value == other.value
    }
}

/// The content of a node.
#[derive(Clone, Debug, Eq)]
pub enum Value {
    /// A leaf.
    Scalar(String, Style),
    /// A list.
    Sequence(Vec<Node>),
    /// A mapping in the order of the text, with duplicates. Keys are scalars or aliases.
    Mapping(Vec<(Node, Node)>),
    /// A reference to the anchor with this number. Anchors are numbered in the order of the text.
    Alias(usize),
}

impl PartialEq for Value {
    /// Whether every reader sees the same in both. A string may be quoted, in a block or plain.
    fn eq(&self, other: &Self) -> bool {
        let is_string = |text: &str, style: Style| style != Style::Plain || is_plainly_a_string(text);
        match (self, other) {
            (Self::Scalar(text, style), Self::Scalar(other, other_style)) => {
                text == other && is_string(text, *style) == is_string(other, *other_style)
            }
            (Self::Sequence(items), Self::Sequence(others)) => items == others,
            (Self::Mapping(pairs), Self::Mapping(others)) => pairs == others,
            (Self::Alias(anchor), Self::Alias(other)) => anchor == other,
            _ => false,
        }
    }
}

impl Node {
    pub(super) fn untagged(value: Value) -> Self {
        Self { tag: None, value, place: NodePosition::default() }
    }

    /// Returns a string: plain if every reader takes the text for a string, otherwise quoted.
    #[must_use]
    pub fn string(text: impl Into<String>) -> Self {
        let text = text.into();
        let style = if is_plainly_a_string(&text) { Style::Plain } else { Style::Quoted };
        Self::untagged(Value::Scalar(text, style))
    }

    #[must_use]
    pub fn sequence(items: Vec<Node>) -> Self {
        Self::untagged(Value::Sequence(items))
    }

    #[must_use]
    pub fn mapping(pairs: Vec<(Node, Node)>) -> Self {
        Self::untagged(Value::Mapping(pairs))
    }

    /// Returns the text of a scalar; `None` for any other node.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text, _) => Some(text),
            _ => None,
        }
    }

    /// Whether the value is missing, `~` or `null`. With a tag such as `!!str`, it is a text.
    #[must_use]
    pub fn is_null(&self) -> bool {
        let Value::Scalar(text, Style::Plain) = &self.value else { return false };
        self.tag.as_deref().is_none_or(|tag| tag == "!!null") && matches!(text.as_str(), "~" | "null" | "Null" | "NULL")
    }

    /// Returns the value of a key. If a mapping has the key several times, the first counts.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Mapping(pairs) => pairs.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Whether the node or a node within it has an anchor, is an alias or has a merge key (`<<`).
    #[must_use]
    pub fn shares(&self) -> bool {
        self.place.anchored
            || match &self.value {
                Value::Alias(_) => true,
                Value::Scalar(..) => false,
                Value::Sequence(items) => items.iter().any(Self::shares),
                Value::Mapping(pairs) => {
                    pairs.iter().any(|(key, value)| key.text() == Some("<<") || key.shares() || value.shares())
                }
            }
    }
}

/// The language of a text. A JSON file must stay JSON, so that `jq` can still read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// YAML in any style.
    Yaml,
    Json,
}

/// A parsed text.
#[derive(Clone, Debug)]
pub struct Document<'text> {
    pub text: &'text str,
    pub language: Language,
    /// `None` if the text has only white space and comments, or null.
    pub root: Option<Node>,
    /// The bytes that a new root replaces if there is no root: the bytes of the null, or the empty range at the end of
    /// the text.
    pub vacancy: std::ops::Range<usize>,
}

impl<'text> Document<'text> {
    pub fn parse(text: &'text str) -> Result<Self, DocumentError> {
        let mark = if text.starts_with(MARK) { MARK.len_utf8() } else { 0 };
        let body = &text[mark..];
        characters(body)?;
        let language = match serde_json::from_str::<serde::de::IgnoredAny>(body) {
            Ok(_) => Language::Json,
            Err(_) => Language::Yaml,
        };
        let mut found = Reader::new(text, mark).documents()?;
        if found.len() > 1 && found.iter().skip(1).any(|root| root.as_ref().is_some_and(|root| !root.is_null())) {
            return Err(DocumentError::SeveralDocuments);
        }
        let is_alone = found.len() < 2;
        let root = if found.is_empty() { None } else { found.swap_remove(0) };
        let vacancy = root.as_ref().map_or(text.len()..text.len(), |null| null.place.start..null.place.end);
        let root = root.filter(|root| !root.is_null());
        // kubectl reads only the first document, which is empty, and would overwrite the others.
        if root.is_none() && !is_alone {
            return Err(DocumentError::SeveralDocuments);
        }
        Ok(Self { text, language, root, vacancy })
    }
}

/// The byte order mark. At the beginning of a text it marks UTF-8.
const MARK: char = '\u{feff}';

/// Refuses characters that YAML 1.1 (`yaml_parser_scan_to_next_token`, `is_break`, `is_printable` of go-yaml) reads
/// differently from YAML 1.2. They are refused in comments too, because some of them end a comment.
fn characters(text: &str) -> Result<(), DocumentError> {
    let what = |c: char| match c {
        '\u{85}' => Some("next line"),
        '\u{2028}' => Some("line separator"),
        '\u{2029}' => Some("paragraph separator"),
        MARK => Some("byte order mark"),
        '\t' | '\n' | '\r' => None,
        '\u{fffe}' | '\u{ffff}' => Some("noncharacter"),
        c => c.is_control().then_some("control character"),
    };
    let mut line = 1;
    for c in text.chars() {
        if c == '\n' {
            line += 1;
        } else if let Some(what) = what(c) {
            let code = u32::from(c);
            return Err(DocumentError::Character { line, name: format!("U+{code:04X} ({what})"), code });
        }
    }
    Ok(())
}

/// Returns the offset of the first byte at or after `from` that is neither white space nor in a comment; the end of the
/// text if there is none.
pub(super) fn next_token(text: &str, from: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = from;
    loop {
        match bytes.get(at) {
            Some(b' ' | b'\t' | b'\r' | b'\n') => at += 1,
            Some(b'#') => at = line_end(text, at),
            _ => return at.min(text.len()),
        }
    }
}

/// Returns the offset of the line break that ends the line of `from`, or of the end of the text.
pub(super) fn line_end(text: &str, from: usize) -> usize {
    text.as_bytes()[from..].iter().position(|byte| matches!(byte, b'\r' | b'\n')).map_or(text.len(), |at| from + at)
}

/// Returns the offset after the line break at `at`; `at` itself if it is the end of the text.
pub(super) fn behind_break(text: &str, at: usize) -> usize {
    match &text.as_bytes()[at..] {
        [b'\r', b'\n', ..] => at + 2,
        [_, ..] => at + 1,
        [] => at,
    }
}

/// Whether every reader of YAML 1.1 or 1.2 takes the text for a string even without quotes.
pub(super) fn is_plainly_a_string(text: &str) -> bool {
    const WORDS: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-@:+=".contains(c))
        && !text.ends_with(':')
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

#[cfg(test)]
#[path = "document_tests.rs"]
pub(super) mod tests;
