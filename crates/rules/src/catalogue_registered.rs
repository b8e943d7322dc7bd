//! The rules of registered reads, of the [`catalogue`](crate::catalogue), where everything is explained.
//!
//! No server keeps them yet: they are kept in the model, which shows what is enough.

/// Hands its own rules on, after others.
macro_rules! with_registered_reads {
    ($make:ident! { $($others:tt)* }) => { $make! { $($others)*
    "Registered reads (in the model; not built yet)" {
        "a-registration-begins-with-its-serial" {
            says: "The leader takes (epoch, newest serial of the ring) before it sets the slot's bit for a memtable read.",
            otherwise: "a write between the two is invalidated by a serial that the answer already has: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_of_two_writes"],
            broken_by: SerialAfterBit "serial-after-bit" "The serial of a registered read is taken after the slot's bit is set." [Model],
        }
        "epoch-and-serial-are-one" {
            says: "A registered read takes the epoch and the serial of one ring, under one lock.",
            otherwise: "a serial of the old ring under the name of the new one outlives the first invalidations there: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_and_new_rings"],
            broken_by: EpochAndSerialApart "epoch-and-serial-apart" "A registered read takes the serial, and then the epoch." [Model],
        }
        "an-answer-is-kept-if-its-slot-is-published" {
            says: "The answer of a registered read may be kept only if the newest seq that was formed for its slot, when the bit was set, is not above the seq that the read was made at.",
            otherwise: "a write was on its way that had seen no registration, and invalidates nothing: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_of_two_writes"],
            broken_by: SlotSeqNotCompared "slot-seq-not-compared" "A registered read is kept whatever was formed for its slot." [Model],
            broken_by: PublishedBeforeBit "published-before-bit" "A registered read loads the published seq before it sets the slot's bit." [Covered],
        }
        "slots-are-swapped-first" {
            says: "The sequencer swaps each slot of a group for (seq, unregistered), in one atomic step, before the ring's entries and the proposal; the group's serial is that of its last entry, invalidations too.",
            otherwise: "the write is published while somebody holds a lease and what was kept: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_of_two_writes", "registered_reads_of_keys_that_share_a_slot"],
            broken_by: SwapAfterProposal "swap-after-proposal" "The slots of a group are swapped after it was proposed." [Model],
            broken_by: SwapInHalves "swap-in-halves" "A slot is read, and written after that: a bit that is set in between is lost." [Model],
        }
        "an-ignored-group-ends-the-ring" {
            says: "When a group is ignored whose ring entries are out, a new incarnation of the ring begins, as it does when one is refused.",
            otherwise: "its swaps have taken the registrations away; evaluated again it invalidates nothing, may leave no bit, and waits for nobody: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_and_groups_that_are_ignored"],
            broken_by: IgnoredBitsStay "ignored-bits-stay" "A group was ignored whose ring entries are out, and the ring goes on." [Model],
        }
        "an-invalidation-is-applied-before-it-is-acknowledged" {
            says: "A p-node applies invalidations before it acknowledges their serial.",
            otherwise: "the write is published, and its old value is still used: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_at_two_pnodes"],
            broken_by: AcknowledgedBeforeApplied "acknowledged-before-applied" "A p-node acknowledges invalidations before it applies them." [Model],
        }
        "what-is-kept-has-the-serial-of-its-read" {
            says: "A p-node keeps an answer with the epoch and serial that the leader took for that read, however late it arrives.",
            otherwise: "an answer that was invalidated on its way is used: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_of_two_writes"],
            broken_by: KeptAtArrival "kept-at-arrival" "An answer is kept with the p-node's own epoch and serial at its arrival." [Model],
        }
        "what-is-kept-ends-with-its-epoch" {
            says: "A kept answer is usable only in the epoch that it was read in.",
            otherwise: "the new leader knows of no registration, and invalidates nothing: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_and_a_failover", "registered_reads_and_new_rings"],
            broken_by: KeptOverEpoch "kept-over-epoch" "A kept answer is usable in any epoch." [Model],
        }
        "whole-filters-end-what-was-kept-before" {
            says: "At every installation of whole filters, an epoch's first too, the serial of every slot becomes theirs.",
            otherwise: "an invalidation that the p-node never saw counts for nothing: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_and_whole_filters_within_an_epoch", "registered_reads_and_a_failover"],
            broken_by: KeptOverWholeFilters "kept-over-whole-filters" "Whole filters of the same epoch leave the slots' serials as they were." [Model],
            broken_by: KeptOverFirstFilters "kept-over-first-filters" "With the first whole filters of an epoch the slots' serials begin at 0." [Model],
        }
        "what-is-kept-needs-a-lease" {
            says: "A kept answer is used only under a lease, and where the filters are consulted.",
            otherwise: "nobody waited for this p-node: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_of_two_writes"],
            broken_by: KeptWithoutLease "kept-without-lease" "A kept answer is used without a lease." [Model],
        }
        "slots-begin-at-the-newest-seq" {
            says: "A new leader begins every slot with the newest appended seq.",
            otherwise: "nothing, while a fresh leader answers no reads before its first entry, and so all of these, is published",
            source: "design 14",
            kept_in: ["tests/model/src/step/registered.rs"],
            tests: ["registered_reads_and_a_failover"],
            broken_by: SlotsStartAtNothing "slots-start-at-nothing" "A new leader begins every slot with no seq." [Covered],
        }
        "a-load-is-announced" {
            says: "Before a table from outside replaces what is there (or it is dropped), an announcement is published; from it on, holders ask the leader for every key until they use the load's manifest. Whole filters carry it from the moment when its ring entry is out.",
            otherwise: "a holder reads the old SSTables, which no bit leads away from, after the load: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/loads.rs"],
            tests: ["loads_beside_reads_and_writes"],
            broken_by: LoadNotAnnounced "load-not-announced" "A load is proposed without an announcement." [Model],
            broken_by: WholeFiltersWithoutAnnouncement "whole-filters-without-announcement" "Whole filters do not say that a load is announced." [Model],
            broken_by: AnnouncedWhenAppended "announced-when-appended" "Whole filters say that a load is announced when the announcement is in the log, not when its ring entry is out." [Model],
            broken_by: LoadProposedEarly "load-proposed-early" "A load is proposed when its announcement is appended, not when it is published." [Covered],
            broken_by: LoadAnnouncesItself "load-announces-itself" "A load is announced by a ring entry of its own, and by no entry of the log before it." [Covered],
        }
        "a-load-writes-every-key" {
            says: "A load takes a seq, swaps it into every slot, and invalidates everything.",
            otherwise: "a stale read of what was kept",
            source: "design 14",
            kept_in: ["tests/model/src/step/loads.rs"],
            tests: ["loads_beside_reads_and_writes"],
            broken_by: LoadInvalidatesNothing "load-invalidates-nothing" "A load swaps every slot and invalidates nothing." [Model],
            broken_by: LoadSwapsNothing "load-swaps-nothing" "A load invalidates everything and swaps no slot." [Model],
        }
        "a-load-is-shown-before-it-is-published" {
            says: "Readers are given the load's manifest when it may be published, before its seq is; from then on readers of older versions are stale, without a grace.",
            otherwise: "an answer from before the load is taken for one after it, and kept; or a reader of the old SSTables is answered \"no entry\"",
            source: "design 14",
            kept_in: ["tests/model/src/step/loads.rs"],
            tests: ["loads_beside_reads_and_writes"],
            broken_by: LoadPublishedFirst "load-published-first" "The seq of a load is published before its manifest is given to readers." [Model],
            broken_by: LoadInGrace "load-in-grace" "Readers of versions before a load are answered for a while, as they are after a flush." [Model],
        }
        "a-load-voids-bases-when-it-is-appended" {
            says: "From the moment when a load is appended, until p-nodes can have searched what it brings, no base of a condition counts.",
            otherwise: "an INSERT succeeds on a key that the load brings",
            source: "design 14",
            kept_in: ["tests/model/src/step/loads.rs"],
            tests: ["loads_beside_reads_and_writes"],
            broken_by: BaseOverLoad "base-over-load" "A load voids bases when it is shown, as a flush does." [Model],
        }
        "no-stamp-passes-a-load" {
            says: "A cached record's stamp never moves past a load that may lack what was there.",
            otherwise: "a record that was dropped comes back",
            source: "design 14",
            kept_in: ["tests/model/src/step/reads.rs"],
            tests: ["drops_beside_the_cache"],
            broken_by: StampOverLoad "stamp-over-load" "A cached record's stamp moves past a load whose table does not have the key, as it does past a flush." [Model],
        }
    }
    } };
}

pub(crate) use with_registered_reads;
