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
use std::fmt::Write as _;

use granit_parser::{Event, Options, Parser, ScalarStyle, StrInput, Tag};
use thiserror::Error;

/// Most nodes after aliases are replaced. A kubeconfig of [1 MiB](super::files::MAX_FILE_BYTES) has fewer than
/// 100,000; nine lines of nested aliases ("billion laughs") have 10^9.
pub const MAX_NODES: usize = 200_000;

/// Most bytes of scalars after aliases are replaced: four times the largest file that is read.
const MAX_SCALAR_BYTES: usize = 4 * 1024 * 1024;

/// Deepest nesting. The deepest known kubeconfigs (exec plugins) have 7; recursion here costs stack.
const MAX_DEPTH: usize = 64;

/// Why a text is not a document. Positions only: the file is a user's and may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DocumentError {
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
                Language::Yaml => write_yaml(&mut text, root, 0, Place::Start),
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

/// Where a node is written: decides what separates it from what is before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    AfterKey,
    AfterDash,
}

/// Writes block style as kubectl does: lists not indented beneath their key, one entry a line.
fn write_yaml(out: &mut String, node: &Node, indent: usize, place: Place) {
    let separator = if place == Place::AfterKey { " " } else { "" };
    if let Some(tag) = &node.tag {
        let _ = write!(out, "{separator}{tag}");
    }
    // After a tag, a collection must begin on its own line.
    let fresh_line = place == Place::AfterKey || (node.tag.is_some());
    match &node.value {
        Value::Sequence(items) if !items.is_empty() => {
            if fresh_line {
                out.push('\n');
            }
            // A list in a list, or a tagged one after a dash, must be deeper than its dash.
            for (position, item) in items.iter().enumerate() {
                if fresh_line || position > 0 {
                    push_indent(out, indent);
                }
                out.push_str("- ");
                write_yaml(out, item, indent + 2, Place::AfterDash);
            }
        }
        Value::Mapping(pairs) if !pairs.is_empty() => {
            if fresh_line {
                out.push('\n');
            }
            for (position, (key, value)) in pairs.iter().enumerate() {
                if fresh_line || position > 0 {
                    push_indent(out, indent);
                }
                write_key(out, key);
                let deeper = if matches!(value.value, Value::Sequence(_)) { indent } else { indent + 2 };
                write_yaml(out, value, deeper, Place::AfterKey);
            }
        }
        leaf => {
            if place == Place::AfterKey || node.tag.is_some() {
                out.push(' ');
            }
            match leaf {
                Value::Sequence(_) => out.push_str("[]"),
                Value::Mapping(_) => out.push_str("{}"),
                Value::Scalar(text, Style::Block) if is_simple_block(text) => write_block(out, text, indent),
                Value::Scalar(text, style) => write_scalar(out, text, *style),
            }
            out.push('\n');
        }
    }
}

fn write_key(out: &mut String, key: &Node) {
    if let Some(tag) = &key.tag {
        let _ = write!(out, "{tag} ");
    }
    if let Value::Scalar(text, style) = &key.value {
        write_scalar(out, text, *style);
    }
    out.push(':');
}

fn push_indent(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn write_scalar(out: &mut String, text: &str, style: Style) {
    match style {
        Style::Plain => out.push_str(text),
        Style::Quoted | Style::Block => write_quoted(out, text),
    }
}

/// Whether a literal block needs no indentation indicator and loses nothing: lines of printable characters, the
/// first not indented, ended by one line feed or none.
fn is_simple_block(text: &str) -> bool {
    let body = text.strip_suffix('\n').unwrap_or(text);
    !body.is_empty()
        && !body.starts_with([' ', '\n'])
        && !body.ends_with('\n')
        && body.chars().all(|c| c == '\n' || (' '..='~').contains(&c))
        && body.lines().all(|line| !line.ends_with(' '))
}

fn write_block(out: &mut String, text: &str, indent: usize) {
    out.push_str(if text.ends_with('\n') { "|" } else { "|-" });
    for line in text.lines() {
        out.push('\n');
        if !line.is_empty() {
            push_indent(out, indent.max(2));
            out.push_str(line);
        }
    }
}

/// JSON's quoting, which YAML's double quotes understand. Everything that is not plainly printable is escaped: the
/// line breaks of Unicode mean something in YAML, and a terminal should not be told to do things.
fn write_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Writes JSON, two spaces an indent. Only what JSON can say: a plain scalar that is not one of JSON's is a string
/// that we made.
fn write_json(out: &mut String, node: &Node, indent: usize) -> Result<(), DocumentError> {
    if node.tag.is_some() {
        return Err(DocumentError::NotWritable);
    }
    match &node.value {
        Value::Scalar(text, Style::Plain) if serde_json::from_str::<serde_json::Value>(text).is_ok() => {
            out.push_str(text);
        }
        Value::Scalar(text, _) => write_quoted(out, text),
        Value::Sequence(items) => {
            write_json_items(out, ('[', ']'), indent, items, |out, item| write_json(out, item, indent + 2))?;
        }
        Value::Mapping(pairs) => {
            write_json_items(out, ('{', '}'), indent, pairs, |out, (key, value)| {
                write_quoted(out, key.text().unwrap_or_default());
                out.push_str(": ");
                write_json(out, value, indent + 2)
            })?;
        }
    }
    Ok(())
}

fn write_json_items<T>(
    out: &mut String,
    (open, close): (char, char),
    indent: usize,
    items: &[T],
    write_item: impl Fn(&mut String, &T) -> Result<(), DocumentError>,
) -> Result<(), DocumentError> {
    out.push(open);
    for (position, item) in items.iter().enumerate() {
        out.push_str(if position == 0 { "\n" } else { ",\n" });
        push_indent(out, indent + 2);
        write_item(out, item)?;
    }
    if !items.is_empty() {
        out.push('\n');
        push_indent(out, indent);
    }
    out.push(close);
    Ok(())
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
