//! How far the other memtable servers' clocks are away, by the round trip of a question.

use std::time::Duration;

use sextant_common::ids::NodeId;
use sextant_environment::clock::OtherClocks;
use sextant_environment::env::Party;
use sextant_environment::shutdown::Shutdown;

use crate::raft::network::NetworkFactory;

/// Clocks do not run away.
const ASK_POLL: Duration = Duration::from_secs(30);
/// The first time, when most are up.
const ASK_FIRST: Duration = Duration::from_secs(3);

/// `network`: of any partition.
pub async fn compare(network: NetworkFactory, clocks: OtherClocks, mut shutdown: Shutdown) {
    let clock = network.shared.env.clock.clone();
    let mut pause = ASK_FIRST;
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = ASK_POLL;
        for other in network.others() {
            let (before_ns, asked_ns) = (clock.wall_guess_ns(), clock.holder_ns());
            // (The network has a part of the log, which somebody may open again when this server has stopped.)
            let said = tokio::select! {
                () = shutdown.wait() => return,
                said = network.introductions([other], 0) => said,
            };
            let travel_ns = clock.holder_ns().saturating_sub(asked_ns) / 2;
            for said in said.into_values() {
                let party = Party::memtable(NodeId(other));
                clocks.heard(party, said.wall_ns, before_ns.saturating_add(travel_ns), travel_ns);
            }
        }
    }
}
