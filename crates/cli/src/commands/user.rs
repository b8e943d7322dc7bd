//! `sextant user`: who may do what.

use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write};

use sextant_environment::Env;

use super::client;
use crate::args::{UserCommand, UserListArgs, UserRemoveArgs, UserSetArgs};
use crate::exit::{CommandResult, Failure};

/// More is no password.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// What a rule that takes a right away begins with, after [`with_rules_told_apart`]: nobody types it.
const TAKES_AWAY: char = '\u{1}';

/// Arguments of which no rule of `user set` (`-@admin`) can be taken for an option, nor an option for a rule.
pub fn with_rules_told_apart(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    let is_set = args.windows(2).any(|pair| pair[0] == "user" && pair[1] == "set");
    for arg in args.iter_mut().filter(|arg| is_set && arg.as_encoded_bytes().starts_with(b"-@")) {
        let mut told_apart = OsString::from(TAKES_AWAY.to_string());
        told_apart.push(&*arg);
        *arg = told_apart;
    }
    args
}

fn rules_of(rules: Vec<String>) -> impl Iterator<Item = String> {
    rules.into_iter().map(|rule| rule.strip_prefix(TAKES_AWAY).map_or(rule.clone(), str::to_owned))
}

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

/// A rule that adds a password, which by now others may have seen, is refused. (One that takes it away, `<PASSWORD`, makes it worth
/// nothing.)
fn check_shown(rules: &[String]) -> CommandResult {
    match rules.iter().any(|rule| rule.starts_with('>')) {
        false => Ok(()),
        true => Err(Failure::usage(
            "'>PASSWORD' as an argument is seen in the process list: leave it out, and give the password on standard \
             input, with --password-stdin",
        )),
    }
}

async fn set(args: UserSetArgs) -> CommandResult {
    let mut rules: Vec<String> = rules_of(args.rules).collect();
    check_shown(&rules)?;
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::exit::Exit;

    #[test]
    fn rules_and_options_may_stand_in_any_order() {
        for line in [
            "sextant user set app on ~app:* +@all -@admin --password-stdin --server h:1",
            "sextant user set --server h:1 app on ~app:* +@all -@admin --password-stdin",
            "sextant user set app --password-stdin on ~app:* --server h:1 +@all -@admin",
        ] {
            let args = with_rules_told_apart(line.split(' ').map(OsString::from));
            let Ok(Cli { command: Command::User(user) }) = Cli::try_parse_from(args) else {
                panic!("{line}")
            };
            let UserCommand::Set(args) = user.command else { panic!("{line}") };
            assert!(args.password_stdin && args.connection.server == ["h:1"], "{line}");
            assert_eq!(args.name, "app");
            assert_eq!(
                rules_of(args.rules).collect::<Vec<_>>(),
                ["on", "~app:*", "+@all", "-@admin"],
                "{line}"
            );
        }
        let unknown = "sextant user set app on --pasword-stdin".split(' ').map(OsString::from);
        assert!(Cli::try_parse_from(with_rules_told_apart(unknown)).is_err());
    }

    #[test]
    fn a_password_is_no_argument() {
        let check =
            |rules: &[&str]| check_shown(&rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>());
        check(&["on", "~app:*", "+@read", "nopass", "<former", "#hash"]).unwrap();
        let shown: [&[&str]; 3] = [&[">secret"], &["on", "~*", ">secret", "+@all"], &[">"]];
        for rules in shown {
            let refused = check(rules).unwrap_err();
            let why = format!("{refused:?}");
            assert!(why.contains("--password-stdin") && !why.contains("secret"), "{why}");
            assert_eq!(refused.report(), Exit::Usage);
        }
    }
}
