//! A progress bar on standard error, if that is a terminal.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the bar is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Counts finished operations of all threads; a task draws.
pub struct Progress {
    done: Arc<AtomicU64>,
    bar: Option<(ProgressBar, tokio::task::JoinHandle<()>)>,
}

impl Progress {
    /// `total` 0: not known.
    pub fn start(label: &str, total: u64, quiet: bool) -> Self {
        let done = Arc::new(AtomicU64::new(0));
        if quiet || !std::io::stderr().is_terminal() {
            return Self { done, bar: None };
        }
        let bar = ProgressBar::with_draw_target((total > 0).then_some(total), ProgressDrawTarget::stderr());
        let template = if total > 0 {
            "{prefix} [{elapsed}] {wide_bar} {human_pos}/{human_len} {per_sec} eta {eta}"
        } else {
            "{prefix} [{elapsed}] {human_pos} {per_sec}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(label.to_owned());
        let drawn = bar.clone();
        let count = done.clone();
        let task = tokio::spawn(async move {
            loop {
                drawn.set_position(count.load(Relaxed));
                tokio::time::sleep(REDRAW_INTERVAL).await;
            }
        });
        Self { done, bar: Some((bar, task)) }
    }

    /// The counter to which threads add.
    pub fn counter(&self) -> Arc<AtomicU64> {
        self.done.clone()
    }

    pub fn finish(self) {
        if let Some((bar, task)) = self.bar {
            task.abort();
            bar.finish_and_clear();
        }
    }
}
