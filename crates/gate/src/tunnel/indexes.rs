//! Session indexes of this end.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::format::Index;
use super::peer_settings::PeerId;
use super::random::{self, Random};

/// Which peer's session or handshake an index is of. The indexes in use are those of live sessions and handshakes: some
/// ten for each peer at most.
#[derive(Default)]
pub(super) struct Indexes(BTreeMap<Index, PeerId>);

impl Indexes {
    /// A free index, which a stranger cannot guess.
    pub(super) fn claim(&mut self, peer: PeerId, random: &mut dyn Random) -> Index {
        loop {
            let index = Index::from_be_bytes(random::array(random));
            if let Entry::Vacant(free) = self.0.entry(index) {
                free.insert(peer);
                return index;
            }
        }
    }

    pub(super) fn release(&mut self, index: Index) {
        self.0.remove(&index);
    }

    pub(super) fn peer(&self, index: Index) -> Option<PeerId> {
        self.0.get(&index).copied()
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}
