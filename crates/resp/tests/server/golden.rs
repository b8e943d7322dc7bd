//! What real clients send when they connect, and what Redis 7.0 answers to odd requests, byte for byte.

use super::memory::MemoryStore;
use super::*;

const HELLO_3: &[u8] = b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:3\r\n\
    $2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";

fn command(args: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len());
    for arg in args {
        out += &format!("${}\r\n{arg}\r\n", arg.len());
    }
    out.into_bytes()
}

async fn connected() -> (RespServer, Raw) {
    let server = start(MemoryStore::new(true), config()).await;
    let client = Raw::connect(server.local_addr()).await;
    (server, client)
}

#[tokio::test]
async fn redis_benchmark() {
    let (_server, mut client) = connected().await;
    let both = [command(&["CONFIG", "GET", "save"]), command(&["CONFIG", "GET", "appendonly"])].concat();
    client.ask(&both, b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n").await;
    let sets = command(&["SET", "key:000000000001", "VXK"]).repeat(16);
    client.ask(&sets, &b"+OK\r\n".repeat(16)).await;
    let gets = command(&["GET", "key:000000000001"]).repeat(16);
    client.ask(&gets, &b"$3\r\nVXK\r\n".repeat(16)).await;
}

#[tokio::test]
async fn redis_py_8() {
    let (_server, mut client) = connected().await;
    client.ask(&command(&["HELLO", "3"]), HELLO_3).await;
    client
        .ask(
            &command(&["CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "none"]),
            b"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n",
        )
        .await;
    let about = [
        command(&["CLIENT", "SETINFO", "LIB-NAME", "redis-py"]),
        command(&["CLIENT", "SETINFO", "LIB-VER", "8.1.0"]),
        command(&["SELECT", "0"]),
    ];
    client.ask(&about.concat(), b"+OK\r\n+OK\r\n+OK\r\n").await;
    client.ask(&command(&["GET", "nosuch"]), b"_\r\n").await;
}

#[tokio::test]
async fn node_redis_6() {
    let (_server, mut client) = connected().await;
    let opening = [
        command(&["HELLO", "3"]),
        command(&["CLIENT", "SETINFO", "LIB-VER", "6.0.0"]),
        command(&["CLIENT", "SETINFO", "LIB-NAME", "node-redis"]),
    ];
    client.ask(&opening.concat(), &[HELLO_3, b"+OK\r\n+OK\r\n"].concat()).await;
}

#[tokio::test]
async fn ioredis_6_waits_for_loading_to_end() {
    let (_server, mut client) = connected().await;
    client.ask(&command(&["hello", "3"]), HELLO_3).await;
    client.ask(&command(&["client", "SETINFO", "LIB-NAME", "ioredis"]), b"+OK\r\n").await;
    client.send(&command(&["info"])).await;
    client.expect(b"=").await;
    let mut text = vec![0; 2048];
    let n = client.0.read(&mut text).await.unwrap();
    let text = String::from_utf8_lossy(&text[..n]).into_owned();
    for line in [
        "txt:# Server\r\n",
        "redis_version:7.0.0\r\n",
        "loading:0\r\n",
        "role:master\r\n",
        "# Memory store\r\nshards:64\r\n",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}

#[tokio::test]
async fn go_redis_9() {
    let (_server, mut client) = connected().await;
    client.ask(&command(&["hello", "3"]), HELLO_3).await;
    client.ask(&command(&["ping"]), b"+PONG\r\n").await;
}

/// Requests and the replies that Redis 7.0.15 gave to them, captured; connections that are closed are marked.
#[tokio::test]
async fn odd_requests_are_answered_as_redis_does() {
    let server = start(MemoryStore::new(true), config()).await;
    const CLOSED: &str = "<closed>";
    let long_args = format!("foo {}\r\n", vec!["y".repeat(60); 8].join(" "));
    let (y60, y2) = ("y".repeat(60), "yy");
    let long_reply =
        format!("-ERR unknown command 'foo', with args beginning with: '{y60}' '{y60}' '{y2}' \r\n");
    let x200 = format!("{}\r\n", "x".repeat(200));
    let x128 = format!("-ERR unknown command '{}', with args beginning with: \r\n", "x".repeat(128));
    for (request, reply) in [
        ("PING\r\n", "+PONG\r\n"),
        ("ping hello\n", "$5\r\nhello\r\n"),
        ("ping a b\r\n", "-ERR wrong number of arguments for 'ping' command\r\n"),
        ("*1\r\n$999999999999\r\n", "-ERR Protocol error: invalid bulk length\r\n<closed>"),
        ("*1000000000\r\n", "-ERR Protocol error: invalid multibulk length\r\n<closed>"),
        ("*abc\r\n", "-ERR Protocol error: invalid multibulk length\r\n<closed>"),
        ("PING\r\n*1\r\nx3\r\n", "+PONG\r\n-ERR Protocol error: expected '$', got 'x'\r\n<closed>"),
        ("*1\r\n\r\n", "-ERR Protocol error: expected '$', got ' '\r\n<closed>"),
        ("set \"a\"b c\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n<closed>"),
        ("echo \"a\\x41\\n\"\r\n", "$3\r\naA\n\r\n"),
        ("*1\r\n$0\r\n\r\n", "-ERR unknown command '', with args beginning with: \r\n"),
        ("foo\r\n", "-ERR unknown command 'foo', with args beginning with: \r\n"),
        ("foo a b\r\n", "-ERR unknown command 'foo', with args beginning with: 'a' 'b' \r\n"),
        (&long_args, &long_reply),
        (&x200, &x128),
        (
            "*2\r\n$4\r\nfo\r\n\r\n$3\r\na\r\n\r\n",
            "-ERR unknown command 'fo  ', with args beginning with: 'a  ' \r\n",
        ),
        ("get\r\n", "-ERR wrong number of arguments for 'get' command\r\n"),
        ("GET a b\r\n", "-ERR wrong number of arguments for 'get' command\r\n"),
        ("set a b c\r\n", "-ERR syntax error\r\n"),
        ("set a 1 nx\r\nset a 2 nx\r\nset b 1 xx\r\nget a\r\n", "+OK\r\n$-1\r\n$-1\r\n$1\r\n1\r\n"),
        ("set a b nx xx\r\n", "-ERR syntax error\r\n"),
        ("set a b ex\r\n", "-ERR syntax error\r\n"),
        ("set a b ex foo\r\n", "-ERR value is not an integer or out of range\r\n"),
        ("set a b ex 0\r\n", "-ERR invalid expire time in 'set' command\r\n"),
        ("set a b ex 1 px 1\r\n", "-ERR syntax error\r\n"),
        ("set a b keepttl ex 1\r\n", "-ERR syntax error\r\n"),
        ("mset a\r\n", "-ERR wrong number of arguments for 'mset' command\r\n"),
        ("mset a b c\r\n", "-ERR wrong number of arguments for 'mset' command\r\n"),
        ("hello 4\r\n", "-NOPROTO unsupported protocol version\r\n"),
        ("hello abc\r\n", "-ERR Protocol version is not an integer or out of range\r\n"),
        ("hello 3 auth foo x\r\n", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
        (
            "hello 3 setname 'a b'\r\n",
            "-ERR Client names cannot contain spaces, newlines or special characters.\r\n",
        ),
        ("hello 3 setname ab foo\r\n", "-ERR Syntax error in HELLO option 'foo'\r\n"),
        ("hello 3 auth default\r\n", "-ERR Syntax error in HELLO option 'auth'\r\n"),
        (
            "auth x\r\n",
            "-ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?\r\n",
        ),
        ("auth default x\r\n", "+OK\r\n"),
        ("auth a b c\r\n", "-ERR syntax error\r\n"),
        ("select 0\r\n", "+OK\r\n"),
        ("select 16\r\n", "-ERR DB index is out of range\r\n"),
        ("select abc\r\n", "-ERR value is not an integer or out of range\r\n"),
        (
            "select 99999999999\r\nselect 2147483647\r\n",
            "-ERR value is out of range, value must between -2147483648 and 2147483647\r\n-ERR DB index is out of range\r\n",
        ),
        ("quit\r\nping\r\n", "+OK\r\n<closed>"),
        ("client\r\n", "-ERR wrong number of arguments for 'client' command\r\n"),
        ("client foo\r\n", "-ERR unknown subcommand 'foo'. Try CLIENT HELP.\r\n"),
        ("client setname\r\n", "-ERR wrong number of arguments for 'client|setname' command\r\n"),
        (
            "client setname a\r\nclient getname\r\nreset\r\nclient getname\r\n",
            "+OK\r\n$1\r\na\r\n+RESET\r\n$-1\r\n",
        ),
        ("client no-evict on\r\n", "+OK\r\n"),
        ("client no-evict foo\r\n", "-ERR syntax error\r\n"),
        ("client list type foo\r\n", "-ERR Unknown client type 'foo'\r\n"),
        ("memory doctor x\r\n", "-ERR wrong number of arguments for 'memory|doctor' command\r\n"),
        ("slowlog len x\r\n", "-ERR wrong number of arguments for 'slowlog|len' command\r\n"),
        ("slowlog RESET x\r\n", "-ERR wrong number of arguments for 'slowlog|reset' command\r\n"),
        (
            "slowlog Get 1 2\r\n",
            "-ERR unknown subcommand or wrong number of arguments for 'Get'. Try SLOWLOG HELP.\r\n",
        ),
        (
            "multi\r\nslowlog len x\r\nexec\r\n",
            "+OK\r\n-ERR wrong number of arguments for 'slowlog|len' command\r\n\
             -EXECABORT Transaction discarded because of previous errors.\r\n",
        ),
        (
            "multi\r\nset mx 1\r\nexec a\r\nexec\r\nget mx\r\n",
            "+OK\r\n+QUEUED\r\n-EXECABORT Transaction discarded because of: \
             wrong number of arguments for 'exec' command\r\n-ERR EXEC without MULTI\r\n$-1\r\n",
        ),
        ("slowlog get -2\r\n", "-ERR count should be greater than or equal to -1\r\n"),
        ("acl cat foo\r\n", "-ERR Unknown category 'foo'\r\n"),
        (
            "memory malloc-stats\r\n",
            "-UNSUPPORTED MEMORY MALLOC-STATS is not supported: what is used is in the metrics\r\n",
        ),
        (
            "Latency Graph x\r\n",
            "-UNSUPPORTED LATENCY GRAPH is not supported: latencies are in the metrics\r\n",
        ),
        ("command foo\r\n", "-ERR unknown subcommand 'foo'. Try COMMAND HELP.\r\n"),
        ("command docs\r\n", "*0\r\n"),
        ("command list filterby module json\r\n", "*0\r\n"),
        ("command list filterby aclcat nosuch\r\n", "*0\r\n"),
        ("command list filterby pattern PSETE*\r\n", "*1\r\n$6\r\npsetex\r\n"),
        (
            "command list filterby aclcat TRANSACTION\r\n",
            "*5\r\n$5\r\nmulti\r\n$4\r\nexec\r\n$7\r\ndiscard\r\n$5\r\nwatch\r\n$7\r\nunwatch\r\n",
        ),
        (
            "command list filterby foo bar\r\ncommand list foo\r\n",
            "-ERR syntax error\r\n-ERR syntax error\r\n",
        ),
        (
            "command info getset\r\n",
            "*1\r\n*10\r\n$6\r\ngetset\r\n:3\r\n*3\r\n+write\r\n+denyoom\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*3\r\n+@write\r\n\
             +@string\r\n+@fast\r\n*0\r\n*0\r\n*0\r\n",
        ),
        ("command info nosuch\r\n", "*1\r\n$-1\r\n"),
        ("config get nosuch\r\n", "*0\r\n"),
        (
            "config get MAXMEMORY* databases\r\n",
            "*6\r\n$9\r\ndatabases\r\n$2\r\n16\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n",
        ),
        (
            "config set save ''\r\n",
            "-UNSUPPORTED CONFIG SET is not supported: settings are in the servers' files\r\n",
        ),
        (
            "readonly\r\ncluster info\r\n",
            &"-ERR This instance has cluster support disabled: a p-node sends commands where they belong\r\n"
                .repeat(2),
        ),
        ("config get\r\n", "-ERR wrong number of arguments for 'config|get' command\r\n"),
        ("role\r\n", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"),
        ("info nosuch\r\n", "$0\r\n\r\n"),
        ("strlen nosuch\r\n", ":0\r\n"),
        (
            "incr n\r\nincrby n 41\r\ndecr n\r\ndecrby n -1\r\nget n\r\n",
            ":1\r\n:42\r\n:41\r\n:42\r\n$2\r\n42\r\n",
        ),
        ("incrby n abc\r\n", "-ERR value is not an integer or out of range\r\n"),
        ("set w word\r\nincr w\r\n", "+OK\r\n-ERR value is not an integer or out of range\r\n"),
        (
            "set m 9223372036854775807\r\nincr m\r\ndecrby m -9223372036854775808\r\n",
            "+OK\r\n-ERR increment or decrement would overflow\r\n-ERR decrement would overflow\r\n",
        ),
        (
            "set f 10.50\r\nincrbyfloat f 0.1\r\nincrbyfloat f -5\r\nincrbyfloat f x\r\nincrbyfloat w 1\r\n",
            "+OK\r\n$4\r\n10.6\r\n$3\r\n5.6\r\n-ERR value is not a valid float\r\n-ERR value is not a valid float\r\n",
        ),
        (
            "rpush list a\r\nincrbyfloat list x\r\nincrbyfloat nosuch x\r\nmulti\r\nincrbyfloat list x\r\nexec\r\n",
            ":1\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n\
             -ERR value is not a valid float\r\n+OK\r\n+QUEUED\r\n\
             *1\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        ),
        (
            "append s Hello\r\nappend s ' World'\r\nsetrange s 6 Redis\r\nget s\r\n",
            ":5\r\n:11\r\n:11\r\n$11\r\nHello Redis\r\n",
        ),
        ("setrange nosuch 3 ''\r\nexists nosuch\r\n", ":0\r\n:0\r\n"),
        ("setrange z 2 x\r\ngetrange z 0 -1\r\n", ":3\r\n$3\r\n\0\0x\r\n"),
        ("setrange z -1 x\r\n", "-ERR offset is out of range\r\n"),
        ("setrange z 536870912 x\r\n", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"),
        (
            "getrange s -5 -1\r\nsubstr s 0 4\r\ngetrange s 5 1\r\ngetrange s a 1\r\n",
            "$5\r\nRedis\r\n$5\r\nHello\r\n$0\r\n\r\n-ERR value is not an integer or out of range\r\n",
        ),
        ("getset g 1\r\ngetset g 2\r\ngetdel g\r\ngetdel g\r\n", "$-1\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n"),
        (
            "set h 1 get\r\nset h 2 get\r\nset h 3 nx get\r\nget h\r\n",
            "$-1\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n2\r\n",
        ),
        ("set i 1 xx get\r\nexists i\r\nset i 1 nx get\r\nget i\r\n", "$-1\r\n:0\r\n$-1\r\n$1\r\n1\r\n"),
        (
            "msetnx j 1 k 2\r\nmsetnx k 3 l 4\r\nmget j k l\r\n",
            ":1\r\n:0\r\n*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n",
        ),
        ("msetnx j\r\n", "-ERR wrong number of arguments for 'msetnx' command\r\n"),
        (
            "msetnx apart 1 b 2\r\n",
            "-CROSSSLOT Keys in request don't hash to the same partition: keys with the same {hash tag} do\r\n",
        ),
        ("type s\r\ntype nosuch\r\ntouch s s nosuch\r\n", "+string\r\n+none\r\n:2\r\n"),
        (
            "ttl s\r\npttl nosuch\r\nexpiretime s\r\npexpiretime nosuch\r\npersist s\r\n",
            ":-1\r\n:-2\r\n:-1\r\n:-2\r\n:0\r\n",
        ),
        (
            "set e 1 ex 100\r\nttl e\r\npttl e\r\nexpiretime e\r\npexpiretime e\r\n",
            "+OK\r\n:100\r\n:100000\r\n:1700000100\r\n:1700000100000\r\n",
        ),
        (
            "setex e 10 v\r\nset e w keepttl\r\nttl e\r\nset e w\r\nttl e\r\npsetex e 1500 v\r\npttl e\r\npersist e\r\npersist e\r\n",
            "+OK\r\n+OK\r\n:10\r\n+OK\r\n:-1\r\n+OK\r\n:1500\r\n:1\r\n:0\r\n",
        ),
        (
            "set e 1\r\nexpire e 100 gt\r\nexpire e 100 xx\r\nexpire e 100 lt\r\nexpire e 50 gt\r\nexpire e 200 gt\r\n",
            "+OK\r\n:0\r\n:0\r\n:1\r\n:0\r\n:1\r\n",
        ),
        ("expire e 10 nx\r\nexpire e 10 xx lt\r\nttl e\r\nttl nosuch\r\n", ":0\r\n:1\r\n:10\r\n:-2\r\n"),
        (
            "set e 1\r\nexpire e -1\r\nexists e\r\nexpire e 5\r\npexpireat e 1700000000001\r\n",
            "+OK\r\n:1\r\n:0\r\n:0\r\n:0\r\n",
        ),
        (
            "set e 1\r\nexpireat e 1700000009\r\nttl e\r\nset e 2 pxat 1\r\nget e\r\n",
            "+OK\r\n:1\r\n:9\r\n+OK\r\n$-1\r\n",
        ),
        (
            "set e v\r\ngetex e\r\ngetex e ex 9\r\nttl e\r\ngetex e persist\r\nttl e\r\ngetex nosuch ex 1\r\n",
            "+OK\r\n$1\r\nv\r\n$1\r\nv\r\n:9\r\n$1\r\nv\r\n:-1\r\n$-1\r\n",
        ),
        (
            "set n 5 ex 7\r\nincr n\r\nappend n 0\r\nttl n\r\ngetset n 1\r\nttl n\r\n",
            "+OK\r\n:6\r\n:2\r\n:7\r\n$2\r\n60\r\n:-1\r\n",
        ),
        ("expire e x\r\n", "-ERR value is not an integer or out of range\r\n"),
        ("expire e 1 foo\r\n", "-ERR Unsupported option foo\r\n"),
        ("expire e 1 nx gt\r\n", "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"),
        ("expire e 1 gt lt\r\n", "-ERR GT and LT options at the same time are not compatible\r\n"),
        ("expire e 9223372036854775807\r\n", "-ERR invalid expire time in 'expire' command\r\n"),
        ("pexpire e 9223372036854775807\r\n", "-ERR invalid expire time in 'pexpire' command\r\n"),
        ("setex e 0 v\r\n", "-ERR invalid expire time in 'setex' command\r\n"),
        ("psetex e -1 v\r\n", "-ERR invalid expire time in 'psetex' command\r\n"),
        ("getex e ex 0\r\n", "-ERR invalid expire time in 'getex' command\r\n"),
        ("getex e pxat 0\r\n", "-ERR invalid expire time in 'getex' command\r\n"),
        ("getex e ex\r\n", "-ERR syntax error\r\n"),
        ("getex e keepttl\r\n", "-ERR syntax error\r\n"),
        ("bitop\r\n", "-UNSUPPORTED BITOP is not supported: there are no operations on bits\r\n"),
        ("POST / HTTP/1.1\r\nset a b\r\n", CLOSED),
    ] {
        let mut client = Raw::connect(server.local_addr()).await;
        client.send(request.as_bytes()).await;
        match reply.strip_suffix(CLOSED) {
            Some(reply) => {
                client.expect(reply.as_bytes()).await;
                client.expect_end().await;
            }
            None => client.expect(reply.as_bytes()).await,
        }
    }
}

#[tokio::test]
async fn the_protocol_changes_between_two_commands() {
    let (_server, mut client) = connected().await;
    let mixed = [
        command(&["GET", "x"]),
        command(&["HELLO", "3"]),
        command(&["GET", "x"]),
        command(&["CONFIG", "GET", "save"]),
        command(&["RESET"]),
        command(&["GET", "x"]),
    ];
    let replies =
        [b"$-1\r\n", HELLO_3, b"_\r\n", b"%1\r\n$4\r\nsave\r\n$0\r\n\r\n", b"+RESET\r\n", b"$-1\r\n"]
            .concat();
    client.ask(&mixed.concat(), &replies).await;
}

#[tokio::test]
async fn commands_are_described() {
    let (_server, mut client) = connected().await;
    client
        .ask(
            b"command info get\r\n",
            b"*1\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*3\r\n+@read\r\n+@string\r\n\
              +@fast\r\n*0\r\n*0\r\n*0\r\n",
        )
        .await;
    client.ask(b"command count\r\n", b":158\r\n").await;
}
