//! The sliding-window code: no packets make a decoder panic or exceed its bounds, with and without bytes it decides the
//! same, and no symbols make the unpacker panic.

use bentpipe_core::coding::framing::{Packer, Unpacker};
use bentpipe_core::coding::{
    Arrival, ByteRows, Code, Decoder, Limits, RepairId, SizeRows, SymbolId, SymbolRows,
};

use crate::ITERATIONS;
use crate::decoder::Decoder as Bytes;

/// What is true of a decoder after each packet.
fn check<R: SymbolRows>(decoder: &Decoder<R>, limits: Limits) {
    let span = decoder.span();
    let count = span.end.since(span.start).expect("a span") as usize;
    assert!(count <= limits.span.next_power_of_two());
    let missing: Vec<_> = decoder.missing().collect();
    assert!(missing.iter().all(|&id| decoder.symbol(id).is_none()));
    assert!(decoder.deficit() <= missing.len());
    let recovered = decoder.recovered();
    assert!(recovered.iter().all(|&id| decoder.symbol(id).is_some() && !missing.contains(&id)));
    assert!(recovered.is_sorted_by(|a, b| a != b && b.since(*a).is_some()));
    assert!(decoder.symbol(span.end).is_none());
}

#[test]
fn any_packets() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut bytes = Bytes::new(input);
        let limits = Limits {
            span: 1 + bytes.below(70) as usize,
            equations: 1 + bytes.below(16) as usize,
            symbol_bytes: bytes.below(200) as usize,
        };
        let first = SymbolId(bytes.u32());
        let code = if first.0 % 4 == 2 { Code::ReedSolomon } else { Code::Random };
        let mut real = Decoder::<ByteRows>::new(code, first, limits);
        let mut simulated = Decoder::<SizeRows>::new(code, first, limits);
        while !bytes.is_empty() {
            let is_repair = bytes.flag();
            let mut header = [0; RepairId::BYTES];
            let taken = bytes.bytes(RepairId::BYTES);
            header[..taken.len()].copy_from_slice(taken);
            if bytes.flag() {
                // Near the span, and a window that fits: few random headers are.
                let near = real.span().start.0.wrapping_add(u32::from(header[7] % 80));
                header[4..].copy_from_slice(&near.to_be_bytes());
                header[2] &= 0xF0;
                header[3] &= 0x3F;
            }
            let size = usize::from(bytes.u8());
            let symbol = bytes.bytes(size);
            let before = (real.span().end, real.lost());
            let (arrival, other) = if is_repair {
                let Some(id) = RepairId::from_bytes(header) else { continue };
                assert_eq!(RepairId::from_bytes(id.to_bytes()), Some(id));
                let other = simulated.on_repair(id, &(symbol.len() as u32));
                (real.on_repair(id, symbol), other)
            } else {
                let id = SymbolId(u32::from_be_bytes([header[4], header[5], header[6], header[7]]));
                let other = simulated.on_source(id, &(symbol.len() as u32));
                let arrival = real.on_source(id, symbol);
                if arrival == Arrival::Innovative {
                    assert_eq!(real.symbol(id), Some(symbol));
                }
                (arrival, other)
            };
            assert_eq!(arrival, other);
            assert_eq!(real.recovered(), simulated.recovered());
            assert!(real.span().end.since(before.0).is_some() && real.lost() >= before.1);
            check(&real, limits);
            check(&simulated, limits);
        }
    });
}

#[test]
fn any_symbols() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut bytes = Bytes::new(input);
        let mut unpacker = Unpacker::new(1 + bytes.below(20) as usize);
        let mut id = SymbolId(bytes.u32());
        let (mut taken, mut packets) = (0, Vec::new());
        while !bytes.is_empty() {
            id = id.plus(u32::from(bytes.u8() % 4));
            let size = usize::from(bytes.u8());
            let symbol = bytes.bytes(size);
            taken += symbol.len();
            let _is_well_formed =
                unpacker.on_symbol(id, symbol, |packet| packets.push(packet.to_vec()));
        }
        // Each byte is in one packet at most, and each packet cost a header.
        assert!(packets.iter().all(|packet| !packet.is_empty()));
        assert!(packets.iter().map(|packet| packet.len() + 2).sum::<usize>() <= taken);
        let (mut packer, mut symbols) = (Packer::new(64), Vec::new());
        for packet in &packets {
            packer.push(packet, |symbol| symbols.push(symbol.to_vec()));
        }
        packer.flush(|symbol| symbols.push(symbol.to_vec()));
        let (mut again, mut unpacker) = (Vec::new(), Unpacker::new(symbols.len()));
        for (number, symbol) in symbols.iter().enumerate() {
            let read = unpacker.on_symbol(SymbolId(number as u32), symbol, |packet| {
                again.push(packet.to_vec());
            });
            assert_eq!(read, Ok(()));
        }
        assert_eq!(again, packets);
    });
}
