//! Waits for conditions.

use std::time::{Duration, Instant};

/// The interval between two checks. It adds little delay, and leaves a small machine time for other work.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long a test waits for an expected result. A busy machine can need minutes for what usually takes a second, and
/// failures are retried after 5, 10, 20 and 40 s. The deadline is shorter than five minutes, after which every source
/// is read again: a test must not pass only because of that read.
pub const DEADLINE: Duration = Duration::from_mins(4);

/// Checks `condition` until it holds, then returns true. Returns false after `deadline`.
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

/// Waits until `find` returns a value.
pub fn wait_for<T>(awaited: &str, deadline: Duration, mut find: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    let done = poll(deadline, || {
        found = find();
        found.is_some()
    });
    assert!(done, "no {awaited} within {deadline:?}");
    found.expect("the value was found")
}
