//! Configuration files of a cluster: written, and checked together.

mod check;
mod init;

use std::net::Ipv6Addr;

use crate::args::ConfigCommand;
use crate::exit::CommandResult;

pub fn run(command: ConfigCommand) -> CommandResult {
    match command {
        ConfigCommand::Init(args) => init::run(&args),
        ConfigCommand::Check(args) => check::run(&args),
    }
}

/// Whether nobody can listen on this host or connect to it: such an address is one of an interface, which addresses here do not name.
fn is_link_local(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    address
        .and_then(|host| host.parse::<Ipv6Addr>().ok())
        .is_some_and(|address| address.is_unicast_link_local())
}
