//! Servers that run for long: they take new certificates, refuse whatever they are asked for, and tell no passwords.

use sextant_environment::env::grpc_channel;
use sextant_proto::v1::kv_client::KvClient;
use sextant_proto::v1::users_client::UsersClient;
use sextant_proto::v1::whereabouts_client::WhereaboutsClient;
use tonic::Code;

use super::*;

/// The ports of all servers that show metrics.
const HTTP: [&str; 3] = ["http", "memtable http", "sstable http"];
/// What a Redis client may say before it is known who it is.
const BEFORE_ALL: [&str; 4] = ["auth", "hello", "quit", "reset"];
/// Of these commands it depends on the subcommand who may run them.
const ADMINS_ONLY: [&[&str]; 8] = [
    &["acl", "list"],
    &["acl", "users"],
    &["acl", "getuser", "root"],
    &["acl", "setuser", "carol", "+@all", "~*"],
    &["acl", "deluser", "root"],
    &["client", "list"],
    &["client", "kill", "skipme", "no", "id", "1"],
    &["client", "unblock", "1"],
];

const KEY: &str = "k";
const VALUE: &str = "the-value-of-k";
const ROOTS: &str = "r00t-has-this-one";
const CAROLS: &str = "c4rol-has-this-one";
const REPLACED: &str = "c4rol-had-this-one";
/// Nobody's: somebody has mistyped.
const WRONG: [&str; 3] = ["wr0ng-over-resp", "wr0ng-in-a-greeting", "wr0ng-over-grpc"];

impl Resp {
    /// The whole answer to a command: what its strings hold, and the lines of whatever else it consists of.
    async fn ask(&mut self, command: &[&str]) -> Vec<String> {
        let mut sent = format!("*{}\r\n", command.len());
        for arg in command {
            sent += &format!("${}\r\n{arg}\r\n", arg.len());
        }
        let answer = async {
            self.0.write_all(sent.as_bytes()).await?;
            let (mut parts, mut left) = (Vec::new(), 1);
            while left > 0 {
                left -= 1;
                let line = self.line().await?;
                // (-1: there is none.)
                let count = line.get(1..).and_then(|count| count.parse::<usize>().ok());
                match (line.as_bytes().first(), count) {
                    (Some(b'*'), Some(count)) => {
                        left += count;
                        parts.push(line);
                    }
                    (Some(b'$'), Some(length)) => {
                        let mut text = vec![0; length + 2];
                        self.0.read_exact(&mut text).await?;
                        text.truncate(length);
                        parts.push(String::from_utf8_lossy(&text).into_owned());
                    }
                    _ => parts.push(line),
                }
            }
            std::io::Result::Ok(parts)
        };
        let answer = tokio::time::timeout(PATIENCE, answer).await.expect("an answer");
        answer.unwrap_or_else(|e| vec![format!("(closed: {e})")])
    }
}

/// Waits until `/metrics` of this port says so.
async fn comes_to(servers: &Servers, port: &str, is_so: impl Fn(&str) -> bool) {
    let comes = async {
        while !is_so(&servers.metrics(port).await) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE, comes)
        .await
        .unwrap_or_else(|_| panic!("{port}: its metrics never say so"));
}

/// When the certificate expires that is in use.
fn expires_s(metrics: &str) -> f64 {
    let mut lines = metrics.lines();
    let shown = lines.find_map(|line| line.strip_prefix("sextant_tls_certificate_expires_seconds "));
    shown.unwrap_or_else(|| panic!("no expiry: {metrics}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_renewed_while_servers_run_and_keys_that_are_no_good_change_nothing() {
    let servers = Servers::start("required").await;
    let alice = servers.who_shows(servers.files("user-alice"));
    let mut old = Resp::connect(&alice, servers.addr("resp")).await;
    old.say_until(&format!("SET {KEY} {VALUE}"), "+OK").await;
    let mut before_s = Vec::new();
    for port in HTTP {
        before_s.push(expires_s(&servers.metrics(port).await));
    }

    let path = |name: &str| servers.dir.path().join(name).to_str().unwrap().to_owned();
    let [memtable, sstable, pnode] =
        ["memtable", "sstable", "pnode"].map(|role| path(&format!("{role}-1.toml")));
    let certs = path("certs");
    run(&["cert", "server", &memtable, &sstable, &pnode, "--dir", &certs, "--renew", "--days", "700"]);
    for (port, before_s) in HTTP.into_iter().zip(before_s) {
        comes_to(&servers, port, |metrics| expires_s(metrics) > before_s).await;
    }
    assert_eq!(old.say(&format!("GET {KEY}")).await, VALUE, "over a connection of the time before");

    for role in ["memtable", "sstable", "pnode"] {
        std::fs::write(servers.cert(&format!("{role}-1.key")), "nothing").unwrap();
    }
    for port in HTTP {
        comes_to(&servers, port, |metrics| metrics.contains("\nsextant_tls_reload_failed 1\n")).await;
    }
    assert_eq!(old.say(&format!("GET {KEY}")).await, VALUE);
    let client = servers.client(alice).await;
    client.put("", KEY, "another").await.unwrap();
    assert_eq!(old.say(&format!("GET {KEY}")).await, "another");
}

/// All commands that the server has, with as many arguments as they need, and whether users have a right to each by its class.
async fn all_commands(root: &mut Resp) -> Vec<(Vec<String>, bool)> {
    const CLASSES: [&str; 4] = ["+readonly", "+write", "+admin", "+dangerous"];
    let names = root.ask(&["COMMAND", "LIST"]).await;
    let mut commands = Vec::new();
    for name in &names[1..] {
        let info = root.ask(&["COMMAND", "INFO", name]).await;
        assert_eq!(&info[2], name, "{info:?}");
        let arity: i64 = info[3].trim_start_matches(':').parse().unwrap();
        let flags: usize = info[4].trim_start_matches('*').parse().unwrap();
        let is_of_a_class = info[5..5 + flags].iter().any(|flag| CLASSES.contains(&flag.as_str()));
        let mut command = vec![name.clone()];
        command.resize(arity.unsigned_abs() as usize, KEY.to_owned());
        commands.push((command, is_of_a_class));
    }
    assert!(commands.len() > 100, "{names:?}");
    commands
}

/// What each of them says to nobody, and to a user who has no rights.
async fn refuse_every_command(servers: &Servers, root: &mut Resp) {
    let commands = all_commands(root).await;
    let (plain, addr) = (servers.who_shows(None), servers.addr("resp"));
    let mut nobody = Resp::connect(&plain, addr).await;
    let mut carol = Resp::connect(&plain, addr).await;
    assert_eq!(carol.say(&format!("AUTH carol {CAROLS}")).await, "+OK");
    for (command, is_of_a_class) in commands {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        if BEFORE_ALL.contains(&command[0]) {
            continue;
        }
        let answer = nobody.ask(&command).await;
        assert!(answer[0].starts_with("-NOAUTH"), "{command:?} by nobody: {answer:?}");
        let answer = carol.ask(&command).await;
        // The others concern her connection alone.
        assert!(!is_of_a_class || answer[0].starts_with("-NOPERM"), "{command:?} by carol: {answer:?}");
        assert!(answer.iter().all(|part| !part.contains(VALUE)), "{command:?} by carol: {answer:?}");
    }
    // (It may not stay for long.)
    let mut nobody = Resp::connect(&plain, addr).await;
    for command in ADMINS_ONLY {
        let answer = nobody.ask(command).await;
        assert!(answer[0].starts_with("-NOAUTH"), "{command:?} by nobody: {answer:?}");
        let answer = carol.ask(command).await;
        assert!(answer[0].starts_with("-NOPERM"), "{command:?} by carol: {answer:?}");
    }
    assert_eq!(carol.say("ACL WHOAMI").await, "carol");
    // What nobody may say tells nothing either.
    nobody.say_until(&format!("AUTH {KEY}"), "-WRONGPASS").await;
    assert!(nobody.say("HELLO").await.starts_with("-NOAUTH"));
    assert_eq!(nobody.say("RESET").await, "+RESET");
    assert!(nobody.say(&format!("GET {KEY}")).await.starts_with("-NOAUTH"));
    assert_eq!(nobody.say("QUIT").await, "+OK");
    assert_eq!(root.say(&format!("GET {KEY}")).await, VALUE, "nothing was done");
}

/// Calls of each service that clients and operators have, by nobody.
async fn refuse_calls(servers: &Servers) {
    let plain = servers.who_shows(None);
    let grpc = grpc_channel(&plain.net, servers.addr("grpc"));
    let at_admin = grpc_channel(&plain.net, servers.addr("admin"));
    let mut kv = KvClient::new(grpc.clone());
    let mut users = UsersClient::new(at_admin.clone());
    let mut admin = AdminClient::new(at_admin);
    // Where administration listens is no secret, nor is it open.
    let mut whereabouts = WhereaboutsClient::new(grpc);
    let connected = async {
        // (On a busy machine that may take more than the second that a channel waits.)
        while whereabouts.admin(v1::WhereIsAdminRequest {}).await.is_err() {}
        let is_away = |refused: &tonic::Status| refused.code() == Code::Unavailable;
        while users.list(v1::ListUsersRequest {}).await.is_err_and(|refused| is_away(&refused)) {}
    };
    tokio::time::timeout(PATIENCE, connected).await.expect("both ports answer");
    let refused = [
        ("get", kv.get(v1::KvGetRequest::default()).await.map(|_| ())),
        ("put", kv.put(v1::KvPutRequest::default()).await.map(|_| ())),
        ("batch", kv.batch(v1::KvBatchRequest::default()).await.map(|_| ())),
        ("list tables", kv.list_tables(v1::KvListTablesRequest {}).await.map(|_| ())),
        ("drop a table", kv.drop_table(v1::KvDropTableRequest::default()).await.map(|_| ())),
        ("open a session", kv.open_session(v1::KvOpenSessionRequest {}).await.map(|_| ())),
        ("open a snapshot", kv.open_snapshot(v1::KvOpenSnapshotRequest::default()).await.map(|_| ())),
        ("set a user", users.set(v1::SetUserRequest::default()).await.map(|_| ())),
        ("list users", users.list(v1::ListUsersRequest {}).await.map(|_| ())),
        ("flush", admin.flush(v1::MaintenanceRequest::default()).await.map(|_| ())),
        ("status", admin.status(v1::StatusRequest {}).await.map(|_| ())),
    ];
    for (call, refused) in refused {
        assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated, "{call}");
    }
    let scanned = async {
        let mut pages = kv.scan(v1::KvScanRequest::default()).await?.into_inner();
        pages.message().await
    };
    assert_eq!(scanned.await.unwrap_err().code(), Code::Unauthenticated);
}

/// Passwords are used, right and wrong ones, wherever they can be: then nothing that servers tell has any.
async fn tell_no_passwords(servers: &Servers, root: &mut Resp) {
    let (plain, alice) = (servers.who_shows(None), servers.who_shows(servers.files("user-alice")));
    let mut greeting = Resp::connect(&plain, servers.addr("resp")).await;
    let [over_resp, in_a_greeting, over_grpc] = WRONG;
    assert!(greeting.say(&format!("AUTH {over_resp}")).await.starts_with("-WRONGPASS"));
    for command in [format!("HELLO 2 AUTH root {in_a_greeting}"), format!("AUTH carol {REPLACED}")] {
        assert!(greeting.say(&command).await.starts_with("-WRONGPASS"), "{command}");
    }
    assert!(greeting.say(&format!("AUTH root too many {over_resp}")).await.starts_with("-ERR"));
    assert!(greeting.ask(&["HELLO", "2", "AUTH", "carol", CAROLS]).await[0].starts_with('*'));
    assert_eq!(greeting.say("ACL WHOAMI").await, "carol");
    let call = servers.user(plain.clone(), "root", over_grpc).await.get("", KEY).await;
    assert_eq!(call.unwrap_err().kind, ErrorKind::Unauthenticated);
    let call = servers.user(plain, "root", ROOTS).await.get("", KEY).await;
    assert_eq!(call.unwrap().unwrap().value, VALUE);

    let mut told = Vec::new();
    for port in HTTP {
        for path in ["/status", "/metrics"] {
            let answer = sextant_client::http::get(&alice, servers.addr(port), path, PATIENCE).await.unwrap();
            assert!(answer.is_ok(), "{port} {path}: {}", answer.status);
            told.push((format!("{port} {path}"), answer.text()));
        }
    }
    let commands: [&[&str]; 8] = [
        &["SLOWLOG", "GET", "-1"],
        &["CLIENT", "LIST"],
        &["CLIENT", "INFO"],
        &["ACL", "LIST"],
        &["ACL", "GETUSER", "carol"],
        &["ACL", "GETUSER", "root"],
        &["CONFIG", "GET", "*"],
        &["INFO", "everything"],
    ];
    for command in commands {
        told.push((command.join(" "), root.ask(command).await.join("\n")));
    }
    for role in ["memtable", "sstable", "pnode"] {
        let log = std::fs::read(servers.dir.path().join(format!("{role}.log"))).unwrap();
        told.push((format!("{role}'s log"), String::from_utf8_lossy(&log).into_owned()));
    }
    for child in &servers.children {
        let arguments = std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
        told.push((format!("arguments of {}", child.id()), String::from_utf8_lossy(&arguments).into_owned()));
    }
    for (source, text) in told {
        for secret in [ROOTS, CAROLS, REPLACED, "argon2"].into_iter().chain(WRONG) {
            assert!(!text.contains(secret), "{source} tells {secret}: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_is_refused_to_whoever_has_no_rights_and_no_password_is_told() {
    let access = format!("[access.superusers]\nroot = \"{}\"\n", hash_of(ROOTS));
    let servers = Servers::start_with("optional", &access).await;
    let mut root = Resp::connect(&servers.who_shows(None), servers.addr("resp")).await;
    root.say_until(&format!("AUTH root {ROOTS}"), "+OK").await;
    root.say_until(&format!("SET {KEY} {VALUE}"), "+OK").await;
    root.say_until(&format!("ACL SETUSER carol on >{REPLACED}"), "+OK").await;
    assert_eq!(root.say(&format!("ACL SETUSER carol >{CAROLS} <{REPLACED}")).await, "+OK");
    refuse_every_command(&servers, &mut root).await;
    refuse_calls(&servers).await;
    tell_no_passwords(&servers, &mut root).await;
}
