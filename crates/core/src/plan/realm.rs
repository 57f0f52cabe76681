//! Plans the steps in a Keycloak realm: compares the people and workspaces of the ledger with the users and roles that
//! were last seen in the realm.
//!
//! This stage runs after the guard, on the states that the guard allowed, so a removal that the guard refused is not
//! done in the realm either. Steps that remove access have limits of their own ([`guard`]). Steps change only users
//! that Bursar created or adopts, according to the ledger, and only roles of workspaces.

mod display;
pub mod guard;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::Reason;
use super::guard::first_class;
use crate::desired::Notice;
use crate::identity::{AccountId, AccountKind, AccountName};
use crate::inventory::realm::{Holders, RealmInventory, RealmRole, RealmUser};
use crate::ledger::people::PeopleByEntry;
use crate::ledger::realm::RealmAccount;
use crate::ledger::{Account, LedgerState, Lifecycle, Suspension};
use crate::policy::Realm;
use crate::snapshot::Role;

/// All steps in a realm.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RealmPlan {
    /// The realm's name.
    pub realm: String,
    /// The steps in this order: steps that remove access, steps that restore it, steps that create and repair, mails,
    /// and renamings.
    pub steps: Vec<RealmStep>,
    /// Why some accounts cannot get a user.
    pub notices: Vec<Notice>,
    /// Accounts whose failures in the realm are over.
    #[serde(skip)]
    pub overcome: Vec<AccountId>,
    /// Corrected rows of users who are enabled, and should be, although the ledger says that they are disabled. Either
    /// the answer to Bursar's request was not recorded, or an administrator of the realm enabled the user.
    #[serde(skip)]
    pub corrected: Vec<(AccountId, RealmAccount)>,
}

/// One step for one account: one or two requests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RealmStep {
    #[serde(skip)]
    pub id: AccountId,
    #[serde(skip)]
    pub account: AccountName,
    #[serde(flatten)]
    pub action: RealmAction,
    #[serde(flatten)]
    pub reason: Reason,
    /// The class by which `[limits]` counts the account.
    #[serde(skip)]
    pub class: String,
    /// When the account's present state began. Under a limit, the account with the earliest time comes first.
    #[serde(skip)]
    pub since: Timestamp,
    /// The amount of a limit that the step uses: the number of disabled users or removed roles. 0 if an order or a mark
    /// causes the step.
    #[serde(skip)]
    pub counts: u64,
}

/// The kind of a step. Steps are executed in the order of the variants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "action")]
pub enum RealmAction {
    /// Removes roles of workspaces from a user.
    RealmUnassign { user: String, roles: Vec<RealmRole> },
    /// Disables a user, so that nobody can log in with it.
    RealmDisable { user: String },
    /// Enables a user again.
    RealmEnable { user: String },
    /// Records a user that an interrupted request of Bursar created.
    RealmRecognise { user: String },
    /// Takes over a user that somebody else created.
    RealmAdopt {
        user: String,
        /// Whether the user is enabled in the realm now.
        enabled: bool,
    },
    /// Creates an enabled user with the configured required actions.
    RealmCreate {
        /// The name in lower case.
        username: String,
        /// The mail address of the account.
        email: Option<String>,
        /// The display name of the account. Keycloak gets the name in two parts.
        display_name: Option<String>,
        actions: Vec<String>,
    },
    /// Updates the attributes of a user from the directory.
    RealmUpdate {
        user: String,
        /// The new mail address; `None` if it stays.
        email: Option<String>,
        /// The new display name; `None` if it stays.
        display_name: Option<String>,
    },
    /// Creates a role of a workspace.
    RealmMakeRole { role: String },
    /// Removes a role of a deleted workspace.
    RealmRemoveRole { role: String },
    /// Gives roles of workspaces to the account's user, which an earlier step of the plan may create.
    RealmAssign { roles: Vec<String> },
    /// Sends a mail that asks the person to do the required actions.
    RealmMail { actions: Vec<String> },
    /// Renames a user. Renamings come last, because realms may forbid them.
    RealmRename {
        user: String,
        /// The name in lower case.
        username: String,
    },
}

impl RealmAction {
    /// Whether the step removes or restores access.
    #[must_use]
    pub const fn is_urgent(&self) -> bool {
        matches!(self, Self::RealmUnassign { .. } | Self::RealmDisable { .. } | Self::RealmEnable { .. })
    }

    /// Whether the step takes access away from a user.
    #[must_use]
    pub const fn takes_access(&self) -> bool {
        matches!(self, Self::RealmUnassign { .. } | Self::RealmDisable { .. })
    }

    /// Returns the name under which a failure of the step is recorded. A failure delays only steps with the same name.
    #[must_use]
    pub const fn step(&self) -> &'static str {
        match self {
            Self::RealmMail { .. } => MAIL,
            Self::RealmMakeRole { .. } | Self::RealmRemoveRole { .. } => "realm role",
            Self::RealmAssign { .. } | Self::RealmUnassign { .. } => "realm roles",
            Self::RealmDisable { .. }
            | Self::RealmEnable { .. }
            | Self::RealmRecognise { .. }
            | Self::RealmAdopt { .. }
            | Self::RealmCreate { .. }
            | Self::RealmUpdate { .. }
            | Self::RealmRename { .. } => "realm user",
        }
    }
}

/// The [`RealmAction::step`] of mails.
pub const MAIL: &str = "realm mail";

/// The prefix of the names of all roles that Bursar manages.
pub const PREFIX: &str = "workspace-";

/// Returns the name of a workspace's role, such as `workspace-NAME:member`.
fn role_name(group: &Account, role: Role) -> String {
    let role = match role {
        Role::Member => "member",
        Role::Manager => "manager",
    };
    format!("{PREFIX}{}:{role}", group.kubernetes_name)
}

/// Returns the groups that are or were workspaces. Among groups, only a workspace is ever a tenant.
fn workspaces(ledger: &LedgerState) -> BTreeMap<&AccountId, &Account> {
    let groups = ledger.tenants.keys().filter_map(|(id, _)| Some((id, ledger.accounts.get(id)?)));
    groups.filter(|(_, group)| group.kind == AccountKind::Group).collect()
}

/// Returns the names of all roles that Bursar manages.
#[must_use]
pub fn roles(ledger: &LedgerState) -> BTreeSet<String> {
    workspaces(ledger).into_values().flat_map(both_roles).collect()
}

fn both_roles(group: &Account) -> [String; 2] {
    [Role::Member, Role::Manager].map(|role| role_name(group, role))
}

/// Returns the id of an account's user in the realm, if it is known. If the realm is also the source of the account,
/// this is the account's directory id.
#[must_use]
pub fn user_of<'l>(ledger: &'l LedgerState, rules: &Realm, account: &'l Account) -> Option<&'l str> {
    if Some(&account.source) == rules.source.as_ref() {
        return Some(&account.directory_id.0);
    }
    ledger.realm_accounts.get(&(account.id.clone(), rules.name.clone()))?.user_id.as_deref()
}

/// Whether the account may log in. An account that is suspended for idleness may log in, because a login resumes it.
fn may_log_in(account: &Account) -> bool {
    let idle = matches!(account.suspension.as_deref(), Some(Suspension::Idle { .. }));
    account.state == Lifecycle::Active || (account.state == Lifecycle::Suspended && idle)
}

/// Returns the people who must not log in but whose user is still enabled, according to `seen` or, if `seen` is `None`,
/// according to the last write.
pub fn may_log_in_still<'l>(
    ledger: &'l LedgerState,
    rules: &'l Realm,
    seen: Option<&'l RealmInventory>,
) -> impl Iterator<Item = &'l Account> {
    let rows = ledger.realm_accounts.iter().filter(move |((_, realm), _)| *realm == rules.name);
    let enabled = rows.filter(move |(_, row)| {
        let Some(user) = &row.user_id else { return false };
        seen.map_or(row.enabled, |seen| seen.users.get(user).is_some_and(|user| user.enabled))
    });
    let people = enabled.filter_map(move |((id, _), row)| Some((ledger.accounts.get(id)?, row)));
    let people = people.filter(move |(person, row)| {
        // A hold delays only the repair of a user that somebody enabled after Bursar had disabled it.
        let is_held = ledger.holds.contains_key(&person.id) && !row.enabled;
        let is_kept = is_held || Some(&person.source) == rules.source.as_ref();
        person.state != Lifecycle::New && !may_log_in(person) && !is_kept
    });
    people.map(|(person, _)| person)
}

/// Compares the ledger with the users and roles that were seen in the realm.
#[must_use]
pub fn plan(ledger: &LedgerState, rules: &Realm, seen: &RealmInventory, now: Timestamp) -> RealmPlan {
    let users = || ledger.accounts.values().filter(|it| it.kind == AccountKind::User);
    let pairs = || users().filter_map(|it| Some((it, user_of(ledger, rules, it)?)));
    let mut look = Look {
        ledger,
        rules,
        seen,
        owners: pairs().map(|(account, user)| (user, account)).collect(),
        users: pairs().filter(|(_, user)| seen.users.contains_key(*user)).map(|(it, user)| (&it.id, user)).collect(),
        made: BTreeSet::new(),
        names: seen.users.values().map(|user| (user.username.as_str(), user)).collect(),
        plan: RealmPlan { realm: rules.name.clone(), ..RealmPlan::default() },
    };
    let people = users().filter(|it| it.state != Lifecycle::New);
    for person in people.filter(|it| Some(&it.source) != rules.source.as_ref()) {
        look.person(person);
    }
    if rules.client.is_some() {
        look.workspaces();
    }
    look.finish(now)
}

struct Look<'a> {
    ledger: &'a LedgerState,
    rules: &'a Realm,
    seen: &'a RealmInventory,
    /// The account of each user that Bursar created or adopted, or whose person has the realm as its source.
    owners: BTreeMap<&'a str, &'a Account>,
    /// The user of each account, if it exists in the realm.
    users: BTreeMap<&'a AccountId, &'a str>,
    /// Accounts for which a user is created.
    made: BTreeSet<&'a AccountId>,
    /// The users of the realm by name.
    names: BTreeMap<&'a str, &'a RealmUser>,
    plan: RealmPlan,
}

impl<'a> Look<'a> {
    fn step(&mut self, account: &Account, action: RealmAction, reason: Reason) {
        self.counted(account, action, reason, 0);
    }

    fn counted(&mut self, account: &Account, action: RealmAction, reason: Reason, counts: u64) {
        let (id, class) = (account.id.clone(), first_class(account, &self.ledger.tenants));
        let step =
            RealmStep { id, account: account.account_name(), action, reason, class, since: account.since, counts };
        self.plan.steps.push(step);
    }

    fn is_held(&self, account: &Account) -> bool {
        self.ledger.holds.contains_key(&account.id)
    }

    fn person(&mut self, person: &'a Account) {
        let row = self.ledger.realm_accounts.get(&(person.id.clone(), self.rules.name.clone()));
        let user = row.and_then(|row| self.seen.users.get(row.user_id.as_deref()?));
        let corrected = row.zip(user).filter(|(row, user)| may_log_in(person) && user.enabled && !row.enabled);
        let corrected = corrected.map(|(row, _)| RealmAccount { enabled: true, ..row.clone() });
        // The row is corrected even under a hold. If the person is suspended later, the user is disabled in spite of
        // the hold only if the row says that the user is enabled.
        self.plan.corrected.extend(corrected.clone().map(|row| (person.id.clone(), row)));
        let row = corrected.as_ref().or(row);
        match (row, user) {
            // Under a hold, only the remaining steps of a suspension are carried out.
            _ if self.is_held(person) && (may_log_in(person) || row.is_none_or(|row| !row.enabled)) => {}
            (Some(row), Some(user)) => self.known(person, row, user),
            _ if may_log_in(person) => self.newcomer(person, row),
            _ => {}
        }
    }

    fn known(&mut self, person: &Account, row: &RealmAccount, user: &RealmUser) {
        let enabled = || vec!["enabled".to_owned()];
        let id = user.id.clone();
        if !may_log_in(person) {
            if user.enabled {
                let reason = if row.enabled { Reason::Suspended } else { Reason::Drifted(enabled()) };
                self.counted(person, RealmAction::RealmDisable { user: id }, reason, u64::from(!is_uncounted(person)));
            }
            return;
        }
        if !user.enabled {
            let reason = if row.enabled { Reason::Drifted(enabled()) } else { Reason::Changed(enabled()) };
            self.step(person, RealmAction::RealmEnable { user: id.clone() }, reason);
        }
        let email = person.mail.clone().filter(|mail| !same(Some(mail), user.email.as_ref()));
        // A display name that people changed themselves stays until the name in the directory changes.
        let display_name = person.display_name.clone().filter(|name| row.display_name.as_ref() != Some(name));
        if email.is_some() || display_name.is_some() {
            let fields = [(email.is_some(), "mail"), (display_name.is_some(), "name")];
            let fields = fields.into_iter().filter(|(is, _)| *is).map(|(_, name)| name.to_owned()).collect();
            let drifted = display_name.is_none() && same(row.mail.as_ref(), person.mail.as_ref());
            let reason = if drifted { Reason::Drifted(fields) } else { Reason::Changed(fields) };
            self.step(person, RealmAction::RealmUpdate { user: id.clone(), email, display_name }, reason);
        }
        let username = person.name.to_lowercase();
        if row.name != person.name && user.username != username {
            let reason = Reason::Changed(vec!["username".to_owned()]);
            self.step(person, RealmAction::RealmRename { user: id, username }, reason);
        }
        if row.mail_due && row.mailed_at.is_none() {
            self.mail(person);
        }
    }

    fn newcomer(&mut self, person: &'a Account, row: Option<&RealmAccount>) {
        let username = person.name.to_lowercase();
        let there = self.names.get(username.as_str()).copied();
        let Some(user) = there else {
            let create = RealmAction::RealmCreate {
                username,
                email: person.mail.clone(),
                display_name: person.display_name.clone(),
                actions: self.rules.required_actions.clone(),
            };
            self.step(person, create, Reason::Missing);
            self.made.insert(&person.id);
            if self.rules.mail {
                self.mail(person);
            }
            return;
        };
        let owner = self.owners.get(user.id.as_str()).copied();
        let mails_agree = user.email.is_some() && same(user.email.as_ref(), person.mail.as_ref());
        match (row, owner) {
            (Some(row), None) if row.user_id.is_none() && Some(row.asked) == user.created => {
                self.step(person, RealmAction::RealmRecognise { user: user.id.clone() }, Reason::Missing);
                self.users.insert(&person.id, &user.id);
                if row.mail_due {
                    self.mail(person);
                }
            }
            (_, None) if self.rules.adopt && mails_agree => {
                let adopt = RealmAction::RealmAdopt { user: user.id.clone(), enabled: user.enabled };
                self.step(person, adopt, Reason::Missing);
                self.users.insert(&person.id, &user.id);
            }
            (_, owner) => {
                let text = self.stranger(user, owner);
                self.plan.notices.push(Notice { account: person.account_name(), text });
            }
        }
    }

    /// Returns why an existing user of this name is left alone, as a text.
    fn stranger(&self, user: &RealmUser, owner: Option<&Account>) -> String {
        let what = format!("gets no user: realm {} has a user {}", self.rules.name, user.username);
        match owner {
            Some(owner) => format!("{what}, which belongs to {}; rename that user in the realm", owner.account_name()),
            None if self.rules.adopt => format!(
                "{what} that Bursar did not make, and adopt = true does not take it over, because its mail differs from \
                 the directory's; rename it in the realm"
            ),
            None => format!(
                "{what} that Bursar did not make; rename it in the realm, or, if both have the same mail, take it over \
                 with adopt = true in [realm]"
            ),
        }
    }

    fn mail(&mut self, person: &Account) {
        let actions = self.rules.required_actions.clone();
        if self.rules.mail && person.mail.is_some() && !actions.is_empty() {
            self.step(person, RealmAction::RealmMail { actions }, Reason::Missing);
        }
    }

    /// Plans the roles of workspaces and their holders.
    fn workspaces(&mut self) {
        let people = PeopleByEntry::of(self.ledger);
        let (mut given, mut taken) = (Given::new(), BTreeMap::new());
        for group in workspaces(self.ledger).into_values() {
            for role in [Role::Member, Role::Manager] {
                let name = role_name(group, role);
                let there = self.seen.roles.get(&name);
                let is_held = self.is_held(group);
                if group.state == Lifecycle::Active && there.is_none() && !is_held {
                    self.step(group, RealmAction::RealmMakeRole { role: name.clone() }, Reason::Missing);
                }
                if group.state == Lifecycle::Deleted {
                    if let Some(there) = there.filter(|_| !is_held) {
                        let counts = if is_uncounted(group) { 0 } else { lost_with(there) };
                        self.counted(group, RealmAction::RealmRemoveRole { role: name }, Reason::Orphaned, counts);
                    }
                    continue;
                }
                let members = group.members.iter().filter(|(_, has)| **has == role);
                let members = members.filter_map(|(id, _)| people.get(group, id));
                let works = |person: &&Account| person.state == Lifecycle::Active;
                let active = group.state == Lifecycle::Active;
                let wanted: Vec<&Account> = members.filter(works).filter(|_| active).collect();
                self.holders((&name, group), &wanted, (&mut given, &mut taken));
            }
        }
        for (person, roles) in given.into_values() {
            self.step(person, RealmAction::RealmAssign { roles }, Reason::Missing);
        }
        for (user, Taken { account, roles, reason, counts }) in taken {
            self.counted(account, RealmAction::RealmUnassign { user: user.to_owned(), roles }, reason, counts);
        }
    }

    /// Compares the holders of a role with the accounts in `wanted`. Users that Bursar neither created nor adopted keep
    /// the role. If the group or the person is held, the role is only removed from people who are suspended or no
    /// longer members.
    fn holders(
        &self,
        (name, group): (&str, &Account),
        wanted: &[&'a Account],
        (given, taken): (&mut Given<'a>, &mut BTreeMap<&'a str, Taken<'a>>),
    ) {
        let held = |person: &Account| self.is_held(group) || self.is_held(person);
        let there = self.seen.roles.get(name);
        for person in wanted.iter().filter(|person| !held(person)) {
            let user = self.users.get(&person.id).copied();
            let has = user.is_some_and(|user| there.is_some_and(|role| role.holders.contains(user)));
            if !has && (user.is_some() || self.made.contains(&person.id)) {
                given.entry(&person.id).or_insert_with(|| (person, Vec::new())).1.push(name.to_owned());
            }
        }
        let Some(there) = there else { return };
        for user in &there.holders {
            let Some(person) = self.owners.get(user.as_str()).copied() else { continue };
            let suspended = group.state != Lifecycle::Active || person.state != Lifecycle::Active;
            let passes = !held(person) || suspended || !group.has_member(person);
            if !passes || wanted.iter().any(|it| it.id == person.id) {
                continue;
            }
            let reason = if suspended { Reason::Suspended } else { Reason::Orphaned };
            let entry =
                taken.entry(user).or_insert_with(|| Taken { account: person, roles: Vec::new(), reason, counts: 0 });
            entry.roles.push(RealmRole { id: there.id.clone(), name: name.to_owned() });
            entry.counts += u64::from(!is_uncounted(person) && !is_uncounted(group));
        }
    }

    /// Sorts the steps, and removes the steps that wait for the retry of a failure. Steps that remove or restore access
    /// do not wait.
    fn finish(self, now: Timestamp) -> RealmPlan {
        let Self { mut plan, ledger, rules, .. } = self;
        plan.steps.sort_by(|a, b| (&a.action, &a.account).cmp(&(&b.action, &b.account)));
        let busy: BTreeSet<(AccountId, &str)> =
            plan.steps.iter().map(|step| (step.id.clone(), step.action.step())).collect();
        let place = rules.place();
        let waits = |step: &RealmStep| {
            let failure = ledger.failures.get(&(step.id.clone(), place.clone()));
            failure.is_some_and(|it| it.step == step.action.step() && it.waits(now))
        };
        plan.steps.retain(|step| step.action.is_urgent() || !waits(step));
        let failed = ledger.failures.iter().filter(|((_, at), _)| *at == place);
        let over = failed.filter(|((id, _), failure)| !busy.contains(&(id.clone(), failure.step.as_str())));
        plan.overcome = over.map(|((id, _), _)| id.clone()).collect();
        plan
    }
}

/// The roles that each account gets.
type Given<'a> = BTreeMap<&'a AccountId, (&'a Account, Vec<String>)>;

/// The roles that a user loses, and why.
struct Taken<'a> {
    account: &'a Account,
    roles: Vec<RealmRole>,
    reason: Reason,
    /// How many of `roles` a limit counts.
    counts: u64,
}

/// Whether steps for this account use no limit of the realm, because its suspension was ordered, or is caused by a
/// mark. Suspensions by marks have a limit of their own.
fn is_uncounted(account: &Account) -> bool {
    let uncounted = Suspension::is_ordered(account.suspension.as_deref())
        || matches!(account.suspension.as_deref(), Some(Suspension::Disabled { .. }));
    account.state != Lifecycle::Active && uncounted
}

/// Returns how many users lose a role that is deleted, at least 1.
fn lost_with(role: &Holders) -> u64 {
    role.holders.len().max(1) as u64
}

/// Compares mail addresses without regard to case, because Keycloak stores them in lower case.
fn same(one: Option<&String>, other: Option<&String>) -> bool {
    one.map(|mail| mail.to_lowercase()) == other.map(|mail| mail.to_lowercase())
}
