//! The load generator.

use std::io::Write;

use crate::args::YcsbCommand;
use crate::exit::{CommandResult, Exit, Failure};
use crate::network;
use crate::process::raise_file_limit;

pub async fn run(YcsbCommand { args, tls }: YcsbCommand) -> CommandResult {
    sextant_environment::logging::init_with("error");
    raise_file_limit();
    let env = network::client(&tls)?;
    // A task of the runtime, like all threads of the generator: the main thread is none of its workers.
    let running = tokio::spawn(async move { sextant_ycsb::run(env, &args).await });
    let outcome = running.await.map_err(|e| Failure::error(format!("the generator died: {e}")))??;
    write!(std::io::stdout(), "{}", outcome.table())?;
    if outcome.errors() > 0 || !outcome.is_complete() {
        // The table has said which.
        return Err(Failure::silent(Exit::Negative));
    }
    Ok(())
}
