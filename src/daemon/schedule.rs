//! The scheduler, which only sends events to the loop. The configured expressions are in UTC.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};

use super::inbox::Event;
use super::{DaemonError, now};
use crate::settings::Settings;

/// How often the wall clock is compared with the monotonic clock.
const LOOK: Duration = Duration::from_secs(10);
/// The time that the wall clock may lose between two comparisons. A time daemon that slows the clock down causes a far
/// smaller difference.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(5);

/// Reports when the clock is set back. The scheduler keeps the absolute time of the next run of each job. If the clock
/// was ahead, nothing would run until that time.
pub(super) async fn watch_clock(sender: mpsc::Sender<Event>) {
    let mut before = (now(), steady());
    loop {
        sleep(LOOK).await;
        let after = (now(), steady());
        if is_set_back(before, after) && sender.send(Event::ClockSetBack).await.is_err() {
            return;
        }
        before = after;
    }
}

fn is_set_back(before: (Timestamp, Instant), after: (Timestamp, Instant)) -> bool {
    let passed = SignedDuration::try_from(after.1.duration_since(before.1)).unwrap_or(SignedDuration::MAX);
    passed - after.0.duration_since(before.0) > TOLERANCE
}

#[expect(clippy::disallowed_methods, reason = "reads the monotonic clock, which nobody can set")]
fn steady() -> Instant {
    Instant::now()
}

/// Once a day, independent of the configuration, the head of the history is logged.
const EACH_DAY: &str = "0 0 * * *";

pub(super) async fn schedule(settings: &Settings, sender: &mpsc::Sender<Event>) -> Result<JobScheduler, DaemonError> {
    let scheduler = JobScheduler::new().await?;
    let schedule = &settings.schedule;
    scheduler.add(job(&schedule.cycle, sender, || Event::Tick)?).await?;
    scheduler.add(job(&schedule.full_read, sender, || Event::FullRead)?).await?;
    scheduler.add(job(&schedule.backup, sender, || Event::Backup)?).await?;
    scheduler.add(job(EACH_DAY, sender, || Event::Day)?).await?;
    scheduler.start().await?;
    Ok(scheduler)
}

fn job(expression: &str, sender: &mpsc::Sender<Event>, event: fn() -> Event) -> Result<Job, JobSchedulerError> {
    let sender = sender.clone();
    // The crate's expressions begin with seconds. The crate fixes a time zone when a job is created, so UTC is used.
    Job::new_async(format!("0 {expression}"), move |_, _| {
        let sender = sender.clone();
        Box::pin(async move {
            match event() {
                // If the loop is busy, a cycle follows anyway.
                Event::Tick => drop(sender.try_send(Event::Tick)),
                // If the loop has ended, it needs no event.
                seldom => drop(sender.send(seldom).await),
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_that_was_set_back_is_reported() {
        let (wall, begun) = (now(), steady());
        let before = (wall, begun);
        let looked = |seconds: i64| (wall + SignedDuration::from_secs(seconds), begun + LOOK);
        for ordinary in [10, 9, 6, 3600, 366 * 86_400] {
            assert!(!is_set_back(before, looked(ordinary)), "{ordinary} s in ten seconds");
        }
        for back in [4, 0, -7200, -366 * 86_400] {
            assert!(is_set_back(before, looked(back)), "{back} s in ten seconds");
        }
    }
}
