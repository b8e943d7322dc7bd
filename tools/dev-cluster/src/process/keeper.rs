//! The thread that starts and reaps children.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::Env;
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot, watch};

/// Orders that wait: one at a time is the rule.
const ORDERS_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Drain and stop.
    Terminate,
    /// End at once.
    Kill,
    Stop,
    Continue,
}

impl Signal {
    fn number(self) -> libc::c_int {
        match self {
            Signal::Terminate => libc::SIGTERM,
            Signal::Kill => libc::SIGKILL,
            Signal::Stop => libc::SIGSTOP,
            Signal::Continue => libc::SIGCONT,
        }
    }
}

enum Order {
    Start { program: PathBuf, args: Vec<String>, log: PathBuf, reply: oneshot::Sender<Result<Child>> },
    Signal { pid: u32, signal: Signal, exit: watch::Receiver<Option<Exit>>, reply: oneshot::Sender<bool> },
}

/// How a child ended.
pub type Exit = ExitStatus;

/// A child process. Dropping it does not end it; the end of its keeper does.
#[derive(Clone, Debug)]
pub struct Child {
    pub pid: u32,
    /// `None` while it runs.
    exit: watch::Receiver<Option<Exit>>,
}

impl Child {
    pub fn has_ended(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Waits until the child has ended and was reaped.
    pub async fn ended(&mut self) -> Option<Exit> {
        self.exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit)
    }
}

/// Says how a process ended, for people.
pub fn describe(exit: Option<Exit>) -> String {
    match exit {
        None => "is gone".into(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("ended with exit code {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "ended".into(),
        },
    }
}

/// Starts children and reaps them. Dropping it kills all that still run.
pub struct Keeper {
    orders: mpsc::Sender<Order>,
}

impl Keeper {
    pub fn new(env: &Env) -> Self {
        let (orders, mut queue) = mpsc::channel(ORDERS_MAX);
        // A thread of its own, because a child is killed when the thread that started it ends.
        env.dedicated("dev-cluster-keeper", async move {
            while let Some(order) = queue.recv().await {
                match order {
                    Order::Start { program, args, log, reply } => {
                        let _ = reply.send(start(&program, &args, &log));
                    }
                    Order::Signal { pid, signal, exit, reply } => {
                        // Reaping happens on this thread too: a child that has not ended here still owns its pid.
                        let runs = exit.borrow().is_none();
                        // SAFETY: kill has no memory effects.
                        let _ = reply
                            .send(runs && unsafe { libc::kill(pid as libc::pid_t, signal.number()) } == 0);
                    }
                }
            }
        });
        Self { orders }
    }

    /// Starts a child whose standard output and error are appended to `log`.
    pub async fn start(&self, program: &Path, args: &[&str], log: &Path) -> Result<Child> {
        let (reply, answer) = oneshot::channel();
        let args = args.iter().map(|a| (*a).to_owned()).collect();
        let order = Order::Start { program: program.to_owned(), args, log: log.to_owned(), reply };
        self.orders.send(order).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// False if the child has ended.
    pub async fn signal(&self, child: &Child, signal: Signal) -> Result<bool> {
        let (reply, answer) = oneshot::channel();
        let order = Order::Signal { pid: child.pid, signal, exit: child.exit.clone(), reply };
        self.orders.send(order).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

fn gone() -> Error {
    Error::internal("the thread that keeps the server processes is gone")
}

fn start(program: &Path, args: &[String], log: &Path) -> Result<Child> {
    let output = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .map_err(|e| Error::new(ErrorKind::Disk, format!("{}: {e}", log.display())))?;
    let errors = output.try_clone()?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0).kill_on_drop(true);
    let parent = std::process::id();
    // SAFETY: prctl, getppid and _exit are async-signal-safe; nothing is allocated.
    unsafe {
        command.pre_exec(move || die_with(parent));
    }
    let mut process = command.spawn().map_err(|e| {
        Error::new(ErrorKind::Unavailable, format!("cannot start {}: {e}", program.display()))
    })?;
    let pid = process.id().ok_or_else(|| Error::internal("a child without a process id"))?;
    let (ended, exit) = watch::channel(None);
    tokio::spawn(async move {
        let status = process.wait().await.unwrap_or_else(|_| ExitStatus::from_raw(0));
        ended.send_replace(Some(status));
    });
    Ok(Child { pid, exit })
}

/// Asks the kernel to kill this (new) process when the thread that forked it ends.
#[cfg(target_os = "linux")]
fn die_with(parent: u32) -> std::io::Result<()> {
    // SAFETY: async-signal-safe calls without memory effects.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // The parent may have ended before the request took effect.
        if libc::getppid() as u32 != parent {
            libc::_exit(0);
        }
    }
    Ok(())
}

/// Elsewhere the kernel offers no such thing: children are killed when their keeper is dropped.
#[cfg(not(target_os = "linux"))]
fn die_with(_parent: u32) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell() -> &'static Path {
        Path::new("/bin/sh")
    }

    #[tokio::test]
    async fn children_are_started_signalled_and_reaped() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let keeper = Keeper::new(&Env::real());
        let mut child = keeper.start(shell(), &["-c", "echo hello; exit 3"], &log).await.unwrap();
        let exit = child.ended().await;
        assert_eq!(describe(exit), "ended with exit code 3");
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "hello\n");
        assert!(!keeper.signal(&child, Signal::Kill).await.unwrap(), "it has ended");

        let mut child = keeper.start(shell(), &["-c", "sleep 1000"], &log).await.unwrap();
        assert_eq!(child.has_ended(), None);
        assert!(keeper.signal(&child, Signal::Stop).await.unwrap());
        assert!(keeper.signal(&child, Signal::Continue).await.unwrap());
        assert!(keeper.signal(&child, Signal::Kill).await.unwrap());
        assert_eq!(describe(child.ended().await), "was ended by signal 9");
    }

    #[tokio::test]
    async fn children_do_not_outlive_their_keeper() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(&Env::real());
        let child = keeper.start(shell(), &["-c", "exec sleep 1000"], &dir.path().join("log")).await.unwrap();
        drop(keeper);
        let gone = async {
            // SAFETY: signal 0 only asks whether the process exists.
            while unsafe { libc::kill(child.pid as libc::pid_t, 0) } == 0 && !is_zombie(child.pid) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), gone).await.expect("the child lives on");
    }

    /// Nobody is left to reap it; it runs no more.
    fn is_zombie(pid: u32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z "))
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(&Env::real());
        let error = keeper.start(Path::new("/nonexistent"), &[], &dir.path().join("log")).await.unwrap_err();
        assert!(error.message.contains("/nonexistent"), "{error}");
    }
}
