//! Several servers do the same: enough of them have to, and nobody waits for the others for ever.

use std::future::Future;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use sextant_common::error::{Error, Result};
use sextant_common::ids::NodeId;

/// What became of it at each server.
#[derive(Debug)]
pub struct Done<T> {
    pub by: Vec<T>,
    pub errors: Vec<(NodeId, Error)>,
    /// Those that were not waited for.
    pub stragglers: Vec<NodeId>,
}

impl<T> Done<T> {
    /// Those that did not do it.
    pub fn failed(&self) -> impl Iterator<Item = NodeId> {
        self.errors.iter().map(|(server, _)| *server).chain(self.stragglers.iter().copied())
    }
}

/// Until `required` have done it, and from then on as long as the next does it within `patience` from now.
pub async fn enough<T, F: Future<Output = Result<T>>>(
    servers: impl IntoIterator<Item = (NodeId, F)>,
    required: usize,
    patience: impl Fn() -> Duration,
) -> Done<T> {
    let named = |(server, work): (NodeId, F)| async move { (server, work.await) };
    let mut done = Done { by: Vec::new(), errors: Vec::new(), stragglers: Vec::new() };
    let mut running: FuturesUnordered<_> = servers
        .into_iter()
        .map(|(server, work)| {
            done.stragglers.push(server);
            named((server, work))
        })
        .collect();
    loop {
        let next = match done.by.len() >= required {
            true => tokio::time::timeout(patience(), running.next()).await.unwrap_or_default(),
            false => running.next().await,
        };
        let Some((server, became)) = next else { return done };
        done.stragglers.retain(|straggler| *straggler != server);
        match became {
            Ok(one) => done.by.push(one),
            Err(e) => done.errors.push((server, e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;

    use super::*;

    fn does(server: u64, what: Option<Result<u64>>) -> (NodeId, BoxFuture<'static, Result<u64>>) {
        (
            NodeId(server),
            Box::pin(async move {
                match what {
                    Some(became) => became,
                    None => std::future::pending().await,
                }
            }),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn who_hangs_is_not_waited_for_when_enough_have_done_it() {
        let servers = [does(1, None), does(2, Some(Ok(2))), does(3, Some(Err(Error::retry("full"))))];
        let done = enough(servers, 1, || Duration::from_secs(2)).await;
        assert_eq!((done.by.as_slice(), done.errors.len()), (&[2][..], 1));
        assert_eq!(done.failed().collect::<Vec<_>>(), [NodeId(3), NodeId(1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn all_are_waited_for_as_long_as_there_are_too_few() {
        let hangs = enough([does(1, None), does(2, Some(Ok(2)))], 2, || Duration::ZERO);
        assert!(tokio::time::timeout(Duration::from_secs(3600), hangs).await.is_err());
        let done = enough([does(1, Some(Ok(1))), does(2, Some(Ok(2)))], 2, || Duration::ZERO).await;
        assert_eq!((done.by, done.stragglers), (vec![1, 2], vec![]));
    }
}
