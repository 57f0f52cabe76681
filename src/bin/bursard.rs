//! The daemon's executable: parses the arguments, and calls the library.

use std::path::PathBuf;
use std::process::ExitCode;

use bursar::daemon::{self, DaemonError};
use bursar::errors::chain;
use bursar::privilege;
use bursar::runtime::RuntimeError;
use bursar::store::StoreError;
use bursar::telemetry::{LogFormat, log_to_stderr};
use clap::Parser;

/// A read of a directory makes millions of small values. With the C library's allocator, it takes nearly twice the CPU
/// time (`benches/directory.rs`).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Keeps the accounts of shared Kubernetes clusters in step with directories.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Path of the configuration.
    #[arg(long, env = "BURSAR_CONFIG", default_value = bursar::settings::DEFAULT_PATH)]
    config: PathBuf,
    /// Format of the log lines.
    #[arg(long, value_enum, default_value = "plain")]
    log_format: LogFormat,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // If standard error is closed, nothing can be reported.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    log_to_stderr(arguments.log_format);
    if let Err(error) = privilege::keep_memory_private() {
        tracing::error!(%error, "cannot hide the program's memory from other processes");
        return ExitCode::FAILURE;
    }
    if let Err(error) = privilege::become_bursar() {
        tracing::error!(%error, "cannot become user bursar");
        return ExitCode::from(77);
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start the Tokio runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(daemon::run(arguments.config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A configuration may have several mistakes. Each gets a line of its own in the journal.
            for line in chain(&error).lines() {
                tracing::error!(error = %line, "stopped");
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

fn exit_code(error: &DaemonError) -> u8 {
    match error {
        DaemonError::Settings(_)
        | DaemonError::Runtime(
            RuntimeError::Settings(_)
            | RuntimeError::Seal { .. }
            | RuntimeError::NotOwner { .. }
            | RuntimeError::Behind { .. }
            | RuntimeError::Copied { .. }
            | RuntimeError::Store(StoreError::Lost { .. }),
        ) => 78,
        DaemonError::Runtime(RuntimeError::Store(StoreError::Busy)) => 75,
        _ => 1,
    }
}
