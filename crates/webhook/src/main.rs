//! The webhook: arguments, and one call of the library.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use bursar_core::errors::chain;
use bursar_webhook::server::{self, ServerError};
use clap::{Parser, ValueEnum};
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Refuses what would run as somebody else: answers the admission reviews of a Kubernetes API server.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Folder with tls.crt, tls.key, rules.json, seal.pub and, outside of the cluster, kubeconfig
    #[arg(long, value_name = "FOLDER")]
    dir: PathBuf,
    /// Where the API server asks
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    listen: SocketAddr,
    /// Where probes and Prometheus ask
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9444")]
    health: SocketAddr,
    /// How log lines look
    #[arg(long, value_enum, default_value = "json")]
    log_format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    /// For people and the journal, which adds the time itself.
    Plain,
    /// For collectors: one JSON object a line.
    Json,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nothing is left to do about a closed standard error.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    log_to_stderr(arguments.log_format);
    let stop = CancellationToken::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let Ok(mut signal) = signal(kind) else { return ExitCode::FAILURE };
        let stop = stop.clone();
        tokio::spawn(async move { signal.recv().await.map(|()| stop.cancel()) });
    }
    let Arguments { dir, listen, health, .. } = arguments;
    let Err(error) = server::run(&dir, listen, health, now, stop).await else { return ExitCode::SUCCESS };
    tracing::error!(error = %chain(&error), "stopped");
    let is_configuration = matches!(error, ServerError::Files { .. } | ServerError::ApiServer(_));
    ExitCode::from(if is_configuration { 78 } else { 1 })
}

/// Sends log lines to standard error. `RUST_LOG` filters; without it Bursar speaks at `info` and its libraries at
/// `warn`.
fn log_to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,bursar=info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Plain => lines.without_time().with_ansi(false).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}

/// The time, in whole seconds.
#[expect(clippy::disallowed_methods, reason = "the one place where this program reads the wall clock")]
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
