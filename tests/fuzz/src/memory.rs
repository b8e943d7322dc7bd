//! An allocator that counts what the present thread holds, so that a target can bound what an input makes a decoder take.
//!
//! Linked into everything that links this crate. Frees on another thread than the allocation's are missed: targets run on
//! one thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes that this thread holds, and the most that it held since the last reset.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(change: isize) {
    // During a thread's end there is nothing to count any more.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        let now = now + change;
        held.set((now, most.max(now)));
    });
}

// SAFETY: everything is passed on to the system's allocator; counting touches no memory of the caller's and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // While it is copied both are there.
        count(new_size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// The most bytes that this thread held at once during `work`, beyond what it held before; and the result.
pub fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.with(|held| {
        let (now, _) = held.get();
        held.set((now, now));
        now
    });
    let result = work();
    let most = HELD.with(|held| held.get().1);
    ((most - before).max(0) as usize, result)
}

/// Runs `work` and checks that it held at most `base + per_byte * input` bytes at once.
///
/// # Panics
/// If it held more.
pub fn bounded<T>(input: usize, base: usize, per_byte: usize, work: impl FnOnce() -> T) -> T {
    let (most, result) = peak(work);
    let allowed = base + per_byte * input;
    assert!(most <= allowed, "{input} bytes of input made it hold {most} bytes: {allowed} are justified");
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_counts_what_is_held_at_once() {
        let (most, ()) = peak(|| {
            for _ in 0..10 {
                std::hint::black_box(vec![0u8; 1000]);
            }
        });
        assert!((1000..2000).contains(&most), "{most}");
        bounded(10, 0, 100, || drop(std::hint::black_box(vec![1u8; 1000])));
    }

    #[test]
    #[should_panic(expected = "justified")]
    fn an_allocation_that_the_input_does_not_justify_is_noticed() {
        bounded(10, 0, 100, || drop(std::hint::black_box(vec![1u8; 1001])));
    }
}
