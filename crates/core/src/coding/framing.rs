//! Packets in symbols: several small packets share one, a packet that is larger than a symbol spans several.
//!
//! A symbol has chunks, each behind a header of 16 bits: whether the packet began in an earlier symbol, whether it goes
//! on in the next one, and the length of the chunk (14 bits). A header of zero, or the end of the symbol, ends the chunks: the
//! zeros behind a recovered symbol are no packets. RFC 8681 puts a length before each packet, too (section 3.1), but its
//! decoder waits for all symbols of a packet; here each symbol is read alone, so a lost one costs only its own packets.

use super::id::SymbolId;

/// Bytes of a chunk's header.
pub const HEADER_BYTES: usize = 2;
/// The largest symbol that a chunk can fill.
pub const SYMBOL_BYTES_MAX: usize = HEADER_BYTES + LENGTH_MASK as usize;
/// The largest packet that is put together again: the largest of IP.
const PACKET_BYTES_MAX: usize = 65_535;

const BEGAN_EARLIER: u16 = 1 << 15;
const GOES_ON: u16 = 1 << 14;
const LENGTH_MASK: u16 = GOES_ON - 1;

/// The sizes of chunks: a simulation counts with them what [`Packer`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    symbol_bytes: usize,
    used: usize,
}

impl Layout {
    /// An empty symbol of at most `symbol_bytes` bytes.
    ///
    /// # Panics
    /// If no chunk fits, or if a chunk could not fill it.
    #[must_use]
    pub fn new(symbol_bytes: usize) -> Self {
        let fits = HEADER_BYTES < symbol_bytes && symbol_bytes <= SYMBOL_BYTES_MAX;
        assert!(fits, "a symbol of a size that chunks can fill");
        Self { symbol_bytes, used: 0 }
    }

    /// How many of the next `rest` bytes of a packet go into this symbol; `None` if it has to be sent first. A packet that
    /// fits an empty symbol is not split.
    #[must_use]
    pub fn chunk(&self, rest: usize) -> Option<usize> {
        let free = (self.symbol_bytes - self.used).saturating_sub(HEADER_BYTES);
        if rest <= free {
            Some(rest)
        } else if rest <= self.symbol_bytes - HEADER_BYTES || free == 0 {
            None
        } else {
            Some(free)
        }
    }

    /// Adds a chunk.
    pub fn add(&mut self, chunk: usize) {
        self.used += HEADER_BYTES + chunk;
    }

    /// The size of the symbol so far; the next one is empty.
    pub fn take(&mut self) -> usize {
        std::mem::take(&mut self.used)
    }
}

/// Writes packets into symbols.
#[derive(Clone, Debug)]
pub struct Packer {
    layout: Layout,
    symbol: Vec<u8>,
}

impl Packer {
    /// A packer for symbols of at most `symbol_bytes` bytes.
    ///
    /// # Panics
    /// As [`Layout::new`].
    #[must_use]
    pub fn new(symbol_bytes: usize) -> Self {
        let layout = Layout::new(symbol_bytes);
        Self { layout, symbol: Vec::with_capacity(symbol_bytes) }
    }

    /// Adds a packet. Passes on each symbol that is complete. An empty packet is ignored.
    pub fn push(&mut self, mut packet: &[u8], mut send: impl FnMut(&[u8])) {
        let mut began = 0;
        while !packet.is_empty() {
            let Some(bytes) = self.layout.chunk(packet.len()) else {
                self.flush(&mut send);
                continue;
            };
            let (chunk, rest) = packet.split_at(bytes);
            let goes_on = if rest.is_empty() { 0 } else { GOES_ON };
            let header = began | goes_on | chunk.len() as u16;
            self.layout.add(chunk.len());
            self.symbol.extend_from_slice(&header.to_be_bytes());
            self.symbol.extend_from_slice(chunk);
            (packet, began) = (rest, BEGAN_EARLIER);
        }
    }

    /// Passes on the symbol that is begun, if any.
    pub fn flush(&mut self, mut send: impl FnMut(&[u8])) {
        if self.layout.take() > 0 {
            send(&self.symbol);
            self.symbol.clear();
        }
    }
}

/// A chunk that ends beyond its symbol, or is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A part of a packet, or a whole one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk<'a> {
    bytes: &'a [u8],
    began_earlier: bool,
    goes_on: bool,
}

/// Takes the first chunk from a symbol; `None` at its end.
fn next_chunk<'a>(symbol: &mut &'a [u8]) -> Result<Option<Chunk<'a>>, Malformed> {
    let Some((header, rest)) = symbol.split_first_chunk() else {
        // A single byte is no header. Only a zero may follow the last chunk.
        return if symbol.iter().all(|&byte| byte == 0) { Ok(None) } else { Err(Malformed) };
    };
    let header = u16::from_be_bytes(*header);
    if header == 0 {
        return Ok(None);
    }
    let length = usize::from(header & LENGTH_MASK);
    let (bytes, rest) = rest.split_at_checked(length).filter(|_| length > 0).ok_or(Malformed)?;
    *symbol = rest;
    let (began_earlier, goes_on) = (header & BEGAN_EARLIER != 0, header & GOES_ON != 0);
    Ok(Some(Chunk { bytes, began_earlier, goes_on }))
}

/// The parts of packets in one symbol that need other symbols.
#[derive(Clone, Debug, Default)]
struct Parts {
    id: Option<SymbolId>,
    /// The end of a packet, or its middle if it goes on.
    end: Option<(Vec<u8>, bool)>,
    begin: Option<Vec<u8>>,
}

/// Reads packets from symbols in any order, each given once. Packets within one symbol are delivered at once; the parts of
/// others wait for their symbols, for as long as these are among the last `span` ids or so.
#[derive(Clone, Debug)]
pub struct Unpacker {
    parts: Vec<Parts>,
    packet: Vec<u8>,
}

impl Unpacker {
    /// An unpacker that keeps parts of at most `span` symbols, rounded up to a power of two.
    #[must_use]
    pub fn new(span: usize) -> Self {
        Self { parts: vec![Parts::default(); span.next_power_of_two()], packet: Vec::new() }
    }

    /// Reads a symbol and passes on each packet that is complete.
    ///
    /// # Errors
    /// If a chunk is malformed; the packets before it are delivered.
    pub fn on_symbol(
        &mut self,
        id: SymbolId,
        mut symbol: &[u8],
        mut deliver: impl FnMut(&[u8]),
    ) -> Result<(), Malformed> {
        let mut parts = Parts { id: Some(id), ..Parts::default() };
        let (mut is_first, mut is_last) = (true, false);
        let result = loop {
            let chunk = match next_chunk(&mut symbol) {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            // Only the first chunk continues another symbol's, and nothing follows one that goes on.
            if chunk.began_earlier && !is_first || is_last {
                break Err(Malformed);
            }
            (is_first, is_last) = (false, chunk.goes_on);
            match (chunk.began_earlier, chunk.goes_on) {
                (false, false) => deliver(chunk.bytes),
                (false, true) => parts.begin = Some(chunk.bytes.to_vec()),
                (true, goes_on) => parts.end = Some((chunk.bytes.to_vec(), goes_on)),
            }
        };
        let (has_end, has_begin) = (parts.end.is_some(), parts.begin.is_some());
        if has_end || has_begin {
            *self.parts_mut(id) = parts;
        }
        if let Some(begin) = self.begin_of(id).filter(|_| has_end) {
            self.complete(begin, &mut deliver);
        }
        if has_begin {
            self.complete(id, &mut deliver);
        }
        result
    }

    fn slot(&self, id: SymbolId) -> usize {
        id.0 as usize & (self.parts.len() - 1)
    }

    fn parts_mut(&mut self, id: SymbolId) -> &mut Parts {
        let slot = self.slot(id);
        &mut self.parts[slot]
    }

    fn parts(&self, id: SymbolId) -> Option<&Parts> {
        Some(&self.parts[self.slot(id)]).filter(|parts| parts.id == Some(id))
    }

    /// The symbol in which the packet begins that ends or goes on in the first chunk of `id`.
    fn begin_of(&self, id: SymbolId) -> Option<SymbolId> {
        for back in 1..self.parts.len() as u32 {
            let earlier = SymbolId(id.0.wrapping_sub(back));
            let parts = self.parts(earlier)?;
            if parts.begin.is_some() {
                return Some(earlier);
            }
            parts.end.as_ref().filter(|&&(_, goes_on)| goes_on)?;
        }
        None
    }

    /// How many symbols after `begin` its last packet ends; `None` if one of them was not read, or the packet is too large.
    fn symbols_after(&self, begin: SymbolId) -> Option<u32> {
        let mut bytes = self.parts(begin)?.begin.as_ref()?.len();
        for count in 1..self.parts.len() as u32 {
            let (chunk, goes_on) = self.parts(begin.plus(count))?.end.as_ref()?;
            bytes += chunk.len();
            if bytes > PACKET_BYTES_MAX {
                return None;
            }
            if !goes_on {
                return Some(count);
            }
        }
        None
    }

    /// Delivers the packet that begins in the last chunk of a symbol, if all its symbols have been read.
    fn complete(&mut self, begin: SymbolId, deliver: &mut impl FnMut(&[u8])) {
        let Some(count) = self.symbols_after(begin) else { return };
        let mut packet = std::mem::take(&mut self.packet);
        packet.clear();
        packet.extend(self.parts_mut(begin).begin.take().into_iter().flatten());
        for count in 1..=count {
            let end = self.parts_mut(begin.plus(count)).end.take();
            packet.extend(end.into_iter().flat_map(|(chunk, _)| chunk));
        }
        deliver(&packet);
        self.packet = packet;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pack(symbol_bytes: usize, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (mut packer, mut symbols) = (Packer::new(symbol_bytes), Vec::new());
        for packet in packets {
            packer.push(packet, |symbol| symbols.push(symbol.to_vec()));
        }
        packer.flush(|symbol| symbols.push(symbol.to_vec()));
        symbols
    }

    fn unpack(symbols: &[(u32, &[u8])]) -> (Vec<Vec<u8>>, Vec<Result<(), Malformed>>) {
        let (mut unpacker, mut packets) = (Unpacker::new(64), Vec::new());
        let results = symbols.iter().map(|&(id, symbol)| {
            unpacker.on_symbol(SymbolId(id), symbol, |packet| packets.push(packet.to_vec()))
        });
        let results = results.collect();
        (packets, results)
    }

    /// Given symbols of 12 bytes: packets of 3 and 4 bytes take 11 of them; one of 2 bytes needs the next symbol; one of
    /// 14 bytes fills that one (12 - 4 - 2 = 6) and goes on with 8 bytes in a third one.
    #[test]
    fn packets_by_hand() {
        let packets = [vec![1; 3], vec![2; 4], vec![3; 2], vec![4; 14]];
        let symbols = pack(12, &packets);
        assert_eq!(symbols.len(), 3);
        assert_eq!(symbols[0], [0, 3, 1, 1, 1, 0, 4, 2, 2, 2, 2]);
        assert_eq!(symbols[1], [0, 2, 3, 3, 0x40, 6, 4, 4, 4, 4, 4, 4]);
        assert_eq!(symbols[2], [0x80, 8, 4, 4, 4, 4, 4, 4, 4, 4]);
        let (found, _) = unpack(&[(2, &symbols[2]), (0, &symbols[0]), (1, &symbols[1])]);
        assert_eq!(found, packets);
    }

    /// Given acknowledgements of 40 bytes, expect 33 of them in a symbol of 1,400: 1,400 / 42 = 33.3.
    #[test]
    fn many_acknowledgements_share_a_symbol() {
        assert_eq!(pack(1_400, &vec![vec![7; 40]; 66]).len(), 2);
    }

    #[test]
    fn zeros_behind_a_recovered_symbol_are_no_packets() {
        for zeros in 0..4 {
            let mut symbol = pack(12, &[vec![5; 3]]).concat();
            symbol.resize(symbol.len() + zeros, 0);
            assert_eq!(unpack(&[(0, &symbol)]), (vec![vec![5; 3]], vec![Ok(())]));
        }
    }

    #[test]
    fn malformed_chunks_are_reported() {
        let error = |symbol: &[u8]| unpack(&[(0, symbol)]).1[0];
        assert_eq!(error(&[0, 3, 1, 1]), Err(Malformed), "it ends beyond the symbol");
        assert_eq!(error(&[0x40, 0]), Err(Malformed), "empty");
        assert_eq!(error(&[7]), Err(Malformed), "half a header");
        assert_eq!(error(&[0, 1, 9, 0x80, 1, 9]), Err(Malformed), "a second chunk began earlier");
        assert_eq!(
            error(&[0x40, 1, 9, 0, 1, 9]),
            Err(Malformed),
            "a chunk behind one that goes on"
        );
    }

    proptest! {
        /// Given any packets, expect their symbols to be full or the next packet not to fit, sizes to be those of the layout,
        /// and, in any order and with lost symbols, expect each packet without a lost symbol once.
        #[test]
        fn packets_are_read_back(
            sizes in prop::collection::vec(1usize..400, 1..30),
            symbol_bytes in 3usize..200,
            first in prop_oneof![Just(0), Just(u32::MAX - 3)],
            order in any::<u64>(),
            is_lost in prop::collection::vec(prop::bool::weighted(0.2), 64),
        ) {
            let packets: Vec<Vec<u8>> =
                sizes.iter().enumerate().map(|(i, &size)| vec![i as u8 + 1; size]).collect();
            let mut layout = Layout::new(symbol_bytes);
            let (mut expected_sizes, mut symbols_of) = (Vec::new(), Vec::new());
            for &size in &sizes {
                let (mut rest, mut used) = (size, Vec::new());
                while rest > 0 {
                    if let Some(chunk) = layout.chunk(rest) {
                        layout.add(chunk);
                        used.push(expected_sizes.len());
                        rest -= chunk;
                    } else {
                        expected_sizes.push(layout.take());
                    }
                }
                symbols_of.push(used);
            }
            expected_sizes.push(layout.take());
            let symbols = pack(symbol_bytes, &packets);
            prop_assert_eq!(symbols.iter().map(Vec::len).collect::<Vec<_>>(), expected_sizes);
            let is_lost = |index: usize| is_lost[index % is_lost.len()];
            let mut arriving: Vec<usize> =
                (0..symbols.len()).filter(|&index| !is_lost(index)).collect();
            arriving.sort_by_key(|&index| (index as u64 + 1).wrapping_mul(order | 1));
            let mut unpacker = Unpacker::new(symbols.len());
            let mut found = Vec::new();
            for index in arriving {
                let id = SymbolId(first).plus(index as u32);
                let result =
                    unpacker.on_symbol(id, &symbols[index], |packet| found.push(packet.to_vec()));
                prop_assert_eq!(result, Ok(()));
            }
            let complete = symbols_of.iter().map(|used| !used.iter().any(|&index| is_lost(index)));
            let kept = packets.iter().zip(complete).filter(|(_, complete)| *complete);
            let mut kept: Vec<_> = kept.map(|(packet, _)| packet.clone()).collect();
            found.sort();
            kept.sort();
            prop_assert_eq!(found, kept);
        }
    }
}
