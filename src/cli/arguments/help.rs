//! Parses the command line, and shows the commands in groups in its help.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _};

use super::Arguments;

/// The groups of commands in the help. A test checks that no command is missing.
pub const GROUPS: [(&str, &[&str]); 5] = [
    ("Set-up", &["init", "check", "doctor", "completions", "man"]),
    ("Every day", &["plan", "sync", "status", "tools", "users", "show", "why", "who", "history", "certs", "report"]),
    (
        "Orders",
        &[
            "suspend",
            "resume",
            "hold",
            "release",
            "revoke",
            "quota",
            "exception",
            "approve",
            "adopt",
            "directory",
            "ensure",
            "home",
        ],
    ),
    ("Cluster", &["webhook", "approver", "archive", "takeover", "uninstall"]),
    ("Ledger", &["ledger"]),
];

/// Returns the command line as declared, without groups.
#[must_use]
pub fn ungrouped() -> clap::Command {
    Arguments::command()
}

/// Returns the command line, with its commands in groups.
#[must_use]
pub fn command() -> clap::Command {
    let command = ungrouped();
    let mut groups = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(groups, "{title}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let _ = writeln!(groups, "  {name:<11}  {}", about.map(ToString::to_string).unwrap_or_default());
        }
        groups.push('\n');
    }
    let template =
        format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}");
    command.help_template(template)
}

/// Gives an error the usage of the command that `words` begin with. The usage that clap makes for some errors is not
/// kept: it shows options that the environment sets, such as `--config`, as if they were required.
pub fn add_usage(error: &mut clap::Error, words: impl Iterator<Item = String>) {
    error.insert(ContextKind::Usage, ContextValue::StyledStr(usage(words)));
}

fn usage(words: impl Iterator<Item = String>) -> StyledStr {
    let mut command = Arguments::command();
    command.build();
    let mut deepest = &command;
    for word in words.skip(1) {
        deepest = deepest.find_subcommand(&word).unwrap_or(deepest);
    }
    deepest.clone().render_usage()
}

/// Parses the command line.
///
/// # Errors
/// Returns an error if the command line is wrong, or asks for help or the version.
pub fn parsed() -> Result<Arguments, clap::Error> {
    let matches = command().try_get_matches()?;
    let mut arguments = Arguments::from_arg_matches(&matches)?;
    let mut deepest = &matches;
    while let Some((_, matches)) = deepest.subcommand() {
        deepest = matches;
    }
    arguments.global.config_is_named = deepest.value_source("config") != Some(ValueSource::DefaultValue);
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_value_shows_the_usage_of_its_own_command() {
        let words = "bursar quota set tool foo limits.cpu".split(' ').map(str::to_owned);
        let mut error = command().try_get_matches_from(words.clone()).expect_err("the amount is missing");
        add_usage(&mut error, words);
        let text = error.to_string();
        let (usage, help) = (text.find("Usage: bursar quota set "), text.find("For more information"));
        assert!(usage.is_some() && usage < help, "{text}");
    }

    #[test]
    fn a_usage_line_shows_no_option_that_was_given() {
        let words = "bursar suspend tool foo --config x.toml".split(' ').map(str::to_owned);
        let mut error = command().try_get_matches_from(words.clone()).expect_err("the reason is missing");
        add_usage(&mut error, words);
        let text = error.to_string();
        let usage = text.lines().find(|line| line.starts_with("Usage: ")).unwrap_or_default();
        assert!(usage.contains("--reason <TEXT>") && !usage.contains("--config"), "{text}");
    }
}
