//! The current views of all partitions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use sextant_common::ids::{Epoch, PartitionId, Serial};
use sextant_common::key::SlotMap;
use sextant_common::manifest::Manifest;
use sextant_environment::Env;
use sextant_proto::convert::manifest_change::ToldOfManifest;
use sextant_rules::probe::{Filters, ProbeEvent};
use tokio::sync::{Notify, watch};

use super::{PartitionView, Sst, TableNames};

struct Slot {
    view: ArcSwap<PartitionView>,
    /// Held while a new view is made from the current one.
    writer: Mutex<()>,
}

pub(crate) struct Views {
    slots: Vec<Slot>,
    pub slot_map: SlotMap,
    pub tables: TableNames,
    /// Counts installed views whose manifest changed; waiters for news of manifests and tables watch it.
    manifests: watch::Sender<u64>,
    /// SSTables that have come without a filter, for the fetcher of filters.
    unfiltered: Mutex<Vec<(PartitionId, Weak<Sst>)>>,
    /// Tells it that there are new ones.
    pub filters_wanted: Notify,
    /// Once set, no view gets a lease any more.
    draining: AtomicBool,
    /// Whom a simulation is told about, and how; None elsewhere.
    told: Option<(Env, [u8; 16])>,
}

impl Views {
    pub fn new(partitions: u32) -> Self {
        let slot = |_| Slot { view: ArcSwap::from_pointee(PartitionView::empty()), writer: Mutex::new(()) };
        Self {
            slots: (0..partitions).map(slot).collect(),
            slot_map: SlotMap::even(partitions),
            tables: TableNames::default(),
            manifests: watch::Sender::new(0),
            unfiltered: Mutex::default(),
            filters_wanted: Notify::new(),
            draining: AtomicBool::new(false),
            told: None,
        }
    }

    /// Tells the environment's probe, if it has one, of every new view of this holder.
    pub fn told_to(mut self, env: &Env, holder: [u8; 16]) -> Self {
        self.told = env.probe.is_some().then(|| (env.clone(), holder));
        self
    }

    pub fn partitions(&self) -> impl Iterator<Item = PartitionId> + use<> {
        (0..self.slots.len() as u32).map(PartitionId)
    }

    pub fn contains(&self, partition: PartitionId) -> bool {
        (partition.0 as usize) < self.slots.len()
    }

    /// The current view, for a short look. `partition` must exist.
    #[inline]
    pub fn peek(&self, partition: PartitionId) -> Guard<Arc<PartitionView>> {
        self.slots[partition.0 as usize].view.load()
    }

    /// The current view, to keep across an await.
    pub fn load(&self, partition: PartitionId) -> Arc<PartitionView> {
        self.slots[partition.0 as usize].view.load_full()
    }

    /// Makes a new view from the current one. `change` gives None to leave it as it is. Changes of a partition are serialised.
    pub fn change<R>(
        &self,
        partition: PartitionId,
        change: impl FnOnce(&PartitionView) -> (Option<PartitionView>, R),
    ) -> R {
        let slot = &self.slots[partition.0 as usize];
        let _writer = slot.writer.lock();
        let current = slot.view.load_full();
        let (next, result) = change(&current);
        if let Some(mut next) = next {
            assert!(next.manifest.version >= current.manifest.version, "a manifest version never falls");
            if self.draining.load(Ordering::SeqCst) {
                next.lease = None;
            }
            self.tell(partition, &next);
            let news = !Arc::ptr_eq(&next.manifest, &current.manifest);
            if news {
                match partition.0 {
                    0 => self.tables.learn_all(&next.manifest),
                    _ => self.tables.learn_of_some(&next.manifest),
                }
            }
            let next = Arc::new(next);
            slot.view.store(next.clone());
            if news {
                // (Whoever takes them looks whether the view has them.)
                let new = next.manifest.lack_filters_since(&current.manifest);
                self.unfiltered.lock().extend(new.into_iter().map(|sst| (partition, Arc::downgrade(&sst))));
                self.manifests.send_modify(|n| *n += 1);
                self.filters_wanted.notify_one();
            }
        }
        result
    }

    fn tell(&self, partition: PartitionId, view: &PartitionView) {
        let Some((env, holder)) = &self.told else { return };
        let (epoch, serial) =
            view.copies.as_ref().map_or((Epoch::default(), Serial(0)), |c| (c.epoch, c.serial));
        env.tell(|| ProbeEvent::ViewMade {
            partition,
            holder: *holder,
            epoch,
            serial,
            manifest: view.manifest.version,
            lease_until_ns: view.lease.as_ref().map_or(0, |l| l.usable_until_ns()),
            flushed: view.manifest.tables.iter().map(|t| (t.table, t.flushed_generation)).collect(),
            filters: {
                let copies = view.copies.clone();
                Filters::new(move |table, hash| copies.as_ref().is_some_and(|c| c.contains(table, hash)))
            },
        });
    }

    /// Installs what is new of a manifest, whole or as changes. Whether the view still lacks what was told of then.
    pub fn install_manifest(
        &self,
        partition: PartitionId,
        whole: Option<Manifest>,
        told: Option<&ToldOfManifest>,
    ) -> bool {
        self.change(partition, |view| {
            let next = view.with_news(whole, told);
            let lacks = told.is_some_and(|told| next.as_ref().unwrap_or(view).lacks(told));
            (next, lacks)
        })
    }

    /// SSTables that came without a filter since this was asked before.
    pub fn take_unfiltered(&self) -> Vec<(PartitionId, Weak<Sst>)> {
        std::mem::take(&mut self.unfiltered.lock())
    }

    /// Sees every later installation of a manifest.
    pub fn watch_manifests(&self) -> watch::Receiver<u64> {
        self.manifests.subscribe()
    }

    /// Gives up the lease of a partition, until the next one.
    pub fn give_up_lease(&self, partition: PartitionId) {
        if self.contains(partition) && self.peek(partition).lease.is_some() {
            self.change(partition, |view| (Some(PartitionView { lease: None, ..view.clone() }), ()));
        }
    }

    /// Gives up all leases, for good.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        for partition in self.partitions() {
            self.change(partition, |view| (Some(PartitionView { lease: None, ..view.clone() }), ()));
        }
    }
}
