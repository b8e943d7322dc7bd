//! Memory of an entry of 16 bytes of key and 100 of value: what is asked of the allocator (mimalloc, as in the servers), what the
//! process has in memory, and what the memtable says.

#[allow(dead_code, reason = "the same work as for the benchmark")]
mod old;
#[allow(dead_code, reason = "the same work as for the benchmark")]
mod rounds;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rounds::{ENTRY_BYTES, Table};

struct Counting;

static ASKED_BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: what it is asked it asks mimalloc, and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: as for this function.
        unsafe { mimalloc::MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ASKED_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as for this function.
        unsafe { mimalloc::MiMalloc.dealloc(pointer, layout) }
    }
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn measure<T: Table>(name: &str, keys: u64, updates: u64) {
    let table = T::fresh();
    let before = (ASKED_BYTES.load(Relaxed), resident_bytes());
    rounds::write(&table, 0..keys, 0, false);
    rounds::write(&table, (0..updates).map(|i| i % keys), keys, false);
    let entries = (keys + updates) as usize;
    let plain_bytes = keys as usize * ENTRY_BYTES + updates as usize * (ENTRY_BYTES - 16);
    let beyond = |bytes: usize| (bytes as f64 - plain_bytes as f64) / entries as f64;
    let asked = beyond(ASKED_BYTES.load(Relaxed) - before.0);
    let resident = beyond(resident_bytes().saturating_sub(before.1));
    println!("{name:>4} {keys:>9} {updates:>9} {asked:>8.1} {resident:>9.1} {:>8.1}", beyond(table.bytes()));
}

fn main() {
    println!("     bytes of an entry beyond key and value:");
    println!("          keys   updates    asked  resident  bytes()");
    let sizes = [1_000, 10_000, 100_000, 150_000, 200_000, 300_000, 400_000, 700_000, 1_000_000, 1_400_000];
    let with_updates = [(10_000, 10_000), (10_000, 1_000_000), (500_000, 500_000)];
    for (keys, updates) in sizes.map(|keys| (keys, 0)).into_iter().chain(with_updates) {
        // Each has a process of its own: the allocator keeps what one gives back, and it would be in memory for the next.
        let arguments = std::env::args().skip(1).collect::<Vec<_>>();
        match arguments.iter().find(|a| a.starts_with("measure-")).map(String::as_str) {
            Some("measure-old") if arguments.contains(&format!("{keys}-{updates}")) => {
                measure::<old::Memtable>("old", keys, updates);
            }
            Some("measure-new") if arguments.contains(&format!("{keys}-{updates}")) => {
                measure::<sextant_memtable_server::memtable::Memtable>("new", keys, updates);
            }
            Some(_) => {}
            None => {
                for which in ["measure-old", "measure-new"] {
                    let output = std::process::Command::new(std::env::current_exe().unwrap())
                        .args([which, &format!("{keys}-{updates}")])
                        .output()
                        .unwrap();
                    print!(
                        "{}",
                        String::from_utf8(output.stdout)
                            .unwrap()
                            .lines()
                            .last()
                            .map(|l| format!("{l}\n"))
                            .unwrap()
                    );
                }
            }
        }
    }
}
