//! How much of a p-node one user may take: connections, operations a second, bytes of requests that are not answered yet.
//!
//! Owns the counts. What to do with whoever wants more is the front ends' business: the Redis front end reads on later, gRPC refuses
//! with `RESOURCE_EXHAUSTED`. Limits are each p-node's own. Where clients need not be users, all of them together are the user
//! `default`. A user without a limit costs nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Clock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const SECOND_NS: u64 = 1_000_000_000;
/// Longest idle time, in seconds: beyond it somebody mistook the unit.
const IDLE_S_MAX: u64 = 365 * 24 * 3600;
/// Least bytes in flight, if they are limited: a request with the longest key and some value.
const BYTES_MIN: u64 = 1024 * 1024;

/// The section `[limits]` of a p-node. Everything is 0 by default: no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// A Redis client's connection without traffic and without a command under way is closed after one to one and a half times so
    /// many seconds.
    pub idle_s: u64,
    /// Of each user.
    pub user: Limits,
    /// Of some, instead.
    pub users: BTreeMap<String, Limits>,
}

/// What one user may take of one p-node; 0: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections of Redis clients, and gRPC calls under way.
    pub connections: u64,
    /// Commands and calls; those of a second may come at once.
    pub operations_per_s: u64,
    /// Of requests that are not answered yet.
    pub bytes_in_flight: u64,
}

impl LimitsConfig {
    pub fn validate(&self) -> Result<()> {
        if self.idle_s > IDLE_S_MAX {
            return Err(Error::invalid(format!("limits.idle_s is {}: at most {IDLE_S_MAX}", self.idle_s)));
        }
        let each = self.users.iter().map(|(name, limits)| (format!("limits.users.{name}"), limits));
        for (name, limits) in [("limits.user".to_owned(), &self.user)].into_iter().chain(each) {
            if (1..BYTES_MIN).contains(&limits.bytes_in_flight) {
                let bytes = limits.bytes_in_flight;
                return Err(Error::invalid(format!(
                    "{name}.bytes_in_flight is {bytes}: 0, or at least {BYTES_MIN}"
                )));
            }
            if limits.bytes_in_flight > u64::from(u32::MAX) {
                return Err(Error::invalid(format!("{name}.bytes_in_flight: less than 4 GiB")));
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Which {
    limit: &'static str,
}

/// What all users of a p-node have left.
pub struct Allowances {
    clock: Arc<dyn Clock>,
    config: LimitsConfig,
    reached: [Counter; 3],
    /// Of users who have limits. Names are of users who exist: nobody fills it.
    known: Mutex<HashMap<String, Arc<Allowance>>>,
}

/// What one user has left.
pub struct Allowance {
    name: String,
    limits: Limits,
    clock: Arc<dyn Clock>,
    reached: [Counter; 3],
    connections: AtomicU64,
    bucket: Mutex<Bucket>,
    bytes: Arc<Semaphore>,
}

/// Time that is paid for. What may begin at once is paid for at most a second ahead of the clock.
#[derive(Debug, Default)]
struct Bucket {
    paid_until_ns: u64,
}

impl Bucket {
    /// When the next of `per_s` operations a second may begin: after how long, and until when time is paid for then.
    fn next(&self, per_s: u64, now_ns: u64) -> (Duration, u64) {
        let price_ns = (SECOND_NS / per_s.max(1)).max(1);
        let until_ns = self.paid_until_ns.max(now_ns).saturating_add(price_ns);
        let wait_ns = (until_ns - now_ns).saturating_sub(SECOND_NS.max(price_ns));
        (Duration::from_nanos(wait_ns), until_ns)
    }

    /// Pays for one, and says when it may begin: who comes first begins first, and nobody has to ask again.
    fn book(&mut self, per_s: u64, now_ns: u64) -> Duration {
        let (wait, until_ns) = self.next(per_s, now_ns);
        self.paid_until_ns = until_ns;
        wait
    }

    /// Pays for one that begins now, or for none.
    fn pay(&mut self, per_s: u64, now_ns: u64) -> bool {
        let (wait, until_ns) = self.next(per_s, now_ns);
        if wait.is_zero() {
            self.paid_until_ns = until_ns;
        }
        wait.is_zero()
    }
}

impl fmt::Debug for Allowances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allowances({:?})", self.config)
    }
}

impl fmt::Debug for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allowance({}: {:?})", self.name, self.limits)
    }
}

/// A connection of a user, or a call, for as long as it is there.
#[derive(Debug)]
pub struct Place(Arc<Allowance>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Allowances {
    pub fn new(clock: Arc<dyn Clock>, config: LimitsConfig, registry: &mut Registry) -> Arc<Self> {
        let family = Family::<Which, Counter>::default();
        let help =
            "Requests that had to wait or were refused because their user's limit was reached, by limit";
        registry.register("sextant_access_limit_reached", help, family.clone());
        let counter = |limit| family.get_or_create_owned(&Which { limit });
        let reached = ["connections", "operations", "bytes"].map(counter);
        Arc::new(Self { clock, config, reached, known: Mutex::default() })
    }

    /// For whoever has no limits.
    pub fn none(clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::new(clock, LimitsConfig::default(), &mut Registry::default())
    }

    /// None: the user has no limits.
    pub fn of(&self, user: &str) -> Option<Arc<Allowance>> {
        let limits = *self.config.users.get(user).unwrap_or(&self.config.user);
        if limits == Limits::default() {
            return None;
        }
        let mut known = self.known.lock();
        let allowance = known.entry(user.to_owned()).or_insert_with(|| {
            Arc::new(Allowance {
                name: user.to_owned(),
                limits,
                clock: self.clock.clone(),
                reached: self.reached.clone(),
                connections: AtomicU64::new(0),
                bucket: Mutex::default(),
                bytes: Arc::new(Semaphore::new(permits(limits.bytes_in_flight) as usize)),
            })
        });
        Some(allowance.clone())
    }
}

fn permits(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS.min(u32::MAX as usize) as u32)
}

impl Allowance {
    /// A place among the user's connections, if there is one.
    pub fn try_enter(self: &Arc<Self>) -> Option<Place> {
        let place = Place(self.clone());
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        let max = self.limits.connections;
        (max == 0 || before < max).then_some(place)
    }

    /// The same for whoever asks something and is refused without one.
    pub fn enter(self: &Arc<Self>) -> Result<Place> {
        self.try_enter().ok_or_else(|| {
            self.reached[0].inc();
            self.refusal(format!("at most {} connections", self.limits.connections))
        })
    }

    /// Counts an operation, and says after how long it may begin.
    pub fn book(&self) -> Duration {
        let per_s = self.limits.operations_per_s;
        if per_s == 0 {
            return Duration::ZERO;
        }
        let now_ns = self.clock.holder_ns();
        let wait = self.bucket.lock().book(per_s, now_ns);
        if !wait.is_zero() {
            self.reached[1].inc();
        }
        wait
    }

    /// As [`Self::book`], for whoever does not wait.
    pub fn pay_or_refuse(&self) -> Result<()> {
        let per_s = self.limits.operations_per_s;
        let now_ns = self.clock.holder_ns();
        if per_s == 0 || self.bucket.lock().pay(per_s, now_ns) {
            return Ok(());
        }
        self.reached[1].inc();
        Err(self.refusal(format!("at most {per_s} operations a second")))
    }

    /// Bytes of a request, until it is answered: at once, or not at all. (One that is larger than the limit takes all of it.)
    pub fn try_carry(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>> {
        if self.limits.bytes_in_flight == 0 {
            return Ok(None);
        }
        let taken = self.bytes.clone().try_acquire_many_owned(self.units(bytes));
        taken.map(Some).map_err(|_| {
            self.reached[2].inc();
            self.refusal(format!("at most {} bytes of requests under way", self.limits.bytes_in_flight))
        })
    }

    /// The same, as soon as there is room.
    pub async fn carry(self: Arc<Self>, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.bytes.clone().acquire_many_owned(self.units(bytes)).await.ok()
    }

    fn units(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(permits(self.limits.bytes_in_flight))
    }

    fn refusal(&self, what: String) -> Error {
        Error::new(ErrorKind::Overloaded, format!("user {} may have {what} at this p-node", self.name))
    }
}

#[cfg(test)]
mod tests {
    use sextant_environment::Env;

    use super::*;

    fn allowances(text: &str) -> Arc<Allowances> {
        let config = toml::from_str::<LimitsConfig>(text).unwrap();
        config.validate().unwrap();
        Allowances::new(Env::real().clock, config, &mut Registry::default())
    }

    #[test]
    fn limits_are_each_users_own_and_some_users_have_others() {
        let all = allowances("user.connections = 2\nusers.batch.operations_per_s = 5\nusers.free = {}");
        assert!(all.of("free").is_none());
        assert_eq!(all.of("batch").unwrap().limits.connections, 0, "instead of those of all users");
        let (alice, bob) = (all.of("alice").unwrap(), all.of("bob").unwrap());
        let places = [alice.enter().unwrap(), all.of("alice").unwrap().enter().unwrap()];
        let refused = alice.enter().unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Overloaded);
        assert!(refused.message.contains("alice") && refused.message.contains("2 connections"), "{refused}");
        bob.enter().unwrap();
        drop(places);
        alice.enter().unwrap();
        assert!(allowances("").of("anybody").is_none());
    }

    #[test]
    fn a_second_of_operations_may_come_at_once_and_then_they_come_as_time_goes() {
        let mut bucket = Bucket::default();
        let began = 5 * SECOND_NS;
        assert_eq!((0..100).filter(|_| bucket.pay(10, began)).count(), 10);
        assert!(bucket.pay(10, began + 100_000_000));
        assert!(!bucket.pay(10, began + 100_000_000));
        assert_eq!((0..100).filter(|_| bucket.pay(10, began + 10 * SECOND_NS)).count(), 10);
        assert!(Bucket::default().pay(u64::MAX, 0));
    }

    #[test]
    fn whoever_waits_has_a_place_of_its_own() {
        let mut bucket = Bucket::default();
        let waits: Vec<u64> = (0..13).map(|_| bucket.book(10, 7).as_millis() as u64).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 200, 300]);
    }

    #[tokio::test]
    async fn bytes_are_given_back_with_the_answer_and_a_large_request_takes_all() {
        let all = allowances("user.bytes_in_flight = 1048576");
        let alice = all.of("alice").unwrap();
        let first = alice.try_carry(1024 * 1024 - 10).unwrap();
        let small = alice.try_carry(10).unwrap();
        alice.try_carry(1).unwrap_err();
        let waits = alice.clone().carry(usize::MAX);
        drop((first, small));
        let all_of_it = waits.await;
        alice.try_carry(1).unwrap_err();
        drop(all_of_it);
        alice.try_carry(1).unwrap();
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "idle_s = 99999999999",
            "user.bytes_in_flight = 5",
            "users.a.bytes_in_flight = 1",
            "user.bytes_in_flight = 4294967296",
        ] {
            assert!(toml::from_str::<LimitsConfig>(bad).unwrap().validate().is_err(), "{bad}");
        }
        assert!(toml::from_str::<LimitsConfig>("user.rate = 5").is_err());
    }
}
