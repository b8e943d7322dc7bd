//! Keys that somebody repeats a command on, because others write them in between.
//!
//! Writes of elements by their names, on their quick way, wait for nobody. Whatever is written on the condition that its object is
//! still the same version could repeat for ever beside them. So it marks its keys once it has repeated often, for as long as it does.
//! Writes that begin meanwhile at this server, and whoever comes to lead the [line](crate::companions) of a key, let those pass that
//! repeat, though not for long: what comes between may come from other servers. Then each goes the way that it would have gone.
//!
//! Where some repeat again and again (transactions on one key do that to each other), others wait half of the time at most: after a key
//! was marked they do not wait for as long again.
//!
//! Owns which keys are marked, and since when. What it takes is as much as those who repeat keep of the same keys themselves, for twice
//! as long.
//!
//! Invariant: a key is marked only while somebody repeats; whoever waits for that holds no mark, so nobody waits for one who waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_environment::clock::Clock;
use tokio::sync::watch;

pub(crate) struct Repeats {
    clock: Arc<dyn Clock>,
    /// So long after a key was marked others let pass who repeats on it.
    wait_max: Duration,
    keys: Mutex<Keys>,
    /// How many are marked.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Keys {
    marks: HashMap<Bytes, Mark>,
    /// Until when nobody waits for those that repeat on it then: it was marked long enough.
    rested_until_ns: HashMap<Bytes, u64>,
    /// When there are so many of these, those that are over are forgotten.
    swept_at: usize,
}

/// Fewer are not worth a look.
const SWEPT_MIN: usize = 64;

impl Keys {
    fn unmark(&mut self, key: &Bytes, now_ns: u64) {
        let Some(mark) = self.marks.get_mut(key) else { return };
        mark.count -= 1;
        if mark.count > 0 {
            return;
        }
        let since_ns = mark.since_ns;
        self.marks.remove(key);
        self.rested_until_ns.insert(key.clone(), now_ns.saturating_add(now_ns.saturating_sub(since_ns)));
        if self.rested_until_ns.len() >= self.swept_at.max(SWEPT_MIN) {
            self.rested_until_ns.retain(|_, until_ns| *until_ns > now_ns);
            self.swept_at = 2 * self.rested_until_ns.len();
        }
    }
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
pub(crate) struct Repeating<'r> {
    all: &'r Repeats,
    keys: Vec<Bytes>,
}

impl Repeats {
    pub fn new(clock: Arc<dyn Clock>, wait_max: Duration) -> Self {
        Self { clock, wait_max, keys: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// The keys are distinct.
    pub fn mark(&self, keys: &[Bytes]) -> Repeating<'_> {
        let now_ns = self.clock.holder_ns();
        let mut all = self.keys.lock();
        for key in keys {
            let mark = Mark { count: 0, since_ns: now_ns, gone: watch::Sender::default() };
            all.marks.entry(key.clone()).or_insert(mark).count += 1;
        }
        self.count.store(all.marks.len(), Ordering::Relaxed);
        Repeating { all: self, keys: keys.to_vec() }
    }

    /// Whether others are let pass there. (A write that misses a mark that has just been set is one more that comes between.)
    pub fn is_marked(&self, key: &[u8]) -> bool {
        self.left(key).is_some()
    }

    /// Until nobody repeats on this key, or somebody has for too long.
    pub async fn let_pass(&self, key: &[u8]) {
        let Some((left, mut gone)) = self.left(key) else { return };
        let passed = async { while gone.changed().await.is_ok() {} };
        // (Whoever repeats on it from then on has come later.)
        let _ = tokio::time::timeout(left, passed).await;
    }

    /// How long others are let pass there still, and until what; None: not any more.
    fn left(&self, key: &[u8]) -> Option<(Duration, watch::Receiver<()>)> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let now_ns = self.clock.holder_ns();
        let all = self.keys.lock();
        let mark = all.marks.get(key)?;
        if all.rested_until_ns.get(key).is_some_and(|until_ns| now_ns < *until_ns) {
            return None;
        }
        let since = Duration::from_nanos(now_ns.saturating_sub(mark.since_ns));
        let left = self.wait_max.checked_sub(since).filter(|left| !left.is_zero())?;
        Some((left, mark.gone.subscribe()))
    }
}

impl Drop for Repeating<'_> {
    fn drop(&mut self) {
        let now_ns = self.all.clock.holder_ns();
        let mut all = self.all.keys.lock();
        self.keys.iter().for_each(|key| all.unmark(key, now_ns));
        self.all.count.store(all.marks.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use futures::FutureExt;

    use super::*;
    use crate::companions::tests::Said;

    fn repeats() -> (Repeats, impl Fn(u64)) {
        let clock = Arc::new(Said(AtomicU64::new(1)));
        let all = Repeats::new(clock.clone(), Duration::from_secs(2));
        (all, move |ms| clock.0.store(ms, Ordering::Relaxed))
    }

    fn keys() -> [Bytes; 2] {
        [Bytes::from_static(b"k"), Bytes::from_static(b"l")]
    }

    #[tokio::test]
    async fn a_key_is_marked_until_the_last_one_who_repeats_on_it_is_through() {
        let (all, _) = repeats();
        assert!(!all.is_marked(b"k"));
        let (one, other) = (all.mark(&keys()), all.mark(&keys()[..1]));
        assert!(all.is_marked(b"k") && all.is_marked(b"l") && !all.is_marked(b"m"));
        let mut waits = Box::pin(all.let_pass(b"k"));
        assert!(waits.as_mut().now_or_never().is_none());
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
        let (all, _) = repeats();
        let _repeats = all.mark(&keys());
        all.let_pass(b"k").await;
        assert!(all.is_marked(b"k"));
    }

    #[tokio::test(start_paused = true)]
    async fn how_long_others_are_let_pass_counts_from_when_the_first_of_them_began_to_repeat() {
        let (all, at_ms) = repeats();
        at_ms(0);
        let _repeats = all.mark(&keys());
        at_ms(1900);
        let _more = all.mark(&keys());
        at_ms(1500);
        let mut waits = Box::pin(all.let_pass(b"k"));
        assert!(waits.as_mut().now_or_never().is_none());
        tokio::time::timeout(Duration::from_secs(1), waits).await.expect("only half a second is left");
        at_ms(1999);
        assert!(all.is_marked(b"k"));
        at_ms(2000);
        assert!(!all.is_marked(b"k"));
        assert!(all.let_pass(b"k").now_or_never().is_some());
    }

    #[test]
    fn after_a_key_was_marked_nobody_waits_for_as_long_again() {
        let (all, at_ms) = repeats();
        at_ms(1000);
        let repeats = all.mark(&keys());
        at_ms(1500);
        drop(repeats);
        let _again = all.mark(&keys());
        at_ms(1999);
        assert!(!all.is_marked(b"k"));
        at_ms(2000);
        assert!(all.is_marked(b"k"));
    }

    #[test]
    fn keys_that_have_rested_are_forgotten() {
        let (all, at_ms) = repeats();
        for at in 0..10_000 {
            at_ms(2 * at);
            let repeats = all.mark(&[Bytes::from(at.to_string())]);
            at_ms(2 * at + 1);
            drop(repeats);
        }
        assert!(all.keys.lock().rested_until_ns.len() <= SWEPT_MIN);
    }
}
