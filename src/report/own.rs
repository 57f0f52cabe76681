//! What people may ask of their own: the account whose uid they have, and the tools and workspaces they belong to. Nobody
//! learns whether there is anything else. PURE: no runtime, no client, no file system, no clock.

use serde_json::{Value, json};

use crate::control::api::OwnRequest;
use crate::identity::{AccountKind, AccountName};
use crate::ledger::{Account, LedgerState, Lifecycle, Suspension};
use crate::orders::request::Refusal;
use crate::policy::Policy;
use crate::report::why::{Step, chain};

/// The account that a process of this uid asks about; its own where it names none.
///
/// # Errors
/// The same for what is not theirs and for what is not there at all.
pub fn find<'a>(ledger: &'a LedgerState, uid: u32, request: &OwnRequest) -> Result<&'a Account, Refusal> {
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

/// The same for what is not theirs and for what is not there.
#[must_use]
pub fn refused() -> Refusal {
    let text = "you may ask about your own account, and about tools and workspaces that you belong to; reading all needs \
                group bursar";
    Refusal { exit_code: 77, text: text.to_owned() }
}

/// The only person of this uid who is served; else the only one whom the directory shows and no class takes: they may maintain
/// tools all the same.
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
        (account.state, &account.suspension),
        (Lifecycle::New, _) | (Lifecycle::Suspended, Some(Suspension::Left))
    );
    unserved && account.absence.is_none() && account.disabled.is_none()
}

/// A tool that somebody maintains, or a workspace they are in. Other groups are the directory's.
fn belongs(ledger: &LedgerState, own: &Account, account: &Account) -> bool {
    let is_tenant = || ledger.tenants.keys().any(|(id, _)| *id == account.id);
    account.has_member(own)
        && !account.leaving.contains(&own.directory_id)
        && (account.kind == AccountKind::Tool || (account.kind == AccountKind::Group && is_tenant()))
}

/// Whether another account has, or had, its name.
#[must_use]
pub fn has_namesake(ledger: &LedgerState, account: &Account) -> bool {
    let mut named = ledger.accounts.values().filter(|one| one.kind == account.kind && one.name == account.name);
    named.any(|one| one.id != account.id)
}

/// What `bursar why` says of it, without what names others.
#[must_use]
pub fn why(account: &Account, ledger: &LedgerState, policy: &Policy) -> Value {
    let told = |step: Step| match step.at.as_str() {
        "pace" => Step { text: "a change of the configuration comes to it in time".to_owned(), ..step },
        at if at.starts_with("source ") && !step.ok => {
            Step { text: "its entry is missing or rejected; an administrator sees why".to_owned(), ..step }
        }
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
            let of = of.map(|name| name.parse().expect("a name"));
            find(&world.ledger, uid, &OwnRequest { of }).map(|account| account.name.clone())
        };
        assert_eq!(ask(&world, 20_001, None).as_deref(), Ok("alice"));
        assert_eq!(ask(&world, 20_001, Some("user:alice")).as_deref(), Ok("alice"));
        assert_eq!(ask(&world, 20_001, Some("tool:foo")).as_deref(), Ok("foo"));
        let unknown = ask(&world, 20_001, Some("tool:nobody")).expect_err("there is none");
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

        // No class takes her: she may ask about her tools as before, until the directory disables her.
        for (state, why) in [(Lifecycle::New, None), (Lifecycle::Suspended, Some(Suspension::Left))] {
            (world.account(&alice).state, world.account(&alice).suspension) = (state, why);
            assert_eq!(ask(&world, 20_001, Some("tool:foo")).as_deref(), Ok("foo"), "{state:?}");
        }
        world.account(&alice).disabled = Some("locked".to_owned());
        assert_eq!(ask(&world, 20_001, Some("tool:foo")), Err(unknown));
    }
}
