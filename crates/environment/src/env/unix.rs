//! Unix sockets: listening under a path, for clients on the same machine.
//!
//! Owns: how a socket comes to its path and leaves it. Invariants:
//! * A path that somebody listens at is never taken from them; only a socket that nobody answers at is replaced, and no other
//!   kind of file.
//! * At its path a socket has its mode from the first moment on.
//! * Whoever stops removes its own socket, not a successor's.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use tokio::net::{UnixListener, UnixSocket, UnixStream};

use super::net::{Connection, Listener};

/// Connections that wait to be accepted: as many as for TCP.
const BACKLOG: u32 = 1024;
/// A socket has another name until it is at its path; so many are tried, and what is there already stays.
const NAMES_MAX: usize = 16;

struct UnixAcceptor {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket.
    mine: Option<(u64, u64)>,
}

/// Listens at `path`, with this file mode.
pub async fn bind(path: PathBuf, mode: u32) -> io::Result<Box<dyn Listener>> {
    let bound = bound(path.clone(), mode).await;
    let listener = bound.map_err(|e| named("listen on", &path, &e))?;
    Ok(Box::new(listener))
}

pub async fn connect(path: &Path) -> io::Result<Connection> {
    let stream = UnixStream::connect(path).await.map_err(|e| named("connect to", path, &e))?;
    Ok(Connection::unix(stream))
}

fn named(what: &str, path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("cannot {what} {}: {e}", path.display()))
}

async fn bound(path: PathBuf, mode: u32) -> io::Result<UnixAcceptor> {
    make_way(&path).await?;
    let (socket, fresh) = fresh(&path)?;
    // Nobody is listened to yet, so nobody comes in who may not.
    let set_up = || {
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(mode))?;
        let listener = socket.listen(BACKLOG)?;
        let mine = std::fs::symlink_metadata(&fresh)?;
        std::fs::rename(&fresh, &path)?;
        Ok((listener, mine))
    };
    let (listener, mine) = set_up().inspect_err(|_: &io::Error| {
        let _ = std::fs::remove_file(&fresh);
    })?;
    Ok(UnixAcceptor { listener, path, mine: Some((mine.dev(), mine.ino())) })
}

/// A socket beside the path, under a name that nobody has.
fn fresh(path: &Path) -> io::Result<(UnixSocket, PathBuf)> {
    let mut names = (0..NAMES_MAX).map(|n| {
        let mut name = path.to_owned().into_os_string();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    });
    loop {
        let Some(name) = names.next() else {
            let text = format!("remove what is left of {}.0 to .{}", path.display(), NAMES_MAX - 1);
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        };
        let socket = UnixSocket::new_stream()?;
        match socket.bind(&name) {
            Ok(()) => return Ok((socket, name)),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(e),
        }
    }
}

enum Kind {
    Nothing,
    Socket,
    Other,
}

fn kind_of(path: &Path) -> io::Result<Kind> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => Ok(Kind::Socket),
        Ok(_) => Ok(Kind::Other),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Kind::Nothing),
        Err(e) => Err(e),
    }
}

/// What is at the path may be replaced, or there is nothing.
async fn make_way(path: &Path) -> io::Result<()> {
    match kind_of(path)? {
        Kind::Nothing => Ok(()),
        Kind::Other => Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket")),
        Kind::Socket => match UnixStream::connect(path).await {
            // Whoever had it is gone: a process that was killed leaves its socket behind.
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            // Also if it is so busy that nobody else can wait.
            _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody listens there")),
        },
    }
}

impl Listener for UnixAcceptor {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a Unix socket has a path, and no address"))
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async { Ok(Connection::unix(self.listener.accept().await?.0)) })
    }
}

impl Drop for UnixAcceptor {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path).ok().map(|found| (found.dev(), found.ino()));
        if found.is_some() && found == self.mine {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn place() -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        (dir, path)
    }

    async fn refused(path: &Path) -> io::Error {
        bind(path.to_owned(), 0o600).await.err().unwrap()
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_the_mode_is_the_one_asked_for() {
        let (dir, path) = place();
        let mut listener = bind(path.clone(), 0o660).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left there");
        assert!(listener.local_addr().is_err());
        let mut near = connect(&path).await.unwrap();
        // Served by another runtime than the one that accepts.
        let mut far = listener.accept().await.unwrap().detach().unwrap().attach().unwrap();
        near.write_all(b"ping").await.unwrap();
        let mut heard = [0; 4];
        far.read_exact(&mut heard).await.unwrap();
        far.write_all(b"pong").await.unwrap();
        near.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"pong");
        drop(listener);
        assert!(!path.exists(), "who stops leaves nothing behind");
        assert_eq!(connect(&path).await.err().unwrap().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn a_socket_is_replaced_only_if_nobody_listens_there() {
        let (_dir, path) = place();
        // A process that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let first = bind(path.clone(), 0o600).await.unwrap();
        let error = refused(&path).await;
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("s.sock: somebody listens there"), "{error}");
        // Removed by somebody, and made anew: the first one's end is not the second one's.
        std::fs::remove_file(&path).unwrap();
        let second = bind(path.clone(), 0o600).await.unwrap();
        drop(first);
        connect(&path).await.unwrap();
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_beside_a_socket_is_nobodys_business() {
        let (dir, path) = place();
        let beside = |end: &str| dir.path().join(format!("s.sock{end}"));
        drop(std::os::unix::net::UnixListener::bind(beside(".new")).unwrap());
        drop(std::os::unix::net::UnixListener::bind(beside(".0")).unwrap());
        std::fs::write(beside(".1"), b"a letter").unwrap();
        let _listener = bind(path.clone(), 0o600).await.unwrap();
        connect(&path).await.unwrap();
        assert!(beside(".new").exists() && beside(".0").exists());
        assert_eq!(std::fs::read(beside(".1")).unwrap(), b"a letter");
        for n in 2..NAMES_MAX {
            std::fs::write(beside(&format!(".{n}")), b"").unwrap();
        }
        std::fs::remove_file(&path).unwrap();
        assert!(refused(&path).await.to_string().contains("s.sock.0 to .15"));
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone_and_bad_paths_are_named() {
        let (dir, path) = place();
        std::fs::write(&path, b"a letter").unwrap();
        let error = refused(&path).await;
        assert!(error.to_string().contains("a file that is no socket"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"a letter");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        assert!(refused(&path).await.to_string().contains("no socket"));
        let error = refused(&dir.path().join("no/such/directory.sock")).await;
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("directory.sock"), "{error}");
        let error = refused(&dir.path().join("x".repeat(120))).await;
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
