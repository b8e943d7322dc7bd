//! A network interface of this process: what the kernel sends through it is read here, what is written here it receives.
//!
//! Invariant: it is gone when the process is, however that ends.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use sextant_common::error::{Error, Result};

const DEVICE: &str = "/dev/net/tun";
const TUNSETIFF: libc::Ioctl = 0x4004_54ca_u32 as libc::Ioctl;
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0_u32 as libc::Ioctl;
/// Checksums and segments are left to whoever needs them: TCP over IPv4 and IPv6, with ECN.
const OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;
/// A frame of unsent segments, with what the kernel says about it.
pub const FRAME_BYTES_MAX: usize = 10 + 14 + 65_536;

pub struct Tap {
    file: File,
}

impl Tap {
    /// `whole`: frames may be of many segments, which is cheaper; they are lost or arrive together.
    pub fn new(name: &str, whole: bool) -> Result<Self> {
        let failed = |what: &str, e: std::io::Error| Error::unavailable(format!("{what} {name}: {e}"));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE);
        let file = file.map_err(|e| failed(DEVICE, e))?;
        // SAFETY: all zeroes is a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return Err(Error::invalid(format!("{name}: too long for an interface")));
        }
        request.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: the descriptor is open, and the kernel reads and writes an `ifreq`.
        if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &mut request) } != 0 {
            return Err(failed("no interface", std::io::Error::last_os_error()));
        }
        let offloads = if whole { OFFLOADS } else { 0 };
        // SAFETY: the descriptor is open; the argument is a number.
        if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, offloads) } != 0 {
            return Err(failed("no offloads for", std::io::Error::last_os_error()));
        }
        Ok(Self { file })
    }

    /// `None`: there is none at the moment.
    pub fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<Option<usize>> {
        match self.file.read(buffer) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// False: the kernel did not take it.
    pub fn write(&mut self, frame: &[u8]) -> bool {
        self.file.write(frame).is_ok_and(|bytes| bytes == frame.len())
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
