//! A YAML or JSON text as a tree that can be written again without loss: comments, anchors and layout apart.
//!
//! A plain scalar is kept as the text that it is, never as a number or a boolean: what `0o17`, `1.10`, `yes` or a
//! number of forty digits means is for whoever reads the file, and readers differ (YAML 1.1 and 1.2). So this is
//! built on the events of `granit-parser` (the parser beneath `serde-saphyr`, which `kube` reads kubeconfigs with),
//! not on a deserializer, and has its own small writer. Tags, duplicate keys and merge keys (`<<`) are kept as they
//! are. Aliases are replaced by what they stand for, within [`MAX_NODES`].
//!
//! What cannot be written so that it reads the same again is refused by [`Document::write`]: it reads its own output.

use std::collections::BTreeMap;

use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, StrInput, Tag};
use thiserror::Error;

use crate::document_writer::{write_json, write_yaml};

/// Most nodes after aliases are replaced. A kubeconfig of [1 MiB](crate::files::MAX_FILE_BYTES) has fewer than
/// 100,000; nine lines of nested aliases ("billion laughs") have 10^9.
pub const MAX_NODES: usize = 200_000;

/// Most bytes of scalars after aliases are replaced: four times the largest file that is read.
const MAX_SCALAR_BYTES: usize = 4 * 1024 * 1024;

/// Deepest nesting. The deepest known kubeconfigs (exec plugins) have 7; recursion here costs stack.
const MAX_DEPTH: usize = 64;

/// Why a text is not a document. Positions only: the file is a user's and may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DocumentError {
    /// From this byte on.
    #[error("it is not UTF-8 from byte {0}")]
    NotUtf8(usize),
    /// Not YAML.
    #[error("it does not parse as YAML at line {line}, column {column}")]
    Syntax {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// More than one `---` document.
    #[error("it has more than one YAML document")]
    SeveralDocuments,
    /// See [`MAX_NODES`].
    #[error("its aliases stand for too much")]
    TooMuch,
    /// See [`MAX_DEPTH`].
    #[error("it is nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// Kubernetes' own reader refuses these too.
    #[error("a mapping key is itself a list or a mapping")]
    ComplexKey,
    /// Nothing that kubectl wrote or could read; rather not touched than changed.
    #[error("it cannot be written again without a loss")]
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

/// A node with its tag, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// As written, e.g. `!!binary` or `!<tag:example.com,2000:x>`.
    pub tag: Option<String>,
    /// What it is.
    pub value: Value,
}

/// What a node is.
#[derive(Clone, Debug, Eq)]
pub enum Value {
    /// Any leaf.
    Scalar(String, Style),
    /// A list.
    Sequence(Vec<Node>),
    /// A mapping; order and duplicates are kept, keys are scalars.
    Mapping(Vec<(Node, Node)>),
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
            _ => false,
        }
    }
}

impl Node {
    fn untagged(value: Value) -> Self {
        Self { tag: None, value }
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
}

/// Which of the two languages the text was in, and is to be in again: `jq` must still read a JSON file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Block style YAML.
    Yaml,
    /// Indented JSON.
    Json,
}

/// A text, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// What it was written in.
    pub language: Language,
    /// `None`: nothing but white space and comments, or null.
    pub root: Option<Node>,
}

impl Document {
    /// Parses a text.
    pub fn parse(text: &str) -> Result<Self, DocumentError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let language = match serde_json::from_str::<serde::de::IgnoredAny>(text) {
            Ok(_) => Language::Json,
            Err(_) => Language::Yaml,
        };
        let options = granit_parser::options! { emit_comments: false };
        let mut reader = Reader::new(text, options);
        let root = reader.document()?.filter(|root| !root.is_null());
        Ok(Self { language, root })
    }

    /// Writes it, and makes sure that it reads the same.
    pub fn write(&self) -> Result<String, DocumentError> {
        let mut text = String::new();
        if let Some(root) = &self.root {
            match self.language {
                Language::Yaml => write_yaml(&mut text, root),
                Language::Json => {
                    write_json(&mut text, root, 0)?;
                    text.push('\n');
                }
            }
        }
        let reads_the_same = Self::parse(&text).is_ok_and(|again| again.root == self.root);
        if reads_the_same { Ok(text) } else { Err(DocumentError::NotWritable) }
    }
}

struct Reader<'input> {
    parser: Parser<'input, StrInput<'input>>,
    anchors: BTreeMap<usize, (Node, Size)>,
    read: Size,
}

/// What a tree costs.
#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

impl<'input> Reader<'input> {
    fn new(text: &'input str, options: Options) -> Self {
        Self {
            parser: Parser::new_from_str_with_options(text, options),
            anchors: BTreeMap::new(),
            read: Size::default(),
        }
    }

    fn next(&mut self) -> Result<Event<'input>, DocumentError> {
        match self.parser.next_event() {
            Some(Ok((event, _span))) => Ok(event),
            Some(Err(error)) => {
                let marker = error.marker();
                if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
                    return Err(DocumentError::TooDeep);
                }
                Err(DocumentError::Syntax { line: marker.line(), column: marker.col() + 1 })
            }
            None => Ok(Event::StreamEnd),
        }
    }

    fn document(&mut self) -> Result<Option<Node>, DocumentError> {
        let mut root = None;
        let mut documents = 0_u32;
        loop {
            match self.next()? {
                Event::StreamEnd => return Ok(root),
                Event::DocumentStart(..) => {
                    documents += 1;
                    if documents > 1 {
                        return Err(DocumentError::SeveralDocuments);
                    }
                }
                Event::StreamStart | Event::DocumentEnd => {}
                node => root = Some(self.node(node, 0)?),
            }
        }
    }

    fn node(&mut self, event: Event<'input>, depth: usize) -> Result<Node, DocumentError> {
        if depth > MAX_DEPTH {
            return Err(DocumentError::TooDeep);
        }
        let before = self.read;
        self.count(Size { nodes: 1, bytes: event.scalar().map_or(0, |(text, _)| text.len()) })?;
        let anchor = event.anchor_id();
        let tag = event.tag().map(written_tag);
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
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => break Value::Sequence(items),
                        event => items.push(self.node(event, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(..) => {
                let mut pairs = Vec::new();
                loop {
                    let key = match self.next()? {
                        Event::MappingEnd => break Value::Mapping(pairs),
                        event => self.node(event, depth + 1)?,
                    };
                    if key.text().is_none() {
                        return Err(DocumentError::ComplexKey);
                    }
                    let event = self.next()?;
                    pairs.push((key, self.node(event, depth + 1)?));
                }
            }
            Event::Alias(id) => {
                // An alias within its own anchor has no entry yet: a tree cannot hold itself.
                let (node, size) = self.anchors.get(&id).cloned().ok_or(DocumentError::NotWritable)?;
                self.count(size)?;
                return Ok(node);
            }
            _ => return Err(DocumentError::NotWritable),
        };
        let node = Node { tag, value };
        if let Some(anchor) = anchor {
            let size = Size { nodes: self.read.nodes - before.nodes, bytes: self.read.bytes - before.bytes };
            // The copy that is kept for aliases costs as much as the tree itself.
            self.count(size)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok(node)
    }

    fn count(&mut self, more: Size) -> Result<(), DocumentError> {
        self.read.nodes += more.nodes;
        self.read.bytes += more.bytes;
        if self.read.nodes > MAX_NODES || self.read.bytes > MAX_SCALAR_BYTES {
            return Err(DocumentError::TooMuch);
        }
        Ok(())
    }
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
fn is_plainly_a_string(text: &str) -> bool {
    const WORDS: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-@:+=".contains(c))
        && !text.ends_with(':')
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

#[cfg(test)]
#[path = "document_tests.rs"]
pub(super) mod tests;
