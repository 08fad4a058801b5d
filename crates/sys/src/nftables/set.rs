//! Sets and verdict maps, and their elements.

use bentpipe_core::time::Duration;

use super::verdict::{DATA_VALUE, LIST_ELEMENT, Verdict};
use super::{Batch, DEL_ELEMENTS, NEW_ELEMENTS, NEW_SET, text, texts};
use crate::netlink::{NLM_F_CREATE, attribute, nested};

/// From linux/netfilter/nf_tables.h.
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_BYTES: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DATA_BYTES: u16 = 7;
const SET_DESCRIPTION: u16 = 9;
const SET_ID: u16 = 10;
const SET_TIMEOUT: u16 = 11;
const SET_USER_DATA: u16 = 13;
const DESCRIPTION_SIZE: u16 = 1;
const ANONYMOUS: u32 = 1;
const CONSTANT: u32 = 2;
const INTERVAL: u32 = 4;
const MAP: u32 = 8;
const TIMEOUT: u32 = 0x10;
const EVAL: u32 = 0x20;
const DATA_VERDICT: u32 = 0xffff_ff00;
const ELEMENTS_TABLE: u16 = 1;
const ELEMENTS_SET: u16 = 2;
const ELEMENTS: u16 = 3;
const ELEMENTS_SET_ID: u16 = 4;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
const ELEMENT_USER_DATA: u16 = 6;
const INTERVAL_END: u32 = 1;

/// The kernel numbers sets with such names.
pub(super) const ANONYMOUS_SET: &str = "__set%d";
pub(super) const ANONYMOUS_MAP: &str = "__map%d";

/// What libnftnl reads in the user data of a set: the byte order of its keys, an integer of four bytes.
const KEY_BYTE_ORDER: [u8; 2] = [0, 4];
const HOST_ORDER: u32 = 1;
const NETWORK_ORDER: u32 = 2;
/// And in those of an element: that its interval has no end.
const OPEN_INTERVAL: [u8; 6] = [1, 4, 1, 0, 0, 0];

/// An attribute has at most 65,535 bytes.
const ELEMENTS_BYTES_MAX: usize = 32 * 1024;

/// The type of a key: the kernel knows its length alone, nft(8) prints it accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    /// An integer of 32 bits, in host byte order.
    Integer,
    /// An address of IPv4.
    Ipv4,
    /// An address of IPv6.
    Ipv6,
    /// A protocol of the transport layer.
    Protocol,
    /// A port.
    Port,
    /// A mark, in host byte order.
    Mark,
    /// A priority in queues of this host, in host byte order.
    Priority,
    /// States of connection tracking, in host byte order.
    ConnectionState,
    /// The name of an interface, filled up with zeros.
    InterfaceName,
}

impl KeyType {
    /// The number of the type in nft(8) (`enum datatypes`).
    fn number(self) -> u32 {
        match self {
            Self::Integer => 4,
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Mark => 19,
            Self::Priority => 23,
            Self::ConnectionState => 26,
            Self::InterfaceName => 41,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Protocol => 1,
            Self::Port => 2,
            Self::Integer | Self::Ipv4 | Self::Mark | Self::Priority | Self::ConnectionState => 4,
            Self::Ipv6 | Self::InterfaceName => 16,
        }
    }

    fn byte_order(self) -> u32 {
        match self {
            Self::Ipv4 | Self::Ipv6 | Self::Port => NETWORK_ORDER,
            _ => HOST_ORDER,
        }
    }
}

/// A set or a map with a name, whose elements are removed when they expire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The types of its keys, of which nft(8) allows five. Each begins at a multiple of four bytes.
    pub keys: Vec<KeyType>,
    /// The type of the values of a map.
    pub value: Option<KeyType>,
    /// The time after which an element expires.
    pub timeout: Duration,
    /// The most elements, if rules add and remove some.
    pub dynamic_size: Option<u32>,
}

/// Values in a rule itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnonymousSet {
    key: KeyType,
    /// Ranges from first to last, in order, between which there are other values.
    ranges: Vec<[Vec<u8>; 2]>,
    is_interval: bool,
}

impl AnonymousSet {
    /// A set of values.
    #[must_use]
    pub fn of_values(key: KeyType, values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let ranges = values.into_iter().map(|value| [value.clone(), value]).collect();
        Self { key, ranges, is_interval: false }
    }

    /// A set of ranges of values in network byte order, from first to last. Those that touch or overlap become one.
    #[must_use]
    pub fn of_ranges(key: KeyType, ranges: impl IntoIterator<Item = [Vec<u8>; 2]>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().collect();
        ranges.sort();
        let mut merged: Vec<[Vec<u8>; 2]> = Vec::new();
        for [first, last] in ranges {
            match merged.last_mut() {
                Some([_, end]) if next(end).is_none_or(|next| first <= next) => {
                    *end = last.max(end.clone());
                }
                _ => merged.push([first, last]),
            }
        }
        Self { key, ranges: merged, is_interval: true }
    }

    /// The elements, and whether each ends an interval.
    fn elements(&self) -> Vec<Element<'_>> {
        let mut elements = Vec::new();
        for [first, last] in &self.ranges {
            let end = self.is_interval.then(|| next(last));
            let is_open = end == Some(None);
            elements.push(Element { key: first.clone(), is_open, ..Element::default() });
            if let Some(Some(key)) = end {
                elements.push(Element { key, is_end: true, ..Element::default() });
            }
        }
        elements
    }
}

/// The value after one in network byte order; `None` after the last.
fn next(value: &[u8]) -> Option<Vec<u8>> {
    let mut value = value.to_vec();
    for byte in value.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(value);
        }
    }
    None
}

/// Verdicts in a rule itself, by value. Packets with other values go on to the next rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictMap {
    /// The type of the values.
    pub key: KeyType,
    /// The values and their verdicts.
    pub verdicts: Vec<(Vec<u8>, Verdict)>,
}

#[derive(Default)]
struct Element<'verdict> {
    key: Vec<u8>,
    verdict: Option<&'verdict Verdict>,
    is_end: bool,
    is_open: bool,
}

impl Element<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        nested(&mut bytes, LIST_ELEMENT, |bytes| {
            if self.is_end {
                attribute(bytes, ELEMENT_FLAGS, &INTERVAL_END.to_be_bytes());
            }
            nested(bytes, ELEMENT_KEY, |bytes| attribute(bytes, DATA_VALUE, &self.key));
            if let Some(verdict) = self.verdict {
                nested(bytes, ELEMENT_DATA, |bytes| verdict.encode(bytes));
            }
            if self.is_open {
                attribute(bytes, ELEMENT_USER_DATA, &OPEN_INTERVAL);
            }
        });
        bytes
    }
}

/// The type of the values of a map.
#[derive(Clone, Copy)]
enum ValueType {
    Verdict,
    Data(KeyType),
}

/// What the kernel is told of a set.
struct Description<'name> {
    name: &'name str,
    flags: u32,
    keys: &'name [KeyType],
    value: Option<ValueType>,
    size: Option<u32>,
    timeout: Option<Duration>,
}

impl Batch {
    /// Adds a set.
    pub fn add_set(&mut self, name: &str, set: &Set) {
        let dynamic = if set.dynamic_size.is_some() { EVAL } else { 0 };
        let (flags, size, timeout) = (TIMEOUT | dynamic, set.dynamic_size, Some(set.timeout));
        let value = set.value.map(ValueType::Data);
        self.push_set(&Description { name, flags, keys: &set.keys, value, size, timeout });
    }

    /// Adds an element to a set. One that exists keeps the time at which it expires.
    pub fn add_element(&mut self, set: &str, key: &[u8]) {
        let element = Element { key: key.to_vec(), ..Element::default() };
        self.push_elements(NEW_ELEMENTS, set, None, &element.encode());
    }

    /// Deletes an element of a set. It is an error if there is none.
    pub fn delete_element(&mut self, set: &str, key: &[u8]) {
        let element = Element { key: key.to_vec(), ..Element::default() };
        self.push_elements(DEL_ELEMENTS, set, None, &element.encode());
    }

    /// Deletes all elements of a set.
    pub fn flush_set(&mut self, set: &str) {
        let attributes = texts(&[(ELEMENTS_TABLE, &self.table), (ELEMENTS_SET, set)]);
        self.push(DEL_ELEMENTS, 0, attributes, format!("set {set}"));
    }

    /// Adds a set of a rule, and returns its name and number.
    pub(super) fn add_anonymous_set(&mut self, set: &AnonymousSet) -> (&'static str, u32) {
        let interval = if set.is_interval { INTERVAL } else { 0 };
        self.add_anonymous((ANONYMOUS_SET, interval), set.key, None, &set.elements())
    }

    /// Adds a verdict map of a rule, and returns its name and number.
    pub(super) fn add_verdict_map(&mut self, map: &VerdictMap) -> (&'static str, u32) {
        let element = |(key, verdict): &'_ (Vec<u8>, Verdict)| (key.clone(), verdict.clone());
        let owned: Vec<_> = map.verdicts.iter().map(element).collect();
        let elements: Vec<_> = owned
            .iter()
            .map(|(key, verdict)| Element {
                key: key.clone(),
                verdict: Some(verdict),
                ..Element::default()
            })
            .collect();
        self.add_anonymous((ANONYMOUS_MAP, 0), map.key, Some(ValueType::Verdict), &elements)
    }

    fn add_anonymous(
        &mut self,
        (name, flags): (&'static str, u32),
        key: KeyType,
        value: Option<ValueType>,
        elements: &[Element<'_>],
    ) -> (&'static str, u32) {
        let (flags, size) = (ANONYMOUS | CONSTANT | flags, Some(elements.len() as u32));
        self.push_set(&Description { name, flags, keys: &[key], value, size, timeout: None });
        let id = self.sets;
        let mut list = Vec::new();
        for element in elements {
            let bytes = element.encode();
            if list.len() + bytes.len() > ELEMENTS_BYTES_MAX {
                self.push_elements(NEW_ELEMENTS, name, Some(id), &std::mem::take(&mut list));
            }
            list.extend(bytes);
        }
        self.push_elements(NEW_ELEMENTS, name, Some(id), &list);
        (name, id)
    }

    fn push_set(&mut self, set: &Description<'_>) {
        self.sets += 1;
        // Consecutive keys are numbered in six bits each, and padded to four bytes.
        let number = set.keys.iter().fold(0, |number, key| number << 6 | key.number());
        let bytes = match set.keys {
            [key] => key.bytes(),
            keys => keys.iter().map(|key| key.bytes().next_multiple_of(4)).sum(),
        };
        let map = if set.value.is_some() { MAP } else { 0 };
        let mut data = texts(&[(SET_TABLE, &self.table), (SET_NAME, set.name)]);
        for (kind, value) in
            [(SET_FLAGS, set.flags | map), (SET_KEY_TYPE, number), (SET_KEY_BYTES, bytes as u32)]
        {
            attribute(&mut data, kind, &value.to_be_bytes());
        }
        if let Some(value) = set.value {
            let (kind, bytes) = match value {
                ValueType::Verdict => (DATA_VERDICT, 0),
                ValueType::Data(value) => (value.number(), value.bytes() as u32),
            };
            attribute(&mut data, SET_DATA_TYPE, &kind.to_be_bytes());
            attribute(&mut data, SET_DATA_BYTES, &bytes.to_be_bytes());
        }
        attribute(&mut data, SET_ID, &self.sets.to_be_bytes());
        if let Some(size) = set.size {
            nested(&mut data, SET_DESCRIPTION, |data| {
                attribute(data, DESCRIPTION_SIZE, &size.to_be_bytes());
            });
        }
        if let Some(timeout) = set.timeout {
            let timeout_ms = timeout.as_nanos() / 1_000_000;
            attribute(&mut data, SET_TIMEOUT, &timeout_ms.to_be_bytes());
        }
        if let [key] = set.keys {
            let order = key.byte_order().to_ne_bytes();
            attribute(&mut data, SET_USER_DATA, &[&KEY_BYTE_ORDER[..], &order].concat());
        }
        self.push(NEW_SET, NLM_F_CREATE, data, format!("set {}", set.name));
    }

    fn push_elements(&mut self, kind: u16, set: &str, id: Option<u32>, elements: &[u8]) {
        let mut bytes = Vec::new();
        text(&mut bytes, ELEMENTS_TABLE, &self.table);
        text(&mut bytes, ELEMENTS_SET, set);
        if let Some(id) = id {
            attribute(&mut bytes, ELEMENTS_SET_ID, &id.to_be_bytes());
        }
        nested(&mut bytes, ELEMENTS, |bytes| bytes.extend(elements));
        let flags = if kind == NEW_ELEMENTS { NLM_F_CREATE } else { 0 };
        self.push(kind, flags, bytes, format!("elements of set {set}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(ranges: &[[u16; 2]]) -> Vec<[Vec<u8>; 2]> {
        ranges.iter().map(|range| range.map(|port| port.to_be_bytes().to_vec())).collect()
    }

    /// Given ranges that touch, overlap or contain others, expect one each; those at either end have no value beside them.
    #[test]
    fn ranges_that_touch_become_one() {
        let merged = |given: &[[u16; 2]]| AnonymousSet::of_ranges(KeyType::Port, ranges(given));
        let set = merged(&[[23, 30], [22, 22], [40, 90], [50, 60], [92, 92]]);
        assert_eq!(set.ranges, ranges(&[[22, 30], [40, 90], [92, 92]]));
        assert_eq!(merged(&[[1, u16::MAX], [7, 7]]).ranges, ranges(&[[1, u16::MAX]]));
        assert_eq!(merged(&[[0x00ff, 0x00ff], [0x0100, 0x0100]]).ranges, ranges(&[[255, 256]]));
        let ends: Vec<_> =
            set.elements().into_iter().map(|each| (each.key[1], each.is_end)).collect();
        assert_eq!(
            ends,
            [(22, false), (31, true), (40, false), (91, true), (92, false), (93, true)]
        );
        let open = merged(&[[9, u16::MAX]]);
        assert!(matches!(&open.elements()[..], [Element { is_open: true, .. }]));
    }

    /// Given as many ranges as need more than an attribute, expect several messages, and no element to be lost.
    #[test]
    fn many_elements_take_several_messages() {
        let addresses = (0..4_000_u32).map(|number| (number * 2).to_be_bytes().to_vec());
        let set = AnonymousSet::of_ranges(
            KeyType::Ipv4,
            addresses.map(|address| [address.clone(), address]),
        );
        let mut batch = Batch::new("test");
        batch.add_anonymous_set(&set);
        let lists: Vec<_> =
            batch.changes.iter().filter(|change| change.kind == NEW_ELEMENTS).collect();
        assert!(lists.len() > 1 && lists.iter().all(|list| list.attributes.len() < 1 << 16));
        let elements = lists.iter().flat_map(|list| {
            let (_, list) = crate::netlink::attributes(&list.attributes).last().expect("a list");
            crate::netlink::attributes(list)
        });
        assert_eq!(elements.count(), 8_000);
    }
}
