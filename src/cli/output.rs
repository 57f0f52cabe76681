//! How things are printed: tables for people, JSON for programs, progress where somebody looks.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use clap::builder::StyledStr;
use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value};

use super::context::Context;
use super::exit::{Exit, Failure};

/// One row of a view.
pub(super) type Row = Map<String, Value>;

/// How much fits into a line; set once, before anything is printed.
static WIDTH: OnceLock<Option<usize>> = OnceLock::new();

/// Lets lines be as long as they are, if `wide`; else as long as the terminal has columns. `COLUMNS` says so in its place,
/// also where no terminal is. A file or another program gets whole lines.
pub(super) fn set_width(wide: bool) {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let shown = || console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    let width = if wide { None } else { said.or_else(shown) };
    // Only the first of two would count, and there is one.
    let _ = WIDTH.set(width.map(|width| width.max(NARROWEST)));
}

fn width() -> Option<usize> {
    WIDTH.get().copied().flatten()
}

/// Below this, names and hashes do not fit.
const NARROWEST: usize = 40;

/// Prints `text` with a newline at its end, folded where it is longer than the terminal. A reader that went away (`| head`) is
/// no failure.
pub(super) fn line(text: impl AsRef<str>) {
    let lines = text.as_ref().trim_end_matches('\n').split('\n');
    print(&lines.map(|line| folded(&clean(line), width())).collect::<Vec<_>>().join("\n"));
}

/// The same, with lines coloured by their sign: `+` access comes or all is well, `-` access goes, `~` a change, `!` look.
pub(super) fn signed(text: impl AsRef<str>) {
    let lines = text.as_ref().trim_end_matches('\n').split('\n');
    let lines = lines.map(|line| coloured(&folded(&clean(line), width()), has_colour()));
    print(&lines.collect::<Vec<_>>().join("\n"));
}

/// Prints `text` as it is: for programs, or a file.
pub(super) fn raw(text: &str) {
    print(&text.trim_end_matches('\n').split('\n').map(clean).collect::<Vec<_>>().join("\n"));
}

/// Prints `text` on standard error, and folds it if that is a terminal. Names of a directory and keys of a file are in it.
pub(super) fn error(text: &str) {
    let width = width().filter(|_| io::stderr().is_terminal());
    let lines: Vec<String> = text.trim_end().split('\n').map(|line| folded(&clean(line), width)).collect();
    // Nothing is left to do about a closed standard error.
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
}

fn print(text: &str) {
    if text.is_empty() {
        return;
    }
    if let Err(error) = writeln!(io::stdout(), "{text}")
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}

/// Colour where the terminal has it and nobody forbids it (<https://no-color.org>).
fn has_colour() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}

/// Prints the help, folded. Its options and commands stay apart from what is said of them.
pub(super) fn help(text: &StyledStr) {
    let text = if has_colour() { text.ansi().to_string() } else { text.to_string() };
    let width = width().unwrap_or(HELP_WIDTH).min(HELP_WIDTH);
    print(&text.trim_end().split('\n').map(|line| folded(line, Some(width))).collect::<Vec<_>>().join("\n"));
}

/// Help is read, so it has the width of a page.
const HELP_WIDTH: usize = 80;

/// Colours one line by its sign.
fn coloured(line: &str, has_colour: bool) -> String {
    let colour = match line.get(..2) {
        Some("+ ") => 32,
        Some("- ") => 31,
        Some("~ ") => 33,
        Some("! ") => 35,
        _ => return line.to_owned(),
    };
    if has_colour { format!("\u{1b}[{colour}m{line}\u{1b}[0m") } else { line.to_owned() }
}

/// The line in pieces that fit, the later ones indented. A word that is longer stays whole, so that it can be copied.
pub(super) fn folded(line: &str, width: Option<usize>) -> String {
    let length = |text: &str| console::measure_text_width(text);
    let Some(width) = width.filter(|width| length(line) > *width) else { return line.to_owned() };
    let start = line.len() - line.trim_start().len();
    // What stands apart by two blanks is a column: the last that begins in the left half is gone on with.
    let columns = line.char_indices().filter(|(place, found)| *found != ' ' && line[..*place].ends_with("  "));
    let mut columns = columns.map(|(place, _)| place);
    let column = columns.rfind(|place| *place > start && length(&line[..*place]) <= width / 2);
    let indent = column.map_or(start + 4, |place| length(&line[..place]));
    let (head, rest) = line.split_at(column.unwrap_or(start));
    let (mut text, mut used) = (head.to_owned(), length(head));
    let mut is_first = true;
    for word in rest.split(' ') {
        if !is_first && used + 1 + length(word) > width {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            used = indent;
            if word.is_empty() {
                continue;
            }
        } else if !is_first {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += length(word);
        is_first = false;
    }
    text.split('\n').map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Prints a value for programs.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    raw(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints all of `rows` as JSON, or their `columns` as a table; `none` says that there are no rows.
pub(super) fn list(context: &Context, rows: &[Row], columns: &[&str], none: &str) -> Result<Exit, Failure> {
    if context.global.json {
        json(&rows)?;
    } else if rows.is_empty() {
        line(none);
    } else {
        line(table(rows, columns));
    }
    Ok(Exit::Done)
}

/// The `columns` of `rows` as a table with a heading; nothing for no rows.
pub(super) fn table(rows: &[Row], columns: &[&str]) -> String {
    arranged(rows, columns, width())
}

/// As wide as `width` if each word fits into its column; else as wide as it is, so that [`line`] folds whole rows and a time
/// or an address can still be copied.
fn arranged(rows: &[Row], columns: &[&str], width: Option<usize>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let heading: Vec<String> = columns.iter().map(|column| column.to_uppercase().replace('_', " ")).collect();
    let mut longest: Vec<u16> = heading.iter().map(|title| longest_word(title)).collect();
    table.set_header(heading);
    for row in rows {
        let cells: Vec<String> = columns.iter().map(|column| cell(row.get(*column).unwrap_or(&Value::Null))).collect();
        for (longest, cell) in longest.iter_mut().zip(&cells) {
            *longest = longest_word(cell).max(*longest);
        }
        table.add_row(cells);
    }
    // A blank on each side.
    let least: Vec<u16> = longest.into_iter().map(|word| word.saturating_add(2)).collect();
    let fits = |width: &u16| least.iter().map(|column| u32::from(*column)).sum::<u32>() <= u32::from(*width);
    if let Some(width) = width.and_then(|width| u16::try_from(width).ok()).filter(fits) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        table.set_constraints(least.into_iter().map(|column| ColumnConstraint::LowerBoundary(Width::Fixed(column))));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

fn longest_word(text: &str) -> u16 {
    let longest = text.split_whitespace().map(console::measure_text_width).max().unwrap_or(0);
    u16::try_from(longest).unwrap_or(u16::MAX)
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

/// Compares what a terminal of 80 columns shows with `tests/data/terminal/NAME.txt`; `UPDATE_GOLDENS` writes the file.
#[cfg(test)]
pub(super) fn is_golden(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/terminal").join(format!("{name}.txt"));
    let shown: String = text.trim_end().lines().map(|line| folded(line, Some(80)) + "\n").collect();
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        std::fs::write(&path, &shown).expect("written");
    }
    assert_eq!(shown, std::fs::read_to_string(&path).unwrap_or_default());
    let long = shown.lines().find(|line| console::measure_text_width(line) > 80);
    assert_eq!(long, None);
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
    fn a_narrow_table_breaks_no_word() {
        let (at, mail) = ("2026-11-22T21:58:20Z", "alice.long.name@people.example.org");
        let error = "the home is full and the quota of the file server does not allow more";
        let rows = [row(&json!({"name": "alice", "since": at, "mail": mail, "last_error": error}))];
        for width in [Some(40), Some(80), Some(100), None] {
            let text = arranged(&rows, &["name", "since", "mail", "last_error"], width);
            assert!(text.contains(at) && text.contains(mail) && text.contains("server"), "{text}");
        }
        let narrow = arranged(&rows, &["name", "since", "mail", "last_error"], Some(90));
        assert!(narrow.lines().count() > 2 && narrow.lines().all(|line| line.chars().count() <= 90), "{narrow}");
    }

    #[test]
    fn a_long_line_is_folded_within_its_column() {
        let line =
            "- tool old  52101  absent 26 h  suspend: role binding removed, certificates revoked, workloads stopped";
        let indent = " ".repeat(19);
        let expected = format!(
            "- tool old  52101  absent 26 h  suspend: role binding\n{indent}removed, certificates revoked,\n{indent}workloads \
             stopped"
        );
        assert_eq!(folded(line, Some(55)), expected);
        assert_eq!(folded(line, None), line);
        assert_eq!(folded("short", Some(40)), "short");
        let hash = "x".repeat(50);
        assert_eq!(folded(&format!("bursar approve {hash}"), Some(40)), format!("bursar approve\n    {hash}"));
    }

    #[test]
    fn only_lines_with_a_sign_have_a_colour() {
        assert_eq!(coloured("- tool old", true), "\u{1b}[31m- tool old\u{1b}[0m");
        assert_eq!((coloured("- tool old", false), coloured("-tool", true)), ("- tool old".into(), "-tool".into()));
    }

    #[test]
    fn control_characters_in_names_are_escaped() {
        assert_eq!(clean("a\u{1b}[31mb"), "a\u{fffd}[31mb");
    }
}
