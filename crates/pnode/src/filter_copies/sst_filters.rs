//! Filters of SSTables, fetched ahead in the background. Until one is here, its table matches its whole range.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use sextant_common::filter::SealedFilter;
use sextant_common::ids::{NodeId, PartitionId, SstId};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::shutdown::Shutdown;

use crate::core::Core;
use crate::view::Sst;

/// Filters fetched at once: enough to fill a connection, few enough not to starve reads.
const FETCHES_MAX: usize = 4;
/// How long the next chunk may take.
const CHUNK_MAX: Duration = Duration::from_secs(2);
/// Largest filter that is accepted: a table of some hundred million keys.
const BYTES_MAX: usize = 256 * 1024 * 1024;
/// How soon a fetch that has failed is tried again, on the next replica: longer the more attempts there were.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const RETRY_PAUSES_MAX: u32 = 20;

/// Entries that lack the filter of one table.
type Lacking = Vec<(PartitionId, Weak<Sst>)>;

/// A table whose filter is missing.
struct Wanted {
    id: SstId,
    ssts: Lacking,
    attempts: u32,
    is_under_way: bool,
    /// Not to be tried again before.
    pauses_until_ns: u64,
}

/// Tables whose filters are missing, in the order in which they were met.
#[derive(Default)]
struct Missing {
    wanted: BTreeMap<u64, Wanted>,
    places: HashMap<SstId, u64>,
    next_place: u64,
}

impl Missing {
    fn add(&mut self, partition: PartitionId, sst: Weak<Sst>) {
        let Some(id) = sst.upgrade().map(|sst| sst.meta.id) else { return };
        let place = *self.places.entry(id).or_insert_with(|| {
            self.next_place += 1;
            self.next_place
        });
        let new = || Wanted { id, ssts: vec![], attempts: 0, is_under_way: false, pauses_until_ns: 0 };
        let ssts = &mut self.wanted.entry(place).or_insert_with(new).ssts;
        if !ssts.iter().any(|(_, known)| known.ptr_eq(&sst)) {
            ssts.push((partition, sst));
        }
    }

    /// One that nobody fetches. The newest: what was flushed just now is read, and costs whatever is cached until its filter is here. What
    /// was tried before comes last: its servers may all hang.
    fn next(
        &mut self,
        now_ns: u64,
        is_missing: impl Fn(PartitionId, &Arc<Sst>) -> bool,
    ) -> Option<(Arc<Sst>, u32)> {
        loop {
            let is_due = |wanted: &Wanted| !wanted.is_under_way && wanted.pauses_until_ns <= now_ns;
            let due = || self.wanted.iter().rev().filter(|(_, wanted)| is_due(wanted));
            let (place, _) = due().find(|(_, wanted)| wanted.attempts == 0).or_else(|| due().next())?;
            let place = *place;
            let wanted = self.wanted.get_mut(&place)?;
            wanted
                .ssts
                .retain(|(partition, sst)| sst.upgrade().is_some_and(|sst| is_missing(*partition, &sst)));
            if let Some(one) = wanted.ssts.first().and_then(|(_, sst)| sst.upgrade()) {
                wanted.attempts += 1;
                wanted.is_under_way = true;
                return Some((one, wanted.attempts));
            }
            let id = wanted.id;
            self.wanted.remove(&place);
            self.places.remove(&id);
        }
    }

    /// One that was fetched, or was not. (It may still be missing in another entry: then it is next.)
    fn ended(&mut self, id: SstId, result: &Result<()>, now_ns: u64) {
        let Some(wanted) = self.places.get(&id).and_then(|place| self.wanted.get_mut(place)) else { return };
        wanted.is_under_way = false;
        wanted.pauses_until_ns = match result {
            Ok(()) => 0,
            Err(_) => {
                let pause = RETRY_PAUSE * wanted.attempts.min(RETRY_PAUSES_MAX);
                now_ns.saturating_add(pause.as_nanos() as u64)
            }
        };
    }

    /// When the next one may be tried again.
    fn pauses_until_ns(&self) -> Option<u64> {
        self.wanted.values().filter(|wanted| !wanted.is_under_way).map(|wanted| wanted.pauses_until_ns).min()
    }
}

/// Fetches whatever filter is missing in any view, until shutdown.
pub(super) async fn run_sst_filter_fetcher(core: Arc<Core>, mut shutdown: Shutdown) {
    tokio::select! {
        () = shutdown.wait() => {}
        () = fetch_for_ever(&core) => {}
    }
}

async fn fetch_for_ever(core: &Arc<Core>) {
    let clock = &core.env.clock;
    let mut missing = Missing::default();
    let mut under_way = FuturesUnordered::new();
    loop {
        core.views.take_unfiltered().into_iter().for_each(|(partition, sst)| missing.add(partition, sst));
        while under_way.len() < FETCHES_MAX
            && let Some((sst, attempt)) =
                missing.next(clock.holder_ns(), |partition, sst| is_missing(core, partition, sst))
        {
            under_way.push(async move { (sst.meta.id, attempt, fetch(core, &sst, attempt).await) });
        }
        let has_room = under_way.len() < FETCHES_MAX;
        let pause = missing.pauses_until_ns().filter(|_| has_room);
        let pause = pause.map(|until_ns| Duration::from_nanos(until_ns.saturating_sub(clock.holder_ns())));
        tokio::select! {
            Some((id, attempt, fetched)) = under_way.next() => {
                if let Err(e) = &fetched {
                    tracing::debug!(sst = %id, attempt, "filter: {e}");
                }
                missing.ended(id, &fetched, clock.holder_ns());
            }
            () = core.views.filters_wanted.notified() => {}
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
    }
}

/// Whether a table has no filter yet. One that only a record of a flush names needs none: it is on its way out.
fn is_missing(core: &Core, partition: PartitionId, sst: &Arc<Sst>) -> bool {
    let is_named = || {
        let view = core.views.peek(partition);
        view.manifest.table(sst.meta.table).is_some_and(|table| table.layers().has(sst))
    };
    !sst.has_filter() && is_named()
}

async fn fetch(core: &Core, sst: &Sst, attempt: u32) -> Result<()> {
    let asked_ns = core.env.clock.holder_ns();
    let mut replicas: Vec<NodeId> =
        sst.meta.replicas.iter().copied().filter(|n| core.sstables.contains_key(n)).collect();
    let start = sst.meta.id.counter.wrapping_add(attempt) as usize % replicas.len().max(1);
    replicas.rotate_left(start);
    // A stable sort: healthy ones first, each group still in the rotated order.
    replicas.sort_by_key(|n| core.health.is_avoided(*n, sst.meta.id, asked_ns));
    let node = *replicas.first().ok_or_else(|| Error::unavailable("no replica is in the configuration"))?;
    let fetched = fetch_from(core, sst, node).await;
    if let Err(e) = &fetched {
        let now_ns = core.env.clock.holder_ns();
        core.health.replica_failed(node, sst.meta.id, now_ns);
        // It hangs, or is not there: the others' turn comes first for further tables too.
        if e.kind == ErrorKind::Unavailable {
            core.health.server_failed(node, asked_ns, now_ns, false);
        }
    }
    fetched
}

async fn fetch_from(core: &Core, sst: &Sst, node: NodeId) -> Result<()> {
    let bytes = core.sstable(node)?.filter(sst.wire_id.clone(), BYTES_MAX, CHUNK_MAX).await?;
    core.metrics.sst_filter_fetches.inc();
    core.metrics.sst_filter_bytes.inc_by(bytes.len() as u64);
    let decoded = core.env.blocking(move || SealedFilter::from_bytes(&bytes)).await;
    sst.set_filter(decoded.ok_or_else(|| Error::unavailable("the p-node is stopping"))??);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{sst_id, sst_meta};

    fn sst(counter: u32) -> Arc<Sst> {
        Arc::new(Sst::new(sst_meta(counter, b"a", b"z")))
    }

    #[test]
    fn the_newest_is_fetched_first_each_once_and_what_fails_is_tried_again_later() {
        let mut missing = Missing::default();
        let ssts: Vec<_> = (1..=3).map(sst).collect();
        ssts.iter().for_each(|sst| missing.add(PartitionId(0), Arc::downgrade(sst)));
        ssts.iter().for_each(|sst| missing.add(PartitionId(0), Arc::downgrade(sst)));
        let next = |missing: &mut Missing, now_ns| {
            missing.next(now_ns, |_, sst| !sst.has_filter()).map(|(sst, attempt)| (sst.meta.id, attempt))
        };
        assert_eq!(next(&mut missing, 0), Some((sst_id(3), 1)));
        assert_eq!(next(&mut missing, 0), Some((sst_id(2), 1)));
        // One that came meanwhile.
        let newer = sst(4);
        missing.add(PartitionId(0), Arc::downgrade(&newer));
        assert_eq!(next(&mut missing, 0), Some((sst_id(4), 1)));
        assert_eq!(next(&mut missing, 0), Some((sst_id(1), 1)));
        assert_eq!(next(&mut missing, 0), None, "all are under way");
        assert_eq!(missing.pauses_until_ns(), None);
        missing.ended(sst_id(2), &Err(Error::unavailable("late")), 1000);
        let again_ns = 1000 + RETRY_PAUSE.as_nanos() as u64;
        assert_eq!(missing.pauses_until_ns(), Some(again_ns));
        assert_eq!(next(&mut missing, again_ns - 1), None);
        // What is new comes before it, also with a smaller name.
        let new = sst(0);
        missing.add(PartitionId(0), Arc::downgrade(&new));
        assert_eq!(next(&mut missing, again_ns), Some((sst_id(0), 1)));
        assert_eq!(next(&mut missing, again_ns), Some((sst_id(2), 2)));
        // One that nobody has any more is forgotten.
        drop(newer);
        missing.ended(sst_id(4), &Err(Error::unavailable("late")), 0);
        assert_eq!(next(&mut missing, u64::MAX), None);
        assert_eq!((missing.wanted.len(), missing.places.len()), (4, 4));
    }
}
