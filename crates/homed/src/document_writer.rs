//! Writes nodes of a [`document`](crate::document) as YAML or JSON text. The caller must check that the text reads back
//! as the same nodes.

use std::fmt::Write as _;

use zeroize::Zeroizing;

use crate::document::{DocumentError, Node, Style, Value, is_plainly_a_string};

/// The position at which a node is written, which decides on the separator before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Separation {
    Start,
    AfterKey,
    AfterDash,
}

/// Returns a node in block style. The first line is not indented, and the last line has no line break.
pub(super) fn block(node: &Node, indent: usize, newline: &str) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(ROOM));
    write_node(&mut out, node, indent, Separation::Start);
    let lines = out.strip_suffix('\n').unwrap_or(&out);
    Zeroizing::new(if newline == "\n" { lines.to_owned() } else { lines.replace('\n', newline) })
}

/// Initial capacity, enough for an entry of ours: a string that grows would leave copies of a private key in memory.
const ROOM: usize = 32 * 1024;

/// Writes block style as kubectl does: lists are not indented beneath their key.
fn write_node(out: &mut String, node: &Node, indent: usize, place: Separation) {
    let separator = if place == Separation::AfterKey { " " } else { "" };
    if let Some(tag) = &node.tag {
        let _ = write!(out, "{separator}{tag}");
    }
    // After a tag, a collection must begin on its own line.
    let fresh_line = place == Separation::AfterKey || (node.tag.is_some());
    match &node.value {
        Value::Sequence(items) if !items.is_empty() => {
            if fresh_line {
                out.push('\n');
            }
            // A list in a list, or a tagged list after a dash, must be indented deeper than the dash.
            for (position, item) in items.iter().enumerate() {
                if fresh_line || position > 0 {
                    push_indent(out, indent);
                }
                out.push_str("- ");
                write_node(out, item, indent + 2, Separation::AfterDash);
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
                write_node(out, value, deeper, Separation::AfterKey);
            }
        }
        leaf => {
            if place == Separation::AfterKey || node.tag.is_some() {
                out.push(' ');
            }
            match leaf {
                Value::Sequence(_) => out.push_str("[]"),
                Value::Mapping(_) => out.push_str("{}"),
                Value::Scalar(text, Style::Block) if is_simple_block(text) => write_block(out, text, indent),
                Value::Scalar(text, style) => write_scalar(out, text, *style),
                // Our own entries have no aliases.
                Value::Alias(_) => {}
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

/// Whether a literal block can hold the text without an indentation indicator and without loss: all characters are
/// printable, the first line is not indented, and at most one line feed is at the end.
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

/// Writes a string in JSON's quotes, which are valid in YAML too. Control characters and Unicode line breaks are
/// escaped, because YAML 1.1 gives some of them a meaning, and a terminal could execute others.
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

/// The layout of a flow collection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// Whether only JSON is written.
    pub(super) json: bool,
    /// `None` for one line. Otherwise each entry has its own line; the numbers are the indentation of the line on which
    /// the collection begins, and the width of one level.
    pub(super) lines: Option<(usize, usize)>,
    pub(super) newline: &'static str,
}

/// Returns a node in flow style. Strings are in JSON's quotes, which every YAML reader understands.
pub(super) fn flow(node: &Node, layout: &Flow) -> Result<Zeroizing<String>, DocumentError> {
    let mut out = Zeroizing::new(String::with_capacity(ROOM));
    write_flow(&mut out, node, layout)?;
    Ok(out)
}

fn write_flow(out: &mut String, node: &Node, layout: &Flow) -> Result<(), DocumentError> {
    if node.tag.is_some() {
        return Err(DocumentError::NotWritable);
    }
    match &node.value {
        Value::Scalar(text, Style::Plain) if is_plain(text, layout.json) => out.push_str(text),
        Value::Scalar(text, _) => write_quoted(out, text),
        Value::Sequence(items) => write_all(out, ('[', ']'), layout, items, write_flow)?,
        Value::Mapping(pairs) => write_all(out, ('{', '}'), layout, pairs, |out, (key, value), layout| {
            write_quoted(out, key.text().unwrap_or_default());
            out.push_str(": ");
            write_flow(out, value, layout)
        })?,
        Value::Alias(_) => return Err(DocumentError::NotWritable),
    }
    Ok(())
}

/// Whether a plain scalar is not a string but a number, a boolean or null in any spelling.
fn is_plain(text: &str, json: bool) -> bool {
    if json {
        serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
    } else {
        !is_plainly_a_string(text) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"~+-._".contains(&byte))
    }
}

fn write_all<T>(
    out: &mut String,
    (open, close): (char, char),
    layout: &Flow,
    items: &[T],
    write_one: impl Fn(&mut String, &T, &Flow) -> Result<(), DocumentError>,
) -> Result<(), DocumentError> {
    let inner = Flow { lines: layout.lines.map(|(indent, step)| (indent + step, step)), ..*layout };
    let line = |out: &mut String, indent: usize| {
        out.push_str(layout.newline);
        push_indent(out, indent);
    };
    out.push(open);
    for (position, item) in items.iter().enumerate() {
        match inner.lines {
            Some((indent, _)) => {
                out.push_str(if position == 0 { "" } else { "," });
                line(out, indent);
            }
            None => out.push_str(if position == 0 { "" } else { ", " }),
        }
        write_one(out, item, &inner)?;
    }
    if let (Some((indent, _)), false) = (layout.lines, items.is_empty()) {
        line(out, indent);
    }
    out.push(close);
    Ok(())
}
