//! `redis-benchmark` against whatever speaks RESP: not our client, so a check on it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use sextant_common::error::{Error, Result};

use crate::client::Measured;
use crate::load::{Load, Shape, VALUE_BYTES};
use crate::process::{Whose, cpu_us, own_cpu_us, run};
use crate::servers::{Addresses, Running};

/// It is told a number of requests, not a time: as many as our client made in the same time, within these bounds.
const REQUESTS_MIN: f64 = 500.0;
const REQUESTS_MAX: f64 = 50_000_000.0;
/// Far beyond what that many requests should take.
const LATE: Duration = Duration::from_secs(120);

/// What it does of our loads: only those on the records that both know.
pub fn test_of(load: Load) -> Option<&'static str> {
    match load {
        Load::Cached => Some("get"),
        Load::Set => Some("set"),
        Load::Absent | Load::Recent | Load::Mixed => None,
    }
}

/// `requests`: about how many are to be made. CPU time of the client is that of the whole program, its start included.
pub async fn drive(
    running: &Running,
    test: &str,
    records: u64,
    shape: Shape,
    requests: f64,
) -> Result<Measured> {
    let Addresses::Resp(addresses) = &running.addresses else {
        return Err(Error::invalid("redis-benchmark needs RESP"));
    };
    let port = addresses[0].rsplit(':').next().unwrap_or_default();
    // Not less than a batch for each client.
    let batches = (shape.clients * shape.pipeline) as f64;
    let requests = requests.clamp(REQUESTS_MIN.max(batches), REQUESTS_MAX) as u64;
    let numbers = [
        records.to_string(),
        requests.to_string(),
        shape.clients.to_string(),
        shape.pipeline.to_string(),
        VALUE_BYTES.to_string(),
    ];
    let [records, count, clients, pipeline, bytes] = numbers.each_ref().map(String::as_str);
    let args = [
        "-h",
        "127.0.0.1",
        "-p",
        port,
        "-t",
        test,
        "-r",
        records,
        "-n",
        count,
        "-c",
        clients,
        "-P",
        pipeline,
        "-d",
        bytes,
        "--csv",
    ];
    let (server_before, client_before) = (cpu_us(&running.pids), own_cpu_us(Whose::Children));
    let said = tokio::time::timeout(LATE, run(Path::new("redis-benchmark"), &args))
        .await
        .map_err(|_| Error::unavailable(format!("redis-benchmark took more than {LATE:?}")))??;
    let server_us = cpu_us(&running.pids).saturating_sub(server_before) as f64 / requests as f64;
    let client_us = (own_cpu_us(Whose::Children) - client_before) as f64 / requests as f64;
    let row = parse(&said, test)?;
    Ok(Measured {
        per_second: row.per_second,
        p50_us: row.p50_ms * 1e3,
        p99_us: row.p99_ms * 1e3,
        server_us,
        client_us,
        errors: BTreeMap::new(),
    })
}

#[derive(Debug, PartialEq)]
struct Row {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// The row of a test. Columns are found by their names: older versions have fewer.
fn parse(csv: &str, test: &str) -> Result<Row> {
    let unknown = |what: &str| Error::internal(format!("redis-benchmark: {what}: {:?}", csv.trim()));
    let mut lines = csv.lines().map(fields);
    let names = lines.find(|line| line.contains(&"rps")).ok_or_else(|| unknown("no header"))?;
    let row = lines
        .find(|line| line.first().is_some_and(|name| name.eq_ignore_ascii_case(test)))
        .ok_or_else(|| unknown("no row of the test"))?;
    let column = |name: &str| {
        let at = names.iter().position(|n| *n == name).ok_or_else(|| unknown(name))?;
        row.get(at).and_then(|value| value.parse().ok()).ok_or_else(|| unknown(name))
    };
    Ok(Row {
        per_second: column("rps")?,
        p50_ms: column("p50_latency_ms")?,
        p99_ms: column("p99_latency_ms")?,
    })
}

fn fields(line: &str) -> Vec<&str> {
    line.split(',').map(|field| field.trim().trim_matches('"')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "WARNING: Could not fetch server CONFIG\n\
        \"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
        \"SET\",\"500.00\",\"0.1\",\"0.1\",\"0.2\",\"0.3\",\"0.4\",\"0.5\"\n\
        \"GET\",\"83333.34\",\"0.364\",\"0.152\",\"0.359\",\"0.495\",\"0.615\",\"1.239\"\n";

    #[test]
    fn the_row_of_the_test_is_read_by_the_header() {
        assert_eq!(parse(CSV, "get").unwrap(), Row { per_second: 83333.34, p50_ms: 0.359, p99_ms: 0.615 });
        assert_eq!(parse(CSV, "set").unwrap().per_second, 500.0);
    }

    #[test]
    fn anything_else_is_an_error_that_shows_it() {
        assert!(parse("Could not connect", "get").unwrap_err().message.contains("Could not connect"));
        assert!(parse(CSV, "incr").unwrap_err().message.contains("no row"));
        assert!(parse("\"test\",\"rps\"\n\"GET\",\"1\"\n", "get").unwrap_err().message.contains("p50"));
    }
}
