//! Renders the steps in a realm as text and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::{RealmAction, RealmPlan, RealmStep};
use crate::identity::AccountName;
use crate::plan::wording::counted;

impl RealmPlan {
    /// Returns every step with its account, in the form of the actions in clusters.
    #[must_use]
    pub fn json(&self) -> Vec<Value> {
        let step = |step: &RealmStep| {
            let mut value = json!(step);
            value["account"] = json!(step.account);
            value["id"] = json!(step.id);
            value["realm"] = json!(self.realm);
            value["held"] = json!(false);
            value
        };
        self.steps.iter().map(step).collect()
    }

    /// Groups the steps by account. Accounts are in the order of their first steps.
    fn by_account(&self) -> Vec<(&AccountName, Vec<&RealmStep>)> {
        let mut accounts: Vec<(&AccountName, Vec<&RealmStep>)> = Vec::new();
        let mut places = std::collections::BTreeMap::new();
        for step in &self.steps {
            let place = *places.entry(&step.account).or_insert(accounts.len());
            if place == accounts.len() {
                accounts.push((&step.account, Vec::new()));
            }
            accounts[place].1.push(step);
        }
        accounts
    }
}

impl fmt::Display for RealmPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { realm, steps, notices, overcome: _, corrected: _ } = self;
        let accounts = self.by_account();
        for (account, steps) in &accounts {
            let said: Vec<String> = steps.iter().map(|step| said(step)).collect();
            writeln!(f, "{} {} {}  realm {realm}: {}", sign(steps), account.kind, account.name, said.join(", "))?;
        }
        for notice in notices {
            writeln!(f, "! {} {}  {}", notice.account.kind, notice.account.name, notice.text)?;
        }
        if steps.is_empty() {
            return Ok(());
        }
        let (steps, accounts) = (counted(steps.len() as u64, "step"), counted(accounts.len() as u64, "account"));
        writeln!(f, "realm {realm}: {steps} for {accounts}.")
    }
}

fn sign(steps: &[&RealmStep]) -> char {
    let takes = |action: &RealmAction| {
        matches!(
            action,
            RealmAction::RealmDisable { .. } | RealmAction::RealmUnassign { .. } | RealmAction::RealmRemoveRole { .. }
        )
    };
    let changes = |action: &RealmAction| {
        matches!(
            action,
            RealmAction::RealmUpdate { .. } | RealmAction::RealmRename { .. } | RealmAction::RealmMail { .. }
        )
    };
    match steps {
        steps if steps.iter().any(|step| takes(&step.action)) => '-',
        steps if steps.iter().all(|step| changes(&step.action)) => '~',
        _ => '+',
    }
}

/// Describes a step, with its reason if the step does not explain itself.
fn said(step: &RealmStep) -> String {
    let why = &step.reason;
    match &step.action {
        RealmAction::RealmUnassign { roles, .. } => {
            let names: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
            format!("{} taken ({why})", names.join(", "))
        }
        RealmAction::RealmDisable { .. } => format!("user disabled ({why})"),
        RealmAction::RealmEnable { .. } => format!("user enabled ({why})"),
        RealmAction::RealmRecognise { .. } => "user recognised".to_owned(),
        RealmAction::RealmAdopt { .. } => "user adopted".to_owned(),
        RealmAction::RealmCreate { actions, .. } if actions.is_empty() => "user created".to_owned(),
        RealmAction::RealmCreate { actions, .. } => format!("user created, to do {}", actions.join(" and ")),
        RealmAction::RealmUpdate { .. } => why.to_string(),
        RealmAction::RealmRename { username, .. } => format!("renamed to {username}"),
        RealmAction::RealmMakeRole { role } => format!("role {role} made"),
        RealmAction::RealmRemoveRole { role } => format!("role {role} removed"),
        RealmAction::RealmAssign { roles } => format!("{} given", roles.join(", ")),
        RealmAction::RealmMail { .. } => "mail".to_owned(),
    }
}
