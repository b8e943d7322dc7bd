//! The state of the cluster.

mod outline;
mod summary;

use std::io::Write;

use serde_json::Value;

use super::client;
use crate::args::StatusArgs;
use crate::exit::{CommandResult, Failure};

pub async fn run(args: StatusArgs) -> CommandResult {
    let text = client(&args.connection).await?.status().await?;
    let mut stdout = std::io::stdout().lock();
    if args.json {
        writeln!(stdout, "{text}")?;
        return Ok(());
    }
    let no_json = |e: serde_json::Error| Failure::error(format!("the status is not understood: {e}"));
    if args.full {
        let document: Value = serde_json::from_str(&text).map_err(no_json)?;
        write!(stdout, "{}", outline::outline(&document))?;
    } else {
        let cluster: summary::Cluster = serde_json::from_str(&text).map_err(no_json)?;
        write!(stdout, "{}", cluster.summary())?;
    }
    Ok(())
}
