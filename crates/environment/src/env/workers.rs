//! Threads, behind a trait.

use futures::future::BoxFuture;

pub trait Workers: Send + Sync + 'static {
    /// Runs a task on a thread of its own, with a single-threaded tokio runtime (in a simulation: as a task of the host). The
    /// task may block: nothing else runs on its thread. Ends when the task does.
    fn dedicated(&self, name: &str, task: BoxFuture<'static, ()>);

    /// Runs blocking work on a pool (in a simulation: at once). Must be called within a tokio runtime.
    fn blocking(&self, work: Box<dyn FnOnce() + Send>);

    /// From now on the calling thread gives way to others: its nice value becomes so much larger. It is for a thread of
    /// [`Workers::dedicated`]. (In a simulation: nothing.)
    fn give_way(&self, by: u8) {
        let _ = by;
    }

    /// How many threads can run at a time, for whoever chooses how many to have.
    fn cores(&self) -> usize;
}

/// No thread gives way more.
const NICE_MAX: i32 = 19;

/// Real threads.
#[derive(Debug, Default)]
pub struct ThreadWorkers;

impl Workers for ThreadWorkers {
    #[allow(clippy::disallowed_methods, reason = "the one place where real threads are made")]
    fn dedicated(&self, name: &str, task: BoxFuture<'static, ()>) {
        let built = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(task),
                Err(e) => tracing::error!("no runtime for a worker: {e}"),
            }
        });
        if let Err(e) = built {
            // Without its worker a server would hang in silence.
            tracing::error!("cannot start thread {name}: {e}");
            std::process::abort();
        }
    }

    #[allow(clippy::disallowed_methods, reason = "the one place where the blocking pool is used")]
    fn blocking(&self, work: Box<dyn FnOnce() + Send>) {
        tokio::task::spawn_blocking(work);
    }

    fn give_way(&self, by: u8) {
        // SAFETY: neither call takes a pointer. (Linux has a nice value for each thread; 0 means the calling one.)
        let failed = by > 0
            && unsafe {
                let nice = libc::getpriority(libc::PRIO_PROCESS, 0).saturating_add(by.into()).min(NICE_MAX);
                libc::setpriority(libc::PRIO_PROCESS, 0, nice) != 0
            };
        if failed {
            tracing::warn!("a thread stays as important as others: {}", std::io::Error::last_os_error());
        }
    }

    fn cores(&self) -> usize {
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
    }
}
