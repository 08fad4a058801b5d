//! Consecutive packets of a TCP connection as one super-packet.

use std::io::IoSlice;

use super::{
    GSO_TCP_V4, GSO_TCP_V6, Layout, NEEDS_CHECKSUM, Offload, PACKET_BYTES_MAX, TCP_CHECKSUM,
    TCP_FLAGS, TCP_LAST, TCP_SEQUENCE, half, identification, sequence, set_half, set_ip,
};
use bentpipe_core::wire::{TCP, ipv6, tcp};

/// The longest IPv4 and TCP headers.
const HEADERS_BYTES_MAX: usize = 120;
/// The most packets in a super-packet.
pub const PACKETS_MAX: usize = 64;

/// A super-packet under construction. It holds the headers; the caller keeps the payloads.
#[derive(Clone, Debug)]
pub struct Coalescer {
    headers: [u8; HEADERS_BYTES_MAX],
    layout: Layout,
    segment_bytes: usize,
    payload_bytes: usize,
    packets: usize,
    /// No packet may follow: the last one was short, or had PSH or FIN set.
    is_closed: bool,
}

impl Coalescer {
    /// Starts with a packet, if others can follow it: TCP with a payload, no IP options or
    /// extension headers, and no flags but ACK, PSH and FIN. Its checksum must be valid, since a
    /// super-packet cannot show an invalid one.
    #[must_use]
    pub fn start(packet: &[u8]) -> Option<Self> {
        let layout = Layout::of(packet)?;
        let is_plain_ip = packet[0] >> 4 == 4 || layout.transport == ipv6::HEADER_BYTES;
        if layout.headers.tuple.protocol != TCP || !is_plain_ip {
            return None;
        }
        let flags = packet[layout.transport + TCP_FLAGS];
        let payload_bytes = packet.len() - layout.payload;
        if flags & !TCP_LAST != tcp::ACK || payload_bytes == 0 {
            return None;
        }
        let mut headers = [0; HEADERS_BYTES_MAX];
        headers[..layout.payload].copy_from_slice(&packet[..layout.payload]);
        let is_closed = flags & TCP_LAST != 0;
        let segment_bytes = payload_bytes;
        Some(Self { headers, layout, segment_bytes, payload_bytes, packets: 1, is_closed })
    }

    /// Appends the next packet. False if it does not continue the super-packet, which is then
    /// unchanged. Its checksum must be valid.
    #[must_use]
    pub fn push(&mut self, packet: &[u8]) -> bool {
        let (start, transport) = (self.layout.payload, self.layout.transport);
        let payload_bytes = packet.len().saturating_sub(start);
        let fits = (1..=self.segment_bytes).contains(&payload_bytes)
            && start + self.payload_bytes + payload_bytes <= PACKET_BYTES_MAX;
        if self.is_closed || self.packets == PACKETS_MAX || !fits {
            return false;
        }
        let last = packet[transport + TCP_FLAGS] & TCP_LAST;
        if self.expected_headers(packet)[..start] != packet[..start] {
            return false;
        }
        self.headers[transport + TCP_FLAGS] |= last;
        self.payload_bytes += payload_bytes;
        self.packets += 1;
        self.is_closed = last != 0 || payload_bytes < self.segment_bytes;
        true
    }

    /// The headers that the next packet must have, given their length: checksums, PSH and FIN are
    /// the packet's own, and all other fields continue the super-packet.
    fn expected_headers(&self, packet: &[u8]) -> [u8; HEADERS_BYTES_MAX] {
        let mut headers = self.headers;
        let transport = self.layout.transport;
        if headers[0] >> 4 == 4 {
            let number = identification(&headers).wrapping_add(self.packets as u16);
            set_half(&mut headers, 2, packet.len() as u16);
            set_half(&mut headers, 4, number);
            set_half(&mut headers, 10, half(packet, 10));
        } else {
            set_half(&mut headers, 4, (packet.len() - ipv6::HEADER_BYTES) as u16);
        }
        let number = sequence(&headers[transport..]).wrapping_add(self.payload_bytes as u32);
        let at = transport + TCP_SEQUENCE;
        headers[at..at + 4].copy_from_slice(&number.to_be_bytes());
        headers[transport + TCP_FLAGS] &= !TCP_LAST;
        headers[transport + TCP_FLAGS] |= packet[transport + TCP_FLAGS] & TCP_LAST;
        set_half(&mut headers, self.layout.checksum, half(packet, self.layout.checksum));
        headers
    }

    /// Where the payload starts in each of its packets.
    #[must_use]
    pub fn payload_start(&self) -> usize {
        self.layout.payload
    }

    /// Returns the header and the packet headers that precede the payloads. A single packet is
    /// unchanged.
    #[must_use]
    pub fn finish(mut self) -> Coalesced {
        if self.packets == 1 {
            return Coalesced { coalescer: self, offload: Offload::default() };
        }
        let Layout { transport, payload, .. } = self.layout;
        let total_bytes = payload + self.payload_bytes;
        let number = identification(&self.headers);
        set_ip(&mut self.headers, transport, total_bytes, number);
        // The device completes the checksum from the sum of the pseudo-header, which is not
        // inverted yet.
        let sum = self.layout.pseudo_header(total_bytes - transport).finish();
        set_half(&mut self.headers, self.layout.checksum, !sum);
        let is_v4 = self.headers[0] >> 4 == 4;
        let offload = Offload {
            flags: NEEDS_CHECKSUM,
            gso_type: if is_v4 { GSO_TCP_V4 } else { GSO_TCP_V6 },
            header_bytes: payload as u16,
            segment_bytes: self.segment_bytes as u16,
            checksum_start: transport as u16,
            checksum_offset: TCP_CHECKSUM as u16,
        };
        Coalesced { coalescer: self, offload }
    }
}

/// A complete super-packet without its payloads.
#[derive(Clone, Debug)]
pub struct Coalesced {
    coalescer: Coalescer,
    /// The work left to the device.
    pub offload: Offload,
}

impl Coalesced {
    /// The headers of the super-packet, or of the single packet.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        &self.coalescer.headers[..self.coalescer.layout.payload]
    }
}

/// Calls `write` with what a device takes in one call, in parts: the packets of a coalescer, in order, as a
/// super-packet, or one packet.
pub fn write_parts<'a, R>(
    coalescer: Option<Coalescer>,
    packets: impl IntoIterator<Item = &'a [u8]>,
    write: impl FnOnce(&[IoSlice<'_>]) -> R,
) -> R {
    let mut packets = packets.into_iter();
    let Some(coalescer) = coalescer.filter(|coalescer| coalescer.packets > 1) else {
        let header = Offload::default().emit();
        return write(&[IoSlice::new(&header), IoSlice::new(packets.next().unwrap_or_default())]);
    };
    let (start, count) = (coalescer.payload_start(), coalescer.packets);
    let coalesced = coalescer.finish();
    let header = coalesced.offload.emit();
    let mut parts = [IoSlice::new(&[]); PACKETS_MAX + 2];
    parts[0] = IoSlice::new(&header);
    parts[1] = IoSlice::new(coalesced.headers());
    for (part, packet) in parts[2..].iter_mut().zip(packets) {
        *part = IoSlice::new(&packet[start..]);
    }
    write(&parts[..count + 2])
}
