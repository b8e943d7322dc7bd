//! Writing histories down while they happen.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use sextant_environment::clock::SharedClock;

use crate::objects::{Command, ObjectLine, Reply};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    Get,
    Put(&'a str),
    Insert(&'a str),
    Delete,
    /// `None`: no record.
    Cas {
        expected: Option<&'a str>,
        new: Option<&'a str>,
    },
    /// A put that tells what it met.
    Swap(&'a str),
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned<'a> {
    /// Of a get.
    Value(Option<&'a str>),
    /// Of a put, or of a delete that does not tell whether there was a record.
    Done,
    /// Of a swap: what it met. (Of one that cannot tell any more: `Done`.)
    Met(Option<&'a str>),
    /// Of an insert or a cas: whether it took effect; of a delete: whether there was a record.
    Applied(bool),
}

/// Writes a history as JSON lines. Thread-safe. Times are the monotonic time of a clock: the same one for all operations, and
/// in a simulation the true one.
pub struct Recorder {
    clock: SharedClock,
    sink: Mutex<Sink>,
    /// Of a history in memory: the writes that are under way, as lines of unknown outcome.
    open: Option<Open>,
}

#[derive(Clone, Default)]
struct Open(Arc<Mutex<OpenWrites>>);

#[derive(Default)]
struct OpenWrites {
    next: u64,
    lines: BTreeMap<u64, Vec<u8>>,
}

struct Sink {
    out: Box<dyn Write + Send>,
    /// The first failure; nothing is written after it.
    failed: Option<io::Error>,
    /// One line, while it is made.
    line: Vec<u8>,
}

/// An operation that has been called. Dropped without a word, its outcome is unknown.
#[must_use = "dropping it at once records an unknown outcome"]
pub struct Pending<'r> {
    recorder: &'r Recorder,
    client: u64,
    key: String,
    op: &'static str,
    a: Option<String>,
    b: Option<String>,
    call: u64,
    recorded: bool,
    /// Its number among the open ones.
    open: Option<u64>,
}

/// Commands on a group of objects that have been sent. Dropped without a word, their outcome is unknown.
#[must_use = "dropping it at once records an unknown outcome"]
pub struct PendingCommands<'r> {
    recorder: &'r Recorder,
    line: ObjectLine,
    recorded: bool,
    open: Option<u64>,
}

#[derive(Serialize)]
struct Line<'a> {
    client: u64,
    key: &'a str,
    op: &'a str,
    a: Option<&'a str>,
    b: Option<&'a str>,
    out: Option<&'a str>,
    call: u64,
    ret: Option<u64>,
    version: Option<u64>,
}

#[derive(Serialize)]
struct Fault<'a> {
    fault: &'a str,
    at: u64,
}

/// A history that is kept in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Recorder {
    /// Lines go to `out`, which should be buffered.
    pub fn new(clock: SharedClock, out: impl Write + Send + 'static) -> Self {
        let sink = Sink { out: Box::new(out), failed: None, line: Vec::new() };
        Self { clock, sink: Mutex::new(sink), open: None }
    }

    /// Lines are kept in memory; the second result returns those so far. Writes that are under way then are among them, with
    /// unknown outcomes: so the history may be cut at any moment.
    pub fn in_memory(clock: SharedClock) -> (Self, impl Fn() -> Vec<u8> + Send + Sync + 'static) {
        let memory = Memory::default();
        let reader = memory.clone();
        let open = Open::default();
        let recorder = Self { open: Some(open.clone()), ..Self::new(clock, memory) };
        let lines = move || {
            let mut lines = reader.0.lock().clone();
            open.0.lock().lines.values().for_each(|line| lines.extend_from_slice(line));
            lines
        };
        (recorder, lines)
    }

    /// To be called right before the request is sent.
    pub fn call(&self, client: u64, key: &str, call: Call<'_>) -> Pending<'_> {
        let (op, a, b) = match call {
            Call::Get => ("get", None, None),
            Call::Put(value) => ("put", Some(value), None),
            Call::Insert(value) => ("insert", Some(value), None),
            Call::Delete => ("delete", None, None),
            Call::Cas { expected, new } => ("cas", expected, new),
            Call::Swap(value) => ("swap", Some(value), None),
        };
        let mut pending = Pending {
            recorder: self,
            client,
            key: key.to_owned(),
            op,
            a: a.map(str::to_owned),
            b: b.map(str::to_owned),
            recorded: false,
            call: self.clock.holder_ns(),
            open: None,
        };
        pending.open = self
            .open
            .as_ref()
            .filter(|_| op != "get")
            .map(|open| open.insert(&pending.line(None, None, None)));
        pending
    }

    /// The same for commands on a group of objects that take effect together. `met`: replies of the first of them that are known, if they take
    /// effect (a transaction goes by what it has read).
    pub fn call_commands(
        &self,
        client: u64,
        group: &str,
        commands: Vec<Command>,
        met: Vec<Reply>,
    ) -> PendingCommands<'_> {
        let call = self.clock.holder_ns();
        let line = ObjectLine { client, group: group.to_owned(), commands, replies: met, call, ret: None };
        let open = self.open.as_ref().map(|open| open.insert(&line));
        PendingCommands { recorder: self, line, recorded: false, open }
    }

    /// Notes a fault, for whoever reads the history.
    pub fn fault(&self, what: &str) {
        let at = self.clock.holder_ns();
        self.write(&Fault { fault: what, at });
    }

    /// Flushes.
    ///
    /// # Errors
    /// The first failure to write since the start: the history is then incomplete.
    pub fn finish(&self) -> io::Result<()> {
        let mut sink = self.sink.lock();
        match sink.failed.take() {
            Some(error) => Err(error),
            None => sink.out.flush(),
        }
    }

    fn write(&self, line: &impl Serialize) {
        let mut sink = self.sink.lock();
        let Sink { out, failed, line: buffer } = &mut *sink;
        if failed.is_some() {
            return;
        }
        buffer.clear();
        let written = serde_json::to_writer(&mut *buffer, line).map_err(io::Error::from).and_then(|()| {
            buffer.push(b'\n');
            out.write_all(buffer)
        });
        *failed = written.err();
    }
}

impl Pending<'_> {
    /// To be called right after the answer has arrived. `version`: of what was written, or of what was seen.
    pub fn returned(self, outcome: Returned<'_>, version: Option<u64>) {
        let ret = self.recorder.clock.holder_ns();
        self.returned_at(ret, outcome, version);
    }

    /// The same for an answer that arrived at `ret`, of which something was learned later.
    pub fn returned_at(mut self, ret: u64, outcome: Returned<'_>, version: Option<u64>) {
        let word = |yes: bool, words: (&'static str, &'static str)| Some(if yes { words.0 } else { words.1 });
        let out = match (outcome, self.op) {
            (Returned::Value(value), _) => value,
            (Returned::Done, _) => None,
            (Returned::Met(met), _) => {
                self.b = met.map(str::to_owned);
                Some("met")
            }
            (Returned::Applied(yes), "insert") => word(yes, ("ok", "exists")),
            (Returned::Applied(yes), "delete") => word(yes, ("existed", "absent")),
            (Returned::Applied(yes), _) => word(yes, ("ok", "failed")),
        };
        self.record(out, Some(ret), version);
    }

    /// It may or may not have been executed. The same as dropping it.
    pub fn unknown(self) {}

    /// It certainly was not executed and never will be: it leaves no trace.
    pub fn not_executed(mut self) {
        self.close();
    }

    fn close(&mut self) {
        self.recorded = true;
        if let (Some(open), Some(number)) = (&self.recorder.open, self.open) {
            open.0.lock().lines.remove(&number);
        }
    }

    fn line<'l>(&'l self, out: Option<&'l str>, ret: Option<u64>, version: Option<u64>) -> Line<'l> {
        Line {
            client: self.client,
            key: &self.key,
            op: self.op,
            a: self.a.as_deref(),
            b: self.b.as_deref(),
            out,
            call: self.call,
            ret,
            version,
        }
    }

    fn record(&mut self, out: Option<&str>, ret: Option<u64>, version: Option<u64>) {
        self.recorder.write(&self.line(out, ret, version));
        self.close();
    }
}

impl PendingCommands<'_> {
    /// To be called right after the answer has arrived: the replies of all commands.
    pub fn returned(mut self, replies: Vec<Reply>) {
        self.line.ret = Some(self.recorder.clock.holder_ns());
        self.line.replies = replies;
        self.record();
    }

    /// They may or may not have been executed. The same as dropping it.
    pub fn unknown(self) {}

    /// They certainly were not executed and never will be: they leave no trace.
    pub fn not_executed(mut self) {
        self.close();
    }

    fn close(&mut self) {
        self.recorded = true;
        if let (Some(open), Some(number)) = (&self.recorder.open, self.open) {
            open.0.lock().lines.remove(&number);
        }
    }

    fn record(&mut self) {
        self.recorder.write(&self.line);
        self.close();
    }
}

impl Drop for PendingCommands<'_> {
    fn drop(&mut self) {
        if !self.recorded {
            self.record();
        }
    }
}

impl Open {
    fn insert(&self, line: &impl Serialize) -> u64 {
        let mut writes = self.0.lock();
        writes.next += 1;
        let number = writes.next;
        // A line of strings and numbers can be written.
        let mut line = serde_json::to_vec(line).unwrap_or_default();
        line.push(b'\n');
        writes.lines.insert(number, line);
        number
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.recorded {
            self.record(None, None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sextant_simulated::ManualClock;

    use super::*;
    use crate::{Options, check_reader};

    #[test]
    fn a_history_in_memory_can_be_cut_at_any_moment() {
        let clock = Arc::new(ManualClock::default());
        let (recorder, lines) = Recorder::in_memory(clock);
        let put = recorder.call(1, "k", Call::Put("x"));
        let refused = recorder.call(2, "k", Call::Delete);
        let get = recorder.call(3, "k", Call::Get);
        refused.not_executed();
        get.returned(Returned::Value(Some("x")), None);
        let cut = check_reader(&lines()[..], &Options::default()).unwrap();
        assert_eq!(
            (cut.operations, cut.unknown, cut.violations),
            (2, 1, 0),
            "the put was seen before it returned"
        );
        put.returned(Returned::Done, Some(1));
        let whole = check_reader(&lines()[..], &Options::default()).unwrap();
        assert_eq!((whole.operations, whole.unknown), (2, 0));
    }

    #[test]
    fn what_is_recorded_is_read_back() {
        let clock = Arc::new(ManualClock::default());
        let (recorder, lines) = Recorder::in_memory(clock.clone());
        let tick = || clock.advance(Duration::from_nanos(5));
        let put = recorder.call(1, "k", Call::Put("x\"\n"));
        tick();
        put.returned(Returned::Done, Some(3));
        tick();
        recorder.call(2, "k", Call::Get).returned(Returned::Value(Some("x\"\n")), Some(3));
        recorder.call(2, "k", Call::Insert("y")).returned(Returned::Applied(false), None);
        recorder
            .call(2, "k", Call::Cas { expected: None, new: Some("y") })
            .returned(Returned::Applied(false), None);
        recorder.fault("kill 2");
        drop(recorder.call(3, "k", Call::Delete));
        recorder.call(3, "k", Call::Delete).unknown();
        recorder.call(3, "k", Call::Put("never")).not_executed();
        recorder.call(4, "k", Call::Delete).returned(Returned::Applied(true), Some(4));
        recorder.finish().unwrap();
        let text = String::from_utf8(lines()).unwrap();
        let first = text.lines().next().unwrap();
        assert_eq!(
            first,
            r#"{"client":1,"key":"k","op":"put","a":"x\"\n","b":null,"out":null,"call":1000000000000000,"ret":1000000000000005,"version":3}"#
        );
        let report = check_reader(text.as_bytes(), &Options::default()).unwrap();
        assert!(report.passed(), "{report}");
        assert_eq!((report.operations, report.unknown, report.notes), (7, 2, 1));
        assert!(!text.contains("never"));
    }

    #[test]
    fn a_failed_write_is_reported_once_at_the_end() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let recorder = Recorder::new(Arc::new(ManualClock::default()), Full);
        recorder.call(1, "k", Call::Get).returned(Returned::Value(None), None);
        assert_eq!(recorder.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
