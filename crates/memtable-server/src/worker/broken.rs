//! What mutants do instead of the right thing, where that takes more than a condition. Never in a release build: there
//! `mutant::active` is a constant.

use std::time::Duration;

use sextant_common::ids::TableId;
use sextant_rules::probe::PausePoint;

use super::Worker;
use super::leading::sequencer::{Formed, PendingCommand, Proposed};
use crate::command::Command;

/// How long a freeze that slips in may take.
const SLIP_MAX: Duration = Duration::from_millis(200);

impl Worker {
    /// A mutant's way to propose a group.
    #[cold]
    pub(super) async fn bits_after_proposal(&mut self, formed: Formed) {
        let Some(leading) = &mut self.leading else { return };
        let what = Proposed::Group { serial: formed.serial, writes: formed.writes };
        leading.propose(&self.replica, Command::Group(formed.group).encode(), what).await;
        self.replica.shared.env.pause_point(PausePoint::BitsOut).await;
        for run in &formed.late_runs {
            run.hashes.iter().for_each(|hash| self.replica.partition.add_bit(run.table, *hash));
        }
        self.replica.shared.desk.push(formed.late_runs);
    }

    /// A mutant's freeze, between a group's evaluation and its proposal.
    #[cold]
    pub(super) async fn let_a_freeze_slip_in(&mut self, table: Option<TableId>) {
        let Some((table, leading)) = table.zip(self.leading.as_mut()) else { return };
        let Some(generation) = self.replica.partition.table(table).map(|t| t.generation()) else { return };
        let command = Command::Freeze { term: leading.tenure.term, table, generation };
        leading.propose_command(&self.replica, PendingCommand { command, done: None }.into()).await;
        while self.leading.as_ref().is_some_and(|l| l.sequencer.proposal.is_some())
            && let Ok(Some(event)) = tokio::time::timeout(SLIP_MAX, self.inbox.next_event()).await
        {
            if let Err(e) = self.handle(event) {
                tracing::error!("{e}");
            }
        }
        if let Some(leading) = &mut self.leading {
            leading.sequencer.proposal = None;
        }
    }
}
