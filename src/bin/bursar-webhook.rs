//! The webhook: arguments, and one call of the library.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use bursar::daemon;
use bursar::errors::chain;
use bursar::telemetry::{LogFormat, log_to_stderr};
use bursar::webhook::server::{self, ServerError};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

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
    let Err(error) = server::run(&dir, listen, health, daemon::now, stop).await else { return ExitCode::SUCCESS };
    tracing::error!(error = %chain(&error), "stopped");
    let is_configuration = matches!(error, ServerError::Files { .. } | ServerError::ApiServer(_));
    ExitCode::from(if is_configuration { 78 } else { 1 })
}
