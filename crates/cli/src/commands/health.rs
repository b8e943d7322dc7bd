//! Whether a server is ready: what a container's health check or a load balancer's script asks.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use sextant_environment::Env;
use sextant_environment::config::{TlsConfig, load};
use sextant_environment::env::{Network, Whom};
use sextant_tls::{ClientFiles, TlsNetwork};

use crate::args::HealthArgs;
use crate::exit::{CommandResult, Failure};
use crate::network;

/// A reason is a line.
const ANSWER_BYTES_MAX: usize = 4096;

pub async fn run(args: HealthArgs) -> CommandResult {
    let (server, net, whom) = match (&args.server, &args.config) {
        (Some(server), _) => (server.clone(), network::client(&args.tls)?.net, Whom::Host),
        (None, Some(config)) => server_of(config)?,
        (None, None) => return Err(Failure::usage("either --server or --config")),
    };
    let path = if args.live { "/health/live" } else { "/health/ready" };
    let asked = tokio::time::timeout(
        Duration::from_millis(args.deadline_ms),
        ask(&net, &server, whom, path, ANSWER_BYTES_MAX),
    )
    .await;
    let (status, answer) = match asked {
        Ok(Ok(answered)) => answered,
        Ok(Err(why)) => return Err(Failure::error(format!("{server}: {why}"))),
        Err(_) => return Err(Failure::error(format!("{server}: no answer within {} ms", args.deadline_ms))),
    };
    match status.is_success() {
        true => writeln!(std::io::stdout().lock(), "{}", answer.trim())?,
        false => return Err(Failure::negative(format!("{server}: {status}: {}", answer.trim()))),
    }
    Ok(())
}

/// A GET; an answer of more than `bytes_max` is an error.
pub async fn ask(
    net: &Arc<dyn Network>,
    server: &str,
    whom: Whom,
    path: &str,
    bytes_max: usize,
) -> Result<(hyper::StatusCode, String), Box<dyn std::error::Error + Send + Sync>> {
    let stream = net.connect(server.to_owned(), whom).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = hyper::Request::get(path).header(hyper::header::HOST, server).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), bytes_max).collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Of any role.
#[derive(Deserialize)]
struct Listens {
    http: Option<String>,
    tls: Option<TlsConfig>,
    cluster: Named,
}

#[derive(Deserialize)]
struct Named {
    id: String,
}

/// Its address, and how it is known there: by the certificate that it shares with whoever reads its configuration.
fn server_of(config: &Path) -> Result<(String, Arc<dyn Network>, Whom), Failure> {
    let Listens { http, tls, cluster } = load(config)?;
    let http =
        http.ok_or_else(|| Failure::usage(format!("{}: it says no http address", config.display())))?;
    let (net, whom) = match tls {
        None => (Env::real().net, Whom::Host),
        Some(tls) => {
            let tls = tls.within(config.parent().unwrap_or(Path::new("")));
            let files = ClientFiles { ca: tls.ca, shown: Some((tls.cert, tls.key)) };
            let net = TlsNetwork::client(Env::real(), files, &cluster.id)
                .map_err(|e| Failure::usage(format!("{}: {}", config.display(), e.message)))?;
            (Arc::new(net) as Arc<dyn Network>, Whom::Member(None))
        }
    };
    Ok((reachable(&http), net, whom))
}

/// Where this host reaches what listens on all of its addresses.
pub fn reachable(listens: &str) -> String {
    match listens.rsplit_once(':') {
        Some(("0.0.0.0" | "", port)) => format!("127.0.0.1:{port}"),
        Some(("[::]", port)) => format!("[::1]:{port}"),
        _ => listens.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_listens_everywhere_is_asked_on_loopback() {
        let cases = ["0.0.0.0:7390", "[::]:7390", "10.0.0.1:1", "h:1"].map(reachable);
        assert_eq!(cases, ["127.0.0.1:7390", "[::1]:7390", "10.0.0.1:1", "h:1"]);
    }
}
