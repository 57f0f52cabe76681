//! Limits the memory of bodies. All memory of a body is reserved before it is read, so bodies that are being read never
//! wait for each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

/// The deadline of a body: as long as the API server waits for the answer.
pub(super) const BODY_WITHIN: Duration = Duration::from_secs(5);

/// The time in which a body that lost its place frees its memory. Its task drops it as soon as it runs next.
const DROPPED_WITHIN: Duration = Duration::from_millis(100);

/// The memory for bodies of one kind.
#[derive(Debug)]
pub(super) struct Room {
    /// The free memory in KiB.
    free: Semaphore,
    /// After this time, a body that arrives too slowly to meet its deadline can lose its place to another.
    patience: Duration,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The waiting bodies, in the order of their arrival.
    places: BTreeMap<u64, Waits>,
    next: u64,
}

#[derive(Debug)]
struct Waits {
    kibibytes: usize,
    since: Instant,
    /// The bytes that have arrived; `None` if the body waits for something else.
    came: Option<Arc<AtomicUsize>>,
    yields: CancellationToken,
}

/// The reserved memory of one body, until this value is dropped.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    room: &'a Room,
    number: u64,
    since: Instant,
    permit: SemaphorePermit<'a>,
}

#[expect(clippy::disallowed_methods, reason = "measures how long a body takes to come")]
fn now() -> Instant {
    Instant::now()
}

impl Waits {
    /// Whether the body may lose its place. Age alone does not decide: if many bodies arrive, all of them are slow, and
    /// if the oldest always lost, none would ever be complete.
    fn is_slow(&self, patience: Duration, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.since);
        let is_late = self.came.as_ref().is_none_or(|came| {
            let came = came.load(Ordering::Relaxed) as u128;
            came * BODY_WITHIN.as_micros() < (self.kibibytes as u128 * 1024) * elapsed.as_micros()
        });
        elapsed >= patience && is_late
    }
}

impl Room {
    pub(super) fn new(bytes: usize, patience: Duration) -> Self {
        Self { free: Semaphore::new(bytes / 1024), patience, waiting: Mutex::default() }
    }

    /// Reserves memory for `bytes` at once. If there is not enough, slow bodies lose theirs, the oldest first. Returns
    /// `None` if all memory is in use.
    pub(super) async fn reserve(&self, bytes: usize) -> Option<Reservation<'_>> {
        let kibibytes = bytes.div_ceil(1024).max(1);
        let count = u32::try_from(kibibytes).ok()?;
        let permit = match self.free.try_acquire_many(count) {
            Ok(permit) => permit,
            Err(_) if self.make_way(kibibytes, now()) => {
                tokio::time::timeout(DROPPED_WITHIN, self.free.acquire_many(count)).await.ok()?.ok()?
            }
            Err(_) => return None,
        };
        let mut waiting = self.waiting.lock();
        let number = waiting.next;
        waiting.next += 1;
        Some(Reservation { room: self, number, since: now(), permit })
    }

    /// Takes away as many places as needed, or none if all slow bodies together would not free enough memory.
    fn make_way(&self, kibibytes: usize, now: Instant) -> bool {
        let mut waiting = self.waiting.lock();
        let mut missing = kibibytes.saturating_sub(self.free.available_permits());
        let mut yielding = Vec::new();
        for (number, place) in &waiting.places {
            if missing > 0 && place.is_slow(self.patience, now) {
                missing = missing.saturating_sub(place.kibibytes);
                yielding.push(*number);
            }
        }
        if missing > 0 {
            return false;
        }
        for number in yielding {
            if let Some(place) = waiting.places.remove(&number) {
                place.yields.cancel();
            }
        }
        true
    }
}

impl Reservation<'_> {
    /// Waits for `future`. Returns `None` if another body took the place meanwhile.
    pub(super) async fn wait<F: Future>(&self, future: F) -> Option<F::Output> {
        self.wait_for(None, future).await
    }

    /// Like [`Self::wait`], for the body itself. `read` counts the bytes that have arrived.
    pub(super) async fn come<F: Future>(&self, read: impl FnOnce(Arc<AtomicUsize>) -> F) -> Option<F::Output> {
        let came = Arc::new(AtomicUsize::new(0));
        self.wait_for(Some(Arc::clone(&came)), read(came)).await
    }

    async fn wait_for<F: Future>(&self, came: Option<Arc<AtomicUsize>>, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        // Most bodies arrive together with their headers.
        if let Poll::Ready(value) = futures::poll!(&mut future) {
            return Some(value);
        }
        let yields = CancellationToken::new();
        let waits = Waits { kibibytes: self.permit.num_permits(), since: self.since, came, yields: yields.clone() };
        self.room.waiting.lock().places.insert(self.number, waits);
        tokio::select! {
            biased;
            value = future => {
                self.room.waiting.lock().places.remove(&self.number);
                Some(value)
            }
            () = yields.cancelled() => None,
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.room.waiting.lock().places.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Reserves `bytes` for a body that never arrives. Returns whether the body lost its place.
    fn slow(room: &Arc<Room>, bytes: usize) -> tokio::task::JoinHandle<bool> {
        let room = Arc::clone(room);
        tokio::spawn(async move {
            let Some(place) = room.reserve(bytes).await else { return false };
            place.wait(std::future::pending::<()>()).await.is_none()
        })
    }

    #[tokio::test]
    async fn a_body_that_does_not_fit_is_refused_at_once() {
        let room = Room::new(4 * MIB, Duration::ZERO);
        let first = room.reserve(3 * MIB).await.expect("there is enough memory");
        assert!(room.reserve(2 * MIB).await.is_none());
        assert!(room.reserve(MIB).await.is_some());
        drop(first);
        assert!(room.reserve(4 * MIB).await.is_some());
        assert!(room.reserve(4 * MIB + 1).await.is_none());
    }

    #[tokio::test]
    async fn the_oldest_bodies_lose_their_places_but_only_if_that_suffices() {
        let room = Arc::new(Room::new(4 * MIB, Duration::ZERO));
        let first = slow(&room, 2 * MIB);
        tokio::task::yield_now().await;
        let second = slow(&room, 2 * MIB);
        tokio::task::yield_now().await;
        let place = room.reserve(MIB).await.expect("the first body loses its place");
        assert!(first.await.expect("the task does not panic"));
        assert!(room.reserve(4 * MIB).await.is_none() && !second.is_finished());
        assert_eq!(place.wait(async { 7 }).await, Some(7));
        second.abort();
        let _ = second.await;
        drop(place);
        assert!(room.waiting.lock().places.is_empty());
        assert_eq!(room.free.available_permits(), 4 * 1024);
    }

    #[tokio::test]
    async fn a_body_loses_its_place_only_if_it_is_slow_for_long_enough() {
        let patience = Duration::from_secs(1);
        let room = Arc::new(Room::new(4 * MIB, patience));
        let came = Arc::new(AtomicUsize::new(0));
        let first = tokio::spawn({
            let (room, came) = (Arc::clone(&room), Arc::clone(&came));
            async move {
                let place = room.reserve(4 * MIB).await.expect("there is enough memory");
                let read = |counted: Arc<AtomicUsize>| async move {
                    counted.store(MIB, Ordering::Relaxed);
                    came.store(1, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                };
                place.come(read).await.is_none()
            }
        });
        while came.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        // A quarter of the body arrived, which is fast enough for a quarter of the time.
        let (now, part) = (super::now(), BODY_WITHIN / 4);
        assert!(!room.make_way(1024, now) && !room.make_way(1024, now + part.mul_f64(0.9)));
        assert!(room.make_way(1024, now + part.mul_f64(1.1)));
        assert!(first.await.expect("the task does not panic"));
        let waits = slow(&room, MIB);
        tokio::task::yield_now().await;
        let at = super::now();
        assert!(!room.make_way(4 * 1024, at + patience / 2) && room.make_way(4 * 1024, at + patience));
        assert!(waits.await.expect("the task does not panic"));
    }
}
