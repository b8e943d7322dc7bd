//! Children, and what processes cost.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use tokio::process::{Child, ChildStdout, Command};

/// How long processes may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// A server process. It is killed when this is dropped, and by the kernel if this program is.
pub struct Server {
    child: Child,
    pub pid: u32,
}

/// Starts a server in a process group of its own (an interrupt at the terminal is ours to handle). What it says goes to a file;
/// its standard output is piped if asked for.
pub fn start(
    program: &Path,
    args: &[String],
    log: &Path,
    pipe: bool,
) -> Result<(Server, Option<ChildStdout>)> {
    let failed = |e: &std::io::Error| Error::unavailable(format!("cannot start {}: {e}", program.display()));
    let said = std::fs::File::create(log)
        .map_err(|e| Error::new(ErrorKind::Disk, format!("{}: {e}", log.display())))?;
    let errors = said.try_clone().map_err(|e| failed(&e))?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stderr(errors).process_group(0).kill_on_drop(true);
    command.stdout(if pipe { Stdio::piped() } else { said.into() });
    // SAFETY: prctl is async-signal-safe; nothing is allocated. This program has one thread, which starts all children.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut child = command.spawn().map_err(|e| failed(&e))?;
    let pid = child.id().ok_or_else(|| Error::internal("a child without a process id"))?;
    let stdout = child.stdout.take();
    Ok((Server { child, pid }, stdout))
}

impl Server {
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits a little for a process that is about to end.
    pub async fn ended_soon(&mut self) {
        let _ = tokio::time::timeout(GONE_WITHIN, self.child.wait()).await;
    }

    /// Asks it to stop, so that it reaps what it has started; kills it if it does not.
    pub async fn stop(mut self) {
        if !self.has_ended() {
            // SAFETY: kill has no memory effects; the child is not reaped yet, so the id is still its own.
            unsafe { libc::kill(self.pid as libc::pid_t, libc::SIGTERM) };
            self.ended_soon().await;
        }
        let _ = self.child.kill().await;
    }
}

/// Waits until processes are gone that ended with the child that had started them.
pub async fn gone(pids: &[u32]) {
    let wait = async {
        while pids.iter().any(|pid| runs(*pid)) {
            tokio::time::sleep(POLL).await;
        }
    };
    if tokio::time::timeout(GONE_WITHIN, wait).await.is_err() {
        eprintln!("sextant-peers: some of the processes {pids:?} are still there");
    }
}

/// Whether a process is there, and not only its exit status.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

/// Runs a program to its end; its standard output. An error says what it said last.
pub async fn run(program: &Path, args: &[&str]) -> Result<String> {
    let failed = |what: String| Error::unavailable(format!("{}: {what}", program.display()));
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("{} ({})", said.trim().lines().last().unwrap_or("no reason given"), output.status)))
}

/// Ports that are free now.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    let failed = |e| Error::unavailable(format!("no free port: {e}"));
    // All are held until all are known: otherwise one could come twice.
    let bind = |_| std::net::TcpListener::bind("127.0.0.1:0");
    let held = (0..count).map(bind).collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    held.iter().map(|listener| Ok(listener.local_addr().map_err(failed)?.port())).collect()
}

/// CPU time that processes have taken so far, in microseconds; the kernel tells it in ticks of 10 ms.
pub fn cpu_us(pids: &[u32]) -> u64 {
    // SAFETY: sysconf has no memory effects.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    let stats = pids.iter().filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
    stats.filter_map(|stat| ticks(&stat)).sum::<u64>() * 1_000_000 / ticks_per_second
}

/// utime and stime of `/proc/PID/stat`. The second field is a name, which may have blanks and parentheses in it.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

#[derive(Clone, Copy)]
pub enum Whose {
    /// This process.
    Own,
    /// Of all children that have ended.
    Children,
}

/// CPU time so far, in microseconds.
pub fn own_cpu_us(whose: Whose) -> u64 {
    let who = match whose {
        Whose::Own => libc::RUSAGE_SELF,
        Whose::Children => libc::RUSAGE_CHILDREN,
    };
    // SAFETY: a rusage is numbers, for which zeros are valid; getrusage fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &raw mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let stat = "4242 (a) b) R 1 4242 4242 0 -1 4194304 100 0 0 0 37 5 0 0 20 0 4 0 100 1000 10";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("4242 (x"), None);
        assert_eq!(ticks("4242 (x) R 1"), None);
    }

    #[test]
    fn own_time_is_counted_and_processes_that_are_gone_are_not() {
        assert!(own_cpu_us(Whose::Own) > 0);
        assert_eq!(cpu_us(&[u32::MAX]), 0);
    }

    #[tokio::test]
    async fn a_server_is_started_and_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let args = ["-c".to_owned(), "echo hello; exec sleep 1000".to_owned()];
        let (mut server, _) = start(Path::new("/bin/sh"), &args, &dir.path().join("log"), false).unwrap();
        assert!(!server.has_ended());
        let pid = server.pid;
        server.stop().await;
        gone(&[pid]).await;
        let nothing = start(Path::new("/nonexistent"), &[], &dir.path().join("log"), false);
        assert!(nothing.err().unwrap().message.contains("/nonexistent"));
    }
}
