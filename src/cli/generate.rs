//! `bursar completions SHELL` and `bursar man`: generates scripts and manual pages from the declared arguments.

use anyhow::Context as _;
use clap_complete::Shell;
use serde_json::json;

use super::arguments::{self, Man};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{manual, names, output};

pub(super) fn completions(context: &Context, shell: Shell) -> Result<Exit, Failure> {
    let script = script(shell);
    if context.global.json {
        output::json(&json!({"shell": shell.to_string(), "script": script}))?;
    } else {
        output::verbatim(&script);
    }
    Ok(Exit::Done)
}

/// Returns the script of clap, and ours, which offers names.
fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut arguments::ungrouped(), "bursar", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + names::BASH,
        Shell::Fish => script + names::FISH,
        Shell::Zsh => script.replace(names::END_OF_CLAPS_ZSH, "") + names::ZSH,
        _ => script,
    }
}

/// Prints the page of `bursar`, followed by the pages of the commands. With `--out`, each page is written to a file, so
/// that the references between pages work.
pub(super) fn man(context: &Context, arguments: &Man) -> Result<Exit, Failure> {
    if let Some(folder) = &arguments.out {
        manual::write(folder).with_context(|| format!("cannot write to {}", folder.display()))?;
        if context.global.json {
            output::json(&json!({"folder": folder}))?;
        }
        return Ok(Exit::Done);
    }
    let command = manual::command();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page).context("cannot make the page")?;
    for command in command.get_subcommands() {
        clap_mangen::Man::new(command.clone()).render(&mut page).context("cannot make the page")?;
    }
    page.extend_from_slice(manual::more("").as_bytes());
    let page = String::from_utf8_lossy(&page);
    if context.global.json {
        output::json(&json!({"page": page}))?;
    } else {
        output::verbatim(&page);
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        arguments::command().debug_assert();
    }

    #[test]
    fn each_shell_offers_names_from_the_first_completion_on() {
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let script = script(shell);
            assert!(script.contains("bursar names"), "{shell}");
            assert!(!script.contains("compdef _bursar bursar"), "{shell}: clap's function would come first");
        }
        assert_eq!(script(Shell::Zsh).matches("$funcstack[1]").count(), 1);
    }

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let command = arguments::ungrouped();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut there: Vec<&str> = shown.map(clap::Command::get_name).collect();
        let mut grouped: Vec<&str> = arguments::GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        there.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(there, grouped);
    }

    #[test]
    fn help_is_the_golden_and_fits_80_columns() {
        output::is_golden("help", &arguments::command().render_help().to_string());
        let mut command = arguments::command();
        command.build();
        let mut seen = 0;
        each_fits(&mut command, &mut seen);
        assert!(seen > 60, "{seen} commands");
    }

    /// Checks the help of a command, and of all commands beneath it.
    fn each_fits(command: &mut clap::Command, seen: &mut usize) {
        let help = format!("{}\n{}", command.render_help(), command.render_long_help());
        let help: String = help.lines().map(|line| output::of_help(line, 80) + "\n").collect();
        let long = help.lines().find(|line| line.chars().count() > 80 && line.trim().contains(' '));
        assert_eq!(long, None, "{:?}", command.get_bin_name());
        *seen += 1;
        command.get_subcommands_mut().for_each(|command| each_fits(command, seen));
    }

    #[test]
    fn the_help_of_a_command_lists_its_own_options_first() {
        let mut command = arguments::command();
        command.build();
        let init = command.find_subcommand_mut("init").expect("the command exists").render_help().to_string();
        let (own, every) = init.split_once("Options of every command:").expect("the heading is there");
        assert!(own.contains("--cluster") && own.contains("--dry-run") && !own.contains("--config"), "{init}");
        assert!(["--config", "--ledger", "--json", "--wide"].iter().all(|option| every.contains(option)), "{init}");
    }
}
