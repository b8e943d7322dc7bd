//! What is done to a container.

use std::time::Duration;

use sextant_common::error::{Error, Result};

use super::compose::Compose;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Kill,
    Pause,
    Cut,
    /// It comes back under another address.
    Move,
    /// With what it had on disk.
    Wipe,
    /// As an operator does it, in turn.
    Restart,
}

impl Fault {
    const ALL: [Fault; 6] = [Fault::Kill, Fault::Pause, Fault::Cut, Fault::Move, Fault::Wipe, Fault::Restart];

    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Pause => "pause",
            Fault::Cut => "cut",
            Fault::Move => "move",
            Fault::Wipe => "wipe",
            Fault::Restart => "restart",
        }
    }

    /// p-nodes have no volume.
    pub fn hits(self, service: &str) -> bool {
        self != Fault::Wipe || !service.starts_with("pnode")
    }

    /// Those of these names; all, if none is named.
    pub fn chosen(only: &[String]) -> Result<Vec<Fault>> {
        let known = |name: &String| Fault::ALL.into_iter().find(|f| f.name() == name.as_str());
        if let Some(unknown) = only.iter().find(|name| known(name).is_none()) {
            return Err(Error::invalid(format!("no fault is called {unknown:?}")));
        }
        Ok(match only.is_empty() {
            true => Fault::ALL.to_vec(),
            false => only.iter().filter_map(known).collect(),
        })
    }

    /// Breaks a container, waits, and mends it. `moves`: how many have moved so far.
    pub async fn apply(self, compose: &Compose, service: &str, hold: Duration, moves: &mut u8) -> Result<()> {
        match self {
            Fault::Kill => {
                compose.docker(&["kill"], service).await?;
                tokio::time::sleep(hold).await;
                compose.docker(&["start"], service).await
            }
            Fault::Pause => {
                compose.docker(&["pause"], service).await?;
                tokio::time::sleep(hold).await;
                compose.docker(&["unpause"], service).await
            }
            Fault::Cut => {
                compose.disconnect(service).await?;
                tokio::time::sleep(hold).await;
                compose.connect(service, None).await
            }
            Fault::Move => elsewhere(compose, service, hold, moves).await,
            Fault::Wipe => {
                compose.remove(service).await?;
                tokio::time::sleep(hold).await;
                compose.up().await
            }
            Fault::Restart => compose.restart(service).await,
        }
    }
}

async fn elsewhere(compose: &Compose, service: &str, hold: Duration, moves: &mut u8) -> Result<()> {
    let before = compose.address(service).await?;
    compose.disconnect(service).await?;
    tokio::time::sleep(hold).await;
    *moves = (*moves + 1) % 50;
    compose.connect(service, Some(*moves)).await?;
    match compose.address(service).await? {
        after if after == before => Err(Error::internal(format!("{service} is where it was: {after}"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_chosen_by_name_and_unknown_ones_are_named() {
        let chosen = |only: &[&str]| Fault::chosen(&only.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        assert_eq!(chosen(&[]).unwrap(), Fault::ALL);
        assert_eq!(chosen(&["cut", "kill"]).unwrap(), [Fault::Cut, Fault::Kill]);
        assert!(chosen(&["kil"]).unwrap_err().message.contains("\"kil\""));
    }
}
