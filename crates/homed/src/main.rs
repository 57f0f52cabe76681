//! The program `bursar-homed`: writes in homes as their owners, on requests of `bursard` only.

use std::process::ExitCode;
use std::time::SystemTime;

use bursar_homed::arguments::Arguments;
use bursar_homed::server::HomedError;
use bursar_homed::{server, spawner};
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    // Private keys pass through this process and its forks: no core file and no other process may read their memory.
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        eprintln!("cannot hide the program's memory from other processes: {error}");
        return ExitCode::FAILURE;
    }
    // Must run before any thread exists: the spawner forks, and setuid changes only the thread that calls it.
    if std::env::args_os().nth(1).is_some_and(|first| first == spawner::ARGUMENT) {
        return spawner::run();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).without_time().with_target(false).init();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let settings = arguments.settings(now)?;
    let listener = server::listener(arguments.socket.as_deref())?;
    // One thread: the kernel kills the spawner when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        sd_notify::notify(&[sd_notify::NotifyState::Ready])?;
        let shutdown = async {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        };
        Ok(server::serve(listener, settings, shutdown).await?)
    })
}

/// Returns 78 for errors that only an administrator can remedy: the unit is not restarted then. Other errors may be
/// gone at the next start, for example a socket that is still in use.
fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<HomedError>() {
        Some(HomedError::NoSocket | HomedError::NoUser { .. } | HomedError::Settings(_)) => 78,
        Some(HomedError::Socket { .. }) | None => 1,
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where this program reads the wall clock")]
fn now() -> SystemTime {
    SystemTime::now()
}
