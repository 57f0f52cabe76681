//! The hash chain of the history. Each row contains the SHA-256 of the row before, so that a changed, missing or
//! reordered row is noticed.

use sha2::{Digest, Sha256};

use super::change::Event;

/// The previous hash of the first row.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// One row of table `event`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The id of the row. Ids begin at 1 and have no gaps.
    pub id: i64,
    /// The time in UTC, as text.
    pub at: String,
    /// What happened.
    pub event: Event,
    /// The hash of the previous row.
    pub previous: String,
    /// The hash of this row.
    pub hash: String,
}

/// How the chain is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The ids are not consecutive.
    #[error("event {found} stands where event {expected} should: rows are missing or out of order")]
    Missing {
        /// The id that should follow.
        expected: i64,
        /// The id that follows.
        found: i64,
    },
    /// The row does not contain the hash of the previous row.
    #[error("event {0} does not continue the one before it: one of the two was replaced")]
    Unlinked(i64),
    /// The content of the row does not match its hash.
    #[error("event {0} was changed after it was written")]
    Changed(i64),
}

/// Returns the hash of a row. It covers the previous hash and each value with its length, so that no text can move from
/// one value to the next.
#[must_use]
pub fn hash(previous: &str, id: i64, at: &str, event: &Event) -> String {
    let Event { actor, account, account_id, action, reason, ticket, plan, detail } = event;
    let mut hasher = Sha256::new();
    let mut add = |text: Option<&str>| match text {
        None => hasher.update([0]),
        Some(text) => {
            hasher.update([1]);
            hasher.update((text.len() as u64).to_be_bytes());
            hasher.update(text);
        }
    };
    add(Some(previous));
    add(Some(&id.to_string()));
    add(Some(at));
    add(Some(actor));
    add(account.as_ref().map(ToString::to_string).as_deref());
    add(account_id.as_ref().map(|id| id.0.to_string()).as_deref());
    add(Some(action));
    add(Some(reason));
    add(ticket.as_deref());
    add(plan.as_deref());
    add(Some(detail.text()));
    hex::encode(hasher.finalize())
}

/// Checks rows that are sorted by id, and returns the new head. `head` is the id and hash of the row before the first
/// one, or `(0, GENESIS)`.
pub fn verify<'a>(head: (i64, String), links: impl IntoIterator<Item = &'a Link>) -> Result<(i64, String), Broken> {
    links.into_iter().try_fold(head, |(last, previous), link| match () {
        () if link.id != last + 1 => Err(Broken::Missing { expected: last + 1, found: link.id }),
        () if link.previous != previous => Err(Broken::Unlinked(link.id)),
        () if link.hash != hash(&previous, link.id, &link.at, &link.event) => Err(Broken::Changed(link.id)),
        () => Ok((link.id, link.hash.clone())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(length: i64) -> Vec<Link> {
        let mut previous = GENESIS.to_owned();
        (1..=length)
            .map(|id| {
                let event = Event::new("created", format!("reason {id}"), serde_json::json!({"n": id}));
                let at = "2026-11-21T00:00:00Z".to_owned();
                let hash = hash(&previous, id, &at, &event);
                Link { id, at, event, previous: std::mem::replace(&mut previous, hash.clone()), hash }
            })
            .collect()
    }

    fn check(links: &[Link]) -> Result<(i64, String), Broken> {
        verify((0, GENESIS.to_owned()), links)
    }

    #[test]
    fn an_unchanged_chain_is_valid() {
        let links = chain(5);
        assert_eq!(check(&links), Ok((5, links[4].hash.clone())));
    }

    #[test]
    fn a_changed_missing_or_reordered_row_is_named() {
        let mut changed = chain(5);
        changed[2].event.reason = "another".to_owned();
        assert_eq!(check(&changed), Err(Broken::Changed(3)));
        let mut rehashed = chain(5);
        rehashed[2].event.reason = "another".to_owned();
        rehashed[2].hash = hash(&rehashed[2].previous, 3, &rehashed[2].at, &rehashed[2].event);
        assert_eq!(check(&rehashed), Err(Broken::Unlinked(4)));
        let mut missing = chain(5);
        missing.remove(1);
        assert_eq!(check(&missing), Err(Broken::Missing { expected: 2, found: 3 }));
        let mut reordered = chain(5);
        reordered.swap(1, 2);
        assert_eq!(check(&reordered), Err(Broken::Missing { expected: 2, found: 3 }));
    }
}
