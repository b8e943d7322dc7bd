//! What mutants do instead of the right thing, where that takes more than a condition. Never in a release build: there
//! `mutant::active` is a constant.

use std::time::Duration;

use sextant_common::env::PausePoint;
use sextant_common::ids::{Serial, TableId};

use super::Worker;
use super::sequence::{Control, Decided, Proposed};
use crate::command::{Command, Group};
use crate::lease::ring::Run;

/// How long a freeze that slips in may take.
const SLIP_MAX: Duration = Duration::from_millis(200);

impl Worker {
    /// A mutant's way to propose a group.
    #[cold]
    pub(super) async fn bits_after_proposal(&mut self, group: Group, runs: Vec<Run>, writes: Vec<Decided>) {
        self.propose(Command::Group(group).encode(), Proposed::Group { serial: Serial(0), writes }).await;
        self.shared.env.pause_point(PausePoint::BitsOut).await;
        for run in &runs {
            run.hashes.iter().for_each(|hash| self.partition.add_bit(run.table, *hash));
        }
        self.shared.desk.push(runs);
    }

    /// A mutant's freeze, between a group's evaluation and its proposal.
    #[cold]
    pub(super) async fn let_a_freeze_slip_in(&mut self, table: Option<TableId>) {
        let Some((table, lead)) = table.zip(self.lead.as_ref()) else { return };
        let Some(generation) = self.partition.table(table).map(|t| t.generation()) else { return };
        let command = Command::Freeze { term: lead.term, table, generation };
        let payload = command.encode();
        self.propose(payload, Proposed::Control(Box::new(Control { command, done: None }))).await;
        while self.proposal.is_some()
            && let Ok(Some(event)) = tokio::time::timeout(SLIP_MAX, self.events.recv()).await
        {
            if let Err(e) = self.handle(event) {
                tracing::error!("{e}");
            }
        }
        self.proposal = None;
    }
}
