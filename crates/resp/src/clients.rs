//! Who is connected: for `CLIENT LIST`, `CLIENT KILL` and their kin.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, Ordering};
use std::task::Waker;

use bytes::Bytes;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use sextant_common::database::Database;
use tokio::sync::oneshot;

use crate::command_table::{COMMANDS, Id};
use crate::frame::{Protocol, Reply};
use crate::subcommands::SUBCOMMANDS;
use crate::who::DEFAULT_USER;

/// Longest name or library name that is kept, in bytes: a client's name is not a place to store data.
const NAME_BYTES_MAX: usize = 256;
/// Instead of the place of a command in the table: there was none.
const NO_COMMAND: u16 = u16::MAX;
/// Instead of a number of commands: no transaction is open.
const NO_TRANSACTION: i64 = -1;

/// Why a command that waits is answered although there is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Nobody takes the answer.
    Gone,
    /// As if its time were over.
    TimedOut,
    /// An operator says so.
    Told,
    Stops,
    /// Too much has come after it.
    Crowded,
}

impl Release {
    pub fn reply(self) -> Reply {
        match self {
            Self::TimedOut => Reply::NilArray,
            Self::Gone => Reply::error("UNBLOCKED the client sends nothing more"),
            Self::Told => Reply::error("UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            Self::Stops => Reply::error(
                "UNBLOCKED force unblock from blocking operation, the server stops: ask another one",
            ),
            Self::Crowded => Reply::error("UNBLOCKED too many bytes have come after a command that waits"),
        }
    }
}

/// One connection, as others see it.
#[derive(Debug)]
pub(crate) struct ClientEntry {
    id: u64,
    peer: Option<SocketAddr>,
    connected_ns: u64,
    is_gone: AtomicBool,
    /// Somebody has ended it.
    is_killed: AtomicBool,
    /// Its task.
    task: AtomicWaker,
    /// When it last sent something.
    heard_ns: AtomicU64,
    /// Its last command: a place in the table, or, behind that, among the subcommands.
    command: AtomicU16,
    /// Commands that wait for `EXEC`.
    queued: AtomicI64,
    /// Where its command waits, if one does.
    waits: Mutex<Option<oneshot::Sender<Release>>>,
    about: Mutex<About>,
}

#[derive(Debug, Default)]
struct About {
    name: Bytes,
    library: Bytes,
    library_version: Bytes,
    /// Empty: the default one.
    user: String,
    protocol: Protocol,
    database: Database,
}

impl ClientEntry {
    /// Unique in this server, and rising.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its connection is broken: nobody takes its replies.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// A command begins to wait: until this says something.
    pub fn wait(&self) -> oneshot::Receiver<Release> {
        let (release, released) = oneshot::channel();
        *self.waits.lock() = Some(release);
        released
    }

    /// Whether one waits.
    pub fn waits(&self) -> bool {
        self.waits.lock().as_ref().is_some_and(|release| !release.is_closed())
    }

    /// Whether one waited.
    pub fn release(&self, why: Release) -> bool {
        self.waits.lock().take().is_some_and(|release| release.send(why).is_ok())
    }

    pub fn leave(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// Its connection is to end. False: that was so before.
    pub fn kill(&self) -> bool {
        let was_killed = self.is_killed.swap(true, Ordering::AcqRel);
        self.task.wake();
        !was_killed
    }

    /// Whether somebody has ended it. If not, `task` is woken then.
    #[inline]
    pub fn is_killed(&self, task: &Waker) -> bool {
        self.task.register(task);
        self.is_killed.load(Ordering::Acquire)
    }

    /// It has sent something.
    #[inline]
    pub fn heard(&self, now_ns: u64) {
        self.heard_ns.store(now_ns, Ordering::Relaxed);
    }

    /// That is its last command, and its place among [`SUBCOMMANDS`], if it has one.
    #[inline]
    pub fn asked(&self, id: Id, subcommand: Option<usize>) {
        let place = subcommand.map_or(id as usize, |at| COMMANDS.len() + at);
        self.command.store(u16::try_from(place).unwrap_or(NO_COMMAND), Ordering::Relaxed);
    }

    /// Its full name.
    fn last_command(&self) -> &'static str {
        let place = usize::from(self.command.load(Ordering::Relaxed));
        match (COMMANDS.get(place), place.checked_sub(COMMANDS.len())) {
            (Some(spec), _) => spec.name,
            (None, at) => at.and_then(|at| SUBCOMMANDS.get(at)).unwrap_or(&"NULL"),
        }
    }

    /// So many commands wait for `EXEC`; None: no transaction is open.
    #[inline]
    pub fn has_queued(&self, commands: Option<usize>) {
        self.queued.store(commands.map_or(NO_TRANSACTION, |n| n as i64), Ordering::Relaxed);
    }

    pub fn user(&self) -> String {
        let about = self.about.lock();
        if about.user.is_empty() { DEFAULT_USER.to_owned() } else { about.user.clone() }
    }

    /// As `CLIENT LIST` says it.
    pub fn addr(&self) -> String {
        self.peer.map_or_else(String::new, |peer| peer.to_string())
    }

    pub fn name(&self) -> Option<Bytes> {
        let name = self.about.lock().name.clone();
        (!name.is_empty()).then_some(name)
    }

    pub fn set_name(&self, name: &[u8]) {
        self.about.lock().name = kept(name);
    }

    pub fn set_library(&self, is_name: bool, value: &[u8]) {
        let mut about = self.about.lock();
        if is_name {
            about.library = kept(value);
        } else {
            about.library_version = kept(value);
        }
    }

    /// None: a Unix socket.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// For logs.
    pub fn peer(&self) -> String {
        self.peer.map_or_else(|| "an unknown address".to_owned(), |peer| peer.to_string())
    }

    pub fn set_user(&self, name: &str) {
        self.about.lock().user = name.to_owned();
    }

    pub fn set_database(&self, database: Database) {
        self.about.lock().database = database;
    }

    pub fn set_protocol(&self, protocol: Protocol) {
        self.about.lock().protocol = protocol;
    }
}

fn kept(text: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&text[..text.len().min(NAME_BYTES_MAX)])
}

/// The connections of a server.
pub(crate) struct Clients {
    next_id: AtomicU64,
    local_addr: SocketAddr,
    connected: Mutex<BTreeMap<u64, Arc<ClientEntry>>>,
}

impl Clients {
    pub fn new(local_addr: SocketAddr) -> Self {
        Self { next_id: AtomicU64::new(1), local_addr, connected: Mutex::default() }
    }

    pub fn add(&self, peer: Option<SocketAddr>, now_ns: u64) -> Arc<ClientEntry> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(ClientEntry {
            id,
            peer,
            connected_ns: now_ns,
            is_gone: AtomicBool::new(false),
            is_killed: AtomicBool::new(false),
            task: AtomicWaker::new(),
            heard_ns: AtomicU64::new(now_ns),
            command: AtomicU16::new(NO_COMMAND),
            queued: AtomicI64::new(NO_TRANSACTION),
            waits: Mutex::default(),
            about: Mutex::default(),
        });
        self.connected.lock().insert(id, entry.clone());
        entry
    }

    pub fn remove(&self, id: u64) {
        self.connected.lock().remove(&id);
    }

    /// Whether a command of this connection waited.
    pub fn release(&self, id: u64, why: Release) -> bool {
        let entry = self.connected.lock().get(&id).cloned();
        entry.is_some_and(|entry| entry.release(why))
    }

    pub fn count(&self) -> usize {
        self.connected.lock().len()
    }

    /// A line for each connection, oldest first.
    pub fn list(&self, now_ns: u64) -> String {
        self.all().iter().map(|entry| self.line(entry, now_ns)).collect()
    }

    /// A line for each of these that is connected, in their order; each once.
    pub fn list_of(&self, ids: &[u64], now_ns: u64) -> String {
        let mut all: BTreeMap<u64, _> = self.all().into_iter().map(|entry| (entry.id, entry)).collect();
        let named = ids.iter().filter_map(|id| all.remove(id));
        named.map(|entry| self.line(&entry, now_ns)).collect()
    }

    /// Oldest first, but for those that are ended.
    pub fn all(&self) -> Vec<Arc<ClientEntry>> {
        let connected = self.connected.lock();
        connected.values().filter(|entry| !entry.is_killed.load(Ordering::Relaxed)).cloned().collect()
    }

    /// Where all of them are connected to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// In the order of Redis 6.2, which some clients go by, and what came later at the end. What the memory of one connection is
    /// is not known: 0.
    pub fn line(&self, entry: &ClientEntry, now_ns: u64) -> String {
        let about = entry.about.lock();
        let seconds_since = |then_ns: u64| now_ns.saturating_sub(then_ns) / 1_000_000_000;
        let queued = entry.queued.load(Ordering::Relaxed);
        let flags = match (entry.waits(), queued) {
            (true, _) => "b",
            (false, NO_TRANSACTION) => "N",
            (false, _) => "x",
        };
        let mut line = String::new();
        let _ = writeln!(
            line,
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={flags} db={} sub=0 psub=0 multi={queued} qbuf=0 \
             qbuf-free=0 argv-mem=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd={} user={} redir=-1 resp={} lib-name={} \
             lib-ver={}",
            entry.id,
            entry.addr(),
            self.local_addr,
            String::from_utf8_lossy(&about.name),
            seconds_since(entry.connected_ns),
            seconds_since(entry.heard_ns.load(Ordering::Relaxed)),
            about.database.number(),
            entry.last_command(),
            if about.user.is_empty() { DEFAULT_USER } else { &about.user },
            if about.protocol == Protocol::Resp3 { 3 } else { 2 },
            String::from_utf8_lossy(&about.library),
            String::from_utf8_lossy(&about.library_version),
        );
        line
    }
}
