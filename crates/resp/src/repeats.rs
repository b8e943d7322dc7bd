//! Keys that somebody repeats a command on, because others write them in between.
//!
//! Writes of elements by their names, on their quick way, wait for nobody. Whatever is written on the condition that its object is
//! still the same version could repeat for ever beside them. So it marks its keys once it has repeated often, for as long as it does.
//! Writes that begin meanwhile at this server, and whoever comes to lead the [line](crate::companions) of a key, let those pass that
//! repeat, though not for long: what comes between may come from other servers. Then each goes the way that it would have gone.
//!
//! Owns which keys are marked, and since when. What it takes is as much as those who repeat keep of the same keys themselves.
//!
//! Invariant: a key is marked only while somebody repeats; whoever waits for that holds no mark, so nobody waits for one who waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Repeats {
    /// So long after a key was marked others let pass who repeats on it.
    wait_max: Duration,
    keys: Mutex<HashMap<Bytes, Mark>>,
    /// How many are marked.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Mark {
    /// How many repeat on it.
    count: usize,
    /// When the first of them began to.
    since_ns: u64,
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
    pub fn new(wait_max: Duration) -> Self {
        Self { wait_max, keys: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// The keys are distinct.
    pub fn mark(&self, keys: &[Bytes], now_ns: u64) -> Repeating<'_> {
        let mut marks = self.keys.lock();
        for key in keys {
            let mark = Mark { count: 0, since_ns: now_ns, gone: watch::Sender::default() };
            marks.entry(key.clone()).or_insert(mark).count += 1;
        }
        self.count.store(marks.len(), Ordering::Relaxed);
        Repeating { all: self, keys: keys.to_vec() }
    }

    /// Whether others are let pass there. (A write that misses a mark that has just been set is one more that comes between.)
    pub fn is_marked(&self, key: &[u8], now_ns: u64) -> bool {
        self.left(key, now_ns).is_some()
    }

    /// Until nobody repeats on this key, or somebody has for too long.
    pub async fn let_pass(&self, key: &[u8], now_ns: u64) {
        let Some(left) = self.left(key, now_ns) else { return };
        let passed = async {
            while let Some(mut gone) = self.gone(key) {
                while gone.changed().await.is_ok() {}
            }
        };
        let _ = tokio::time::timeout(left, passed).await;
    }

    /// How long others are let pass there still; None: not any more.
    fn left(&self, key: &[u8], now_ns: u64) -> Option<Duration> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let since_ns = self.keys.lock().get(key)?.since_ns;
        let left = self.wait_max.checked_sub(Duration::from_nanos(now_ns.saturating_sub(since_ns)));
        left.filter(|left| !left.is_zero())
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
        let all = Repeats::new(Duration::from_secs(2));
        assert!(!all.is_marked(b"k", 1));
        let (one, other) = (all.mark(&keys(), 1), all.mark(&keys()[..1], 1));
        assert!(all.is_marked(b"k", 1) && all.is_marked(b"l", 1) && !all.is_marked(b"m", 1));
        let mut waits = Box::pin(all.let_pass(b"k", 1));
        drop(one);
        assert!(all.is_marked(b"k", 1) && !all.is_marked(b"l", 1));
        assert!(all.let_pass(b"l", 1).now_or_never().is_some());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(other);
        assert!(!all.is_marked(b"k", 1));
        assert!(waits.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_lets_others_pass_for_ever() {
        let all = Repeats::new(Duration::from_secs(2));
        let _repeats = all.mark(&keys(), 1);
        all.let_pass(b"k", 1).await;
        assert!(all.is_marked(b"k", 1));
    }

    #[tokio::test(start_paused = true)]
    async fn how_long_others_are_let_pass_counts_from_when_the_first_of_them_began_to_repeat() {
        const SECOND: Duration = Duration::from_secs(1);
        let at = |ms: u64| Duration::from_millis(ms).as_nanos() as u64;
        let all = Repeats::new(Duration::from_secs(2));
        let _repeats = all.mark(&keys(), at(0));
        let _more = all.mark(&keys(), at(1900));
        let mut waits = Box::pin(all.let_pass(b"k", at(1500)));
        assert!(waits.as_mut().now_or_never().is_none());
        tokio::time::timeout(SECOND, waits).await.expect("only half a second is left");
        assert!(all.is_marked(b"k", at(1999)) && !all.is_marked(b"k", at(2000)));
        assert!(all.let_pass(b"k", at(3000)).now_or_never().is_some());
    }
}
