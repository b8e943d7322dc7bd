//! What the figures were measured on.

use std::path::Path;

use serde::Serialize;

use crate::process;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
    /// File system and device of the data.
    pub disk: String,
    /// 1, 5, 15 minutes, at the start.
    pub load_average: String,
    /// Of the repository; ends in `+` if there are changes.
    pub commit: String,
}

pub async fn describe(data: &Path) -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let loads: Vec<_> = read("/proc/loadavg").split(' ').take(3).map(str::to_owned).collect();
    let data = std::fs::canonicalize(data).unwrap_or_else(|_| data.to_owned());
    Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned()),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_gib: memory_gib(&read("/proc/meminfo")),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        disk: disk(&read("/proc/mounts"), &data),
        load_average: loads.join(", "),
        commit: commit().await,
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    let (_, value) = text.lines().find(|line| line.starts_with(name))?.split_once(':')?;
    Some(value.trim().to_owned())
}

/// Rounded: the kernel keeps a part for itself.
fn memory_gib(meminfo: &str) -> u64 {
    let total = field(meminfo, "MemTotal").unwrap_or_default();
    let kib: u64 = total.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    (kib + (1 << 19)) >> 20
}

/// The last mount of the longest mount point above a directory.
fn disk(mounts: &str, dir: &Path) -> String {
    let mut best = (0, "unknown".to_owned());
    for line in mounts.lines() {
        let mut words = line.split(' ');
        if let (Some(device), Some(point), Some(kind)) = (words.next(), words.next(), words.next())
            && dir.starts_with(point)
            && point.len() >= best.0
        {
            best =
                (point.len(), if kind == device { kind.to_owned() } else { format!("{kind} on {device}") });
        }
    }
    best.1
}

async fn commit() -> String {
    let git = |args: &'static [&'static str]| process::run(Path::new("git"), args);
    let Ok(commit) = git(&["rev-parse", "--short", "HEAD"]).await else { return "unknown".to_owned() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).await.is_ok_and(|s| !s.is_empty());
    format!("{}{}", commit.trim(), if changed { "+" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_the_one_that_is_mounted_nearest() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/vdb /tmpfoo xfs rw 0 0\n";
        assert_eq!(disk(mounts, Path::new("/home/x")), "ext4 on /dev/vda");
        assert_eq!(disk(mounts, Path::new("/tmp/x")), "tmpfs");
        assert_eq!(disk("", Path::new("/tmp/x")), "unknown");
    }

    #[test]
    fn fields_are_found() {
        assert_eq!(field("a: 1\nmodel name\t: Some CPU\n", "model name").unwrap(), "Some CPU");
        assert_eq!(memory_gib("MemTotal:       24689012 kB\n"), 24);
    }
}
