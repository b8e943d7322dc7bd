//! Tables by name: looked up in manifests; created, changed and dropped in partition 0 (which allocates the id) and then everywhere else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use sextant_common::database::Database;
use sextant_common::ids::{DEFAULT_TABLE, DEFAULT_TABLE_NAME, OWN_TABLES, PartitionId, TableId};
use sextant_common::limits::check_table_name;
use sextant_common::manifest::{OptionsChange, TableInfo, TableOptions};
use sextant_common::operation::WriteStatus;
use sextant_common::{Error, ErrorKind, Result};

use crate::core::Core;
use crate::filter_copies::Copies;
use crate::upstream::{Backoff, Deadline, Disposed, MemtablePeer, TableWish};

/// The partition that allocates ids of tables.
const ALLOCATOR: PartitionId = PartitionId(0);
/// Partitions in which a table is created, or changed, at once.
const CREATIONS_MAX: usize = 16;
/// How long a leader may take to answer: a write and some.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// And for a change: leases run out, and a memtable is flushed. (Asked again it goes on where it was.)
const CHANGE_MAX: Duration = Duration::from_secs(15);

pub(crate) struct Tables {
    core: Arc<Core>,
    copies: Arc<Copies>,
    /// Counts those who come to look, and those who begin.
    moments: AtomicU64,
    /// When the last look that has found something began.
    looked: tokio::sync::Mutex<u64>,
}

impl Tables {
    pub fn new(core: &Arc<Core>, copies: &Arc<Copies>) -> Self {
        Self {
            core: core.clone(),
            copies: copies.clone(),
            moments: AtomicU64::new(1),
            looked: Default::default(),
        }
    }

    /// The table of a name ("": the default table). An unknown name is looked for where names are given.
    pub async fn get(&self, name: &str, deadline: Deadline) -> Result<Arc<TableInfo>> {
        if let Some(table) = self.core.views.tables.get(name) {
            return Ok(table);
        }
        if !name.is_empty() {
            check_table_name(name)?;
        }
        self.core.check_running()?;
        let mut manifests = self.core.views.watch_manifests();
        let looked = deadline.limit(&*self.core.env.clock, Duration::MAX, async {
            // Right after the start there is nothing to look in yet.
            while !self.core.views.peek(ALLOCATOR).manifest_known
                && self.core.views.tables.get(name).is_none()
            {
                if tokio::time::timeout(Duration::from_millis(50), manifests.changed()).await.is_err() {
                    self.core.check_running()?;
                }
            }
            match self.core.views.tables.get(name) {
                Some(_) => Ok(()),
                None => self.look(deadline).await,
            }
        });
        let looked = looked.await;
        if let Some(table) = self.core.views.tables.get(name) {
            return Ok(table);
        }
        looked?;
        if name.is_empty() || name == DEFAULT_TABLE_NAME {
            // It exists in every cluster, whether or not the manifest has come to name it.
            let options = TableOptions::default();
            return Ok(Arc::new(TableInfo { id: DEFAULT_TABLE, name: DEFAULT_TABLE_NAME.into(), options }));
        }
        Err(unknown(name))
    }

    /// Gets to know which there are: those that others have created are there, those that they have dropped are not. Whoever comes while
    /// somebody looks takes what is found by who looks next.
    pub async fn look(&self, deadline: Deadline) -> Result<()> {
        let arrived = self.moments.fetch_add(1, Ordering::SeqCst);
        let clock = &*self.core.env.clock;
        let mut looked = deadline.limit(clock, Duration::MAX, async { Ok(self.looked.lock().await) }).await?;
        if *looked > arrived {
            return Ok(());
        }
        let begins = self.moments.fetch_add(1, Ordering::SeqCst);
        self.look_in(ALLOCATOR, deadline).await?;
        // (What is the same version as before is no news, and nobody was told.)
        self.core.views.tables.learn_all(&self.core.views.peek(ALLOCATOR).manifest);
        *looked = begins;
        Ok(())
    }

    /// Gets a partition's newest manifest.
    async fn look_in(&self, partition: PartitionId, deadline: Deadline) -> Result<()> {
        let looked = async {
            let mut backoff = Backoff::default();
            loop {
                let before = self.core.leaders.get(partition).node;
                let Err(e) = self.copies.newest_manifest(partition).await else { return Ok(()) };
                self.core.check_running()?;
                if !self.core.wait_to_retry(partition, before, &mut backoff, deadline).await {
                    return Err(e);
                }
            }
        };
        deadline.limit(&*self.core.env.clock, Duration::MAX, looked).await
    }

    /// Creates a table in all partitions; idempotent. The id, and whether it is new.
    pub async fn create(
        &self,
        name: &str,
        options: TableOptions,
        deadline: Deadline,
    ) -> Result<(TableId, bool)> {
        check_table_name(name)?;
        let wanted = TableInfo { id: TableId(0), name: name.to_owned(), options };
        let (table, created) = self.ensure_table(ALLOCATOR, &wanted, deadline).await?;
        let others = self.core.views.partitions().filter(|p| *p != ALLOCATOR);
        at_once(others.map(async |partition| self.ensure_table(partition, &table, deadline).await.map(drop)))
            .await?;
        // Not what was made, but what there is: it may have been dropped meanwhile.
        self.look(deadline).await?;
        Ok((table.id, created))
    }

    /// What is to be done about a table that a partition does not know. None: it is there now (if its creation had not come so far, that
    /// is completed). Another one: that has its name, since it was dropped. An error: it was dropped.
    pub async fn missing_in(
        &self,
        table: &TableInfo,
        partition: PartitionId,
        deadline: Deadline,
    ) -> Result<Option<Arc<TableInfo>>> {
        let names = &self.core.views.tables;
        // (The default table is in every cluster, whether or not the manifest has come to name it.)
        if table.id != DEFAULT_TABLE {
            self.look(deadline).await?;
        }
        if table.id != DEFAULT_TABLE && !names.has(table) {
            return names.get(&table.name).map(Some).ok_or_else(|| unknown(&table.name));
        }
        if partition != ALLOCATOR {
            self.ensure_table(partition, table, deadline).await?;
        }
        Ok(None)
    }

    /// Drops a table everywhere. In partition 0 first: from then on its name is nobody's. Elsewhere also where it is not there yet: then
    /// it does not come any more. What is left of a table of this name whose drop did not get everywhere goes too. Whether there was
    /// one. `only`: that table, and no other one that has the name.
    pub async fn drop_table(&self, name: &str, only: Option<TableId>, deadline: Deadline) -> Result<bool> {
        check_table_name(name)?;
        is_for_clients(name)?;
        if name == DEFAULT_TABLE_NAME || Database::all().any(|database| database.table() == name) {
            let why = format!(
                "table {name:?} is a database of the Redis protocol: FLUSHDB empties it, and it stays"
            );
            return Err(Error::invalid(why));
        }
        self.look(deadline).await?;
        let all = self.core.views.tables.all();
        if let Some(other) = all.iter().find(|table| Some(table.id) == only && table.name != name) {
            return Err(Error::invalid(format!("table {} is {:?}", other.id, other.name)));
        }
        let named = all.iter().find(|table| table.name == name).map(|table| table.id);
        let wanted = only.or(named).filter(|id| id.0 > 0);
        let (mut id, mut was_there) = (None, false);
        if let Some(wanted) = wanted {
            match self.change_in(ALLOCATOR, wanted, &TableWish::Gone, deadline).await {
                Ok(was) => (id, was_there) = (Some(wanted), was),
                // There never was one.
                Err(e) if e.kind == ErrorKind::UnknownTable => {}
                Err(e) => return Err(e),
            }
        }
        let others = self.core.views.partitions().filter(|p| *p != ALLOCATOR);
        let dropped = others.map(async |partition| {
            if let Some(id) = id {
                self.change_in(partition, id, &TableWish::Gone, deadline).await?;
            }
            self.drop_leftovers(name, partition, deadline).await
        });
        at_once(dropped).await?;
        self.look(deadline).await?;
        Ok(was_there)
    }

    /// What a partition has of tables that had this name, and that partition 0 does not know any more.
    async fn drop_leftovers(&self, name: &str, partition: PartitionId, deadline: Deadline) -> Result<()> {
        self.look_in(partition, deadline).await?;
        let manifest = self.core.views.load(partition).manifest.clone();
        let named: Vec<TableInfo> = manifest.infos().filter(|table| table.name == name).collect();
        if named.is_empty() {
            return Ok(());
        }
        // Whatever is made is made in partition 0 first: who looks there now knows all that this partition had.
        self.look(deadline).await?;
        for table in named.iter().filter(|table| !self.core.views.tables.has(table)) {
            self.change_in(partition, table.id, &TableWish::Gone, deadline).await?;
        }
        Ok(())
    }

    /// Changes options of a table everywhere. All of them, as they are then.
    pub async fn alter(&self, name: &str, change: OptionsChange, deadline: Deadline) -> Result<TableOptions> {
        is_for_clients(name)?;
        self.look(deadline).await?;
        let table = self.get(name, deadline).await?;
        let wish = TableWish::Altered(change);
        // Partition 0 first: it refuses what makes no sense, and its manifest says what there is.
        self.change_in(ALLOCATOR, table.id, &wish, deadline).await?;
        let others = self.core.views.partitions().filter(|p| *p != ALLOCATOR);
        let changed = others.map(async |partition| {
            if let Err(e) = self.change_in(partition, table.id, &wish, deadline).await {
                if e.kind != ErrorKind::UnknownTable {
                    return Err(e);
                }
                // Its creation has not come so far.
                self.ensure_table(partition, &table, deadline).await?;
                self.change_in(partition, table.id, &wish, deadline).await?;
            }
            Ok(())
        });
        at_once(changed).await?;
        self.look(deadline).await?;
        Ok(self.get(name, deadline).await?.options.clone())
    }

    async fn change_in(
        &self,
        partition: PartitionId,
        table: TableId,
        wish: &TableWish,
        deadline: Deadline,
    ) -> Result<bool> {
        let changing = self
            .until_it_is(partition, deadline, CHANGE_MAX, |peer| peer.change_table(partition, table, wish));
        changing.await
    }

    async fn ensure_table(
        &self,
        partition: PartitionId,
        table: &TableInfo,
        deadline: Deadline,
    ) -> Result<(TableInfo, bool)> {
        loop {
            let making =
                self.until_it_is(partition, deadline, ANSWER_MAX, |peer| peer.ensure_table(partition, table));
            let made = making.await?;
            let options = made.options.unwrap_or_else(|| table.options.clone());
            let there = TableInfo { id: made.id, name: table.name.clone(), options };
            // A table of this name was dropped, and that has not come so far.
            if there.id < table.id {
                self.change_in(partition, there.id, &TableWish::Gone, deadline).await?;
                continue;
            }
            // (In partition 0 it is whatever has the name.)
            if table.id.0 != 0 && there.id != table.id {
                return Err(unknown(&table.name));
            }
            return Ok((there, made.created));
        }
    }

    /// Asks the leader of a partition until it has done something, or says why not.
    async fn until_it_is<'e, T, F>(
        &'e self,
        partition: PartitionId,
        deadline: Deadline,
        answer_max: Duration,
        ask: impl Fn(&'e MemtablePeer) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<Disposed<T>>> + 'e,
    {
        let mut backoff = Backoff::default();
        loop {
            let before = self.core.leaders.get(partition).node;
            let asked = self.core.ask_leader(partition, deadline, answer_max, &ask).await;
            let error = match asked {
                Ok((_, says)) => match says.status {
                    WriteStatus::Ok => return Ok(says.made),
                    WriteStatus::NotLeader => {
                        Error::unavailable(format!("no leader of partition {partition} answers"))
                    }
                    WriteStatus::Invalid => return Err(Error::invalid(says.message)),
                    WriteStatus::UnknownTable => {
                        return Err(Error::new(ErrorKind::UnknownTable, says.message));
                    }
                    _ => Error::unavailable(format!(
                        "partition {partition} could not do it yet: {}",
                        says.message
                    )),
                },
                Err(unanswered) => unanswered.into_error(),
            };
            self.core.check_running()?;
            let is_final = matches!(
                error.kind,
                ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::Unauthenticated | ErrorKind::Outdated
            );
            if is_final || !self.core.wait_to_retry(partition, before, &mut backoff, deadline).await {
                return Err(error);
            }
        }
    }
}

pub(crate) fn is_for_clients(table: &str) -> Result<()> {
    match table.starts_with(OWN_TABLES) {
        true => Err(Error::new(
            ErrorKind::Denied,
            format!("tables whose names begin with {OWN_TABLES} are the database's own"),
        )),
        false => Ok(()),
    }
}

/// Whether what was to be done to a table can be done to the one that has its name now: its keys are where they were.
pub(crate) fn check_placed_alike(table: &TableInfo, now: &TableInfo) -> Result<()> {
    if table.options.partition_prefix == now.options.partition_prefix {
        return Ok(());
    }
    Err(Error::retry(format!(
        "table {:?} was dropped, and made anew with another partition prefix",
        table.name
    )))
}

fn unknown(name: &str) -> Error {
    Error::new(ErrorKind::UnknownTable, format!("there is no table {name:?}"))
}

/// In all partitions, some at a time.
async fn at_once<F: Future<Output = Result<()>>>(all: impl Iterator<Item = F>) -> Result<()> {
    futures::stream::iter(all).buffer_unordered(CREATIONS_MAX).try_for_each(|()| async { Ok(()) }).await
}
