//! Stopping in order: one signal, many waiters.

use tokio::sync::watch;

/// Gives the signal. Dropping it gives the signal too.
#[derive(Debug)]
pub struct ShutdownTrigger(watch::Sender<bool>);

/// Waits for the signal. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

pub fn channel() -> (ShutdownTrigger, Shutdown) {
    let (tx, rx) = watch::channel(false);
    (ShutdownTrigger(tx), Shutdown(rx))
}

impl ShutdownTrigger {
    pub fn trigger(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    /// Returns when the signal was given (or its giver is gone).
    pub async fn wait(&mut self) {
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    pub fn is_triggered(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn all_waiters_hear_the_signal_also_late_ones() {
        let (trigger, shutdown) = channel();
        let (mut early, mut late) = (shutdown.clone(), shutdown.clone());
        assert!(!shutdown.is_triggered() && early.wait().now_or_never().is_none());
        trigger.trigger();
        assert!(shutdown.is_triggered());
        early.wait().await;
        late.wait().await;
        late.wait().await;
    }

    #[tokio::test]
    async fn a_trigger_that_is_dropped_is_a_signal() {
        let (trigger, mut shutdown) = channel();
        drop(trigger);
        assert!(shutdown.is_triggered());
        shutdown.wait().await;
    }
}
