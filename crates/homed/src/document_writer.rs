//! Nodes of a [`document`](crate::document) as YAML or JSON text. That it reads the same is for the caller to see.

use std::fmt::Write as _;

use zeroize::Zeroizing;

use crate::document::{DocumentError, Node, Style, Value, is_plainly_a_string};

/// Where a node is written: decides what separates it from what is before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    AfterKey,
    AfterDash,
}

/// A node in block style, its first line not indented, without the last line break.
pub(super) fn block(node: &Node, indent: usize, newline: &str) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(ROOM));
    write_node(&mut out, node, indent, Place::Start);
    let lines = out.strip_suffix('\n').unwrap_or(&out);
    Zeroizing::new(if newline == "\n" { lines.to_owned() } else { lines.replace('\n', newline) })
}

/// Room for an entry of ours: a string that grows leaves copies of a key behind.
const ROOM: usize = 32 * 1024;

/// Writes block style as kubectl does: lists not indented beneath their key, one entry a line.
fn write_node(out: &mut String, node: &Node, indent: usize, place: Place) {
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
                write_node(out, item, indent + 2, Place::AfterDash);
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
                write_node(out, value, deeper, Place::AfterKey);
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
                // Entries of ours have none.
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

/// How a flow collection is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// Only what JSON can say.
    pub(super) json: bool,
    /// One entry a line: the indentation of the line on which it begins, and of one level.
    pub(super) lines: Option<(usize, usize)>,
    pub(super) newline: &'static str,
}

/// A node in flow style. Strings are in JSON's quotes, which every reader of YAML understands in there.
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

/// What is not a string: a number, a boolean, null, in whichever spelling.
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
