//! Configuration files of a cluster: written, and checked together.

mod check;
mod init;

use crate::args::ConfigCommand;
use crate::exit::CommandResult;

pub fn run(command: ConfigCommand) -> CommandResult {
    match command {
        ConfigCommand::Init(args) => init::run(&args),
        ConfigCommand::Check(args) => check::run(&args),
    }
}
