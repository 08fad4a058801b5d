//! What pages consist of. Both ends draw the same content from copies of the same random streams.
//!
//! The server cannot read in a request which object it is for, so the sizes of the objects belong
//! to the connections of a page: each has a random stream of its own.

use bentpipe_core::rng::Rng;

use crate::plan::Draw;
use crate::workload::Draws;

/// The random content of successive pages.
#[derive(Clone, Debug)]
pub struct PageDraws {
    /// The number of objects beside the document.
    pub objects: Draws,
    /// Bytes of the document, raised to at least 1.
    pub document_bytes: Draws,
    /// Bytes of an object, raised to at least 1.
    pub object_bytes: Draw,
    /// The seeds of the objects of each page.
    pub seeds: Rng,
}

impl PageDraws {
    pub(super) fn next_page(&mut self) -> PageContent {
        PageContent {
            objects: self.objects.draw(),
            document_bytes: self.document_bytes.draw().max(1),
            object_bytes: self.object_bytes,
            seed: self.seeds.next_u64(),
        }
    }
}

/// The content of one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageContent {
    pub(super) objects: u64,
    document_bytes: u64,
    object_bytes: Draw,
    seed: u64,
}

impl PageContent {
    /// The sizes of the responses on a connection of the page, by its number in the page.
    pub(super) fn responses(&self, slot: usize) -> Responses {
        let rng = Rng::stream(self.seed, &format!("connection.{slot}"));
        Responses {
            document_bytes: (slot == 0).then_some(self.document_bytes),
            objects: Draws::new(self.object_bytes, rng),
        }
    }
}

/// The sizes of the responses on one connection, in the order of their requests.
#[derive(Clone, Debug)]
pub(super) struct Responses {
    /// The document, until it is requested; it is the first response of a page.
    document_bytes: Option<u64>,
    objects: Draws,
}

impl Responses {
    pub(super) fn next_bytes(&mut self) -> u64 {
        self.document_bytes.take().unwrap_or_else(|| self.objects.draw().max(1))
    }
}
