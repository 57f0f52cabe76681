//! Prints answers: tables for people, JSON for programs, and progress if standard error is a terminal.

use std::fmt::Write as _;
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

/// The number of columns of a line; `None` for lines of any length. Set once, before anything is printed.
static WIDTH: OnceLock<Option<usize>> = OnceLock::new();

/// Sets the width of lines. If `wide`, lines are not folded; otherwise they are folded at `COLUMNS`, or at the width of
/// the terminal. If neither is known, lines are not folded, so that a file or another program gets whole lines.
pub(super) fn set_width(wide: bool) {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let shown = || console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    let width = if wide { None } else { said.or_else(shown) };
    // An error would mean that the width was set before, but this is the only call.
    let _ = WIDTH.set(width.map(|width| width.max(NARROWEST)));
}

fn width() -> Option<usize> {
    WIDTH.get().copied().flatten()
}

/// The smallest width: names and hashes do not fit into less.
const NARROWEST: usize = 40;

/// Prints lines, folded at the width of the terminal.
pub(super) fn line(text: impl AsRef<str>) {
    let lines = text.as_ref().trim_end_matches('\n').split('\n');
    print(&lines.map(|line| folded(&clean(line), width())).collect::<Vec<_>>().join("\n"));
}

/// Like [`line`], but colours each line by its sign: `+` access is added or all is well, `-` access is removed, `~` a
/// change, `!` a problem.
pub(super) fn signed(text: impl AsRef<str>) {
    let lines = text.as_ref().trim_end_matches('\n').split('\n');
    let lines = lines.map(|line| coloured(&folded(&clean(line), width()), has_colour()));
    print(&lines.collect::<Vec<_>>().join("\n"));
}

/// Prints `text` without folding, for programs or a file.
pub(super) fn raw(text: &str) {
    print(&text.trim_end_matches('\n').split('\n').map(clean).collect::<Vec<_>>().join("\n"));
}

/// Prints a script or a page byte for byte. The command goes on after an error, so that its work and its exit code do
/// not depend on the reader.
pub(super) fn verbatim(text: &str) {
    if let Err(error) = io::stdout().write_all(text.as_bytes()) {
        // Only the first error counts.
        let _ = UNWRITTEN.set(error);
    }
}

/// Prints an error on standard error, folded if that is a terminal. Control characters are replaced, because the text
/// contains names from a directory and keys from a file.
pub(super) fn error(text: &str) {
    let width = width().filter(|_| io::stderr().is_terminal());
    let lines: Vec<String> = text.trim_end().split('\n').map(|line| folded(&clean(line), width)).collect();
    // If standard error is closed, the message is lost.
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
}

fn print(text: &str) {
    if !text.is_empty() {
        verbatim(&format!("{text}\n"));
    }
}

/// The first error of a write to standard output.
static UNWRITTEN: OnceLock<io::Error> = OnceLock::new();

/// Returns an error if a part of the answer was not written, for example because a disk is full. If the reader closed
/// the pipe (`| head`), this is not an error.
pub(super) fn written() -> Result<(), Failure> {
    match UNWRITTEN.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        None => Ok(()),
        Some(error) => Err(Failure::new(
            Exit::Failed,
            format!("the answer is incomplete: cannot write to standard output: {error}"),
        )),
    }
}

/// Whether to use colours: the terminal supports them, and `NO_COLOR` is not set (<https://no-color.org>).
fn has_colour() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}

/// Prints the help, folded so that descriptions stay in their column.
pub(super) fn help(text: &StyledStr) {
    let text = if has_colour() { text.ansi().to_string() } else { text.to_string() };
    let width = width().unwrap_or(HELP_WIDTH).min(HELP_WIDTH);
    print(&text.trim_end().split('\n').map(|line| of_help(line, width)).collect::<Vec<_>>().join("\n"));
}

/// Folds a line of the help. Prose, which begins at the margin, continues there.
pub(super) fn of_help(line: &str, width: usize) -> String {
    let text = folded(line, Some(width));
    let is_prose = !line.starts_with(' ') && !console::strip_ansi_codes(line).starts_with("Usage: ");
    if is_prose { text.replace("\n    ", "\n") } else { text }
}

/// The greatest width of help: longer lines of prose are hard to read.
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

/// Folds a line into pieces that fit, and indents all but the first. A word that is too long stays whole, so that it
/// can be copied.
pub(super) fn folded(line: &str, width: Option<usize>) -> String {
    let length = |text: &str| console::measure_text_width(text);
    let Some(width) = width.filter(|width| length(line) > *width) else { return line.to_owned() };
    let start = line.len() - line.trim_start().len();
    // Two blanks separate columns. The folded text continues in the last column that begins in the left half.
    let columns = line.char_indices().filter(|(place, found)| *found != ' ' && line[..*place].ends_with("  "));
    let mut columns = columns.map(|(place, _)| place);
    let column = columns.rfind(|place| *place > start && length(&line[..*place]) <= width / 2);
    let indent = column.map_or(start + 4, |place| length(&line[..place]));
    let (head, rest) = line.split_at(column.unwrap_or(start));
    let (mut text, mut used) = (head.to_owned(), length(head));
    let (mut is_first, mut is_folded) = (true, false);
    for word in rest.split(' ') {
        // The blanks between two columns are left out if the line is folded there.
        if is_folded && word.is_empty() {
            continue;
        }
        if !is_first && !is_folded && used + 1 + length(word) > width {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            used = indent;
            is_folded = true;
            if word.is_empty() {
                continue;
            }
        } else if !is_first && !is_folded {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += length(word);
        (is_first, is_folded) = (false, false);
    }
    text.split('\n').map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Prints a value as JSON.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    // JSON allows these characters, but a terminal would execute some of them.
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\u{7f}'..='\u{9f}' => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(character));
            }
            other => escaped.push(other),
        }
    }
    raw(&escaped);
    Ok(())
}

/// Prints all of `rows` as JSON, or their `columns` as a table. If there are no rows, prints `none`.
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

/// Returns the `columns` of `rows` as a table with a heading; an empty text if there are no rows.
pub(super) fn table(rows: &[Row], columns: &[&str]) -> String {
    arranged(rows, columns, width())
}

/// Returns a table of this width if each word fits into its column. Otherwise, the table has its natural width and
/// [`line`] folds whole rows, so that a time or an address can still be copied.
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
    // A column has a blank on each side.
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

/// Returns a row as `key  value` lines.
pub(super) fn pairs(row: &Row) -> String {
    let width = row.keys().map(String::len).max().unwrap_or(0);
    let lines: Vec<String> =
        row.iter().map(|(key, value)| format!("{:<width$}  {}", key.replace('_', " "), cell(value))).collect();
    lines.join("\n")
}

/// Formats a value for people; `-` for null.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => clean(text),
        other => other.to_string(),
    }
}

/// Replaces control characters, because text from a directory must not control the terminal.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Shows a spinner with `text`, if standard error is a terminal.
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

/// Shows a progress bar up to `length`, if standard error is a terminal.
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

/// Folds `text` at 80 columns, and compares it with `tests/data/terminal/NAME.txt`. `UPDATE_GOLDENS` writes the file.
#[cfg(test)]
pub(super) fn is_golden(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/terminal").join(format!("{name}.txt"));
    let shown: String = text.trim_end().lines().map(|line| folded(line, Some(80)) + "\n").collect();
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        std::fs::write(&path, &shown).expect("the folder is writable");
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
        let row = format!(" foo{}bar", " ".repeat(200));
        assert_eq!(folded(&row, Some(40)), " foo\n     bar", "no blank lines");
        let hash = "x".repeat(50);
        assert_eq!(folded(&format!("bursar approve {hash}"), Some(40)), format!("bursar approve\n    {hash}"));
    }

    #[test]
    fn prose_of_the_help_continues_at_the_margin() {
        assert_eq!(of_help("Show what the next cycle would do", 20), "Show what the next\ncycle would do");
        assert_eq!(of_help("Usage: bursar plan [OPTIONS]", 20), "Usage: bursar plan\n    [OPTIONS]");
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
