//! What is said to users of what they may not do, byte for byte as Redis 7.0 says it.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use sextant_access::{AccessConfig, Allowances, Desk, Keeper, LimitsConfig, Outcomes, Stored};
use sextant_common::limits::VALUE_BYTES_MAX;
use sextant_environment::room::Room;
use sextant_environment::slow_log::SlowLog;
use sextant_resp::Common;

use super::memory::MemoryStore;
use super::*;

/// The list of users.
#[derive(Default)]
struct Memory(Mutex<Option<Stored>>);

impl Keeper for Memory {
    fn load(&self) -> BoxFuture<'_, sextant_common::Result<Option<Stored>>> {
        Box::pin(std::future::ready(Ok(self.0.lock().clone())))
    }

    fn store(&self, text: String, expected: u64) -> BoxFuture<'_, sextant_common::Result<bool>> {
        *self.0.lock() = Some(Stored { text, version: expected + 1 });
        Box::pin(std::future::ready(Ok(true)))
    }
}

/// A server with users, of whom nobody is known yet.
async fn started() -> (RespServer, Arc<Desk>) {
    let (env, mut registry) = (Env::real(), Registry::default());
    let users = AccessConfig { superusers: [("root".to_owned(), String::new())].into() };
    let outcomes = Outcomes::register(&mut registry);
    let desk = Desk::new(env.clone(), &users, Arc::new(Memory::default()), outcomes).unwrap();
    let common = Common {
        large: Room::new(64 << 20),
        access: Some(desk.clone()),
        slow: SlowLog::off(env.clock.clone()),
        allowances: Allowances::new(env.clock.clone(), LimitsConfig::default(), &mut registry),
    };
    let metrics = RespMetrics::register(&mut registry);
    let store = MemoryStore::new(true);
    (RespServer::start_with(env, config(), store, metrics, common).await.unwrap(), desk)
}

async fn may(desk: &Arc<Desk>, words: &str) {
    let words = words.split_whitespace().map(str::to_owned).collect();
    desk.set("root", "default", words).await.unwrap();
}

#[tokio::test]
async fn a_refusal_says_which_command_or_that_it_is_a_key() {
    let (server, desk) = started().await;
    may(&desk, "on nopass ~app:* +@read").await;
    let mut client = Raw::connect(server.local_addr()).await;
    let key = "NOPERM this user has no permissions to access one of the keys used as arguments".to_owned();
    let command = |name| format!("NOPERM this user has no permissions to run the '{name}' command");
    for (asked, why) in [
        ("GET other", key.clone()),
        ("MGET app:1 other", key),
        ("SET app:1 x", command("set")),
        ("CONFIG GET *", command("config|get")),
        ("SLOWLOG len", command("slowlog|len")),
        ("CLIENT LIST", command("client|list")),
        ("ACL USERS", command("acl|users")),
    ] {
        client.ask(format!("{asked}\r\n").as_bytes(), format!("-{why}\r\n").as_bytes()).await;
    }
    client.ask(b"GET app:1\r\n", b"$-1\r\n").await;
}

#[tokio::test]
async fn a_stranger_is_told_to_say_who_it_is() {
    let (server, _desk) = started().await;
    let mut client = Raw::connect(server.local_addr()).await;
    let greeting = "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> \
        option can be used to authenticate the client and select the RESP protocol version at the same time\r\n";
    client.ask(b"HELLO 3\r\n", greeting.as_bytes()).await;
    // What is too long for anybody is not even dropped for it.
    client.send(format!("*2\r\n$3\r\nGET\r\n${}\r\nkkk", VALUE_BYTES_MAX + 1).as_bytes()).await;
    client.expect(b"-NOAUTH Authentication required.\r\n").await;
    client.expect_end().await;
}
