//! `bursar ensure`: waits until an account has a working kubeconfig. It is made for login hooks, so persons may run it
//! for themselves, although they may not read the configuration.

use std::time::Duration;

use tokio::time::Instant;

use super::arguments::Ensure;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output;
use crate::control::client::ClientError;
use crate::orders::request::{EnsureAnswer, EnsureRequest};

/// The pause between two requests.
const AGAIN: Duration = Duration::from_millis(100);

#[expect(clippy::disallowed_methods, reason = "bounds the wait of a person at a login")]
pub(super) async fn run(context: &Context, arguments: Ensure) -> Result<Exit, Failure> {
    let Ensure { account, timeout } = arguments;
    let client = context.daemon()?;
    let request = EnsureRequest { kind: account.kind, name: account.name, since: Some(crate::daemon::now()) };
    let progress = output::progress("waiting for the kubeconfig");
    let deadline = Instant::now() + timeout;
    let mut last = "bursard has too many connections, or restarts".to_owned();
    loop {
        match tokio::time::timeout_at(deadline, client.ensure(&request)).await {
            Ok(Ok(answer)) if answer.ready => {
                progress.finish_and_clear();
                return told(context, &answer);
            }
            Ok(Ok(answer)) => last = answer.text,
            // Many people log in at the same time and the daemon has no free connection, or the daemon restarts.
            Ok(Err(ClientError::Broken(_))) => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => "bursard does not answer; see `systemctl status bursard`".clone_into(&mut last),
        }
        if Instant::now() + AGAIN > deadline {
            progress.finish_and_clear();
            return Err(Failure::new(Exit::Failed, format!("not ready within {} s: {last}", timeout.as_secs())));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn told(context: &Context, answer: &EnsureAnswer) -> Result<Exit, Failure> {
    if context.global.json {
        output::json(answer)?;
    } else {
        let files: Vec<String> = answer.kubeconfigs.iter().map(|path| path.display().to_string()).collect();
        let files = if files.is_empty() { String::new() } else { format!(", {}", files.join(", ")) };
        output::line(format!("{}{files}", answer.text));
    }
    Ok(Exit::Done)
}
