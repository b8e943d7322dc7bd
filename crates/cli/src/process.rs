//! What the process needs of the operating system: a runtime, file descriptors, signals.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// OS threads for a memtable server's background work (partitions have threads of their own) on a machine with few cores: when
/// some of them move a flush's megabytes, another is there for what is short.
const VOTER_WORKERS_MIN: usize = 4;

/// How many OS threads a memtable server's background work has.
pub fn voter_workers() -> usize {
    std::thread::available_parallelism().map_or(VOTER_WORKERS_MIN, |cores| cores.get().max(VOTER_WORKERS_MIN))
}

/// mimalloc 3's number of its option `purge_delay`, which its crate does not name; and what that is unless somebody has set it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
const PURGE_DELAY_DEFAULT_MS: std::ffi::c_long = 1000;
const PURGE_DELAY_MS: std::ffi::c_long = 10;

/// For a server whose memory has a bound, and that gives much back all the time: the system has it at once. (In benchmarks/large-table.md.)
/// To be called before there are other threads.
pub fn gives_memory_back() {
    // (What somebody has set goes before.)
    let is_open = |variable: &str| std::env::var_os(variable).is_none();
    if is_open("MIMALLOC_ALLOW_THP") {
        sextant_environment::process::without_huge_pages();
    }
    // SAFETY: both calls only read and write a number of the allocator's.
    unsafe {
        // (If the options have other numbers one day, nothing is changed.)
        if is_open("MIMALLOC_PURGE_DELAY")
            && libmimalloc_sys::mi_option_get(PURGE_DELAY) == PURGE_DELAY_DEFAULT_MS
        {
            libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
        }
    }
}

/// A runtime. `workers`: its OS threads; `None`: one a core. One worker is the main thread: nothing is handed over.
pub fn runtime(workers: Option<usize>) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = match workers {
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(workers) = workers.filter(|workers| *workers > 1) {
        builder.worker_threads(workers);
    }
    builder.enable_all().build()
}

/// The soft and the hard limit on open files.
pub fn file_limit() -> Option<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call only writes the struct that it is given.
    let answered = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    answered.then_some((limit.rlim_cur, limit.rlim_max))
}

/// Raises the soft limit on open files to the hard one: connections, log segments and SSTables are files, and the usual
/// soft limit of 1024 is for programs that use select().
pub fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only read or write the struct that they are given.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            // Without it there is less room, nothing worse.
            let _ = libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// SIGTERM and SIGINT: the wish that the process drains and ends.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// From now on the signals no longer end the process by themselves.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for a signal. Safe to cancel.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Runs what drains; a second signal ends the process at once.
    pub async fn drain<T>(mut self, draining: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = draining => Some(done),
            () = self.wait() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocators_option_has_the_number_that_it_is_asked_by() {
        let is_set =
            ["MIMALLOC_PURGE_DELAY", "MIMALLOC_ALLOW_THP"].iter().any(|v| std::env::var_os(v).is_some());
        gives_memory_back();
        // SAFETY: it only reads a number of the allocator's.
        let now = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert!(is_set || now == PURGE_DELAY_MS, "{now}");
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        // (Older kernels do not say.)
        assert!(is_set || !status.contains("THP_enabled:\t1"), "{status}");
    }
}
