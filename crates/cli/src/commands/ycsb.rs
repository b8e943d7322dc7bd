//! The load generator.

use std::io::Write;

use sextant_client::Credentials;
use sextant_ycsb::Options;

use crate::args::{TlsArgs, UserOptions, YcsbCommand};
use crate::exit::{CommandResult, Exit, Failure};
use crate::network;
use crate::process::raise_file_limit;

pub async fn run(YcsbCommand { args, tls, user }: YcsbCommand) -> CommandResult {
    sextant_environment::logging::init_with("error");
    raise_file_limit();
    let credentials = credentials(args.phase.options(), &tls, &user)?;
    let env = network::client(&tls)?;
    // A task of the runtime, like all threads of the generator: the main thread is none of its workers.
    let running = tokio::spawn(async move { sextant_ycsb::run(env, &args, credentials).await });
    let outcome = running.await.map_err(|e| Failure::error(format!("the generator died: {e}")))??;
    write!(std::io::stdout(), "{}", outcome.table())?;
    if outcome.errors() > 0 || !outcome.is_complete() {
        // The table has said which.
        return Err(Failure::silent(Exit::Negative));
    }
    Ok(())
}

/// Who the generator is at the p-nodes that it asks, if it is somebody by a password.
fn credentials(options: &Options, tls: &TlsArgs, user: &UserOptions) -> Result<Option<Credentials>, Failure> {
    if options.embedded {
        return match user.user {
            None => Ok(None),
            Some(_) => Err(Failure::usage(
                "--user is for --grpc and --resp: nobody asks who uses an embedded p-node, but for its certificate",
            )),
        };
    }
    let credentials = network::credentials(user)?;
    if credentials.is_some() && !options.resp.is_empty() && network::is_encrypted(tls) {
        return Err(Failure::usage(
            "--resp connects without TLS, and the password could be read on its way: use --grpc",
        ));
    }
    Ok(credentials)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn a_password_goes_to_those_who_ask_for_it_and_not_in_the_clear_where_tls_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, "secret\n").unwrap();
        let said = |line: &str| {
            let as_user = ["--user", "app", "--password-file", file.to_str().unwrap()];
            let args = ["sextant", "ycsb", "load"].into_iter().chain(line.split_whitespace()).chain(as_user);
            match Cli::try_parse_from(args).unwrap().command {
                Command::Ycsb(ycsb) => credentials(ycsb.args.phase.options(), &ycsb.tls, &ycsb.user),
                other => panic!("{other:?}"),
            }
        };
        let app = Some(Credentials { user: "app".into(), password: "secret".into() });
        for line in ["--grpc h:1", "--grpc h:1 --tls-ca ca.pem", "--resp h:1"] {
            assert_eq!(said(line).unwrap(), app, "{line}");
        }
        for line in ["--resp h:1 --tls-ca ca.pem", "--embedded --cluster f"] {
            assert_eq!(said(line).unwrap_err().report(), Exit::Usage, "{line}");
        }
    }
}
