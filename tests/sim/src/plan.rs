//! What a seed decides before a run begins: the shape of the cluster, of the workload and of the faults.

use sextant_common::manifest::{Compression, TableOptions};
use sextant_environment::config::{LeaseConfig, LeaseMode};
use sextant_memtable_server::Tuning;
use sextant_pnode::RegisterReads;
use sextant_rules::probe::PausePoint;

use crate::clock::ClockQuality;
use crate::host::{DiskSpeed, Pauses};

/// How a run is chosen beyond its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Everything by the seed; clocks keep their promises.
    Mixed,
    /// No faults at all.
    Quiet,
    /// Wall clocks and drifts beyond their stated bounds: answers may be wrong, but the cluster must come back.
    LyingClocks,
}

impl Profile {
    pub const ALL: [(&'static str, Profile); 3] =
        [("mixed", Profile::Mixed), ("quiet", Profile::Quiet), ("lying-clocks", Profile::LyingClocks)];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, p)| *p)
    }
}

/// How much goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Intensity {
    Quiet,
    Light,
    Normal,
    Heavy,
}

/// A scene: faults and commands that only together, and in this order, lead to where a rule is needed. Lengths and pauses in
/// between are drawn. Half of the runs have one as their theme and come back to it again and again; all others meet each now
/// and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// A leader is stopped with answers on their way to it, and wakes with one p-node in a world of its own.
    Asleep,
    /// The world of an old leader: one p-node and it, apart from all other memtable servers and p-nodes.
    OldWorld,
    /// A follower that lags decides the election after the leader's loss: the new one has to bring it up to date first.
    Laggard,
    /// A leader apart from its peers takes writes in; it loses leadership, and gets it back.
    ThereAndBack,
    /// What a p-node has sent to the leaders arrives long after its clients went elsewhere.
    LateCopies,
    /// Raft refuses proposals of a leader whose own lease still lives, and so do those of p-nodes.
    RefusedProposals,
    /// Memtables are flushed while publication waits for a p-node that is not heard.
    FlushUnderLease,
    /// Leadership changes hands while publication waits for a p-node that is not heard.
    HandoverUnderLease,
    /// A leader's log device hangs, and it lets go, while publication waits for a p-node that is not heard.
    HungUnderLease,
    /// What the SSTables say reaches a p-node after they have been overtaken by flushes.
    LateSstables,
    /// Whatever a p-node acknowledges comes too late, again and again.
    SlowPNode,
    /// The mode of leases changes while groups are on their way into the log.
    ModeInFlight,
    /// A leader that has voted for another, and does not know yet what that means, hears of appends of its own that were
    /// accepted meanwhile.
    LateConfirmation,
    /// A leader without its peers is told to go on alone.
    AloneBySentence,
    /// Leaders answer late to what they have read, while the same records are written, and the ring begins anew.
    SlowAnswers,
    /// A load is committed while a p-node is not heard.
    LoadUnderLease,
    /// Whoever leads, or writes SSTables, is lost while a load is committed.
    LoadInterrupted,
}

impl Scene {
    pub const ALL: [Scene; 17] = [
        Scene::Asleep,
        Scene::OldWorld,
        Scene::Laggard,
        Scene::ThereAndBack,
        Scene::LateCopies,
        Scene::RefusedProposals,
        Scene::FlushUnderLease,
        Scene::HandoverUnderLease,
        Scene::HungUnderLease,
        Scene::LateSstables,
        Scene::SlowPNode,
        Scene::ModeInFlight,
        Scene::LateConfirmation,
        Scene::AloneBySentence,
        Scene::SlowAnswers,
        Scene::LoadUnderLease,
        Scene::LoadInterrupted,
    ];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|scene| scene.name() == name).copied()
    }

    /// Under what it is counted.
    pub fn name(self) -> &'static str {
        match self {
            Scene::Asleep => "asleep",
            Scene::OldWorld => "old_world",
            Scene::Laggard => "laggard",
            Scene::ThereAndBack => "there_and_back",
            Scene::LateCopies => "late_copies",
            Scene::RefusedProposals => "refused_proposals",
            Scene::FlushUnderLease => "flush_under_lease",
            Scene::HandoverUnderLease => "handover_under_lease",
            Scene::HungUnderLease => "hung_under_lease",
            Scene::LateSstables => "late_sstables",
            Scene::SlowPNode => "slow_pnode",
            Scene::ModeInFlight => "mode_in_flight",
            Scene::LateConfirmation => "late_confirmation",
            Scene::AloneBySentence => "alone_by_sentence",
            Scene::SlowAnswers => "slow_answers",
            Scene::LoadUnderLease => "load_under_lease",
            Scene::LoadInterrupted => "load_interrupted",
        }
    }

    /// Whether it is about bulk loads.
    pub fn loads(self) -> bool {
        matches!(self, Scene::LoadUnderLease | Scene::LoadInterrupted)
    }
}

const POINTS: [PausePoint; 9] = [
    PausePoint::ReadRouted,
    PausePoint::SstablesAnswered,
    PausePoint::PullAnswered,
    PausePoint::LeaseTimed,
    PausePoint::MemtablesRead,
    PausePoint::MemtablesRead,
    PausePoint::BitsOut,
    PausePoint::VoteGuardAsked,
    PausePoint::SstableSealed,
];

#[derive(Clone, Debug)]
pub struct Plan {
    pub profile: Profile,
    pub intensity: Intensity,
    pub partitions: u32,
    /// The default table, and others.
    pub tables: Vec<(String, TableOptions)>,
    pub lease: LeaseConfig,
    pub tuning: Tuning,
    pub cache_bytes: u64,
    pub register_reads: RegisterReads,
    pub clients: usize,
    pub hot_keys: u64,
    pub cold_keys: u64,
    /// Most bytes that a value is padded to.
    pub value_bytes: usize,
    /// Longest pause of a client between two operations.
    pub think_ms: u64,
    pub load_ms: u64,
    pub latency_us: (u64, u64),
    pub disk: DiskSpeed,
    pub pauses: Pauses,
    pub theme: Option<Scene>,
    /// Memtable servers lose their memory; followers' disks are full when they need a snapshot.
    pub wipes: bool,
    /// The operator changes the mode of leases and the bound on drift, too.
    pub modes: bool,
    /// Clients of the Redis protocol that use objects.
    pub objects: usize,
    /// Clients that load in bulk.
    pub loads: usize,
    /// Clients that change, drop and make tables.
    pub changes: usize,
}

pub const MEMTABLE_SERVERS: usize = 3;
/// One more than a table has replicas: tables move.
pub const SSTABLE_SERVERS: usize = 4;
pub const PNODES: usize = 2;
/// How far an unsynchronised wall clock may be off.
const UNSYNCHRONISED_NS: i64 = 5_000_000_000;

impl Plan {
    /// Half of the runs have wipes, and the operator of the others changes voters: who may be wiped is judged by who votes now.
    /// Modes and drift bounds change in all. What is asked for counts for more.
    pub fn with(mut self, rng: &mut fastrand::Rng, wipes: Option<bool>, modes: Option<bool>) -> Self {
        let drawn = rng.bool();
        self.tuning.threads = if drawn { 2 } else { 1 };
        let voters = self.theme == Some(Scene::AloneBySentence);
        self.wipes = wipes.unwrap_or(drawn) && self.profile != Profile::Quiet && !voters;
        let modal = matches!(self.theme, Some(Scene::ModeInFlight | Scene::SlowAnswers));
        self.modes = modes.unwrap_or(true) || modal;
        if self.wipes {
            // Followers that were away need snapshots.
            self.tuning.log_entries_kept = 5;
        }
        let registers = self.theme == Some(Scene::SlowAnswers);
        self.register_reads = match rng.u64(0..8) {
            _ if registers => RegisterReads::Every,
            0 => RegisterReads::Off,
            1 => RegisterReads::Second,
            _ => RegisterReads::Every,
        };
        self.tuning.bf_log_serials = *pick(rng, &[4, 64, 512 * 1024, 512 * 1024]);
        // What is kept stands in the cache.
        if rng.u64(0..4) > 0 || registers {
            self.cache_bytes = 1 << 20;
        }
        self.tuning.default_filter_inserts = rng.u64(0..4) == 0;
        let compressions = [Compression::None, Compression::Lz4, Compression::Zstd];
        self.tuning.default_compression = *pick(rng, &compressions);
        self.tuning.sst_lost_after_ms = *pick(rng, &[0, 500, 2_000]);
        // In half of the runs tables are cut into columns that a memtable fills.
        self.tuning.sst_target_bytes = *pick(rng, &[1024, 4096, 64 << 10, 128 << 20]);
        self.tuning.rest_after_ms = *pick(rng, &[0, 300, 2_000]);
        // (What reads and writes at once cannot be judged by its writes alone.)
        self.objects = if self.profile == Profile::LyingClocks { 0 } else { rng.usize(2..=4) };
        // Writes are held back for each: other runs are without.
        let themed = self.theme.is_some_and(Scene::loads);
        self.loads = match rng.u64(0..6) {
            _ if self.profile == Profile::LyingClocks => 0,
            0 => 2,
            1 | 2 => 1,
            _ => usize::from(themed),
        };
        // The same.
        self.changes = match rng.u64(0..6) {
            _ if self.profile == Profile::LyingClocks => 0,
            0 | 1 => 1,
            _ => 0,
        };
        self
    }

    /// `theme`: instead of one that is drawn.
    pub fn new(rng: &mut fastrand::Rng, profile: Profile, theme: Option<Scene>) -> Self {
        let drawn = if rng.bool() { Some(*pick(rng, &Scene::ALL)) } else { None };
        let theme = theme.or(drawn).filter(|_| profile != Profile::Quiet);
        let intensity = match (profile, rng.u64(0..8)) {
            (Profile::Quiet, _) => Intensity::Quiet,
            (_, 0) if theme.is_none() => Intensity::Quiet,
            (_, 0..=2) => Intensity::Light,
            (_, 3..=5) => Intensity::Normal,
            _ => Intensity::Heavy,
        };
        let mut tables = vec![("default".to_owned(), TableOptions::default())];
        for n in 1..rng.usize(1..=3) {
            // Pairs have a prefix of three bytes each.
            let filter_prefix = if n == 1 { 3 } else { 0 };
            let filter_inserts = rng.bool();
            let options = TableOptions { filter_inserts, filter_prefix, ..TableOptions::default() };
            tables.push((format!("t{n}"), options));
        }
        let lease_ms = *pick(rng, &[100, 200, 300]);
        let mut lease = LeaseConfig {
            mode: if rng.u64(0..10) == 0 { LeaseMode::Timed } else { LeaseMode::Ack },
            lease_ms,
            leader_lease_ms: lease_ms + 100,
            heartbeat_ms: 40,
            drift_ppm: *pick(rng, &[100, 500, 10_000]),
            ..LeaseConfig::default()
        };
        let memtable_bytes = *pick(rng, &[4096, 8192, 16 << 10, 64 << 10]);
        let mut tuning = Tuning {
            log_segment_bytes: 1 << 20,
            log_cache_bytes: *pick(rng, &[16 << 10, 1 << 20]),
            log_entries_kept: *pick(rng, &[5, 50, 2_000]),
            // (With few entries kept, their bytes do not matter.)
            log_bytes_kept: if memtable_bytes == 4096 { Tuning::default().log_bytes_kept } else { 256 << 10 },
            log_entries_per_append: *pick(rng, &[1, 16, 512]),
            memtable_bytes,
            freeze_age_ms: *pick(rng, &[2_000, 10_000, 1_800_000]),
            memory_bytes: *pick(rng, &[64, 1024]) * memtable_bytes,
            grace_ms: *pick(rng, &[10, 200, 2_000]),
            grace_bytes: *pick(rng, &[4 << 10, 1 << 20]),
            sst_replicas_required: if rng.u64(0..4) == 0 { 3 } else { 2 },
            compaction_trigger: rng.usize(2..=6),
            sst_delete_grace_ms: *pick(rng, &[500, 2_000]),
            repair_interval_ms: *pick(rng, &[200, 1_000]),
            groups_in_flight: rng.usize(1..=4),
            group_bytes: *pick(rng, &[256, 4096, 1 << 20]),
            ..Tuning::default()
        };
        let mut cache_bytes = *pick(rng, &[0, 4 << 10, 1 << 20]);
        // What a scene needs to get anywhere.
        match theme {
            Some(Scene::Laggard) => {
                (tuning.log_entries_per_append, tuning.group_bytes) = (*pick(rng, &[1, 1, 4]), 256);
            }
            Some(Scene::FlushUnderLease) => {
                (tuning.grace_ms, tuning.grace_bytes) = (10, 4 << 10);
                (lease.lease_ms, lease.leader_lease_ms) = (300, 400);
            }
            Some(Scene::RefusedProposals | Scene::ThereAndBack) => {
                (lease.lease_ms, lease.leader_lease_ms) = (100, 200);
            }
            Some(Scene::ModeInFlight) => {
                tuning.groups_in_flight = tuning.groups_in_flight.max(2);
                (lease.lease_ms, lease.leader_lease_ms) = (200, 300);
            }
            Some(Scene::SlowAnswers) => (lease.lease_ms, lease.leader_lease_ms) = (100, 200),
            Some(Scene::LoadUnderLease) => {
                (lease.lease_ms, lease.leader_lease_ms) = (300, 400);
                cache_bytes = 1 << 20;
            }
            Some(Scene::LateConfirmation) => (lease.lease_ms, lease.leader_lease_ms) = (300, 400),
            Some(Scene::LateSstables) => cache_bytes = 1 << 20,
            Some(Scene::HandoverUnderLease) => (lease.lease_ms, lease.leader_lease_ms) = (200, 260),
            Some(Scene::HungUnderLease) => {
                (lease.lease_ms, lease.leader_lease_ms) = (300, 400);
                tuning.disk_stall_ms = 200;
            }
            _ => {}
        }
        // Scenes in which little else may happen in between.
        let apart = matches!(theme, Some(Scene::HungUnderLease | Scene::FlushUnderLease));
        let paused = intensity >= Intensity::Normal || rng.bool();
        let point = match theme {
            // Reads that an old leader is about to answer.
            Some(Scene::HandoverUnderLease) => Some(PausePoint::MemtablesRead),
            _ if rng.u64(0..3) == 0 => Some(*pick(rng, &POINTS)),
            _ => None,
        };
        let focus = point.map(|point| (point, rng.u64(30_000..200_000)));
        Self {
            profile,
            intensity,
            partitions: if apart { 1 } else { rng.u32(1..=3) },
            tables,
            tuning,
            cache_bytes,
            register_reads: RegisterReads::Every,
            theme,
            wipes: false,
            modes: false,
            objects: 0,
            loads: 0,
            changes: 0,
            clients: rng.usize(3..=6),
            hot_keys: rng.u64(2..=6),
            cold_keys: rng.u64(40..=120),
            value_bytes: *pick(rng, &[16, 100, 400]),
            think_ms: *pick(rng, &[0, 5, 20]),
            load_ms: rng.u64(8_000..20_000),
            latency_us: (rng.u64(0..500), rng.u64(1_000..4_000)),
            disk: DiskSpeed {
                read_us: rng.u64(0..300),
                write_us: rng.u64(0..300),
                sync_us: rng.u64(200..4_000),
                hangs_until_ns: 0,
                syncs_hang_until_ns: 0,
            },
            pauses: match intensity == Intensity::Quiet || !paused || apart {
                true => Pauses::default(),
                false => Pauses {
                    chance_ppm: rng.u64(1_000..30_000),
                    max_ms: lease.leader_lease_ms + rng.u64(0..lease.leader_lease_ms * 3),
                    focus,
                },
            },
            lease,
        }
    }

    /// A host's clocks. Within the stated bounds, unless the profile says otherwise.
    pub fn clocks(&self, rng: &mut fastrand::Rng) -> ClockQuality {
        let lies = self.profile == Profile::LyingClocks;
        let rho = self.lease.drift_ppm as i64 * if lies { 20 } else { 1 };
        let mut ppm = || match rng.u64(0..4) {
            0 => rho,
            1 => -rho,
            _ => rng.i64(-rho..=rho),
        };
        let (raw_ppm, boot_ppm) = (ppm(), ppm());
        let bound = *pick(rng, &[100_000i64, 1_000_000, 10_000_000]);
        let synchronised = rng.bool();
        let error = match synchronised {
            true if lies => bound * 20,
            true => bound,
            // Nobody promises anything.
            false => UNSYNCHRONISED_NS,
        };
        ClockQuality {
            raw_ppm,
            boot_ppm,
            wall_error_ns: rng.i64(-error..=error),
            wall_bound_ns: synchronised.then_some(bound as u64),
            lies,
        }
    }
}

pub fn pick<'t, T>(rng: &mut fastrand::Rng, of: &'t [T]) -> &'t T {
    &of[rng.usize(0..of.len())]
}
