//! Keys that somebody repeats a command on, because others write them in between.
//!
//! Writes of elements by their names, on their quick way, wait for nobody. Whatever is written on the condition that its object is
//! still the same version could repeat for ever beside them. So it marks its keys once it has repeated often, for as long as it does.
//! Writes that begin meanwhile at this server stand in the [line](crate::companions) of their key, and whoever comes to lead there lets
//! those pass that repeat, though not for ever.
//!
//! Owns which keys are marked. What it takes is as much as those who repeat keep of the same keys themselves.
//!
//! Invariant: a key is marked only while somebody repeats; whoever waits for that holds no mark, so nobody waits for one who waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Whoever leads a line lets others pass for so long: less than those behind it wait, and far longer than a batch takes that nobody
/// comes between.
const WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Repeats {
    keys: Mutex<HashMap<Bytes, Mark>>,
    /// How many are marked.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Mark {
    /// How many repeat on it.
    count: usize,
    /// Closed when nobody does any more.
    gone: watch::Sender<()>,
}

/// Marks its keys until it is dropped.
#[derive(Debug)]
pub(crate) struct Repeating<'r> {
    all: &'r Repeats,
    keys: Vec<Bytes>,
}

impl Repeats {
    /// The keys are distinct.
    pub fn mark(&self, keys: &[Bytes]) -> Repeating<'_> {
        let mut marks = self.keys.lock();
        for key in keys {
            marks.entry(key.clone()).or_default().count += 1;
        }
        self.count.store(marks.len(), Ordering::Relaxed);
        Repeating { all: self, keys: keys.to_vec() }
    }

    /// (A write that misses a mark that has just been set is one more that comes between.)
    pub fn is_marked(&self, key: &[u8]) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.keys.lock().contains_key(key)
    }

    /// Until nobody repeats on this key, or it has taken too long.
    pub async fn let_pass(&self, key: &[u8]) {
        if !self.is_marked(key) {
            return;
        }
        let passed = async {
            while let Some(mut gone) = self.gone(key) {
                while gone.changed().await.is_ok() {}
            }
        };
        let _ = tokio::time::timeout(WAIT_MAX, passed).await;
    }

    fn gone(&self, key: &[u8]) -> Option<watch::Receiver<()>> {
        self.keys.lock().get(key).map(|mark| mark.gone.subscribe())
    }
}

impl Drop for Repeating<'_> {
    fn drop(&mut self) {
        let mut marks = self.all.keys.lock();
        for key in &self.keys {
            let Some(mark) = marks.get_mut(key) else { continue };
            mark.count -= 1;
            if mark.count == 0 {
                marks.remove(key);
            }
        }
        self.all.count.store(marks.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn keys() -> [Bytes; 2] {
        [Bytes::from_static(b"k"), Bytes::from_static(b"l")]
    }

    #[tokio::test]
    async fn a_key_is_marked_until_the_last_one_who_repeats_on_it_is_through() {
        let all = Repeats::default();
        assert!(!all.is_marked(b"k"));
        let (one, other) = (all.mark(&keys()), all.mark(&keys()[..1]));
        assert!(all.is_marked(b"k") && all.is_marked(b"l") && !all.is_marked(b"m"));
        let mut waits = Box::pin(all.let_pass(b"k"));
        drop(one);
        assert!(all.is_marked(b"k") && !all.is_marked(b"l"));
        assert!(all.let_pass(b"l").now_or_never().is_some());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(other);
        assert!(!all.is_marked(b"k"));
        assert!(waits.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_lets_others_pass_for_ever() {
        let all = Repeats::default();
        let _repeats = all.mark(&keys());
        all.let_pass(b"k").await;
        assert!(all.is_marked(b"k"));
    }
}
