//! Segmentation of super-packets into the packets that a link would carry.

use super::{
    GSO_ECN, GSO_NONE, GSO_TCP_V4, GSO_TCP_V6, GSO_UDP, Layout, NEEDS_CHECKSUM, Offload, TCP_CWR,
    TCP_FLAGS, TCP_LAST, TCP_SEQUENCE, half, identification, sequence, set_half, set_ip,
};
use bentpipe_core::wire::checksum::Checksum;
use bentpipe_core::wire::{TCP, UDP};

/// Iterates over the segments of a packet from the kernel.
#[derive(Clone, Debug)]
pub struct Segmenter<'a> {
    packet: &'a [u8],
    offload: Offload,
    /// `None` unless it is a super-packet.
    layout: Option<Layout>,
    /// Payload bytes already written.
    done_bytes: usize,
    number: u16,
    is_done: bool,
}

impl<'a> Segmenter<'a> {
    /// `None` if the header contradicts the packet.
    #[must_use]
    pub fn new(offload: Offload, packet: &'a [u8]) -> Option<Self> {
        let protocol = match offload.gso_type & !GSO_ECN {
            GSO_NONE => None,
            GSO_TCP_V4 | GSO_TCP_V6 => Some(TCP),
            GSO_UDP => Some(UDP),
            _ => return None,
        };
        let layout = match protocol {
            None => {
                let field =
                    usize::from(offload.checksum_start) + usize::from(offload.checksum_offset);
                if offload.needs_checksum() && field + 2 > packet.len() {
                    return None;
                }
                None
            }
            Some(protocol) => {
                let layout = Layout::of(packet)?;
                let matches = layout.headers.tuple.protocol == protocol;
                Some(layout).filter(|_| matches && offload.segment_bytes > 0)?.into()
            }
        };
        Some(Self { packet, offload, layout, done_bytes: 0, number: 0, is_done: false })
    }

    /// Whether the checksum was offloaded and is therefore valid. The validity of others is
    /// unknown.
    #[must_use]
    pub fn checksum_valid(&self) -> bool {
        self.offload.needs_checksum()
    }

    /// Writes the next packet to the start of `out` and returns its length, which exceeds that of
    /// `out` if the packet did not fit and was not written. `None` after the last.
    pub fn write_next(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.is_done {
            return None;
        }
        let Some(layout) = self.layout else {
            self.is_done = true;
            return Some(self.write_whole(out));
        };
        let left = self.packet.len() - layout.payload - self.done_bytes;
        let bytes = left.min(self.offload.segment_bytes.into());
        self.is_done = bytes == left;
        let from = layout.payload + self.done_bytes;
        let total_bytes = layout.payload + bytes;
        if let Some(out) = out.get_mut(..total_bytes) {
            let (header, payload) = out.split_at_mut(layout.payload);
            header.copy_from_slice(&self.packet[..layout.payload]);
            payload.copy_from_slice(&self.packet[from..from + bytes]);
            self.set_headers(out, &layout);
        }
        self.done_bytes += bytes;
        self.number = self.number.wrapping_add(1);
        Some(total_bytes)
    }

    fn write_whole(&self, out: &mut [u8]) -> usize {
        let Some(out) = out.get_mut(..self.packet.len()) else { return self.packet.len() };
        out.copy_from_slice(self.packet);
        if self.offload.needs_checksum() {
            // The field holds the sum of the pseudo-header.
            let start = usize::from(self.offload.checksum_start);
            let mut sum = Checksum::default();
            sum.add(&out[start..]);
            let field = start + usize::from(self.offload.checksum_offset);
            set_half(out, field, never_zero(sum));
        }
        out.len()
    }

    /// Sets the fields that differ between segments (Linux's `tcp_gso_segment` and
    /// `inet_gso_segment`).
    fn set_headers(&self, out: &mut [u8], layout: &Layout) {
        let number = identification(self.packet).wrapping_add(self.number);
        set_ip(out, layout.transport, out.len(), number);
        let is_tcp = layout.headers.tuple.protocol == TCP;
        let transport = &mut out[layout.transport..];
        if is_tcp {
            let done = self.done_bytes as u32;
            let number = sequence(transport).wrapping_add(done);
            transport[TCP_SEQUENCE..TCP_SEQUENCE + 4].copy_from_slice(&number.to_be_bytes());
            if !self.is_done {
                transport[TCP_FLAGS] &= !TCP_LAST;
            }
            if self.number > 0 {
                transport[TCP_FLAGS] &= !TCP_CWR;
            }
        } else {
            set_half(transport, 4, transport.len() as u16);
            if half(transport, super::UDP_CHECKSUM) == 0 && !self.offload.needs_checksum() {
                // The sender sends no checksum.
                return;
            }
        }
        let mut sum = layout.pseudo_header(transport.len());
        set_half(out, layout.checksum, 0);
        sum.add(&out[layout.transport..]);
        set_half(out, layout.checksum, never_zero(sum));
    }
}

impl Offload {
    fn needs_checksum(&self) -> bool {
        self.flags & NEEDS_CHECKSUM != 0
    }
}

/// In UDP zero means that there is no checksum. 0xffff is equivalent in ones' complement, in TCP
/// too, and is what Linux writes (`CSUM_MANGLED_0`).
fn never_zero(sum: Checksum) -> u16 {
    match sum.finish() {
        0 => 0xffff,
        sum => sum,
    }
}
