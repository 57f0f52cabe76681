//! Reads the parser's events into a tree.

use std::collections::BTreeMap;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span, StrInput, StructureStyle, Tag};

use super::{
    DocumentError, MAX_DEPTH, MAX_NODES, Node, NodePosition, Style, Value, behind_break, line_end, next_token,
};

pub(super) struct Reader<'input> {
    parser: Parser<'input, StrInput<'input>>,
    text: &'input str,
    /// Length of the byte order mark, which the parser does not get.
    mark: usize,
    /// The number of nodes of each anchored node, by the number of its anchor.
    anchors: BTreeMap<usize, usize>,
    /// The number of nodes so far, including the nodes that aliases expand to.
    read: usize,
    /// The offset at which the last token ended.
    done: usize,
}

impl<'input> Reader<'input> {
    /// `mark` is the length of the byte order mark at the beginning of `text`.
    pub(super) fn new(text: &'input str, mark: usize) -> Self {
        let options = granit_parser::options! { emit_comments: false };
        let parser = Parser::new_from_str_with_options(&text[mark..], options);
        Self { parser, text, mark, anchors: BTreeMap::new(), read: 0, done: mark }
    }

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
    pub(super) fn documents(&mut self) -> Result<Vec<Option<Node>>, DocumentError> {
        let mut roots = Vec::new();
        self.roots(&mut roots).map_err(|error| match error {
            // kubectl reads only the first document, so it does not notice a fault in a later one.
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
                    ScalarStyle::Literal | ScalarStyle::Folded => {
                        end = block_end(self.text, start, end, &text);
                        Style::Block
                    }
                };
                // In a plain scalar over several lines, an empty line becomes a line feed. Every reader takes such a
                // scalar for a string.
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
        Ok(Node { tag, value, place: NodePosition { start, end, flow, anchored: anchor.is_some() } })
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
    /// (`from`). Outside flow collections, go-yaml reports "character that cannot start any token" for such a tab.
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
/// with one or two faults. It leaves out kinds that go-yaml accepts: a comment right after a quote, a quoted scalar
/// that continues in column 0, a directive that ends a document. It also leaves out kinds that were not tested, and
/// kinds that are reported even after the end of `{}` or `[]`.
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

/// Returns the end of a block scalar, after its last line break. The parser also counts the indentation of the next line
/// and blank lines that are not part of the value.
fn block_end(text: &str, start: usize, end: usize, value: &str) -> usize {
    let scalar = text.get(start..end).unwrap_or_default();
    let last = value.trim_end_matches('\n').rsplit('\n').next().unwrap_or_default();
    // Blank lines are part of the value after `|+`, or if they have more spaces than the indentation.
    let has_blank_end = value.ends_with("\n\n") || last.trim_matches(' ').is_empty();
    if has_blank_end {
        let content = scalar.trim_end_matches(' ');
        return if content.ends_with(['\n', '\r']) { start + content.len() } else { end };
    }
    behind_break(text, line_end(text, start + scalar.trim_end_matches([' ', '\n', '\r']).len()))
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
