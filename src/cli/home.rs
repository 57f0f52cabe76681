//! `bursar home show|restore`: shows which entries of a kubeconfig are Bursar's, and restores the user's part of a
//! kubeconfig that Bursar replaced. `bursar-homed` reads and writes the file; it answers only user `bursar`, and
//! returns nothing of the user's part. The daemon records a restoration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use bursar_homed::client::{HomedClient, HomedClientError};
use bursar_protocol::{Answer, EntryNames, HomeError, HomeTarget, Inspection, Request, USER_PREFIX, Work};
use serde_json::{Value, json};

use super::arguments::{Account, Home, MaybeReasoned};
use super::context::{Context, as_bursar, ledger_of, may_act};
use super::exit::{Exit, Failure};
use super::{order, output};
use crate::desired::DesiredHome;
use crate::execute::home::target;
use crate::ledger::LedgerState;
use crate::orders;
use crate::orders::request::{OrderRequest, Target};
use crate::policy::Policy;

pub(super) async fn run(context: &Context, command: Home) -> Result<Exit, Failure> {
    if !may_act() {
        return Err(Failure::new(Exit::Forbidden, "this command needs root or user bursar".to_owned()));
    }
    let settings = context.settings()?;
    let (Home::Show(account) | Home::Restore(MaybeReasoned { account, .. })) = &command;
    let ledger = as_bursar(ledger_of(&settings)).await??;
    let homes = homes(&settings.policy, &ledger, account)?;
    let client = HomedClient::new(&settings.homes.socket, settings.homes.deadline);
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    for home in &homes {
        let said = match &command {
            Home::Show(_) => as_bursar(show(&client, home)).await?.map(Some).map_err(|error| failure(&error)),
            Home::Restore(reasoned) => restored(context, &client, home, reasoned).await,
        };
        match said {
            Ok(said) => found.push((home.home.join(&home.kubeconfig).display().to_string(), said)),
            Err(failure) => failed.push(failure),
        }
    }
    if failed.is_empty() && found.iter().all(|(_, said)| said.is_none()) {
        let files = found.into_iter().map(|(file, _)| file).collect::<Vec<_>>().join(", ");
        let remedy = "no action needed: the files in the homes are the user's own";
        return Err(Failure::new(Exit::Failed, format!("Bursar has replaced no file of the user: {files}; {remedy}")));
    }
    if context.global.json {
        let value = |said: &Option<Said>| said.as_ref().map(|(value, _)| value.clone());
        let rows: Vec<Value> = found.iter().map(|(file, said)| json!({"file": file, "found": value(said)})).collect();
        output::json(&rows)?;
    } else {
        for (file, said) in &found {
            let text = said.as_ref().map_or(NOTHING_KEPT, |(_, text)| text.as_str());
            output::line(format!("{}: {}", output::clean(file), output::clean(text)));
        }
    }
    let Some(exit) = failed.first().map(|failure| failure.exit) else { return Ok(Exit::Done) };
    Err(Failure::new(exit, failed.into_iter().map(|failure| failure.text).collect::<Vec<_>>().join("\n")))
}

/// The answer for one file, as JSON and as text.
type Said = (Value, String);

const NOTHING_KEPT: &str = "no part of a replaced file is kept";

/// Returns the homes of an account: the homes to which a kubeconfig was delivered or, if there are none, the home that
/// its class defines.
fn homes(policy: &Policy, ledger: &LedgerState, account: &Account) -> Result<Vec<HomeTarget>, Failure> {
    let Account { kind, name } = account;
    let known = orders::find(ledger, *kind, name)?;
    let none = |why: &str| Failure::new(Exit::NoAccount, format!("{kind} {name} {why}"));
    let posix = known.posix.clone().ok_or_else(|| none("has no uid"))?;
    let place = |home: PathBuf, kubeconfig, mount| {
        let posix = posix.clone();
        target(&DesiredHome { home, posix, kubeconfig, create: false, replace_unparsable: false }, mount)
    };
    let files: BTreeMap<_, _> = ledger
        .deliveries_of(&known.id)
        .filter(|(_, delivery)| !delivery.is_removed())
        .filter_map(|(_, delivery)| {
            let home = delivery.home.clone().or_else(|| known.home.clone())?;
            let kubeconfig = delivery.path.strip_prefix(&home).ok()?.to_owned();
            Some(((home, kubeconfig), delivery.mount.clone()))
        })
        .collect();
    if files.is_empty() {
        let home = known.home.clone().ok_or_else(|| none("has no home"))?;
        let rules = policy.classes.values().filter_map(|class| class.home.as_ref());
        let rule = rules.filter(|rule| home.starts_with(&rule.prefix)).max_by_key(|rule| rule.prefix.as_os_str().len());
        let kubeconfig = rule.map_or_else(|| bursar_protocol::USUAL_KUBECONFIG.into(), |rule| rule.kubeconfig.clone());
        return Ok(vec![place(home, kubeconfig, None)]);
    }
    Ok(files.into_iter().map(|((home, kubeconfig), mount)| place(home, kubeconfig, mount)).collect())
}

fn failure(error: &HomedClientError) -> Failure {
    let remedy = match error {
        HomedClientError::Home(error) => format!("; {}", error.remedy()),
        _ => String::new(),
    };
    let exit = match error {
        HomedClientError::Home(HomeError::InUse { .. }) => Exit::Busy,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("{}{remedy}", crate::errors::chain(error)))
}

fn misunderstood() -> HomedClientError {
    HomedClientError::Protocol("the answer belongs to another request".to_owned())
}

async fn show(client: &HomedClient, home: &HomeTarget) -> Result<Said, HomedClientError> {
    let names = EntryNames { user: format!("{USER_PREFIX}none"), ..EntryNames::default() };
    match client.call(&Request::new(home.clone(), Work::Inspect { names })).await? {
        Answer::Inspected(found) => Ok((json!(found), said(&found))),
        _ => Err(misunderstood()),
    }
}

fn said(found: &Inspection) -> String {
    let list = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let kept = match found.kept {
        Some(bytes) => format!("the user's part of the replaced file is kept ({bytes} bytes)"),
        None => NOTHING_KEPT.to_owned(),
    };
    let ours = &found.ours;
    let what = match (&found.unreadable, found.exists) {
        (_, false) => "there is no file".to_owned(),
        (Some(why), true) => format!("it cannot be read: {why}"),
        (None, true) if ours.is_empty() => "it has no entries of Bursar".to_owned(),
        (None, true) => format!(
            "entries of Bursar: clusters {}; contexts {}; users {}",
            list(&ours.clusters),
            list(&ours.contexts),
            list(&ours.users)
        ),
    };
    format!("{what}; {kept}")
}

/// Restores the user's part of one kubeconfig, and lets the history record who did it. Returns `None` if there is
/// nothing to restore.
async fn restored(
    context: &Context,
    client: &HomedClient,
    home: &HomeTarget,
    reasoned: &MaybeReasoned,
) -> Result<Option<Said>, Failure> {
    let request = Request::new(home.clone(), Work::RestoreKubeconfig);
    let (changed, complete) = match as_bursar(client.call(&request)).await? {
        Ok(Answer::Restored { changed, complete }) => (changed, complete),
        Ok(_) => return Err(failure(&misunderstood())),
        Err(HomedClientError::Home(HomeError::NothingKept { .. })) => return Ok(None),
        Err(error) => return Err(failure(&error)),
    };
    if changed {
        let (target, file) = (Target::from(reasoned.clone()), home.home.join(&home.kubeconfig));
        order::asked(context, &[OrderRequest::KubeconfigRestored { target, file, complete }]).await?;
    }
    let text = match (changed, complete) {
        (false, _) => "nothing to do: the file already has the user's part",
        (true, true) => "the user's part is restored, with Bursar's current entries",
        (true, false) => "the user's part is restored; Bursar adds its entries at the next check of the home",
    };
    Ok(Some((json!({"changed": changed, "complete": complete}), text.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;
    use crate::ledger::Delivery;
    use crate::plan::testing::World;

    #[test]
    fn accounts_with_the_same_name_are_found_by_their_ids() {
        let mut world = World::new();
        let [one, other] =
            [("foo", 52_503), ("bar", 52_504)].map(|(name, uid)| world.add(AccountKind::Tool, name, Some(uid)));
        world.cycles(3);
        for id in [&one, &other] {
            assert!(world.ledger.deliveries_of(id).next().is_some(), "something was delivered to {id}");
        }
        world.account(&other).name = "foo".to_owned();
        let of = |world: &World, name: &str| {
            let account = Account { kind: AccountKind::Tool, name: name.to_owned() };
            homes(&world.policy, &world.ledger, &account)
        };
        let refused = of(&world, "foo").expect_err("two accounts have the name");
        assert!(matches!(refused.exit, Exit::Usage) && refused.text.contains(&other.to_string()), "{}", refused.text);
        let found = of(&world, &other.to_string()).expect("the id is unique");
        assert_eq!(found[0].uid, 52_504);
        // Our entries were removed from a file that the account no longer has.
        let (key, delivery) = world.ledger.deliveries_of(&other).next().expect("something was delivered");
        let (path, home) = ("/old/bar/.kube/config".into(), Some("/old/bar".into()));
        let (key, removed) = (key.clone(), Delivery { path, home, ..delivery.clone().removed(world.now) });
        world.ledger.deliveries.insert(key, removed);
        let found = of(&world, &other.to_string()).expect("the account has a home");
        assert!(found.iter().all(|target| !target.home.starts_with("/old")), "{found:?}");
    }

    #[test]
    fn only_our_entries_of_a_home_are_shown() {
        let one = |name: &str| BTreeSet::from([name.to_owned()]);
        let mut found = Inspection { exists: true, parses: true, kept: Some(7), ..Inspection::default() };
        assert_eq!(said(&found), "it has no entries of Bursar; the user's part of the replaced file is kept (7 bytes)");
        (found.ours.clusters, found.ours.contexts) = (one("prod"), one("prod"));
        found.ours.users = one("bursar-prod");
        assert!(said(&found).starts_with("entries of Bursar: clusters prod; contexts prod; users bursar-prod;"));
        found.unreadable = Some("it is not UTF-8 from byte 3".to_owned());
        assert!(said(&found).starts_with("it cannot be read: it is not UTF-8"));
    }
}
