//! The memtable against the one before it (`old.rs`: a skip list of versions), in the same process and in turns.
//!
//! `SEXTANT_BENCH_10M` measures 10 million keys too: 4 GiB, minutes.

#[allow(dead_code, reason = "it is kept as it was")]
mod old;
mod rounds;

/// As in the servers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    rounds::compare(10_000, 25);
    rounds::compare(1_000_000, 7);
    if std::env::var_os("SEXTANT_BENCH_10M").is_some() {
        rounds::compare(10_000_000, 3);
    }
}
