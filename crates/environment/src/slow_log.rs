//! What clients waited for too long, and where the time went.
//!
//! A front end runs an operation within [`traced`]; whoever below asks another tier does it within [`asking`], which adds the time to
//! the operation's [`Trace`], if there is one. What took longer than the log's threshold is kept (the last so many), counted, and
//! told in the log of the process (target `slow`): at most so many a second, because what is slow seldom comes alone.
//!
//! Keys are shown, shortened; values never.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::task::futures::TaskLocalFuture;

use crate::clock::Clock;

/// Operations that are kept.
pub const KEPT_MAX: usize = 128;
/// Lines a second in the log of the process.
const LINES_A_SECOND: u32 = 10;
/// Of a key, in bytes.
const KEY_BYTES_MAX: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// What an operation may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Memtables,
    Sstables,
    /// Before it tries again.
    Pause,
}

impl Tier {
    const ALL: [Tier; 3] = [Tier::Memtables, Tier::Sstables, Tier::Pause];

    fn name(self) -> &'static str {
        match self {
            Tier::Memtables => "memtables",
            Tier::Sstables => "sstables",
            Tier::Pause => "pause",
        }
    }
}

tokio::task_local! {
    static TRACE: Trace;
}

/// Where the time of one operation goes. A tier that is asked for several things at once is waited for once.
#[derive(Debug, Default)]
pub struct Trace {
    waits: [Wait; Tier::ALL.len()],
    about: RefCell<Option<Bytes>>,
}

#[derive(Debug, Default)]
struct Wait {
    asked: Cell<u32>,
    /// Requests that are not answered yet, and since when there have been some.
    open: Cell<u32>,
    since_ns: Cell<u64>,
    waited_ns: Cell<u64>,
}

impl Wait {
    fn begin(&self, now_ns: u64) {
        if self.open.get() == 0 {
            self.since_ns.set(now_ns);
        }
        self.open.set(self.open.get() + 1);
        self.asked.set(self.asked.get().saturating_add(1));
    }

    /// What is not answered yet has been waited for until now.
    fn until(&self, now_ns: u64) -> u64 {
        let open_ns = if self.open.get() > 0 { now_ns.saturating_sub(self.since_ns.get()) } else { 0 };
        self.waited_ns.get().saturating_add(open_ns)
    }

    fn end(&self, now_ns: u64) {
        self.open.set(self.open.get().saturating_sub(1));
        if self.open.get() == 0 {
            let waited_ns = now_ns.saturating_sub(self.since_ns.get());
            self.waited_ns.set(self.waited_ns.get() + waited_ns);
        }
    }
}

impl Trace {
    /// Of an operation that waited for one tier all the time.
    pub fn of(tier: Tier, took_ns: u64) -> Self {
        let trace = Self::default();
        trace.waits[tier as usize].begin(0);
        trace.waits[tier as usize].end(took_ns);
        trace
    }
}

/// Runs an operation with a trace of its own, which is taken from it when it is done.
pub fn traced<F: Future>(operation: F) -> TaskLocalFuture<Trace, F> {
    TRACE.scope(Trace::default(), operation)
}

/// Waits for a tier: adds to the trace of the operation that this is a part of.
pub async fn asking<F: Future>(tier: Tier, clock: &dyn Clock, answer: F) -> F::Output {
    let begun = TRACE.try_with(|trace| trace.waits[tier as usize].begin(clock.holder_ns()));
    let _asked = begun.is_ok().then_some(Asked { tier, clock });
    answer.await
}

/// Ends a wait, answered or given up.
struct Asked<'a> {
    tier: Tier,
    clock: &'a dyn Clock,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let _ = TRACE.try_with(|trace| trace.waits[self.tier as usize].end(self.clock.holder_ns()));
    }
}

/// Tells the trace which key the operation is about: the first, if there are several.
pub fn about(key: &Bytes) {
    let _ = TRACE.try_with(|trace| trace.about.borrow_mut().get_or_insert_with(|| key.clone()).len());
}

/// An operation that is done.
#[derive(Debug)]
pub struct Done<'a> {
    /// A command's or a method's name.
    pub operation: &'a str,
    /// Who waited: an address.
    pub client: String,
    /// What the client calls its request, if it says so.
    pub request: Option<String>,
    pub key: Option<Bytes>,
    pub took_ns: u64,
}

/// A slow operation.
#[derive(Clone, Debug)]
pub struct Slow {
    /// Rising from 0.
    pub id: u64,
    /// When it ended, by the machine's clock: seconds since 1970.
    pub at_unix_s: u64,
    pub took_ns: u64,
    pub operation: String,
    pub client: String,
    pub request: Option<String>,
    pub key: Option<Bytes>,
    /// As text: `memtables 120.5 ms (2), pause 30.0 ms (1), itself 1.0 ms`.
    pub time_went: String,
}

/// See the module's head. Cheap to clone: clones are the same log.
#[derive(Clone)]
pub struct SlowLog(Arc<Log>);

struct Log {
    clock: Arc<dyn Clock>,
    /// None: nothing is slow.
    threshold_ns: Option<u64>,
    count: Counter,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    next_id: u64,
    slow: VecDeque<Slow>,
    second: u64,
    lines: u32,
    unsaid: u64,
}

impl SlowLog {
    /// `threshold_ms` 0: nothing is slow.
    pub fn new(clock: Arc<dyn Clock>, threshold_ms: u64, registry: &mut Registry) -> Self {
        let count = Counter::default();
        let help = "Operations of clients that took longer than the slow log's threshold";
        registry.register("sextant_slow_operations", help, count.clone());
        let threshold_ns = (threshold_ms > 0).then(|| threshold_ms.saturating_mul(1_000_000));
        Self(Arc::new(Log { clock, threshold_ns, count, kept: Mutex::default() }))
    }

    /// One that finds nothing slow, for servers that have none.
    pub fn off(clock: Arc<dyn Clock>) -> Self {
        Self::new(clock, 0, &mut Registry::default())
    }

    /// From how long on an operation is slow; None: nothing is.
    pub fn threshold_ns(&self) -> Option<u64> {
        self.0.threshold_ns
    }

    #[inline]
    pub fn is_slow(&self, took_ns: u64) -> bool {
        self.0.threshold_ns.is_some_and(|threshold_ns| took_ns >= threshold_ns)
    }

    /// Keeps an operation that [is slow](SlowLog::is_slow), and tells of it.
    pub fn note(&self, done: Done<'_>, trace: Option<&Trace>) {
        self.0.count.inc();
        let key = done.key.or_else(|| trace.and_then(|trace| trace.about.borrow().clone()));
        let now_ns = self.0.clock.holder_ns();
        let slow = Slow {
            id: 0,
            at_unix_s: self.0.clock.wall_guess_ns() / SECOND_NS,
            took_ns: done.took_ns,
            operation: done.operation.to_owned(),
            client: done.client,
            request: done.request,
            key: key.map(|key| Bytes::copy_from_slice(&key[..key.len().min(KEY_BYTES_MAX)])),
            time_went: time_went(done.took_ns, now_ns, trace),
        };
        let said = self.0.kept.lock().keep(slow, now_ns / SECOND_NS);
        if let Some((line, unsaid)) = said {
            tracing::warn!(target: "slow", unsaid, "{line}");
        }
    }

    /// The last so many, the newest first.
    pub fn latest(&self, count: usize) -> Vec<Slow> {
        self.0.kept.lock().slow.iter().rev().take(count).cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.0.kept.lock().slow.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets what is kept.
    pub fn clear(&self) {
        self.0.kept.lock().slow.clear();
    }
}

impl Kept {
    /// What is to be said, and how many were not since the last time.
    fn keep(&mut self, mut slow: Slow, second: u64) -> Option<(String, u64)> {
        slow.id = self.next_id;
        self.next_id += 1;
        if self.second != second {
            (self.second, self.lines) = (second, 0);
        }
        self.lines = self.lines.saturating_add(1);
        let said = match self.lines <= LINES_A_SECOND {
            true => Some((slow.to_string(), std::mem::take(&mut self.unsaid))),
            false => {
                self.unsaid += 1;
                None
            }
        };
        if self.slow.len() == KEPT_MAX {
            self.slow.pop_front();
        }
        self.slow.push_back(slow);
        said
    }
}

/// What no tier was waited for is the p-node's own, and the time that it had no turn.
fn time_went(took_ns: u64, now_ns: u64, trace: Option<&Trace>) -> String {
    let mut text = String::new();
    let mut itself_ns = took_ns;
    for tier in Tier::ALL {
        let Some(wait) = trace.map(|trace| &trace.waits[tier as usize]) else { continue };
        if wait.asked.get() > 0 {
            let waited_ns = wait.until(now_ns);
            itself_ns = itself_ns.saturating_sub(waited_ns);
            text += &format!("{} {} ({}), ", tier.name(), Ms(waited_ns), wait.asked.get());
        }
    }
    text + &format!("itself {}", Ms(itself_ns))
}

/// Nanoseconds, shown in milliseconds.
struct Ms(u64);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.0 as f64 / 1e6)
    }
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} took {}: {}; client {}",
            self.operation,
            Ms(self.took_ns),
            self.time_went,
            self.client
        )?;
        if let Some(request) = &self.request {
            write!(f, ", request {request:?}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ", key \"{}\"", key.escape_ascii())?;
        }
        Ok(())
    }
}

impl fmt::Debug for SlowLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlowLog({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Env;

    fn done(took_ns: u64) -> Done<'static> {
        Done { operation: "get", client: "c".into(), request: None, key: None, took_ns }
    }

    #[test]
    fn waits_that_overlap_count_once() {
        let wait = Wait::default();
        wait.begin(10);
        wait.begin(20);
        wait.end(30);
        wait.end(50);
        wait.begin(100);
        wait.end(101);
        assert_eq!((wait.asked.get(), wait.waited_ns.get()), (3, 41));
    }

    #[test]
    fn time_went_to_tiers_and_to_the_p_node_itself() {
        let trace = Trace::default();
        trace.waits[Tier::Memtables as usize].begin(0);
        trace.waits[Tier::Memtables as usize].end(120_000_000);
        trace.waits[Tier::Pause as usize].begin(120_000_000);
        trace.waits[Tier::Pause as usize].end(150_000_000);
        let went = time_went(151_000_000, 0, Some(&trace));
        assert_eq!(went, "memtables 120.0 ms (1), pause 30.0 ms (1), itself 1.0 ms");
        assert_eq!(time_went(5_000_000, 0, None), "itself 5.0 ms");
        trace.waits[Tier::Sstables as usize].begin(150_000_000);
        let given_up = time_went(152_000_000, 152_000_000, Some(&trace));
        assert!(given_up.contains("sstables 2.0 ms (1)"), "{given_up}");
    }

    #[test]
    fn only_so_much_is_kept_and_the_threshold_may_be_off() {
        let clock = Env::real().clock;
        let log = SlowLog::new(clock.clone(), 10, &mut Registry::default());
        assert!(log.is_slow(10_000_000) && !log.is_slow(9_999_999));
        assert!(!SlowLog::off(clock).is_slow(u64::MAX));
        for took_ns in 0..200 {
            log.note(done(took_ns), None);
        }
        assert_eq!(log.len(), KEPT_MAX);
        assert_eq!(log.latest(2).iter().map(|slow| slow.id).collect::<Vec<_>>(), [199, 198]);
        log.clear();
        assert!(log.is_empty());
    }

    #[test]
    fn a_second_has_so_many_lines_and_the_next_says_how_many_were_left_out() {
        let mut kept = Kept::default();
        let slow = || Slow {
            id: 0,
            at_unix_s: 0,
            took_ns: 1,
            operation: "get".into(),
            client: "c".into(),
            request: None,
            key: None,
            time_went: String::new(),
        };
        let said = (0..LINES_A_SECOND + 5).filter_map(|_| kept.keep(slow(), 7)).count();
        assert_eq!(said, LINES_A_SECOND as usize);
        assert_eq!(kept.keep(slow(), 8).map(|(_, unsaid)| unsaid), Some(5));
    }

    #[tokio::test]
    async fn what_is_asked_outside_of_a_trace_is_asked_all_the_same() {
        let clock = Env::real().clock;
        assert_eq!(asking(Tier::Sstables, &*clock, async { 7 }).await, 7);
        about(&Bytes::from_static(b"k"));
    }
}
