//! The schedule, which only sends events to the loop. The configured expressions are in UTC.

use std::time::Duration;

use chrono::DateTime;
use croner::Cron;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::inbox::Event;
use super::now;
use crate::settings::{self, Settings};

/// How often the clock is compared with the schedule. It is short, because a clock may also be set.
const LOOK: Duration = Duration::from_secs(1);

/// Sends the events of the schedule until the handle is dropped.
#[must_use]
pub(super) fn schedule(settings: &Settings, sender: &mpsc::Sender<Event>) -> AbortOnDropHandle<()> {
    let (mut due, sender) = (Due::new(settings.schedule.clone(), now()), sender.clone());
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK).await;
            for event in due.until(now()) {
                match event {
                    // If the loop is busy, a cycle follows anyway.
                    Event::Tick => drop(sender.try_send(Event::Tick)),
                    // If the loop has ended, it needs no event.
                    seldom => drop(sender.send(seldom).await),
                }
            }
        }
    }))
}

/// The expressions with their events. It keeps no time of a next event: if the clock was ahead and is set right, such a
/// time may be years away.
struct Due {
    jobs: [(Cron, fn() -> Event); 3],
    looked: Timestamp,
}

impl Due {
    fn new(schedule: settings::Schedule, now: Timestamp) -> Self {
        let settings::Schedule { cycle, full_read, backup } = schedule;
        let jobs: [(Cron, fn() -> Event); 3] =
            [(cycle, || Event::Tick), (full_read, || Event::FullRead), (backup, || Event::Backup)];
        Self { jobs, looked: now }
    }

    /// Returns the events that became due since the last call.
    fn until(&mut self, now: Timestamp) -> Vec<Event> {
        let since = std::mem::replace(&mut self.looked, now).min(now);
        let due = self.jobs.iter().filter(|(cron, _)| is_due(cron, since, now));
        // Once a day, independent of the configuration, the head of the history is logged.
        let is_next_day = day(since) < day(now);
        due.map(|(_, event)| event()).chain(is_next_day.then_some(Event::Day)).collect()
    }
}

fn day(time: Timestamp) -> i64 {
    time.as_second().div_euclid(86_400)
}

/// Whether the expression matches a time after `since` that is not after `now`.
fn is_due(cron: &Cron, since: Timestamp, now: Timestamp) -> bool {
    let next = DateTime::from_timestamp(since.as_second(), 0).map(|since| cron.find_next_occurrence(&since, false));
    next.is_some_and(|next| next.is_ok_and(|next| next.timestamp() <= now.as_second()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn due(now: &str) -> Due {
        let cron = |text: &str| text.parse::<Cron>().expect("an expression");
        let [cycle, full_read, backup] = ["* * * * *", "30 3 * * *", "0 4 * * *"].map(cron);
        Due::new(settings::Schedule { cycle, full_read, backup }, at(now))
    }

    fn names(events: &[Event]) -> Vec<String> {
        events.iter().map(|event| format!("{event:?}")).collect()
    }

    #[test]
    fn each_event_comes_once_when_its_time_is_reached() {
        let mut due = due("2027-01-01T03:29:58Z");
        assert!(due.until(at("2027-01-01T03:29:59Z")).is_empty());
        assert_eq!(names(&due.until(at("2027-01-01T03:30:00Z"))), ["Tick", "FullRead"]);
        assert!(due.until(at("2027-01-01T03:30:01Z")).is_empty());
        // The host was suspended.
        assert_eq!(names(&due.until(at("2027-01-03T12:00:30Z"))), ["Tick", "FullRead", "Backup", "Day"]);
    }

    #[test]
    fn the_schedule_goes_on_when_the_clock_is_set_back() {
        for ahead in ["2027-01-01T14:00:10Z", "2028-01-01T14:00:10Z"] {
            let mut due = due(ahead);
            assert!(due.until(at("2027-01-01T12:00:15Z")).is_empty());
            assert_eq!(names(&due.until(at("2027-01-01T12:01:00Z"))), ["Tick"]);
            assert_eq!(names(&due.until(at("2027-01-02T04:00:00Z"))), ["Tick", "FullRead", "Backup", "Day"]);
        }
    }
}
