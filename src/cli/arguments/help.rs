//! The command line as it is parsed, and as its help shows it: in groups.

use std::fmt::Write as _;

use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _};

use super::Arguments;

/// The commands as the help shows them. A test compares them with those there are.
pub const GROUPS: [(&str, &[&str]); 5] = [
    ("Set-up", &["init", "check", "doctor", "completions", "man"]),
    ("Every day", &["plan", "sync", "status", "tools", "users", "show", "why", "history", "certs"]),
    (
        "Orders",
        &["suspend", "resume", "hold", "release", "revoke", "quota", "approve", "adopt", "directory", "ensure", "home"],
    ),
    ("Cluster", &["webhook", "approver", "archive", "takeover", "uninstall"]),
    ("Ledger", &["ledger"]),
];

/// The command line as it is declared.
#[must_use]
pub fn ungrouped() -> clap::Command {
    Arguments::command()
}

/// The command line, with its commands in groups.
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

/// The usage of the command that `words` begin, for errors that say nothing of it themselves.
#[must_use]
pub fn usage(words: impl Iterator<Item = String>) -> String {
    let mut command = Arguments::command();
    command.build();
    let named = words.skip(1).find_map(|word| command.find_subcommand(&word).map(|found| found.get_name().to_owned()));
    let found = named.and_then(|name| command.find_subcommand_mut(name).map(clap::Command::render_usage));
    found.unwrap_or_else(|| command.render_usage()).to_string()
}

/// Parses the command line.
///
/// # Errors
/// It is wrong, or asks for help.
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
