//! Replaces spans of a parsed text. Every byte outside them stays: comments, order, quoting, layout, line breaks.
//!
//! New text takes the style of the text around it: block lists keep the indentation of their dashes, flow lists and
//! JSON stay on one line or keep one entry per line. The functions only collect changes; [`Edits::apply`] makes the new
//! text in one pass. The caller must parse the new text and compare it with what it should be.

use std::ops::Range;

use zeroize::Zeroizing;

use crate::document::{Document, DocumentError, Language, Node, Style, Value, behind_break, line_end, next_token};
use crate::document_writer::{Flow, block, flow};

type Result<T> = std::result::Result<T, DocumentError>;

/// Changes of one text. They must not overlap.
#[derive(Debug)]
pub(super) struct Edits<'d> {
    document: &'d Document<'d>,
    newline: &'static str,
    changes: Vec<(Range<usize>, Zeroizing<String>)>,
}

impl<'d> Edits<'d> {
    pub(super) fn new(document: &'d Document<'d>) -> Self {
        let text = document.text;
        let end = line_end(text, 0);
        let newline = match &text.as_bytes()[end..] {
            [b'\r', b'\n', ..] => "\r\n",
            [b'\r', ..] => "\r",
            _ => "\n",
        };
        Self { document, newline, changes: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the changed text. Changes at the same place are applied in the order in which they were added.
    pub(super) fn apply(mut self) -> Result<Zeroizing<String>> {
        let text = self.document.text;
        self.changes.sort_by_key(|(range, _)| range.start);
        let more: usize = self.changes.iter().map(|(_, new)| new.len()).sum();
        // One allocation: a string that grows would leave copies of a private key in memory.
        let mut out = Zeroizing::new(String::with_capacity(text.len() + more));
        let mut done = 0;
        for (range, new) in &self.changes {
            let between = text.get(done..range.start).ok_or(DocumentError::NotWritable)?;
            out.push_str(between);
            out.push_str(new);
            done = range.end;
        }
        out.push_str(text.get(done..).ok_or(DocumentError::NotWritable)?);
        Ok(out)
    }

    fn change(&mut self, range: Range<usize>, new: impl Into<String>) {
        self.changes.push((range, Zeroizing::new(new.into())));
    }

    fn text(&self, range: Range<usize>) -> &'d str {
        self.document.text.get(range).unwrap_or_default()
    }

    /// Writes a root into a document that has none.
    pub(super) fn fill(&mut self, root: &Node) {
        let (text, vacancy) = (self.document.text, self.document.vacancy.clone());
        let new = block(root, 0, self.newline);
        if vacancy.is_empty() {
            let at = line_end(text, vacancy.start);
            let is_fresh = at == 0 || text[..at].ends_with(['\n', '\r', '\u{feff}']);
            let (before, behind) =
                (if is_fresh { "" } else { self.newline }, if at == text.len() { self.newline } else { "" });
            self.change(at..at, format!("{before}{}{behind}", *new));
        } else {
            let is_fresh = self.column(vacancy.start).is_ok_and(|column| column == 0);
            let before = if is_fresh { "" } else { self.newline };
            self.change(vacancy, format!("{before}{}", *new));
        }
    }

    /// Replaces a scalar value.
    pub(super) fn set(&mut self, key: &Node, value: &Node, new: &Node) -> Result<()> {
        // The parser does not report exactly where a block scalar begins and ends.
        let is_block = matches!(&value.value, Value::Scalar(_, Style::Block));
        if value.place.anchored || key.place.anchored || is_block {
            return Err(DocumentError::NotWritable);
        }
        let is_flow = self.document.root.as_ref().is_some_and(|root| root.place.flow);
        let written = if is_flow { flow(new, &self.inline())? } else { block(new, 0, self.newline) };
        if value.place.start == value.place.end {
            let colon = self.colon(key)?;
            self.change(colon..colon, format!(" {}", *written));
        } else {
            self.change(value.place.start..value.place.end, written.as_str());
        }
        Ok(())
    }

    /// Adds a key at the end of the top level.
    pub(super) fn add_key(&mut self, root: &Node, key: &str, value: &Node) -> Result<()> {
        let Value::Mapping(pairs) = &root.value else { return Err(DocumentError::NotWritable) };
        let pair = Node::mapping(vec![(Node::string(key), value.clone())]);
        match pairs.last() {
            _ if root.place.flow => {
                let written = flow(&pair, &self.inline())?;
                let written = written.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
                let written = written.ok_or(DocumentError::NotWritable)?;
                let ends = pairs.last().map(|(_, last)| last.place.end);
                self.add_in_flow(root, pairs.first().map(|(key, _)| key.place.start), ends, written);
            }
            Some((_, last)) => {
                let indent = self.column(pairs[0].0.place.start)?;
                let lines = format!("{}{}", " ".repeat(indent), *block(&pair, indent, self.newline));
                self.after(last, &lines)?;
            }
            None => return Err(DocumentError::NotWritable),
        }
        Ok(())
    }

    /// Adds entries at the end of the list under a key.
    pub(super) fn append(&mut self, root: &Node, (key, list): (&Node, &Node), new: &[Node]) -> Result<()> {
        let [_, ..] = new else { return Ok(()) };
        let items: &[Node] = match &list.value {
            Value::Sequence(items) => items,
            Value::Scalar(..) if list.is_null() && list.tag.is_none() => &[],
            _ => return Err(DocumentError::NotWritable),
        };
        if root.place.flow || (list.place.flow && !self.is_hollow(list)) {
            return self.append_in_flow((key, list), items, new);
        }
        if let Some(last) = items.last() {
            let indent = self.column(self.dash(key, items, 0)?)?;
            let lines = self.lines(indent, new);
            return self.after(last, &lines);
        }
        // `clusters:`, `clusters: null` and `clusters: []` become a block list, as kubectl writes one.
        let (colon, end) = (self.colon(key)?, list.place.end);
        if !self.text(colon..list.place.start).trim_ascii().is_empty() {
            return Err(DocumentError::NotWritable);
        }
        self.change(colon..end, "");
        let indent = self.column(key.place.start)?;
        let at = line_end(self.document.text, end);
        let lines = self.lines(indent, new);
        self.change(at..at, format!("{}{}", self.newline, *lines));
        Ok(())
    }

    /// Replaces one entry of a list.
    pub(super) fn replace(&mut self, (key, list): (&Node, &Node), position: usize, new: &Node) -> Result<()> {
        let Value::Sequence(items) = &list.value else { return Err(DocumentError::NotWritable) };
        let old = &items[position].place;
        if list.place.flow {
            let layout = self.layout(list, items);
            let written = flow(new, &layout)?;
            self.change(old.start..old.end, written.as_str());
            return Ok(());
        }
        let dash = self.dash(key, items, position)?;
        let indent = self.column(dash)?;
        let lines = self.lines(indent, std::slice::from_ref(new));
        let behind = if self.text(0..old.end).ends_with(['\n', '\r']) { self.newline } else { "" };
        self.change(dash..old.end, format!("{}{behind}", &lines[indent..]));
        Ok(())
    }

    /// Replaces the content of an entry. The dash and the white space before it stay.
    pub(super) fn replace_content(&mut self, entry: &Node, new: &Node) -> Result<()> {
        let (start, end) = (entry.place.start, entry.place.end);
        let behind = if self.text(start..end).ends_with(['\n', '\r']) { self.newline } else { "" };
        let written = flow(new, &self.inline())?;
        self.change(start..end, format!("{}{behind}", *written));
        Ok(())
    }

    /// Removes the entries at these positions with their lines. Comments between entries stay.
    pub(super) fn remove(&mut self, (key, list): (&Node, &Node), gone: &[usize]) -> Result<()> {
        let Value::Sequence(items) = &list.value else { return Err(DocumentError::NotWritable) };
        if list.place.flow {
            self.remove_in_flow(items, gone);
            return Ok(());
        }
        let text = self.document.text;
        for position in gone {
            let dash = self.dash(key, items, *position)?;
            let start = dash - self.column(dash)?;
            let end = items[*position].place.end;
            let end = if text[..end].ends_with(['\n', '\r']) { end } else { behind_break(text, line_end(text, end)) };
            self.change(start..end, "");
        }
        if gone.len() == items.len() {
            let colon = self.colon(key)?;
            self.change(colon..colon, " []");
        }
        Ok(())
    }

    /// Inserts whole lines after the line on which a node ends.
    fn after(&mut self, node: &Node, lines: &str) -> Result<()> {
        let (text, end) = (self.document.text, node.place.end);
        if text[..end].ends_with(['\n', '\r']) {
            self.change(end..end, format!("{lines}{}", self.newline));
            return Ok(());
        }
        let at = line_end(text, end);
        if at == text.len() && ends_in_a_block(node) {
            // The line break that is needed here would become part of the user's block scalar.
            return Err(DocumentError::NotWritable);
        }
        self.change(at..at, format!("{}{lines}", self.newline));
        Ok(())
    }

    /// Returns entries as lines of a block list, without the last line break.
    fn lines(&self, indent: usize, new: &[Node]) -> Zeroizing<String> {
        let entry = |node: &Node| format!("{}- {}", " ".repeat(indent), *block(node, indent + 2, self.newline));
        Zeroizing::new(new.iter().map(entry).collect::<Vec<_>>().join(self.newline))
    }

    /// Returns the offset after the colon of a key.
    fn colon(&self, key: &Node) -> Result<usize> {
        let at = next_token(self.document.text, key.place.end);
        if self.text(at..at + 1) == ":" { Ok(at + 1) } else { Err(DocumentError::NotWritable) }
    }

    /// Returns the offset of the dash of an entry of a block list.
    fn dash(&self, key: &Node, items: &[Node], position: usize) -> Result<usize> {
        let from = if position == 0 { self.colon(key)? } else { items[position - 1].place.end };
        let at = next_token(self.document.text, from);
        if self.text(at..at + 1) == "-" { Ok(at) } else { Err(DocumentError::NotWritable) }
    }

    /// Returns the indentation of the token at `at`, which must be the first on its line.
    fn column(&self, at: usize) -> Result<usize> {
        let before = self.text(0..at);
        let start = before.rfind(['\n', '\r']).map_or(0, |end| end + 1);
        let line = before[start..].trim_start_matches('\u{feff}');
        if line.bytes().all(|byte| byte == b' ') { Ok(line.len()) } else { Err(DocumentError::NotWritable) }
    }

    /// Whether a list is `[]` with at most spaces in it.
    fn is_hollow(&self, list: &Node) -> bool {
        list.tag.is_none()
            && self
                .text(list.place.start..list.place.end)
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
                .is_some_and(|inside| inside.bytes().all(|byte| byte == b' '))
    }

    fn append_in_flow(&mut self, (key, list): (&Node, &Node), items: &[Node], new: &[Node]) -> Result<()> {
        let layout = self.layout(list, items);
        let written = new.iter().map(|node| flow(node, &layout)).collect::<Result<Vec<_>>>()?;
        if !matches!(list.value, Value::Sequence(_)) {
            // null
            let (start, end) = (list.place.start, list.place.end);
            let before = if start == end { " " } else { "" };
            let (open, between, close) = self.wrapped(key);
            let inner = written.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(&format!(",{between}"));
            self.change(start..end, format!("{before}[{open}{inner}{close}]"));
            return Ok(());
        }
        if items.is_empty() && self.is_hollow(list) {
            let (open, between, close) = self.wrapped(key);
            let inner = written.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(&format!(",{between}"));
            self.change(list.place.start..list.place.end, format!("[{open}{inner}{close}]"));
            return Ok(());
        }
        let ends = items.last().map(|last| last.place.end);
        let first = items.first().map(|first| first.place.start);
        let between = self.between(list, first);
        let inner = written.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(&format!(",{between}"));
        self.add_in_flow(list, first, ends, &inner);
        Ok(())
    }

    /// Returns the text before, between and after the entries of a list that was empty, in the layout of the text
    /// around it.
    fn wrapped(&self, key: &Node) -> (String, String, String) {
        match self.pretty(key.place.start) {
            Some((indent, step)) => {
                let line = |indent: usize| format!("{}{}", self.newline, " ".repeat(indent));
                (line(indent + step), line(indent + step), line(indent))
            }
            None => (String::new(), " ".to_owned(), String::new()),
        }
    }

    /// Adds `inner` at the end of a flow collection.
    fn add_in_flow(&mut self, collection: &Node, first: Option<usize>, ends: Option<usize>, inner: &str) {
        let between = self.between(collection, first);
        if let Some(end) = ends {
            self.change(end..end, format!(",{between}{inner}"));
            return;
        }
        let at = collection.place.start;
        let open = self.text(at..self.document.text.len()).find(['[', '{']).map_or(at, |open| at + open + 1);
        // If the top level was empty, several keys can be inserted at this place.
        let comma = if self.changes.iter().any(|(range, _)| range.start == open) { ", " } else { "" };
        self.change(open..open, format!("{comma}{inner}"));
    }

    /// Returns the white space after the commas of a flow collection.
    fn between(&self, collection: &Node, first: Option<usize>) -> String {
        let Some(first) = first else { return " ".to_owned() };
        let before = self.text(collection.place.start..first);
        match before.rfind(['\n', '\r']) {
            Some(at) if before[at + 1..].bytes().all(|byte| matches!(byte, b' ' | b'\t')) => {
                format!("{}{}", self.newline, &before[at + 1..])
            }
            _ => " ".to_owned(),
        }
    }

    /// Returns the layout for new entries of a flow list.
    fn layout(&self, list: &Node, items: &[Node]) -> Flow {
        let at = items.first().map_or(list.place.start, |first| first.place.start);
        let is_open = |item: &Node| self.text(item.place.start..item.place.end).contains(['\n', '\r']);
        let lines = match items {
            [] => self.pretty(at).map(|(indent, step)| (indent + step, step)),
            items if items.iter().any(is_open) => self.pretty(at),
            _ => None,
        };
        Flow { lines, ..self.inline() }
    }

    fn inline(&self) -> Flow {
        Flow { json: self.document.language == Language::Json, lines: None, newline: self.newline }
    }

    /// Returns the indentation of the line of `at` and the width of one level; `None` if the text is on one line or not
    /// indented.
    fn pretty(&self, at: usize) -> Option<(usize, usize)> {
        let indent_of = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
        let before = self.text(0..at);
        let start = before.rfind(['\n', '\r'])? + 1;
        let line = &self.document.text[start..line_end(self.document.text, start)];
        let step = self.document.text.lines().map(indent_of).find(|indent| *indent > 0)?;
        Some((indent_of(line), step))
    }

    fn remove_in_flow(&mut self, items: &[Node], gone: &[usize]) {
        let is_gone = |position: usize| gone.binary_search(&position).is_ok();
        let mut position = 0;
        while position < items.len() {
            if !is_gone(position) {
                position += 1;
                continue;
            }
            let first = position;
            while position < items.len() && is_gone(position) {
                position += 1;
            }
            let last = position - 1;
            let range = match (first.checked_sub(1), items.get(position)) {
                (_, Some(next)) => items[first].place.start..next.place.start,
                (Some(before), None) => items[before].place.end..items[last].place.end,
                (None, None) => {
                    let end = items[last].place.end;
                    let comma = next_token(self.document.text, end);
                    items[first].place.start..if self.text(comma..comma + 1) == "," { comma + 1 } else { end }
                }
            };
            let kept = self.comments(&range, &items[first..=last]);
            self.change(range, kept);
        }
    }

    /// Returns the comments between the entries `items` of a flow list within `range`, each with its line break.
    fn comments(&self, range: &Range<usize>, items: &[Node]) -> String {
        let mut kept = String::new();
        let mut at = range.start;
        for (start, end) in items.iter().map(|item| (item.place.start, item.place.end)).chain([(range.end, range.end)])
        {
            while at < start {
                if self.text(at..at + 1) == "#" {
                    let end = behind_break(self.document.text, line_end(self.document.text, at)).min(start);
                    kept.push(' ');
                    kept.push_str(self.text(at..end));
                    at = end;
                } else {
                    at += 1;
                }
            }
            at = end;
        }
        kept
    }
}

/// Whether a node ends with a block scalar.
fn ends_in_a_block(node: &Node) -> bool {
    match &node.value {
        Value::Scalar(_, style) => *style == Style::Block,
        Value::Sequence(items) => !node.place.flow && items.last().is_some_and(ends_in_a_block),
        Value::Mapping(pairs) => !node.place.flow && pairs.last().is_some_and(|(_, last)| ends_in_a_block(last)),
        Value::Alias(_) => false,
    }
}
