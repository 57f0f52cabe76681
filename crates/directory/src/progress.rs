//! How far a read is: each page is a step, so that one that hangs can be told from one that is long.
//!
//! A read has a thread of its own (see [`fetch`](crate::fetch)), and its counter is that thread's: whatever asks for pages says
//! so without being handed a counter through every function.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static STEPS: RefCell<Option<Arc<AtomicU64>>> = const { RefCell::new(None) };
}

/// Counts the pages of this thread's reads in `steps` until it is dropped.
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

/// A page has come.
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
    fn pages_are_counted_while_somebody_counts() {
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
