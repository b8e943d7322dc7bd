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
    let required = ["id", "listen", "http", "data_dir", "memory_bytes", "cluster"];
    let config: SstServerConfig = check("sstable.toml", &required);
    config.validate().unwrap();
    // Left out, it depends on whether the cache is stated; the sample says what it is without.
    let least = SstServerConfig { memory_bytes: None, ..config.clone() };
    assert_eq!(config.memory(), least.memory());
    let text = std::fs::read_to_string(sample("sstable.toml")).unwrap();
    assert!(text.contains(&format!("# block_cache_bytes = {}\n", config.memory().cache)));
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

/// The command's output, which succeeds.
fn sextant(args: &[&str]) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_sextant")).args(args).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

#[test]
fn the_files_of_compose_are_those_that_config_init_writes() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    sextant(&[
        "config",
        "init",
        "--memtable=memtable-1,memtable-2,memtable-3",
        "--sstable=sstable-1,sstable-2,sstable-3",
        "--pnode=pnode-1,pnode-2",
        "--id=compose",
        "--out",
        out,
    ]);
    let deployed = sample("../compose");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let text = |dir: &std::path::Path| std::fs::read_to_string(dir.join(&name)).unwrap();
        assert_eq!(text(dir.path()), text(&deployed), "{name}");
        files.push(name);
    }
    assert_eq!(files.len(), std::fs::read_dir(&deployed).unwrap().count());
    let checked: Vec<String> = files
        .iter()
        .filter(|name| *name != "cluster.toml")
        .map(|name| deployed.join(name).to_str().unwrap().to_owned())
        .collect();
    let args: Vec<&str> = ["config", "check"].into_iter().chain(checked.iter().map(String::as_str)).collect();
    assert_eq!(sextant(&args), "8 files, 0 errors, 0 warnings\n");
    // Every file has its container, and every container its file.
    let compose = std::fs::read_to_string(sample("../compose.yaml")).unwrap();
    for name in checked.iter().filter_map(|path| path.rsplit('/').next()) {
        let role = name.split('-').next().unwrap();
        let command = format!("command: [{role}, --config, /etc/sextant/{name}, --insecure]");
        assert_eq!(compose.matches(&command).count(), 1, "{command}");
    }
    assert_eq!(compose.matches("command: [").count(), checked.len());
    // The image has no /tmp: who restores puts files elsewhere.
    let place = "    environment: { TMPDIR: /var/lib/sextant }\n    volumes: [\"admin:/var/lib/sextant\"]\n";
    assert!(compose.contains(place), "{place}");
    // With TLS the same, and none is open.
    let encrypted = std::fs::read_to_string(sample("../compose.tls.yaml")).unwrap();
    for name in checked.iter().filter_map(|path| path.rsplit('/').next()) {
        let (server, role) = (name.trim_end_matches(".toml"), name.split('-').next().unwrap());
        let command = format!("  {server}:\n    command: [{role}, --config, /etc/sextant/{name}]\n");
        assert_eq!(encrypted.matches(&command).count(), 1, "{command}");
        let its_own = format!("-./certificates}}/{server}:/etc/sextant-tls:ro");
        assert_eq!(encrypted.matches(&its_own).count(), 1, "{its_own}");
    }
    assert!(!encrypted.contains("--insecure"));
}

#[test]
fn the_samples_of_config_pass_the_check() {
    let samples = ["memtable.toml", "sstable.toml", "pnode.toml"].map(sample);
    let mut args = vec!["config", "check"];
    args.extend(samples.iter().map(|path| path.to_str().unwrap()));
    assert!(sextant(&args).contains("0 errors"));
}

#[test]
fn what_the_environment_says_is_checked_when_that_is_asked_for() {
    let check = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sextant"));
        command.args(["config", "check"]).args(args).arg(sample("sstable.toml"));
        let output = command.env("SEXTANT__ID", "4").output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(check(&[]).0, Some(0), "a file by itself is as it is");
    let (code, printed) = check(&["--env"]);
    assert!(code == Some(2) && printed.contains("cluster.sstable has no such server"), "{printed}");
}
