//! One run: builds the world of a seed, steps it to its end, and says what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sextant_checker::{Expiry, Options as CheckOptions, Recorder, Verdict as Checked};

use sextant_rules::mutant::{self, Mutant};

use crate::clock::{ClockQuality, TrueClock};
use crate::cluster::Cluster;
use crate::host::{DiskSpeed, Host, mix};
use crate::interpose;
use crate::invariants::Invariants;
use crate::nemesis::Nemesis;
use crate::plan::{Plan, Profile, Scene};
use crate::report::{Report, Verdict};
use crate::workload::{self, Shared};
use crate::world::{Phase, World};

/// The grain of simulated time.
const TICK: Duration = Duration::from_millis(1);
/// A run that takes longer is stuck.
const RUN_MAX: Duration = Duration::from_secs(300);
/// What a check may cost: a few seconds for a key. Time goes on by less than an hour, whatever the clocks say: so what lives for an
/// hour is there to the end.
const CHECKS: CheckOptions = CheckOptions {
    steps_per_key: 3_000_000,
    steps_per_group: 300_000,
    expiry: Expiry { early_ns: 3_000 * 1_000_000_000, late_ns: u64::MAX },
};

#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    pub profile: Profile,
    /// A scene to come back to, whatever the seed says.
    pub theme: Option<Scene>,
    /// Whether servers lose their memory. None: the seed says.
    pub wipes: Option<bool>,
    /// Whether modes of leases and bounds on drift change. None: they do.
    pub modes: Option<bool>,
    /// Whether tables change in any case.
    pub changes: bool,
    pub mutant: Option<Mutant>,
    pub invariants: bool,
    pub trace: bool,
    /// Where the history is written, if anywhere.
    pub history: Option<std::path::PathBuf>,
}

pub fn run(options: &Options) -> Report {
    let started_ns = interpose::real_ns();
    if let Some(mutant) = options.mutant {
        mutant::activate(mutant);
    }
    interpose::start(options.seed);
    sextant_raft_log::seed_openraft(options.seed);
    let mut rng = fastrand::Rng::with_seed(mix(options.seed, 1));
    let mut of_memory = fastrand::Rng::with_seed(mix(options.seed, 4));
    let mut plan = Plan::new(&mut rng, options.profile, options.theme).with(
        &mut of_memory,
        options.wipes,
        options.modes,
    );
    plan.changes = plan.changes.max(usize::from(options.changes));
    let lies = options.profile == Profile::LyingClocks;
    let world = World::new(options.seed, options.trace, Invariants::new(options.invariants, !lies));
    world.note(&format!("{plan:?}"));

    let mut sim = turmoil::Builder::new()
        .rng_seed(mix(options.seed, 2))
        .tick_duration(TICK)
        .simulation_duration(RUN_MAX)
        .epoch(std::time::UNIX_EPOCH + Duration::from_nanos(interpose::EPOCH_NS))
        .tcp_capacity(65_536)
        // Turmoil never gives back the port of an attempt that failed.
        .ephemeral_ports(10_000..=65_535)
        .enable_random_order()
        .min_message_latency(Duration::from_micros(plan.latency_us.0))
        .max_message_latency(Duration::from_micros(plan.latency_us.1))
        .build();
    let (recorder, lines) = Recorder::in_memory(Arc::new(TrueClock(world.time.clone())));
    let shared = Shared::new(&world, plan.clone(), recorder);
    let lines = Arc::new(lines);
    end_on_panic(options.seed, &world, lines.clone());
    let end = drive(&mut sim, &world, &plan, &shared, rng);
    let sim_seconds = sim.elapsed().as_secs_f64();
    // Its hosts' tasks need the world when they are dropped; the process ends soon enough.
    std::mem::forget(sim);

    let lines = lines();
    if let Some(path) = &options.history {
        // A tool's output, not a server's data.
        let _ = std::fs::write(path, &lines);
    }
    let mut report = Report {
        seed: options.seed,
        intensity: format!("{:?}", plan.intensity).to_lowercase(),
        sim_seconds,
        ok: shared.tally.ok.load(Relaxed),
        failed: shared.tally.failed.load(Relaxed),
        unknown: shared.tally.unknown.load(Relaxed),
        ..Report::default()
    };
    (report.faults, report.coverage, report.ends) = (end.faults, end.coverage, end.ends);
    judge(&mut report, &world, &lines);
    if lies && report.verdict == Verdict::Violation && world.first_violation().is_none() {
        judge_writes(&mut report, &world, &lines, end.healed_ns);
    }
    (report.trace_hash, report.trace_events) = world.trace_hash();
    report.elapsed_ms = (interpose::real_ns() - started_ns) / 1_000_000;
    report
}

/// A panic anywhere ends the run: turmoil cannot unwind through its hosts.
fn end_on_panic(seed: u64, world: &Arc<World>, lines: Arc<impl Fn() -> Vec<u8> + Send + Sync + 'static>) {
    let world = world.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let trace = std::backtrace::Backtrace::force_capture();
        eprintln!("{panic}\n{trace}");
        let at_ms = world.time.last_step_ns() / 1_000_000;
        let text = format!("at {at_ms} ms: {panic}");
        let mut report = Report { seed, verdict: Verdict::Panic, text, ..Report::default() };
        // Clients may have seen what is wrong before.
        if let Ok(checked) = sextant_checker::check_reader(&lines()[..], &CHECKS) {
            (report.certified, report.illegal_keys) = (checked.certified, checked.illegal);
        }
        println!("{}", report.to_json());
        std::process::exit(1);
    }));
}

struct End {
    faults: BTreeMap<&'static str, u64>,
    coverage: BTreeMap<&'static str, u64>,
    ends: Vec<String>,
    /// When the last fault had ended.
    healed_ns: u64,
}

/// A client's machine: good clocks, no disk to speak of.
fn client_host(world: &Arc<World>, index: usize, name: &str) -> Arc<Host> {
    let quality =
        ClockQuality { raw_ppm: 0, boot_ppm: 0, wall_error_ns: 0, wall_bound_ns: None, lies: false };
    Host::new(world, index, name, quality, DiskSpeed::default())
}

/// What a client does.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Registers,
    LeaseTrap,
    Witness,
    LateCopies,
    LateRetries,
    Mayflies,
    Snapshots,
    Objects,
    Loads,
    Changes,
}

fn drive(
    sim: &mut turmoil::Sim<'static>,
    world: &Arc<World>,
    plan: &Plan,
    shared: &Arc<Shared>,
    mut rng: fastrand::Rng,
) -> End {
    let cluster = world.time.step(0, || Cluster::build(sim, world, plan, &mut rng));
    let mut names: Vec<String> = cluster.hosts.keys().cloned().collect();
    let others = [
        Kind::LeaseTrap,
        Kind::LeaseTrap,
        Kind::Witness,
        Kind::Witness,
        Kind::Witness,
        Kind::LateCopies,
        Kind::LateCopies,
        Kind::LateRetries,
        Kind::LateRetries,
        Kind::Mayflies,
        Kind::Mayflies,
        Kind::Snapshots,
    ];
    let kinds = std::iter::repeat_n(Kind::Registers, plan.clients).chain(others);
    let kinds = kinds.chain(std::iter::repeat_n(Kind::Objects, plan.objects));
    let kinds = kinds.chain(std::iter::repeat_n(Kind::Loads, plan.loads));
    let kinds = kinds.chain(std::iter::repeat_n(Kind::Changes, plan.changes));
    for (number, kind) in kinds.enumerate() {
        let name = format!("c{}", number + 1);
        let host = client_host(world, 400 + number, &name);
        let shared = shared.clone();
        shared.working.fetch_add(1, Relaxed);
        names.push(name.clone());
        sim.client(name, async move {
            match kind {
                Kind::Registers => workload::registers(shared, host, number).await,
                Kind::LeaseTrap => workload::lease_trap(shared, host, number).await,
                Kind::Witness => workload::witness(shared, host, number).await,
                Kind::LateCopies => workload::late_copies(shared, host, number).await,
                Kind::LateRetries => workload::late_retries(shared, host, number).await,
                Kind::Mayflies => workload::mayflies(shared, host, number).await,
                Kind::Snapshots => workload::snapshots(shared, host, number).await,
                Kind::Objects => workload::objects(shared, host, number).await,
                Kind::Loads => workload::loads(shared, host, number).await,
                Kind::Changes => workload::changes(shared, host, number).await,
            }
            Ok(())
        });
    }
    let (operator, verifier) = (client_host(world, 500, "op"), client_host(world, 501, "v"));
    let (errands, of) = (client_host(world, 502, "er"), shared.clone());
    sim.client("er", async move {
        workload::run_errands(of, errands).await;
        Ok(())
    });
    if plan.wipes {
        let (warden, of) = (client_host(world, 503, "w"), shared.clone());
        sim.client("w", async move {
            workload::watch_standing(of, warden).await;
            Ok(())
        });
    }
    let of = shared.clone();
    sim.client("op", async move {
        workload::operate(of, operator).await;
        Ok(())
    });
    let of = shared.clone();
    sim.client("v", async move {
        workload::verify(of, verifier).await;
        Ok(())
    });
    // Clients have links too; the operator and the verifier are never cut off.
    let mut nemesis = Nemesis::new(world, plan, names, fastrand::Rng::with_seed(mix(world.seed, 3)));
    let (mut load_ends_ns, mut healed_ns) = (u64::MAX, u64::MAX);
    loop {
        let now_ns = sim.elapsed().as_nanos() as u64;
        let phase = world.phase();
        world.time.step_idle(now_ns);
        match phase {
            Phase::Load if load_ends_ns == u64::MAX => {
                load_ends_ns = now_ns + plan.load_ms * 1_000_000;
            }
            Phase::Load if now_ns < load_ends_ns => {
                nemesis.finale(&cluster, now_ns, load_ends_ns);
            }
            Phase::Load => {
                nemesis.last_blow(sim, &cluster, now_ns);
                world.set_phase(Phase::Heal);
                nemesis.heal(sim, &cluster);
                healed_ns = now_ns;
            }
            _ => {}
        }
        nemesis.act(sim, &cluster, now_ns, phase == Phase::Load);
        let finished = world.time.step(now_ns, || sim.step()).expect("no client fails");
        if finished || world.phase() == Phase::Done || world.first_violation().is_some() {
            break;
        }
    }
    let mut coverage = cluster.counters.sums();
    let seen = world.invariants.lock().seen;
    coverage.extend([
        ("published", seen.published),
        ("truncated_groups", seen.truncated_groups),
        ("truncated_freezes", seen.truncated_freezes),
        ("rings_renewed_over_groups", seen.rings_renewed_over_groups),
        ("views", seen.views),
        ("flushes_under_faults", seen.flushes_under_faults),
        ("compactions_under_faults", seen.compactions_under_faults),
        ("pauses_at_points", cluster.hosts.values().map(|(_, h)| h.paused_at_points()).sum()),
        ("lives", cluster.hosts.values().map(|(_, h)| h.lives()).sum()),
        ("keys", shared.keys.lock().len() as u64),
    ]);
    for (what, count) in shared.maintenance.lock().iter() {
        coverage.insert(what, *count);
    }
    End { faults: nemesis.injected, coverage, ends: nemesis.ends, healed_ns }
}

/// Clocks beyond their bounds cost the freshness of reads while they are used, and nothing else: what was written stands, and
/// shows in the end.
fn judge_writes(report: &mut Report, world: &World, lines: &[u8], healed_ns: u64) {
    let stale = std::mem::take(&mut report.text);
    world.note(&format!("clocks lied, and reads were wrong: {stale}"));
    let kept: Vec<u8> =
        lines.split_inclusive(|b| *b == b'\n').filter(|l| stands(l, healed_ns)).flatten().copied().collect();
    (report.verdict, report.illegal_keys) = (Verdict::Ok, 0);
    judge(report, world, &kept);
    if report.verdict == Verdict::Ok {
        report.coverage.insert("runs_with_stale_reads", 1);
    }
}

/// Whether a line of the history says something that does not rest on leases: a write that took effect or may have, or
/// something of the time when all is well.
fn stands(line: &[u8], healed_ns: u64) -> bool {
    let Ok(op) = serde_json::from_slice::<serde_json::Value>(line) else { return true };
    let is_read = op["op"] == "get" || ["exists", "absent", "failed"].iter().any(|out| op["out"] == *out);
    !is_read || op["call"].as_u64().is_none_or(|call| call >= healed_ns)
}

fn judge(report: &mut Report, world: &World, lines: &[u8]) {
    if let Some(text) = world.first_violation() {
        report.verdict = Verdict::Violation;
        report.text = text;
        if !report.ends.is_empty() {
            report.text += &format!("; servers that ended: {}", report.ends.join("; "));
        }
    }
    let checked = match sextant_checker::check_reader(lines, &CHECKS) {
        Ok(checked) => checked,
        Err(e) => {
            report.verdict = Verdict::Violation;
            report.text = format!("the history cannot be read: {e}");
            return;
        }
    };
    (report.certified, report.illegal_keys) = (checked.certified, checked.illegal);
    report.coverage.insert("object_groups", checked.groups);
    match checked.verdict() {
        Checked::Linearizable => {}
        Checked::Violation => {
            let and = if report.verdict == Verdict::Violation {
                format!("{}; and ", report.text)
            } else {
                String::new()
            };
            report.verdict = Verdict::Violation;
            report.text = format!("{and}{checked}");
        }
        Checked::BudgetExceeded if report.verdict == Verdict::Ok => {
            report.verdict = Verdict::Undecided;
            report.text = checked.to_string();
        }
        Checked::BudgetExceeded => {}
    }
}
