//! Waiting for a condition.

use std::time::{Duration, Instant};

/// Between two looks. Short enough not to be felt, long enough not to keep a core of a small machine busy.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long a test waits for what must come. A busy machine needs minutes for what takes a second by itself, and a failure
/// is tried again after 5, 10, 20 and 40 s. Below the five minutes after which a source is read again anyway.
pub const DEADLINE: Duration = Duration::from_mins(4);

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
