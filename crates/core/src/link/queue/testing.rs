//! What the tests of several disciplines need.

use super::Queued;
use super::{Amounts, Load};
use crate::packet::{FlowId, Origin, Packet, PacketId, Payload};
use crate::time::Instant;
use crate::trace::DropCause;
use crate::units::{Bits, Bytes};

/// The `serial`-th packet of a flow, which came at `millis`.
pub(super) fn queued(flow: u32, serial: u64, bytes: u32, millis: u64) -> Queued {
    let (flow, entered) = (FlowId(flow), Instant::from_millis(millis));
    let id = PacketId::new(flow, Origin::Sender, serial);
    let payload = Payload::Datagram { sequence: serial };
    let packet =
        Box::new(Packet { id, created_at: entered, flow, bytes, payload, ..Packet::default() });
    Queued { packet, frame: Bits::from(Bytes(u64::from(bytes) + 8)), entered, marked: false }
}

/// The position of a packet among those of its flow.
pub(super) fn serial(packet: &Packet) -> u64 {
    packet.datagram().expect("tests of queues send datagrams")
}

/// What was lost: the cause, the flow and the serial of each packet, in order.
#[derive(Debug, Default)]
pub(super) struct Losses(pub(super) Vec<(DropCause, u32, u64)>);

impl Losses {
    pub(super) fn note(&mut self) -> impl FnMut(DropCause, &Packet) {
        |cause, packet| self.0.push((cause, packet.flow.0, serial(packet)))
    }
}

/// Packets, counted.
pub(in crate::link) fn amounts(loads: impl Iterator<Item = Load>) -> Amounts {
    loads.fold(Amounts::default(), |sum, load| Amounts {
        packets: sum.packets + 1,
        bytes: sum.bytes + u64::from(load.bytes),
        link_bytes: sum.link_bytes + u64::from(load.link_bytes),
    })
}
