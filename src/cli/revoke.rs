//! `bursar revoke`: of one account, or of a class; it returns when the API server refuses the old certificates and the new
//! ones are delivered.

use std::time::Duration;

use super::arguments::Revoke;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::order::{asked, give, printed};
use super::output;
use crate::control::api::OrderAnswer;
use crate::control::client::ControlClient;
use crate::daemon;
use crate::orders::request::{Evict, OrderRequest, RevokeClass, Target};
use crate::plan::revocation::Progress;

/// Between two looks how far it is.
const LOOK: Duration = Duration::from_millis(500);

pub(super) async fn run(context: &Context, arguments: Revoke) -> Result<Exit, Failure> {
    let Revoke { kind, name, all: _, class, evict, since, reason, ticket } = arguments;
    let reason = Some(reason);
    if let Some(since) = since.filter(|since| *since > daemon::now()) {
        return Err(Failure::new(Exit::Usage, format!("--since {since} is in the future")));
    }
    match (kind, name, class) {
        (Some(kind), Some(name), _) => {
            let target = Target { kind, name, reason, ticket };
            let order = if evict { OrderRequest::Evict(Evict { target, since }) } else { OrderRequest::Revoke(target) };
            give(context, vec![order]).await
        }
        (_, _, Some(class)) => of_class(context, RevokeClass { class, reason, ticket }).await,
        // The arguments' own rules leave no third.
        _ => Ok(Exit::Usage),
    }
}

async fn of_class(context: &Context, request: RevokeClass) -> Result<Exit, Failure> {
    let class = request.class.clone();
    let answer = asked(context, &[OrderRequest::RevokeClass(request)]).await?;
    let Some(report) = answer.report.clone() else { return printed(context, answer) };
    let of_class = |all: Vec<Progress>| all.into_iter().find(|progress| progress.class == class);
    let first = of_class(report.revocations);
    let end = match first {
        Some(first) => followed(&context.daemon()?, first).await?,
        None => Ended { progress: None, stopped: false },
    };
    told(context, &answer, end)
}

/// How it ended.
struct Ended {
    /// As it was last seen; absent: it was over before anybody looked.
    progress: Option<Progress>,
    stopped: bool,
}

/// Looks until nothing of it is left, or it stops.
async fn followed(client: &ControlClient, first: Progress) -> Result<Ended, Failure> {
    let bar = output::bar(first.all(), "accounts are revoked");
    let mut last = first;
    loop {
        bar.set_length(last.all());
        bar.set_position(last.done);
        if !last.stopped_by.is_empty() {
            bar.finish_and_clear();
            return Ok(Ended { progress: Some(last), stopped: true });
        }
        tokio::time::sleep(LOOK).await;
        let status = client.status().await.map_err(|error| {
            let Failure { exit, text } = error.into();
            let on = "what is ordered goes on when bursard runs; this command, given again, follows it";
            Failure::new(exit, format!("{text}\n{on}"))
        })?;
        let Some(progress) = status.revocations.into_iter().find(|progress| progress.class == last.class) else {
            bar.finish_and_clear();
            let progress = Progress { done: last.all(), under_way: 0, waiting: 0, ..last };
            return Ok(Ended { progress: Some(progress), stopped: false });
        };
        last = progress;
    }
}

fn told(context: &Context, answer: &OrderAnswer, end: Ended) -> Result<Exit, Failure> {
    let Ended { progress, stopped } = end;
    if context.global.json {
        output::json(&serde_json::json!({"text": answer.text, "refused": answer.refused, "revocation": progress}))?;
    } else {
        output::line(&answer.text);
        output::line(progress.as_ref().map(ToString::to_string).unwrap_or_default());
    }
    let text = "it stopped by itself, and goes on when what fails is cured: `bursar status`";
    if stopped { Err(Failure::new(Exit::Failed, text.to_owned())) } else { Ok(Exit::Done) }
}
