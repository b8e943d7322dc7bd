//! `INFO` and `TIME`.

use std::fmt::Write;

use bytes::Bytes;
use sextant_common::key::filter_hash;
use sextant_environment::process;

use super::config::EVICTION;
use super::is;
use crate::frame::{Command, Reply};
use crate::shared::Shared;
use crate::store::Store;

/// The Redis whose behaviour is followed; clients choose features by it.
pub(super) const REDIS_VERSION: &str = "7.0.0";

type Section = (&'static str, Vec<(String, String)>);

pub(super) fn info<S: Store>(command: &Command<'_>, shared: &Shared<S>) -> Reply {
    let asked = |title: &str| {
        command.len() == 1
            || (1..command.len()).any(|i| {
                let arg = command.arg(i);
                is(arg, title) || ["all", "default", "everything"].iter().any(|all| is(arg, all))
            })
    };
    // (Redis gives them only to who asks for them.)
    let asked_by_name = |title: &str| command.len() > 1 && asked_beside_default(command, title);
    let mut text = String::new();
    let sections = own_sections(shared).into_iter().chain(shared.store.info());
    let of_commands = asked_by_name("Commandstats").then(|| ("Commandstats", shared.metrics.commandstats()));
    for (title, fields) in sections.filter(|(title, _)| asked(title)).chain(of_commands) {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let _ = write!(text, "# {title}\r\n");
        for (field, value) in fields {
            let _ = write!(text, "{field}:{value}\r\n");
        }
    }
    Reply::Text(text)
}

fn asked_beside_default(command: &Command<'_>, title: &str) -> bool {
    (1..command.len()).any(|i| {
        let arg = command.arg(i);
        is(arg, title) || ["all", "everything"].iter().any(|all| is(arg, all))
    })
}

fn own_sections<S: Store>(shared: &Shared<S>) -> Vec<Section> {
    let field = |name: &str, value: String| (name.to_owned(), value);
    let uptime_s = shared.now_ns().saturating_sub(shared.started_ns) / 1_000_000_000;
    vec![
        (
            "Server",
            vec![
                field("redis_version", REDIS_VERSION.into()),
                field("sextant_version", env!("CARGO_PKG_VERSION").into()),
                field("redis_mode", "standalone".into()),
                field("os", std::env::consts::OS.into()),
                field("arch_bits", usize::BITS.to_string()),
                field("process_id", std::process::id().to_string()),
                field("run_id", run_id(shared)),
                field("tcp_port", shared.local_addr.port().to_string()),
                field("uptime_in_seconds", uptime_s.to_string()),
                field("uptime_in_days", (uptime_s / 86_400).to_string()),
            ],
        ),
        (
            "Clients",
            vec![
                field("connected_clients", shared.clients.count().to_string()),
                field("blocked_clients", shared.waiters.count().to_string()),
                field("maxclients", shared.config.max_connections.to_string()),
            ],
        ),
        ("Memory", memory()),
        (
            "Persistence",
            vec![
                field("loading", "0".into()),
                field("rdb_changes_since_last_save", "0".into()),
                field("rdb_bgsave_in_progress", "0".into()),
                field("rdb_last_bgsave_status", "ok".into()),
                field("aof_enabled", "1".into()),
                field("aof_rewrite_in_progress", "0".into()),
                field("aof_last_bgrewrite_status", "ok".into()),
                field("aof_last_write_status", "ok".into()),
            ],
        ),
        ("Stats", shared.metrics.info(shared.now_ns())),
        ("Replication", vec![field("role", "master".into()), field("connected_slaves", "0".into())]),
        ("Cluster", vec![field("cluster_enabled", "0".into())]),
        ("CPU", cpu()),
    ]
}

/// Another one after each start.
fn run_id<S>(shared: &Shared<S>) -> String {
    let of = format!("{} {} {}", std::process::id(), shared.started_ns, shared.local_addr);
    let digits = |salt: u8| format!("{:016x}", filter_hash(format!("{salt} {of}").as_bytes()));
    [0, 1, 2].map(digits).concat()[..40].to_owned()
}

/// Of the whole process.
fn cpu() -> Vec<(String, String)> {
    let (user_s, system_s) = process::cpu_seconds().unwrap_or_default();
    let children = [("used_cpu_sys_children", 0.0), ("used_cpu_user_children", 0.0)];
    let fields = [("used_cpu_sys", system_s), ("used_cpu_user", user_s)].into_iter().chain(children);
    fields.map(|(name, seconds)| (name.to_owned(), format!("{seconds:.6}"))).collect()
}

/// Of the whole process. Job queues look whether something is evicted.
fn memory() -> Vec<(String, String)> {
    let used = process::resident_bytes().into_iter().flat_map(|bytes| {
        let fields =
            |name: &str| [(name.to_owned(), bytes.to_string()), (format!("{name}_human"), human(bytes))];
        [fields("used_memory"), fields("used_memory_rss")].concat()
    });
    let peak = process::peak_resident_bytes().into_iter().flat_map(|bytes| {
        let name = "used_memory_peak";
        [(name.to_owned(), bytes.to_string()), (format!("{name}_human"), human(bytes))]
    });
    let bounds = [
        ("mem_fragmentation_ratio", "1.00"),
        ("maxmemory", "0"),
        ("maxmemory_human", "0B"),
        ("maxmemory_policy", EVICTION),
    ];
    used.chain(peak).chain(bounds.map(|(name, value)| (name.to_owned(), value.to_owned()))).collect()
}

/// As Redis says it: `1.50M`.
fn human(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["K", "M", "G", "T"];
    let mut size = bytes as f64;
    let mut unit = "B";
    for larger in UNITS {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes}B") } else { format!("{size:.2}{unit}") }
}

/// Seconds and microseconds since 1970: the best guess, as in logs.
pub(super) fn time<S: Store>(shared: &Shared<S>) -> Reply {
    let now_us = shared.env.clock.wall_guess_ns() / 1_000;
    let number = |n: u64| Reply::Bulk(Bytes::from(n.to_string()));
    Reply::Array(vec![number(now_us / 1_000_000), number(now_us % 1_000_000)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_as_redis_says_them() {
        for (bytes, said) in
            [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1_572_864, "1.50M"), (3 << 30, "3.00G")]
        {
            assert_eq!(human(bytes), said);
        }
    }
}
