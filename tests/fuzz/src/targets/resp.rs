use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use sextant_common::Result;
use sextant_common::database::Database;
use sextant_common::expiry::Tick;
use sextant_common::ids::Seq;
use sextant_common::object::ELEMENTS_TABLE;
use sextant_common::operation::{Change, Lane, Operation, Put, Record, WriteOutcome};
use sextant_environment::rng::SeededRng;
use sextant_environment::{Env, env};
use sextant_resp::frame::{Parser, ProtocolError};
use sextant_resp::{
    ElementPage, ElementRange, Look, Named, Position, RespConfig, SetCondition, Store, Walk, fuzzing,
};
use sextant_simulated::FaultyVfs;
use sextant_simulated::ManualClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::input::Input;
use crate::memory::bounded;

/// The least that a configuration may allow, so that the limit is in reach.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// How many sizes of pieces an input begins with.
const PIECES: usize = 4;

type Commands = Vec<Vec<Vec<u8>>>;

/// The input's first bytes say how the rest is cut: sizes of pieces, used in turn (0: all that is left).
fn pieces(data: &[u8]) -> (&[u8], Vec<&[u8]>) {
    let mut input = Input::new(data);
    let sizes: Vec<usize> = (0..PIECES).map(|_| usize::from(input.u8())).collect();
    let all = input.rest();
    let mut pieces = Vec::new();
    for size in sizes.iter().cycle() {
        if input.is_empty() {
            break;
        }
        pieces.push(input.take(if *size == 0 { usize::MAX } else { *size }));
    }
    (all, pieces)
}

fn parse<'d>(pieces: impl IntoIterator<Item = &'d [u8]>) -> (Commands, Option<ProtocolError>, usize) {
    let mut parser = Parser::new(REQUEST_BYTES_MAX);
    let mut input = BytesMut::new();
    let mut commands = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            match parser.parse(&mut input) {
                Ok(true) => {
                    let seen: Vec<_> = (0..parser.len()).map(|i| parser.arg(&input, i).to_vec()).collect();
                    let taken: Vec<_> =
                        parser.take(&mut input, |c| c.bytes_from(0).map(|b| b.to_vec()).collect());
                    assert_eq!(seen, taken);
                    assert!(!taken.is_empty(), "a command has a name");
                    commands.push(taken);
                }
                Ok(false) => {
                    assert!(parser.missing(&input) > 0);
                    break;
                }
                Err(e) => {
                    let message = e.message();
                    assert!(
                        message.starts_with(b"ERR Protocol error") || message.starts_with(b"ERR request")
                    );
                    return (commands, Some(e), 0);
                }
            }
        }
    }
    (commands, None, input.len())
}

fn encode(commands: &Commands) -> Vec<u8> {
    let mut out = Vec::new();
    for args in commands {
        out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
        for arg in args {
            out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            out.extend_from_slice(arg);
            out.extend_from_slice(b"\r\n");
        }
    }
    out
}

/// Sizes of pieces, then requests.
pub fn frames(data: &[u8]) {
    let (all, pieces) = pieces(data);
    // Every argument costs a few bytes of bookkeeping here and in the parser.
    let whole = bounded(all.len(), 8192, 200, || parse([all]));
    assert_eq!(parse(pieces), whole, "in pieces");
    assert_eq!(parse(all.chunks(1)), whole, "byte by byte");
    let (commands, _, _) = whole;
    let (again, error, left) = parse([&encode(&commands)[..]]);
    assert_eq!((again, error, left), (commands, None, 0), "encoded and parsed again");
}

/// In milliseconds since 1970.
const NOW_MS: u64 = 1_700_000_000_000;

#[derive(Clone, Default)]
struct Data {
    data: Arc<Mutex<BTreeMap<Bytes, Record>>>,
    elements: Arc<Mutex<BTreeMap<Bytes, Record>>>,
}

/// Maps that answer at once.
#[derive(Clone, Default)]
struct Map {
    /// By number.
    databases: [Data; Database::COUNT],
    /// The one that is selected.
    database: Database,
    /// Whether reads are answered on the fast path.
    fast: bool,
}

impl Map {
    fn selected(&self) -> &Data {
        &self.databases[usize::from(self.database.number())]
    }

    fn data(&self) -> MutexGuard<'_, BTreeMap<Bytes, Record>> {
        self.selected().data.lock()
    }

    fn elements_of(&self) -> MutexGuard<'_, BTreeMap<Bytes, Record>> {
        self.selected().elements.lock()
    }
}

impl Store for Map {
    type Missed = ();

    fn database(&self, database: Database) -> Self {
        Self { database, ..self.clone() }
    }

    fn open(&self, _: bool) -> impl Future<Output = Result<bool>> + Send + 'static {
        tokio::task::yield_now().map(|()| Ok(true))
    }

    async fn databases(&self) -> Result<Vec<Database>> {
        Ok(Database::all().collect())
    }

    fn look(&self, key: &[u8]) -> Look<()> {
        if self.fast { Look::Known(Ok(self.data().get(key).cloned())) } else { Look::Missed(()) }
    }

    fn look_element(&self, key: &[u8]) -> Option<Result<Option<Record>>> {
        self.fast.then(|| Ok(self.elements_of().get(key).cloned()))
    }

    async fn get(&self, key: Bytes, (): ()) -> Result<Option<Record>> {
        Ok(self.data().get(&key).cloned())
    }

    async fn multi_get(&self, keys: Vec<Bytes>, (): ()) -> Result<Vec<Option<Record>>> {
        let data = self.data();
        Ok(keys.iter().map(|key| data.get(key).cloned()).collect())
    }

    async fn set(&self, put: Put, condition: SetCondition, lane: Lane) -> Result<bool> {
        let Put { key, value, lifetime } = put;
        let put = Operation::put("", key, value).lasting(lifetime).only_if(condition.into());
        Ok(self.execute(vec![put], lane).await?.applied)
    }

    async fn multi_set(&self, pairs: Vec<(Bytes, Bytes)>, _: Lane) -> Result<()> {
        for (key, value) in pairs {
            self.execute(vec![Operation::put("", key, value)], Lane::Single).await?;
        }
        Ok(())
    }

    async fn delete(&self, keys: Vec<Bytes>, _: Lane) -> Result<u64> {
        tokio::task::yield_now().await;
        let mut data = self.data();
        Ok(keys.iter().filter(|key| data.remove(*key).is_some()).count() as u64)
    }

    async fn exists(&self, keys: Vec<Bytes>, (): ()) -> Result<u64> {
        let data = self.data();
        Ok(keys.iter().filter(|key| data.contains_key(*key)).count() as u64)
    }

    async fn elements(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Record>>> {
        let elements = self.elements_of();
        Ok(keys.iter().map(|key| elements.get(key).cloned()).collect())
    }

    async fn element_page(&self, range: ElementRange) -> Result<ElementPage> {
        let ElementRange { start, end, reverse, limit } = range;
        let elements = self.elements_of();
        let all = elements.range(start..end).map(|(key, record)| (key.clone(), record.value.clone()));
        let most = limit.min(5) as usize;
        let elements: Vec<_> =
            if reverse { all.rev().take(most).collect() } else { all.take(most).collect() };
        Ok(ElementPage { has_more: elements.len() == most, elements, took_several: false })
    }

    async fn walk(&self, walk: Walk) -> Result<(Vec<Named>, Option<Position>)> {
        let from = walk.start.max(walk.position.from);
        let data = self.data();
        let in_range =
            |(key, _): &(&Bytes, &Record)| **key >= from && (walk.end.is_empty() || **key < walk.end);
        let found = data.iter().filter(in_range).take(walk.limit as usize + 1);
        let mut keys: Vec<Named> = found.map(|(key, record)| (key.clone(), record.kind)).collect();
        let more = (keys.len() > walk.limit as usize).then(|| keys.pop()).flatten();
        Ok((keys, more.map(|(from, _)| Position { part: 0, from })))
    }

    async fn any_key(&self, _: u64) -> Result<Option<Bytes>> {
        Ok(self.data().keys().next().cloned())
    }

    fn are_together<'k>(&self, _: impl IntoIterator<Item = &'k [u8]>) -> bool {
        true
    }

    async fn execute(&self, ops: Vec<Operation>, _: Lane) -> Result<WriteOutcome> {
        // So that commands that touch the same key have something to wait for.
        tokio::task::yield_now().await;
        let mut data = self.data();
        // Time stands still: a lifetime ends at once, or never.
        let mut elements = self.elements_of();
        let before = |op: &Operation| {
            if op.table == ELEMENTS_TABLE {
                elements.get(&op.key).cloned()
            } else {
                data.get(&op.key).cloned()
            }
        };
        let (changes, outcome) = Operation::execute_batch(&ops, before, Tick(NOW_MS));
        for (op, (change, expires_at)) in ops.iter().zip(changes) {
            let data = if op.table == ELEMENTS_TABLE { &mut *elements } else { &mut *data };
            match change {
                Change::To(value, kind) => {
                    let record =
                        Record { value: Bytes::copy_from_slice(&value), seq: Seq(1), expires_at, kind };
                    data.insert(Bytes::copy_from_slice(&op.key), record);
                }
                Change::Removed => {
                    data.remove(&op.key);
                }
                Change::None => {}
            }
        }
        Ok(outcome)
    }

    fn now_ms(&self) -> u64 {
        NOW_MS
    }

    fn info(&self) -> Vec<(&'static str, Vec<(String, String)>)> {
        Vec::new()
    }
}

/// What a server sends to a client that sends these pieces and then no more; and what its map holds.
fn converse(pieces: Vec<Vec<u8>>, fast: bool) -> (Vec<u8>, BTreeMap<Bytes, Record>) {
    let store = Map { fast, ..Map::default() };
    let data = store.databases[0].data.clone();
    let replies = super::log::block_on(async move {
        let env = Env {
            clock: Arc::new(ManualClock::default()),
            rng: Arc::new(SeededRng::new(1)),
            vfs: Arc::new(FaultyVfs::new(1)),
            ..Env::real()
        };
        let config =
            RespConfig { max_request_bytes: REQUEST_BYTES_MAX, max_pipeline: 8, ..RespConfig::default() };
        let (near, far) = tokio::io::duplex(64 * 1024);
        let serve = fuzzing::serve(env, config, store, env::Connection::new(far, None));
        let (mut from, mut to) = tokio::io::split(near);
        let client = async move {
            for piece in pieces {
                // A server that has closed the connection takes no more.
                if to.write_all(&piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let _ = to.shutdown().await;
        };
        let mut replies = Vec::new();
        let ((), (), read) = tokio::join!(serve, client, from.read_to_end(&mut replies));
        assert!(read.is_ok());
        replies
    });
    let data = data.lock().clone();
    (replies, data)
}

/// How long the reply at the start of `bytes` is. None: it is not one, or not whole.
fn reply_len(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (kind, text) = (*bytes.first()?, std::str::from_utf8(&bytes[1..line]));
    let number = || text.ok()?.parse::<i64>().ok();
    let after = line + 2;
    match kind {
        b'+' | b'-' => Some(after),
        b':' => number().map(|_| after),
        b'_' => (line == 1).then_some(after),
        b'$' if number()? == -1 => Some(after),
        b'$' | b'=' => {
            let end = after + usize::try_from(number()?).ok()?;
            (bytes.get(end..end + 2)? == b"\r\n").then_some(end + 2)
        }
        b'*' | b'~' | b'%' => {
            let each = if kind == b'%' { 2 } else { 1 };
            let mut at = after;
            for _ in 0..number()?.checked_mul(each)? {
                at += reply_len(&bytes[at..])?;
            }
            Some(at)
        }
        _ => None,
    }
}

fn names(commands: &Commands, name: &str) -> bool {
    commands.iter().any(|args| args[0].eq_ignore_ascii_case(name.as_bytes()))
}

/// Whether a client may end itself, or may want no replies.
fn ends_or_silences(commands: &Commands) -> bool {
    let is =
        |arg: Option<&Vec<u8>>, name: &str| arg.is_some_and(|arg| arg.eq_ignore_ascii_case(name.as_bytes()));
    let subcommand = |args: &[Vec<u8>]| is(args.get(1), "kill") || is(args.get(1), "reply");
    commands.iter().any(|args| is(args.first(), "client") && subcommand(args))
}

/// Sizes of pieces, then requests.
pub fn connection(data: &[u8]) {
    let (all, pieces) = pieces(data);
    let (commands, error, _) = parse([all]);
    let (replies, held) = converse(vec![all.to_vec()], true);
    let mut count = 0;
    let mut at = 0;
    while at < replies.len() {
        let Some(length) = reply_len(&replies[at..]) else {
            panic!("no client could read {:?}", String::from_utf8_lossy(&replies[at..]));
        };
        at += length;
        count += 1;
    }
    assert!(count <= commands.len() + usize::from(error.is_some()), "more replies than commands");
    let ends = ["quit", "post", "host:"].iter().any(|name| names(&commands, name));
    if !ends && !ends_or_silences(&commands) {
        assert_eq!(count, commands.len() + usize::from(error.is_some()), "a command without a reply");
    }
    let (in_pieces, held_in_pieces) = converse(pieces.into_iter().map(<[u8]>::to_vec).collect(), false);
    // What a client asks about the server itself depends on when it asks.
    if !names(&commands, "info") {
        assert_eq!(
            String::from_utf8_lossy(&in_pieces),
            String::from_utf8_lossy(&replies),
            "in pieces the replies are others"
        );
    }
    assert_eq!(held_in_pieces, held);
}

pub fn seeds() -> Vec<Vec<u8>> {
    let line = |text: &str| text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let pipelines: [&[&str]; 13] = [
        &["SET a 1", "GET a", "DEL a a b", "GET a"],
        &["HELLO 3 SETNAME me", "MSET a 1 b 2 a 3", "MGET a b c", "EXISTS a a c", "STRLEN b"],
        &["SET k v NX", "SET k w XX", "SETNX k x", "SET k v EX 10", "GET k", "SET k v NX XX"],
        &[
            "PING", "PING hi", "ECHO hi", "SELECT 0", "SET k v", "SELECT 3", "GET k", "RESET", "TIME",
            "ROLE", "DBSIZE",
        ],
        &["CLIENT ID", "CLIENT SETNAME x", "CLIENT LIST", "CLIENT SETINFO lib-name y", "CLIENT NO-EVICT on"],
        &["COMMAND COUNT", "COMMAND INFO get", "COMMAND DOCS", "CONFIG GET *", "INFO server", "AUTH a b"],
        &["UNLINK a", "nosuch command", "HELLO 9", "QUIT", "GET a"],
        &["GET", "MSET a", "CLIENT", "CONFIG", "COMMAND NOPE"],
        &[
            "MULTI",
            "SET a 1",
            "INCR a",
            "GET a",
            "EXPIRE a 10",
            "TTL a",
            "EXEC",
            "WATCH a",
            "MULTI",
            "DEL a",
            "EXEC",
        ],
        &["SET a x", "WATCH a b", "SET b 1", "MULTI", "INCR a", "MSETNX a 1 c 2", "EXEC", "EXEC", "DISCARD"],
        &[
            "MULTI", "NOSUCH", "SET a 1", "EXEC", "MULTI", "WATCH a", "AUTH x", "RESET", "MULTI", "DISCARD",
            "UNWATCH",
        ],
        &[
            "MSET a 1 b 2 c 3",
            "RENAME a d",
            "COPY d e REPLACE",
            "RENAMENX e b",
            "SCAN 0 MATCH [a-c]* COUNT 1",
            "KEYS *",
        ],
        &[
            "CLIENT ORDER PIPELINE",
            "SET a 1",
            "SET b 2",
            "GET a",
            "KEYS ?",
            "CLIENT ORDER KEYS",
            "SET a 3",
            "GET a",
        ],
    ];
    let mut seeds = Vec::new();
    for (i, pipeline) in pipelines.iter().enumerate() {
        let commands: Commands = pipeline.iter().map(|text| line(text)).collect();
        let sizes = [0, 1, 7, (3 * i) as u8];
        seeds.push([&sizes[..], &encode(&commands)].concat());
        let inline: String = pipeline.iter().map(|text| format!("{text}\r\n")).collect();
        seeds.push([&[5, 0, 1, 2][..], inline.as_bytes()].concat());
    }
    seeds.push(b"\x02\x03\x00\x00SET \"a\\x41\\n\" 'b\\'c'\r\nGET \"a\\x41\\n\"\nset \"a\"b c\r\n".to_vec());
    seeds.push(b"\x01\x01\x01\x01*0\r\n*-1\r\n\r\n*1\r\n$0\r\n\r\n*1\r\n$99999999\r\n".to_vec());
    seeds.push(b"\x00\x00\x00\x00*2\r\n$3\r\nGET\r\n$3\r\nabc\r\r".to_vec());
    seeds
}
