//! Reads files of orders, one per line, in the syntax of the command line. If a line is wrong, no order of the file is
//! given.

use std::path::Path;

use clap::Parser as _;

use super::arguments::{Arguments, Command};
use super::exit::{Exit, Failure};

/// Reads a file with `parse`, which returns the orders and the errors. If there are errors, or no orders, this fails.
pub(super) fn read<T>(file: &Path, parse: impl Fn(&str) -> (Vec<T>, Vec<String>)) -> Result<Vec<T>, Failure> {
    let name = file.display();
    let unread = |error| format!("cannot read {name}: {error}; name a text file with one order per line");
    let text = std::fs::read_to_string(file).map_err(|error| Failure::new(Exit::Usage, unread(error)))?;
    let (orders, wrong) = parse(text.trim_start_matches('\u{feff}'));
    if wrong.is_empty() && orders.is_empty() {
        return Err(Failure::new(Exit::Usage, format!("{name}: the file has no orders")));
    }
    if wrong.is_empty() {
        return Ok(orders);
    }
    let wrong: Vec<String> = wrong.iter().map(|wrong| format!("{name}: {wrong}")).collect();
    Err(Failure::new(Exit::Usage, wrong.join("\n")))
}

/// Parses lines as the arguments after `bursar` and `words`, and converts them with `meant`. Empty lines and lines that
/// begin with `#` are ignored. Returns the orders and the errors.
pub(super) fn parsed<T>(
    text: &str,
    words: &[&str],
    meant: impl Fn(Command) -> Option<Result<T, String>>,
) -> (Vec<T>, Vec<String>) {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    sorted(lines.map(|(number, line)| of_line(line, words, &meant).map_err(|why| format!("line {number}: {why}"))))
}

fn of_line<T>(line: &str, before: &[&str], meant: impl Fn(Command) -> Option<Result<T, String>>) -> Result<T, String> {
    let all = std::iter::once("bursar").chain(before.iter().copied()).map(str::to_owned).chain(words(line)?);
    let parsed = Arguments::try_parse_from(all).map_err(|error| {
        let text = error.to_string();
        // Clap lists missing arguments on lines of their own, so the lines are joined.
        let said = text
            .lines()
            .map(str::trim)
            .take_while(|line| !line.starts_with("Usage: ") && !line.starts_with("For more"));
        let said: Vec<&str> = said.filter(|line| !line.is_empty()).collect();
        said.join(" ").trim_start_matches("error: ").to_owned()
    })?;
    meant(parsed.command).unwrap_or_else(|| Err(format!("the line is not an order of `bursar {}`", before.join(" "))))
}

/// Splits a line at blanks. Text in quotes is one word. Accepts every [`crate::identity::shell_word`]; in particular,
/// `\'` outside quotes stands for the character.
fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quoted, mut begun) = (Vec::new(), String::new(), None, false);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, quoted) {
            (quote @ ('"' | '\''), None) => (quoted, begun) = (Some(quote), true),
            (quote, Some(open)) if quote == open => quoted = None,
            ('\\', None) if characters.peek() == Some(&'\'') => {
                word.extend(characters.next());
                begun = true;
            }
            (blank, None) if blank.is_whitespace() => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            (other, _) => {
                word.push(other);
                begun = true;
            }
        }
    }
    if let Some(open) = quoted {
        return Err(format!("a quotation mark ({open}) is missing"));
    }
    words.extend(begun.then_some(word));
    Ok(words)
}

/// Separates the orders from the errors.
pub(super) fn sorted<T>(found: impl Iterator<Item = Result<T, String>>) -> (Vec<T>, Vec<String>) {
    let (mut orders, mut wrong) = (Vec::new(), Vec::new());
    for one in found {
        match one {
            Ok(order) => orders.push(order),
            Err(why) => wrong.push(why),
        }
    }
    (orders, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::shell_word;

    #[test]
    fn a_word_in_quotes_of_the_shell_is_read_back() {
        for word in ["foo", "my lab", "o'brien", "a\"b", "a\\b", "$x;y", "--entry", "'", "é"] {
            let line = format!("tool {}  pods=4", shell_word(word));
            assert_eq!(words(&line), Ok(vec!["tool".to_owned(), word.to_owned(), "pods=4".to_owned()]), "{line}");
        }
        assert_eq!(
            words(r#"--reason "it's \ here" x"#),
            Ok(["--reason", r"it's \ here", "x"].map(str::to_owned).to_vec())
        );
        assert!(words("tool 'foo").is_err_and(|why| why.contains('\'')) && words("tool \"foo").is_err());
    }
}
