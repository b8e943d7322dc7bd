//! What a memtable server does before it stops: it hands over what it leads.
//!
//! A leader that just stops leaves its partitions to an election and the writes in flight without an answer. So a server that is
//! asked to stop first campaigns no more, then gives each leadership to a follower that is there and stays (as `admin transfer`
//! does: what is in flight is published first), and stops when somebody leads. Whoever asks it meanwhile is sent on.
//!
//! Everything here is bounded in time. Nothing is waited for where nobody can take over: in a group of one, or when the others
//! are gone or are stopping too.

use std::time::Duration;

use futures::future::join_all;
use tokio::sync::oneshot;

use crate::raft::network::NetworkFactory;
use crate::replica::{Event, Handle, Leader};

/// For all partitions together: two followers may fail to catch up before a third one is elected.
const HAND_OVER_MAX: Duration = Duration::from_secs(8);
/// How often this replica is asked whether somebody leads by now.
const ELECTED_POLL: Duration = Duration::from_millis(10);
/// How often the successor is asked whether it still means to lead: it may be told to stop in its turn.
const ASKED_AGAIN: Duration = Duration::from_millis(250);

/// Returns when this server leads none of the partitions and others do, as far as they can.
pub(crate) async fn hand_over_all(replicas: &[(Handle, NetworkFactory)]) {
    let all = join_all(replicas.iter().map(|(handle, network)| hand_over(handle, network)));
    if tokio::time::timeout(HAND_OVER_MAX, all).await.is_err() {
        tracing::warn!("not every leadership was handed over within {HAND_OVER_MAX:?}: the server stops");
    }
}

async fn hand_over(handle: &Handle, network: &NetworkFactory) {
    let (tell, told) = oneshot::channel();
    let _ = handle.events.send(Event::Successors(tell));
    let Ok((term, successors)) = told.await else { return };
    let mut let_go = false;
    for heir in successors {
        if !network.name_heir(heir, term).await {
            continue;
        }
        if !let_go {
            let (done, answer) = oneshot::channel();
            let _ = handle.events.send(Event::HandOver { to: heir, done });
            match answer.await {
                Ok(Ok(_)) => let_go = true,
                Ok(Err(e)) => {
                    tracing::info!(partition = %handle.shared.id, heir, "not handed over: {e}");
                    continue;
                }
                Err(_) => return,
            }
        }
        if elected(handle, network, heir, term).await {
            return;
        }
    }
    tracing::info!(partition = %handle.shared.id, term, "nobody takes over");
}

/// Waits until somebody leads after `term`. False: the successor does not mean to any more.
async fn elected(handle: &Handle, network: &NetworkFactory, heir: u64, term: u64) -> bool {
    loop {
        let known = async {
            loop {
                let Leader { term: newer, node: leader, .. } = handle.shared.leader();
                if newer > term && leader != 0 {
                    return;
                }
                tokio::time::sleep(ELECTED_POLL).await;
            }
        };
        if tokio::time::timeout(ASKED_AGAIN, known).await.is_ok() {
            return true;
        }
        if !network.name_heir(heir, term).await {
            return false;
        }
    }
}
