//! Reads: tombstones, stale manifests, the record cache.

macro_rules! reads {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Reads" {
        "a-memtable-tombstone-is-final" {
            says: "A memtable answers value, tombstone or no entry; a tombstone ends the search.",
            otherwise: "a deleted record is found in an SSTable",
            source: "design 4",
            kept_in: ["crates/memtable-server/src/reading/mod.rs", "crates/pnode/src/router/plan.rs"],
            tests: [
                "a_memtable_tombstone_is_an_answer",
                "memtable_tombstone_is_final",
                "memtable_tombstone_is_final_in_every_mode",
            ],
            broken_by: MemtableTombstoneIsNoEntry "memtable-tombstone-is-no-entry"
                "A memtable's tombstone is answered as \"no entry\"." [Model, Patch("memtable-tombstone-is-no-entry")],
        }
        "an-sstable-tombstone-is-not" {
            says: "After an SSTable's tombstone, cached or not, the memtables are asked: an INSERT since left no bit.",
            otherwise: "after delete and flush, an insert is not seen",
            source: "design 8; PDA 3.3",
            kept_in: ["crates/pnode/src/router/plan.rs"],
            tests: [
                "sst_tombstone_is_not_final",
                "sst_tombstone_is_not_final_neither_from_a_server_nor_from_the_cache",
            ],
            broken_by: SstTombstoneFinal "sst-tombstone-final" "An SSTable's tombstone ends a read." [Model, Operand],
        }
        "a-tombstone-ends-the-search-in-sstables" {
            says: "SSTables are searched newest first; the first that has the key, be it a tombstone, ends it.",
            otherwise: "a deleted record comes back",
            source: "design 8; PDA 3.3",
            kept_in: ["crates/pnode/src/router/sst_search.rs"],
            tests: ["older_tables_are_not_searched_after_a_tombstone"],
            broken_by: SearchPastTombstone "search-past-tombstone"
                "The search goes on in older SSTables after a tombstone." [Model, Operand],
        }
        "stale-readers-are-told" {
            says: "A reader whose SSTables lack a memtable that is gone is told so, frozen at its version or not.",
            otherwise: "\"absent\", or an older value, for a record flushed meanwhile",
            source: "design 4; PDA 5.2",
            kept_in: ["crates/memtable-server/src/partition/rules.rs", "crates/memtable-server/src/partition/view.rs"],
            tests: [
                "a_reader_behind_a_flush_is_told_so",
                "staleness_counts_memtables_that_were_active_at_the_readers_version",
            ],
            broken_by: NoStaleManifest "no-stale-manifest"
                "No reader is told that its manifest is stale." [Model, Operand],
            broken_by: StaleOnlyIfFrozen "stale-only-if-frozen"
                "Memtables still active at the reader's version do not count." [Model, Patch("stale-only-if-frozen")],
        }
        "a-read-names-what-it-searched" {
            says: "A memtable read names the version whose SSTables were searched, not the newest known.",
            otherwise: "after a tombstone at v, an insert flushed at v + 1 is missed: \"absent\"",
            source: "design 4",
            kept_in: ["crates/pnode/src/router/point_reads.rs"],
            tests: ["memtable_reread_names_the_searched_version"],
            broken_by: RereadNamesNewest "reread-names-newest"
                "A memtable read names the newest version." [Model, Patch("reread-names-newest")],
        }
        "the-cache-holds-what-sstables-said" {
            says: "The record cache holds the newest SSTable record of a key, never a memtable's.",
            otherwise: "insert, read, update: no bit, and a stale hit",
            source: "design 8",
            kept_in: ["crates/pnode/src/router/point_reads.rs", "crates/pnode/src/record_cache/mod.rs"],
            tests: ["cache_never_holds_memtable_values"],
            broken_by: CacheHoldsMemtableValues "cache-holds-memtable-values"
                "The record cache takes values of memtables." [Model, Patch("cache-holds-memtable-values")],
        }
        "a-stamp-passes-only-what-can-be-asked" {
            says:
                "A cached record's stamp passes a flush whose filter rules the key out; if it cannot be asked, the \
                 record is dropped.",
            otherwise: "a stale hit",
            source: "design 8",
            kept_in: ["crates/pnode/src/record_cache/mod.rs"],
            tests: ["cache_entry_dropped_when_a_flush_filter_is_missing"],
            broken_by: StampPastSwallowed "stamp-past-swallowed"
                "A stamp moves past flushed tables that are gone." [Model, Operand],
        }
        "a-stamp-is-what-was-searched" {
            says: "A record is cached with the version that was searched, however late it arrives.",
            otherwise: "a stale hit",
            source: "design 8",
            kept_in: ["crates/pnode/src/router/point_reads.rs"],
            tests: ["cache_stamp_is_the_searched_version"],
            broken_by: StampAtArrival "stamp-at-arrival"
                "A record is cached with the version at its arrival." [Model, Patch("stamp-at-arrival")],
        }
    }
    } };
}
