//! A TCP connection to a host that may have several addresses (RFC 8305): one that is silent does not hold up the others, so that a
//! host is reached although one of IPv4 and IPv6 leads nowhere.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::net::TcpStream;

/// After so long without an answer the next address is tried as well: longer than most round trips.
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// The first connection that is made. All addresses failed: why the last one did.
pub async fn dial(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut left = addresses.iter().copied();
    let mut under_way = FuturesUnordered::new();
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        match left.next() {
            Some(next) => under_way.push(TcpStream::connect(next)),
            None if under_way.is_empty() => return Err(failed),
            None => {}
        }
        let is_last = left.len() == 0;
        tokio::select! {
            Some(connected) = under_way.next() => match connected {
                Ok(stream) => return Ok(stream),
                Err(e) => failed = e,
            },
            () = tokio::time::sleep(NEXT_AFTER), if !is_last => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::env::{Door, Env, Whom};

    #[tokio::test]
    async fn whoever_listens_is_found_beside_addresses_that_lead_nowhere() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let refused = SocketAddr::new("127.0.0.2".parse().unwrap(), here.port());
        // Its queue is full: further connections are neither taken nor refused.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(0).unwrap();
        let silent = full.local_addr().unwrap();
        let _waiting = TcpStream::connect(silent).await.unwrap();

        let connected = dial(&[refused, silent, here]).await.unwrap();
        assert_eq!(connected.peer_addr().unwrap(), here);
        assert_eq!(dial(&[refused, here]).await.unwrap().peer_addr().unwrap(), here);
        assert_eq!(dial(&[refused]).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(dial(&[]).await.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[tokio::test]
    async fn whoever_listens_at_all_addresses_is_reached_at_those_of_both_kinds() {
        if let Err(e) = TcpListener::bind("[::1]:0").await {
            eprintln!("this machine has no IPv6: {e}");
            return;
        }
        let net = Env::real().net;
        let mut listener = net.bind("[::]:0".into(), Door::Members).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "[::1]"] {
            net.connect(format!("{host}:{port}"), Whom::Host).await.unwrap();
            let peer = listener.accept().await.unwrap().peer.unwrap().ip().to_canonical();
            assert_eq!(peer.to_string(), host.trim_matches(['[', ']']));
        }
    }
}
