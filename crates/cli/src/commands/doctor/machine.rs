//! Cores, memory, open files.

use std::path::{Path, PathBuf};

use sextant_environment::Env;

use super::Patient;
use super::figures::bytes;
use super::report::{Check, Finding};
use crate::process::file_limit;

/// A hierarchy of control groups: how its line in `/proc/self/cgroup` goes on after the number, and where it is mounted.
type Hierarchy = (&'static str, &'static str);

/// Version 2.
const UNIFIED: Hierarchy = ("::/", "/sys/fs/cgroup");
/// Of memory alone, in version 1.
const MEMORY: Hierarchy = (":memory:/", "/sys/fs/cgroup/memory");
/// Connections of members and clients, log segments, tables: below it a busy server runs out of them (the units in
/// `deploy/systemd` set as many, or more).
const FILES_ENOUGH: u64 = 65_536;
/// Below it not even a quiet one starts.
const FILES_MIN: u64 = 1_024;

pub fn check(patients: &[Patient]) -> Vec<Check> {
    let cores = Env::real().workers.cores();
    let quota = cgroup_limits(UNIFIED, "cpu.max", cpu_quota).into_iter().reduce(f64::min);
    let cores_check = judge_cores(cores, quota).about("cores").with("cores", cores);
    let files_check = match file_limit() {
        None => Finding::warning("the system does not tell").about("open files"),
        Some((soft, hard)) => {
            judge_files(soft, hard).about("open files").with("soft", soft).with("hard", hard)
        }
    };
    vec![cores_check, memory_check(patients), files_check]
}

fn judge_cores(cores: usize, quota: Option<f64>) -> Finding {
    match quota {
        Some(quota) => Finding::warning(format!(
            "{cores}, of which this control group may use {quota:.1}: a throttled server loses its leases"
        )),
        None if cores < 2 => Finding::warning(format!("{cores}: disks and requests wait for each other")),
        None => Finding::ok(cores.to_string()),
    }
}

fn memory_check(patients: &[Patient]) -> Check {
    let subject = "memory";
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = meminfo_bytes(&meminfo, "MemTotal");
    let group = [(UNIFIED, "memory.max"), (MEMORY, "memory.limit_in_bytes")]
        .into_iter()
        .flat_map(|(hierarchy, file)| cgroup_limits(hierarchy, file, |text| text.trim().parse().ok()))
        .min();
    let Some(there) = machine.into_iter().chain(group).min() else {
        return Finding::warning("the system does not tell").about(subject);
    };
    let needed = patients.iter().fold(0_u64, |sum, patient| sum.saturating_add(patient.file.memory_bytes()));
    let available = meminfo_bytes(&meminfo, "MemAvailable");
    let check = judge_memory(there, group.is_some_and(|group| group == there), needed).about(subject);
    let check = check.with("total_bytes", there).with("needed_bytes", needed);
    check.with("available_bytes", available)
}

fn judge_memory(there: u64, is_group: bool, needed: u64) -> Finding {
    let of = if is_group { "for this control group" } else { "in this machine" };
    let figures = format!("{} {of}", bytes(there));
    if needed == 0 {
        return Finding::ok(figures);
    }
    let figures = format!("{figures}, the settings allow {}", bytes(needed));
    match needed {
        _ if needed > there => Finding::bad(format!("{figures}: more than there is")),
        _ if needed > there / 4 * 3 => {
            Finding::warning(format!("{figures}: little is left for anything else"))
        }
        _ => Finding::ok(figures),
    }
}

fn judge_files(soft: u64, hard: u64) -> Finding {
    let figures = format!("{hard} (servers raise their limit of {soft} to that)");
    match hard {
        0..FILES_MIN => Finding::bad(format!("{figures}: too few to start with")),
        FILES_MIN..FILES_ENOUGH => Finding::warning(format!(
            "{figures}: {FILES_ENOUGH} would do; a unit's own limit is not seen here"
        )),
        _ => Finding::ok(figures),
    }
}

/// A line `MemTotal:  16303428 kB`.
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What this process' control group and those around it say in `file`.
fn cgroup_limits<T>(hierarchy: Hierarchy, file: &str, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = around(&groups, hierarchy).into_iter().filter_map(|group| {
        let text = std::fs::read_to_string(group.join(file)).ok()?;
        parse(&text)
    });
    limits.collect()
}

/// The directories of the group in `/proc/self/cgroup` (`0::/path`), from the inside.
fn around(groups: &str, (line, root): Hierarchy) -> Vec<PathBuf> {
    let own = |text: &str| {
        text.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(line).map(str::to_owned)
    };
    let Some(own) = groups.lines().find_map(own) else { return Vec::new() };
    let root = Path::new(root);
    root.join(own).ancestors().take_while(|dir| dir.starts_with(root)).map(Path::to_owned).collect()
}

/// `200000 100000`: two cores' time; `max 100000`: no limit.
fn cpu_quota(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::report::Verdict::{Bad, Ok, Warning};

    const GIB: u64 = 1 << 30;

    #[test]
    fn settings_have_to_fit_into_memory() {
        let verdict = |needed| judge_memory(8 * GIB, false, needed).verdict;
        assert_eq!([0, 6 * GIB, 7 * GIB, 9 * GIB].map(verdict), [Ok, Ok, Warning, Bad]);
        let group = judge_memory(GIB, true, 2 * GIB);
        assert_eq!(
            group.why,
            "1.0 GiB for this control group, the settings allow 2.0 GiB: more than there is"
        );
    }

    #[test]
    fn few_files_and_few_cores_are_noticed() {
        let files = |hard| judge_files(1_024, hard).verdict;
        assert_eq!([1_023, 1_024, 65_535, 65_536].map(files), [Bad, Warning, Warning, Ok]);
        assert_eq!(judge_cores(1, None).verdict, Warning);
        assert_eq!(judge_cores(4, None).verdict, Ok);
        assert_eq!(judge_cores(4, Some(1.5)).verdict, Warning);
    }

    #[test]
    fn what_the_kernel_writes_is_read() {
        let meminfo = "MemTotal:       16303428 kB\nMemAvailable:    5 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal"), Some(16_303_428 * 1024));
        assert_eq!(meminfo_bytes(meminfo, "Mem"), None);
        assert_eq!(meminfo_bytes("MemTotal: many", "MemTotal"), None);
        assert_eq!(
            (cpu_quota("150000 100000\n"), cpu_quota("max 100000\n"), cpu_quota("")),
            (Some(1.5), None, None)
        );
        let groups = "12:memory:/x\n0::/system.slice/a.service\n";
        let under = |root: &str, paths: &[&str]| -> Vec<PathBuf> {
            paths.iter().map(|path| Path::new(root).join(path)).collect()
        };
        let unified = under("/sys/fs/cgroup", &["system.slice/a.service", "system.slice", ""]);
        assert_eq!(around(groups, UNIFIED), unified);
        assert_eq!(around(groups, MEMORY), under("/sys/fs/cgroup/memory", &["x", ""]));
        assert!(around("", UNIFIED).is_empty());
    }
}
