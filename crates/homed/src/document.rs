//! A YAML or JSON text as a tree that knows where in the text each node stands, so that an
//! [edit](crate::edit) replaces what it means to and leaves every other byte as it is.
//!
//! A plain scalar is kept as the text that it is, never as a number or a boolean: what `0o17`, `1.10`, `yes` or a
//! number of forty digits means is for the reader of the file, and readers differ (YAML 1.1 and 1.2). So this is
//! built on the events of `granit-parser` (the parser beneath `serde-saphyr`, which `kube` reads kubeconfigs with),
//! not on a deserializer. Aliases stay aliases; what they stand for is only counted, within [`MAX_NODES`].
//!
//! kubectl reads YAML 1.1. A text that the two could read differently is refused by name.

use std::collections::BTreeMap;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span, StrInput, StructureStyle, Tag};
use thiserror::Error;

/// Most nodes after aliases are replaced. A kubeconfig of [1 MiB](crate::files::MAX_FILE_BYTES) has fewer than
/// 100,000; nine lines of nested aliases ("billion laughs") have 10^9, and kubectl refuses them too.
pub const MAX_NODES: usize = 200_000;

/// Deepest nesting. The deepest known kubeconfigs (exec plugins) have 7; recursion here costs stack.
const MAX_DEPTH: usize = 64;

/// Why a text is not a document. Positions only: the file is a user's and may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DocumentError {
    /// From this byte on.
    #[error("it is not UTF-8 from byte {0}")]
    NotUtf8(usize),
    /// By its byte order mark; kubectl reads it.
    #[error("it is in UTF-16: save it in UTF-8")]
    Utf16,
    /// Not YAML, to kubectl neither.
    #[error("it does not parse as YAML at line {line}, column {column}")]
    Syntax {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// Not YAML 1.2; kubectl may read it, or stop before it.
    #[error("it does not parse at line {line}, column {column}; kubectl may read it (see `kubectl config view --raw`)")]
    Unusual {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// A character that YAML 1.1 takes for a line break or a byte order mark and YAML 1.2 for text, or that it refuses.
    #[error("line {line} has a raw {name}, which kubectl does not read as text: write it in quotes as \\u{code:04X}")]
    Character {
        /// From 1.
        line: usize,
        /// `U+2028 (line separator)`.
        name: String,
        /// Its number.
        code: u32,
    },
    /// kubectl takes no tab there.
    #[error("line {line} is indented by a tab, which kubectl does not read: use spaces")]
    Tab {
        /// From 1.
        line: usize,
    },
    /// More than one `---` document.
    #[error("it has more than one YAML document")]
    SeveralDocuments,
    /// See [`MAX_NODES`].
    #[error("it has more than {MAX_NODES} nodes, counting those that its aliases expand to")]
    TooMuch,
    /// See [`MAX_DEPTH`].
    #[error("it is nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// Kubernetes' own reader refuses these too.
    #[error("a mapping key is itself a list or a mapping")]
    ComplexKey,
    /// Nothing that kubectl wrote; rather not touched than changed.
    #[error("its layout cannot be edited without losing content")]
    NotWritable,
}

/// How a scalar stands in the text: whether a reader may see a number, a boolean or null in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Without quotes: the reader decides what it is.
    Plain,
    /// In quotes: a string.
    Quoted,
    /// `|` or `>`: a string; written as a block again where that is possible.
    Block,
}

/// Where a node stands. Nodes that are not from a text stand nowhere (the default).
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// First byte, with the tag if there is one on its line.
    pub start: usize,
    /// First byte behind it. Behind the line break if it is a block scalar.
    pub end: usize,
    /// In `[]` or `{}`.
    pub flow: bool,
    /// It has an anchor.
    pub anchored: bool,
}

/// A node with its tag, if it has one.
#[derive(Clone, Debug)]
pub struct Node {
    /// As written, e.g. `!!binary` or `!<tag:example.com,2000:x>`.
    pub tag: Option<String>,
    /// What it is.
    pub value: Value,
    /// Where it is.
    pub place: Place,
}

impl Eq for Node {}

impl PartialEq for Node {
    /// Whether every reader sees the same in both, wherever they stand.
    fn eq(&self, other: &Self) -> bool {
        self.tag == other.tag && self.value == other.value
    }
}

/// What a node is.
#[derive(Clone, Debug, Eq)]
pub enum Value {
    /// Any leaf.
    Scalar(String, Style),
    /// A list.
    Sequence(Vec<Node>),
    /// A mapping; order and duplicates are kept, keys are scalars or aliases.
    Mapping(Vec<(Node, Node)>),
    /// What the anchor of this number (in the order of the text) stands at.
    Alias(usize),
}

impl PartialEq for Value {
    /// Whether every reader sees the same in both. Whether a string is in quotes, in a block or plain is layout.
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

    /// A string, plain where every reader takes it for a string.
    #[must_use]
    pub fn string(text: impl Into<String>) -> Self {
        let text = text.into();
        let style = if is_plainly_a_string(&text) { Style::Plain } else { Style::Quoted };
        Self::untagged(Value::Scalar(text, style))
    }

    /// A list.
    #[must_use]
    pub fn sequence(items: Vec<Node>) -> Self {
        Self::untagged(Value::Sequence(items))
    }

    /// A mapping.
    #[must_use]
    pub fn mapping(pairs: Vec<(Node, Node)>) -> Self {
        Self::untagged(Value::Mapping(pairs))
    }

    /// The text of a scalar.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text, _) => Some(text),
            _ => None,
        }
    }

    /// Nothing, `~` or `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(text, Style::Plain) if matches!(text.as_str(), "~" | "null" | "Null" | "NULL"))
    }

    /// The value of a key of a mapping, the first if there are several.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Mapping(pairs) => pairs.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Whether an anchor, an alias or a merge key is in it, or it is one.
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

/// Which of the two languages the text is in: `jq` must still read a JSON file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// YAML, of any style.
    Yaml,
    /// JSON.
    Json,
}

/// A text, parsed.
#[derive(Clone, Debug)]
pub struct Document<'text> {
    /// All of it.
    pub text: &'text str,
    /// What it is written in.
    pub language: Language,
    /// `None`: nothing but white space and comments, or null.
    pub root: Option<Node>,
    /// Where a root goes if there is none: the bytes of the null that stands there.
    pub vacancy: std::ops::Range<usize>,
}

impl<'text> Document<'text> {
    /// Parses a text.
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
        // What kubectl reads then is nothing, and what it writes is all of it.
        if root.is_none() && !is_alone {
            return Err(DocumentError::SeveralDocuments);
        }
        Ok(Self { text, language, root, vacancy })
    }
}

/// The byte order mark: at the beginning it says that the text is UTF-8.
const MARK: char = '\u{feff}';

/// Refuses characters that YAML 1.1 (`yaml_parser_scan_to_next_token`, `is_break`, `is_printable` of go-yaml) reads in
/// another way than YAML 1.2, anywhere in the text: they end a comment too.
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
    /// Bytes before what the parser sees.
    mark: usize,
    /// Nodes of what each anchor stands at.
    anchors: BTreeMap<usize, usize>,
    read: usize,
    /// Where the last token ended.
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
                if is_nobodys(error.kind()) {
                    Err(DocumentError::Syntax { line, column })
                } else {
                    Err(DocumentError::Unusual { line, column })
                }
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The root of each document.
    fn documents(&mut self) -> Result<Vec<Option<Node>>, DocumentError> {
        let mut roots = Vec::new();
        self.roots(&mut roots).map_err(|error| match error {
            // kubectl reads the first document, and nothing behind it.
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
                // A plain scalar over several lines holds a line feed where a line was empty: certainly a string.
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
                // An alias within its own anchor has no entry yet: a tree cannot hold itself.
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

    /// Up to the end of a list, and where that is.
    fn items(&mut self, depth: usize, flow: bool) -> Result<(Vec<Node>, usize), DocumentError> {
        let mut items: Vec<Node> = Vec::new();
        // The parser says where the first entry is, not its dash.
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

    /// Up to the end of a mapping, and where that is.
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

    /// A scalar that is not written at all ends behind the indicator before it, which the parser does not tell.
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

    /// Refuses a tab in the indentation of what begins at `to`, and of the lines since the last token: outside of flow
    /// collections go-yaml finds "character that cannot start any token" there.
    fn indented(&self, from: usize, to: usize) -> Result<(), DocumentError> {
        let start = self.text[..from].rfind(['\n', '\r']).map_or(0, |at| at + 1);
        let between = self.text.get(from..to).unwrap_or_default();
        // What stands before `from` on its line ends a token, and white space behind a token may be anything.
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

/// Whether kubectl refuses a text for the same reason. Tried with `kubectl config view` on kubeconfigs with one or two
/// faults: go-yaml takes a comment right behind a quote, a quoted scalar that goes on in column 0, and a directive that
/// ends a document. A kind that was not tried, or that is also found behind the end of `{}` or `[]`, is not one of these.
fn is_nobodys(kind: &ErrorKind) -> bool {
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

/// The first byte from `from` on that is neither white space nor in a comment; the end of the text if there is none.
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

/// Where the line of `from` ends: at its line break, or at the end of the text.
pub(super) fn line_end(text: &str, from: usize) -> usize {
    text.as_bytes()[from..].iter().position(|byte| matches!(byte, b'\r' | b'\n')).map_or(text.len(), |at| from + at)
}

/// A tag as it can be written without a `%TAG` directive.
fn written_tag(tag: &Tag) -> String {
    let (handle, suffix) = tag.parts();
    match handle {
        "tag:yaml.org,2002:" => format!("!!{suffix}"),
        "!" => format!("!{suffix}"),
        "" if suffix == "!" => "!".to_owned(),
        _ => format!("!<{handle}{suffix}>"),
    }
}

/// Whether every YAML reader, of 1.1 or of 1.2, takes the text for a string without quotes.
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
