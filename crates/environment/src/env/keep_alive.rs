//! TCP keepalive: how it is noticed that the host at the other end has vanished, where nobody writes.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// How often a silent peer is asked before its connection fails.
const TRIES: u32 = 3;
/// The kernel counts seconds.
const LEAST: Duration = Duration::from_secs(1);

/// The peer is asked when nothing has come from it for so long, and the connection fails after as long again (Redis' way).
pub(super) fn keep_alive(stream: &tokio::net::TcpStream, after: Duration) -> io::Result<()> {
    let after = after.max(LEAST);
    let every = (after / TRIES).max(LEAST);
    let asked = TcpKeepalive::new().with_time(after).with_interval(every).with_retries(TRIES);
    SockRef::from(stream).set_tcp_keepalive(&asked)
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_silent_peer_is_asked_whether_it_is_still_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(!SockRef::from(&stream).keepalive().unwrap());
        keep_alive(&stream, Duration::from_secs(300)).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(300));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(100));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), TRIES);
    }
}
