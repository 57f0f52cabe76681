//! How things are printed: tables for people, JSON for programs, progress where somebody looks.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value};

/// One row of a view.
pub(super) type Row = Map<String, Value>;

/// Prints `text` with a newline at its end. A reader that went away (`| head`) is no failure.
pub(super) fn line(text: impl AsRef<str>) {
    let text: String = text.as_ref().trim_end_matches('\n').split('\n').map(clean).collect::<Vec<_>>().join("\n");
    if text.is_empty() {
        return;
    }
    if let Err(error) = writeln!(io::stdout(), "{text}")
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}

/// Prints a value for programs.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// The `columns` of `rows` as a table with a heading; nothing for no rows.
pub(super) fn table(rows: &[Row], columns: &[&str]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|column| column.to_uppercase().replace('_', " ")));
    for row in rows {
        table.add_row(columns.iter().map(|column| cell(row.get(*column).unwrap_or(&Value::Null))));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// `key  value` lines, one each column.
pub(super) fn pairs(row: &Row) -> String {
    let width = row.keys().map(String::len).max().unwrap_or(0);
    let lines: Vec<String> =
        row.iter().map(|(key, value)| format!("{:<width$}  {}", key.replace('_', " "), cell(value))).collect();
    lines.join("\n")
}

/// A value as people read it.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => clean(text),
        other => other.to_string(),
    }
}

/// Text of the directory must not drive the terminal.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A sign of life on standard error while `text` is under way, if somebody looks.
pub(super) fn progress(text: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(text);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// How many of `length` are done, on standard error, if somebody looks.
pub(super) fn bar(length: u64, text: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length).with_message(text);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos} of {len} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(value: &Value) -> Row {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn a_table_has_a_heading_and_a_dash_for_nothing() {
        let rows =
            [row(&json!({"name": "foo", "last_error": null})), row(&json!({"name": "barbaz", "last_error": "full"}))];
        let expected = " NAME    LAST ERROR\n foo     -\n barbaz  full";
        assert_eq!(table(&rows, &["name", "last_error"]), expected);
        assert_eq!(table(&[], &["name"]), "");
    }

    #[test]
    fn names_do_not_drive_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb"), "a\u{fffd}[31mb");
    }
}
