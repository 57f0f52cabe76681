//! Reports to the ledger what was done: changes, events, and failures with the time of their next try. It writes
//! nothing itself; the receiver stores each record and confirms it.

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot};

use super::StepError;
use crate::ledger::change::{Change, Event};
use crate::ledger::{Failure, LAST_REMOVAL_RETRY, LAST_RETRY, OVERWRITTEN};

/// The number of records that may wait to be stored. Each writer waits for its own record anyway.
const WAITING: usize = 64;

/// The wait after the first failure. A conflict or a restart is normally over by then.
const FIRST_RETRY: SignedDuration = SignedDuration::from_secs(5);
/// The longest wait for a file that another program is writing: kubectl needs only milliseconds.
const IN_USE_RETRY: SignedDuration = SignedDuration::from_secs(30);
/// The number of tries with that wait, which is about ten minutes. Each try takes a worker of the export for seconds,
/// so a person who keeps the files of many tools locked would otherwise occupy all workers.
const IN_USE_TRIES: u64 = 20;
/// The wait after these tries.
const LAST_IN_USE_RETRY: SignedDuration = SignedDuration::from_mins(5);

/// What one transaction stores.
#[derive(Debug)]
pub struct Record {
    /// Changes of the state.
    pub changes: Vec<Change>,
    /// Events of the history.
    pub events: Vec<Event>,
    /// Confirms that the record is stored. If this sender is dropped instead, the record is not stored, and nothing
    /// more may be done.
    pub stored: oneshot::Sender<()>,
}

/// The sending end, which the writers use.
#[derive(Debug, Clone)]
pub struct Recorder(mpsc::Sender<Record>);

impl Recorder {
    /// Returns a recorder and its receiver. The receiver may take several records at a time
    /// ([`mpsc::Receiver::recv_many`]) and store them in one transaction.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<Record>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    /// Sends a record, and waits until it is stored.
    pub async fn store(&self, changes: Vec<Change>, events: Vec<Event>) -> Result<(), StepError> {
        if changes.is_empty() && events.is_empty() {
            return Ok(());
        }
        let (stored, told) = oneshot::channel();
        let record = Record { changes, events, stored };
        self.0.send(record).await.map_err(|_| StepError::NotRecorded)?;
        told.await.map_err(|_| StepError::NotRecorded)
    }
}

/// Returns the failure of `step` for the ledger. The attempts of the same step are added up.
#[must_use]
pub fn failure(step: &str, error: &StepError, before: Option<&Failure>, now: Timestamp) -> Failure {
    if matches!(error, StepError::Overwritten { .. }) {
        return Failure::overwritten(error.reason(), before, now);
    }
    // Otherwise an owner could end the count of overwritten deliveries by making one delivery fail.
    let is_counting = step == "home" && before.is_some_and(Failure::is_of_overwritten);
    let step = if is_counting { OVERWRITTEN } else { step };
    if error.is_under_way() {
        let (since, next_try) = (before.map_or(now, |before| before.since), now.saturating_add(FIRST_RETRY));
        let next_try = next_try.unwrap_or(Timestamp::MAX);
        return Failure { step: step.to_owned(), reason: error.reason(), since, attempts: 0, next_try };
    }
    let before_it = before.filter(|before| before.step == step).map_or(0, |before| before.attempts);
    // Nothing was tried. The step is tried again as soon as the signer is asked again.
    let is_tried = !matches!(error, StepError::SignerNotAsked(_));
    let attempts = if is_tried { before_it + 1 } else { before_it.max(1) };
    // If somebody works in the file all day, the delivery must not wait for an hour.
    let longest = match error {
        error if error.is_in_use() => {
            if attempts <= IN_USE_TRIES {
                IN_USE_RETRY
            } else {
                LAST_IN_USE_RETRY
            }
        }
        StepError::SignerNotAsked(_) => FIRST_RETRY,
        _ => LAST_RETRY,
    };
    let wait = retry_after(attempts).min(longest);
    Failure {
        step: step.to_owned(),
        reason: error.reason(),
        since: before.map_or(now, |before| before.since),
        attempts,
        next_try: now.saturating_add(wait).unwrap_or(Timestamp::MAX),
    }
}

/// Returns the failure of a step that takes access away. It has its own, short backoff.
#[must_use]
pub fn removal_failure(step: &str, error: &StepError, before: Option<&Failure>, now: Timestamp) -> Failure {
    let before = before.filter(|before| before.is_of_removal());
    let attempts = before.map_or(0, |before| before.attempts) + 1;
    Failure {
        step: step.to_owned(),
        reason: error.reason(),
        since: before.map_or(now, |before| before.since),
        attempts,
        next_try: now.saturating_add(retry_after(attempts).min(LAST_REMOVAL_RETRY)).unwrap_or(Timestamp::MAX),
    }
}

/// Returns the wait before the next attempt: 5 s, 10 s, 20 s, … up to one hour.
#[must_use]
pub fn retry_after(attempts: u64) -> SignedDuration {
    // 5 s × 2^10 is more than an hour.
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(10);
    (FIRST_RETRY * 2_i32.pow(doublings)).min(LAST_RETRY)
}

#[cfg(test)]
mod tests {
    use bursar_homed::client::HomedClientError;
    use bursar_protocol::HomeError;

    use super::*;

    #[test]
    fn a_delivery_that_fails_does_not_end_the_count_of_overwritten_ones() {
        let now = Timestamp::UNIX_EPOCH;
        let undone = || StepError::Overwritten { file: "/home/ann/.kube/config".into() };
        let in_use = || {
            let error = HomeError::InUse { path: "/home/ann/.kube/config".into(), why: "locked".to_owned() };
            StepError::Home(HomedClientError::Home(error))
        };
        let mut before: Option<Failure> = None;
        for error in [undone(), undone(), in_use(), undone()] {
            before = Some(failure(error.step(), &error, before.as_ref(), now));
        }
        let last = before.expect("the ledger has this failure");
        assert_eq!((last.attempts, last.next_try.duration_since(now).as_mins()), (3, 4), "{last:?}");
        assert!(last.is_of_overwritten() && last.reason.contains("out of /home/ann/.kube/config"), "{last:?}");
    }

    #[test]
    fn waits_double_from_five_seconds_to_an_hour() {
        let seconds: Vec<i64> = [0, 1, 2, 3, 10, 11, 12, 1_000_000, u64::MAX]
            .into_iter()
            .map(|attempts| retry_after(attempts).as_secs())
            .collect();
        assert_eq!(seconds, [5, 5, 10, 20, 2560, 3600, 3600, 3600, 3600]);
    }

    #[test]
    fn a_failure_that_lasts_keeps_its_beginning() {
        let at = |second| Timestamp::from_second(second).expect("the second is a valid time");
        let first = failure("home", &StepError::HomeAnswer, None, at(100));
        let second = failure("home", &StepError::HomeAnswer, Some(&first), at(105));
        assert_eq!((second.attempts, second.since, second.next_try), (2, at(100), at(115)));
        assert_eq!(second.step, "home");
    }

    #[tokio::test]
    async fn a_record_that_is_not_stored_is_an_error() {
        let (recorder, mut receiver) = Recorder::channel();
        let store = tokio::spawn(async move {
            let first = receiver.recv().await.expect("a record is sent");
            first.stored.send(()).expect("the writer waits");
            drop(receiver.recv().await);
        });
        recorder.store(vec![Change::LastGeneration(1)], Vec::new()).await.expect("the record is stored");
        let refused = recorder.store(vec![Change::LastGeneration(2)], Vec::new()).await;
        assert!(matches!(refused, Err(StepError::NotRecorded)));
        store.await.expect("the task does not panic");
    }

    /// A user who locks the file after every test write must not make the cluster sign a certificate every 30 s.
    #[test]
    fn a_file_in_use_is_retried_soon_only_if_nothing_was_issued() {
        let in_use =
            || HomedClientError::Home(HomeError::InUse { path: "/home/a/.kube/config".into(), why: "x".into() });
        let now = Timestamp::UNIX_EPOCH;
        let after = |attempts: u64, error: &StepError| {
            let before = Failure { attempts, ..failure("home", error, None, now) };
            failure("home", error, Some(&before), now).next_try.duration_since(now)
        };
        assert_eq!(after(IN_USE_TRIES - 1, &StepError::Home(in_use())), IN_USE_RETRY);
        // Files that stay locked must not take the workers of the export from other homes.
        assert_eq!(after(IN_USE_TRIES, &StepError::Home(in_use())), LAST_IN_USE_RETRY);
        assert_eq!(after(20, &StepError::Undelivered(in_use())), LAST_RETRY);
    }
}
