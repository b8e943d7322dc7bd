//! Containers beside the cluster's: a client each, until it ends.

use std::path::Path;

use sextant_common::error::{Error, Result};

use super::compose::Compose;
use crate::host::shell::run;

/// Says which of them are a run's.
const LABEL: &str = "sextant.client-of";
/// Where a client finds the directory that it may write to.
pub const OUT: &str = "/out";

/// How a client ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub output: String,
}

impl Ended {
    /// What it printed, if it says that all is well.
    pub fn well(self) -> Result<String> {
        match self.code {
            0 => Ok(self.output),
            code => Err(Error::unavailable(format!("a client ended with {code}: {}", self.output.trim()))),
        }
    }
}

/// Runs `image` with these words where `beside` is: a client of its own, at that server's address.
pub async fn client(
    compose: &Compose,
    beside: &str,
    image: &str,
    out: &Path,
    words: &[&str],
) -> Result<Ended> {
    let label = format!("{LABEL}={}", compose.project);
    let network = format!("container:{}", compose.container(beside).await?);
    let volume = format!("{}:{OUT}", out.display());
    let mounted = compose.certificates.as_ref().map(|made| made.mounted()).unwrap_or_default();
    let mut all =
        vec!["docker", "run", "--detach", "--label", &label, "--network", &network, "--volume", &volume];
    all.extend(mounted.iter().map(String::as_str));
    all.push(image);
    all.extend(words);
    let container = run(&all).await?;
    let container = container.trim();
    let code = run(&["docker", "wait", container]).await?;
    // Both streams, in their order.
    let output = run(&["sh", "-c", "docker logs \"$0\" 2>&1", container]).await?;
    run(&["docker", "rm", container]).await?;
    Ok(Ended { code: code.trim().parse().unwrap_or(-1), output })
}

/// Those that an interrupted run has left.
pub async fn remove_all(compose: &Compose) -> Result<()> {
    let label = format!("label={LABEL}={}", compose.project);
    let found = run(&["docker", "ps", "--all", "--quiet", "--filter", &label]).await?;
    for container in found.lines() {
        run(&["docker", "rm", "--force", container]).await?;
    }
    Ok(())
}
