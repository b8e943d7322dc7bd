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
    set(desk, "default", words).await;
}

async fn set(desk: &Arc<Desk>, name: &str, words: &str) {
    let words = words.split_whitespace().map(str::to_owned).collect();
    desk.set("root", name, words).await.unwrap();
}

/// A client who is `app`, and one who may do everything.
async fn app_and_operator(server: &RespServer, desk: &Arc<Desk>) -> (Raw, Raw) {
    set(desk, "app", "on >old ~* +@all").await;
    set(desk, "operator", "on >secret ~* +@all").await;
    let mut app = Raw::connect(server.local_addr()).await;
    app.ask(b"AUTH app old\r\n", b"+OK\r\n").await;
    let mut operator = Raw::connect(server.local_addr()).await;
    operator.ask(b"AUTH operator secret\r\n", b"+OK\r\n").await;
    (app, operator)
}

/// What is answered to a command whose answer is a text.
async fn text(client: &mut Raw, command: &str) -> String {
    client.send(format!("{command}\r\nECHO end\r\n").as_bytes()).await;
    String::from_utf8(client.until(b"$3\r\nend\r\n").await).unwrap()
}

/// As whom all are connected, in the order in which they came.
async fn users(operator: &mut Raw) -> Vec<String> {
    let list = text(operator, "CLIENT LIST").await;
    list.split(' ').filter_map(|field| field.strip_prefix("user=")).map(str::to_owned).collect()
}

const NOAUTH: &[u8] = b"-NOAUTH Authentication required.\r\n";

#[tokio::test]
async fn who_came_in_as_a_user_that_is_deleted_is_not_the_next_one_of_that_name() {
    let (server, desk) = started().await;
    let (mut app, mut operator) = app_and_operator(&server, &desk).await;
    app.ask(b"SET k 1\r\n", b"+OK\r\n").await;
    let mut waits = Raw::connect(server.local_addr()).await;
    waits.ask(b"AUTH app old\r\n", b"+OK\r\n").await;
    waits.send(b"BLPOP l 0\r\n").await;
    while !text(&mut operator, "INFO clients").await.contains("blocked_clients:1\r\n") {}

    operator.ask(b"ACL DELUSER app\r\n", b":1\r\n").await;
    operator.ask(b"ACL SETUSER app on >new ~* +@all\r\n", b"+OK\r\n").await;
    app.ask(b"GET k\r\n", NOAUTH).await;
    app.expect_end().await;
    let mut app = Raw::connect(server.local_addr()).await;
    let wrong = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    app.ask(b"AUTH app old\r\n", wrong).await;
    // Nor does it take what it waits for.
    operator.ask(b"RPUSH l a\r\n", b":1\r\n").await;
    waits
        .expect(b"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n")
        .await;
    operator.ask(b"LLEN l\r\n", b":1\r\n").await;

    // Whoever is the new one stays so when it changes.
    app.ask(b"AUTH app new\r\nGET k\r\n", b"+OK\r\n$1\r\n1\r\n").await;
    for change in ["reset on >new ~* +@all", ">next", "<new"] {
        operator.ask(format!("ACL SETUSER app {change}\r\n").as_bytes(), b"+OK\r\n").await;
        app.ask(b"GET k\r\n", b"$1\r\n1\r\n").await;
    }
}

#[tokio::test]
async fn clients_are_listed_and_ended_as_whom_they_are_connected_now() {
    let (server, desk) = started().await;
    let (mut app, mut operator) = app_and_operator(&server, &desk).await;
    assert_eq!(users(&mut operator).await, ["app", "operator"]);
    app.ask(b"RESET\r\n", b"+RESET\r\n").await;
    assert_eq!(users(&mut operator).await, ["default", "operator"]);
    operator.ask(b"CLIENT KILL USER app\r\n", b":0\r\n").await;
    app.send(b"HELLO 2 AUTH app old\r\n").await;
    app.expect_up_to(b"$7\r\nmodules\r\n*0\r\n").await;
    assert_eq!(users(&mut operator).await, ["app", "operator"]);
    // Also if that user is not there any more.
    operator.ask(b"ACL DELUSER app\r\n", b":1\r\n").await;
    app.ask(b"PING\r\n", NOAUTH).await;
    assert_eq!(users(&mut operator).await, ["app", "operator"]);
    operator.ask(b"CLIENT KILL USER app\r\n", b":1\r\n").await;
    app.expect_end().await;
    operator.ask(b"CLIENT KILL USER app\r\n", b"-ERR No such user 'app'\r\n").await;
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
