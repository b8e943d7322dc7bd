//! The replicated configuration is changed (rules: `command::configuration`); how it takes effect is [`Replica`]'s.

mod changes;
mod format;

use sextant_common::error::Result;
use tokio::sync::oneshot;

use crate::command::Configuration;

/// A change that makes leases shorter: the leader lives by it already, and writes it to the log when the longer ones are over.
pub(in crate::worker) struct Shortening {
    configuration: Configuration,
    /// None: it is on its way into the log.
    done: Option<oneshot::Sender<Result<()>>>,
    ready_at_ns: u64,
}

/// What becomes of a change that makes leases shorter.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Wait,
    /// Nobody waits for it any more: then nothing is changed.
    Drop,
    Write,
}

impl Shortening {
    fn next(&self, now_ns: u64) -> Step {
        match &self.done {
            None => Step::Wait,
            Some(done) if done.is_closed() => Step::Drop,
            Some(_) if now_ns >= self.ready_at_ns => Step::Write,
            Some(_) => Step::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ConfigurationRules;

    #[test]
    fn leases_are_shortened_in_the_log_when_the_longer_ones_are_over_and_not_if_nobody_waits_for_it() {
        let configuration = Configuration::founding(&Default::default(), 1 << 20);
        let (done, waits) = oneshot::channel();
        let mut shortening = Shortening { configuration, done: Some(done), ready_at_ns: 100 };
        assert_eq!(shortening.next(99), Step::Wait);
        assert_eq!(shortening.next(100), Step::Write);
        drop(waits);
        assert_eq!(shortening.next(100), Step::Drop);
        shortening.done = None;
        assert_eq!(shortening.next(100), Step::Wait, "it is on its way into the log");
    }
}
