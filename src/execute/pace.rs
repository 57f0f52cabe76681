//! Limits how many requests an API server gets at a time: more while its latency stays low, fewer if it slows down or
//! answers 429. It decides only when a request is sent.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The width at the start. With it, a control plane on 2 cores creates tenants nearly as fast as it can (measured by
/// server-side apply: 20 a second with a width of 8, 26 with 16, 30 with 24), and still answers other clients.
const START: f64 = 16.0;
/// The minimum: one request that hangs must not stop the others.
const LEAST: f64 = 2.0;
/// The maximum: API Priority and Fairness gives a client of the default level hardly more seats, and requests beyond
/// the server's width only wait there.
const MOST: f64 = 32.0;
/// The width grows while the latency is at most this multiple of the best. If twice as many requests at a time only
/// double the latency, the additional requests just wait.
const ROOM: f64 = 1.5;
/// If the latency is more than this multiple of the best, requests are queueing. A single request is answered 2.4 times
/// as fast as each of 8 (2 cores), so up to that factor there is no queue.
const QUEUE: f64 = 3.0;
/// The weight of the newest answer in the smoothed latency; about the last 20 answers count.
const SMOOTHING: f64 = 0.1;
/// The factor by which each answer raises the best latency while the width is at most [`START`], so that a server that
/// became slower for good is not throttled for ever. It doubles in 700 answers. Above [`START`], the best latency
/// stays; otherwise the width would slowly grow to [`MOST`] during a long bootstrap.
const FORGET: f64 = 1.001;
/// The pause after a 429 without `Retry-After`.
const UNSAID_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, even if the server asks for more.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The outcome of a request, as far as the pace needs it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// Any answer, with its latency.
    Answered(Duration),
    /// 429 or 503, with its `Retry-After`.
    Throttled(Option<Duration>),
    /// No answer.
    Lost,
}

/// The number of requests at a time, by additive increase and multiplicative decrease.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Width {
    places: f64,
    smoothed: Option<f64>,
    best: f64,
    /// The number of answers until the latency may shrink the width again: requests in progress do not reflect the last
    /// change yet.
    settle: f64,
}

impl Default for Width {
    fn default() -> Self {
        Self { places: START, smoothed: None, best: f64::INFINITY, settle: 0.0 }
    }
}

impl Width {
    /// Returns the number of requests that may be in progress.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the width is between 2 and 32")]
    pub fn get(&self) -> usize {
        self.places as usize
    }

    /// Takes an outcome into account. If `full` is set, all places were taken. Otherwise, the width limited nothing, so
    /// there is no reason to grow.
    pub fn learn(&mut self, outcome: Outcome, full: bool) {
        match outcome {
            Outcome::Answered(latency) => self.answered(latency.as_secs_f64(), full),
            Outcome::Throttled(_) | Outcome::Lost => self.shrink(0.5),
        }
    }

    fn answered(&mut self, latency: f64, full: bool) {
        let smoothed = self.smoothed.map_or(latency, |before| before + SMOOTHING * (latency - before));
        self.smoothed = Some(smoothed);
        let forget = if self.places <= START { FORGET } else { 1.0 };
        self.best = (self.best * forget).min(smoothed);
        self.settle = (self.settle - 1.0).max(0.0);
        if smoothed > QUEUE * self.best {
            self.shrink(0.9);
        } else if full && smoothed <= ROOM * self.best {
            self.places = (self.places + 1.0 / self.places).min(MOST);
        }
    }

    fn shrink(&mut self, factor: f64) {
        if self.settle == 0.0 {
            self.settle = self.places;
            self.places = (self.places * factor).max(LEAST);
        }
    }
}

/// The pace of one cluster. All requests to it share it.
#[derive(Debug, Default)]
pub struct Pace {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    width: Width,
    under_way: usize,
    paused_until: Option<Instant>,
}

/// A place among the requests in progress.
#[derive(Debug)]
pub struct RequestSlot<'a> {
    pace: &'a Pace,
}

impl Pace {
    /// Waits for a free place, and for the end of a pause that the server asked for.
    #[expect(clippy::disallowed_methods, reason = "waits out a pause")]
    pub async fn enter(&self) -> RequestSlot<'_> {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            let pause = {
                let mut state = self.state.lock();
                let now = Instant::now();
                let pause = state.paused_until.filter(|until| *until > now);
                if pause.is_none() && state.under_way < state.width.get() {
                    state.under_way += 1;
                    return RequestSlot { pace: self };
                }
                pause
            };
            match pause {
                Some(until) => tokio::time::sleep_until(until).await,
                None => freed.await,
            }
        }
    }
}

impl RequestSlot<'_> {
    /// Ends the request and frees its place.
    #[expect(clippy::disallowed_methods, reason = "a pause begins now")]
    pub fn leave(self, outcome: Outcome) {
        let mut state = self.pace.state.lock();
        let full = state.under_way >= state.width.get();
        state.width.learn(outcome, full);
        if let Outcome::Throttled(after) = outcome {
            let until = Instant::now() + after.unwrap_or(UNSAID_PAUSE).min(LONGEST_PAUSE);
            state.paused_until = Some(state.paused_until.map_or(until, |before| before.max(until)));
        }
    }
}

impl Drop for RequestSlot<'_> {
    fn drop(&mut self) {
        self.pace.state.lock().under_way -= 1;
        // Wakes all that wait, because the width may have grown by more than this place.
        self.pace.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn answered(milliseconds: u64) -> Outcome {
        Outcome::Answered(Duration::from_millis(milliseconds))
    }

    fn after(outcomes: impl IntoIterator<Item = Outcome>) -> usize {
        let mut width = Width::default();
        for outcome in outcomes {
            width.learn(outcome, true);
        }
        width.get()
    }

    #[test]
    fn a_fast_server_gets_more_up_to_the_bound() {
        assert_eq!(after([]), 16);
        assert_eq!(after(std::iter::repeat_n(answered(5), 2000)), 32);
    }

    #[test]
    fn a_server_that_slows_down_gets_fewer_down_to_the_bound() {
        let slowing = [answered(5); 100].into_iter().chain([answered(100); 300]);
        let narrow = after(slowing.clone());
        assert!(narrow < 6, "{narrow}");
        assert_eq!(after(slowing.chain([Outcome::Lost; 100])), 2);
    }

    #[test]
    fn one_burst_of_refusals_counts_once() {
        assert_eq!(after([Outcome::Throttled(None); 4]), 8);
    }

    #[test]
    fn an_unused_width_does_not_grow() {
        let mut width = Width::default();
        (0..1000).for_each(|_| width.learn(answered(5), false));
        assert_eq!(width.get(), 16);
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "measures the latency")]
    async fn a_pause_that_the_server_asks_for_is_kept() {
        let pace = Pace::default();
        let began = Instant::now();
        pace.enter().await.leave(Outcome::Throttled(Some(Duration::from_millis(50))));
        pace.enter().await.leave(answered(1));
        assert!(began.elapsed() >= Duration::from_millis(50));
    }

    #[tokio::test]
    async fn no_more_requests_than_the_width_are_in_progress() {
        let pace = Pace::default();
        let mut places = Vec::new();
        for _ in 0..16 {
            places.push(pace.enter().await);
        }
        let one_more = tokio::time::timeout(Duration::from_millis(20), pace.enter()).await;
        assert!(one_more.is_err());
        places.pop();
        let _place = pace.enter().await;
    }
}
