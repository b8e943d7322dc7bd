//! What a server tells systemd (units of `Type=notify`): when it serves, and that it stops.
//!
//! A datagram of lines `NAME=value` to the socket that `NOTIFY_SOCKET` names: a path, or `@` and a name that is in no
//! file system. Where nobody has set that nothing is sent; what cannot be sent changes nothing for the server.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const SOCKET: &str = "NOTIFY_SOCKET";

/// It reads its disks; that may take a while.
pub fn starts() {
    tell("STATUS=starting: reading what is on disk");
}

/// It listens. (The others need not: whether it is ready is another question.)
pub fn serves(listens: &[String]) {
    let listens = listens.join(", ");
    tell(&format!("READY=1\nSTATUS=listening on {listens}; whether it is ready says `sextant health`"));
}

pub fn stops() {
    tell("STOPPING=1\nSTATUS=stopping: finishing what is under way");
}

fn tell(lines: &str) {
    let Some(socket) = std::env::var_os(SOCKET).filter(|socket| !socket.is_empty()) else { return };
    if let Err(e) = send(&socket, lines) {
        tracing::warn!("{SOCKET} is set, and systemd cannot be told: {e}");
    }
}

fn send(socket: &OsStr, lines: &str) -> io::Result<()> {
    let addr = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(lines.as_bytes(), &addr)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn a_socket_is_a_path_or_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&socket), "READY=1");

        let name = format!("sextant-{}", path.display());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(received(&socket), "STOPPING=1");
        assert!(send(OsStr::new("/nowhere/notify"), "READY=1").is_err());
    }
}
