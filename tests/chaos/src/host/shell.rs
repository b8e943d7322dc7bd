//! Other programs: `ip`, `nft`, `mount`.

use std::process::Stdio;

use sextant_common::error::{Error, Result};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Runs a program to its end; its standard output. An error says what it said.
pub async fn run(words: &[&str]) -> Result<String> {
    run_with(words, "").await
}

/// The same with a standard input.
pub async fn run_with(words: &[&str], input: &str) -> Result<String> {
    let shown = words.join(" ");
    let failed = |what: &dyn std::fmt::Display| Error::unavailable(format!("{shown}: {what}"));
    let (program, arguments) = words.split_first().ok_or_else(|| Error::invalid("no program"))?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| failed(&e))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).await.map_err(|e| failed(&e))?;
    }
    let output = child.wait_with_output().await.map_err(|e| failed(&e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(&format!("{} ({})", said.trim().lines().last().unwrap_or("no reason given"), output.status)))
}
