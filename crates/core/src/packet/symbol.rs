//! Symbols of a coded tunnel: their headers, and symbols as payloads of packets.

use std::sync::{Arc, OnceLock};

use super::Packet;
use crate::coding::{RepairId, SymbolId};
use crate::drop_cause::DropCause;

/// The number of a stream: the symbols of one sender from its start, or from that of its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamId(pub u16);

/// A source symbol without its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceHeader {
    /// The stream.
    pub stream: StreamId,
    /// The symbol within it.
    pub id: SymbolId,
    /// The sender's clock in microseconds, modulo 2^32.
    pub sent_us: u32,
}

/// A repair symbol without its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairHeader {
    /// The stream.
    pub stream: StreamId,
    /// Window and coefficients.
    pub id: RepairId,
}

/// A packet as a source symbol of a coded tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSymbol {
    /// The symbol.
    pub header: SourceHeader,
    /// The number of the packet among the coded ones of its flow.
    pub sequence: u32,
    /// The packet.
    pub packet: Packet,
    /// Why the packet that carried it was dropped, if it was: a decoder that recovers it takes it off the lost ones.
    pub dropped: OnceLock<DropCause>,
}

/// A repair symbol of a coded tunnel. Contents are not modelled: a decoder computes from coefficients and sizes which
/// symbols it can recover, and takes only those from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairSymbol {
    /// Window and coefficients.
    pub header: RepairHeader,
    /// The size of the symbol.
    pub symbol_bytes: u32,
    /// Consecutive source symbols, oldest first, in groups: those of the window, and perhaps some before it.
    pub sources: Vec<Arc<[Arc<SourceSymbol>]>>,
}
