use super::*;

fn cluster() -> Cluster {
    let replica = |role: &str, term: u64| {
        serde_json::json!({
            "partition": 0, "role": role, "serving": role == "leader", "term": term, "epoch": "2.1",
            "last_index": 181, "committed_index": 180, "published_index": 179, "published_seq": 1011,
            "manifest_version": 3, "lease_holders": 2, "leases_live": 1, "unflushed_bytes": 1500,
            "memory_bytes": 2000, "writes": "slowed", "writes_why": "flushing does not keep up",
            "memtables": [{"table": 1, "active_bytes": 1500, "active_entries": 12, "frozen": 0, "frozen_bytes": 0}],
            "tables": [{"table": 1, "name": "default", "columns": 3, "most_for_a_key": 2, "sstables": [
                {"id": "p0-2-179-2.1-7", "records": 1010, "tombstones": 3, "bytes": 1057620, "replicas": [1, 3, 2]}
            ]}],
            "something_new": {}
        })
    };
    let document = serde_json::json!({
        "pnode": {"cluster": "c", "partitions": [
            {"partition": 0, "leader": 2, "epoch": "2.1", "serial": 9, "manifest_version": 3, "lease_left_ms": 255, "leased": true},
            {"partition": 1, "leader": null, "leased": false}
        ]},
        "memtable": [
            {"id": 1, "addr": "a:1", "error": null, "status": {"format_max": 1, "partitions": [replica("leader", 1)]}},
            {"id": 2, "addr": "a:2", "error": null, "status": {"partitions": [replica("leader", 2)], "uptime_seconds": 3.5, "format_max": 1}},
            {"id": 3, "addr": "a:3", "error": "no answer in time", "status": null}
        ],
        "sstable": [{"id": 1, "addr": "b:1", "error": null, "status": {
            "tables": 4, "table_bytes": 2000000, "damaged_tables": 1, "damage": [{"table": "p0", "error": "SSTable p0: offset 7: x"}]
        }}]
    });
    serde_json::from_value(document).unwrap()
}

#[test]
fn a_format_is_shown_with_what_it_could_be_and_who_hinders_it() {
    let mut cluster = cluster();
    let format = |cluster: &Cluster| cluster.summary().lines().nth(1).unwrap().to_owned();
    assert_eq!(format(&cluster), "format 0; what memtable server 3 reads is not known");
    cluster.memtable[2].status = Some(Default::default());
    assert_eq!(format(&cluster), "format 0; memtable server 3 reads formats up to 0, others 1");
    cluster.memtable.pop();
    assert_eq!(format(&cluster), "format 0, 1 is possible: sextant admin raise-format");
    for server in &mut cluster.memtable {
        server.status.as_mut().unwrap().partitions[0].configuration.format = 1;
    }
    assert_eq!(format(&cluster), "format 1");
}

#[test]
fn one_page_says_who_leads_what_is_where_and_who_is_down() {
    let text = cluster().summary();
    let line = |start: &str| {
        let found = text.lines().find(|l| l.starts_with(start));
        found
            .unwrap_or_else(|| panic!("no line {start:?} in:\n{text}"))
            .split_whitespace()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        line("0 "),
        [
            "0", "2", "2", "yes", "181", "180", "179", "1011", "3", "1.5", "kB", "of", "2.0", "kB", "1/2",
            "2/3"
        ],
        "the leader of the newer term is server 2"
    );
    assert_eq!(line("1 "), ["1", "none", "0/3"]);
    assert_eq!(
        line("default"),
        ["default", "0", "1.5", "kB", "12", "0", "(0", "B)", "1", "2", "3", "1010", "1.1", "MB"]
    );
    assert_eq!(line("p0-2"), ["p0-2-179-2.1-7", "default", "1010", "3", "1.1", "MB", "1", "3", "2"]);
    assert!(line("partition 0").contains(&"255"));
    assert!(line("partition 1").contains(&"unknown"));
    assert_eq!(line("memtable 3"), ["memtable", "3", "a:3", "DOWN", "no", "answer", "in", "time"]);
    assert_eq!(line("sstable 1")[4..], ["s", "4", "tables,", "2.0", "MB,", "1", "damaged,", "0", "repaired"]);
    assert_eq!(line("  partition 0").join(" "), "partition 0: writes are slowed: flushing does not keep up");
    assert_eq!(line("  sstable 1").join(" "), "sstable 1: damaged: SSTable p0: offset 7: x");
}

#[test]
fn servers_that_are_to_be_empty_are_shown_and_one_that_is_there_is_worth_a_line() {
    let mut cluster = cluster();
    assert!(!cluster.summary().contains("to be empty"));
    // By the leader; what others say may be old. (9 was taken out of the cluster.)
    let replica = |server: &mut document::Server<document::Memtable>, draining: &[u64]| {
        server.status.as_mut().unwrap().partitions[0].configuration.draining = draining.to_vec();
    };
    replica(&mut cluster.memtable[0], &[2]);
    replica(&mut cluster.memtable[1], &[9, 1]);
    let text = cluster.summary();
    assert_eq!(text.lines().nth(2), Some("sstable servers that are to be empty: 1, 9"), "{text}");
    let attention = text.split_once("\nattention\n").unwrap().1;
    let told = "  sstable 1: it is to be empty (4 tables left): if it is not, sextant admin drain --none";
    assert!(attention.lines().any(|line| line == told), "{attention}");
    assert!(!attention.contains("sstable 9"), "{attention}");
    cluster.sstable[0].status = None;
    assert!(!cluster.summary().contains("(4 tables left)"), "it is switched off");
}
