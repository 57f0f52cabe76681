//! Carries out one approved step in a Keycloak realm, updates what was seen of the realm, and returns the changes for
//! the ledger. It decides nothing. The caller stores the changes before the next step.

use bursar_directory::keycloak::{Administration, RealmError};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::record::retry_after;
use crate::errors::chain;
use crate::inventory::realm::{Holders, RealmInventory, RealmRole, RealmUser};
use crate::ledger::change::{Change, Event};
use crate::ledger::realm::RealmAccount;
use crate::ledger::{Failure, LedgerState};
use crate::plan::realm::guard::ApprovedStep;
use crate::plan::realm::{RealmAction, RealmStep, user_of};
use crate::policy::Realm;

/// What all steps share.
#[derive(Debug)]
pub struct RealmRun<'a> {
    pub realm: &'a mut Administration,
    /// What was seen of the realm. Each step updates it.
    pub seen: &'a mut RealmInventory,
    pub rules: &'a Realm,
    /// The ledger as it is now.
    pub ledger: &'a LedgerState,
    pub now: Timestamp,
}

/// Carries out the step. Returns the changes and events for the ledger.
///
/// # Errors
/// The realm's error; [`ends_all`] says whether it concerns the whole realm.
pub async fn carry_out(
    approved: &ApprovedStep,
    run: &mut RealmRun<'_>,
) -> Result<(Vec<Change>, Vec<Event>), RealmError> {
    let step = approved.step();
    let row = run.ledger.realm_accounts.get(&(step.id.clone(), run.rules.name.clone())).cloned();
    let (row, said) = match &step.action {
        RealmAction::RealmUnassign { .. }
        | RealmAction::RealmAssign { .. }
        | RealmAction::RealmMakeRole { .. }
        | RealmAction::RealmRemoveRole { .. } => (None, role(step, run).await?),
        _ => user(step, row, run).await?,
    };
    let mut changes: Vec<Change> =
        row.map(|row| Change::RealmAccount(step.id.clone(), run.rules.name.clone(), row)).into_iter().collect();
    let place = run.rules.place();
    let failed = run.ledger.failures.get(&(step.id.clone(), place.clone()));
    if failed.is_some_and(|failed| failed.step == step.action.step()) {
        changes.push(Change::Failure(step.id.clone(), place, None));
    }
    let Some((action, mut detail)) = said else { return Ok((changes, Vec::new())) };
    changes.extend(approved.used(run.now));
    detail["realm"] = json!(run.rules.name);
    let event = Event {
        account: Some(step.account.clone()),
        account_id: Some(step.id.clone()),
        ..Event::new(action, step.reason.to_string(), detail)
    };
    Ok((changes, vec![event]))
}

/// An event of the history; `None` if nothing was done.
type Said = Option<(&'static str, Value)>;

async fn user(
    step: &RealmStep,
    row: Option<RealmAccount>,
    run: &mut RealmRun<'_>,
) -> Result<(Option<RealmAccount>, Said), RealmError> {
    let RealmRun { realm, seen, ledger, now, .. } = run;
    let mut patched = |id: &str, patch: &dyn Fn(&mut RealmUser)| {
        if let Some(user) = seen.users.get_mut(id) {
            patch(user);
        }
    };
    Ok(match (&step.action, row) {
        (RealmAction::RealmDisable { user }, Some(row)) => {
            realm.change(user, &json!({"enabled": false})).await?;
            patched(user, &|it| it.enabled = false);
            let said = Some(("realm user disabled", json!({"user": user})));
            (Some(RealmAccount { enabled: false, ..row }), said)
        }
        (RealmAction::RealmEnable { user }, Some(row)) => {
            realm.change(user, &json!({"enabled": true})).await?;
            patched(user, &|it| it.enabled = true);
            (Some(RealmAccount { enabled: true, ..row }), Some(("realm user enabled", json!({"user": user}))))
        }
        (RealmAction::RealmRecognise { user }, Some(row)) => {
            let said = Some(("realm user created", json!({"user": user})));
            (Some(RealmAccount { user_id: Some(user.clone()), ..row }), said)
        }
        (RealmAction::RealmAdopt { user, enabled }, _) => {
            let row = adopted(user, *enabled, step, ledger);
            (row, Some(("realm user adopted", json!({"user": user}))))
        }
        (RealmAction::RealmCreate { username, email, display_name, actions }, Some(row)) => {
            let (first, last) = parts(display_name.as_deref());
            let mut wanted = json!({
                "username": username, "enabled": true, "createdTimestamp": row.asked, "requiredActions": actions,
            });
            for (field, value) in [("email", email.as_deref()), ("firstName", first), ("lastName", last)] {
                if let Some(value) = value {
                    wanted[field] = json!(value);
                }
            }
            let id = make(realm, &wanted, username, row.asked).await?;
            let made = RealmUser {
                id: id.clone(),
                username: username.clone(),
                enabled: true,
                email: email.clone(),
                created: Some(row.asked),
            };
            seen.users.insert(id.clone(), made);
            let said = Some(("realm user created", json!({"user": id, "required_actions": actions})));
            (Some(RealmAccount { user_id: Some(id), ..row }), said)
        }
        (RealmAction::RealmUpdate { user, email, display_name }, Some(row)) => {
            let mut fields = json!({});
            if let Some(email) = email {
                fields["email"] = json!(email);
            }
            if let (Some(first), last) = parts(display_name.as_deref()) {
                fields["firstName"] = json!(first);
                fields["lastName"] = json!(last.unwrap_or_default());
            }
            realm.change(user, &fields).await?;
            if email.is_some() {
                patched(user, &|it| it.email.clone_from(email));
            }
            let row = RealmAccount {
                mail: email.clone().or(row.mail),
                display_name: display_name.clone().or(row.display_name),
                ..row
            };
            // The values stay out of the history, because it keeps everything for ever.
            let fields: Vec<&String> = fields.as_object().into_iter().flat_map(|fields| fields.keys()).collect();
            (Some(row), Some(("realm user changed", json!({"user": user, "fields": fields}))))
        }
        (RealmAction::RealmRename { user, username }, Some(row)) => {
            realm.change(user, &json!({"username": username})).await?;
            patched(user, &|it| it.username.clone_from(username));
            let name = ledger.accounts.get(&step.id).map_or_else(|| username.clone(), |it| it.name.clone());
            let said = Some(("realm user renamed", json!({"user": user, "from": row.name, "to": username})));
            (Some(RealmAccount { name, ..row }), said)
        }
        (RealmAction::RealmMail { actions }, Some(row)) => {
            let Some(user) = &row.user_id else { return Ok((None, None)) };
            realm.mail(user, actions).await?;
            let said = Some(("realm mail accepted", json!({"user": user, "required_actions": actions})));
            (Some(RealmAccount { mailed_at: Some(*now), ..row }), said)
        }
        _ => (None, None),
    })
}

/// Creates a user. If a user with this name and this creation time exists, an earlier attempt created it.
async fn make(realm: &mut Administration, wanted: &Value, username: &str, asked: i64) -> Result<String, RealmError> {
    let refused = match realm.create(wanted).await {
        Ok(Some(id)) => return Ok(id),
        Ok(None) => None,
        Err(error) if status(&error) == Some(409) => Some(error),
        Err(error) => return Err(error),
    };
    let there = realm.user(username).await?.filter(|user| user.created == Some(asked));
    there.map(|user| user.id).ok_or_else(|| refused.unwrap_or(RealmError::Changed("users")))
}

fn adopted(user: &str, enabled: bool, step: &RealmStep, ledger: &LedgerState) -> Option<RealmAccount> {
    let account = ledger.accounts.get(&step.id)?;
    Some(RealmAccount {
        user_id: Some(user.to_owned()),
        asked: 0,
        adopted: true,
        name: account.name.clone(),
        mail: account.mail.clone(),
        // The names that people gave themselves in the realm stay.
        display_name: account.display_name.clone(),
        enabled,
        mail_due: false,
        mailed_at: None,
    })
}

async fn role(step: &RealmStep, run: &mut RealmRun<'_>) -> Result<Said, RealmError> {
    let RealmRun { realm, seen, rules, ledger, .. } = run;
    let Some(client) = &rules.client else { return Ok(None) };
    Ok(match &step.action {
        RealmAction::RealmMakeRole { role } => {
            let RealmRole { id, name } = realm.make_role(client, role).await?;
            // If the role existed and was not read yet, none of its holders are known. Giving the role to them again
            // changes nothing.
            seen.roles.entry(name).or_insert_with(|| Holders { id, ..Holders::default() });
            Some(("realm role made", json!({"role": role})))
        }
        RealmAction::RealmRemoveRole { role } => {
            realm.remove_role(client, role).await?;
            seen.roles.remove(role);
            Some(("realm role removed", json!({"role": role})))
        }
        RealmAction::RealmUnassign { user, roles } => {
            realm.unassign(client, user, roles).await?;
            for role in roles {
                if let Some(there) = seen.roles.get_mut(&role.name) {
                    there.holders.remove(user);
                }
            }
            let names: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
            Some(("realm roles taken", json!({"user": user, "roles": names})))
        }
        RealmAction::RealmAssign { roles } => {
            let account = ledger.accounts.get(&step.id);
            let Some(user) = account.and_then(|account| user_of(ledger, rules, account)) else { return Ok(None) };
            // If a role could not be created, that is the failure of its workspace.
            let there = roles.iter().filter_map(|name| Some((name, seen.roles.get(name)?)));
            let given: Vec<RealmRole> =
                there.map(|(name, role)| RealmRole { id: role.id.clone(), name: name.clone() }).collect();
            if given.is_empty() {
                return Ok(None);
            }
            realm.assign(client, user, &given).await?;
            let names: Vec<String> = given.into_iter().map(|role| role.name).collect();
            for name in &names {
                if let Some(there) = seen.roles.get_mut(name) {
                    there.holders.insert(user.to_owned());
                }
            }
            Some(("realm roles given", json!({"user": user, "roles": names})))
        }
        _ => None,
    })
}

/// Returns first and last name: everything before the last word, and the last word.
fn parts(display_name: Option<&str>) -> (Option<&str>, Option<&str>) {
    let Some(name) = display_name.map(str::trim).filter(|name| !name.is_empty()) else { return (None, None) };
    name.rsplit_once(' ').map_or((Some(name), None), |(first, last)| (Some(first.trim_end()), Some(last)))
}

fn status(error: &RealmError) -> Option<u16> {
    match error {
        RealmError::Answer { status, .. } | RealmError::Lacks { status, .. } | RealmError::Forbidden { status, .. } => {
            Some(status.as_u16())
        }
        _ => None,
    }
}

/// Returns whether an error concerns the whole realm, so that the next step would fail too. A role that may not be
/// created is a failure of its workspace only, because somebody else may create the roles. A mail that is not accepted
/// is a failure of that mail.
#[must_use]
pub fn ends_all(action: &RealmAction, error: &RealmError) -> bool {
    !matches!(
        (action, status(error)),
        (RealmAction::RealmMakeRole { .. } | RealmAction::RealmRemoveRole { .. }, Some(403))
            | (RealmAction::RealmMail { .. }, Some(500))
            | (_, Some(400 | 404 | 409))
    )
}

/// Returns whether the realm has changed since it was seen: a user to be changed is missing, or one to be created
/// exists.
#[must_use]
pub fn is_other_than_seen(error: &RealmError) -> bool {
    matches!(status(error), Some(404 | 409))
}

/// Returns the failure that the ledger keeps.
#[must_use]
pub fn failure(step: &RealmStep, error: &RealmError, run: &RealmRun<'_>) -> Change {
    let place = run.rules.place();
    let name = step.action.step();
    let before = run.ledger.failures.get(&(step.id.clone(), place.clone()));
    let attempts = before.filter(|before| before.step == name).map_or(0, |before| before.attempts) + 1;
    let failure = Failure {
        step: name.to_owned(),
        reason: match remedy(&step.action, error) {
            Some(remedy) => format!("{}; {remedy}", chain(error)),
            None => chain(error),
        },
        since: before.map_or(run.now, |before| before.since),
        attempts,
        next_try: run.now.saturating_add(retry_after(attempts)).unwrap_or(Timestamp::MAX),
    };
    Change::Failure(step.id.clone(), place, Some(failure))
}

fn remedy(action: &RealmAction, error: &RealmError) -> Option<&'static str> {
    match (action, status(error)?) {
        (RealmAction::RealmRename { .. }, 400) => Some("allow usernames to be edited: Realm settings, Login"),
        (RealmAction::RealmMail { .. }, 500) => {
            Some("check Realm settings, Email; it is sent again until it is accepted")
        }
        (RealmAction::RealmMakeRole { .. }, 403) => Some("or create the role yourself"),
        (_, 409) => Some("another user of the realm has this value: change one of the two"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_display_name_is_split_before_its_last_word() {
        assert_eq!(parts(Some("Ada  King Lovelace")), (Some("Ada  King"), Some("Lovelace")));
        assert_eq!(parts(Some(" Plato ")), (Some("Plato"), None));
        assert_eq!(parts(Some("  ")), (None, None));
        assert_eq!(parts(None), (None, None));
    }
}
