//! Files of orders: each line as one types it after a command. Nothing of a file is given if a line of it is wrong.

use std::path::Path;

use clap::Parser as _;

use super::arguments::{Arguments, Command};
use super::exit::{Exit, Failure};

/// What a file says, by `parse`: what was understood, and what was not.
pub(super) fn read<T>(file: &Path, parse: impl Fn(&str) -> (Vec<T>, Vec<String>)) -> Result<Vec<T>, Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| Failure::new(Exit::Usage, format!("{name}: {error}")))?;
    let (orders, wrong) = parse(&text);
    if wrong.is_empty() && orders.is_empty() {
        return Err(Failure::new(Exit::Usage, format!("{name}: the file has no orders")));
    }
    if wrong.is_empty() {
        return Ok(orders);
    }
    let wrong: Vec<String> = wrong.iter().map(|wrong| format!("{name}: {wrong}")).collect();
    Err(Failure::new(Exit::Usage, wrong.join("\n")))
}

/// Lines as after `bursar` and `words`, as far as `meant` takes them; without those that are empty or begin with `#`.
pub(super) fn parsed<T>(text: &str, words: &[&str], meant: impl Fn(Command) -> Option<T>) -> (Vec<T>, Vec<String>) {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    sorted(lines.map(|(number, line)| of_line(line, words, &meant).map_err(|why| format!("line {number}: {why}"))))
}

fn of_line<T>(line: &str, before: &[&str], meant: impl Fn(Command) -> Option<T>) -> Result<T, String> {
    let all = std::iter::once("bursar").chain(before.iter().copied()).map(str::to_owned).chain(words(line)?);
    let parsed = Arguments::try_parse_from(all).map_err(|error| {
        let text = error.to_string();
        // The arguments that are missing are on lines of their own.
        let said = text
            .lines()
            .map(str::trim)
            .take_while(|line| !line.starts_with("Usage: ") && !line.starts_with("For more"));
        let said: Vec<&str> = said.filter(|line| !line.is_empty()).collect();
        said.join(" ").trim_start_matches("error: ").to_owned()
    })?;
    meant(parsed.command).ok_or_else(|| format!("it is not a line of `bursar {}`", before.join(" ")))
}

/// Words apart by blanks; `"a reason"` is one.
fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quoted, mut begun) = (Vec::new(), String::new(), false, false);
    for character in line.chars() {
        match character {
            '"' => (quoted, begun) = (!quoted, true),
            blank if blank.is_whitespace() && !quoted => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            other => {
                word.push(other);
                begun = true;
            }
        }
    }
    if quoted {
        return Err("a \" is not closed".to_owned());
    }
    words.extend(begun.then_some(word));
    Ok(words)
}

/// What was understood, and what was not.
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
