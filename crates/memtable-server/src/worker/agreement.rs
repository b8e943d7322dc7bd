//! What a simulation compares between replicas: everything that a checkpoint, the manifest and the configuration carry, part by
//! part, where it comes about and where it is read from a snapshot. In production nobody listens, and nothing is computed.

use sextant_common::ids::Generation;
use sextant_proto::convert;
use sextant_rules::probe::ProbeEvent;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::replica::Replica;
use crate::partition::Checkpoint;
use crate::partition::sessions::DuplicateTable;

impl Replica {
    /// Checkpoints were read.
    pub(super) fn tell_of_checkpoints(&self) {
        self.partition.checkpoints().for_each(|c| self.tell_of_checkpoint(c));
    }

    /// A checkpoint came about.
    pub(super) fn tell_of_newest_checkpoint(&self) {
        self.partition.checkpoints().next_back().into_iter().for_each(|c| self.tell_of_checkpoint(c));
    }

    fn tell_of_checkpoint(&self, c: &Checkpoint) {
        if self.shared.env.probe.is_none() {
            return;
        }
        let at = (c.at.term, c.at.index);
        self.tell_held("next seq", at, c.next_seq);
        self.tell_held("time", at, c.time_ms);
        self.tell_held("generations", at, generations(c));
        self.tell_held("sessions", at, sessions(&c.sessions));
        self.tell_held("membership", at, xxh3_64(&c.membership));
    }

    /// The manifest or the configuration changed, or was read. Each has numbers of its own, that only entries of the log move.
    pub(super) fn tell_of_manifest(&self) {
        if self.shared.env.probe.is_none() {
            return;
        }
        let manifest = self.partition.manifest();
        let bytes = convert::manifest::encode(manifest);
        self.tell_held("manifest", (0, manifest.version.0), xxh3_64(&bytes));
        self.tell_held(
            "next table",
            (0, (manifest.tables.len() + self.partition.dropped().ids.len()) as u64),
            u64::from(self.partition.next_table()),
        );
        for cut in self.partition.cuts().iter().filter(|cut| cut.is_complete()) {
            let bytes = convert::cut::encode(cut);
            self.tell_held("cut", (0, cut.at), xxh3_64(&bytes));
        }
        let configuration = self.partition.configuration();
        if let Some((configuration, at)) = configuration {
            let bytes = convert::configuration::encode(configuration);
            self.tell_held("configuration", (0, configuration.revision), xxh3_64(&bytes));
            self.tell_held("place of the configuration", (0, configuration.revision), at);
        }
        if manifest.version.0 > 0 {
            // A manifest says something only after the first configuration, which draws this.
            self.tell_held("lineage", (0, 0), configuration.map_or(0, |(c, _)| c.lineage));
        }
    }

    fn tell_held(&self, what: &'static str, at: (u64, u64), digest: u64) {
        let (partition, node) = (self.shared.id, self.shared.node);
        self.shared.env.tell(|| ProbeEvent::Held { partition, node, what, at, digest });
    }
}

fn generations(checkpoint: &Checkpoint) -> u64 {
    let mut hash = Xxh3::new();
    // A table without a freeze is in its first generation, whether it is there yet or not: a replica that starts from a snapshot knows
    // the manifest's tables, of which some may have been made after the checkpoints that it comes by then.
    let frozen = checkpoint.generations.iter().filter(|(_, generation)| **generation != Generation(1));
    for (table, generation) in frozen {
        hash.update(&u64::from(table.0).to_le_bytes());
        hash.update(&generation.0.to_le_bytes());
    }
    hash.digest()
}

fn sessions(sessions: &DuplicateTable) -> u64 {
    let mut hash = Xxh3::new();
    for (id, session) in sessions.iter() {
        let results = session.answers.iter().map(|(number, ops)| (*number, ops.len() as u64));
        let numbers = [id, session.last_used_ms, session.floor].into_iter();
        for number in numbers.chain(results.flat_map(|(number, ops)| [number, ops])) {
            hash.update(&number.to_le_bytes());
        }
        for op in session.answers.values().flat_map(|ops| ops.iter()) {
            hash.update(&[u8::from(op.applied), u8::from(op.existed), u8::from(op.failed)]);
            hash.update(&op.seq.0.to_le_bytes());
        }
    }
    hash.digest()
}
