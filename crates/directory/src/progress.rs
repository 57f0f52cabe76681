//! Counts the pages and entries of a read, so that a read that hangs can be distinguished from a slow read.
//!
//! Each read has its own thread (see [`fetch`](crate::fetch)), and the counters belong to that thread. So functions that
//! ask for pages need no counters as a parameter.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of a read.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Pages that arrived.
    pub steps: Option<Arc<AtomicU64>>,
    /// Entries in these pages.
    pub entries: Option<Arc<AtomicU64>>,
}

thread_local! {
    static COUNTERS: RefCell<Counters> = const { RefCell::new(Counters { steps: None, entries: None }) };
}

/// Counts what this thread reads until the value is dropped.
pub(super) struct Counting;

impl Counting {
    pub(super) fn into(counters: Counters) -> Self {
        COUNTERS.with(|current| *current.borrow_mut() = counters);
        Self
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        COUNTERS.with(|current| *current.borrow_mut() = Counters::default());
    }
}

/// Counts a page with this many entries that has arrived.
pub(super) fn page(entries: usize) {
    COUNTERS.with(|current| {
        let Counters { steps, entries: all } = &*current.borrow();
        for (counter, more) in [(steps, 1), (all, entries as u64)] {
            if let Some(counter) = counter {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_while_counters_exist() {
        let (steps, entries) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        page(10);
        let counters = Counters { steps: Some(Arc::clone(&steps)), entries: Some(Arc::clone(&entries)) };
        let counting = Counting::into(counters);
        page(10);
        page(3);
        drop(counting);
        page(10);
        assert_eq!((steps.load(Ordering::Relaxed), entries.load(Ordering::Relaxed)), (2, 13));
    }
}
