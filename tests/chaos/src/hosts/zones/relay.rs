//! Clients of this machine that are in zone B: what they say is taken there, past the line.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sextant_common::error::{Error, Result};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// A server that is down does not even refuse.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Ends when it is dropped.
pub struct Relay {
    /// Where clients connect to.
    pub addr: String,
    /// What it leads to.
    to: Arc<Mutex<String>>,
    _accepting: JoinSet<()>,
}

impl Relay {
    /// From a port of `bind` to `to`, which is reached from within a namespace.
    pub async fn start(bind: &str, namespace: &Path, to: String) -> Result<Self> {
        let failed = |e: io::Error| Error::unavailable(format!("a way to zone B: {e}"));
        let listener = TcpListener::bind((bind, 0)).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?.to_string();
        let namespace = Arc::new(File::open(namespace).map_err(failed)?);
        let to = Arc::new(Mutex::new(to));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, namespace, to.clone()));
        Ok(Self { addr, to, _accepting: accepting })
    }

    /// The server has another address now.
    pub fn lead_to(&self, to: String) {
        *self.to.lock() = to;
    }
}

async fn accept(listener: TcpListener, namespace: Arc<File>, to: Arc<Mutex<String>>) {
    let mut carrying = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let to = to.lock().clone();
                carrying.spawn(carry(client, namespace.clone(), to));
            }
            Some(_) = carrying.join_next() => {}
        }
    }
}

/// What fails ends the connection: the client sees that.
async fn carry(mut client: TcpStream, namespace: Arc<File>, to: String) {
    let connected = async {
        let to = to.parse().map_err(io::Error::other)?;
        socket_within(&namespace)?.connect(to).await
    };
    if let Ok(Ok(mut server)) = tokio::time::timeout(CONNECT_WITHIN, connected).await {
        let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}

/// A socket stays in the namespace in which it was made.
fn socket_within(namespace: &File) -> io::Result<TcpSocket> {
    let home = File::open("/proc/thread-self/ns/net")?;
    enter(namespace)?;
    let socket = TcpSocket::new_v4();
    if let Err(e) = enter(&home) {
        // This thread runs other tasks, too.
        tracing::error!("no way back to this machine's network: {e}");
        std::process::abort();
    }
    socket
}

/// This thread alone.
fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
