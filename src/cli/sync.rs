//! `bursar sync`: runs a cycle now, in the daemon or, with `--once`, in this process. If the read of a source takes
//! long, the report of the first cycle is printed at once, and the reports of the cycles that use later answers follow.

use std::convert::Infallible;
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::arguments::Sync;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::clean;
use super::{local, output};
use crate::control::api::{Away, CycleReport, Failing, Status};
use crate::control::client::{ClientError, ControlClient};
use crate::plan::wording::counted_entries;

/// How often `sync` asks how many accounts are left.
const LOOK: Duration = Duration::from_secs(5);

pub(super) async fn run(context: &Context, arguments: &Sync) -> Result<Exit, Failure> {
    let progress = output::progress("running a cycle");
    let mut earlier = Vec::new();
    let report = if arguments.once {
        Box::pin(local::cycle(context.settings()?)).await?
    } else {
        let daemon = context.daemon()?;
        let mut report = shown(&daemon, &progress, daemon.sync()).await?;
        while !report.reading.is_empty() {
            // A program gets one document.
            if !context.global.json {
                progress.suspend(|| output::line(text(&report)));
            }
            let next = shown(&daemon, &progress, daemon.sync_rest(&report.reading)).await?;
            earlier.push(std::mem::replace(&mut report, next));
        }
        report
    };
    progress.finish_and_clear();
    if context.global.json {
        output::json(&document(&report, &earlier))?;
    } else {
        output::line(text(&report));
    }
    Ok(Exit::of(report.exit_code()))
}

/// Returns the report of the last cycle, with the reports of the cycles before it in `earlier`.
fn document(report: &CycleReport, earlier: &[CycleReport]) -> Value {
    let mut document = json!(report);
    document["earlier"] = json!(earlier);
    document
}

/// Waits for a report, and shows the progress meanwhile.
async fn shown(
    daemon: &ControlClient,
    progress: &ProgressBar,
    report: impl Future<Output = Result<CycleReport, ClientError>>,
) -> Result<CycleReport, ClientError> {
    tokio::select! {
        report = report => report,
        never = show(daemon, progress) => match never {},
    }
}

/// Shows the reads in progress and how many accounts are left, until the caller drops the future.
async fn show(daemon: &ControlClient, progress: &ProgressBar) -> Infallible {
    loop {
        tokio::time::sleep(LOOK).await;
        let Ok(Status { reading, last_cycle, .. }) = daemon.status().await else { continue };
        if let Some((left, time)) = last_cycle.and_then(|last| Some((last.left, last.remaining()?))) {
            progress.set_message(format!("{left} accounts are left, about {time:#}"));
        } else if !reading.is_empty() {
            let reading = reading.iter().map(|(source, entries)| format!("{source} ({})", counted_entries(*entries)));
            progress.set_message(format!("reading {}", reading.collect::<Vec<_>>().join(", ")));
        }
    }
}

/// Returns the report of a cycle in a few lines.
pub(super) fn text(report: &CycleReport) -> String {
    let CycleReport { id, trigger, began: _, ended, changed, unchanged, actions, left, .. } = report;
    let CycleReport { failing, rejected, partial, refusals, near, pace, revocations, over_quota, unknown, .. } = report;
    let unfinished = &report.unfinished;
    let trigger = trigger.name();
    let rejected = if *rejected > 0 { format!(", {rejected} rejected") } else { String::new() };
    let left = match report.remaining() {
        Some(time) => format!(", {left} wait for the next cycle (about {time:#} at this pace)"),
        None if *left > 0 => format!(", {left} wait for the next cycle"),
        None => String::new(),
    };
    let mut lines = vec![format!(
        "cycle {id} ({trigger}) ended {ended:.0}: {changed} changed by {actions} actions, \
         {unchanged} as they should be{rejected}{left}"
    )];
    lines.extend(report.reading.iter().map(|(source, reading)| format!("source {source}: {reading}")));
    lines.extend(partial.iter().map(|(source, why)| format!("source {source} is partial: {}", clean(why))));
    lines.extend(report.away.iter().map(|(cluster, Away { why, tenants })| {
        let why = why.as_deref().map(|why| format!(": {}", clean(why))).unwrap_or_default();
        format!("cluster {cluster}: not reachable{why}; tenants that wait for it: {tenants}")
    }));
    lines.extend(report.realm.iter().map(|why| format!("realm: nothing is changed there: {}", clean(why))));
    lines.extend(failing.iter().map(|failure| {
        let Failing { account, cluster, step, reason, since: _, attempts: _, next_try: _ } = failure;
        format!("fails: {account} in {cluster}: {step}: {}", clean(reason))
    }));
    lines.extend(unfinished.iter().map(|one| clean(&one.to_string())));
    lines.extend(refusals.iter().map(|refusal| clean(&refusal.why)));
    lines.extend(near.iter().map(ToString::to_string));
    lines.extend(pace.iter().map(ToString::to_string));
    lines.extend(revocations.iter().map(ToString::to_string));
    lines.extend(unknown.iter().map(|unknown| clean(&unknown.to_string())));
    lines.extend(over_quota.iter().map(|over| format!("{}: {}", over.account, clean(&over.to_string()))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_the_reports_of_all_cycles_in_one_document() {
        let report = |id: i64| -> CycleReport {
            let report = json!({
                "id": id, "trigger": "sync", "began": "2026-05-03T12:00:00Z", "ended": "2026-05-03T12:00:01Z",
                "changed": 1, "unchanged": 0, "actions": 2, "failing": [], "rejected": 0, "partial": {}, "refusals": [],
            });
            serde_json::from_value(report).expect("the JSON is a report")
        };
        let document = document(&report(3), &[report(1), report(2)]);
        assert_eq!((&document["id"], &document["earlier"][1]["id"]), (&json!(3), &json!(2)));
        assert_eq!(document["earlier"].as_array().map(Vec::len), Some(2));
    }
}
