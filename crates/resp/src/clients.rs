//! Who is connected: for `CLIENT LIST` and its kin.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::database::Database;
use tokio::sync::oneshot;

use crate::frame::{Protocol, Reply};

/// Longest name or library name that is kept, in bytes: a client's name is not a place to store data.
const NAME_BYTES_MAX: usize = 256;

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
        let entries: Vec<_> = self.connected.lock().values().cloned().collect();
        entries.iter().map(|entry| self.line(entry, now_ns)).collect()
    }

    pub fn line(&self, entry: &ClientEntry, now_ns: u64) -> String {
        let about = entry.about.lock();
        let peer = entry.peer.map_or_else(String::new, |p| p.to_string());
        let mut line = String::new();
        let _ = writeln!(
            line,
            "id={} addr={peer} laddr={} name={} age={} flags={} db={} sub=0 psub=0 multi=-1 user={} redir=-1 resp={} \
             lib-name={} lib-ver={}",
            entry.id,
            self.local_addr,
            String::from_utf8_lossy(&about.name),
            now_ns.saturating_sub(entry.connected_ns) / 1_000_000_000,
            if entry.waits() { "b" } else { "N" },
            about.database.number(),
            if about.user.is_empty() { "default" } else { &about.user },
            if about.protocol == Protocol::Resp3 { 3 } else { 2 },
            String::from_utf8_lossy(&about.library),
            String::from_utf8_lossy(&about.library_version),
        );
        line
    }
}
