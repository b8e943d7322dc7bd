//! Faults that tests order in advance: errors by kind of operation and path, and a power cut at the n-th operation.

use std::io;
use std::path::Path;

use sextant_environment::vfs::IoKind;

/// An error that the disk reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// EIO.
    Io,
    /// ENOSPC.
    NoSpace,
}

impl Fault {
    pub(super) fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Fault::Io => libc::EIO,
            Fault::NoSpace => libc::ENOSPC,
        })
    }
}

type PathPredicate = Box<dyn Fn(&Path) -> bool + Send>;

struct Order {
    kind: IoKind,
    left: u64,
    fault: Fault,
    paths: PathPredicate,
}

/// What happens to an operation.
pub(super) enum Verdict {
    Succeed,
    /// It fails, but part of it may have been done.
    FailPartly(io::Error),
    /// It fails, and nothing was done.
    Fail(io::Error),
}

#[derive(Default)]
pub(super) struct Faults {
    orders: Vec<Order>,
    /// The so-manieth write or sync from now at which power fails; 0: it has failed.
    power: Option<u64>,
}

impl Faults {
    pub(super) fn order(&mut self, kind: IoKind, count: u64, fault: Fault, paths: PathPredicate) {
        self.orders.push(Order { kind, left: count, fault, paths });
    }

    pub(super) fn clear(&mut self) {
        self.orders.clear();
    }

    pub(super) fn cut_power_at(&mut self, operation: u64) {
        self.power = Some(operation);
    }

    pub(super) fn restore_power(&mut self) {
        self.power = None;
    }

    pub(super) fn has_power(&self) -> bool {
        self.power != Some(0)
    }

    pub(super) fn judge(&mut self, kind: IoKind, path: &Path) -> Verdict {
        match &mut self.power {
            Some(0) => return Verdict::Fail(no_power()),
            Some(left) if kind != IoKind::Read => {
                *left -= 1;
                if *left == 0 {
                    return Verdict::FailPartly(no_power());
                }
            }
            _ => {}
        }
        let Some(order) = self.orders.iter_mut().find(|o| o.kind == kind && o.left > 0 && (o.paths)(path))
        else {
            return Verdict::Succeed;
        };
        order.left -= 1;
        let fault = order.fault;
        self.orders.retain(|order| order.left > 0);
        Verdict::FailPartly(fault.error())
    }
}

pub(super) fn no_power() -> io::Error {
    io::Error::other("the power is off")
}
