//! Exit codes and error lines. Every failure is one clear line on standard error.

use std::process::ExitCode;

use sextant_common::error::{Error, ErrorKind};
use sextant_environment::config::ConfigError;
use sextant_environment::env::OUTDATED;

/// What the command's exit code says; listed in `sextant --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Success,
    /// The answer is no: the key does not exist, a condition failed, a check or a run found errors.
    Negative,
    /// Wrong arguments or configuration.
    Usage,
    /// The request failed; it was not executed, as far as known.
    Failed,
    /// A write may or may not have taken effect.
    Unknown,
    /// A server's data are damaged: it must not go on with them.
    Damaged,
    /// The data are of a newer version.
    Outdated,
}

/// As of a server that ends later because it must not go on.
const DAMAGED: u8 = 70;

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(match exit {
            Exit::Success => 0,
            Exit::Negative => 1,
            Exit::Usage => 2,
            Exit::Failed => 3,
            Exit::Unknown => 4,
            Exit::Damaged => DAMAGED,
            Exit::Outdated => OUTDATED,
        })
    }
}

/// Why a command did not succeed.
#[derive(Clone, Debug)]
pub struct Failure {
    exit: Exit,
    /// None: all was said already.
    message: Option<String>,
}

pub type CommandResult = Result<(), Failure>;

impl Failure {
    pub fn negative(message: impl Into<String>) -> Self {
        Self { exit: Exit::Negative, message: Some(message.into()) }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: Some(message.into()) }
    }

    pub fn error(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: Some(message.into()) }
    }

    /// A server does not start.
    pub fn of_start(e: Error) -> Self {
        match e.kind {
            ErrorKind::Corrupt => Self { exit: Exit::Damaged, ..Self::from(e) },
            _ => Self::from(e),
        }
    }

    /// Nothing more to say.
    pub fn silent(exit: Exit) -> Self {
        Self { exit, message: None }
    }

    pub fn report(self) -> Exit {
        if let Some(message) = self.message {
            eprintln!("sextant: {}", one_line(&message));
        }
        self.exit
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        let exit = match e.kind {
            ErrorKind::Invalid | ErrorKind::UnknownTable => Exit::Usage,
            ErrorKind::OutcomeUnknown => Exit::Unknown,
            ErrorKind::Outdated => Exit::Outdated,
            _ => Exit::Failed,
        };
        Self { exit, message: Some(e.message.into_owned()) }
    }
}

impl From<ConfigError> for Failure {
    fn from(e: ConfigError) -> Self {
        Self::usage(e.to_string())
    }
}

/// Writing to standard output failed. A reader that went away (`| head`) is no failure of ours.
impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        if e.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::silent(Exit::Success);
        }
        Self::error(e.to_string())
    }
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What clap has to say: help and version as they are, an error as one line.
pub fn usage(e: &clap::Error) -> Exit {
    use clap::error::ErrorKind as Clap;
    match e.kind() {
        Clap::DisplayHelp | Clap::DisplayVersion => {
            let _ = e.print();
            Exit::Success
        }
        Clap::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = e.print();
            Exit::Usage
        }
        _ => Failure::usage(first_paragraph(&e.to_string())).report(),
    }
}

/// The message without the usage that follows it, and without clap's own prefix.
fn first_paragraph(text: &str) -> String {
    let paragraph: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let message = paragraph.join(" ");
    message.strip_prefix("error: ").unwrap_or(&message).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_is_one_line() {
        use clap::Parser;
        let e = crate::args::Cli::try_parse_from(["sextant", "get"]).unwrap_err();
        let line = first_paragraph(&e.to_string());
        assert_eq!(line, "the following required arguments were not provided: <KEY>");
    }

    #[test]
    fn the_exit_code_tells_what_to_do() {
        let exit = |kind| Failure::from(Error::new(kind, "x")).exit;
        assert_eq!(exit(ErrorKind::Invalid), Exit::Usage);
        assert_eq!(exit(ErrorKind::Unavailable), Exit::Failed);
        assert_eq!(exit(ErrorKind::OutcomeUnknown), Exit::Unknown);
        assert_eq!(exit(ErrorKind::Corrupt), Exit::Failed, "a record that was asked for");
        let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(Failure::from(gone).exit, Exit::Success);
    }

    #[test]
    fn a_server_whose_data_are_damaged_is_not_to_be_started_again() {
        assert_eq!(Failure::of_start(Error::corrupt("x")).exit, Exit::Damaged);
        assert_eq!(ExitCode::from(Exit::Damaged), ExitCode::from(70));
        assert_eq!(Failure::of_start(Error::unavailable("x")).exit, Exit::Failed);
        assert_eq!(Failure::of_start(Error::invalid("x")).exit, Exit::Usage);
    }
}
