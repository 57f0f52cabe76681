//! Waiting for a condition.

use std::time::{Duration, Instant};

/// Between two looks. Short enough not to be felt, long enough not to keep a core of a small machine busy.
const INTERVAL: Duration = Duration::from_millis(20);

/// Looks at `condition` until it holds (true) or `deadline` has passed (false).
#[must_use]
pub fn poll(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if begun.elapsed() >= deadline {
            return false;
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Waits until `find` finds something.
///
/// # Panics
/// If it does not within `deadline`: with `awaited`.
pub fn wait_for<T>(awaited: &str, deadline: Duration, mut find: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    let done = poll(deadline, || {
        found = find();
        found.is_some()
    });
    assert!(done, "no {awaited} within {deadline:?}");
    found.expect("it was found")
}
