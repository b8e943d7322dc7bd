//! `sextant user`: who may do what.

use std::io::{IsTerminal, Read, Write};

use sextant_environment::Env;

use super::client;
use crate::args::{UserCommand, UserListArgs, UserRemoveArgs, UserSetArgs};
use crate::exit::{CommandResult, Failure};

/// More is no password.
const PASSWORD_BYTES_MAX: u64 = 4096;

pub async fn run(command: UserCommand) -> CommandResult {
    match command {
        UserCommand::Hash => hash(),
        UserCommand::Set(args) => set(args).await,
        UserCommand::Remove(args) => remove(args).await,
        UserCommand::List(args) => list(args).await,
    }
}

/// Of what stands on the first line of standard input: as an argument, it would be in the process list.
fn hash() -> CommandResult {
    let password = read_password()?;
    let phc = sextant_access::hash(password.as_bytes(), &*Env::real().rng)?;
    writeln!(std::io::stdout(), "{phc}")?;
    Ok(())
}

async fn set(args: UserSetArgs) -> CommandResult {
    let mut rules = args.rules;
    if args.password_stdin {
        rules.push(format!(">{}", read_password()?));
    }
    client(&args.connection).await?.set_user(&args.name, &rules).await?;
    Ok(())
}

async fn remove(args: UserRemoveArgs) -> CommandResult {
    match client(&args.connection).await?.remove_user(&args.name).await? {
        true => Ok(()),
        false => Err(Failure::negative(format!("there is no user {}", args.name))),
    }
}

async fn list(args: UserListArgs) -> CommandResult {
    let users = client(&args.connection).await?.users().await?;
    let mut stdout = std::io::stdout().lock();
    for (name, rules) in users {
        writeln!(stdout, "user {name} {rules}")?;
    }
    Ok(())
}

fn read_password() -> Result<String, Failure> {
    if std::io::stdin().is_terminal() {
        eprintln!("password (it is shown):");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        return Ok(line.trim_end_matches(['\n', '\r']).to_owned());
    }
    let mut text = String::new();
    std::io::stdin().take(PASSWORD_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
