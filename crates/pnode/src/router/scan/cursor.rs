//! Where a merged scan stands in one partition.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::PartitionId;
use sextant_common::manifest::TableInfo;
use sextant_common::operation::Record;
use sextant_common::{Error, Result};
use sextant_environment::room::Purse;
use tokio::task::JoinHandle;

use super::Paging;
use super::page::{PageSize, Pages, PartitionPage};
use super::rest::Rest;

/// What is here, and the page that is on its way.
pub(super) struct Cursor {
    pages: Arc<Pages>,
    table: Arc<TableInfo>,
    partition: PartitionId,
    size: PageSize,
    /// As in [`Pages::page`].
    silence_max: Option<Duration>,
    /// Of the scan.
    purse: Arc<Purse>,
    /// In the direction of the scan.
    ahead: VecDeque<(Bytes, Record)>,
    /// What is not here, also while a page of it is on its way; None: nothing.
    rest: Option<Rest>,
    coming: Option<JoinHandle<Result<PartitionPage>>>,
}

impl Cursor {
    /// `size`: of its pages.
    pub fn start(
        paging: &Paging,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        rest: Rest,
        size: PageSize,
    ) -> Self {
        let mut cursor = Self {
            pages: paging.source.clone(),
            table: table.clone(),
            partition,
            size,
            silence_max: paging.silence_max,
            purse: paging.purse.clone(),
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

    /// What it has not given, from its first record on if that is here; `whole`: of the scan. None: nothing is left.
    pub fn left(&self, whole: &Rest) -> Option<Rest> {
        match self.head() {
            Some(key) => Some(whole.going_on_at(key)),
            None => self.rest.clone(),
        }
    }

    /// Whether it has no record here, and may yet have one before this record of another one (None: others have none).
    pub fn may_come_before(&self, other: Option<&Bytes>) -> bool {
        let rest = self.rest.as_ref().filter(|_| self.ahead.is_empty());
        rest.is_some_and(|rest| other.is_none_or(|key| rest.contains(key)))
    }

    /// The record that is next. `limit`: how many may still be wanted, it too.
    pub fn pop(&mut self, limit: u64) -> Option<(Bytes, Record)> {
        let record = self.ahead.pop_front();
        self.fetch_in_time(limit.saturating_sub(1));
        record
    }

    /// Waits for the page that is on its way. It may have nothing: then [`Self::left`] says how far it has come.
    pub async fn take_page(&mut self, limit: u64) -> Result<()> {
        if self.coming.is_none() {
            self.fetch();
        }
        let Some(coming) = &mut self.coming else { return Ok(()) };
        let page = coming.await;
        self.coming = None;
        let page = page.map_err(|_| Error::internal("the fetch of a page failed"))??;
        self.ahead.extend(page.records);
        self.rest = page.rest;
        self.fetch_in_time(limit);
        Ok(())
    }

    /// Asks for the next page before the present one is used up, if the limit may need it.
    fn fetch_in_time(&mut self, limit: u64) {
        let low = self.ahead.len() <= self.size.records as usize / 2;
        if low && self.coming.is_none() && limit > self.ahead.len() as u64 {
            self.fetch();
        }
    }

    fn fetch(&mut self) {
        let Some(rest) = self.rest.clone() else { return };
        let (pages, table, partition, size) =
            (self.pages.clone(), self.table.clone(), self.partition, self.size);
        let (silence_max, purse) = (self.silence_max, self.purse.clone());
        let page = async move { pages.page(&table, partition, rest, size, silence_max, &purse).await };
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
