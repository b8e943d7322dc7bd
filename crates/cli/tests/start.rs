//! How a server starts: what it tells systemd, and by which exit code it says that it could not.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sextant_environment::Env;
use sextant_environment::env::free_addrs;

/// For whatever takes time on a busy machine, and would otherwise hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// Wrong configuration: nobody tries again.
const USAGE: i32 = 2;
/// Could not be done now: systemd starts it again.
const FAILED: i32 = 3;

/// A server of three of its role, whose others are nowhere.
async fn file(dir: &Path, role: &str) -> PathBuf {
    let addrs = free_addrs(&Env::real(), 7).await.unwrap();
    let server = |index: usize| format!("{{ id = {}, addr = \"{}\" }}", index % 3 + 1, addrs[index]);
    let tier = |first: usize| (first..first + 3).map(server).collect::<Vec<_>>().join(", ");
    let listens = match role {
        "memtable" => format!("listen = {:?}\n", addrs[0]),
        "sstable" => format!("listen = {:?}\n", addrs[3]),
        _ => format!("grpc = {:?}\nadmin = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"\n", addrs[6]),
    };
    let data = match role {
        "pnode" => String::new(),
        _ => format!("data_dir = {:?}\n", dir.join(role)),
    };
    let path = dir.join(format!("{role}-1.toml"));
    let text = format!(
        "id = 1\nhttp = \"127.0.0.1:0\"\n{listens}{data}[cluster]\nid = \"c\"\npartitions = 1\nmemtable = [{}]\nsstable = [{}]\n",
        tier(0),
        tier(3)
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn server(role: &str, file: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sextant"));
    command.args([role, "--config"]).arg(file).env_remove("NOTIFY_SOCKET");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn next(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 1024];
    let length = socket.recv(&mut buffer).expect("the server says something");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

fn terminate(child: &Child) {
    // SAFETY: kill has no memory effects.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
}

/// It is started, tells this socket what it has to, and is stopped.
fn tells(mut command: Command, socket: &UnixDatagram) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    assert!(next(socket).starts_with("STATUS=starting"));
    let ready = next(socket);
    assert!(ready.starts_with("READY=1\nSTATUS=listening on 127.0.0.1:"), "{ready}");
    terminate(&child);
    assert!(next(socket).starts_with("STOPPING=1\nSTATUS="));
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn systemd_hears_when_a_server_listens_and_when_it_stops() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    // None of the others is up: units that waited for each other would wait for ever.
    for role in ["memtable", "sstable", "pnode"] {
        let mut command = server(role, &file(dir.path(), role).await);
        command.env("NOTIFY_SOCKET", &path);
        tells(command, &socket);
    }
}

#[tokio::test]
async fn a_socket_without_a_file_is_told_too_and_one_that_is_gone_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join("notify").display().to_string();
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let file = file(dir.path(), "sstable").await;
    let mut command = server("sstable", &file);
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    tells(command, &socket);

    let mut command = server("sstable", &file);
    command.env("NOTIFY_SOCKET", dir.path().join("nowhere"));
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let live = async {
        let listen = std::fs::read_to_string(&file).unwrap();
        let addr = listen.lines().find_map(|line| line.strip_prefix("listen = ")).unwrap().replace('"', "");
        while tokio::net::TcpStream::connect(&addr).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, live).await.expect("it listens");
    terminate(&child);
    assert!(child.wait().unwrap().success());
}

/// The exit code, and the line on standard error that is ours.
fn ended(mut command: Command) -> (Option<i32>, String) {
    let mut child = command.spawn().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let (all_said, said) = std::sync::mpsc::channel();
    let said = std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut said = String::new();
            errors.read_to_string(&mut said).unwrap();
            all_said.send(said).unwrap();
        });
        said.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            child.kill().unwrap();
            said.recv().unwrap()
        })
    });
    let line = said.lines().filter_map(|line| line.strip_prefix("sextant: ")).collect();
    (child.wait().unwrap().code(), line)
}

/// Restarted by hand while the one before still drains, for example.
#[tokio::test]
async fn a_directory_that_another_process_has_may_be_free_later() {
    let dir = tempfile::tempdir().unwrap();
    for role in ["memtable", "sstable"] {
        let path = dir.path().join(format!("notify-{role}"));
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let file = file(dir.path(), role).await;
        let mut command = server(role, &file);
        let mut first = command.env("NOTIFY_SOCKET", &path).stderr(Stdio::null()).spawn().unwrap();
        while !next(&socket).starts_with("READY=1") {}
        // Where it is looked for, nobody is: only the directory tells.
        let text = std::fs::read_to_string(&file).unwrap();
        let listen = text.lines().find_map(|line| line.strip_prefix("listen = ")).unwrap();
        std::fs::write(&file, text.replace(&format!("addr = {listen}"), "addr = \"127.0.0.1:1\"")).unwrap();
        let (code, said) = ended(server(role, &file));
        assert!(
            code == Some(FAILED) && said.contains("in use by another process"),
            "{role}: {code:?}: {said}"
        );
        terminate(&first);
        assert!(first.wait().unwrap().success());
    }
}

#[tokio::test]
async fn a_port_that_somebody_has_may_be_free_later_and_a_wrong_one_is_wrong_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = format!("{:?}", taken.local_addr().unwrap().to_string());
    for (role, field) in [
        ("memtable", "listen"),
        ("sstable", "listen"),
        ("sstable", "http"),
        ("pnode", "grpc"),
        ("pnode", "admin"),
        ("pnode", "resp"),
    ] {
        let file = file(dir.path(), role).await;
        let set = |value: &str| {
            let text = std::fs::read_to_string(&file).unwrap();
            let lines = text.lines().map(|line| match line.starts_with(&format!("{field} = ")) {
                true => format!("{field} = {value}\n"),
                false => format!("{line}\n"),
            });
            std::fs::write(&file, lines.collect::<String>()).unwrap();
        };
        set(&addr);
        let (code, said) = ended(server(role, &file));
        assert!(code == Some(FAILED) && said.contains("in use"), "{role} {field}: {code:?}: {said}");
        set("\"127.0.0.1:99999\"");
        let (code, said) = ended(server(role, &file));
        assert!(code == Some(USAGE) && said.contains(field), "{role} {field}: {code:?}: {said}");
    }
}

#[tokio::test]
async fn a_second_server_of_one_id_does_not_start_beside_the_first() {
    let dir = tempfile::tempdir().unwrap();
    for role in ["memtable", "sstable"] {
        let first = file(dir.path(), role).await;
        let socket_path = dir.path().join(format!("{role}.notify"));
        let socket = UnixDatagram::bind(&socket_path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = server(role, &first);
        let mut running = command.env("NOTIFY_SOCKET", &socket_path).stderr(Stdio::null()).spawn().unwrap();
        while !next(&socket).starts_with("READY=1") {}
        // On another host, so to speak: neither port nor directory is the first one's.
        let text = std::fs::read_to_string(&first).unwrap();
        let listen = text.lines().find(|line| line.starts_with("listen = ")).unwrap().to_owned();
        let data = text.lines().find(|line| line.starts_with("data_dir = ")).unwrap().to_owned();
        let elsewhere = format!("data_dir = {:?}", dir.path().join(format!("{role}-elsewhere")));
        let second = dir.path().join(format!("{role}-second.toml"));
        std::fs::write(&second, text.replace(&listen, "listen = \"127.0.0.1:0\"").replace(&data, &elsewhere))
            .unwrap();
        // (It does start beside a first one that is too slow to answer.)
        let mut refused = (0..3).map(|_| ended(server(role, &second)));
        let (code, line) = refused.find(|(code, _)| code.is_some()).expect("it ends by itself");
        assert_eq!(code, Some(FAILED), "{line}");
        assert!(line.contains("runs already") && line.contains("two servers with one id"), "{line}");
        terminate(&running);
        assert!(running.wait().unwrap().success());
    }
}

#[tokio::test]
async fn a_host_that_has_no_name_is_named_and_nothing_ends() {
    let dir = tempfile::tempdir().unwrap();
    for role in ["memtable", "pnode"] {
        let file = file(dir.path(), role).await;
        let text = std::fs::read_to_string(&file).unwrap();
        // The second memtable server's.
        let addr = text.split("{ id = 2, addr = \"").nth(1).unwrap().split('"').next().unwrap();
        std::fs::write(&file, text.replacen(addr, "nowhere.invalid:7300", 1)).unwrap();
        let mut child = server(role, &file).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line =
            said.find(|line| line.contains("nowhere.invalid:7300")).expect("it says whom it looks for");
        assert!(line.contains("cannot connect to nowhere.invalid:7300: "), "{line}");
        terminate(&child);
        let rest: Vec<String> = said.collect();
        assert!(child.wait().unwrap().success());
        let lines = rest.iter().filter(|line| line.contains("nowhere.invalid")).count();
        assert!(lines <= 1, "once for each reason: {rest:?}");
    }
}

#[tokio::test]
async fn servers_of_another_cluster_say_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let theirs = file(dir.path(), "memtable").await;
    let mut command = server("memtable", &theirs);
    let mut memtable = command.env("NOTIFY_SOCKET", &path).spawn().unwrap();
    while !next(&socket).starts_with("READY=1") {}
    let theirs = std::fs::read_to_string(&theirs).unwrap();
    let cluster = &theirs[theirs.find("[cluster]").unwrap()..];
    for (field, wrong) in [("partitions = 1", "partitions = 2"), ("id = \"c\"", "id = \"other\"")] {
        let ours = file(dir.path(), "pnode").await;
        let text = std::fs::read_to_string(&ours).unwrap();
        let own = &text[..text.find("[cluster]").unwrap()];
        std::fs::write(&ours, format!("{own}{}", cluster.replace(field, wrong))).unwrap();
        let mut pnode = server("pnode", &ours).spawn().unwrap();
        let mut said = BufReader::new(pnode.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = said.find(|line| line.contains("refuses")).expect("it says what is wrong");
        assert!(line.contains("this is memtable-1 of cluster \"c\" with 1 partition;"), "{line}");
        let ours =
            if field.starts_with("id") { "\"other\" with 1 partition:" } else { "\"c\" with 2 partitions:" };
        assert!(line.contains(&format!("this p-node, which is of cluster {ours}")), "{line}");
        terminate(&pnode);
        assert!(pnode.wait().unwrap().success());
    }
    // And so does whoever was asked, once for each caller and reason.
    terminate(&memtable);
    let said = BufReader::new(memtable.stderr.take().unwrap()).lines().map(Result::unwrap);
    let refused: Vec<String> = said.filter(|line| line.contains("calls are refused")).collect();
    assert!(memtable.wait().unwrap().success());
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains("pnode-1") && refused[0].contains("127.0.0.1"), "{}", refused[0]);
}

/// Which signal says that somebody waits for a file: of Linux, not in `libc`.
const F_SETSIG: libc::c_int = 10;

/// Holds whoever opens the file, for as long as the kernel lets it: most of a minute.
struct Lease(std::fs::File);

impl Lease {
    fn on(path: &Path) -> Self {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let fd = file.as_raw_fd();
        // SAFETY: the descriptor is open. By default the signal would end this process; this one does nothing.
        let taken = unsafe {
            libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        assert!(taken, "{}: {}", path.display(), std::io::Error::last_os_error());
        Self(file)
    }

    /// Somebody waits for the file.
    fn holds_somebody(&self) -> bool {
        // SAFETY: the descriptor is open.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETLEASE) != libc::F_WRLCK }
    }
}

#[tokio::test]
async fn a_server_that_is_still_reading_its_log_stops_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let file = file(dir.path(), "memtable").await;
    let mut command = server("memtable", &file);
    command.env("NOTIFY_SOCKET", &path);
    tells(command, &socket);

    let segment = log_segment(&dir.path().join("memtable"));
    let lease = Lease::on(&segment);
    let mut command = server("memtable", &file);
    let mut child = command.env("NOTIFY_SOCKET", &path).stderr(Stdio::null()).spawn().unwrap();
    assert!(next(&socket).starts_with("STATUS=starting"));
    while !lease.holds_somebody() {
        assert!(child.try_wait().unwrap().is_none(), "it does not need {}", segment.display());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    terminate(&child);
    // Before it is ready: that it would be when the kernel has taken the file from us.
    let said = next(&socket);
    assert!(said.starts_with("STOPPING=1\nSTATUS="), "{said}");
    assert!(child.wait().unwrap().success());
}

/// The first, wherever in the directory.
fn log_segment(dir: &Path) -> PathBuf {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().is_some_and(|e| e == "log") {
                _ if path.is_dir() => left.push(path),
                true => found.push(path),
                false => {}
            }
        }
    }
    found.sort();
    found.swap_remove(0)
}
