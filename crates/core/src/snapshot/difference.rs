//! Compares two reads of a source entry by entry.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::{Entry, RejectedEntry, SourceRead};
use crate::identity::{AccountKind, DirectoryId};

/// Returns the differences from `before` to `after`, one line each: accounts, attributes and members.
#[must_use]
pub fn differences(before: &SourceRead, after: &SourceRead) -> Vec<String> {
    let (entries, others) = (by_id(before), by_id(after));
    let names: BTreeMap<&DirectoryId, &str> =
        before.entries.iter().chain(&after.entries).map(|entry| (&entry.id, entry.name.as_str())).collect();
    let keys: BTreeSet<_> = entries.keys().chain(others.keys()).collect();
    let mut lines = Vec::new();
    for key in keys {
        match (entries.get(key), others.get(key)) {
            (Some(entry), None) => lines.push(format!("- {}", said(entry))),
            (None, Some(entry)) => lines.push(format!("+ {}", said(entry))),
            (Some(entry), Some(other)) => {
                let changes = changes(entry, other, &names);
                if !changes.is_empty() {
                    lines.push(format!("~ {}: {}", said(other), changes.join("; ")));
                }
            }
            (None, None) => {}
        }
    }
    lines.extend(rejected(before, after));
    lines
}

fn by_id(read: &SourceRead) -> BTreeMap<(AccountKind, &DirectoryId), &Entry> {
    read.entries.iter().map(|entry| ((entry.kind, &entry.id), entry)).collect()
}

fn said(entry: &Entry) -> String {
    format!("{} {} ({})", entry.kind, entry.name, entry.dn)
}

fn changes(before: &Entry, after: &Entry, names: &BTreeMap<&DirectoryId, &str>) -> Vec<String> {
    // The entry is destructured, so that a new field cannot be forgotten.
    let Entry {
        kind: _,
        id: _,
        dn,
        name,
        posix,
        gid,
        home,
        home_by_default,
        mail,
        person,
        display_name,
        ssh_keys,
        disabled,
        created,
        members,
        sid,
    } = before;
    let mut changes = Vec::new();
    changed(&mut changes, "dn", dn, &after.dn);
    changed(&mut changes, "name", name, &after.name);
    let uid = |entry: &Entry| entry.posix.as_ref().map(|posix| posix.uid.get());
    let primary = |entry: &Entry| entry.posix.as_ref().map(|posix| posix.gid.get());
    if posix != &after.posix {
        changed(&mut changes, "uid", &uid(before), &uid(after));
        changed(&mut changes, "gid", &primary(before), &primary(after));
        let gids = |entry: &Entry| -> BTreeSet<i64> {
            entry.posix.iter().flat_map(|posix| posix.groups.iter().map(|gid| i64::from(gid.get()))).collect()
        };
        changed(&mut changes, "supplementary gids", &gids(before), &gids(after));
    }
    changed(&mut changes, "gid", gid, &after.gid);
    changed(&mut changes, "sid", sid, &after.sid);
    changed(&mut changes, "home", home, &after.home);
    changed(&mut changes, "home by default", home_by_default, &after.home_by_default);
    changed(&mut changes, "mail", mail, &after.mail);
    changed(&mut changes, "person", person, &after.person);
    changed(&mut changes, "display name", display_name, &after.display_name);
    changed(&mut changes, "SSH keys", &ssh_keys.len(), &after.ssh_keys.len());
    if ssh_keys != &after.ssh_keys && ssh_keys.len() == after.ssh_keys.len() {
        changes.push("SSH keys replaced".to_owned());
    }
    changed(&mut changes, "disabled", disabled, &after.disabled);
    changed(&mut changes, "created", created, &after.created);
    if members != &after.members {
        let name = |id: &DirectoryId| names.get(id).map_or_else(|| id.0.clone(), |name| (*name).to_owned());
        let came = after.members.iter().filter(|(id, role)| members.get(*id) != Some(*role));
        let came = came.map(|(id, _)| format!("+{}", name(id)));
        let went = members.keys().filter(|id| !after.members.contains_key(*id)).map(|id| format!("-{}", name(id)));
        changes.push(format!("members {}", came.chain(went).collect::<Vec<_>>().join(" ")));
    }
    changes
}

fn changed<T: PartialEq + Serialize>(changes: &mut Vec<String>, what: &str, before: &T, after: &T) {
    if before != after {
        changes.push(format!("{what} {} → {}", value(before), value(after)));
    }
}

/// Returns a value as text; `-` if there is none.
fn value(of: &impl Serialize) -> String {
    match serde_json::to_value(of) {
        Ok(Value::Null) | Err(_) => "-".to_owned(),
        Ok(Value::String(text)) => text,
        Ok(other) => other.to_string(),
    }
}

fn rejected(before: &SourceRead, after: &SourceRead) -> Vec<String> {
    let of = |read: &SourceRead| -> BTreeMap<(AccountKind, String), String> {
        let key = |entry: &RejectedEntry| ((entry.kind, entry.dn.clone()), entry.why.clone());
        read.rejected.iter().map(key).collect()
    };
    let (before, after) = (of(before), of(after));
    let now = after.iter().filter(|(key, why)| before.get(*key) != Some(*why));
    let now = now.map(|((kind, dn), why)| format!("! {kind} {dn} is rejected: {why}"));
    let no_more = before.keys().filter(|key| !after.contains_key(*key));
    now.chain(no_more.map(|(kind, dn)| format!("! {kind} {dn} is no longer rejected"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Role;

    fn read(entries: Vec<Entry>) -> SourceRead {
        SourceRead::complete("people", [AccountKind::User, AccountKind::Group], entries)
    }

    #[test]
    fn each_difference_is_a_line() {
        let person = |id: &str, name: &str| Entry::new(AccountKind::User, id, format!("uid={name}"), name);
        let group = |members: &[&str]| Entry {
            members: members.iter().map(|id| (DirectoryId((*id).to_owned()), Role::Member)).collect(),
            ..Entry::new(AccountKind::Group, "g", "cn=g", "g")
        };
        let before = read(vec![person("a", "alice"), person("b", "bob"), group(&["a"])]);
        let mailed = Entry { mail: Some("b@x".to_owned()), ..person("b", "bob") };
        let after = read(vec![mailed, person("c", "carol"), group(&["b"])]);
        assert_eq!(
            differences(&before, &after),
            [
                "- user alice (uid=alice)",
                "~ user bob (uid=bob): mail - → b@x",
                "+ user carol (uid=carol)",
                "~ group g (cn=g): members +bob -alice",
            ]
        );
        assert_eq!(differences(&before, &before), [""; 0]);
    }
}
