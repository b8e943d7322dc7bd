//! `CLIENT`: who is connected, who ends whom, and which replies are wanted.

use super::memory::MemoryStore;
use super::*;

async fn started() -> RespServer {
    start(MemoryStore::new(true), config()).await
}

/// A client, and its number.
async fn client(server: &RespServer) -> (Raw, u64) {
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(b"CLIENT ID\r\n").await;
    let id = client.until(b"\r\n").await;
    let id = String::from_utf8(id).unwrap();
    (client, id.trim_matches([':', '\r', '\n']).parse().unwrap())
}

/// What is answered to a command whose answer is one long string.
async fn text(client: &mut Raw, command: &str) -> String {
    client.send(format!("{command}\r\n").as_bytes()).await;
    let len = String::from_utf8(client.until(b"\r\n").await).unwrap();
    let len: usize = len.trim_matches(['$', '\r', '\n']).parse().unwrap();
    let mut rest = Vec::new();
    while rest.len() < len + 2 {
        rest.extend(client.until(b"\n").await);
    }
    String::from_utf8(rest).unwrap().trim_end().to_owned()
}

fn field<'a>(line: &'a str, name: &str) -> &'a str {
    line.split(' ').find_map(|field| field.strip_prefix(&format!("{name}="))).unwrap_or("there is none")
}

async fn until_one_waits(client: &mut Raw) {
    while !text(client, "INFO clients").await.contains("blocked_clients:1") {}
}

#[tokio::test]
async fn a_client_is_listed_with_the_fields_that_libraries_read() {
    let server = started().await;
    let (mut client, id) = client(&server).await;
    client.ask(b"CLIENT SETNAME me\r\nSELECT 2\r\nSET k v\r\n", b"+OK\r\n+OK\r\n+OK\r\n").await;
    let line = text(&mut client, "CLIENT INFO").await;
    let names: Vec<&str> = line.split(' ').filter_map(|field| Some(field.split_once('=')?.0)).collect();
    // node-redis 4 goes by the order, redis-py 8 wants all of these.
    assert_eq!(
        names.join(" "),
        "id addr laddr fd name age idle flags db sub psub multi qbuf qbuf-free argv-mem obl oll omem tot-mem events \
         cmd user redir resp lib-name lib-ver"
    );
    for (name, value) in
        [("name", "me"), ("db", "2"), ("flags", "N"), ("multi", "-1"), ("cmd", "client|info")]
    {
        assert_eq!(field(&line, name), value, "{line}");
    }
    assert_eq!(field(&line, "id"), id.to_string());

    let (mut other, other_id) = self::client(&server).await;
    client.ask(b"MULTI\r\nSET k v\r\nGET k\r\n", b"+OK\r\n+QUEUED\r\n+QUEUED\r\n").await;
    let line = text(&mut other, &format!("CLIENT LIST ID 999 {id}")).await;
    for (name, value) in [("name", "me"), ("flags", "x"), ("multi", "2"), ("cmd", "get")] {
        assert_eq!(field(&line, name), value, "{line}");
    }
    client.ask(b"EXEC\r\n", b"*2\r\n+OK\r\n$1\r\nv\r\n").await;
    client.ask(b"GET k\r\n", b"$1\r\nv\r\n").await;
    let both = text(&mut other, &format!("CLIENT LIST ID {other_id} {id}")).await;
    let lines: Vec<&str> = both.lines().collect();
    assert_eq!(lines.iter().map(|line| field(line, "multi")).collect::<Vec<_>>(), ["-1", "-1"]);
    assert_eq!(lines.iter().map(|line| field(line, "cmd")).collect::<Vec<_>>(), ["client|list", "get"]);
    assert_eq!(field(lines[0], "id"), other_id.to_string());
}

#[tokio::test]
async fn a_client_that_is_killed_is_gone_for_all_who_ask() {
    let server = started().await;
    let ((mut operator, id), (mut first, first_id)) = (client(&server).await, client(&server).await);
    let (mut second, _) = client(&server).await;
    let addr = second.0.local_addr().unwrap();
    operator.ask(format!("CLIENT KILL ID {first_id}\r\n").as_bytes(), b":1\r\n").await;
    let ids = |list: &str| list.lines().map(|line| field(line, "id").to_owned()).collect::<Vec<_>>();
    assert_eq!(ids(&text(&mut operator, "CLIENT LIST").await).len(), 2);
    operator.ask(format!("CLIENT KILL ID {first_id}\r\n").as_bytes(), b":0\r\n").await;
    first.expect_end().await;
    operator.ask(b"CLIENT KILL 127.0.0.1:1\r\n", b"-ERR No such client\r\n").await;
    operator.ask(format!("CLIENT KILL {addr}\r\n").as_bytes(), b"+OK\r\n").await;
    second.expect_end().await;
    assert_eq!(ids(&text(&mut operator, "CLIENT LIST").await), [id.to_string()]);

    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(client(&server).await.0);
    }
    for command in
        ["TYPE pubsub", "TYPE replica", "ADDR 127.0.0.1:1", "LADDR 127.0.0.1:1", "USER default ID 999"]
    {
        operator.ask(format!("CLIENT KILL {command}\r\n").as_bytes(), b":0\r\n").await;
    }
    let here = server.local_addr();
    let all = format!("CLIENT KILL TYPE normal USER default LADDR {here}\r\nPING\r\n");
    operator.ask(all.as_bytes(), b":3\r\n+PONG\r\n").await;
    for mut other in others {
        other.expect_end().await;
    }
    operator.ask(b"CLIENT KILL TYPE normal SKIPME no\r\nPING\r\n", b":1\r\n").await;
    operator.expect_end().await;
}

#[tokio::test]
async fn who_is_killed_while_it_waits_takes_nothing_and_what_came_after_is_not_begun() {
    let server = started().await;
    let (mut operator, _) = client(&server).await;
    let (mut waits, id) = client(&server).await;
    waits.send(b"BLPOP l 0\r\nSET after x\r\n").await;
    until_one_waits(&mut operator).await;
    assert_eq!(field(&text(&mut operator, &format!("CLIENT LIST ID {id}")).await, "flags"), "b");
    operator.ask(format!("CLIENT KILL ID {id} SKIPME yes\r\n").as_bytes(), b":1\r\n").await;
    waits.expect_end().await;
    while text(&mut operator, "INFO clients").await.contains("blocked_clients:1") {}
    operator.ask(b"RPUSH l a\r\nLLEN l\r\nEXISTS after\r\n", b":1\r\n:1\r\n:0\r\n").await;
}

#[tokio::test]
async fn what_is_wrong_with_a_kill_is_said_as_redis_says_it() {
    let server = started().await;
    let (mut client, _) = client(&server).await;
    for (command, reply) in [
        ("CLIENT KILL", "wrong number of arguments for 'client|kill' command"),
        ("CLIENT KILL ID 0", "client-id should be greater than 0"),
        ("CLIENT KILL ID x", "client-id should be greater than 0"),
        ("CLIENT KILL TYPE foo", "Unknown client type 'foo'"),
        ("CLIENT KILL USER nobody", "No such user 'nobody'"),
        ("CLIENT KILL SKIPME perhaps", "syntax error"),
        ("CLIENT KILL ID 1 ADDR", "syntax error"),
        ("CLIENT KILL FOO 1", "syntax error"),
        ("CLIENT LIST ID x", "Invalid client ID"),
        ("CLIENT LIST FOO", "syntax error"),
    ] {
        client.ask(format!("{command}\r\n").as_bytes(), format!("-ERR {reply}\r\n").as_bytes()).await;
    }
    for (command, why) in [
        ("CLIENT PAUSE", "the clients of other p-nodes would go on"),
        ("CLIENT TRACKING", "no keys are tracked: p-nodes tell each other nothing of them"),
    ] {
        let refused = format!("-UNSUPPORTED {command} is not supported: {why}\r\n");
        client.ask(format!("{command} 1\r\n").as_bytes(), refused.as_bytes()).await;
    }
}

#[tokio::test]
async fn replies_that_are_not_wanted_are_not_sent() {
    for fast in [true, false] {
        let server = start(MemoryStore::new(fast), config()).await;
        let mut client = Raw::connect(server.local_addr()).await;
        client.ask(b"CLIENT REPLY OFF\r\nSET a 1\r\nGET a\r\nNOSUCH\r\nINCR a\r\nPING\r\n", b"").await;
        client.ask(b"CLIENT REPLY SKIP\r\nCLIENT REPLY ON\r\nGET a\r\n", b"+OK\r\n$1\r\n2\r\n").await;
        client.ask(b"CLIENT REPLY SKIP\r\nGET a\r\nGET a\r\n", b"$1\r\n2\r\n").await;
        client.ask(b"CLIENT REPLY SKIP\r\nINCR a\r\nINCR a\r\nGET a\r\n", b":4\r\n$1\r\n4\r\n").await;
        client.ask(b"CLIENT REPLY SKIP\r\nSELECT 1\r\nPING\r\nSELECT 0\r\n", b"+PONG\r\n+OK\r\n").await;
        client.ask(b"CLIENT REPLY SKIP\r\nMULTI\r\nINCR a\r\nEXEC\r\n", b"+QUEUED\r\n*1\r\n:5\r\n").await;
        client.ask(b"CLIENT REPLY SKIP\r\nBLPOP l 0.01\r\nECHO x\r\n", b"$1\r\nx\r\n").await;
        client.ask(b"CLIENT REPLY OFF\r\nRESET\r\nGET a\r\n", b"+RESET\r\n$1\r\n5\r\n").await;
        client.ask(b"CLIENT REPLY perhaps\r\n", b"-ERR syntax error\r\n").await;
        client
            .ask(b"CLIENT REPLY\r\n", b"-ERR wrong number of arguments for 'client|reply' command\r\n")
            .await;
    }
}

#[tokio::test]
async fn every_command_that_points_to_its_help_has_one() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    for name in ["ACL", "CLIENT", "COMMAND", "CONFIG", "LATENCY", "MEMORY", "OBJECT", "SLOWLOG"] {
        client.send(format!("{name} HELP\r\nECHO end\r\n").as_bytes()).await;
        let said = String::from_utf8(client.until(b"$3\r\nend\r\n").await).unwrap();
        assert!(said.starts_with('*') && said.contains(&format!("{name} <subcommand>")), "{said}");
    }
}

#[tokio::test]
async fn what_monitors_read_is_there_and_each_section_once() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(b"SET a 1\r\nGET a\r\nGET a\r\n", b"+OK\r\n$1\r\n1\r\n$1\r\n1\r\n").await;
    let info = text(&mut client, "INFO everything").await;
    let mut sections: Vec<&str> = info.lines().filter(|line| line.starts_with("# ")).collect();
    let all = sections.len();
    sections.sort_unstable();
    sections.dedup();
    assert_eq!(sections.len(), all, "{sections:?}");
    let field = |name: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        value.unwrap_or_else(|| panic!("{name} in {info}"))
    };
    assert!(field("cmdstat_get").starts_with("calls=2,usec="));
    assert_eq!(field("run_id").len(), 40);
    for name in ["used_cpu_sys", "used_cpu_user", "instantaneous_ops_per_sec", "total_commands_processed"] {
        assert!(field(name).parse::<f64>().unwrap() >= 0.0);
    }
    let bytes = |name| field(name).parse::<u64>().unwrap();
    assert!(bytes("used_memory_peak") > 0 && bytes("used_memory") > 0);
    assert!(!text(&mut client, "INFO").await.contains("cmdstat_"), "only for who asks");
}
