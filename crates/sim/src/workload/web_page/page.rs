//! The loading of a page: which object is requested on which connection, and when. It has no TCP
//! and no time; the client of the parent module drives it.
//!
//! The document is requested first, on the first connection. When it has arrived, all objects are
//! known. HTTP/1.1 has one outstanding request a connection, without pipelining, and opens further
//! connections, up to a limit, while there are more objects than connections without a request. An
//! object is assigned when a connection can send its request, not when a connection is opened for
//! it, as Chromium's socket pools do. HTTP/2 requests all objects at once on one connection, and
//! the server sends the responses in the order of the requests.

use std::collections::VecDeque;

use crate::plan::Http;

/// A part of a page that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// The HTML document.
    Document,
    /// An object, by number.
    Object(u64),
}

/// A connection of a page.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// Whether the handshakes are complete.
    is_ready: bool,
    /// Requests without a complete response, the oldest first.
    outstanding: VecDeque<Item>,
}

/// The state of a page while it is loaded.
#[derive(Clone, Debug)]
pub(super) struct PageLoad {
    http: Http,
    /// The most connections that may be open.
    connections_max: usize,
    /// The number of objects beside the document.
    objects: u64,
    document_requested: bool,
    document_arrived: bool,
    /// The next object to be requested.
    next_object: u64,
    objects_arrived: u64,
    slots: Vec<Slot>,
}

/// The number of connections that a page with this many objects opens: one for the document, and as
/// many as objects can use. Both ends compute it.
pub(super) fn connections_of(http: Http, connections_max: u32, objects: u64) -> u32 {
    match http {
        Http::Two => 1,
        Http::One => u32::try_from(objects).unwrap_or(u32::MAX).clamp(1, connections_max),
    }
}

impl PageLoad {
    pub(super) fn new(http: Http, connections_max: u32, objects: u64) -> Self {
        let connections_max = match http {
            Http::One => connections_max as usize,
            Http::Two => 1,
        };
        Self {
            http,
            connections_max,
            objects,
            document_requested: false,
            document_arrived: false,
            next_object: 0,
            objects_arrived: 0,
            slots: Vec::new(),
        }
    }

    /// The number of connections opened so far.
    pub(super) fn connections(&self) -> usize {
        self.slots.len()
    }

    /// The number of connections to open now.
    pub(super) fn connections_to_open(&self) -> usize {
        let unrequested = match (self.document_requested, self.document_arrived) {
            (false, _) => 1,
            (true, false) => 0,
            (true, true) => self.objects - self.next_object,
        };
        let free = self.slots.iter().filter(|slot| slot.outstanding.is_empty()).count();
        let wanted = unrequested.saturating_sub(free as u64);
        let room = self.connections_max - self.slots.len();
        usize::try_from(wanted).map_or(room, |wanted| wanted.min(room))
    }

    /// A connection was opened. Returns its number in the page.
    pub(super) fn on_opened(&mut self) -> usize {
        self.slots.push(Slot::default());
        self.slots.len() - 1
    }

    /// Whether the handshakes of a connection are complete.
    pub(super) fn is_ready(&self, slot: usize) -> bool {
        self.slots[slot].is_ready
    }

    /// The handshakes of a connection are complete.
    pub(super) fn on_ready(&mut self, slot: usize) {
        self.slots[slot].is_ready = true;
    }

    /// The next item to be requested on a connection, if it can take a request now.
    pub(super) fn next_request(&mut self, slot: usize) -> Option<Item> {
        let Slot { is_ready, outstanding } = &mut self.slots[slot];
        if !*is_ready || (self.http == Http::One && !outstanding.is_empty()) {
            return None;
        }
        let item = if !self.document_requested {
            self.document_requested = true;
            Item::Document
        } else if self.document_arrived && self.next_object < self.objects {
            self.next_object += 1;
            Item::Object(self.next_object - 1)
        } else {
            return None;
        };
        outstanding.push_back(item);
        Some(item)
    }

    /// The oldest outstanding response of a connection is complete. Returns its item.
    pub(super) fn on_response(&mut self, slot: usize) -> Option<Item> {
        let item = self.slots[slot].outstanding.pop_front()?;
        match item {
            Item::Document => self.document_arrived = true,
            Item::Object(_) => self.objects_arrived += 1,
        }
        Some(item)
    }

    /// Whether the document and all objects have arrived.
    pub(super) fn is_finished(&self) -> bool {
        self.document_arrived && self.objects_arrived == self.objects
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Loads a page in rounds: a response takes one, the handshakes of a connection take
    /// `handshakes`. Returns the rounds from the document's request to the last response, and the
    /// connections.
    fn rounds(http: Http, connections_max: u32, objects: u64, handshakes: u32) -> (u32, usize) {
        let mut page = PageLoad::new(http, connections_max, objects);
        let mut opened = vec![(page.on_opened(), 0)];
        let mut outstanding = Vec::new();
        for round in 0.. {
            for slot in std::mem::take(&mut outstanding) {
                page.on_response(slot);
            }
            if page.is_finished() {
                return (round, page.connections());
            }
            opened.retain(|&(slot, ready)| {
                if ready == round {
                    page.on_ready(slot);
                }
                ready != round
            });
            for slot in 0..page.connections() {
                while page.next_request(slot).is_some() {
                    outstanding.push(slot);
                }
            }
            for _ in 0..page.connections_to_open() {
                opened.push((page.on_opened(), round + handshakes));
            }
        }
        unreachable!("the rounds have no end");
    }

    /// Given handshakes of two round trips (TCP and TLS 1.3) and six connections, expect k rounds
    /// of objects: k on the first connection and k - 2 on each of five others.
    #[test]
    fn http_1_1_takes_rounds() {
        for (objects, expected) in
            [(0, 0), (1, 1), (2, 2), (3, 3), (8, 3), (9, 4), (14, 4), (70, 14)]
        {
            let (found, connections) = rounds(Http::One, 6, objects, 2);
            assert_eq!(found, 1 + expected, "{objects} objects");
            assert_eq!(connections as u64, objects.clamp(1, 6));
        }
        assert_eq!(rounds(Http::One, 1, 70, 2), (71, 1));
    }

    /// Given HTTP/2, expect the document and then one round for any number of objects.
    #[test]
    fn http_2_takes_one_round() {
        for objects in [1, 2, 70, 1_000] {
            assert_eq!(rounds(Http::Two, 6, objects, 2), (2, 1));
        }
        assert_eq!(rounds(Http::Two, 6, 0, 2), (1, 1));
    }

    proptest! {
        /// Given events in any order, expect that each item is requested once and arrives once, and
        /// that no more connections are open than allowed.
        #[test]
        fn every_object_is_requested_once_and_arrives_once(
            is_two in any::<bool>(),
            connections_max in 1..9u32,
            objects in 0..60u64,
            choices in prop::collection::vec(any::<prop::sample::Index>(), 400),
        ) {
            let http = if is_two { Http::Two } else { Http::One };
            let mut page = PageLoad::new(http, connections_max, objects);
            let (mut requested, mut arrived) = (BTreeSet::new(), BTreeSet::new());
            let mut handshaking = Vec::new();
            let mut busy = Vec::new();
            let mut choices = choices.into_iter().cycle();
            while !page.is_finished() {
                for _ in 0..page.connections_to_open() {
                    handshaking.push(page.on_opened());
                }
                prop_assert!(page.connections() <= connections_max as usize);
                let events = handshaking.len() + busy.len();
                prop_assert!(events > 0, "no event is left: {page:?}");
                let event = choices.next().expect("endless").index(events);
                let slot = if event < handshaking.len() {
                    let slot = handshaking.remove(event);
                    page.on_ready(slot);
                    slot
                } else {
                    let slot = busy.remove(event - handshaking.len());
                    let item = page.on_response(slot).expect("outstanding");
                    prop_assert!(requested.contains(&item) && arrived.insert(item));
                    slot
                };
                while let Some(item) = page.next_request(slot) {
                    prop_assert!(requested.insert(item), "{item:?} is requested twice");
                    prop_assert!(item == Item::Document || arrived.contains(&Item::Document));
                    busy.push(slot);
                }
            }
            prop_assert_eq!(arrived.len() as u64, objects + 1);
            prop_assert_eq!(&requested, &arrived);
            let expected = connections_of(http, connections_max, objects);
            prop_assert_eq!(page.connections(), expected as usize);
        }
    }
}
