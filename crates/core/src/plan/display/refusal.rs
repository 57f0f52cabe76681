//! Describes what the guard refuses, and how to allow it.

use std::fmt;

use crate::plan::budget::REMOVED;
use crate::plan::guard::{ABSENCE, ATTRIBUTES, COMPLETENESS, EMPTIED, IMPORT, Refusal};
use crate::plan::realm::guard::{ROLES, USERS};
use crate::plan::wording::number;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, class, allowed, wanted, what, accounts, hash, parts: _ } = self;
        let names: Vec<&str> = accounts.iter().map(|account| account.name.as_str()).collect();
        let names = names.join(", ");
        if limit == COMPLETENESS {
            return write!(
                f,
                "refused: {} {what} wait for a complete read of {class}, because the last one was not complete: \
                 {names}",
                accounts.len()
            );
        }
        match limit.as_str() {
            ATTRIBUTES => {
                let (before, now) = (number(*wanted), number(*allowed));
                write!(f, "refused: {what}: {before} accounts of {class} had it, {now} have it now")?;
                return match hash {
                    Some(hash) => {
                        write!(f, ". The old values stay in force. If it was removed on purpose: bursar approve {hash}")
                    }
                    None => write!(f, ". Accounts without it keep the uids that they had"),
                };
            }
            IMPORT => {
                return write!(
                    f,
                    "refused: {} {what} of {class} are missing, such as {}, and new entries have their names and uids. \
                     This looks like a new import, so none of them is suspended. If they are the same: bursar directory \
                     imported > FILE; bursar adopt import FILE",
                    number(*wanted),
                    accounts.first().map_or("", |account| account.name.as_str())
                );
            }
            ABSENCE if what.is_empty() => {
                return write!(
                    f,
                    "refused: no server of {class} could be asked for {names} alone. They stay as they are; the next read \
                     asks again"
                );
            }
            ABSENCE => {
                return write!(f, "refused: the servers of {class} disagree about whether {names} is there: {what}");
            }
            EMPTIED => {
                return write!(
                    f,
                    "refused: {} groups of {class} became empty in the same read, such as {}. They keep their members. If they \
                     are really empty: bursar directory accept {class} --reason TEXT",
                    number(*wanted),
                    accounts.first().map_or("", |account| account.name.as_str())
                );
            }
            _ => write!(f, "refused by limit {limit} ({allowed} left): ")?,
        }
        match what.as_str() {
            "members" => write!(f, "{wanted} members leave, refused for {names}")?,
            REMOVED => write!(f, "{wanted} {what} because of the configuration or a label, refused for {names}")?,
            USERS => write!(f, "{} of {wanted} users disabled in the realm: {names}", accounts.len())?,
            ROLES => write!(f, "{wanted} roles are taken away in the realm, refused for {names}")?,
            _ => write!(f, "{} of {wanted} {what}: {names}", accounts.len())?,
        }
        match hash {
            Some(hash) => write!(f, ". To allow exactly these: bursar approve {hash}"),
            None => Ok(()),
        }
    }
}
