//! Minor compaction: a frozen memtable becomes an SSTable on several servers.
//!
//! The leader streams the newest version of each key, sorted, to every server of the replica set; each writes the same bytes,
//! so their checksums must agree. Done when the required number is durable; the others are repaired later.

use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_common::ids::SstId;
use sextant_common::manifest::SstMeta;
use sextant_common::sstable::IngestOrder;

use super::enough::enough;
use super::{Background, FlushJob};

/// When enough replicas are durable, how much longer the others may take before they are left to repair.
const STRAGGLERS: Duration = Duration::from_secs(2);

pub(super) async fn run(background: &Background, job: &FlushJob) -> Result<Option<SstMeta>> {
    if job.memtable.is_empty() {
        return Ok(None);
    }
    let id = background.new_id(job.freeze, job.epoch);
    match write(background, job, id).await {
        Ok(meta) => Ok(Some(meta)),
        Err(e) => {
            background.give_up(vec![id]);
            Err(e)
        }
    }
}

async fn write(background: &Background, job: &FlushJob, id: SstId) -> Result<SstMeta> {
    let targets = background.choose(id);
    let required = background.tuning.sst_replicas_required.min(targets.len());
    let (options, origin) = (job.options.clone(), Some(job.origin.clone()));
    let order = IngestOrder { id, table: job.table, options, origin };
    let writes = targets
        .iter()
        .map(|server| (server.id, server.ingest(order.clone(), job.memtable.clone(), job.expired_by)));
    let done = enough(writes, required, || STRAGGLERS).await;
    done.failed().for_each(|server| background.failed(server));
    let errors: Vec<_> = done.errors.iter().map(|(server, e)| format!("server {server}: {e}")).collect();
    let written = done.by;
    let Some(first) = written.first().cloned() else {
        return Err(Error::unavailable(format!("no sstable server took the table ({})", errors.join("; "))));
    };
    let agreeing = written.iter().filter(|m| **m == first).count();
    if agreeing < written.len() {
        return Err(Error::corrupt(format!("replicas of {id} differ: the servers wrote different bytes")));
    }
    if agreeing < required {
        return Err(Error::unavailable(format!(
            "only {agreeing} of {required} replicas are durable ({})",
            errors.join("; ")
        )));
    }
    // (A server of an older version does not write the generations down, and tells of none.)
    if first.id != id || first.table != job.table {
        return Err(Error::internal("an sstable server answered for another table"));
    }
    Ok(SstMeta { replicas: targets.iter().map(|s| s.id).collect(), ..first })
}
