//! `bursar suspend|resume|hold|release|approve`: gives orders to the daemon or, if it does not run, records them in the
//! ledger in this process. Other commands, such as `quota` and `revoke`, give their orders through this module.

use super::arguments::{
    self, Account, Adopt, AdoptNamespace, Command, MaybeReasoned, MaybeWhy, Reasoned, Resume, Suspend, Why,
};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::clean;
use super::{lines, local, output, sync};
use crate::control::api::OrderAnswer;
use crate::control::client::ClientError;
use crate::identity::{AccountKind, AccountName};
use crate::orders::request::{
    AdoptEntry, AdoptObject, OrderRequest, RequestRefusal, ResumeStarting, SuspendUntil, Target,
};

pub(super) async fn hold(context: &Context, arguments: Reasoned) -> Result<Exit, Failure> {
    give(context, vec![OrderRequest::Hold(arguments.into())]).await
}

pub(super) async fn release(context: &Context, arguments: MaybeReasoned) -> Result<Exit, Failure> {
    give(context, vec![OrderRequest::Release(arguments.into())]).await
}

pub(super) async fn suspend(context: &Context, Suspend { target, until }: Suspend) -> Result<Exit, Failure> {
    let target = target.into();
    let request = match until {
        Some(until) => OrderRequest::SuspendUntil(SuspendUntil { target, until }),
        None => OrderRequest::Suspend(target),
    };
    give(context, vec![request]).await
}

pub(super) async fn adopt(context: &Context, command: Adopt) -> Result<Exit, Failure> {
    let orders = match command {
        Adopt::Import { file } => lines::read(&file, adoptions)?,
        one => adoption(one).into_iter().collect(),
    };
    give(context, orders).await
}

/// Parses lines in the syntax of `bursar adopt`.
fn adoptions(text: &str) -> (Vec<OrderRequest>, Vec<String>) {
    lines::parsed(text, &["adopt"], |command| match command {
        Command::Adopt(command) => adoption(command).map(Ok),
        _ => None,
    })
}

pub(super) async fn resume(context: &Context, Resume { target, start }: Resume) -> Result<Exit, Failure> {
    let target = target.into();
    let request = if start.is_empty() {
        OrderRequest::Resume(target)
    } else {
        OrderRequest::ResumeStarting(ResumeStarting { target, start })
    };
    give(context, vec![request]).await
}

impl From<MaybeReasoned> for Target {
    fn from(
        MaybeReasoned { account: Account { kind, name }, why: MaybeWhy { reason, ticket } }: MaybeReasoned,
    ) -> Self {
        Self { kind, name, reason, ticket }
    }
}

impl From<Reasoned> for Target {
    fn from(Reasoned { account: Account { kind, name }, why: Why { reason, ticket } }: Reasoned) -> Self {
        Self { kind, name, reason: Some(reason), ticket }
    }
}

/// Returns the order of a command; `None` for an import, which is a file of orders.
fn adoption(command: Adopt) -> Option<OrderRequest> {
    Some(match command {
        Adopt::Uid(arguments) => OrderRequest::AdoptUid(arguments.into()),
        Adopt::Account(arguments::AdoptAccount { target, entry: None }) => OrderRequest::AdoptAccount(target.into()),
        Adopt::Account(arguments::AdoptAccount { target, entry: Some(entry) }) => {
            OrderRequest::AdoptEntry(AdoptEntry { target: target.into(), entry })
        }
        Adopt::Namespace(AdoptNamespace { namespace, tool, user, group, why: MaybeWhy { reason, ticket } }) => {
            let owners = [(AccountKind::Tool, tool), (AccountKind::User, user), (AccountKind::Group, group)];
            let owner = owners.into_iter().find_map(|(kind, name)| Some(AccountName { kind, name: name? }));
            let object = format!("namespace {namespace}");
            OrderRequest::AdoptObject(AdoptObject { object, owner, reason, ticket })
        }
        Adopt::Object(arguments::AdoptObject { kind, object, why: MaybeWhy { reason, ticket } }) => {
            let object = format!("{} {object}", kind.to_lowercase());
            OrderRequest::AdoptObject(AdoptObject { object, owner: None, reason, ticket })
        }
        Adopt::Import { .. } => return None,
    })
}

pub(super) async fn approve(context: &Context, hash: String) -> Result<Exit, Failure> {
    give(context, vec![OrderRequest::Approve { hash }]).await
}

/// Gives orders to the daemon or, if it does not run, records them in this process under the same lock. If one order is
/// refused, the others are still recorded.
pub(super) async fn give(context: &Context, orders: Vec<OrderRequest>) -> Result<Exit, Failure> {
    printed(context, asked(context, &orders).await?)
}

pub(super) async fn asked(context: &Context, orders: &[OrderRequest]) -> Result<OrderAnswer, Failure> {
    let progress = output::progress("carrying out the order");
    let answer = match context.daemon()?.order(orders).await {
        Err(ClientError::Absent { .. }) => local::orders(&context.settings()?, &context.actor, orders).await?,
        Err(error @ (ClientError::Broken(_) | ClientError::Answer(_))) => {
            let Failure { exit, text } = error.into();
            let text = format!("{text}; the order may have been recorded: `bursar history --last 5` shows it");
            return Err(Failure::new(exit, text));
        }
        answer => answer?,
    };
    progress.finish_and_clear();
    Ok(answer)
}

pub(super) fn printed(context: &Context, answer: OrderAnswer) -> Result<Exit, Failure> {
    if context.global.json {
        output::json(&answer)?;
    } else {
        answer.text.lines().for_each(|line| output::line(clean(line)));
        for proof in &answer.proofs {
            proof.to_string().lines().for_each(|line| output::line(clean(line)));
        }
        if let Some(report) = &answer.report {
            output::line(sync::text(report));
        }
    }
    let open = answer.open.into_iter().map(|RequestRefusal { exit_code, text }| RequestRefusal {
        exit_code,
        text: format!("not done yet: {}; `bursar status` shows the progress", clean(&text)),
    });
    refused(answer.refused.into_iter().chain(open).collect())
}

/// Returns all refusals as one failure, with the exit code of the first.
fn refused(refusals: Vec<RequestRefusal>) -> Result<Exit, Failure> {
    let Some(exit_code) = refusals.first().map(|refusal| refusal.exit_code) else { return Ok(Exit::Done) };
    let text = refusals.into_iter().map(|refusal| refusal.text).collect::<Vec<_>>().join("\n");
    Err(RequestRefusal { exit_code, text }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_only_adoptions() {
        let text = "# of the old cluster\nnamespace tool-foo --tool foo --ticket T1\nuid tool bar\n";
        let (orders, wrong) = adoptions(text);
        assert_eq!((orders.len(), wrong), (2, Vec::new()));
        let OrderRequest::AdoptObject(first) = &orders[0] else { panic!("{orders:?}") };
        assert_eq!((first.object.as_str(), first.ticket.as_deref()), ("namespace tool-foo", Some("T1")));
        let (orders, wrong) = adoptions("namespace tool-foo\nimport other\nnamespace x --user \"y\n");
        assert_eq!((orders.len(), wrong.len()), (0, 3), "{wrong:?}");
    }
}
