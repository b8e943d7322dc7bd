//! How far work has come that takes long: whoever waits judges it by whether it goes on, not by how long it takes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use sextant_common::error::Result;

/// How often it is told, if it has gone on: well within what anybody waits for news.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Of one piece of work. Clones are of the same one.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Signs>);

#[derive(Debug, Default)]
struct Signs {
    bytes: AtomicU64,
    pauses: AtomicU64,
}

/// What a stream of news says.
#[derive(Debug)]
pub enum News<T> {
    /// So far; more than the last time, unless it waits on purpose.
    Bytes(u64),
    Done(T),
}

impl Progress {
    pub fn reached(&self, bytes: u64) {
        self.0.bytes.store(bytes, Ordering::Relaxed);
    }

    /// It goes on as slowly as it is told to: that is no standstill.
    pub fn pauses(&self) {
        self.0.pauses.fetch_add(1, Ordering::Relaxed);
    }

    fn signs(&self) -> (u64, u64) {
        (self.0.bytes.load(Ordering::Relaxed), self.0.pauses.load(Ordering::Relaxed))
    }

    /// Does the work, and tells of it. Dropped, it drops the work.
    pub fn tell<T>(
        self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> impl Stream<Item = Result<News<T>>> + Send + 'static
    where
        T: Send + 'static,
    {
        self.tell_every(TELL_EVERY, work)
    }

    fn tell_every<T>(
        self,
        interval: Duration,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> impl Stream<Item = Result<News<T>>> + Send + 'static
    where
        T: Send + 'static,
    {
        let work: Pin<Box<dyn Future<Output = Result<T>> + Send>> = Box::pin(work);
        unfold(Some((work, (0, 0))), move |going| {
            let progress = self.clone();
            async move {
                let (mut work, mut told) = going?;
                loop {
                    match tokio::time::timeout(interval, &mut work).await {
                        Ok(result) => return Some((result.map(News::Done), None)),
                        Err(_) if progress.signs() != told => {
                            told = progress.signs();
                            return Some((Ok(News::Bytes(told.0)), Some((work, told))));
                        }
                        Err(_) => {}
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn news_come_while_it_goes_on_and_at_its_end() {
        let (progress, (finish, finished)) = (Progress::default(), oneshot::channel::<u8>());
        let work = async move { Ok(finished.await.unwrap()) };
        let mut news = Box::pin(progress.clone().tell_every(Duration::from_millis(1), work));
        for bytes in [7, 9] {
            progress.reached(bytes);
            assert!(matches!(news.next().await, Some(Ok(News::Bytes(told))) if told == bytes));
        }
        progress.pauses();
        assert!(matches!(news.next().await, Some(Ok(News::Bytes(9)))), "it waits, and says so");
        // (It says nothing now, for however long.)
        finish.send(3).unwrap();
        assert!(matches!(news.next().await, Some(Ok(News::Done(3)))));
        assert!(news.next().await.is_none());
    }
}
