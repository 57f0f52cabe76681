//! Counts the pages of a read, so that a read that hangs can be distinguished from a slow read.
//!
//! Each read has its own thread (see [`fetch`](crate::fetch)), and the counter belongs to that thread. So functions
//! that ask for pages need no counter as a parameter.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static STEPS: RefCell<Option<Arc<AtomicU64>>> = const { RefCell::new(None) };
}

/// Counts the pages that this thread reads until the value is dropped.
pub(super) struct Counting;

impl Counting {
    pub(super) fn into(steps: Option<Arc<AtomicU64>>) -> Self {
        STEPS.with(|current| *current.borrow_mut() = steps);
        Self
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        STEPS.with(|current| *current.borrow_mut() = None);
    }
}

/// Counts a page that has arrived.
pub(super) fn page() {
    STEPS.with(|current| {
        if let Some(steps) = &*current.borrow() {
            steps.fetch_add(1, Ordering::Relaxed);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_while_a_counter_exists() {
        let steps = Arc::new(AtomicU64::new(0));
        page();
        let counting = Counting::into(Some(Arc::clone(&steps)));
        page();
        page();
        drop(counting);
        page();
        assert_eq!(steps.load(Ordering::Relaxed), 2);
    }
}
