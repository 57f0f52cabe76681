//! The program `bursar-webhook`: parses arguments and runs the webhook or the approver.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use bursar_core::errors::chain;
use bursar_webhook::server::{self, ServerError};
use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Admission webhook of Bursar: refuses pods that would run with another tenant's uid.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(flatten)]
    serve: Serve,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Args)]
struct Serve {
    /// Folder with tls.crt, tls.key, rules.json, seal.pub and, outside the cluster, kubeconfig
    #[arg(long, value_name = "FOLDER", required = true)]
    dir: Option<PathBuf>,
    /// Address that answers the API server's reviews
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    listen: SocketAddr,
    /// Address for probes and Prometheus
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9444")]
    health: SocketAddr,
    /// How log lines look
    #[arg(long, value_enum, default_value = "json")]
    log_format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    /// Lines for people and for the journal, which adds the time itself.
    Plain,
    /// One JSON object per line, for collectors.
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Approve the valid certificate requests of the daemon, and no others
    Approve(Approve),
}

#[derive(Args)]
struct Approve {
    /// Folder with rules.json and, outside the cluster, kubeconfig
    #[arg(long, value_name = "FOLDER")]
    dir: PathBuf,
    /// Address for probes and Prometheus
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9445")]
    health: SocketAddr,
    /// How log lines look
    #[arg(long, value_enum, default_value = "json")]
    log_format: LogFormat,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // If standard error is closed, nothing more can be done.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    // The program holds keys, so its memory must not get into a core file, and other processes of its user must not
    // read it.
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        eprintln!("cannot hide the program's memory from other processes: {error}");
        return ExitCode::FAILURE;
    }
    open_files();
    let stop = CancellationToken::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let Ok(mut signal) = signal(kind) else { return ExitCode::FAILURE };
        let stop = stop.clone();
        tokio::spawn(async move { signal.recv().await.map(|()| stop.cancel()) });
    }
    let ended = match arguments.command {
        Some(Command::Approve(Approve { dir, health, log_format })) => {
            log_to_stderr(log_format);
            server::approver::run(&dir, health, stop).await
        }
        None => {
            let Serve { dir, listen, health, log_format } = arguments.serve;
            log_to_stderr(log_format);
            server::run(&dir.unwrap_or_default(), listen, health, now, stop).await
        }
    };
    let Err(error) = ended else { return ExitCode::SUCCESS };
    tracing::error!(error = %chain(&error), "stopped");
    let is_configuration =
        matches!(error, ServerError::Files { .. } | ServerError::ApproverFiles { .. } | ServerError::ApiServer(_));
    ExitCode::from(if is_configuration { 78 } else { 1 })
}

/// Raises the limit of open files. Each connection is an open file, and processes often start with a limit of 1,024,
/// which is less than the number of seats.
fn open_files() {
    let limit = getrlimit(Resource::Nofile);
    // If the limit stays low, the server refuses some connections, and goes on.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Sends log lines to standard error. `RUST_LOG` sets the filter. By default, Bursar logs at `info` and its libraries
/// at `warn`.
fn log_to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,bursar=info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Plain => lines.without_time().with_ansi(false).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}

/// Returns the time in whole seconds.
#[expect(clippy::disallowed_methods, reason = "the one place where this program reads the wall clock")]
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
