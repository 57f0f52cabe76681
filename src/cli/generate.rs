//! `bursar completions SHELL` and `bursar man`: what the arguments say of themselves.

use std::io;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::arguments::{Arguments, Man};
use super::exit::{Exit, Failure};

pub(super) fn completions(shell: Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "bursar", &mut script);
    io::Write::write_all(&mut io::stdout(), &script).context("standard output")?;
    Ok(Exit::Done)
}

/// One page, the commands' own ones after it; or a file each, so that the page's references to them lead somewhere.
pub(super) fn man(arguments: &Man) -> Result<Exit, Failure> {
    if let Some(folder) = &arguments.out {
        clap_mangen::generate_to(Arguments::command(), folder).with_context(|| folder.display().to_string())?;
        return Ok(Exit::Done);
    }
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page).context("the page")?;
    for command in command.get_subcommands() {
        clap_mangen::Man::new(command.clone()).render(&mut page).context("the page")?;
    }
    io::Write::write_all(&mut io::stdout(), &page).context("standard output")?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
