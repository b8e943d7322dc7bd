use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sextant_common::Result;
use sextant_environment::config::{ClusterConfig, parse};
use sextant_memtable_server::MemtableServerConfig;
use sextant_pnode::PNodeConfig;
use sextant_sstable_server::SstServerConfig;

/// Separates the file from the variables, one `NAME=value` a line.
const SEPARATOR: &str = "\n%%\n";

/// The first byte says whose configuration it is; then the file, the separator, and the variables.
pub fn config(data: &[u8]) {
    let Some((role, data)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (file, variables) = text.split_once(SEPARATOR).unwrap_or((text, ""));
    let variables: Vec<(String, String)> = variables
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    match role % 3 {
        0 => read::<MemtableServerConfig>(file, variables, |c| {
            c.validate()?;
            use_cluster(&c.cluster);
            assert!(!c.devices().is_empty());
            Ok(())
        }),
        1 => read::<SstServerConfig>(file, variables, |c| {
            c.validate()?;
            use_cluster(&c.cluster);
            Ok(())
        }),
        _ => read::<PNodeConfig>(file, variables, |c| {
            c.validate()?;
            use_cluster(&c.cluster);
            assert!(!c.library().default_deadline.is_zero());
            Ok(())
        }),
    }
}

fn read<T: DeserializeOwned + Serialize>(
    file: &str,
    variables: Vec<(String, String)>,
    validate: impl Fn(&T) -> Result<()>,
) {
    let config: T = match parse(file, "file.toml", variables) {
        Ok(config) => config,
        Err(e) => {
            let message = e.to_string();
            assert!(!message.is_empty() && !message.contains('\n'), "not one line: {message:?}");
            return;
        }
    };
    let valid = validate(&config).is_ok();
    let written = match toml::to_string(&config) {
        Ok(written) => written,
        // TOML has no numbers beyond i64; none can have been read either.
        Err(e) => panic!("cannot be written: {e}"),
    };
    let again: T = match parse(&written, "again.toml", []) {
        Ok(again) => again,
        Err(e) => panic!("what was written is refused: {e}\n{written}"),
    };
    assert_eq!(toml::to_string(&again).ok().as_deref(), Some(&written[..]));
    assert_eq!(validate(&again).is_ok(), valid);
}

/// The arithmetic that is done with a valid configuration.
fn use_cluster(cluster: &ClusterConfig) {
    let lease = &cluster.lease;
    cluster.fingerprint();
    // Whole nanoseconds in 64 bits, on top of a clock that has run for a century.
    let century_ns = Duration::from_secs(100 * 366 * 86_400).as_nanos();
    for length in [lease.lease(), lease.leader_lease()] {
        let longest = lease.stretched(length).as_nanos() + century_ns;
        assert!(2 * longest < u128::from(u64::MAX), "a lease of {length:?} is valid");
    }
    let interval_ns = u128::from(lease.group_interval_us) * 1000 + century_ns;
    let jitter_ns = u128::from(lease.election_jitter_ms) * 1_000_000 + century_ns;
    assert!(interval_ns < u128::from(u64::MAX), "group_interval_us {} is valid", lease.group_interval_us);
    assert!(jitter_ns < u128::from(u64::MAX), "election_jitter_ms {} is valid", lease.election_jitter_ms);
}

pub fn seeds() -> Vec<Vec<u8>> {
    let variables = [
        "\n%%\nSEXTANT__LISTEN=0.0.0.0:1\nSEXTANT_TUNING__MEMTABLE_BYTES=134217728\nPATH=/bin\n",
        "\n%%\nSEXTANT_CLUSTER__SSTABLE__0__ADDR=\"x:1\"\nSEXTANT__HTTP=\"a:2\"\nSEXTANT_CLUSTER__LEASE__MODE=timed\n",
        "\n%%\nSEXTANT_CLOCK__SOURCE=fixed\nSEXTANT_CLOCK__ERROR_US=10\nSEXTANT_CLUSTER__MEMTABLE=[{ id = 1, addr = 'a:1' }]\n",
    ];
    let files = [
        include_str!("../../../../deploy/config/memtable.toml"),
        include_str!("../../../../deploy/config/sstable.toml"),
        include_str!("../../../../deploy/config/pnode.toml"),
    ];
    let mut seeds = Vec::new();
    for (role, (file, variables)) in files.iter().zip(variables).enumerate() {
        let bare: String = file
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(|line| format!("{line}\n"))
            .collect();
        seeds.push([&[role as u8], bare.as_bytes()].concat());
        seeds.push([&[role as u8], bare.trim_end().as_bytes(), variables.as_bytes()].concat());
    }
    seeds.push(b"\x00id = 1\nid = 2\n".to_vec());
    seeds.push(
        b"\x01\xef\xbb\xbfid = [1, {a = 2}]\n%%\nSEXTANT__ID=7\nSEXTANT_ID__X=3\nSEXTANT___=1\n".to_vec(),
    );
    seeds
}
