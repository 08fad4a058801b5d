//! Values of attributes in the replies of nfnetlink.

use crate::netlink::attributes;

/// The first attribute of a kind.
pub(super) fn find(values: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(values).find(|(each, _)| *each == kind).map(|(_, value)| value)
}

/// An attribute that is a number, in network byte order.
pub(super) fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.get(..4)?.try_into().ok()?))
}

/// An attribute that is a text, without the zero at its end.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}
