//! Sessions of callers that are still being opened in some partitions: their callers know them by then, and may write in them.
//!
//! Owns who waits for such an opening to end. A write that is sent before that is refused, as of an unknown session; if an attempt before
//! it was lost, nobody knows whether the session was not there yet or was forgotten, with what became of that attempt. What is sent
//! only when the session is open is told what became of it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sextant_common::ids::PartitionId;
use tokio::sync::watch;

/// Openings that are waited for: as many as the largest cluster has partitions. Who writes where there are more is told that the session
/// is unknown.
const OPENINGS_MAX: usize = 16 * 1024;

type Key = (PartitionId, u64);

/// Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Openings(Arc<Mutex<HashMap<Key, watch::Receiver<()>>>>);

/// A session is being opened in a partition, until this is dropped.
pub(super) struct UnderWay {
    openings: Openings,
    key: Key,
    /// Nothing is ever said: who waits notices that it is gone.
    _end: watch::Sender<()>,
}

impl Openings {
    /// None: there are too many.
    pub fn begin(&self, partition: PartitionId, session: u64) -> Option<UnderWay> {
        let (key, mut openings) = ((partition, session), self.0.lock());
        if openings.len() >= OPENINGS_MAX {
            return None;
        }
        let (end, ends) = watch::channel(());
        openings.insert(key, ends);
        Some(UnderWay { openings: self.clone(), key, _end: end })
    }

    /// Until the session is not being opened any more, whatever came of it. None: it is not.
    pub fn end_of(
        &self,
        partition: PartitionId,
        session: u64,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let mut ends = self.0.lock().get(&(partition, session)).cloned()?;
        Some(async move {
            let _ = ends.changed().await;
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.openings.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::task::JoinHandle;

    use super::*;

    const PARTITION: PartitionId = PartitionId(3);

    #[tokio::test]
    async fn whoever_waits_for_an_opening_goes_on_when_it_has_ended_however() {
        let openings = Openings::default();
        assert!(openings.end_of(PARTITION, 7).is_none());
        let under_way = openings.begin(PARTITION, 7).unwrap();
        assert!(openings.end_of(PARTITION, 8).is_none() && openings.end_of(PartitionId(4), 7).is_none());
        let mut end = pin!(openings.end_of(PARTITION, 7).unwrap());
        assert!(futures::poll!(end.as_mut()).is_pending());
        drop(under_way);
        end.await;
        // Its task panics.
        let under_way = openings.begin(PARTITION, 7).unwrap();
        let end = openings.end_of(PARTITION, 7).unwrap();
        let task: JoinHandle<()> = tokio::spawn(async move {
            let _under_way = under_way;
            panic!("on purpose");
        });
        end.await;
        assert!(task.await.is_err() && openings.0.lock().is_empty());
    }

    #[test]
    fn openings_are_bounded() {
        let openings = Openings::default();
        let begun: Vec<_> =
            (0..OPENINGS_MAX as u64).map(|session| openings.begin(PARTITION, session)).collect();
        assert!(begun.iter().all(Option::is_some) && openings.begin(PARTITION, u64::MAX).is_none());
        drop(begun);
        assert!(openings.begin(PARTITION, u64::MAX).is_some());
    }
}
