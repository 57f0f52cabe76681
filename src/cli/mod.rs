//! The administrators' command `bursar`: turns the arguments into one call of the library or of the daemon, and prints
//! the answer. Each command has its own file. Only this module prints, and it makes no decisions.

mod admin;
mod approver;
mod archive;
pub mod arguments;
mod audit;
mod certs;
mod check;
mod context;
mod directory;
mod doctor;
mod ensure;
mod exception;
pub mod exit;
mod generate;
mod history;
mod home;
mod init;
mod ledger;
mod lines;
mod local;
mod manual;
mod names;
mod order;
mod output;
mod page;
mod plan;
mod probes;
mod quota;
mod recovery;
mod report;
mod revoke;
mod show;
mod status;
mod sync;
mod tools;
mod uninstall;
mod users;
mod webhook;
mod who;
mod why;

use std::process::ExitCode;

use self::arguments::{Archive, Arguments, Command, Directory, Exception, Ledger, Quota};
use self::context::Context;
use self::exit::{Exit, Failure};

/// Runs the command that the arguments name.
#[must_use]
pub fn main() -> ExitCode {
    // Set before the arguments are parsed, because the parser prints the help.
    output::set_width(std::env::args_os().any(|word| word == "--wide"));
    let arguments = match arguments::parsed() {
        Ok(arguments) => arguments,
        Err(mut error) => {
            if !error.use_stderr() {
                output::help(&error.render());
                return Exit::Done.into();
            }
            let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
            arguments::add_usage(&mut error, words);
            // If standard error is closed, the message is lost.
            let _ = error.print();
            return Exit::Usage.into();
        }
    };
    // HTTP clients need a TLS provider even for plain HTTP. An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // One thread: root may become another user later, and setuid changes only the thread that calls it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime
        .map_err(|error| Failure::new(Exit::Failed, error.to_string()))
        .and_then(|runtime| runtime.block_on(run(arguments)));
    match outcome {
        Ok(exit) => exit.into(),
        Err(Failure { exit, text }) => {
            output::error(&text);
            exit.into()
        }
    }
}

/// Whether the command reads the ledger that `--ledger` names.
fn reads_named_ledger(command: &Command) -> bool {
    match command {
        Command::Show(_)
        | Command::Why(_)
        | Command::Status
        | Command::Tools(_)
        | Command::Users(_)
        | Command::Who(_)
        | Command::Report(_)
        | Command::History(_)
        | Command::Certs(_)
        | Command::Exception(Exception::List(_))
        | Command::Quota(Quota::List(_))
        | Command::Archive(Archive::List(_))
        | Command::Directory(Directory::Imported)
        | Command::Ledger(Ledger::Verify { .. } | Ledger::Backup { .. })
        | Command::Completions { .. }
        | Command::Man(_)
        | Command::Names { .. } => true,
        Command::Init(_)
        | Command::Check
        | Command::Doctor
        | Command::Plan(_)
        | Command::Sync(_)
        | Command::Revoke(_)
        | Command::Ensure(_)
        | Command::Suspend(_)
        | Command::Resume(_)
        | Command::Hold(_)
        | Command::Release(_)
        | Command::Home(_)
        | Command::Quota(_)
        | Command::Exception(_)
        | Command::Approve { .. }
        | Command::Adopt(_)
        | Command::Directory(_)
        | Command::Archive(_)
        | Command::Takeover(_)
        | Command::Uninstall(_)
        | Command::Webhook(_)
        | Command::Approver(_)
        | Command::Ledger(_) => false,
    }
}

async fn run(Arguments { global, command }: Arguments) -> Result<Exit, Failure> {
    if global.ledger.is_some() && !reads_named_ledger(&command) {
        let why =
            "--ledger (or BURSAR_LEDGER) has no effect on this command: it uses the configured ledger, or the daemon";
        return Err(Failure::new(Exit::Usage, why.to_owned()));
    }
    let context = Context::new(global);
    match command {
        Command::Init(arguments) => init::run(&context, &arguments).await,
        Command::Check => check::run(&context),
        Command::Doctor => doctor::run(&context).await,
        Command::Plan(arguments) => Box::pin(plan::run(&context, arguments)).await,
        Command::Sync(arguments) => sync::run(&context, &arguments).await,
        Command::Status => status::run(&context).await,
        Command::Tools(filter) => tools::run(&context, &filter).await,
        Command::Users(filter) => users::run(&context, &filter).await,
        Command::Show(own) => show::run(&context, own).await,
        Command::Why(own) => why::run(&context, own).await,
        Command::Who(arguments) => Box::pin(who::run(&context, &arguments)).await,
        Command::Report(arguments) => report::run(&context, &arguments).await,
        Command::History(arguments) => history::run(&context, &arguments).await,
        Command::Certs(arguments) => certs::run(&context, &arguments).await,
        Command::Revoke(arguments) => revoke::run(&context, arguments).await,
        Command::Ensure(arguments) => ensure::run(&context, arguments).await,
        Command::Suspend(arguments) => order::suspend(&context, arguments).await,
        Command::Resume(arguments) => order::resume(&context, arguments).await,
        Command::Hold(arguments) => order::hold(&context, arguments).await,
        Command::Release(arguments) => order::release(&context, arguments).await,
        Command::Exception(arguments) => exception::run(&context, arguments).await,
        Command::Quota(arguments) => quota::run(&context, arguments).await,
        Command::Approve { hash } => order::approve(&context, hash).await,
        Command::Adopt(command) => order::adopt(&context, command).await,
        Command::Directory(command) => directory::run(&context, command).await,
        Command::Home(command) => home::run(&context, command).await,
        Command::Archive(command) => archive::run(&context, command).await,
        Command::Approver(command) => approver::run(&context, &command).await,
        Command::Webhook(command) => webhook::run(&context, &command).await,
        Command::Ledger(Ledger::Verify { head }) => ledger::verify(&context, head).await,
        Command::Ledger(Ledger::Backup { file }) => ledger::backup(&context, &file).await,
        Command::Ledger(Ledger::Restore { file, older }) => recovery::restore(&context, &file, older).await,
        Command::Ledger(Ledger::Rebuild { admin_kubeconfig }) => recovery::rebuild(&context, &admin_kubeconfig).await,
        Command::Uninstall(arguments) => uninstall::run(&context, &arguments).await,
        Command::Takeover(arguments) => Box::pin(recovery::takeover(&context, &arguments)).await,
        Command::Completions { shell } => generate::completions(&context, shell),
        Command::Man(arguments) => generate::man(&context, &arguments),
        Command::Names { kind } => names::run(&context, kind).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn commands_that_ignore_the_named_ledger_refuse_it() {
        let reads = |words: &str| {
            let words = ["bursar", "--ledger", "/tmp/old.db"].into_iter().chain(words.split(' '));
            reads_named_ledger(&Arguments::try_parse_from(words).expect("the words are a command").command)
        };
        for words in ["show", "why tool foo", "archive list", "history", "status", "ledger verify", "quota list"] {
            assert!(reads(words), "{words}");
        }
        for words in ["plan", "doctor", "archive show x", "home show tool foo", "suspend tool foo --reason r"] {
            assert!(!reads(words), "{words}");
        }
    }
}
