//! What connections share: all of a server, and those that have selected one database.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use sextant_access::{Allowances, Desk};
use sextant_common::database::Database;
use sextant_environment::Env;
use sextant_environment::room::Room;
use sextant_environment::slow_log::{Done, SlowLog, Tier, Trace};

use crate::clients::{ClientEntry, Clients};
use crate::command::KeysTurns;
use crate::command_table::{COMMANDS, Id};
use crate::companions::Companions;
use crate::config::RespConfig;
use crate::connection::Turns;
use crate::cursors::Cursors;
use crate::element_turns::ElementTurns;
use crate::hints::Hints;
use crate::metrics::Metrics;
use crate::queued::QueuedRoom;
use crate::remembered::Remembered;
use crate::repeats::Repeats;
use crate::replies::Replies;
use crate::store::Store;
use crate::waiters::Waiters;

/// By all connections of a server.
pub(crate) struct Server {
    pub env: Env,
    pub config: RespConfig,
    pub metrics: Arc<Metrics>,
    pub clients: Clients,
    pub local_addr: SocketAddr,
    pub started_ns: u64,
    /// Keys of pipelines are hashed with it, so that clients cannot aim at collisions.
    pub key_seed: u64,
    /// For long requests.
    pub large: Room,
    /// For what is read ahead of clients that read nothing.
    pub ahead: Room,
    /// For commands that wait for `EXEC`, and watched keys.
    pub queued: QueuedRoom,
    /// For what commands on several records or elements read and make.
    pub gathering: Room,
    /// For elements that are asked for.
    pub elements: ElementTurns,
    pub waiters: Waiters,
    pub turns: Turns,
    pub cursors: Arc<Cursors>,
    pub keys_turns: Arc<KeysTurns>,
    pub replies: Replies,
    pub remembered: Remembered,
    pub slow: SlowLog,
    pub allowances: Arc<Allowances>,
    /// None: everybody may do everything.
    pub access: Option<Arc<Desk>>,
}

/// By those connections that have selected this database: a key is another one in each.
pub(crate) struct Shared<S> {
    server: Arc<Server>,
    pub database: Database,
    pub store: S,
    pub companions: Companions,
    pub repeats: Repeats,
    pub hints: Hints,
}

/// Of all databases, by their numbers.
pub(crate) type Databases<S> = Arc<[Arc<Shared<S>>]>;

impl<S> Deref for Shared<S> {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl<S: Store> Shared<S> {
    /// `store`: of the first one.
    pub fn databases(server: Server, store: &S) -> Databases<S> {
        let (server, hints) = (Arc::new(server), Hints::default());
        let shared = |database| Self {
            database,
            store: store.database(database),
            companions: Companions::new(server.env.clock.clone(), server.config.patience.in_line),
            repeats: Repeats::new(server.env.clock.clone(), server.config.patience.let_pass),
            hints: hints.of(database),
            server: server.clone(),
        };
        Database::all().map(|database| Arc::new(shared(database))).collect()
    }
}

impl Server {
    pub fn now_ns(&self) -> u64 {
        self.env.clock.holder_ns()
    }

    /// How long ago that was.
    pub fn since(&self, then_ns: u64) -> u64 {
        self.now_ns().saturating_sub(then_ns)
    }

    /// A command is done that had to wait.
    pub fn took(
        &self,
        id: Id,
        since_ns: u64,
        key: Option<Bytes>,
        client: &ClientEntry,
        trace: Option<&Trace>,
    ) {
        let took_ns = self.since(since_ns);
        self.metrics.took(Some(id)).observe_ns(took_ns);
        if self.slow.is_slow(took_ns) {
            self.slow.note(done(id, took_ns, key, client), trace);
        }
    }

    /// The same of a set, which has waited for the leader, and for nobody else, for so long.
    pub fn set_took(&self, took_ns: u64, leader_ns: u64, key: Bytes, client: &ClientEntry) {
        self.metrics.took(Some(Id::Set)).observe_ns(took_ns);
        if self.slow.is_slow(took_ns) {
            let trace = Trace::of(Tier::Memtables, leader_ns);
            self.slow.note(done(Id::Set, took_ns, Some(key), client), Some(&trace));
        }
    }
}

/// For the slow log.
fn done(id: Id, took_ns: u64, key: Option<Bytes>, client: &ClientEntry) -> Done<'static> {
    let request = Some(format!("of connection {}", client.id()));
    Done { operation: COMMANDS[id as usize].name, client: client.peer(), request, key, took_ns }
}
