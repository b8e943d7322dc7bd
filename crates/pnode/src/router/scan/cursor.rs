//! Where a merged scan stands in one partition.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::ids::PartitionId;
use sextant_common::manifest::TableInfo;
use sextant_common::operation::Record;
use sextant_common::{Error, Result};
use sextant_environment::room::Purse;
use tokio::task::JoinHandle;

use super::page::{PageSize, Pages, PartitionPage};
use super::rest::Rest;

/// What is here, and the page that is on its way.
pub(super) struct Cursor {
    pages: Arc<Pages>,
    table: Arc<TableInfo>,
    partition: PartitionId,
    size: PageSize,
    /// Of the scan.
    purse: Arc<Purse>,
    /// In the direction of the scan.
    pub ahead: VecDeque<(Bytes, Record)>,
    rest: Option<Rest>,
    coming: Option<JoinHandle<Result<PartitionPage>>>,
}

impl Cursor {
    pub fn start(
        pages: &Arc<Pages>,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        rest: Rest,
        size: PageSize,
        purse: &Arc<Purse>,
    ) -> Self {
        let mut cursor = Self {
            pages: pages.clone(),
            table: table.clone(),
            partition,
            size,
            purse: purse.clone(),
            ahead: VecDeque::new(),
            rest: Some(rest),
            coming: None,
        };
        cursor.fetch();
        cursor
    }

    pub fn head(&self) -> Option<&Bytes> {
        self.ahead.front().map(|(key, _)| key)
    }

    /// Sees to it that the next record is here, if there is one; and asks for the next page in time, if the limit may need it.
    pub async fn fill(&mut self, limit: u64) -> Result<()> {
        while self.ahead.is_empty() {
            if self.coming.is_none() {
                if self.rest.is_none() {
                    return Ok(());
                }
                self.fetch();
            }
            if let Some(coming) = &mut self.coming {
                let page = coming.await.map_err(|_| Error::internal("the fetch of a page failed"))?;
                self.coming = None;
                let page = page?;
                self.ahead.extend(page.records);
                self.rest = page.rest;
            }
        }
        let low = self.ahead.len() <= self.size.records as usize / 2;
        if low && self.coming.is_none() && self.rest.is_some() && limit > self.ahead.len() as u64 {
            self.fetch();
        }
        Ok(())
    }

    fn fetch(&mut self) {
        let Some(rest) = self.rest.take() else { return };
        let (pages, table, partition, size) =
            (self.pages.clone(), self.table.clone(), self.partition, self.size);
        let purse = self.purse.clone();
        let page = async move { pages.page(&table, partition, rest, size, &purse).await };
        self.coming = Some(tokio::spawn(page));
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if let Some(coming) = &self.coming {
            coming.abort();
        }
    }
}
