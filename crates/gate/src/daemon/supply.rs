//! Sockets for legs to servers, opened by the privileged part for the worker.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use bentpipe_sys::tcp_sockets::Version;

use super::handover::{DESCRIPTORS_MAX, receive, send};
use crate::transparent::{Direct, Side, Sockets};

/// The worker's end: a few sockets for each side and version, and the channel on which it asks for more.
pub(super) struct Supplied {
    channel: OwnedFd,
    sockets: Mutex<[[Vec<OwnedFd>; 2]; 2]>,
}

impl Supplied {
    pub(super) fn new(channel: OwnedFd) -> Self {
        Self { channel, sockets: Mutex::default() }
    }
}

impl Sockets for Supplied {
    fn take(&self, side: Side, version: Version) -> io::Result<OwnedFd> {
        let mut all = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let sockets = &mut all[side as usize][version as usize];
        if sockets.is_empty() {
            send(&self.channel, &[side as u8, version as u8], &[])?;
            *sockets = receive(&self.channel)?.1;
        }
        sockets.pop().ok_or_else(|| io::Error::other("the privileged part has no more sockets"))
    }
}

/// The privileged end: sends sockets until the worker is gone.
pub(super) fn supply(channel: &OwnedFd, sockets: &Direct) -> io::Result<()> {
    loop {
        let request = receive(channel)?.0;
        let [side, version] = request[..] else { return Ok(()) };
        let side = if side == Side::Lan as u8 { Side::Lan } else { Side::Link };
        let version = if version == Version::V4 as u8 { Version::V4 } else { Version::V6 };
        // Fewer, if there are no more descriptors: none tells the worker so.
        let opened: Vec<_> =
            (0..DESCRIPTORS_MAX).map_while(|_| sockets.take(side, version).ok()).collect();
        let borrowed: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
        send(channel, &request, &borrowed)?;
    }
}
