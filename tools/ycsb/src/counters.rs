//! What the servers counted while a phase ran: their `/metrics` before and after.

use std::collections::BTreeMap;
use std::time::Duration;

use sextant_client::http;
use sextant_environment::Env;

use crate::cluster_file::Running;

/// How long a server may take to show its metrics.
const SCRAPE_DEADLINE: Duration = Duration::from_secs(5);

/// Sums of counters over all servers, by series: the name, and the labels as the server wrote them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    series: BTreeMap<String, f64>,
}

impl Counters {
    /// Adds what a page of metrics in the Prometheus text format says.
    pub fn add_page(&mut self, page: &str) {
        for line in page.lines() {
            if line.starts_with('#') {
                continue;
            }
            // `name{labels} value [timestamp]`; a label's value may contain spaces.
            let name_end = line.find('}').map_or_else(|| line.find(' ').unwrap_or(line.len()), |at| at + 1);
            let (series, rest) = line.split_at(name_end);
            if let Some(value) = rest.split_whitespace().next().and_then(|v| v.parse::<f64>().ok()) {
                *self.series.entry(series.to_owned()).or_default() += value;
            }
        }
    }

    /// What was counted since `before`.
    pub fn since(&self, before: &Counters) -> Counters {
        let series = self
            .series
            .iter()
            .map(|(name, value)| (name.clone(), value - before.series.get(name).copied().unwrap_or(0.0)))
            .collect();
        Counters { series }
    }

    /// The series of one counter: the value of its label, and the count. `name` without `_total`.
    pub fn by_label<'c>(
        &'c self,
        name: &'c str,
        label: &'c str,
    ) -> impl Iterator<Item = (&'c str, f64)> + 'c {
        self.series.iter().filter_map(move |(series, value)| {
            let labels = series.strip_prefix(name)?;
            let labels =
                labels.strip_prefix("_total").unwrap_or(labels).strip_prefix('{')?.strip_suffix('}')?;
            let named = labels.split(',').find_map(|l| l.strip_prefix(label)?.strip_prefix("=\""))?;
            Some((named.strip_suffix('"')?, *value))
        })
    }

    /// One series of a counter.
    pub fn labelled(&self, name: &str, label: &str, of: &str) -> Option<f64> {
        self.by_label(name, label).find(|(value, _)| *value == of).map(|(_, count)| count)
    }
}

/// Where counters come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// HTTP addresses of servers.
    pub http: Vec<String>,
    /// Memtable servers that run on this machine in processes of their own.
    pub memtable_pids: Vec<u32>,
}

impl Sources {
    /// All servers of a dev cluster.
    pub fn of_dev_cluster(running: &Running) -> Self {
        let mut pids: Vec<u32> = running.memtable.iter().map(|s| s.pid).collect();
        let others: Vec<u32> = running.pnodes.iter().chain(&running.sstable).map(|s| s.pid).collect();
        // Of a cluster in one process nobody can say which server used the time.
        pids.retain(|pid| !others.contains(pid));
        Self { http: running.servers().map(|s| s.http.clone()).collect(), memtable_pids: pids }
    }

    /// The sum of what all servers, and the p-nodes inside the generator, have counted. A server that does not answer is
    /// named on standard error and left out.
    pub async fn read(&self, env: &Env, local_pages: &[String]) -> Counters {
        let mut counters = Counters::default();
        for page in local_pages {
            counters.add_page(page);
        }
        for addr in &self.http {
            match http::get(env, addr, "/metrics", SCRAPE_DEADLINE).await {
                Ok(answer) if answer.is_ok() => counters.add_page(&answer.text()),
                Ok(answer) => eprintln!("no metrics from {addr}: status {}", answer.status),
                Err(e) => eprintln!("no metrics: {e}"),
            }
        }
        counters
    }

    /// CPU seconds that each memtable server's process has used.
    pub fn memtable_cpu_seconds(&self) -> Vec<f64> {
        self.memtable_pids.iter().map(|pid| cpu_seconds(*pid).unwrap_or(0.0)).collect()
    }
}

/// User and system time of a process, from `/proc/<pid>/stat`.
fn cpu_seconds(pid: u32) -> Option<f64> {
    /// Ticks of `/proc` a second: USER_HZ, which is 100 on every Linux that Rust supports.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the name in parentheses, may contain anything: count from behind it.
    let after_name = &stat[stat.rfind(')')? + 1..];
    let ticks = |field: usize| after_name.split_whitespace().nth(field - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP sextant_pnode_reads Point reads.\n\
        # TYPE sextant_pnode_reads counter\n\
        sextant_pnode_reads_total{mode=\"pda\",path=\"cache\"} 7\n\
        sextant_pnode_upstream_messages_total{kind=\"read\"} 3\n\
        sextant_pnode_writes_total 2\n\
        # EOF\n";

    #[test]
    fn counters_add_up_and_are_told_apart_by_their_labels() {
        let mut before = Counters::default();
        before.add_page(PAGE);
        let mut after = Counters::default();
        after.add_page(PAGE);
        after.add_page(PAGE);
        let delta = after.since(&before);
        assert_eq!(delta, before, "a second server counted the same");
        assert_eq!(delta.labelled("sextant_pnode_reads", "path", "cache"), Some(7.0));
        assert_eq!(delta.labelled("sextant_pnode_reads", "mode", "pda"), Some(7.0));
        assert_eq!(delta.labelled("sextant_pnode_upstream_messages", "kind", "read"), Some(3.0));
        assert_eq!(delta.labelled("sextant_pnode_upstream_messages", "kind", "get"), None);
        assert_eq!(delta.labelled("sextant_pnode_upstream", "kind", "read"), None);
    }

    #[test]
    fn this_process_has_used_some_time() {
        assert!(cpu_seconds(std::process::id()).is_some());
        assert_eq!(cpu_seconds(u32::MAX), None);
    }
}
