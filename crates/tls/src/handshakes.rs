//! Handshakes under way at one listener: how many come from one address, so that nobody alone keeps all others out.
//!
//! Owns these shares; how many there are at a time, and how long one may take, is for who serves the connections, and for
//! the [network](crate::TlsNetwork).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use sextant_environment::env::HANDSHAKES_MAX;

/// Of one origin. Far more than a host opens at once; and it takes several to leave none for others.
pub(crate) const PER_ORIGIN_MAX: usize = HANDSHAKES_MAX / 4;

/// Whose handshakes are counted together: an address; of IPv6 its /64, since whoever has one of these mostly has all. None: not known.
type Origin = Option<IpAddr>;

#[derive(Default)]
pub(crate) struct Handshakes(Mutex<HashMap<Origin, usize>>);

/// One that is under way, or is about to be, until it is dropped.
pub(crate) struct Share {
    of: Arc<Handshakes>,
    origin: Origin,
}

impl Handshakes {
    /// None: as many are under way with this origin as may be.
    pub fn begin(self: &Arc<Self>, peer: Option<SocketAddr>) -> Option<Share> {
        let origin = peer.map(origin);
        let mut under_way = self.0.lock();
        let count = under_way.entry(origin).or_default();
        if *count >= PER_ORIGIN_MAX {
            return None;
        }
        *count += 1;
        Some(Share { of: self.clone(), origin })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut under_way = self.of.0.lock();
        if let Some(count) = under_way.get_mut(&self.origin) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.origin);
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
    use super::*;

    fn peer(addr: &str) -> Option<SocketAddr> {
        Some(addr.parse().unwrap())
    }

    #[test]
    fn each_origin_has_its_share_and_what_is_over_is_forgotten() {
        let handshakes = Arc::new(Handshakes::default());
        // Ports are no origins, nor are the addresses of a network of /64, nor other ways to write one of IPv4.
        for same in [
            ["192.0.2.1:1", "192.0.2.1:2", "[::ffff:192.0.2.1]:3"],
            ["[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8:0:0:ffff::]:1"],
        ] {
            let mut under_way: Vec<_> = (0..PER_ORIGIN_MAX)
                .map(|at| handshakes.begin(peer(same[at % same.len()])).expect("it may"))
                .collect();
            assert!(same.iter().all(|addr| handshakes.begin(peer(addr)).is_none()));
            for other in ["192.0.2.2:1", "[2001:db8:0:1::1]:1"] {
                assert!(handshakes.begin(peer(other)).is_some(), "{other}");
            }
            assert!(handshakes.begin(None).is_some());
            under_way.pop();
            assert!(handshakes.begin(peer(same[0])).is_some());
        }
        assert!(handshakes.0.lock().is_empty());
    }
}
