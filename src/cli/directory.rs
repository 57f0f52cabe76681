//! `bursar directory`: accepts the next read of a source, lists accounts that were imported again, and compares a
//! source under another configuration or on another server.

use std::path::PathBuf;

use bursar_directory::{Pass, SourceConfig, SourceKind};
use serde_json::json;

use super::arguments::{Accept, Diff, Directory, Why};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::order;
use super::output::{self, clean};
use crate::daemon;
use crate::ledger::doubt::Question;
use crate::ledger::{Account, LedgerState};
use crate::orders::adopt::entries_for;
use crate::orders::request::{AcceptDirectory, OrderRequest};
use crate::policy::Policy;
use crate::settings::{DEFAULT_PATH, Settings};
use crate::snapshot::difference::differences;
use crate::snapshot::{RejectedEntry, SourceRead};

pub(super) async fn run(context: &Context, command: Directory) -> Result<Exit, Failure> {
    match command {
        Directory::Accept(Accept { source, why: Why { reason, ticket } }) => {
            let order = OrderRequest::AcceptDirectory(AcceptDirectory { source, reason: Some(reason), ticket });
            order::give(context, vec![order]).await
        }
        Directory::Imported => imported(context).await,
        Directory::Diff(arguments) => diff(context, arguments).await,
    }
}

/// Prints a line for each account, in the syntax of `bursar adopt import`. If several entries have the name of an
/// account, its lines are comments, because the administrator must choose one.
async fn imported(context: &Context) -> Result<Exit, Failure> {
    let ledger = context.store().await?.state().await?;
    let doubts = ledger.doubts.iter().filter(|(key, _)| key.question == Question::Import);
    let accounts = doubts.flat_map(|(_, doubt)| &doubt.accounts).filter_map(|id| ledger.accounts.get(id));
    let lines: Vec<String> = accounts.flat_map(|account| adoptions(&ledger, account)).collect();
    if context.global.json {
        output::json(&json!(lines))?;
    } else {
        if lines.is_empty() {
            output::line("# no account seems to have been imported again");
        }
        for line in &lines {
            output::raw(line);
        }
    }
    Ok(Exit::Done)
}

fn adoptions(ledger: &LedgerState, account: &Account) -> Vec<String> {
    let entries = entries_for(ledger, account);
    let line = |entry: &&RejectedEntry| {
        let id = entry.id.as_ref()?.0.as_str();
        // The id and the DN come from the directory, so neither may begin another line.
        let is_plain = id.chars().all(|letter| letter.is_ascii_graphic() && letter != '"');
        let order = format!("account {} --entry {id}", account.account_name().words());
        is_plain.then(|| (format!("# {:?}", entry.dn), order))
    };
    let found: Vec<(String, String)> = entries.iter().filter_map(line).collect();
    match found.as_slice() {
        [(dn, order)] if entries.len() == 1 => vec![dn.clone(), order.clone()],
        several => {
            let count = entries.len();
            let first = format!("# {count} entries have the name of {}; choose one:", account.account_name());
            let each = several.iter().flat_map(|(dn, order)| [dn.clone(), format!("# {order}")]);
            std::iter::once(first).chain(each).collect()
        }
    }
}

/// Reads each source twice, and prints the differences. If there are any, the exit code is 2.
async fn diff(context: &Context, Diff { source, server }: Diff) -> Result<Exit, Failure> {
    let in_force = std::env::var_os("BURSAR_CONFIG").map_or_else(|| PathBuf::from(DEFAULT_PATH), PathBuf::from);
    let other = &context.global.config;
    if server.is_none() && *other == in_force {
        let text = "nothing to compare with; add --config FILE (another configuration) or --server URL".to_owned();
        return Err(Failure::new(Exit::Usage, text));
    }
    // With --server, only one configuration is read: the one of --config, or the one in force.
    let first = Settings::load(if server.is_some() { other } else { &in_force })?;
    let second = if server.is_some() { None } else { Some(Settings::load(other)?) };
    let mut before = sources(&first, source.as_deref())?;
    if server.is_some() {
        before.retain(|source| matches!(source.kind, SourceKind::Ldap(_)));
        if before.is_empty() {
            let text = "--server: only sources of type ldap and ad have servers, not an ldif file or a realm";
            return Err(Failure::new(Exit::Usage, text));
        }
    }
    let after = match (&second, &server) {
        (Some(settings), _) => sources(settings, source.as_deref())?,
        (None, Some(url)) => before.iter().map(|source| on_server(source, url)).collect::<Result<_, _>>()?,
        (None, None) => Vec::new(),
    };
    let policy = second.as_ref().map_or(&first.policy, |settings| &settings.policy);
    let (before, after) = (read(&before, &first.policy).await, read(&after, policy).await);
    let mut lines = Vec::new();
    for pair in pairs(&before, &after) {
        lines.extend(compared(pair));
    }
    if context.global.json {
        output::json(&json!(lines))?;
    } else {
        for line in &lines {
            output::line(clean(line));
        }
        if lines.is_empty() {
            output::line("no difference");
        }
    }
    Ok(if lines.is_empty() { Exit::Done } else { Exit::Changes })
}

fn sources(settings: &Settings, only: Option<&str>) -> Result<Vec<SourceConfig>, Failure> {
    let mut sources = settings.sources()?;
    sources.retain(|source| only.is_none_or(|only| source.name == only));
    match only {
        Some(only) if sources.is_empty() => {
            let names: Vec<&str> = settings.source_names().collect();
            let text = format!("the configuration has no source {only:?}; there are: {}", names.join(", "));
            Err(Failure::new(Exit::Usage, text))
        }
        _ => Ok(sources),
    }
}

/// Returns the source with only this server.
fn on_server(source: &SourceConfig, url: &str) -> Result<SourceConfig, Failure> {
    let mut source = source.clone();
    if let SourceKind::Ldap(ldap) = &mut source.kind {
        ldap.urls = vec![url.to_owned()];
    }
    source.check().map_err(|error| Failure::new(Exit::Usage, format!("--server: {error}")))?;
    Ok(source)
}

async fn read(sources: &[SourceConfig], policy: &Policy) -> Vec<SourceRead> {
    bursar_directory::fetch(sources, &Pass::Once, policy, daemon::now()).await.reads
}

/// Pairs the reads of each source, sorted by the name of the source.
fn pairs<'a>(
    before: &'a [SourceRead],
    after: &'a [SourceRead],
) -> Vec<(&'a str, Option<&'a SourceRead>, Option<&'a SourceRead>)> {
    let mut names: Vec<&str> = before.iter().chain(after).map(|read| read.source.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |reads: &'a [SourceRead], name: &str| reads.iter().find(|read| read.source == name);
    names.into_iter().map(|name| (name, of(before, name), of(after, name))).collect()
}

fn compared((name, before, after): (&str, Option<&SourceRead>, Option<&SourceRead>)) -> Vec<String> {
    let (Some(before), Some(after)) = (before, after) else {
        let which = if before.is_some() { "is only in the configuration in force" } else { "is new" };
        return vec![format!("source {name} {which}")];
    };
    let trouble = |which: &str, read: &SourceRead| {
        let why = read.completeness.trouble()?;
        Some(format!("the {which} read of source {name} is incomplete, so entries that it lacks may exist: {why}"))
    };
    let troubles = [trouble("first", before), trouble("second", after)].into_iter().flatten();
    troubles.chain(differences(before, after).into_iter().map(|line| format!("{name}: {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::identity::{AccountId, AccountKind, AccountName, DirectoryId};

    #[test]
    fn imported_accounts_are_listed_with_the_only_entry_that_has_the_name() {
        let name = AccountName { kind: AccountKind::User, name: "alice".to_owned() };
        let id = AccountId::derive("L", "people", &DirectoryId("old".to_owned()));
        let alice = Account::new(id, name, "people", DirectoryId("old".to_owned()), Timestamp::UNIX_EPOCH);
        let mut ledger = LedgerState::default();
        ledger.accounts.insert(alice.clone());
        let mut add = |id: &str, dn: &str| {
            ledger.rejected.insert(RejectedEntry {
                source: "people".to_owned(),
                kind: AccountKind::User,
                dn: dn.to_owned(),
                name: Some("alice".to_owned()),
                id: Some(DirectoryId(id.to_owned())),
                disabled: None,
                why: String::new(),
                reason: None,
            });
            adoptions(&ledger, &alice)
        };
        let one = ["# \"uid=alice,ou=people\"", "account user alice --entry new"];
        assert_eq!(add("new", "uid=alice,ou=people"), one);
        let several = add("x\naccount user bob", "uid=alice\nou=lab");
        assert_eq!(several[0], "# 2 entries have the name of user:alice; choose one:");
        assert!(several.iter().all(|line| line.starts_with('#') && !line.contains('\n')), "{several:?}");
    }
}
