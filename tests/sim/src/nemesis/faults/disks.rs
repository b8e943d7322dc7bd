//! Disks: slow, hung, failing, full, or rotting.

use sextant_environment::vfs::{IoKind, OpenMode, Vfs};
use sextant_simulated::Fault as Failure;

use super::{Blow, Victims};
use crate::cluster::Cluster;
use crate::nemesis::due::{Due, MS};
use crate::nemesis::means::{EXCUSED_AFTER_NS, Nemesis};
use crate::nemesis::table::{Entry, Weight, draw};
use crate::plan::pick;

const DISK_FAULTS: [Entry<DiskFault>; 7] = [
    Entry { name: "slow_disk", weight: Weight::of(1), act: slow },
    Entry { name: "hung_disk", weight: Weight::of(1), act: hung },
    Entry { name: "failed_sync", weight: Weight::of(1), act: failed_sync },
    Entry { name: "failed_write", weight: Weight::of(1), act: failed_write },
    Entry { name: "failed_reads", weight: Weight::of(1), act: failed_reads },
    Entry { name: "disk_full", weight: Weight::of(1), act: full },
    Entry { name: "bit_rot", weight: Weight::of(2), act: rot },
];

type DiskFault = fn(&mut Nemesis, &Hit<'_>);

/// Whose disk.
struct Hit<'a> {
    cluster: &'a Cluster,
    name: &'static str,
    now_ns: u64,
    /// A memtable or an sstable server.
    victim: String,
    sstable: String,
    /// When the disk is well again.
    until_ns: u64,
}

impl Hit<'_> {
    /// What was begun ends.
    fn mend(&self, n: &mut Nemesis, victim: &str) {
        n.due.push((self.until_ns, Due::DiskWell(victim.to_owned())));
    }
}

pub(super) fn one_of_them(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let victim = if n.rng.bool() { v.memtable } else { v.sstable.clone() };
    let until_ns = blow.in_ms(v.ms);
    for name in [&victim, &v.sstable] {
        n.excused.insert(name.clone(), until_ns + EXCUSED_AFTER_NS);
    }
    let fault = draw(&mut n.rng, &DISK_FAULTS, n.plan.profile);
    let (cluster, now_ns) = (blow.cluster, blow.now_ns);
    (fault.act)(n, &Hit { cluster, name: fault.name, now_ns, victim, sstable: v.sstable, until_ns });
}

fn slow(n: &mut Nemesis, hit: &Hit<'_>) {
    n.count(hit.name, &hit.victim);
    let factor = n.rng.u64(5..100);
    hit.cluster.host(&hit.victim).set_disk_speed(|s| {
        s.sync_us *= factor;
        s.write_us *= factor;
    });
    hit.mend(n, &hit.victim);
}

fn hung(n: &mut Nemesis, hit: &Hit<'_>) {
    n.count(hit.name, &hit.victim);
    let until = hit.now_ns + n.rng.u64(100..3_000) * MS;
    hit.cluster.host(&hit.victim).set_disk_speed(|s| s.hangs_until_ns = until);
    hit.mend(n, &hit.victim);
}

fn failed_sync(n: &mut Nemesis, hit: &Hit<'_>) {
    n.count(hit.name, &hit.victim);
    hit.cluster.host(&hit.victim).disk.fail_next(IoKind::Sync, 1, Failure::Io, |_| true);
    hit.mend(n, &hit.victim);
}

fn failed_write(n: &mut Nemesis, hit: &Hit<'_>) {
    n.count(hit.name, &hit.victim);
    let failure = *pick(&mut n.rng, &[Failure::Io, Failure::NoSpace]);
    hit.cluster.host(&hit.victim).disk.fail_next(IoKind::Write, 1, failure, |_| true);
    hit.mend(n, &hit.victim);
}

/// Reads of the log at the start are not meant: a server whose disk cannot be read does not start, which is right.
fn failed_reads(n: &mut Nemesis, hit: &Hit<'_>) {
    n.count(hit.name, &hit.sstable);
    let count = n.rng.u64(1..5);
    hit.cluster.host(&hit.sstable).disk.fail_next(IoKind::Read, count, Failure::Io, |_| true);
    hit.mend(n, &hit.sstable);
    hit.mend(n, &hit.victim);
}

fn full(n: &mut Nemesis, hit: &Hit<'_>) {
    n.count(hit.name, &hit.victim);
    let room = n.rng.u64(0..64 << 10);
    let disk = &hit.cluster.host(&hit.victim).disk;
    disk.set_capacity(Some(disk.used_bytes() + room));
    hit.mend(n, &hit.victim);
}

/// Bits of SSTables flip, for good, and always on the same server.
fn rot(n: &mut Nemesis, hit: &Hit<'_>) {
    let server = n.rots.clone();
    let disk = &hit.cluster.host(&server).disk;
    let mut files = disk.list("/disk".as_ref()).unwrap_or_default();
    files.retain(|f| f.extension().is_some_and(|e| e == "sst"));
    if files.is_empty() {
        return;
    }
    n.rng.shuffle(&mut files);
    for file in files.into_iter().take(n.rng.usize(1..=8)) {
        let length = disk.open(&file, OpenMode::Existing).and_then(|f| f.len()).unwrap_or(0);
        // Anywhere: records, index, filter, trailer.
        let offset = n.rng.u64(0..length.max(1));
        if disk.flip_bit(&file, offset, n.rng.u8(0..8)).is_ok() {
            n.count(hit.name, &format!("{server} {}", file.display()));
        }
    }
}
