//! A million operations of five kinds by 64 clients on 1000 keys, and one saturated key.

#[allow(dead_code, reason = "the tests also append to histories")]
#[path = "../../../tests/checker/tests/checker/simulate.rs"]
mod simulate;

use criterion::{Criterion, criterion_group, criterion_main};
use sextant_checker::{Options, check};
use simulate::{Plan, simulate};

fn checks(c: &mut Criterion) {
    let mut group = c.benchmark_group("check");
    group.sample_size(10);
    let many = Plan {
        seed: 1,
        clients: 64,
        operations: 1_000_000,
        keys: 1000,
        unknown_percent: 0,
        conditional: true,
    };
    let plans = [
        ("1M_on_1000_keys", many.clone()),
        ("1M_on_1000_keys_1_percent_unknown", Plan { unknown_percent: 1, ..many.clone() }),
        ("100k_on_1_key_16_clients", Plan { clients: 16, operations: 100_000, keys: 1, ..many }),
    ];
    for (name, plan) in plans {
        let history = simulate(&plan).history;
        group.bench_function(name, |b| {
            b.iter(|| {
                let report = check(&history, &Options::default());
                assert!(report.passed(), "{report}");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, checks);
criterion_main!(benches);
