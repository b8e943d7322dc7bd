//! The samples in deploy/config are what the servers read, state the true defaults, and leave no field out.

use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sextant_environment::config::load;
use sextant_memtable_server::MemtableServerConfig;
use sextant_pnode::PNodeConfig;
use sextant_sstable_server::SstServerConfig;

fn sample(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/config").join(name)
}

/// `required`: fields without a default, or whose value in the sample is an example.
fn check<C: Serialize + DeserializeOwned>(name: &str, required: &[&str]) -> C {
    let path = sample(name);
    let config: C = load(&path).unwrap();

    // Without the fields that are said to have defaults, the configuration is the same.
    let text = std::fs::read_to_string(&path).unwrap();
    let full: toml::Table = toml::from_str(&text).unwrap();
    let mut least = full.clone();
    least.retain(|field, _| required.contains(&field));
    least["cluster"].as_table_mut().unwrap().remove("lease");
    let least: C = least.try_into().unwrap();
    assert_eq!(toml::Table::try_from(&least).unwrap(), toml::Table::try_from(&config).unwrap());

    // And no field is left out of the sample.
    let all = toml::Table::try_from(&config).unwrap();
    for (field, value) in &all {
        assert!(full.contains_key(field), "{name} does not mention {field}");
        if let (Some(section), Some(documented)) = (value.as_table(), full[field].as_table()) {
            for inner in section.keys() {
                assert!(documented.contains_key(inner), "{name} does not mention {field}.{inner}");
            }
        }
    }
    config
}

#[test]
fn memtable() {
    let required = ["id", "listen", "http", "data_dir", "log_devices", "cluster"];
    let config: MemtableServerConfig = check("memtable.toml", &required);
    config.validate().unwrap();
}

#[test]
fn sstable() {
    let config: SstServerConfig = check("sstable.toml", &["id", "listen", "http", "data_dir", "cluster"]);
    config.validate().unwrap();
}

#[test]
fn pnode() {
    let config: PNodeConfig = check("pnode.toml", &["id", "grpc", "admin", "resp", "http", "cluster"]);
    config.validate().unwrap();
}

#[test]
fn all_samples_are_of_one_cluster() {
    let memtable: MemtableServerConfig = load(&sample("memtable.toml")).unwrap();
    let sstable: SstServerConfig = load(&sample("sstable.toml")).unwrap();
    let pnode: PNodeConfig = load(&sample("pnode.toml")).unwrap();
    assert_eq!(memtable.cluster, sstable.cluster);
    assert_eq!(memtable.cluster, pnode.cluster);
}
