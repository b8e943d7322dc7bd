//! One file a group of commands.

pub mod admin;
mod alone;
pub mod backup;
pub mod cert;
pub mod check;
pub mod config;
pub mod dev;
pub mod doctor;
pub mod health;
pub mod kv;
pub mod load;
pub mod server;
pub mod status;
pub mod tables;
pub mod user;
pub mod ycsb;

use std::time::Duration;

use sextant_client::{Client, ClientOptions};

use crate::args::Connection;
use crate::exit::Failure;
use crate::network;

/// A client as the command line asks for it.
async fn client(connection: &Connection) -> Result<Client, Failure> {
    let options = ClientOptions {
        deadline: Duration::from_millis(connection.deadline_ms),
        credentials: network::credentials(&connection.user)?,
        ..ClientOptions::default()
    };
    let env = network::client(&connection.tls)?;
    Ok(Client::connect_in(env, connection.server.clone(), options).await?)
}
