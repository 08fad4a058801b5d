//! Where the bytes of packets lie while the graph holds their headers.

/// Places of equal size, by number. Freed places are used again, so in steady state nothing is
/// allocated; room grows by pieces that never move.
#[derive(Debug)]
pub struct Store {
    pieces: Vec<Box<[u8]>>,
    packet_bytes: usize,
    place_bytes: usize,
    free: Vec<u32>,
    places_max: u32,
}

/// A place in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub u32);

const PIECE_PLACES: u32 = 256;

impl Store {
    /// A store for packets of up to `packet_bytes` that takes up to `bytes_max` of memory.
    ///
    /// # Panics
    /// If packets have no size.
    #[must_use]
    pub fn new(packet_bytes: usize, bytes_max: usize) -> Self {
        assert!(packet_bytes > 0, "packets have a size");
        // A byte more, so that a longer packet is seen to be one. Whole lines of the cache: copies of
        // neighbours do not share one.
        let place_bytes = (packet_bytes + 1).next_multiple_of(64);
        let places_max = (bytes_max / place_bytes).min(1 << Self::NUMBER_BITS);
        let places_max = places_max as u32;
        Self { pieces: Vec::new(), packet_bytes, place_bytes, free: Vec::new(), places_max }
    }

    /// How many bytes a packet may have.
    #[must_use]
    pub fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    /// Places are numbered in so many bits.
    pub const NUMBER_BITS: u32 = 24;

    /// A free place, if the store may hold one more packet.
    pub fn take(&mut self) -> Option<Place> {
        if self.free.is_empty() {
            self.grow()?;
        }
        self.free.pop().map(Place)
    }

    /// Gives a place back.
    pub fn free(&mut self, place: Place) {
        self.free.push(place.0);
    }

    /// All bytes of a place: more than a packet may have.
    pub fn bytes_mut(&mut self, place: Place) -> &mut [u8] {
        let (piece, start) = self.position(place);
        &mut self.pieces[piece][start..start + self.place_bytes]
    }

    /// The first bytes of a place.
    #[must_use]
    pub fn bytes(&self, place: Place, count: usize) -> &[u8] {
        let (piece, start) = self.position(place);
        &self.pieces[piece][start..start + count.min(self.place_bytes)]
    }

    /// How many places are in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.pieces.len() * PIECE_PLACES as usize - self.free.len()
    }

    fn position(&self, place: Place) -> (usize, usize) {
        let (piece, number) = (place.0 / PIECE_PLACES, place.0 % PIECE_PLACES);
        (piece as usize, number as usize * self.place_bytes)
    }

    #[cold]
    fn grow(&mut self) -> Option<()> {
        let first = self.pieces.len() as u32 * PIECE_PLACES;
        if first + PIECE_PLACES > self.places_max {
            return None;
        }
        self.pieces.push(vec![0; self.place_bytes * PIECE_PLACES as usize].into());
        self.free.extend((first..first + PIECE_PLACES).rev());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given packets that fill whole lines of 64 bytes, or do not, expect room for one byte more.
    #[test]
    fn a_place_shows_that_a_packet_is_too_long() {
        for packet_bytes in [1, 63, 64, 65, 1_500, 9_000, 65_535] {
            let mut store = Store::new(packet_bytes, 1 << 30);
            let place = store.take().expect("there is room");
            assert!(store.bytes_mut(place).len() > packet_bytes);
            assert_eq!(store.packet_bytes(), packet_bytes);
        }
    }

    /// Given room for 512 packets, expect 512 places that keep what is written to them, and no more.
    #[test]
    fn places_are_apart_and_bounded() {
        let mut store = Store::new(100, 512 * 128);
        let places: Vec<_> = std::iter::from_fn(|| store.take()).collect();
        assert_eq!((places.len(), store.used()), (512, 512));
        for (place, mark) in places.iter().zip(0_u16..) {
            store.bytes_mut(*place)[..2].copy_from_slice(&mark.to_le_bytes());
        }
        for (place, mark) in places.iter().zip(0_u16..) {
            assert_eq!(store.bytes(*place, 2), mark.to_le_bytes());
        }
        store.free(places[7]);
        assert_eq!((store.take(), store.take()), (Some(places[7]), None));
    }

    #[test]
    fn a_packet_longer_than_a_place_is_cut() {
        let mut store = Store::new(64, 1 << 20);
        let place = store.take().expect("there is room");
        assert_eq!(store.bytes(place, 1_000).len(), 128);
    }
}
