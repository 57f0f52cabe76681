//! Parses a YAML or JSON text into a tree that records the byte range of each node, so that an [edit](crate::edit)
//! replaces one node and leaves every other byte as it is.
//!
//! A plain scalar is kept as text, never as a number or a boolean, because YAML 1.1 and 1.2 differ in what `0o17`,
//! `1.10`, `yes` or a number of forty digits means. Therefore this module uses the events of `granit-parser` (the
//! parser beneath `serde-saphyr`, with which `kube` reads kubeconfigs) instead of a deserializer. Aliases stay aliases;
//! the nodes that they expand to are only counted, up to [`MAX_NODES`].
//!
//! kubectl reads YAML 1.1. A text that kubectl could read differently is refused, with an error that names the cause.

use std::collections::BTreeMap;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span, StrInput, StructureStyle, Tag};
use thiserror::Error;

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
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// The text is not YAML 1.2, but kubectl may read it, or may stop reading before the fault.
    #[error("it does not parse at line {line}, column {column}; kubectl may read it (see `kubectl config view --raw`)")]
    Unusual {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// A character that YAML 1.1 refuses, or reads as a line break or a byte order mark where YAML 1.2 reads text.
    #[error("line {line} has a raw {name}, which kubectl does not read as text: write it in quotes as \\u{code:04X}")]
    Character {
        /// Counted from 1.
        line: usize,
        /// For example `U+2028 (line separator)`.
        name: String,
        /// The code point.
        code: u32,
    },
    /// A line is indented by a tab, which kubectl does not accept.
    #[error("line {line} is indented by a tab, which kubectl does not read: use spaces")]
    Tab {
        /// Counted from 1.
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
    /// Without quotes: the reader decides on the type.
    Plain,
    /// In quotes: a string.
    Quoted,
    /// A string after `|` or `>`. The writer makes it a block again if a simple block can hold it.
    Block,
}

/// The position of a node in the text. A node that was not read from a text has the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// Offset of the first byte. If a tag is on the same line, it is included.
    pub start: usize,
    /// Offset of the first byte after the node. The line break after a block scalar is part of the node.
    pub end: usize,
    /// The node is a collection in `[]` or `{}`.
    pub flow: bool,
    /// The node has an anchor.
    pub anchored: bool,
}

/// A node with its tag, if it has one.
#[derive(Clone, Debug)]
pub struct Node {
    /// As written, e.g. `!!binary` or `!<tag:example.com,2000:x>`.
    pub tag: Option<String>,
    pub value: Value,
    pub place: Place,
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
        Self { tag: None, value, place: Place::default() }
    }

    /// Returns a string: plain if every reader takes the text for a string, else quoted.
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

    /// Whether the value is missing, `~` or `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(text, Style::Plain) if matches!(text.as_str(), "~" | "null" | "Null" | "NULL"))
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
    /// The bytes that a new root replaces if there is no root: those of the null, or the end of the text.
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
        let options = granit_parser::options! { emit_comments: false };
        let mut reader = Reader {
            parser: Parser::new_from_str_with_options(body, options),
            text,
            mark,
            anchors: BTreeMap::new(),
            read: 0,
            done: mark,
        };
        let mut found = reader.documents()?;
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

struct Reader<'input> {
    parser: Parser<'input, StrInput<'input>>,
    text: &'input str,
    /// Length of the byte order mark, which the parser does not get.
    mark: usize,
    /// The number of nodes of each anchored node, by the number of its anchor.
    anchors: BTreeMap<usize, usize>,
    /// The number of nodes so far, with those that aliases expand to.
    read: usize,
    /// The offset at which the last token ended.
    done: usize,
}

impl<'input> Reader<'input> {
    fn next(&mut self) -> Result<(Event<'input>, Span), DocumentError> {
        match self.parser.next_event() {
            Some(Ok(found)) => Ok(found),
            Some(Err(error)) => {
                let marker = error.marker();
                if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
                    return Err(DocumentError::TooDeep);
                }
                let (line, column) = (marker.line(), marker.col() + 1);
                if kubectl_refuses(error.kind()) {
                    Err(DocumentError::Syntax { line, column })
                } else {
                    Err(DocumentError::Unusual { line, column })
                }
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Returns the root of each document; `None` for an empty one.
    fn documents(&mut self) -> Result<Vec<Option<Node>>, DocumentError> {
        let mut roots = Vec::new();
        self.roots(&mut roots).map_err(|error| match error {
            // kubectl reads only the first document, so it does not notice a fault after it.
            DocumentError::Syntax { line, column } if roots.len() > 1 || roots.iter().any(Option::is_some) => {
                DocumentError::Unusual { line, column }
            }
            error => error,
        })?;
        Ok(roots)
    }

    fn roots(&mut self, roots: &mut Vec<Option<Node>>) -> Result<(), DocumentError> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentStart(..), _) => roots.push(None),
                (Event::StreamStart | Event::DocumentEnd, _) => {}
                (node, span) => {
                    let node = self.node(node, span, 0)?;
                    if !node.place.flow {
                        self.indented(self.done, self.text.len())?;
                    }
                    if let Some(root) = roots.last_mut() {
                        *root = Some(node);
                    }
                }
            }
        }
    }

    fn node(&mut self, event: Event<'input>, span: Span, depth: usize) -> Result<Node, DocumentError> {
        if depth > MAX_DEPTH {
            return Err(DocumentError::TooDeep);
        }
        let before = self.read;
        self.count(1)?;
        let anchor = event.anchor_id();
        let tag = event.tag().map(written_tag);
        let byte = |marker: granit_parser::Marker| marker.byte_offset().map(|byte| byte + self.mark);
        let start = byte(span.tag_start.unwrap_or(span.start)).ok_or(DocumentError::NotWritable)?;
        let mut end = byte(span.end).ok_or(DocumentError::NotWritable)?;
        let mut flow = false;
        let value = match event {
            Event::Scalar(text, style, ..) => {
                let style = match style {
                    ScalarStyle::Plain => Style::Plain,
                    ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
                    ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
                };
                // In a plain scalar over several lines, an empty line becomes a line feed. It is certainly a string.
                let style = if text.contains('\n') && style == Style::Plain { Style::Quoted } else { style };
                match (text.is_empty() && style == Style::Plain, &tag) {
                    (true, None) => Value::Scalar("null".to_owned(), Style::Plain),
                    (true, Some(_)) => Value::Scalar(String::new(), Style::Quoted),
                    (false, _) => Value::Scalar(text.into_owned(), style),
                }
            }
            Event::SequenceStart(style, ..) => {
                flow = style == StructureStyle::Flow;
                let (items, behind) = self.items(depth, flow)?;
                end = if flow { behind } else { items.last().map_or(end, |item| item.place.end) };
                Value::Sequence(items)
            }
            Event::MappingStart(style, ..) => {
                flow = style == StructureStyle::Flow;
                let (pairs, behind) = self.pairs(depth, flow)?;
                end = if flow { behind } else { pairs.last().map_or(end, |(_, value)| value.place.end) };
                Value::Mapping(pairs)
            }
            Event::Alias(id) => {
                // An alias within its own anchor has no entry yet. It is refused, because a tree cannot contain itself.
                let nodes = *self.anchors.get(&id).ok_or(DocumentError::NotWritable)?;
                self.count(nodes)?;
                Value::Alias(id)
            }
            _ => return Err(DocumentError::NotWritable),
        };
        self.done = self.done.max(end);
        if let Some(anchor) = anchor {
            self.anchors.insert(anchor, self.read - before);
        }
        Ok(Node { tag, value, place: Place { start, end, flow, anchored: anchor.is_some() } })
    }

    /// Reads the entries of a list. Returns them with the offset of the list's end.
    fn items(&mut self, depth: usize, flow: bool) -> Result<(Vec<Node>, usize), DocumentError> {
        let mut items: Vec<Node> = Vec::new();
        // The parser reports the position of the first entry, but not of its dash.
        let colon = next_token(self.text, self.done);
        let start = if self.text.as_bytes().get(colon) == Some(&b':') { colon + 1 } else { self.done };
        loop {
            let done = self.done;
            match self.next()? {
                (Event::SequenceEnd, span) => return Ok((items, self.end_of(span)?)),
                (event, span) => {
                    let mut item = self.node(event, span, depth + 1)?;
                    let from = items.last().map_or(start, |before| before.place.end);
                    self.bound(&mut item, from, b'-');
                    if !flow {
                        self.indented(done, item.place.start)?;
                    }
                    items.push(item);
                }
            }
        }
    }

    /// Reads the pairs of a mapping. Returns them with the offset of the mapping's end.
    fn pairs(&mut self, depth: usize, flow: bool) -> Result<(Vec<(Node, Node)>, usize), DocumentError> {
        let mut pairs = Vec::new();
        loop {
            let done = self.done;
            let key = match self.next()? {
                (Event::MappingEnd, span) => return Ok((pairs, self.end_of(span)?)),
                (event, span) => self.node(event, span, depth + 1)?,
            };
            if matches!(key.value, Value::Sequence(_) | Value::Mapping(_)) {
                return Err(DocumentError::ComplexKey);
            }
            if !flow {
                self.indented(done, key.place.start)?;
            }
            let (event, span) = self.next()?;
            let mut value = self.node(event, span, depth + 1)?;
            self.bound(&mut value, key.place.end, b':');
            pairs.push((key, value));
        }
    }

    /// Sets the place of an empty scalar to the position after the indicator before it, because the parser does not
    /// report that position.
    fn bound(&self, node: &mut Node, from: usize, indicator: u8) {
        if node.place.start < node.place.end {
            return;
        }
        let behind = match next_token(self.text, from) {
            at if self.text.as_bytes().get(at) == Some(&indicator) => at + 1,
            _ => from,
        };
        (node.place.start, node.place.end) = (behind, behind);
    }

    /// Refuses a tab in the indentation of the node that begins at `to`, and of the lines between it and the last token
    /// (`from`). Outside of flow collections, go-yaml reports "character that cannot start any token" for such a tab.
    fn indented(&self, from: usize, to: usize) -> Result<(), DocumentError> {
        let start = self.text[..from].rfind(['\n', '\r']).map_or(0, |at| at + 1);
        let between = self.text.get(from..to).unwrap_or_default();
        // If a token ends at `from`, the white space after it on the same line may contain tabs.
        let is_fresh = self.text[start..from].bytes().all(|byte| byte == b' ');
        let mut lines = between.split(['\n', '\r']);
        let first = lines.next().filter(|_| is_fresh);
        let is_tabbed =
            |line: &str| line[..line.len() - line.trim_start_matches([' ', '\t', '-']).len()].contains('\t');
        if first.into_iter().chain(lines).any(is_tabbed) {
            let line = self.text[..to].matches('\n').count() + 1;
            return Err(DocumentError::Tab { line });
        }
        Ok(())
    }

    fn end_of(&self, span: Span) -> Result<usize, DocumentError> {
        span.end.byte_offset().map(|byte| byte + self.mark).ok_or(DocumentError::NotWritable)
    }

    fn count(&mut self, nodes: usize) -> Result<(), DocumentError> {
        self.read += nodes;
        if self.read > MAX_NODES { Err(DocumentError::TooMuch) } else { Ok(()) }
    }
}

/// Whether kubectl refuses a text for the same reason. This list was tested with `kubectl config view` on kubeconfigs
/// with one or two faults. It leaves out what go-yaml accepts (a comment right after a quote, a quoted scalar that
/// continues in column 0, a directive that ends a document), every kind that was not tested, and every kind that is
/// also reported after the end of `{}` or `[]`.
fn kubectl_refuses(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::BlockEntryInFlowCollection
            | ErrorKind::BlockSequenceEntryNotAllowed
            | ErrorKind::ExpectedBlockMappingKey
            | ErrorKind::ExpectedBlockSequenceEntry
            | ErrorKind::ExpectedFlowMappingSeparator
            | ErrorKind::ExpectedFlowSequenceSeparator
            | ErrorKind::InvalidBlockScalarHeader
            | ErrorKind::InvalidColonPlacement
            | ErrorKind::InvalidTagTerminator
            | ErrorKind::MappingKeyNotAllowed
            | ErrorKind::MappingValueNotAllowed
            | ErrorKind::MismatchedFlowCollectionEnd { .. }
            | ErrorKind::SimpleKeyExpected
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation
            | ErrorKind::UnclosedFlowCollection { .. }
            | ErrorKind::UnclosedQuotedScalar
            | ErrorKind::UnexpectedCharacter { .. }
            | ErrorKind::UnexpectedEofBlockMapping
            | ErrorKind::UnexpectedEofBlockSequence
            | ErrorKind::UnexpectedEofImplicitFlowMapping
            | ErrorKind::UnknownAnchor
    )
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

/// Formats a tag so that it needs no `%TAG` directive.
fn written_tag(tag: &Tag) -> String {
    let (handle, suffix) = tag.parts();
    match handle {
        "tag:yaml.org,2002:" => format!("!!{suffix}"),
        "!" => format!("!{suffix}"),
        "" if suffix == "!" => "!".to_owned(),
        _ => format!("!<{handle}{suffix}>"),
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
