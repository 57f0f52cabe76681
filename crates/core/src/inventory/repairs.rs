//! Repairs of one object that somebody changes again and again, and how long the next one waits.

use jiff::{SignedDuration, Timestamp};

/// Repairs of an object that followed each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repairs {
    /// How many.
    pub count: u32,
    /// When the last one was.
    pub last: Timestamp,
}

/// Repairs that wait for nothing: a person who edits an object twice is no program that fights for it.
const AT_ONCE: u32 = 3;
/// How long the next one waits; twice as long after each more.
const FIRST_WAIT: SignedDuration = SignedDuration::from_mins(1);
/// The longest wait. What takes access away waits [`FIRST_WAIT`] at most.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(16);
/// An object that was left alone for so long is fought for no more.
const OVER: SignedDuration = SignedDuration::from_hours(1);

impl Repairs {
    /// One more, after those `before`.
    #[must_use]
    pub fn after(before: Option<&Self>, now: Timestamp) -> Self {
        let count = before.filter(|before| !before.is_over(now)).map_or(0, |before| before.count);
        Self { count: count.saturating_add(1), last: now }
    }

    /// Nobody changed the object for long. A repair of the future was made by a clock that was wrong.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        let gap = now.duration_since(self.last);
        gap.is_negative() || gap > OVER
    }

    /// Until when the next one waits; `None`: it does not.
    #[must_use]
    pub fn wait(&self, narrows: bool, now: Timestamp) -> Option<Timestamp> {
        let more = self.count.checked_sub(AT_ONCE)?;
        let longest = if narrows { FIRST_WAIT } else { LONGEST_WAIT };
        let wait = FIRST_WAIT.checked_mul(2_i32.saturating_pow(more.min(8))).unwrap_or(longest).min(longest);
        let next = self.last.saturating_add(wait).ok()?;
        (!self.is_over(now) && next > now).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_wait_longer_each_time_until_the_object_is_left_alone() {
        let begin: Timestamp = "2026-05-03T12:00:00Z".parse().expect("a time");
        let (mut repairs, mut now, mut waits) = (None, begin, Vec::new());
        for _ in 0..9 {
            let next = Repairs::after(repairs.as_ref(), now);
            let until = next.wait(false, now).unwrap_or(now);
            waits.push(until.duration_since(now).as_secs() / 60);
            assert!(next.wait(true, now).is_none_or(|until| until <= now + FIRST_WAIT), "access does not wait");
            (repairs, now) = (Some(next), until);
        }
        assert_eq!(waits, [0, 0, 1, 2, 4, 8, 16, 16, 16]);
        let later = now + SignedDuration::from_hours(2);
        assert_eq!(Repairs::after(repairs.as_ref(), later).count, 1);
        assert_eq!(repairs.and_then(|repairs| repairs.wait(false, begin)), None, "of a clock that was wrong");
    }
}
