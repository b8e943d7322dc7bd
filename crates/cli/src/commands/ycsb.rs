//! The load generator.

use std::io::Write;

use sextant_environment::Env;
use sextant_ycsb::YcsbArgs;

use crate::exit::{CommandResult, Exit, Failure};
use crate::process::raise_file_limit;

pub async fn run(args: YcsbArgs) -> CommandResult {
    sextant_environment::logging::init_with("error");
    raise_file_limit();
    // A task of the runtime, like all threads of the generator: the main thread is none of its workers.
    let running = tokio::spawn(async move { sextant_ycsb::run(Env::real(), &args).await });
    let outcome = running.await.map_err(|e| Failure::error(format!("the generator died: {e}")))??;
    write!(std::io::stdout(), "{}", outcome.table())?;
    if outcome.errors() > 0 || !outcome.is_complete() {
        // The table has said which.
        return Err(Failure::silent(Exit::Negative));
    }
    Ok(())
}
