//! `deploy/install.sh`, into a directory: what it puts there, that a second run changes nothing, what it refuses.
//! And what the units promise. (That servers start, stop and come back by them takes a machine with systemd.)

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sextant");
const ROLES: [&str; 3] = ["memtable", "sstable", "pnode"];
/// Most that `systemd-analyze security` may find, in tenths.
const EXPOSURE_MAX: &str = "--threshold=15";

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

/// The command's output, which succeeds.
fn sextant(args: &[&str], dir: &Path) {
    let output = Command::new(PROGRAM).args(args).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What a run has said.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    fn summary(&self) -> &str {
        self.stdout.lines().last().unwrap_or("")
    }
}

/// A directory that is installed into, beside the files of a cluster.
struct Image {
    dir: TempDir,
}

impl Image {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        std::fs::create_dir(path.join("root")).unwrap();
        sextant(
            &[
                "config",
                "init",
                "--memtable=a,b,c",
                "--sstable=a,b,c",
                "--pnode=a",
                "--out=config",
                "--tls=/etc/sextant/tls",
            ],
            path,
        );
        sextant(&["cert", "init"], path);
        let servers = ["config/memtable-1.toml", "config/memtable-2.toml", "config/pnode-1.toml"];
        sextant(&[&["cert", "server"][..], &servers[..]].concat(), path);
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn installed(&self, name: &str) -> PathBuf {
        self.path("root").join(name.trim_start_matches('/'))
    }

    /// Into the directory, always: without `--root` it is this machine that would be changed.
    fn run(&self, args: &[&str]) -> Run {
        let output = Command::new(deploy("install.sh"))
            .arg("--root")
            .arg(self.path("root"))
            .args(args)
            .current_dir(self.dir.path())
            .env("CARGO_TARGET_DIR", self.path("nothing-is-built-here"))
            .output()
            .unwrap();
        Run {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn install(&self, args: &[&str]) -> Run {
        let run = self.run(&[&["--binary", PROGRAM][..], args].concat());
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{args:?}: {}", run.stdout);
        run
    }

    fn refused(&self, args: &[&str]) -> String {
        let before = self.tree();
        let run = self.run(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{args:?}: {}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{args:?}: {}", run.stderr);
        assert_eq!(self.tree(), before, "{args:?}");
        run.stderr
    }

    /// Of every file and directory: its type and mode, owner, group, inode, size and when it was last changed.
    fn tree(&self) -> BTreeMap<PathBuf, [i64; 7]> {
        let mut tree = BTreeMap::new();
        let mut directories = vec![self.path("root")];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(&directory).unwrap() {
                let path = entry.unwrap().path();
                let m = std::fs::symlink_metadata(&path).unwrap();
                let (inode, size) = (m.ino() as i64, m.size() as i64);
                let facts =
                    [m.mode().into(), m.uid().into(), m.gid().into(), inode, size, m.mtime(), m.mtime_nsec()];
                if m.is_dir() {
                    directories.push(path.clone());
                }
                tree.insert(path, facts);
            }
        }
        tree
    }

    fn mode(&self, name: &str) -> u32 {
        let path = self.installed(name);
        let metadata = std::fs::metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        metadata.permissions().mode() & 0o7777
    }
}

const ALL: [&str; 7] = ["--config", "config", "--tls", "certs", "--enable", "memtable-1", "pnode-1"];

#[test]
fn a_second_run_changes_nothing() {
    let image = Image::new();
    let first = image.install(&ALL);
    for line in [
        "installed /usr/local/bin/sextant",
        "made /var/lib/sextant/",
        "installed /etc/sextant/cluster.toml",
        "installed /etc/sextant/tls/pnode-1.key",
        "enabled sextant-memtable@1.service",
    ] {
        assert!(first.stdout.lines().any(|l| l == line), "{line}: {}", first.stdout);
    }
    assert!(first.summary().ends_with(" changes"), "{}", first.stdout);
    let (before, second) = (image.tree(), image.install(&ALL));
    assert_eq!(second.summary(), "nothing has changed", "{}", second.stdout);
    assert_eq!(image.tree(), before);
    // What is there by then may go unsaid.
    assert_eq!(image.install(&["--enable=memtable-1,pnode-1"]).summary(), "nothing has changed");

    for (name, mode) in [
        ("/usr/local/bin/sextant", 0o755),
        ("/etc/systemd/system/sextant-sstable@.service", 0o644),
        ("/etc/sextant", 0o750),
        ("/etc/sextant/memtable-1.toml", 0o640),
        ("/etc/sextant/tls", 0o750),
        ("/etc/sextant/tls/ca.pem", 0o644),
        ("/etc/sextant/tls/memtable-1.pem", 0o644),
        ("/etc/sextant/tls/memtable-1.key", 0o640),
        ("/var/lib/sextant", 0o750),
    ] {
        assert_eq!(image.mode(name), mode, "{name}");
    }
    let wants = image.installed("/etc/systemd/system/multi-user.target.wants/sextant-memtable@1.service");
    let unit = "/etc/systemd/system/sextant-memtable@.service";
    assert_eq!(std::fs::read_link(wants).unwrap(), Path::new(unit));
    // What is another host's stays away, and the authority's key from all of them.
    for name in ["memtable-2.toml", "tls/memtable-2.key", "tls/ca.key"] {
        assert!(!image.installed("/etc/sextant").join(name).exists(), "{name}");
    }
}

#[test]
fn what_differs_is_kept_until_it_is_to_be_overwritten() {
    let image = Image::new();
    image.install(&ALL);
    let shared = image.installed("/etc/sextant/cluster.toml");
    let (written, edited) = (std::fs::read(&shared).unwrap(), "id = \"another\"\n");
    std::fs::write(&shared, edited).unwrap();
    let all = [&["--binary", PROGRAM][..], &ALL[..]].concat();
    let why = image.refused(&all);
    assert!(why.contains("/etc/sextant/cluster.toml differs from config/cluster.toml"), "{why}");
    let run = image.install(&[&ALL[..], &["--force"]].concat());
    assert!(run.stdout.contains("replaced /etc/sextant/cluster.toml\n1 change\n"), "{}", run.stdout);
    assert_eq!(std::fs::read(&shared).unwrap(), written);
    // Somebody has made a key public.
    let key = "/etc/sextant/tls/memtable-1.key";
    std::fs::set_permissions(image.installed(key), PermissionsExt::from_mode(0o644)).unwrap();
    let run = image.install(&[]);
    assert_eq!(
        (run.summary(), image.mode(key)),
        ("nothing has changed", 0o644),
        "nobody spoke of certificates"
    );
    let run = image.install(&["--tls", "certs"]);
    assert!(run.stdout.contains(&format!("set mode and owner of {key}\n1 change\n")), "{}", run.stdout);
    assert_eq!(image.mode(key), 0o640);
}

#[test]
fn a_binary_that_runs_is_not_disturbed() {
    let image = Image::new();
    image.install(&[]);
    let installed = image.installed("/usr/local/bin/sextant");
    let before = std::fs::File::open(&installed).unwrap();
    let size = before.metadata().unwrap().len();
    let newer = image.path("newer");
    std::fs::write(&newer, "#!/bin/sh\necho sextant 9.9.9\n").unwrap();
    std::fs::set_permissions(&newer, PermissionsExt::from_mode(0o755)).unwrap();
    let run = image.run(&["--binary", "newer"]);
    assert!(run.stdout.contains("replaced /usr/local/bin/sextant\n1 change\n"), "{run:?}");
    assert_eq!(std::fs::read(&installed).unwrap(), std::fs::read(&newer).unwrap());
    let kept = before.metadata().unwrap();
    assert_eq!((kept.len(), kept.nlink()), (size, 0));
    let names = std::fs::read_dir(installed.parent().unwrap()).unwrap();
    assert_eq!(names.count(), 1, "something is left over");
}

/// Arguments beside the binary, and what is said of them.
const REFUSED: &[(&[&str], &str)] = &[
    (&["--frobnicate"], "--frobnicate: no such option"),
    (&["memtable-1"], "memtable-1: no such option"),
    (&["--config"], "--config: which?"),
    (&["--config", "--force"], "--config: which?"),
    (&["--config="], "--config: which?"),
    (&["--config", "nowhere"], "--config nowhere: no such directory"),
    (&["--config", "certs"], "no configuration of this host's servers"),
    (&["--config", "config", "--enable", "memtable-4"], "no configuration of this host's servers"),
    (&["--config", "config", "--enable", "pnode-1", "memtable-4"], "no /etc/sextant/memtable-4.toml"),
    (&["--enable"], "--enable: which?"),
    (&["--enable", "memtable-1"], "no /etc/sextant/memtable-1.toml"),
    (&["--enable", "memtable"], "neither memtable-ID, sstable-ID nor pnode-ID"),
    (&["--enable", "pnode-01"], "neither memtable-ID, sstable-ID nor pnode-ID"),
    (&["--enable", "../x-1"], "neither memtable-ID, sstable-ID nor pnode-ID"),
    (&["--tls", "nowhere"], "--tls nowhere: no such directory"),
    (&["--tls", "config"], "--tls config: no ca.pem"),
    (&["--tls", "certs"], "No server has configuration here"),
    (&["--config", "config", "--tls", "certs"], "--tls certs: no memtable-3.pem"),
    (&["--uninstall"], "--uninstall goes with --root only"),
];

#[test]
fn what_is_wrong_is_refused_before_anything_changes() {
    let image = Image::new();
    let binary = ["--binary", PROGRAM];
    let with = |args: &[&str]| image.refused(&[&binary[..], args].concat());
    for &(args, why) in REFUSED {
        let said = with(args);
        assert!(said.starts_with("deploy/install.sh: ") && said.contains(why), "{args:?}: {said}");
    }
    assert!(image.refused(&[]).contains("cargo build --release --bin sextant"));
    assert!(image.refused(&["--binary", "nowhere"]).contains("no such file"));
    assert!(image.refused(&["--binary", "certs/ca.pem"]).contains("not executable"));
    assert!(image.refused(&["--binary", "/bin/true"]).contains("is not Sextant"));
    assert!(image.refused(&["--root", "nowhere"]).contains("no such directory"));

    // What `sextant config check` finds.
    let break_it = |name: &str, from: &str, to: &str| {
        let path = image.path("config").join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
    };
    break_it("memtable-1.toml", "listen = ", "listens = ");
    let said = with(&["--config", "config", "--enable", "memtable-1"]);
    assert!(said.contains("sextant config check: error: memtable-1.toml:"), "{said}");
    break_it("memtable-2.toml", "id = 2", "id = 3");
    let said = with(&["--config", "config", "--enable", "memtable-2"]);
    assert!(said.contains("memtable-2.toml: it is the configuration of number 3"), "{said}");
    std::fs::remove_file(image.path("config/cluster.toml")).unwrap();
    assert!(with(&["--config", "config", "--enable", "pnode-1"]).contains("cluster.toml"));
    assert_eq!(std::fs::read_dir(image.path("root")).unwrap().count(), 0);
}

#[test]
fn uninstalled_it_leaves_configuration_and_data() {
    let image = Image::new();
    image.install(&ALL);
    let data = image.installed("/var/lib/sextant/memtable-1");
    std::fs::create_dir(&data).unwrap();
    let run = image.run(&["--uninstall"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    for line in
        ["disabled sextant-pnode@1.service", "note: left /etc/sextant/", "note: left /var/lib/sextant/"]
    {
        assert!(run.stdout.lines().any(|l| l == line), "{line}: {}", run.stdout);
    }
    let left: Vec<PathBuf> = image
        .tree()
        .into_keys()
        .map(|path| path.strip_prefix(image.path("root")).unwrap().to_owned())
        .filter(|path| path.to_string_lossy().contains("sextant"))
        .collect();
    let kept = ["etc/sextant", "var/lib/sextant"];
    assert!(left.iter().all(|path| kept.iter().any(|kept| path.starts_with(kept))), "{left:?}");
    assert!(data.exists() && image.installed("/etc/sextant/tls/pnode-1.key").exists());
    assert_eq!(image.run(&["--uninstall"]).summary(), "nothing has changed");
    // And back again.
    assert!(image.install(&ALL).stdout.contains("enabled sextant-pnode@1.service"));
}

#[test]
fn it_says_how_it_is_used() {
    let output = Command::new(deploy("install.sh")).arg("--help").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    let help = String::from_utf8(output.stdout).unwrap();
    for option in ["--binary", "--config", "--tls", "--force", "--enable", "--root", "--uninstall", "--help"]
    {
        assert!(help.contains(option), "{option}");
    }
}

/// The unit's lines without comments.
fn unit(role: &str) -> String {
    let text = std::fs::read_to_string(deploy(&format!("systemd/sextant-{role}@.service"))).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

#[test]
fn every_role_has_a_unit_that_keeps_the_promises() {
    for role in ROLES {
        let unit = unit(role);
        let start = format!("ExecStart=/usr/local/bin/sextant {role} --config /etc/sextant/{role}-%i.toml");
        for line in [
            start.as_str(),
            "After=network-online.target nss-lookup.target time-sync.target",
            "Type=notify",
            "User=sextant",
            "Restart=on-failure",
            "RestartPreventExitStatus=2 70 76",
            "KillMode=mixed",
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=",
            "ProtectSystem=strict",
            "UMask=0077",
            "LimitCORE=0",
        ] {
            assert_eq!(unit.lines().filter(|l| *l == line).count(), 1, "{role}: {line}");
        }
        assert!(!unit.contains("--insecure"), "{role}: open, and nobody has asked for it");
        let state = format!("StateDirectory=sextant/{role}-%i\n");
        assert_eq!(unit.contains(&state), role != "pnode", "{role}");
        // Who reads a disk first is not ended half-way.
        let patient = unit.contains("TimeoutStartSec=infinity\n");
        assert_eq!(patient, role != "pnode", "{role}");
    }
}

/// Where systemd's tools are installed.
#[test]
fn systemd_takes_the_units() {
    let dir = tempfile::tempdir().unwrap();
    for role in ROLES {
        let path = dir.path().join(format!("sextant-{role}@1.service"));
        std::fs::write(&path, unit(role).replace("/usr/local/bin/sextant", PROGRAM)).unwrap();
        for args in [&["verify"][..], &["security", "--offline=true", EXPOSURE_MAX]] {
            let output = match Command::new("systemd-analyze").args(args).arg(&path).output() {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    eprintln!("no systemd-analyze: the units are not verified");
                    return;
                }
                output => output.unwrap(),
            };
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && said.is_empty(), "{role}: {args:?}: {said}");
        }
    }
}

/// What [package.metadata.deb] names, there is; and the package has what the script installs.
#[test]
fn the_package_has_every_unit_and_no_file_that_is_gone() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest: toml::Table = std::fs::read_to_string(here.join("Cargo.toml")).unwrap().parse().unwrap();
    let deb = &manifest["package"]["metadata"]["deb"];
    for asset in deb["assets"].as_array().unwrap() {
        let source = asset[0].as_str().unwrap();
        // Made by the build, or several.
        if !source.starts_with("target/") && !source.contains('*') {
            assert!(here.join(source).exists(), "{source}");
        }
    }
    let scripts = here.join(deb["maintainer-scripts"].as_str().unwrap());
    for script in ["postinst", "prerm", "postrm"] {
        let checked = Command::new("sh").arg("-n").arg(scripts.join(script)).status().unwrap();
        assert!(checked.success(), "{script}");
    }
    // In /usr/bin, where the package has the binary.
    let build = std::fs::read_to_string(deploy("debian/build")).unwrap();
    assert!(build.contains("s,/usr/local/bin/sextant,/usr/bin/sextant,"));
    for role in ROLES {
        assert!(unit(role).contains("ExecStart=/usr/local/bin/sextant "), "{role}");
    }
}
