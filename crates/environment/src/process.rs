//! Figures of this process for `/metrics`, under the names that Prometheus' client libraries use.

use std::fmt::Write;

/// OpenMetrics lines: which version this is, CPU seconds, resident memory, open files. What the system does not tell is left out.
pub fn metrics() -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, sample: &str, value: f64| {
        let _ = write!(out, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{sample} {value}\n");
    };
    let sample = concat!("sextant_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}");
    family("sextant_build_info", "gauge", "1, with the version of this server", sample, 1.0);
    if let Some(seconds) = cpu_seconds().map(|(user, system)| user + system) {
        let (name, sample) = ("process_cpu_seconds", "process_cpu_seconds_total");
        family(name, "counter", "User and system CPU time spent", sample, seconds);
    }
    if let Some(bytes) = resident_bytes() {
        let name = "process_resident_memory_bytes";
        family(name, "gauge", "Resident memory", name, bytes as f64);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        let name = "process_open_fds";
        family(name, "gauge", "Open file descriptors", name, files.count() as f64);
    }
    out
}

/// From now on the memory of this process is in pages of the system's ordinary size. With larger ones what a program gives back in pieces
/// is not given back, or is there again with the next byte that is touched beside it.
pub fn without_huge_pages() {
    // SAFETY: it takes no pointers.
    if unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } != 0 {
        tracing::debug!("huge pages stay on: {}", std::io::Error::last_os_error());
    }
}

/// What this process has spent as itself, and in the system for it.
pub fn cpu_seconds() -> Option<(f64, f64)> {
    // SAFETY: an all-zero rusage is valid, and getrusage only writes to it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writing.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0 {
        return None;
    }
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    Some((seconds(usage.ru_utime), seconds(usage.ru_stime)))
}

/// The most memory of this process that was in use; None: the system does not tell.
pub fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?;
    Some(kib.parse::<u64>().ok()? * 1024)
}

/// Memory of this process that is in use; None: the system does not tell.
pub fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    // SAFETY: sysconf has no preconditions.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page_bytes).ok()?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_has_used_memory() {
        let text = super::metrics();
        let line = text.lines().find(|l| l.starts_with("process_resident_memory_bytes ")).unwrap();
        assert!(line.split(' ').nth(1).unwrap().parse::<f64>().unwrap() > 100_000.0, "{line}");
        assert!(text.contains("\nprocess_cpu_seconds_total "));
    }
}
