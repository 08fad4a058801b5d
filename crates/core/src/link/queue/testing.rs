//! Helpers for the tests of several disciplines.

use super::QueuedPacket;
use super::{Backlog, PacketSize};
use crate::packet::{FlowId, Origin, Packet, PacketId, Payload};
use crate::time::Instant;
use crate::trace::DropCause;
use crate::units::{Bits, Bytes};

/// Packet `serial` of a flow, enqueued at `millis`.
pub(super) fn queued(flow: u32, serial: u64, bytes: u32, millis: u64) -> QueuedPacket {
    let (flow, enqueued_at) = (FlowId(flow), Instant::from_millis(millis));
    let id = PacketId::new(flow, Origin::Sender, serial);
    let payload = Payload::Datagram { source: FlowId(0), sequence: serial };
    let packet =
        Box::new(Packet { id, created_at: enqueued_at, flow, bytes, payload, ..Packet::default() });
    QueuedPacket {
        packet,
        frame: Bits::from(Bytes(u64::from(bytes) + 8)),
        enqueued_at,
        marked: false,
    }
}

/// The serial number of a packet in its flow.
pub(super) fn serial(packet: &Packet) -> u64 {
    packet.datagram().expect("tests of queues use datagrams")
}

/// The packets dropped, in order: cause, flow and serial number.
#[derive(Debug, Default)]
pub(super) struct Drops(pub(super) Vec<(DropCause, u32, u64)>);

impl Drops {
    pub(super) fn record(&mut self) -> impl FnMut(DropCause, &Packet) {
        |cause, packet| self.0.push((cause, packet.flow.0, serial(packet)))
    }
}

/// The sum of packet sizes.
pub(in crate::link) fn backlog(sizes: impl Iterator<Item = PacketSize>) -> Backlog {
    sizes.fold(Backlog::default(), |sum, size| Backlog {
        packets: sum.packets + 1,
        bytes: sum.bytes + u64::from(size.bytes),
        link_bytes: sum.link_bytes + u64::from(size.link_bytes),
    })
}
