//! The targets, by name.

mod command;
mod config;
mod filter;
mod history;
mod id;
mod lease;
mod log;
mod raft_node;
mod resp;
mod snapshot;
mod table;
mod wire;

/// A function that panics when a promise is broken.
pub struct Target {
    pub name: &'static str,
    /// What it feeds, and what it checks, in a line.
    pub about: &'static str,
    pub run: fn(&[u8]),
    /// Inputs that the real encoders make: where a search begins.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Longest input that is worth trying, in bytes.
    pub input_bytes_max: usize,
}

pub static TARGETS: &[Target] = &[
    Target {
        name: "resp_frames",
        about: "RESP and inline requests: any split gives the same commands; what is parsed encodes to the same",
        run: resp::frames,
        seeds: resp::seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "resp_connection",
        about: "a whole RESP connection over a map: any split gives the same replies, and a client can read them",
        run: resp::connection,
        seeds: resp::seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "raft_entry",
        about: "Raft entries and memberships: what decodes encodes to what decodes equally",
        run: log::entry,
        seeds: log::entry_seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "log_format",
        about: "headers, records and checkpoints of the Raft log, each alone",
        run: log::format,
        seeds: log::format_seeds,
        input_bytes_max: 8192,
    },
    Target {
        name: "log_damage",
        about: "damaged log directories: an error, or what the log held after some of its writes; nothing else",
        run: log::damage,
        seeds: log::damage_seeds,
        input_bytes_max: 256,
    },
    Target {
        name: "log_crafted",
        about: "log directories with wrong contents under right checksums: no panic, and opening twice gives the same",
        run: log::crafted,
        seeds: log::damage_seeds,
        input_bytes_max: 256,
    },
    Target {
        name: "log_command",
        about: "payloads of log entries (groups and rarer commands): what decodes encodes to what decodes equally",
        run: command::decode,
        seeds: command::decode_seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "partition",
        about: "a partition fed with decoded commands, truncations and commits: no panic; its snapshot survives",
        run: command::partition,
        seeds: command::partition_seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "snapshot",
        about: "a partition's snapshot, bare and in its file: what decodes encodes to what decodes equally",
        run: snapshot::snapshot,
        seeds: snapshot::seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "manifest",
        about: "manifests, table options and SSTable descriptions from the wire",
        run: wire::manifest,
        seeds: wire::manifest_seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "write_request",
        about: "clients' writes from the wire: within the limits, and nothing unknown is taken for something known",
        run: wire::write_request,
        seeds: wire::write_request_seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "raft_message",
        about: "Raft's messages from the wire: what is accepted survives the way back",
        run: wire::raft_message,
        seeds: wire::raft_message_seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "raft_node",
        about: "Raft's messages with any numbers to a replica on a real log: it goes on, and takes the next honest leader",
        run: raft_node::raft_node,
        seeds: raft_node::raft_node_seeds,
        input_bytes_max: 192,
    },
    Target {
        name: "lease_pulls",
        about: "holders' positions at a lease desk: nothing is published against a live lease",
        run: lease::pulls,
        seeds: lease::pull_seeds,
        input_bytes_max: 2048,
    },
    Target {
        name: "pull_replies",
        about: "replies to pulls at a p-node: its view lacks no bit that it claims",
        run: lease::replies,
        seeds: lease::reply_seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "table_block",
        about: "blocks and frames of SSTables: lookups and walks stay inside and agree after a rebuild",
        run: table::block,
        seeds: table::block_seeds,
        input_bytes_max: 8192,
    },
    Target {
        name: "table_footer",
        about: "trailer and meta section of SSTables",
        run: table::footer,
        seeds: table::footer_seeds,
        input_bytes_max: 1024,
    },
    Target {
        name: "table_damage",
        about: "damaged SSTables: the right answer or an error",
        run: table::damage,
        seeds: table::damage_seeds,
        input_bytes_max: 256,
    },
    Target {
        name: "table_crafted",
        about: "SSTables with wrong contents under right checksums: no panic, bounded memory",
        run: table::crafted,
        seeds: table::damage_seeds,
        input_bytes_max: 256,
    },
    Target {
        name: "filter_layered",
        about: "Bloom filters as they travel: bounded, stable, and they lose nothing",
        run: filter::layered,
        seeds: filter::layered_seeds,
        input_bytes_max: 40_000,
    },
    Target {
        name: "filter_sealed",
        about: "filters of SSTables: any hash may be asked",
        run: filter::sealed,
        seeds: filter::sealed_seeds,
        input_bytes_max: 8192,
    },
    Target {
        name: "history",
        about: "recorded histories: what is read is written and read equally; checking ends",
        run: history::history,
        seeds: history::seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "config",
        about: "configuration files and variables: errors are one line; what is valid survives being written",
        run: config::config,
        seeds: config::seeds,
        input_bytes_max: 4096,
    },
    Target {
        name: "sst_id",
        about: "ids of SSTables as bytes and as file names: one name for each",
        run: id::sst_id,
        seeds: id::seeds,
        input_bytes_max: 256,
    },
];

/// The target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
