//! The memory for packet bytes, while the graph holds their headers.

use bentpipe_core::packet::PacketId;

/// Slots of equal size, by index. Freed slots are reused, so in steady state nothing is allocated.
/// The store grows by chunks that never move.
#[derive(Debug)]
pub struct Store {
    chunks: Vec<Box<[u8]>>,
    packet_bytes: usize,
    slot_bytes: usize,
    free: Vec<u32>,
    slots_max: u32,
}

/// A slot of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

impl Slot {
    /// The slot of the packet with this identity.
    pub(crate) fn of(packet: PacketId) -> Self {
        Self((packet.0 & ((1 << Store::INDEX_BITS) - 1)) as u32)
    }

    /// The identity of packet number `serial`, which is in this slot.
    pub(crate) fn packet_id(self, serial: u64) -> PacketId {
        PacketId(serial << Store::INDEX_BITS | u64::from(self.0))
    }
}

const CHUNK_SLOTS: u32 = 256;

impl Store {
    /// Creates a store for packets of up to `packet_bytes` that uses up to `bytes_max` of memory.
    ///
    /// # Panics
    /// If `packet_bytes` is zero.
    #[must_use]
    pub fn new(packet_bytes: usize, bytes_max: usize) -> Self {
        assert!(packet_bytes > 0, "packet_bytes is zero");
        // One byte more, to detect longer packets. A multiple of the cache line size: neighbours do
        // not share a line.
        let slot_bytes = (packet_bytes + 1).next_multiple_of(64);
        let slots_max = (bytes_max / slot_bytes).min(1 << Self::INDEX_BITS);
        let slots_max = slots_max as u32;
        Self { chunks: Vec::new(), packet_bytes, slot_bytes, free: Vec::new(), slots_max }
    }

    /// The longest packet, in bytes.
    #[must_use]
    pub fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    /// The bits of a slot index.
    pub const INDEX_BITS: u32 = 24;

    /// Allocates a slot. `None` if the store is full.
    pub fn alloc(&mut self) -> Option<Slot> {
        if self.free.is_empty() {
            self.grow()?;
        }
        self.free.pop().map(Slot)
    }

    /// Frees a slot.
    pub fn free(&mut self, slot: Slot) {
        self.free.push(slot.0);
    }

    /// The buffer of a slot, which is longer than the longest packet.
    pub fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        let (chunk, start) = self.position(slot);
        &mut self.chunks[chunk][start..start + self.slot_bytes]
    }

    /// The first `count` bytes of a slot.
    #[must_use]
    pub fn bytes(&self, slot: Slot, count: usize) -> &[u8] {
        let (chunk, start) = self.position(slot);
        &self.chunks[chunk][start..start + count.min(self.slot_bytes)]
    }

    /// The number of slots in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.chunks.len() * CHUNK_SLOTS as usize - self.free.len()
    }

    fn position(&self, slot: Slot) -> (usize, usize) {
        let (chunk, index) = (slot.0 / CHUNK_SLOTS, slot.0 % CHUNK_SLOTS);
        (chunk as usize, index as usize * self.slot_bytes)
    }

    #[cold]
    fn grow(&mut self) -> Option<()> {
        let first = self.chunks.len() as u32 * CHUNK_SLOTS;
        if first + CHUNK_SLOTS > self.slots_max {
            return None;
        }
        self.chunks.push(vec![0; self.slot_bytes * CHUNK_SLOTS as usize].into());
        self.free.extend((first..first + CHUNK_SLOTS).rev());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given packet sizes of whole cache lines and others, expect a buffer of at least one byte
    /// more.
    #[test]
    fn a_buffer_is_longer_than_the_longest_packet() {
        for packet_bytes in [1, 63, 64, 65, 1_500, 9_000, 65_535] {
            let mut store = Store::new(packet_bytes, 1 << 30);
            let slot = store.alloc().expect("a free slot");
            assert!(store.bytes_mut(slot).len() > packet_bytes);
            assert_eq!(store.packet_bytes(), packet_bytes);
        }
    }

    /// Given memory for 512 packets, expect 512 slots that keep what is written to them, and no
    /// more.
    #[test]
    fn slots_do_not_overlap_and_are_bounded() {
        let mut store = Store::new(100, 512 * 128);
        let slots: Vec<_> = std::iter::from_fn(|| store.alloc()).collect();
        assert_eq!((slots.len(), store.used()), (512, 512));
        for (slot, mark) in slots.iter().zip(0_u16..) {
            store.bytes_mut(*slot)[..2].copy_from_slice(&mark.to_le_bytes());
        }
        for (slot, mark) in slots.iter().zip(0_u16..) {
            assert_eq!(store.bytes(*slot, 2), mark.to_le_bytes());
        }
        store.free(slots[7]);
        assert_eq!((store.alloc(), store.alloc()), (Some(slots[7]), None));
    }

    #[test]
    fn a_read_is_limited_to_the_slot() {
        let mut store = Store::new(64, 1 << 20);
        let slot = store.alloc().expect("a free slot");
        assert_eq!(store.bytes(slot, 1_000).len(), 128);
    }
}
