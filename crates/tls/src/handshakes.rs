//! Handshakes under way at one listener: how many come from one address, so that nobody alone keeps all others out.
//!
//! Owns these shares; how many there are at a time, and how long one may take, is for who serves the connections, and for
//! the [network](crate::TlsNetwork).
//!
//! Who has its share loses the oldest for the newest, if that one is not about to be done: so a client is let in also where
//! somebody behind the same address keeps thousands half open.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sextant_environment::env::HANDSHAKES_MAX;
use tokio::sync::Notify;

/// Of one origin, if some of them take long: those of a host that opens thousands at once are all young.
pub(crate) const PER_ORIGIN_MAX: usize = HANDSHAKES_MAX / 4;
/// A handshake that takes no longer is left alone.
const YOUNG_NS: u64 = Duration::from_millis(500).as_nanos() as u64;

/// Whose handshakes are counted together: an address; of IPv6 its /64, since whoever has one of these mostly has all. None: not known.
type Origin = Option<IpAddr>;

#[derive(Default)]
pub(crate) struct Handshakes(Mutex<UnderWay>);

#[derive(Default)]
struct UnderWay {
    last: u64,
    /// The oldest first; no empty ones.
    of: HashMap<Origin, VecDeque<One>>,
}

struct One {
    number: u64,
    began_ns: u64,
    lost: Arc<Notify>,
}

/// One that is under way, or is about to be, until it is dropped.
pub(crate) struct Share {
    of: Arc<Handshakes>,
    origin: Origin,
    number: u64,
    lost: Arc<Notify>,
}

impl Handshakes {
    pub fn begin(self: &Arc<Self>, peer: Option<SocketAddr>, now_ns: u64) -> Share {
        let origin = peer.map(origin);
        let lost = Arc::new(Notify::new());
        let mut under_way = self.0.lock();
        under_way.last += 1;
        let number = under_way.last;
        let own = under_way.of.entry(origin).or_default();
        while own.len() >= PER_ORIGIN_MAX
            && own.front().is_some_and(|one| now_ns.saturating_sub(one.began_ns) > YOUNG_NS)
        {
            own.pop_front().into_iter().for_each(|one| one.lost.notify_one());
        }
        own.push_back(One { number, began_ns: now_ns, lost: lost.clone() });
        Share { of: self.clone(), origin, number, lost }
    }
}

impl Share {
    /// Returns when a newer one has taken its place. (Once.)
    pub async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut under_way = self.of.0.lock();
        if let Some(own) = under_way.of.get_mut(&self.origin) {
            if let Ok(at) = own.binary_search_by_key(&self.number, |one| one.number) {
                own.remove(at);
            }
            if own.is_empty() {
                under_way.of.remove(&self.origin);
            }
        }
    }
}

fn origin(peer: SocketAddr) -> IpAddr {
    match peer.ip().to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn peer(addr: &str) -> Option<SocketAddr> {
        Some(addr.parse().unwrap())
    }

    fn is_lost(share: &Share) -> bool {
        share.lost().now_or_never().is_some()
    }

    #[test]
    fn who_has_its_share_loses_the_oldest_for_the_newest() {
        let handshakes = Arc::new(Handshakes::default());
        // Ports are no origins, nor are the addresses of a network of /64, nor other ways to write one of IPv4.
        for same in [
            ["192.0.2.1:1", "192.0.2.1:2", "[::ffff:192.0.2.1]:3"],
            ["[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8:0:0:ffff::]:1"],
        ] {
            let begin = |at: usize, now_ns| handshakes.begin(peer(same[at % same.len()]), now_ns);
            let mut under_way: Vec<_> = (0..PER_ORIGIN_MAX).map(|at| begin(at, at as u64)).collect();
            let others = ["192.0.2.2:1", "[2001:db8:0:1::1]:1"].map(|addr| handshakes.begin(peer(addr), 0));
            let unknown = handshakes.begin(None, 0);
            // All are young.
            under_way.push(begin(0, YOUNG_NS));
            assert!(!under_way.iter().any(is_lost));
            // One of them more than there may be, and two are not.
            under_way.push(begin(1, YOUNG_NS + 2));
            let lost: Vec<_> = (0..under_way.len()).filter(|at| is_lost(&under_way[*at])).collect();
            assert_eq!(lost, [0, 1]);
            assert!(!others.iter().chain([&unknown]).any(is_lost));
            // What is over makes room.
            under_way.truncate(PER_ORIGIN_MAX / 2);
            under_way.push(begin(2, 10 * YOUNG_NS));
            assert!(!under_way[2..].iter().any(is_lost));
        }
        assert!(handshakes.0.lock().of.is_empty());
    }
}
