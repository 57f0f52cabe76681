//! Answers people's questions about their own accounts: the account with their uid, and the tools and workspaces that
//! they belong to. They do not learn which other accounts exist.

use serde_json::{Value, json};

use crate::control::api::OwnRequest;
use crate::identity::{AccountKind, AccountName};
use crate::ledger::{Account, LedgerState, Lifecycle, Suspension};
use crate::orders::request::RequestRefusal;
use crate::policy::Policy;
use crate::report::why::{Step, chain};

/// Returns the account that a process with this uid asks about. If the request names none, returns the account with the
/// uid itself.
///
/// # Errors
/// The account does not exist, or does not belong to the person. The refusal is the same in both cases.
pub fn find<'a>(ledger: &'a LedgerState, uid: u32, request: &OwnRequest) -> Result<&'a Account, RequestRefusal> {
    let own = asking(ledger, uid).ok_or_else(refused)?;
    let Some(AccountName { kind, name }) = &request.of else { return Ok(own) };
    let mut theirs = ledger.accounts.values().filter(|account| {
        account.kind == *kind && account.name == *name && (account.id == own.id || belongs(ledger, own, account))
    });
    match (theirs.next(), theirs.next()) {
        (Some(account), None) => Ok(account),
        _ => Err(refused()),
    }
}

/// Returns the refusal for an account that does not exist or does not belong to the person.
#[must_use]
pub fn refused() -> RequestRefusal {
    let text = "this account cannot be shown: you may ask about your own account, and about tools and workspaces that \
                you belong to; to read all accounts, become a member of group bursar";
    RequestRefusal { exit_code: 77, text: text.to_owned() }
}

/// Returns the active person with this uid. If there is none, returns the person with this uid who is in the directory
/// and in no class, because such a person may still maintain tools. Returns `None` if several match.
fn asking(ledger: &LedgerState, uid: u32) -> Option<&Account> {
    let of_uid = |account: &&Account| {
        account.kind == AccountKind::User && account.posix.as_ref().is_some_and(|posix| posix.uid.get() == uid)
    };
    let only = |takes: fn(&Account) -> bool| {
        let mut found = ledger.accounts.values().filter(of_uid).filter(|account| takes(account));
        let first = found.next();
        (first, found.next().is_some())
    };
    match only(|account| account.state == Lifecycle::Active) {
        (Some(own), false) => return Some(own),
        (Some(_), true) => return None,
        (None, _) => {}
    }
    match only(is_in_no_class) {
        (own, false) => own,
        (_, true) => None,
    }
}

fn is_in_no_class(account: &Account) -> bool {
    let unserved = matches!(
        (account.state, account.suspension.as_deref()),
        (Lifecycle::New, _) | (Lifecycle::Suspended, Some(Suspension::Left))
    );
    unserved && account.absence.is_none() && account.disabled.is_none()
}

/// Whether `own` maintains this tool or is in this workspace. Groups that are not workspaces belong to the directory,
/// and are not shown.
fn belongs(ledger: &LedgerState, own: &Account, account: &Account) -> bool {
    let is_tenant = || ledger.tenants_of(&account.id).next().is_some();
    account.has_member(own)
        && !account.leaving.contains(&own.directory_id)
        && (account.kind == AccountKind::Tool || (account.kind == AccountKind::Group && is_tenant()))
}

/// Whether another account has the same kind and name.
#[must_use]
pub fn has_namesake(ledger: &LedgerState, account: &Account) -> bool {
    let mut named = ledger.accounts.values().filter(|one| one.kind == account.kind && one.name == account.name);
    named.any(|one| one.id != account.id)
}

/// Returns the steps of `bursar why` for the account, without texts that name other accounts.
#[must_use]
pub fn why(account: &Account, ledger: &LedgerState, policy: &Policy) -> Value {
    let told = |step: Step| match step.at.as_str() {
        "pace" => {
            Step { text: "a change of the configuration will reach this account in a later cycle".to_owned(), ..step }
        }
        at if at.starts_with("source ") && !step.ok => Step {
            text: "the directory entry of this account is missing or rejected; ask an administrator for the reason"
                .to_owned(),
            ..step
        },
        _ => step,
    };
    let steps: Vec<Step> = chain(account, ledger, policy).into_iter().map(told).collect();
    json!({"account": account.account_name(), "steps": steps})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::World;

    #[test]
    fn people_see_only_their_own_accounts() {
        let mut world = World::new();
        let alice = world.add(AccountKind::User, "alice", Some(20_001));
        let bob = world.add(AccountKind::User, "bob", Some(20_002));
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        let staff = world.add(AccountKind::Group, "staff", None);
        world.join(&foo, &alice);
        world.join(&staff, &alice);
        for id in [&alice, &bob, &foo, &staff] {
            world.account(id).state = Lifecycle::Active;
        }
        let ask = |world: &World, uid: u32, of: Option<&str>| {
            let of = of.map(|name| name.parse().expect("the text is an account's name"));
            find(&world.ledger, uid, &OwnRequest { of }).map(|account| account.name.clone())
        };
        assert_eq!(ask(&world, 20_001, None).as_deref(), Ok("alice"));
        assert_eq!(ask(&world, 20_001, Some("user:alice")).as_deref(), Ok("alice"));
        assert_eq!(ask(&world, 20_001, Some("tool:foo")).as_deref(), Ok("foo"));
        let unknown = ask(&world, 20_001, Some("tool:nobody")).expect_err("there is no such tool");
        for (uid, of) in [
            (20_001, Some("user:bob")),
            (20_001, Some("group:staff")),
            (20_002, Some("tool:foo")),
            (52_503, None),
            (52_503, Some("tool:foo")),
            (0, None),
            (4711, Some("user:alice")),
        ] {
            assert_eq!(ask(&world, uid, of), Err(unknown.clone()), "{uid} {of:?}");
        }
        world.account(&alice).state = Lifecycle::Suspended;
        assert_eq!(ask(&world, 20_001, Some("tool:foo")), Err(unknown.clone()));

        // Alice is in no class: she may still ask about her tools, until the directory disables her.
        for (state, why) in [(Lifecycle::New, None), (Lifecycle::Suspended, Some(Suspension::Left))] {
            (world.account(&alice).state, world.account(&alice).suspension) = (state, why.map(Box::new));
            assert_eq!(ask(&world, 20_001, Some("tool:foo")).as_deref(), Ok("foo"), "{state:?}");
        }
        world.account(&alice).disabled = Some("locked".to_owned());
        assert_eq!(ask(&world, 20_001, Some("tool:foo")), Err(unknown));
    }
}
