//! `bursar revoke`: revokes the credentials of one account or of a class. It returns when the API server refuses the
//! old certificates and the new ones are delivered.

use std::time::Duration;

use super::arguments::{Revoke, Why};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::order::{asked, give, printed};
use super::output;
use crate::control::api::OrderAnswer;
use crate::control::client::ControlClient;
use crate::daemon;
use crate::orders::request::{Evict, OrderRequest, RevokeClass, Target};
use crate::plan::revocation::RevocationProgress;
use crate::report::unfinished::Unfinished;

/// The pause between two requests for the progress.
const LOOK: Duration = Duration::from_millis(500);

const STOPPED: &str =
    "the revocation stopped, and continues automatically when the failing step works again; see `bursar status`";
const WAITS: &str = "the revocation is not finished: it continues automatically when what it waits for is back. The same \
                     command shows its progress; to revoke the whole class once more, give another reason";

pub(super) async fn run(context: &Context, arguments: Revoke) -> Result<Exit, Failure> {
    let Revoke { kind, name, all: _, class, evict, since, why: Why { reason, ticket } } = arguments;
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
        // The rules of the arguments exclude any other combination.
        _ => Ok(Exit::Usage),
    }
}

async fn of_class(context: &Context, request: RevokeClass) -> Result<Exit, Failure> {
    let class = request.class.clone();
    let answer = asked(context, &[OrderRequest::RevokeClass(request)]).await?;
    let Some(report) = answer.report.clone() else { return printed(context, answer) };
    let of_class = |all: Vec<RevocationProgress>| all.into_iter().find(|progress| progress.class == class);
    let first = of_class(report.revocations);
    let end = match first {
        Some(first) => followed(&context.daemon()?, first).await?,
        None => Ended { progress: None, open: None, unfinished: report.unfinished },
    };
    let bound = bound_by_others(context, &class).await;
    let open = unfinished(&end.unfinished);
    told(context, &answer, end, &Open { bound, open })
}

/// Returns the unfinished revocations and suspensions. An account that was suspended meanwhile may still have its
/// bindings in a cluster that does not answer. Accounts of other classes are included, because a row of `tenant` has
/// only the first class of the account.
fn unfinished(all: &[Unfinished]) -> Vec<String> {
    let open = all.iter().filter(|one| ["revoke", "suspend"].contains(&one.what.as_str()));
    open.map(ToString::to_string).collect()
}

/// Selects accounts and clusters in which foreign bindings still name the holder of old credentials. Only the newest
/// answer since the last revocation of the class was ordered counts. Accounts of other classes are included, because a
/// row of `tenant` has only the first class of the account.
const BOUND: &str = "WITH began AS (
      SELECT max(id) AS id FROM event WHERE action = 'revocation of a class ordered' AND detail ->> 'class' = ?1
    ), asked AS (
      SELECT account, account_id, detail ->> 'cluster' AS cluster, max(id) AS id FROM event
      WHERE action IN ('old credentials refused', 'old credentials bound by others') AND id > (SELECT id FROM began)
      GROUP BY account_id, cluster
    )
    SELECT asked.account, asked.cluster, e.detail ->> 'foreign' AS bindings FROM asked JOIN event e ON e.id = asked.id
    WHERE e.action = 'old credentials bound by others' ORDER BY 1, 2";

/// Returns a line for each account and cluster that [`BOUND`] selects.
async fn bound_by_others(context: &Context, class: &str) -> Result<Vec<String>, Failure> {
    let rows = context.store_despite_errors().await?.rows(BOUND, &[class.to_owned()]).await?;
    let line = |row: &output::Row| {
        let text = |key: &str| row.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        let bindings: Vec<String> = serde_json::from_str(text("bindings")).unwrap_or_default();
        format!("{} in {}: {}", text("account"), text("cluster"), bindings.join("; "))
    };
    Ok(rows.iter().map(line).collect())
}

/// The state of the revocation when this command stops following it.
struct Ended {
    /// The last progress; `None` if the revocation was finished before the first request.
    progress: Option<RevocationProgress>,
    /// Why the revocation is not finished; `None` if it is.
    open: Option<&'static str>,
    /// The unfinished work of all accounts.
    unfinished: Vec<Unfinished>,
}

/// The reasons why old credentials may still be accepted.
struct Open {
    /// Lines about foreign bindings. An error if the caller may not read the ledger, which records these bindings.
    bound: Result<Vec<String>, Failure>,
    /// Lines about unfinished revocations and suspensions.
    open: Vec<String>,
}

/// Follows the revocation until it is finished, stops or waits.
async fn followed(client: &ControlClient, first: RevocationProgress) -> Result<Ended, Failure> {
    let bar = output::bar(first.all(), "accounts are revoked");
    // The first answer may not know yet what the revocation waits for, so at least one more is requested.
    let (mut last, mut unfinished, mut looked) = (first, Vec::new(), false);
    loop {
        bar.set_length(last.all());
        bar.set_position(last.done);
        let is_at_rest = looked && last.is_at_rest(daemon::now());
        let open = if last.stopped_by.is_empty() { is_at_rest.then_some(WAITS) } else { Some(STOPPED) };
        if open.is_some() {
            bar.finish_and_clear();
            return Ok(Ended { progress: Some(last), open, unfinished });
        }
        looked = true;
        tokio::time::sleep(LOOK).await;
        let status = client.status().await.map_err(|error| {
            let Failure { exit, text } = error.into();
            let on = "the revocation continues when bursard runs; to follow it, run this command again";
            Failure::new(exit, format!("{text}\n{on}"))
        })?;
        unfinished = status.unfinished;
        let Some(progress) = status.revocations.into_iter().find(|progress| progress.class == last.class) else {
            bar.finish_and_clear();
            let (done, holds_up_until) = (last.all(), None);
            let progress = RevocationProgress { done, under_way: 0, waiting: 0, held: 0, holds_up_until, ..last };
            return Ok(Ended { progress: Some(progress), open: None, unfinished });
        };
        last = progress;
    }
}

fn told(context: &Context, answer: &OrderAnswer, end: Ended, left: &Open) -> Result<Exit, Failure> {
    let (Ended { progress, open: why, unfinished: _ }, Open { bound, open }) = (end, left);
    if context.global.json {
        let (text, refused) = (&answer.text, &answer.refused);
        output::json(&serde_json::json!({
            "text": text, "refused": refused, "revocation": progress, "bound_by_others": bound.as_ref().ok(),
            "unfinished": open,
        }))?;
    } else {
        output::line(&answer.text);
        output::line(progress.as_ref().map(ToString::to_string).unwrap_or_default());
    }
    let mut texts: Vec<String> = why.map(str::to_owned).into_iter().collect();
    let lines = |lines: &[String]| lines.iter().map(|line| output::clean(line)).collect::<Vec<_>>().join("\n");
    match bound {
        Ok(bound) if bound.is_empty() => {}
        Ok(bound) => texts.push(format!(
            "bindings that Bursar did not create name holders of older credentials; delete them, then run `bursar \
             revoke` again:\n{}",
            lines(bound)
        )),
        Err(Failure { text, .. }) => texts.push(format!(
            "the ledger cannot be read here, so Bursar cannot tell whether bindings that it did not create name \
             holders of older credentials; correct this, then run `bursar revoke` again:\n{}",
            output::clean(text)
        )),
    }
    if !open.is_empty() {
        texts.push(format!("older credentials may still be accepted until this is done:\n{}", lines(open)));
    }
    if texts.is_empty() { Ok(Exit::Done) } else { Err(Failure::new(Exit::Failed, texts.join("\n"))) }
}
