//! Counts the repairs of an object that somebody changes again and again, and delays the next repair.

use jiff::{SignedDuration, Timestamp};

use crate::kinds::Stage;

/// Successive repairs of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repairs {
    pub count: u32,
    /// The time of the last repair.
    pub last: Timestamp,
}

/// The number of repairs without delay. A person who edits an object twice must not be mistaken for a program that
/// reverts every repair.
const AT_ONCE: u32 = 3;
/// The delay of the first repair that waits. It doubles with each further repair.
const FIRST_WAIT: SignedDuration = SignedDuration::from_mins(1);
/// The longest delay. The repair of an essential object ([`Stage::is_essential`]) waits [`FIRST_WAIT`] at most, because
/// until the repair the tenant may have no limits, or access that it should not have.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(16);
/// If an object needs no repair for this long, the count starts again.
const OVER: SignedDuration = SignedDuration::from_hours(1);

impl Repairs {
    /// Returns the count after one more repair.
    #[must_use]
    pub fn after(before: Option<&Self>, now: Timestamp) -> Self {
        let count = before.filter(|before| !before.is_over(now)).map_or(0, |before| before.count);
        Self { count: count.saturating_add(1), last: now }
    }

    /// Whether the last repair is too old to count. A repair dated in the future comes from a wrong clock, and does not
    /// count either.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        let gap = now.duration_since(self.last);
        gap.is_negative() || gap > OVER
    }

    /// Returns until when the next repair of an object of `stage` waits; `None` if there is no delay.
    #[must_use]
    pub fn wait(&self, stage: Stage, now: Timestamp) -> Option<Timestamp> {
        self.wait_after(now, stage, now)
    }

    /// Returns the end of the wait if it is later than `since`, which may be in the past.
    #[must_use]
    pub fn wait_after(&self, since: Timestamp, stage: Stage, now: Timestamp) -> Option<Timestamp> {
        let more = self.count.checked_sub(AT_ONCE)?;
        let longest = if stage.is_essential() { FIRST_WAIT } else { LONGEST_WAIT };
        let wait = FIRST_WAIT.checked_mul(2_i32.saturating_pow(more.min(8))).unwrap_or(longest).min(longest);
        let next = self.last.saturating_add(wait).ok()?;
        (!self.is_over(now) && next > since).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_wait_longer_each_time_until_the_object_is_left_alone() {
        let begin: Timestamp = "2026-05-03T12:00:00Z".parse().expect("the text is a timestamp");
        let (mut repairs, mut now, mut waits) = (None, begin, Vec::new());
        for _ in 0..9 {
            let next = Repairs::after(repairs.as_ref(), now);
            let until = next.wait(Stage::Content, now).unwrap_or(now);
            waits.push(until.duration_since(now).as_secs() / 60);
            for stage in [Stage::Namespace, Stage::Limits, Stage::Access] {
                let is_short = next.wait(stage, now).is_none_or(|until| until <= now + FIRST_WAIT);
                assert!(is_short, "the repair of a {stage:?} object waits a minute at most");
            }
            (repairs, now) = (Some(next), until);
        }
        assert_eq!(waits, [0, 0, 1, 2, 4, 8, 16, 16, 16]);
        let later = now + SignedDuration::from_hours(2);
        assert_eq!(Repairs::after(repairs.as_ref(), later).count, 1);
        assert_eq!(
            repairs.and_then(|repairs| repairs.wait(Stage::Content, begin)),
            None,
            "a repair dated in the future does not delay"
        );
        let last = Repairs { count: 3, last: begin };
        let (end, after) = (begin + FIRST_WAIT, begin + FIRST_WAIT * 2);
        assert_eq!(last.wait(Stage::Limits, after), None);
        assert_eq!(last.wait_after(begin, Stage::Limits, after), Some(end), "the wait ended during a cycle");
        assert_eq!(last.wait_after(end, Stage::Limits, after), None);
    }
}
