//! Who creates backups, and who prunes, do not meet: what the one counts on the other would delete.
//!
//! Each puts its mark first, and then looks for marks of the other kind; one that finds any takes its own back. So, in a store whose
//! listings are consistent, at least one of two sees the other. Marks are renewed while work goes on; older ones are of the dead.
//! Who may have slept for so long that others took it for dead looks again, before it does what cannot be undone ([`Guard::look`]).

use sextant_common::error::{Error, ErrorKind, Result};

use crate::repository::Repository;

/// Marks that are so old count for nothing.
const MARK_AGE_MAX_MS: u64 = 60 * 60 * 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Creating,
    Pruning,
}

impl Work {
    fn prefix(self) -> &'static str {
        match self {
            Work::Creating => "creating-",
            Work::Pruning => "pruning-",
        }
    }

    /// What it must not meet.
    fn forbids(self) -> &'static [Work] {
        match self {
            Work::Creating => &[Work::Pruning],
            Work::Pruning => &[Work::Creating, Work::Pruning],
        }
    }
}

pub struct Guard {
    repository: Repository,
    work: Work,
    name: String,
}

impl Guard {
    pub async fn take(repository: &Repository, work: Work) -> Result<Self> {
        let name = format!("{}{:016x}", work.prefix(), repository.env.rng.nonzero_u64());
        let guard = Self { repository: repository.clone(), work, name };
        match guard.look().await {
            Ok(()) => Ok(guard),
            Err(e) => {
                guard.release().await;
                Err(e)
            }
        }
    }

    /// Puts the mark anew, and looks for others: whoever begins from now on sees it, and who began before is seen.
    pub async fn look(&self) -> Result<()> {
        self.renew().await?;
        let marks = self.repository.marks().await?;
        let now_ms = marks.iter().find(|(name, _)| *name == self.name).map_or(0, |(_, at_ms)| *at_ms);
        let mut others = marks.into_iter().filter(|(name, at_ms)| {
            let is_forbidden = self.work.forbids().iter().any(|other| name.starts_with(other.prefix()));
            is_forbidden && *name != self.name && now_ms.saturating_sub(*at_ms) < MARK_AGE_MAX_MS
        });
        match others.next() {
            None => Ok(()),
            Some((other, _)) => Err(Error::new(
                ErrorKind::Retry,
                format!("the repository is in use ({other}): try again later"),
            )),
        }
    }

    pub async fn renew(&self) -> Result<()> {
        self.repository.mark(&self.name).await
    }

    pub async fn release(&self) {
        if let Err(e) = self.repository.unmark(&self.name).await {
            tracing::warn!("mark {} is left in the repository for an hour: {e}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use sextant_environment::Env;

    use super::*;

    fn repository() -> Repository {
        Repository::over(&Env::real(), Arc::new(InMemory::new()))
    }

    #[tokio::test]
    async fn nobody_prunes_while_somebody_creates_and_nobody_creates_while_somebody_prunes() {
        let repository = repository();
        let first = Guard::take(&repository, Work::Creating).await.unwrap();
        let second = Guard::take(&repository, Work::Creating).await.unwrap();
        first.release().await;
        assert!(Guard::take(&repository, Work::Pruning).await.is_err(), "the second goes on");
        second.release().await;
        let pruning = Guard::take(&repository, Work::Pruning).await.unwrap();
        assert!(Guard::take(&repository, Work::Pruning).await.is_err());
        assert!(Guard::take(&repository, Work::Creating).await.is_err());
        pruning.release().await;
        Guard::take(&repository, Work::Creating).await.unwrap().release().await;
        assert!(repository.marks().await.unwrap().is_empty(), "those who failed have left none");
    }

    #[tokio::test]
    async fn who_looks_again_sees_who_took_it_for_dead() {
        let repository = repository();
        let pruning = Guard::take(&repository, Work::Pruning).await.unwrap();
        pruning.look().await.unwrap();
        // An hour asleep.
        repository.unmark(&pruning.name).await.unwrap();
        let creating = Guard::take(&repository, Work::Creating).await.unwrap();
        assert!(pruning.look().await.unwrap_err().message.contains("creating-"));
        assert!(creating.look().await.unwrap_err().message.contains("pruning-"), "its mark is back");
    }
}
