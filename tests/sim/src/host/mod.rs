//! A simulated machine: its clocks, disk, network, and the switches that faults turn.
//!
//! Owns what survives a restart (disk, clocks, counters of former lives) and makes the [`Env`] of each life.

mod net;

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use sextant_environment::Env;
use sextant_environment::env::{Fatal, Workers};
use sextant_environment::rng::SeededRng;
use sextant_environment::vfs::IoKind;
use sextant_rules::probe::{PausePoint, Probe, ProbeEvent};
use sextant_simulated::FaultyVfs;
use tokio::sync::Notify;

use crate::clock::{ClockQuality, SimClock};
use crate::invariants::Teller;
use crate::world::World;
use net::SimNetwork;

pub struct Host {
    pub name: String,
    pub index: usize,
    pub world: Arc<World>,
    pub clock: Arc<SimClock>,
    pub disk: FaultyVfs,
    /// Asks the software to stop in order.
    pub stop: Notify,
    switches: Mutex<Switches>,
}

#[derive(Default)]
struct Switches {
    /// The process stands still: no byte comes or goes.
    paused: bool,
    /// The process is to die, and sends nothing more.
    dead: Option<String>,
    waiting: Vec<Waker>,
    /// The software ended by itself, and how.
    ended: Option<Result<(), String>>,
    lives: u64,
    /// Chance of a pause at a pause point, in millionths, and its length.
    pauses: Pauses,
    paused_at_points: u64,
    /// Until this true time every task stops at this point.
    held: Option<(PausePoint, u64)>,
    /// Until this true time every task stops at this point for so many nanoseconds.
    slowed: Option<(PausePoint, u64, u64)>,
    disk: DiskSpeed,
    rng: Rng,
}

/// How often and for how long tasks stop at pause points.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pauses {
    /// In millionths.
    pub chance_ppm: u64,
    pub max_ms: u64,
    /// A point at which they stop more often.
    pub focus: Option<(PausePoint, u64)>,
}

/// A small generator for choices that must not disturb anybody else's.
struct Rng(fastrand::Rng);

impl Default for Rng {
    fn default() -> Self {
        Self(fastrand::Rng::with_seed(0))
    }
}

/// How long a disk takes, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskSpeed {
    pub read_us: u64,
    pub write_us: u64,
    pub sync_us: u64,
    /// True time until which every operation hangs.
    pub hangs_until_ns: u64,
    /// The same for fsyncs alone: the rest is between the process and memory.
    pub syncs_hang_until_ns: u64,
}

impl Host {
    pub fn new(
        world: &Arc<World>,
        index: usize,
        name: &str,
        quality: ClockQuality,
        disk: DiskSpeed,
    ) -> Arc<Self> {
        let seed = mix(world.seed, index as u64);
        let mut rng = fastrand::Rng::with_seed(seed);
        let clock = Arc::new(SimClock::new(world.time.clone(), quality, rng.u64(1_000_000_000..1 << 50)));
        let vfs = FaultyVfs::new(rng.u64(..));
        let switches = Switches { disk, rng: Rng(rng), ..Switches::default() };
        let host = Arc::new(Self {
            name: name.to_owned(),
            index,
            world: world.clone(),
            clock,
            disk: vfs,
            stop: Notify::new(),
            switches: Mutex::new(switches),
        });
        let weak = Arc::downgrade(&host);
        host.disk.set_delay(move |kind| weak.upgrade()?.disk_delay(kind));
        host
    }

    /// The environment of a new life.
    pub fn boot(self: &Arc<Self>) -> Env {
        let lives = {
            let mut switches = self.switches.lock();
            switches.lives += 1;
            switches.dead = None;
            switches.ended = None;
            switches.lives
        };
        let seed = mix(mix(self.world.seed, self.index as u64), lives);
        Env {
            clock: self.clock.clone(),
            rng: Arc::new(SeededRng::new(seed)),
            vfs: Arc::new(self.disk.clone()),
            net: Arc::new(SimNetwork(self.clone())),
            workers: Arc::new(Tasks),
            fatal: Arc::new(Dies(self.clone())),
            probe: Some(Arc::new(HostProbe(self.clone()))),
        }
    }

    pub fn trace(&self, what: &str, bytes: &[u8]) {
        self.world.trace(&self.name, what, bytes);
    }

    /// The software ended by itself.
    pub fn ended(&self, how: Result<(), String>) {
        self.trace(
            if how.is_ok() { "ended" } else { "failed" },
            how.as_ref().err().map_or(&[], |e| e.as_bytes()),
        );
        self.switches.lock().ended = Some(how);
    }

    pub fn take_ended(&self) -> Option<Result<(), String>> {
        self.switches.lock().ended.take()
    }

    /// Why the process is to die, if it is.
    pub fn take_death(&self) -> Option<String> {
        self.switches.lock().dead.take()
    }

    /// Stops the process, or lets it go on: bytes and clocks. Its timers run on (a timer may fire early by its clock, which
    /// nothing may rely on).
    pub fn pause(&self, pause: bool) {
        self.clock.freeze(pause);
        let waiting = {
            let mut switches = self.switches.lock();
            switches.paused = pause;
            if pause { Vec::new() } else { std::mem::take(&mut switches.waiting) }
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    pub fn set_pauses(&self, pauses: Pauses) {
        self.switches.lock().pauses = pauses;
    }

    /// All tasks that come to this point within so many milliseconds stop there until these are over.
    pub fn hold_at(&self, point: PausePoint, ms: u64) {
        self.switches.lock().held = Some((point, self.world.now_ns() + ms * 1_000_000));
    }

    /// All tasks that come to this point within so many milliseconds stop there for so many.
    pub fn slow_at(&self, point: PausePoint, within_ms: u64, each_ms: u64) {
        let until_ns = self.world.now_ns() + within_ms * 1_000_000;
        self.switches.lock().slowed = Some((point, until_ns, each_ms * 1_000_000));
    }

    /// How often tasks have stopped.
    pub fn paused_at_points(&self) -> u64 {
        self.switches.lock().paused_at_points
    }

    pub fn lives(&self) -> u64 {
        self.switches.lock().lives
    }

    pub fn set_disk_speed(&self, change: impl FnOnce(&mut DiskSpeed)) {
        change(&mut self.switches.lock().disk);
    }

    /// How long a connection that is refused takes to fail.
    fn refusal_delay(&self) -> Duration {
        let mut switches = self.switches.lock();
        match switches.rng.0.bool() {
            true => Duration::from_millis(1),
            false => Duration::from_millis(switches.rng.0.u64(10..5_000)),
        }
    }

    fn poll_gate(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut switches = self.switches.lock();
        if switches.dead.is_some() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if switches.paused {
            switches.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn disk_delay(&self, kind: IoKind) -> Option<Duration> {
        let now_ns = self.world.now_ns();
        let mut switches = self.switches.lock();
        let hangs_until_ns = match kind {
            IoKind::Sync => switches.disk.hangs_until_ns.max(switches.disk.syncs_hang_until_ns),
            IoKind::Read | IoKind::Write => switches.disk.hangs_until_ns,
        };
        if hangs_until_ns > now_ns {
            return Some(Duration::from_nanos(hangs_until_ns - now_ns));
        }
        let us = match kind {
            IoKind::Read => switches.disk.read_us,
            IoKind::Write => switches.disk.write_us,
            IoKind::Sync => switches.disk.sync_us,
        };
        if us == 0 {
            return None;
        }
        // Between half and one and a half times as long.
        Some(Duration::from_micros(us / 2 + switches.rng.0.u64(0..=us)))
    }
}

pub fn mix(a: u64, b: u64) -> u64 {
    let z = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x6a09_e667_f3bc_c909);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Workers are tasks of the host.
struct Tasks;

impl Workers for Tasks {
    fn dedicated(&self, _name: &str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn cores(&self) -> usize {
        2
    }
}

/// A fatal error: the host goes silent at once, and its process is killed at the end of the step.
struct Dies(Arc<Host>);

impl Fatal for Dies {
    fn fatal(&self, message: &str) {
        self.0.trace("fatal", message.as_bytes());
        let mut switches = self.0.switches.lock();
        if switches.dead.is_none() {
            switches.dead = Some(message.to_owned());
        }
    }
}

struct HostProbe(Arc<Host>);

impl Probe for HostProbe {
    fn event(&self, event: ProbeEvent) {
        let host = &self.0;
        let now_ns = host.world.now_ns();
        if let ProbeEvent::Led { partition, node, .. } = event {
            host.world.leads(partition, node);
        }
        if let ProbeEvent::LoadHeld { .. } = event {
            host.world.load_is_held();
        }
        let teller = Teller {
            host: host.index,
            name: &host.name,
            clock: &host.clock,
            under_faults: host.world.is_faulty(),
            durable_replicas: &|id| host.world.durable_replicas(id),
        };
        let found = host.world.invariants.lock().event(&teller, now_ns, &event);
        if let Some(found) = found {
            host.world.violation(found);
        }
    }

    fn pause(&self, at: PausePoint) -> Option<Duration> {
        let host = &self.0;
        let now_ns = host.world.now_ns();
        let mut switches = host.switches.lock();
        if let Some((_, until_ns)) =
            switches.held.filter(|(point, until_ns)| *point == at && *until_ns > now_ns)
        {
            switches.paused_at_points += 1;
            return Some(Duration::from_nanos(until_ns - now_ns));
        }
        if let Some((.., each_ns)) =
            switches.slowed.filter(|(point, until_ns, _)| *point == at && *until_ns > now_ns)
        {
            switches.paused_at_points += 1;
            return Some(Duration::from_nanos(each_ns));
        }
        let pauses = switches.pauses;
        let chance_ppm = match pauses.focus {
            Some((point, chance_ppm)) if point == at => chance_ppm,
            _ => pauses.chance_ppm,
        };
        if chance_ppm == 0 || switches.rng.0.u64(0..1_000_000) >= chance_ppm {
            return None;
        }
        let pause = Duration::from_millis(switches.rng.0.u64(1..=pauses.max_ms));
        switches.paused_at_points += 1;
        drop(switches);
        host.trace(&format!("pauses at {at:?}"), &(pause.as_millis() as u64).to_le_bytes());
        Some(pause)
    }
}
