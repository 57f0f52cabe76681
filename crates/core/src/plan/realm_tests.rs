//! Tests the plan of a realm against a model: the text of its steps, and that nothing is left to do afterwards.

use std::collections::BTreeMap;

use super::guard::approve;
use super::realm::guard::RealmBounds;
use super::realm::{RealmAction, RealmPlan, RealmStep, may_log_in_still, plan, user_of};
use super::testing::{SOURCE, World, course};
use crate::evolve::{Followed, Inputs, evolve, follow};
use crate::identity::{AccountId, AccountKind};
use crate::inventory::realm::{Holders, RealmInventory, RealmUser};
use crate::ledger::realm::RealmAccount;
use crate::ledger::{Failure, Lifecycle, Note, Suspension};
use crate::policy::{Limit, Realm};

/// People, a workspace, and a model of a realm.
struct Story {
    world: World,
    rules: Realm,
    seen: RealmInventory,
    alice: AccountId,
    lab: AccountId,
}

impl Story {
    fn new() -> Self {
        let mut world = World::new();
        let course = course();
        world.policy.classes.insert(course.name.clone(), course);
        let alice = world.add(AccountKind::User, "Alice", Some(20_001));
        let lab = world.add(AccountKind::Group, "lab", None);
        world.join(&lab, &alice);
        let account = world.account(&alice);
        account.mail = Some("Alice@example.org".to_owned());
        account.display_name = Some("Alice Example".to_owned());
        account.state = Lifecycle::Active;
        world.account(&lab).state = Lifecycle::Active;
        let tenant = crate::ledger::Tenant { class: "course".to_owned(), namespace: None, created_at: world.now };
        world.ledger.tenants.insert((lab.clone(), super::testing::prod()), tenant);
        let rules = Realm {
            name: "research".to_owned(),
            source: None,
            client: Some("workspaces".to_owned()),
            required_actions: vec!["UPDATE_PASSWORD".to_owned()],
            mail: true,
            adopt: false,
        };
        Self { world, rules, seen: RealmInventory::default(), alice, lab }
    }

    fn plan(&self) -> RealmPlan {
        plan(&self.world.ledger, &self.rules, &self.seen, self.world.now)
    }

    /// Executes the plan, and returns its text.
    fn cycle(&mut self) -> String {
        let plan = self.plan();
        plan.steps.iter().for_each(|step| self.carry_out(step));
        plan.to_string()
    }

    fn carry_out(&mut self, step: &RealmStep) {
        let key = (step.id.clone(), self.rules.name.clone());
        let mut row = self.world.ledger.realm_accounts.get(&key).cloned();
        let user = row.as_ref().and_then(|row| self.seen.users.get_mut(row.user_id.as_deref()?));
        match (&step.action, user) {
            (RealmAction::RealmCreate { username, email, .. }, _) => {
                let id = format!("id-{username}-{}", self.seen.users.len());
                self.user(&id, username, email.as_deref());
                let account = &self.world.ledger.accounts[&step.id];
                let sample = RealmAccount::sample(true);
                row = Some(RealmAccount {
                    user_id: Some(id),
                    name: account.name.clone(),
                    mail: account.mail.clone(),
                    display_name: account.display_name.clone(),
                    mail_due: self.rules.mail,
                    mailed_at: None,
                    ..sample
                });
            }
            (RealmAction::RealmAdopt { user, .. } | RealmAction::RealmRecognise { user }, _) => {
                let user_id = Some(user.clone());
                let base = row.unwrap_or_else(|| RealmAccount { mail_due: false, ..RealmAccount::sample(true) });
                row = Some(RealmAccount { user_id, name: "Alice".to_owned(), ..base });
            }
            (RealmAction::RealmDisable { .. }, Some(user)) => user.enabled = false,
            (RealmAction::RealmEnable { .. }, Some(user)) => user.enabled = true,
            (RealmAction::RealmUpdate { email, display_name, .. }, Some(user)) => {
                user.email = email.clone().map(|mail| mail.to_lowercase()).or(user.email.take());
                let row = row.as_mut().expect("the user is ours");
                row.mail = email.clone().or(row.mail.take());
                row.display_name = display_name.clone().or(row.display_name.take());
            }
            (RealmAction::RealmRename { username, .. }, Some(user)) => {
                user.username.clone_from(username);
                row.as_mut().expect("the user is ours").name = self.world.ledger.accounts[&step.id].name.clone();
            }
            (RealmAction::RealmMakeRole { role }, _) => {
                self.seen.roles.insert(role.clone(), Holders { id: format!("id-{role}"), ..Holders::default() });
            }
            (RealmAction::RealmRemoveRole { role }, _) => drop(self.seen.roles.remove(role)),
            (RealmAction::RealmAssign { roles }, _) => {
                let account = &self.world.ledger.accounts[&step.id];
                let user = user_of(&self.world.ledger, &self.rules, account)
                    .expect("an earlier step made the object")
                    .to_owned();
                for role in roles {
                    self.seen
                        .roles
                        .get_mut(role)
                        .expect("an earlier step made the object")
                        .holders
                        .insert(user.clone());
                }
            }
            (RealmAction::RealmUnassign { user, roles }, _) => {
                for role in roles {
                    self.seen.roles.get_mut(&role.name).expect("the realm has the role").holders.remove(user);
                }
            }
            (RealmAction::RealmMail { .. }, _) => {
                row.as_mut().expect("an earlier step made the object").mailed_at = Some(self.world.now);
            }
            (action, None) => panic!("the account of this step has no row: {action:?}"),
        }
        let enabled = row.as_ref().and_then(|row| Some(self.seen.users.get(row.user_id.as_deref()?)?.enabled));
        if let (Some(mut row), Some(enabled)) = (row, enabled) {
            row.enabled = enabled;
            self.world.ledger.realm_accounts.insert(key, row);
        }
    }

    fn user(&mut self, id: &str, username: &str, email: Option<&str>) {
        let user = RealmUser {
            id: id.to_owned(),
            username: username.to_owned(),
            enabled: true,
            email: email.map(str::to_lowercase),
            created: Some(5),
        };
        self.seen.users.insert(id.to_owned(), user);
    }

    /// Adds an active person who is in the workspace and has a user in the realm.
    fn another(&mut self, name: &str) -> AccountId {
        let id = self.world.add(AccountKind::User, name, None);
        self.world.join(&self.lab.clone(), &id);
        self.world.account(&id).state = Lifecycle::Active;
        id
    }

    fn suspend(&mut self, id: &AccountId, why: Suspension) {
        let account = self.world.account(id);
        (account.state, account.suspension) = (Lifecycle::Suspended, Some(Box::new(why)));
    }

    /// Returns the result of the guard, after its refusals and intents were recorded.
    fn followed(&mut self) -> Followed {
        let World { ledger, policy, now, .. } = &mut self.world;
        let bounds = RealmBounds::of(ledger, &self.rules, &policy.limits, &self.seen);
        let followed = follow(ledger, &self.rules, &self.seen, &bounds, *now);
        let intents = followed.approved.intents(ledger, &self.rules, *now);
        ledger.apply_all(&intents);
        followed
    }

    /// Executes what the guard lets through. Returns the texts of its refusals.
    fn guarded(&mut self) -> Vec<String> {
        let followed = self.followed();
        for approved in followed.approved.steps() {
            self.carry_out(approved.step());
            self.world.ledger.apply_all(&approved.used(self.world.now));
        }
        followed.refusals.iter().map(ToString::to_string).collect()
    }

    /// Returns the number of people who can still log in but must not: while the realm answers, and while it does not.
    fn still(&self) -> [usize; 2] {
        [Some(&self.seen), None].map(|seen| may_log_in_still(&self.world.ledger, &self.rules, seen).count())
    }

    fn may_log_in(&self) -> usize {
        self.seen.users.values().filter(|user| user.enabled).count()
    }

    fn alices(&mut self) -> &mut RealmUser {
        self.seen.users.get_mut("id-alice-0").expect("the user was made")
    }

    fn hold(&mut self, id: &AccountId) {
        self.world.hold(id);
    }
}

const NOTHING: &str = "";

#[test]
fn the_user_and_the_roles_are_created_once() {
    let mut story = Story::new();
    story.world.add(AccountKind::User, "nobody", Some(20_002));
    assert_eq!(
        story.cycle(),
        "+ user Alice  realm research: user created, to do UPDATE_PASSWORD, workspace-lab:member given, mail\n\
         + group lab  realm research: role workspace-lab:manager made, role workspace-lab:member made\n\
         realm research: 5 steps for 2 accounts.\n"
    );
    assert_eq!(story.cycle(), NOTHING);
    let json = Story::new().plan().json();
    assert_eq!((&json[0]["action"], &json[0]["reason"]), (&"realm-create".into(), &"missing".into()));
    assert_eq!((&json[0]["account"], &json[0]["realm"]), (&"user:Alice".into(), &"research".into()));
}

#[test]
fn leaving_removes_the_role_and_suspension_disables_the_user() {
    let mut story = Story::new();
    story.cycle();
    let entry = story.world.account(&story.alice.clone()).directory_id.clone();
    let role = story.world.account(&story.lab.clone()).members.remove(&entry).expect("the person is a member");
    assert_eq!(
        story.cycle(),
        "- user Alice  realm research: workspace-lab:member taken (no longer wanted)\nrealm research: 1 step for 1 account.\n"
    );
    story.world.account(&story.lab.clone()).members.insert(entry, role);
    story.cycle();
    let alice = story.alice.clone();
    story.world.account(&alice).state = Lifecycle::Suspended;
    assert_eq!(
        story.cycle(),
        "- user Alice  realm research: workspace-lab:member taken (suspended), user disabled (suspended)\n\
         realm research: 2 steps for 1 account.\n"
    );
    for state in [Lifecycle::Archived, Lifecycle::Deleted] {
        story.world.account(&alice).state = state;
        assert_eq!(story.cycle(), NOTHING, "{state:?}: the user is disabled, not deleted");
    }
    story.world.account(&alice).state = Lifecycle::Active;
    let back = story.cycle();
    assert!(back.contains("user enabled (enabled changed), workspace-lab:member given"), "{back}");
    // A person who is suspended for idleness may log in, and is resumed by the login.
    story.world.account(&alice).state = Lifecycle::Suspended;
    story.world.account(&alice).suspension = Some(Box::new(Suspension::Idle { since: story.world.now }));
    assert!(!story.cycle().contains("disabled"));
}

#[test]
fn a_deleted_workspace_loses_its_roles() {
    let mut story = Story::new();
    story.cycle();
    let lab = story.lab.clone();
    story.world.account(&lab).state = Lifecycle::Suspended;
    assert!(story.cycle().starts_with("- user Alice  realm research: workspace-lab:member taken (suspended)\n"));
    story.world.account(&lab).state = Lifecycle::Deleted;
    assert_eq!(
        story.cycle(),
        "- group lab  realm research: role workspace-lab:manager removed, role workspace-lab:member removed\n\
         realm research: 2 steps for 1 account.\n"
    );
    assert_eq!(story.cycle(), NOTHING);
}

#[test]
fn changes_of_managed_fields_are_reverted_and_profile_fields_stay() {
    let mut story = Story::new();
    story.cycle();
    let alice = story.alices();
    (alice.enabled, alice.email, alice.username) = (false, Some("evil@example.com".to_owned()), "al".to_owned());
    assert_eq!(
        story.cycle(),
        "+ user Alice  realm research: user enabled (enabled edited by somebody else), mail edited by somebody else\n\
         realm research: 2 steps for 1 account.\n"
    );
    assert_eq!(story.alices().username, "al");
    let alice = story.alice.clone();
    let account = story.world.account(&alice);
    (account.name, account.display_name) = ("alicia".to_owned(), Some("Alicia Example".to_owned()));
    assert_eq!(
        story.cycle(),
        "~ user alicia  realm research: name changed, renamed to alicia\nrealm research: 2 steps for 1 account.\n"
    );
    assert_eq!(story.cycle(), NOTHING);
    // An administrator removed the user from the realm. The user is created again, with its roles.
    story.seen.users.clear();
    story.seen.roles.values_mut().for_each(|role| role.holders.clear());
    assert!(story.cycle().starts_with("+ user alicia  realm research: user created"));
}

#[test]
fn an_unmanaged_user_is_left_alone_until_adoption_is_allowed() {
    let mut story = Story::new();
    story.user("stranger", "alice", Some("alice@example.org"));
    story.user("other", "bob", None);
    story.seen.roles = BTreeMap::from([(
        "workspace-lab:member".to_owned(),
        Holders { id: "r".to_owned(), holders: ["stranger".to_owned(), "other".to_owned()].into() },
    )]);
    let text = story.plan().to_string();
    assert!(
        text.contains("! user Alice  gets no user: realm research has a user alice that Bursar did not make"),
        "{text}"
    );
    assert!(!text.contains("taken") && !text.contains("created"), "{text}");
    story.rules.adopt = true;
    let mail = story.seen.users.get_mut("stranger").expect("the realm has the user").email.take();
    let text = story.plan().to_string();
    assert!(text.contains("adopt = true does not take it over"), "{text}");
    story.seen.users.get_mut("stranger").expect("the realm has the user").email = mail;
    let text = story.cycle();
    assert!(
        text.contains("+ user Alice  realm research: user adopted\n"),
        "the user gets no mail, and has the role already: {text}"
    );
    assert_eq!(story.cycle(), NOTHING);
    assert!(
        story.seen.roles["workspace-lab:member"].holders.contains("other"),
        "a user that is not ours keeps the role"
    );
}

#[test]
fn a_user_whose_creation_was_interrupted_is_recognised_by_its_creation_time() {
    for (asked, expected) in [(5, "user recognised, workspace-lab:member given, mail"), (6, "gets no user")] {
        let mut story = Story::new();
        let row = RealmAccount { asked, mail_due: true, adopted: false, ..RealmAccount::sample(false) };
        story.world.ledger.realm_accounts.insert((story.alice.clone(), "research".to_owned()), row);
        story.user("made", "alice", None);
        let text = story.plan().to_string();
        assert!(text.contains(expected), "{asked}: {text}");
    }
}

#[test]
fn people_read_from_the_realm_itself_only_get_roles() {
    let mut story = Story::new();
    story.rules.source = Some(SOURCE.to_owned());
    let entry = story.world.account(&story.alice.clone()).directory_id.0.clone();
    story.user(&entry, "alice", None);
    let text = story.cycle();
    assert!(text.contains("+ user Alice  realm research: workspace-lab:member given\n"), "{text}");
    assert!(!text.contains("created"), "{text}");
    let alice = story.alice.clone();
    story.world.account(&alice).state = Lifecycle::Suspended;
    let text = story.cycle();
    assert!(text.starts_with("- user Alice  realm research: workspace-lab:member taken (suspended)\n"), "{text}");
    assert_eq!(story.cycle(), NOTHING);
}

#[test]
fn a_hold_delays_no_removal_in_the_realm() {
    let mut story = Story::new();
    story.cycle();
    let alice = story.alice.clone();
    story.hold(&alice);
    let note = story.world.note("stolen");
    story.suspend(&alice, Suspension::by(note));
    assert_eq!(story.still(), [1, 1], "the order is open until the user is disabled");
    let text = story.cycle();
    assert!(text.contains("user disabled (suspended)") && text.contains("workspace-lab:member taken"), "{text}");
    assert_eq!((story.cycle().as_str(), story.may_log_in()), (NOTHING, 0));
    assert_eq!(story.still(), [0, 0]);
    // Somebody enables the user, and the account changes. Nothing is repaired or given under a hold.
    story.alices().enabled = true;
    assert_eq!((story.cycle().as_str(), story.still()), (NOTHING, [0, 0]));
    story.alices().enabled = false;
    let account = story.world.account(&alice);
    (account.state, account.suspension) = (Lifecycle::Active, None);
    account.display_name = Some("A E".to_owned());
    assert_eq!(story.cycle(), NOTHING);
    story.world.ledger.holds.clear();
    let text = story.cycle();
    assert!(text.contains("user enabled") && text.contains("workspace-lab:member given"), "{text}");
}

#[test]
fn a_user_whose_enabling_was_not_recorded_is_disabled_despite_a_hold() {
    for is_held_before in [false, true] {
        let mut story = Story::new();
        story.guarded();
        let (alice, now) = (story.alice.clone(), story.world.now);
        let note = Note { actor: "root".to_owned(), reason: "stolen".to_owned(), ticket: None, at: now };
        story.suspend(&alice, Suspension::by(note.clone()));
        story.guarded();
        // The answer to the request that enabled the user was not recorded.
        story.alices().enabled = true;
        let account = story.world.account(&alice);
        (account.state, account.suspension) = (Lifecycle::Active, None);
        if is_held_before {
            story.hold(&alice);
        }
        story.guarded();
        story.hold(&alice);
        story.suspend(&alice, Suspension::by(note));
        assert_eq!(story.still(), [1, 1]);
        story.guarded();
        assert_eq!((story.may_log_in(), story.still()), (0, [0, 0]), "held before: {is_held_before}");
    }
}

#[test]
fn people_who_left_a_workspace_lose_its_role_despite_a_hold() {
    for is_persons in [false, true] {
        let mut story = Story::new();
        let (alice, lab) = (story.alice.clone(), story.lab.clone());
        let bob = story.another("bob");
        story.cycle();
        story.hold(if is_persons { &alice } else { &lab });
        let members = &mut story.world.account(&lab).members;
        for role in members.values_mut() {
            *role = crate::snapshot::Role::Manager;
        }
        if is_persons {
            let entry = story.world.account(&bob).directory_id.clone();
            story.world.account(&lab).members.remove(&entry);
        }
        let text = story.cycle();
        assert!(!text.contains("Alice"), "a change of the role does not pass the hold: {text}");
        let entry = story.world.account(&alice).directory_id.clone();
        story.world.account(&lab).members.remove(&entry);
        let text = story.cycle();
        assert!(text.starts_with("- user Alice  realm research: workspace-lab:member taken"), "{is_persons}: {text}");
        assert_eq!(story.cycle(), NOTHING);
        assert_eq!(story.seen.roles["workspace-lab:member"].holders.len(), usize::from(!is_persons));
    }
}

#[test]
fn a_held_workspace_that_is_suspended_by_an_order_loses_its_roles() {
    let mut story = Story::new();
    story.cycle();
    let lab = story.lab.clone();
    story.hold(&lab);
    let note = story.world.note("x");
    story.suspend(&lab, Suspension::by(note));
    let text = story.cycle();
    assert!(text.starts_with("- user Alice  realm research: workspace-lab:member taken (suspended)"), "{text}");
    assert_eq!(story.cycle(), NOTHING);
}

#[test]
fn a_failed_step_waits_and_delays_no_removal_of_access() {
    let mut story = Story::new();
    story.cycle();
    let (alice, now) = (story.alice.clone(), story.world.now);
    let failure = |step: &str| Failure {
        step: step.to_owned(),
        reason: "no".to_owned(),
        since: now,
        attempts: 3,
        next_try: now + jiff::SignedDuration::from_secs(9),
    };
    let key = (alice.clone(), story.rules.place());
    story.world.ledger.failures.insert(key.clone(), failure("realm user"));
    story.world.account(&alice).display_name = Some("A E".to_owned());
    let plan = story.plan();
    assert!(plan.steps.is_empty() && plan.overcome.is_empty(), "{plan}");
    story.world.account(&alice).state = Lifecycle::Suspended;
    assert!(story.plan().to_string().contains("user disabled"));
    story.world.account(&alice).state = Lifecycle::Active;
    story.world.ledger.failures.insert(key, failure("realm mail"));
    let plan = story.plan();
    assert_eq!(
        (plan.steps.len(), plan.overcome),
        (1, vec![alice]),
        "the name is updated, and the failed mail is no longer due"
    );
}

const fn count(count: u64) -> Limit {
    Limit { count, percent: None }
}

#[test]
fn users_are_disabled_within_limits_of_their_own() {
    let mut story = Story::new();
    let ids: Vec<AccountId> = ["bob", "carol", "dave", "erin"].map(|name| story.another(name)).into();
    assert!(story.guarded().is_empty());
    assert_eq!(story.may_log_in(), 5);
    story.rules.client = None; // no roles, which have a limit of their own
    story.world.policy.limits.realm_disable_per_cycle = count(1);
    story.world.policy.limits.realm_disable_per_day = count(3);
    for (id, minutes) in ids.iter().zip([3, 1, 2, 0]) {
        story.suspend(id, Suspension::Absent);
        story.world.account(id).since += jiff::SignedDuration::from_mins(minutes);
    }
    let [refused] = story.guarded().try_into().expect("the guard refuses one set");
    let beginning = "refused by limit realm_disable_per_cycle (1 left): 3 of 4 users disabled in the realm: ";
    assert!(refused.starts_with(&format!("{beginning}carol, dave, bob. To allow exactly these: ")), "{refused}");
    assert_eq!(story.may_log_in(), 4, "erin is disabled first, because she waited longest");

    let hash = refused.rsplit(' ').next().expect("the refusal ends with a hash").to_owned();
    let changes = approve(&story.world.ledger, &hash, story.world.now).expect("the refusal waits for an approval");
    story.world.ledger.apply_all(&changes);
    story.suspend(&story.alice.clone(), Suspension::Left);
    let refused = story.guarded();
    assert!(
        refused[0].contains("realm_disable_per_cycle (1 left): 1 of 4 users"),
        "the approval does not cover the added person"
    );
    assert!(refused[0].contains(": Alice. To allow"), "{refused:?}");
    assert_eq!(story.may_log_in(), 1);
    assert!(story.world.ledger.approvals.is_empty(), "an approval is used up when its step is done");

    story.world.now += jiff::SignedDuration::from_hours(25);
    assert_eq!(story.guarded(), Vec::<String>::new(), "a day later, the limit allows more again");
    assert_eq!(story.may_log_in(), 0);
    assert!(story.world.ledger.refusals.is_empty());
}

#[test]
fn roles_are_taken_within_limits_of_their_own() {
    let mut story = Story::new();
    let bob = story.another("bob");
    assert!(story.guarded().is_empty());
    assert_eq!(story.seen.roles["workspace-lab:member"].holders.len(), 2);
    story.world.policy.limits.realm_remove_roles_per_cycle = count(1);
    let lab = story.lab.clone();
    story.world.account(&lab).members.clear();
    let refused = story.guarded();
    assert!(
        refused[0].contains("realm_remove_roles_per_cycle (1 left): 2 roles are taken away in the realm"),
        "{refused:?}"
    );
    assert_eq!(story.seen.roles["workspace-lab:member"].holders.len(), 1);
    story.world.ledger.spent.clear();
    assert!(story.guarded().is_empty());
    assert!(story.seen.roles["workspace-lab:member"].holders.is_empty());

    // The role is removed together with the workspace, and all holders lose it, including users that Bursar neither
    // created nor adopted.
    story.seen.roles.get_mut("workspace-lab:member").expect("the realm has the role").holders =
        ["x".to_owned(), "y".to_owned()].into();
    story.world.account(&lab).state = Lifecycle::Deleted;
    let refused = story.guarded();
    assert!(refused[0].contains("refused for lab"), "{refused:?}");
    assert!(story.seen.roles.contains_key("workspace-lab:member") && !bob.0.is_empty());
}

#[test]
fn ordered_changes_of_the_realm_use_no_limit() {
    let mut story = Story::new();
    let ids: Vec<AccountId> = ["bob", "carol", "dave"].map(|name| story.another(name)).into();
    story.guarded();
    let limits = &mut story.world.policy.limits;
    (limits.realm_disable_per_cycle, limits.realm_remove_roles_per_cycle) = (count(0), count(0));
    let note = story.world.note("x");
    for id in &ids {
        story.suspend(id, Suspension::by(note.clone()));
    }
    assert_eq!(story.guarded(), Vec::<String>::new());
    assert_eq!(story.may_log_in(), 1);
    assert!(story.world.ledger.spent.is_empty());
}

#[test]
fn disabling_by_a_mark_has_a_budget_of_its_own_in_the_realm() {
    let mut story = Story::new();
    let bob = story.another("bob");
    story.guarded();
    let limits = &mut story.world.policy.limits;
    (limits.realm_disable_per_cycle, limits.realm_remove_roles_per_cycle) = (count(0), count(0));
    story.suspend(&story.alice.clone(), Suspension::Absent);
    story.suspend(&bob, Suspension::Disabled { mark: "loginDisabled: TRUE".to_owned() });
    let refused = story.guarded();
    assert!(refused.iter().all(|refused| refused.contains("Alice") && !refused.contains("bob")), "{refused:?}");
    assert_eq!((refused.len(), story.may_log_in()), (2, 1));
}

#[test]
fn a_cycle_of_the_clusters_keeps_the_refusals_of_the_realm() {
    let mut story = Story::new();
    story.guarded();
    story.world.policy.limits.realm_disable_per_cycle = count(0);
    story.suspend(&story.alice.clone(), Suspension::Absent);
    let followed = story.followed();
    assert!(
        followed
            .approved
            .steps()
            .iter()
            .all(|approved| approved.step().counts == 0 || approved.step().action.step() != "realm user")
    );
    let refused = story.world.ledger.refusals.clone();
    assert_eq!(refused.len(), 1);
    let World { ledger, inventory, policy, sealer, now, .. } = &story.world;
    let inputs = Inputs { ledger, heard: None, inventory, policy, sealer, now: *now };
    assert_eq!(evolve(inputs, &mut crate::plan::Planner::default()).after().refusals, refused);
    assert!(approve(ledger, &refused[0].hash, *now).is_some());
    let without = super::realm::guard::forgotten(ledger).expect("the ledger has refusals of the realm");
    story.world.ledger.apply(&without);
    assert!(story.world.ledger.refusals.is_empty());
}
