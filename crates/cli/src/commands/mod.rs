//! One file a group of commands.

pub mod admin;
pub mod check;
pub mod config;
pub mod dev;
pub mod health;
pub mod kv;
pub mod server;
pub mod status;
pub mod ycsb;

use std::time::Duration;

use sextant_client::{Client, ClientOptions};
use sextant_common::Result;
use sextant_environment::Env;

use crate::args::Connection;

/// A client as the command line asks for it.
async fn client(connection: &Connection) -> Result<Client> {
    let options =
        ClientOptions { deadline: Duration::from_millis(connection.deadline_ms), ..ClientOptions::default() };
    Client::connect(Env::real(), connection.server.clone(), options).await
}
