//! Buffers that are used again, so that a packet allocates nothing.

use std::net::SocketAddr;

use crate::tunnel::{HEADER_BYTES, NoSession, PeerId, TAG_BYTES, Tunnel};
use bentpipe_core::time::Instant;

/// The largest buffer that is kept: a jumbo frame. Coded packets of a peer may have up to 64 KiB, and many buffers of that
/// size would be more memory than the packets that wait.
const KEPT_BYTES_MAX: usize = 10 * 1_024;

/// A buffer of a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// Buffers of packets that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    buffers: Vec<Vec<u8>>,
    free: Vec<Slot>,
}

impl Pool {
    /// Copies bytes into a buffer.
    pub(super) fn store(&mut self, bytes: &[u8]) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Vec::new());
            Slot((self.buffers.len() - 1) as u32)
        });
        let buffer = &mut self.buffers[slot.0 as usize];
        buffer.clear();
        buffer.extend_from_slice(bytes);
        slot
    }

    pub(super) fn bytes(&self, slot: Slot) -> &[u8] {
        &self.buffers[slot.0 as usize]
    }

    pub(super) fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        &mut self.buffers[slot.0 as usize]
    }

    /// Takes the buffer out; [`Self::put_back`] frees the slot.
    pub(super) fn take(&mut self, slot: Slot) -> Vec<u8> {
        std::mem::take(&mut self.buffers[slot.0 as usize])
    }

    pub(super) fn put_back(&mut self, slot: Slot, buffer: Vec<u8>) {
        self.buffers[slot.0 as usize] = buffer;
        self.free(slot);
    }

    pub(super) fn free(&mut self, slot: Slot) {
        let buffer = &mut self.buffers[slot.0 as usize];
        if buffer.capacity() > KEPT_BYTES_MAX {
            *buffer = Vec::new();
        }
        self.free.push(slot);
    }

    /// The buffers in use.
    pub(super) fn used(&self) -> usize {
        self.buffers.len() - self.free.len()
    }
}

/// Datagrams to be sent, one behind the other in one buffer: a run of equal sizes and traffic classes to one address is one
/// call with UDP segmentation offload.
#[derive(Clone, Debug, Default)]
pub struct Datagrams {
    bytes: Vec<u8>,
    ends: Vec<DatagramEnd>,
}

/// One of [`Datagrams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramEnd {
    /// Where it goes.
    pub to: SocketAddr,
    /// DSCP and ECN field of its IP header.
    pub traffic_class: u8,
    /// Where in [`Datagrams::bytes`] it ends.
    pub end: usize,
}

impl Datagrams {
    /// Each datagram in order, with where to send it and its traffic class.
    pub fn iter(&self) -> impl Iterator<Item = (SocketAddr, u8, &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|last| last.end));
        starts.zip(&self.ends).map(|(start, &DatagramEnd { to, traffic_class, end })| {
            (to, traffic_class, &self.bytes[start..end])
        })
    }

    /// The number of datagrams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Their bytes, one behind the other.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where each goes, with which traffic class, and where it ends.
    #[must_use]
    pub fn ends(&self) -> &[DatagramEnd] {
        &self.ends
    }

    /// Removes all.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Adds a datagram as it is.
    pub(in crate::tunnel) fn push(&mut self, to: SocketAddr, traffic_class: u8, datagram: &[u8]) {
        self.bytes.extend_from_slice(datagram);
        self.ends.push(DatagramEnd { to, traffic_class, end: self.bytes.len() });
    }

    /// Seals a message in two parts for a peer. Returns the size of the datagram and where it goes.
    pub(super) fn seal(
        &mut self,
        now: Instant,
        tunnel: &mut Tunnel,
        peer: PeerId,
        traffic_class: u8,
        [header, body]: [&[u8]; 2],
    ) -> Result<(usize, SocketAddr), NoSession> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(body);
        self.bytes.extend_from_slice(&[0; TAG_BYTES]);
        match tunnel.output(peer, &mut self.bytes[start..], now) {
            Ok(to) => {
                let end = self.bytes.len();
                self.ends.push(DatagramEnd { to, traffic_class, end });
                Ok((end - start, to))
            }
            Err(error) => {
                self.bytes.truncate(start);
                Err(error)
            }
        }
    }
}
