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
    /// Zone B is cut off.
    Zone,
    /// The same while zone B leads all partitions.
    Leaders,
}

/// What [`Fault::Zone`] and [`Fault::Leaders`] hit.
pub const LINE: &str = "zone B";

impl Fault {
    /// Of single servers, and of the line between two zones.
    const ALL: [Fault; 8] = [
        Fault::Kill,
        Fault::Pause,
        Fault::Cut,
        Fault::Move,
        Fault::Wipe,
        Fault::Restart,
        Fault::Zone,
        Fault::Leaders,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Pause => "pause",
            Fault::Cut => "cut",
            Fault::Move => "move",
            Fault::Wipe => "wipe",
            Fault::Restart => "restart",
            Fault::Zone => "zone",
            Fault::Leaders => "leaders",
        }
    }

    pub fn is_of_line(self) -> bool {
        matches!(self, Fault::Zone | Fault::Leaders)
    }

    /// p-nodes have no volume.
    pub fn hits(self, service: &str) -> bool {
        self.is_of_line() == (service == LINE) && (self != Fault::Wipe || !service.starts_with("pnode"))
    }

    /// Those of these names; all, if none is named. `zones`: whether there are two.
    pub fn chosen(only: &[String], zones: bool) -> Result<Vec<Fault>> {
        let all = Fault::ALL.into_iter().filter(|f| zones || !f.is_of_line());
        let known = |name: &String| all.clone().find(|f| f.name() == name.as_str());
        if let Some(unknown) = only.iter().find(|name| known(name).is_none()) {
            return Err(Error::invalid(format!("no fault is called {unknown:?}")));
        }
        Ok(match only.is_empty() {
            true => all.collect(),
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
            Fault::Zone | Fault::Leaders => Err(Error::internal(format!("{service} is no line"))),
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
        let of = |only: &[&str]| only.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let chosen = |only: &[&str]| Fault::chosen(&of(only), false);
        assert_eq!(chosen(&[]).unwrap(), Fault::ALL[..6]);
        assert_eq!(chosen(&["cut", "kill"]).unwrap(), [Fault::Cut, Fault::Kill]);
        assert!(chosen(&["kil"]).unwrap_err().message.contains("\"kil\""));
        // There is no line in one zone.
        assert!(chosen(&["zone"]).unwrap_err().message.contains("\"zone\""));
        assert_eq!(Fault::chosen(&of(&["zone"]), true).unwrap(), [Fault::Zone]);
        assert_eq!(Fault::chosen(&[], true).unwrap(), Fault::ALL);
    }

    #[test]
    fn faults_hit_what_they_can() {
        assert!(Fault::Wipe.hits("memtable-1") && !Fault::Wipe.hits("pnode-1"));
        assert!(Fault::Kill.hits("pnode-1") && !Fault::Kill.hits(LINE));
        assert!(Fault::Leaders.hits(LINE) && !Fault::Zone.hits("memtable-3"));
    }
}
