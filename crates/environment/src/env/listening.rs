//! Who still listens: a server that has stopped has closed its listeners, so that its successor can have their addresses.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::Env;
use super::net::{Connection, Door, Listener, Network, Whom};
use crate::config::UnixListen;

/// Listeners are closed by the tasks that accept, as soon as these notice.
const CLOSED_MAX: Duration = Duration::from_secs(5);

/// Knows how many listeners of one server are open.
#[derive(Debug)]
pub struct Listening(watch::Receiver<usize>);

impl Listening {
    /// The same environment, but its listeners are counted.
    pub fn counted(env: Env) -> (Env, Self) {
        let (open, count) = watch::channel(0);
        let net = Arc::new(Counting { net: env.net.clone(), open: Arc::new(open) });
        (Env { net, ..env }, Self(count))
    }

    /// Returns when none is open.
    pub fn closed(self) -> BoxFuture<'static, ()> {
        Box::pin(self.all_closed())
    }

    async fn all_closed(mut self) {
        if tokio::time::timeout(CLOSED_MAX, self.0.wait_for(|open| *open == 0)).await.is_err() {
            tracing::warn!("a listener is still open");
        }
    }
}

struct Counting {
    net: Arc<dyn Network>,
    open: Arc<watch::Sender<usize>>,
}

impl Counting {
    fn counted(
        &self,
        bound: BoxFuture<'static, io::Result<Box<dyn Listener>>>,
    ) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let open = self.open.clone();
        Box::pin(async move {
            let listener = bound.await?;
            open.send_modify(|open| *open += 1);
            Ok(Box::new(Counted { listener: Some(listener), open }) as Box<dyn Listener>)
        })
    }
}

impl Network for Counting {
    fn bind(&self, addr: String, door: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        self.counted(self.net.bind(addr, door))
    }

    fn bind_unix(&self, listen: UnixListen) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        self.counted(self.net.bind_unix(listen))
    }

    fn connect(&self, addr: String, whom: Whom) -> BoxFuture<'static, io::Result<Connection>> {
        self.net.connect(addr, whom)
    }

    fn register(&self, registry: &mut Registry) {
        self.net.register(registry);
    }
}

struct Counted {
    /// Until it is dropped.
    listener: Option<Box<dyn Listener>>,
    open: Arc<watch::Sender<usize>>,
}

impl Listener for Counted {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.as_ref().ok_or_else(closed)?.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        match &mut self.listener {
            Some(listener) => listener.accept(),
            None => Box::pin(async { Err(closed()) }),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Closed first, then counted.
        self.listener = None;
        self.open.send_modify(|open| *open -= 1);
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the listener is closed")
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn closed_means_that_the_address_can_be_had_again() {
        let (env, listening) = Listening::counted(Env::real());
        let one = env.net.bind("127.0.0.1:0".into(), Door::Members).await.unwrap();
        let two = env.net.bind("127.0.0.1:0".into(), Door::Members).await.unwrap();
        let addr = two.local_addr().unwrap().to_string();
        let mut closed = Box::pin(listening.closed());
        drop(one);
        assert!(closed.as_mut().now_or_never().is_none());
        drop(two);
        closed.await;
        Env::real().net.bind(addr, Door::Members).await.unwrap();
    }
}
