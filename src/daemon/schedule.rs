//! The scheduler, which only sends events to the loop. The configured expressions are in UTC.

use tokio::sync::mpsc;
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};

use super::DaemonError;
use super::inbox::Event;
use crate::settings::Settings;

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
    // The crate's expressions begin with seconds. It fixes a time zone when a job is created, so UTC is used.
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
