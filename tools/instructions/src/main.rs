//! The hottest functions, as often as said, for `cargo xtask instructions`, which counts what they execute.
//!
//! What is counted are the functions called `counted_*` ([`parts`], [`look`]): callgrind collects while one runs. Each is printed
//! with the number of its operations. Everything is the same in each run: keys, sizes, order.
//!
//! ```text
//! sextant-instructions [--sextant PROGRAM]      PROGRAM: its servers are run beside, not counted, for a p-node's look
//! ```

mod look;
mod parts;

/// As in the servers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    parts::count();
    match &arguments[..] {
        [option, program] if option == "--sextant" => look::count(program.as_ref()),
        _ => println!("skipped pnode_look: it needs the program `sextant`"),
    }
}

/// What a counted function has done.
fn counted(name: &str, operations: u64) {
    println!("counted_{name} {operations}");
}

/// 16 bytes, in no order.
fn key(i: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    // No two are the same: the factor and the modulus have no divisor in common.
    let mut number = (u128::from(i + 1) * 618_033_988_749 % 1_000_000_000_000) as u64;
    for digit in key[4..].iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    key
}
