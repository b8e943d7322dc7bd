//! Passwords that are compared, and those that wait for that.
//!
//! Owns: how many are compared at a time and may wait, how many of these from one address, and which comparisons need not be made
//! (again). Does not own who is a user: that everybody is compared for as long is the [desk's](crate::Desk) business.
//!
//! Invariant: what somebody is told, and when, depends on the address it comes from and on what others do, never on whether the name
//! is a user's.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use ring::hmac;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Env;
use tokio::sync::{OnceCell, Semaphore};

use crate::user::User;

/// Passwords that are being compared at a time, each with 19 MiB and a core of its own, and those that wait for that.
const COMPARISONS_MAX: usize = 2;
const WAITING_MAX: usize = 256;
/// Of these, from one address: one that asks all the time keeps nobody else from coming in.
const WAITING_PER_ORIGIN_MAX: usize = WAITING_MAX / 8;
/// Kept for addresses from which somebody has come in before, and for this machine: so operators come in though many ask.
const KEPT: usize = WAITING_MAX / 4;
/// Such addresses that are known.
const KNOWN_MAX: usize = 4096;
/// Comparisons whose outcome is remembered, so that a client that shows its password with every call costs little.
const REMEMBERED_MAX: usize = 1024;

/// Of name, password and the hashes that it is compared with.
type Tag = [u8; 32];

/// Whose places are counted together.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Origin {
    /// A Unix socket.
    Socket,
    Loopback,
    V4([u8; 4]),
    /// A network of /64: whoever has one address of it mostly has all.
    V6([u8; 8]),
}

impl Origin {
    /// None: a Unix socket.
    fn of(addr: Option<SocketAddr>) -> Self {
        match addr.map(|addr| addr.ip().to_canonical()) {
            None => Self::Socket,
            Some(ip) if ip.is_loopback() => Self::Loopback,
            Some(IpAddr::V4(ip)) => Self::V4(ip.octets()),
            Some(IpAddr::V6(ip)) => {
                let [a, b, c, d, e, f, g, h, ..] = ip.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }

    fn is_here(self) -> bool {
        matches!(self, Self::Socket | Self::Loopback)
    }
}

/// Who waits.
#[derive(Debug, Default)]
struct Places {
    taken: usize,
    by_origin: HashMap<Origin, usize>,
    /// From which somebody has come in; the one that came first goes first.
    known: HashSet<Origin>,
    in_order: VecDeque<Origin>,
}

impl Places {
    fn take(&mut self, origin: Origin) -> bool {
        let is_known = origin.is_here() || self.known.contains(&origin);
        let most = if is_known { WAITING_MAX } else { WAITING_MAX - KEPT };
        let of_origin = self.by_origin.get(&origin).copied().unwrap_or(0);
        if self.taken >= most || of_origin >= WAITING_PER_ORIGIN_MAX {
            return false;
        }
        self.taken += 1;
        self.by_origin.insert(origin, of_origin + 1);
        true
    }

    fn give_back(&mut self, origin: Origin) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(count) = self.by_origin.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.by_origin.remove(&origin);
            }
        }
    }

    fn know(&mut self, origin: Origin) {
        if origin.is_here() || !self.known.insert(origin) {
            return;
        }
        self.in_order.push_back(origin);
        if self.in_order.len() > KNOWN_MAX
            && let Some(first) = self.in_order.pop_front()
        {
            self.known.remove(&first);
        }
    }
}

/// One who waits, until it is dropped.
struct Place<'p>(&'p Mutex<Places>, Origin);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.lock().give_back(self.1);
    }
}

/// A comparison that several may wait for: those that show the same password together, as a client's connections do.
type Outcome = Arc<OnceCell<bool>>;

/// One who waits for an outcome, until it is dropped; the last one forgets it.
struct Shared<'o> {
    all: &'o Mutex<HashMap<Tag, Outcome>>,
    tag: Tag,
    outcome: Outcome,
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        // (Beside this one there is that of the map.)
        if Arc::strong_count(&self.outcome) <= 2 {
            all.remove(&self.tag);
        }
    }
}

pub(crate) struct Comparisons {
    env: Env,
    turns: Arc<Semaphore>,
    places: Mutex<Places>,
    under_way: Mutex<HashMap<Tag, Outcome>>,
    /// Right ones.
    remembered: Mutex<HashSet<Tag>>,
    key: hmac::Key,
}

impl Comparisons {
    pub fn new(env: Env) -> Result<Self> {
        let random = ring::rand::SystemRandom::new();
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &random)
            .map_err(|_| Error::internal("the operating system gives no random numbers"))?;
        Ok(Self {
            env,
            turns: Arc::new(Semaphore::new(COMPARISONS_MAX)),
            places: Mutex::default(),
            under_way: Mutex::default(),
            remembered: Mutex::default(),
            key,
        })
    }

    /// Whether it is a password of `user`, who is called `name`.
    pub async fn knows(
        &self,
        name: &str,
        password: &[u8],
        user: User,
        from: Option<SocketAddr>,
    ) -> Result<bool> {
        let (tag, origin) = (self.tag(name, password, &user), Origin::of(from));
        let is_right = self.remembered.lock().contains(&tag) || {
            let is_right = self.once(tag, origin, user, password).await?;
            if is_right {
                self.remember(tag);
            }
            is_right
        };
        if is_right {
            self.places.lock().know(origin);
        }
        Ok(is_right)
    }

    /// Those that ask the same meanwhile need no place.
    async fn once(&self, tag: Tag, origin: Origin, user: User, password: &[u8]) -> Result<bool> {
        let outcome = self.under_way.lock().entry(tag).or_default().clone();
        let shared = Shared { all: &self.under_way, tag, outcome };
        let compared = shared.outcome.get_or_try_init(|| self.compare(origin, user, password));
        compared.await.copied()
    }

    /// On a thread of its own, of which there are few.
    async fn compare(&self, origin: Origin, user: User, password: &[u8]) -> Result<bool> {
        if !self.places.lock().take(origin) {
            return Err(Error::new(ErrorKind::Overloaded, "too many passwords are being compared"));
        }
        let _place = Place(&self.places, origin);
        let permit = self.turns.clone().acquire_owned().await;
        let password = password.to_vec();
        let compared = self.env.blocking(move || {
            let _permit = permit;
            user.knows(&password)
        });
        compared.await.ok_or_else(|| Error::new(ErrorKind::Stopping, "the server is stopping"))
    }

    fn remember(&self, tag: Tag) {
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(tag);
    }

    fn tag(&self, name: &str, password: &[u8], user: &User) -> Tag {
        let mut context = hmac::Context::with_key(&self.key);
        let mut part = |bytes: &[u8]| {
            context.update(&(bytes.len() as u64).to_le_bytes());
            context.update(bytes);
        };
        part(name.as_bytes());
        part(password);
        user.passwords.iter().for_each(|phc| part(phc.as_bytes()));
        let mut tag = [0; 32];
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;
    use std::pin::Pin;

    use tokio::sync::OwnedSemaphorePermit;

    use super::*;
    use crate::desk::nobody;

    fn v4(last: u8) -> Option<SocketAddr> {
        Some(SocketAddr::from(([10, 0, 0, last], 1)))
    }

    /// While this is held nothing is compared.
    async fn all_turns(all: &Comparisons) -> OwnedSemaphorePermit {
        all.turns.clone().acquire_many_owned(COMPARISONS_MAX as u32).await.unwrap()
    }

    type Asked<'c> = Pin<Box<dyn Future<Output = Result<bool>> + 'c>>;

    /// Those of so many that have a place to wait, each with a password of its own.
    async fn crowd(all: &Comparisons, from: Option<SocketAddr>, count: usize) -> Vec<Asked<'_>> {
        let mut wait = Vec::new();
        for at in 0..count {
            let password = format!("{from:?} {at}");
            let ask = async move { all.knows("eve", password.as_bytes(), nobody(), from).await };
            // (Or the runtime would stop it after a while, which looks as if it waited.)
            let mut asked: Asked<'_> = Box::pin(tokio::task::unconstrained(ask));
            match futures::poll!(asked.as_mut()) {
                std::task::Poll::Pending => wait.push(asked),
                std::task::Poll::Ready(told) => assert_eq!(told.unwrap_err().kind, ErrorKind::Overloaded),
            }
        }
        wait
    }

    #[tokio::test]
    async fn whoever_asks_all_the_time_from_one_address_keeps_nobody_else_from_coming_in() {
        let all = Comparisons::new(Env::real()).unwrap();
        let turns = all_turns(&all).await;
        let crowded = crowd(&all, v4(1), WAITING_MAX).await;
        assert_eq!(crowded.len(), WAITING_PER_ORIGIN_MAX);
        let mut others = crowd(&all, v4(2), 1).await;
        drop(crowded);
        let again = crowd(&all, v4(1), 1).await;
        assert_eq!((again.len(), all.places.lock().taken), (1, 2));
        drop((turns, again));
        assert!(!others.remove(0).await.unwrap());
        let places = all.places.lock();
        assert!(places.taken == 0 && places.by_origin.is_empty());
    }

    #[tokio::test]
    async fn places_are_kept_for_addresses_from_which_somebody_has_come_in_and_for_this_machine() {
        let all = Comparisons::new(Env::real()).unwrap();
        let right =
            User { passwords: vec![crate::hash(b"right", &*Env::real().rng).unwrap()], ..User::default() };
        assert!(all.knows("root", b"right", right, v4(200)).await.unwrap());
        let _turns = all_turns(&all).await;
        let mut strangers = Vec::new();
        for last in 1..=20 {
            strangers.extend(crowd(&all, v4(last), WAITING_PER_ORIGIN_MAX).await);
        }
        assert_eq!(strangers.len(), WAITING_MAX - KEPT);
        let mut others = Vec::new();
        for from in [v4(200), Some("127.0.0.1:9".parse().unwrap()), None] {
            others.extend(crowd(&all, from, 1).await);
        }
        assert_eq!(others.len(), 3);
    }

    #[tokio::test]
    async fn those_that_show_the_same_password_together_take_one_place() {
        let all = Comparisons::new(Env::real()).unwrap();
        let turns = all_turns(&all).await;
        let ask = || all.knows("eve", b"wrong", nobody(), v4(1));
        let mut asked: Vec<_> = (0..1000).map(|_| Box::pin(ask())).collect();
        for one in &mut asked {
            assert!(futures::poll!(one.as_mut()).is_pending());
        }
        assert_eq!(all.places.lock().taken, 1);
        // Whoever goes keeps the others from nothing.
        drop(asked.remove(0));
        drop(turns);
        for told in futures::future::join_all(asked).await {
            assert!(!told.unwrap());
        }
        assert_eq!((all.places.lock().taken, all.under_way.lock().len()), (0, 0));
    }

    #[test]
    fn an_address_is_one_however_it_is_written_and_a_network_of_one_client_is() {
        let of = |ip: &str| Origin::of(Some(SocketAddr::new(ip.parse().unwrap(), 7)));
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!([of("127.0.0.2"), of("::1")], [Origin::Loopback; 2]);
        assert_eq!(of(&Ipv6Addr::LOCALHOST.to_string()), Origin::Loopback);
    }

    #[test]
    fn of_known_addresses_the_first_is_forgotten_first() {
        let mut places = Places::default();
        for at in 0..=KNOWN_MAX as u32 {
            places.know(Origin::V4(at.to_be_bytes()));
            places.know(Origin::V4(at.to_be_bytes()));
        }
        assert!(
            !places.known.contains(&Origin::V4([0; 4])) && places.known.contains(&Origin::V4([0, 0, 0, 1]))
        );
        assert_eq!((places.known.len(), places.in_order.len()), (KNOWN_MAX, KNOWN_MAX));
    }
}
