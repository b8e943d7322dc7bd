//! Nothing here: the benchmarks are in `benches/` (`cargo bench -p sextant-bench`).
