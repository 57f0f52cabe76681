//! A circuit breaker: decides when to stop using an export or a signer that does not answer. The time is a parameter.
//!
//! Only timeouts of **different** accounts count, because a user can delay every request for their own home, and must
//! not block others that way. A person can have several accounts (tools), so a worker that its user stops or kills does
//! not count as a timeout.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The number of different accounts whose requests time out in a row before the breaker opens.
const LATE_ACCOUNTS: usize = 3;
/// How long the breaker usually stays open.
pub const BACKOFF: Duration = Duration::from_secs(30);
/// The longest time that the breaker stays open.
const LONGEST_BACKOFF: Duration = Duration::from_mins(5);

/// The breaker of one prefix or signer. `A` identifies an account.
#[derive(Clone, Debug)]
pub struct Breaker<A = u32> {
    /// How long the breaker stays open at first. It doubles with each failed probe.
    backoff: Duration,
    late: BTreeSet<A>,
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    until: Instant,
    backoff: Duration,
    probing: bool,
}

impl<A: Ord> Breaker<A> {
    /// Returns a closed breaker.
    #[must_use]
    pub fn new(backoff: Duration) -> Self {
        Self { backoff, late: BTreeSet::new(), open: None }
    }

    /// Admits a request, or returns the time until the next probe. The caller of an admitted request must call one of
    /// [`answered`](Self::answered), [`timed_out`](Self::timed_out) and [`not_tried`](Self::not_tried).
    pub fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        match &mut self.open {
            None => Ok(()),
            Some(open) if open.until <= now && !open.probing => {
                open.probing = true;
                Ok(())
            }
            Some(open) => Err(open.until.saturating_duration_since(now)),
        }
    }

    /// Records an answer, which may be an error.
    pub fn answered(&mut self) {
        self.late.clear();
        self.open = None;
    }

    /// Records that an admitted request was not tried, or that the user ended its worker. Neither says anything about
    /// the export.
    pub fn not_tried(&mut self) {
        if let Some(open) = &mut self.open {
            open.probing = false;
        }
    }

    /// Records a timeout. Returns whether it opened the breaker.
    pub fn timed_out(&mut self, account: A, now: Instant) -> bool {
        self.late.insert(account);
        match &mut self.open {
            Some(open) if open.probing => {
                open.probing = false;
                open.backoff = (open.backoff * 2).min(LONGEST_BACKOFF);
                open.until = now + open.backoff;
                false
            }
            None if self.late.len() >= LATE_ACCOUNTS => {
                let backoff = self.backoff;
                self.open = Some(Open { until: now + backoff, backoff, probing: false });
                true
            }
            // Too few accounts are late, or the request began before the breaker opened.
            _ => false,
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test begins at any time")]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(BACKOFF);
        assert!(!breaker.timed_out(1001, now));
        assert!(!breaker.timed_out(1002, now));
        assert!(breaker.timed_out(1003, now));
        breaker
    }

    #[test]
    fn one_account_alone_never_opens_the_breaker() {
        let (mut breaker, now) = (Breaker::new(BACKOFF), Instant::now());
        for _ in 0..100 {
            breaker.timed_out(1001, now);
        }
        assert_eq!(breaker.admit(now), Ok(()));
    }

    #[test]
    fn three_accounts_in_a_row_open_the_breaker() {
        let now = Instant::now();
        assert_eq!(opened(now).admit(now), Err(30 * SECOND));

        let mut breaker = Breaker::new(BACKOFF);
        breaker.timed_out(1001, now);
        breaker.timed_out(1002, now);
        breaker.answered();
        breaker.timed_out(1003, now);
        assert_eq!(breaker.admit(now), Ok(()));
    }

    #[test]
    fn an_open_breaker_admits_one_probe_that_decides() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + 31 * SECOND;
        assert_eq!(breaker.admit(later), Ok(()));
        assert!(breaker.admit(later).is_err(), "a second probe was admitted");
        breaker.timed_out(1004, later);
        assert_eq!(breaker.admit(later), Err(60 * SECOND), "the backoff did not double");

        let much_later = later + 61 * SECOND;
        assert_eq!(breaker.admit(much_later), Ok(()));
        breaker.answered();
        assert_eq!(breaker.admit(much_later), Ok(()));
        assert_eq!(breaker.admit(much_later), Ok(()));
    }

    #[test]
    fn after_a_probe_that_was_not_tried_another_is_admitted() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + 31 * SECOND;
        assert_eq!(breaker.admit(later), Ok(()));
        breaker.not_tried();
        assert_eq!(breaker.admit(later), Ok(()));
    }
}
