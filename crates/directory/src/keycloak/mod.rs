//! Reads the users and groups of a Keycloak realm with its administration API, in full and page by page, because
//! Keycloak reports no changes.
//!
//! Each failure becomes a reason in [`RawRead::problems`]. A list from which something was removed during the read is
//! such a failure too. It is noticed if the number of listed entries, or the count after the read, is less than the
//! count before. Additions are harmless. [`Administration`] makes all changes in a realm.

mod administration;
mod answer;
mod config;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bursar_core::errors::chain;
use bursar_core::identity::{AccountKind, DirectoryId};
use bursar_core::snapshot::proof::{Due, EntryPlace, Proof};

pub use self::administration::Administration;
use self::answer::{Group, GroupCount, Listed as _, Member, Profile, Scribe, User};
pub use self::answer::{MEMBER, base};
pub use self::config::{INTERVAL, KeycloakConfig};
pub use self::session::RealmError;
use self::session::Session;
use crate::entry::assemble::{RawRead, RawTree};
use crate::entry::raw::RawEntry;
use crate::progress;
use crate::source::SourceConfig;

/// The query that requests entries with all their attributes.
const WHOLE: [(&str, &str); 1] = [("briefRepresentation", "false")];
const BRIEF: [(&str, &str); 1] = [("briefRepresentation", "true")];

/// Reads all users and groups of the realm.
pub async fn read(config: &KeycloakConfig, source: &SourceConfig) -> RawRead {
    let trees = [AccountKind::User, AccountKind::Group].map(|kind| (kind, RawTree::default()));
    let mut raw = RawRead { trees: trees.into(), ..RawRead::default() };
    if let Err(error) = read_realm(config, source, &mut raw).await {
        let server = raw.server.as_deref().unwrap_or(&config.url);
        raw.problems.push(format!("{server}: {}", chain(&error)));
    }
    raw
}

/// Looks up each account in `due` by its id in the realm. Accounts that could not be looked up are missing in the
/// result.
pub async fn look_up(config: &KeycloakConfig, source: &SourceConfig, due: &[Due]) -> BTreeMap<DirectoryId, Proof> {
    let mut proofs = BTreeMap::new();
    let Ok(mut session) = Session::new(config) else { return proofs };
    for Due { id, kind, .. } in due {
        let list = if *kind == AccountKind::Group { "groups" } else { "users" };
        let place = match session.get::<serde_json::Value>(&[list, &id.0], &[]).await {
            Ok(_) => EntryPlace::Inside { dn: format!("{list}/{id}") },
            Err(RealmError::Answer { status, .. }) if status == reqwest::StatusCode::NOT_FOUND => EntryPlace::Nowhere,
            Err(error) => {
                tracing::warn!(source = source.name, error = %chain(&error), "absent accounts could not be looked up");
                return proofs;
            }
        };
        progress::page(0);
        proofs.insert(id.clone(), Proof { servers: vec![(session.server(), place)] });
    }
    proofs
}

async fn read_realm(config: &KeycloakConfig, source: &SourceConfig, raw: &mut RawRead) -> Result<(), RealmError> {
    let mut session = Session::new(config)?;
    let profile: Profile = session.get(&["users", "profile"], &[]).await?;
    raw.server = Some(session.server());
    let (unbelieved, problems) = profile.judge(&source.attributes);
    raw.problems = problems;
    let mut scribe = Scribe::new(&config.realm, &source.attributes, &unbelieved);
    let people = raw.trees.entry(AccountKind::User).or_default();
    let listed = read_users(&mut session, &mut scribe, &config.made, &mut people.entries).await?;
    if listed == 0 {
        raw.problems.push("the realm shows no users; check that its client has the role view-users".to_owned());
    }
    people.whole = true;
    let groups = raw.trees.entry(AccountKind::Group).or_default();
    read_groups(&mut session, &mut scribe, &mut groups.entries).await?;
    groups.whole = true;
    Ok(())
}

/// Reads the users, and returns how many there are. Users in `made` count, but are left out of `entries`: Bursar
/// created them for people of other sources.
async fn read_users(
    session: &mut Session,
    scribe: &mut Scribe<'_>,
    made: &BTreeSet<String>,
    entries: &mut Vec<Arc<RawEntry>>,
) -> Result<usize, RealmError> {
    let before: usize = session.get(&["users", "count"], &[]).await?;
    let listed = session.list(&["users"], &WHOLE, |user: User| {
        let entry = scribe.user(&user);
        if !made.contains(&user.id) {
            entries.push(Arc::new(entry));
        }
    });
    let listed = listed.await?;
    let after: usize = session.get(&["users", "count"], &[]).await?;
    // A client that may search for users but not view them gets the count of all users and an empty list. A user who
    // was added during the read may be missing now, and is in the next read.
    let same = listed == 0 || (listed >= before && after >= before);
    if same { Ok(listed) } else { Err(RealmError::Changed(User::WHAT)) }
}

/// Reads groups, their subgroups and the members of each. A member of a subgroup also belongs to the parent group,
/// because in Keycloak the member inherits its attributes and roles.
async fn read_groups(
    session: &mut Session,
    scribe: &mut Scribe<'_>,
    entries: &mut Vec<Arc<RawEntry>>,
) -> Result<(), RealmError> {
    let before: GroupCount = session.get(&["groups", "count"], &[]).await?;
    let mut groups: Vec<Group> = Vec::new();
    session.list(&["groups"], &WHOLE, |group| groups.push(group)).await?;
    entries.extend(groups.iter().map(|group| Arc::new(scribe.group(group, None))));
    let mut at = 0;
    while at < groups.len() {
        let id = groups[at].id.clone();
        if groups[at].sub_group_count > 0 {
            let mut parts: Vec<Group> = Vec::new();
            session.list(&["groups", &id, "children"], &WHOLE, |part| parts.push(part)).await?;
            for part in &parts {
                let entry = scribe.group(part, Some(&entries[at]));
                Arc::make_mut(&mut entries[at]).add(MEMBER.as_bytes(), entry.dn.as_bytes());
                entries.push(Arc::new(entry));
            }
            groups.append(&mut parts);
        }
        let group = Arc::make_mut(&mut entries[at]);
        session.list(&["groups", &id, "members"], &BRIEF, |member: Member| scribe.member(group, &member)).await?;
        at += 1;
    }
    let after: GroupCount = session.get(&["groups", "count"], &[]).await?;
    let same = groups.len() >= before.count && after.count >= before.count;
    if same { Ok(()) } else { Err(RealmError::Changed(Group::WHAT)) }
}
