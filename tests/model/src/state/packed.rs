//! How states are hashed: packed into few words, because hashing is what an exploration does most. Every pattern names all
//! fields, so that a new one cannot be forgotten: two states that differ in it would be taken for one.

use std::hash::{Hash, Hasher};

use super::log::{Asked, Entry};
use super::pnode::{Cached, PNode, Reader, Reply, Times};
use super::registered::{Kept, Registration, Said, Slot};
use super::{Bit, Cell, Job, Proposal, RequestCopy, State, Write};

/// Small numbers, one after the other. More than 64 bits are a mistake: a debug assertion tells.
#[derive(Default)]
struct Word {
    word: u64,
    bits: u32,
}

impl Word {
    fn add(mut self, n: impl Into<u64>, bits: u32) -> Self {
        let n = n.into();
        self.bits += bits;
        debug_assert!(n < 1 << bits && self.bits <= 64, "{n} in {bits} bits, {} in all", self.bits);
        self.word = self.word << bits | n;
        self
    }

    fn all(mut self, numbers: impl IntoIterator<Item = u8>, bits: u32) -> Self {
        for n in numbers {
            self = self.add(n, bits);
        }
        self
    }

    fn end(self, to: &mut impl Hasher) {
        to.write_u64(self.word);
    }
}

impl Asked {
    fn pack(self, word: Word) -> Word {
        let Asked { who, applied, waits, bits } = self;
        word.add(who, 3).add(applied, 1).add(waits, 1).add(bits, 2)
    }
}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Entry { kind, generation, serial, asked, sst, inputs } = *self;
        let word = Word::default().add(kind as u8, 4).add(generation, 3).add(serial, 4).add(sst, 8);
        let word = word.add(inputs, 8);
        asked[1].pack(asked[0].pack(word)).end(to);
    }
}

impl RequestCopy {
    fn pack(self, word: Word) -> Word {
        let RequestCopy { sent, searched, present, matched, expires } = self;
        word.add(sent, 1).add(searched, 4).add(present, 2).add(matched, 2).all(expires, 2)
    }
}

impl Hash for Write {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Write { kind, keys, outcome, floor, copies, deferred, deferred_after, unknown, expires } = *self;
        let word = Word::default().add(kind as u8, 3).add(keys, 2).add(outcome as u8, 2).all(floor, 5);
        let word = copies[1].pack(copies[0].pack(word));
        let deferred = deferred.map_or(0, |ok| 1 + u8::from(ok));
        word.add(deferred, 2).add(deferred_after, 5).add(unknown, 1).add(expires, 2).end(to);
    }
}

impl Hash for Proposal {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Proposal { on, generation, serial, asked, copies, out, what, time, due, found, half } = *self;
        let word = Word::default().add(on, 1).add(generation, 3).add(serial, 4).all(copies, 1);
        let word = word.add(out, 1).add(what as u8, 2).all([due, found, half, time], 2);
        asked[1].pack(asked[0].pack(word)).end(to);
    }
}

impl Hash for Job {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Job { phase, generation, inputs, sst, contents } = *self;
        let word = Word::default().add(phase as u8, 2).add(generation, 3).add(inputs, 8).add(sst, 8);
        word.all(contents.map(|Cell(c)| c), 4).end(to);
    }
}

impl Hash for Reply {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Reply {
            kind,
            epoch,
            from,
            serial,
            bits,
            manifest,
            leased,
            slots,
            announced,
            tick,
            published_tick,
        } = *self;
        let word = Word::default().add(kind as u8, 2).add(epoch, 7).add(from, 4).add(serial, 4);
        let word = word.all(bits, 2).add(manifest, 4).add(leased, 1);
        word.all(slots, 4).add(announced, 1).all([tick, published_tick], 2).end(to);
    }
}

impl Times {
    fn pack(self, word: Word) -> Word {
        let Times { published, announced } = self;
        word.all([published, announced], 2)
    }
}

impl Hash for Reader {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Reader {
            progress,
            step,
            key,
            floor,
            searched,
            cached: Cell(cached),
            loaded,
            registration: Registration { phase, epoch, serial, seq },
            keeps,
            times,
            undecided: Cell(undecided),
        } = *self;
        (progress, step).hash(to);
        let word = Word::default().add(key, 1).add(floor, 5).add(searched, 4).add(cached, 4);
        let word = word.add(loaded, 5).add(phase as u8, 2).add(epoch, 7).add(serial, 4).add(seq, 4);
        times.pack(word.add(keeps, 1).add(undecided, 4)).end(to);
    }
}

impl Kept {
    fn pack(self, word: Word) -> Word {
        let Kept { said, epoch, serial } = self;
        // Values are even, and not 0.
        let said = match said {
            Said::Nothing => 0,
            Said::NoEntry => 1,
            Said::Absent => 3,
            Said::Value(Cell(value)) => value,
        };
        word.add(said, 4).add(epoch, 7).add(serial, 4)
    }
}

impl Hash for PNode {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let PNode {
            manifest,
            epoch,
            serial,
            filters,
            lease,
            seen,
            slot_serials,
            announced,
            times,
            replies,
            reader,
            cache,
            kept,
            unapplied,
            acked,
            grants,
            old_grant,
        } = self;
        let lease = lease.map_or(0, |serial| 1 + serial);
        let word = Word::default().add(*manifest, 4).add(*epoch, 7).add(*serial, 4).all(*filters, 2);
        let word = word.add(lease, 5).add(*seen, 8).add(*acked, 4).add(*grants, 16).add(*old_grant, 1);
        times.pack(word).end(to);
        replies.hash(to);
        reader.hash(to);
        let cached = |c: &Cached| [c.cell.0, c.stamp];
        let word = Word::default().all(cache.iter().flat_map(cached), 4).add(*announced, 1);
        let word = kept.iter().fold(word, |word, kept| kept.pack(word));
        word.all(*slot_serials, 4).all(*unapplied, 4).end(to);
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let State {
            log,
            len,
            committed,
            known_committed,
            published,
            first,
            term,
            incarnation,
            ring,
            serial,
            filters,
            proposal,
            dropped,
            remembered,
            ghosts,
            slots,
            late,
            announced,
            shown,
            announced_tick,
            jobs,
            ssts,
            preloaded: Cell(preloaded),
            preloaded_expiry,
            pnodes,
            writes,
            floor,
            freezes,
            compactions,
            failovers,
            refusals,
            retries,
        } = self;
        let positions = [*len, *committed, *known_committed, *published, *first, floor[0], floor[1]];
        let word = Word::default().all(positions, 5).add(*term, 3).add(*incarnation, 4).add(*serial, 4);
        word.all(*filters, 2).all([*announced_tick, *preloaded_expiry], 2).end(to);
        let used = [*freezes, *compactions, *failovers, *refusals, *retries];
        let word = Word::default().all(used, 3).add(*dropped, 4).add(*remembered, 4).add(*ghosts, 4);
        let word = word.add(*preloaded, 4).add(*late, 2).all([*announced, *shown].map(u8::from), 1);
        let slot = |word: Word, Slot { seq, registered }: &Slot| word.add(*seq, 4).add(*registered, 1);
        slots.iter().fold(word, slot).end(to);
        log[..usize::from(*len)].iter().for_each(|entry| entry.hash(to));
        // Freezes (255) become 7: keys, and sets of slots, are less.
        let bit = |b: &Bit| b.generation << 3 | (b.key & 7);
        let (first, rest) = ring.split_at(8);
        Word::default().all(first.iter().map(bit), 6).end(to);
        Word::default().all(rest.iter().map(bit), 6).end(to);
        proposal.hash(to);
        jobs.iter().for_each(|job| job.hash(to));
        Word::default().all(ssts.iter().flatten().map(|Cell(c)| *c), 4).end(to);
        pnodes.iter().for_each(|p| p.hash(to));
        writes.iter().for_each(|w| w.hash(to));
    }
}
