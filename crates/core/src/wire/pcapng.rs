//! Blocks of a pcapng capture file (draft-ietf-opsawg-pcapng), as Wireshark reads it.
//!
//! A file is a section header, an interface description for each interface, and packets. Each function
//! appends one complete block, so the file is valid after each. Numbers are little endian on every
//! machine; times are in nanoseconds.

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// The length of the section is unknown while it is written.
const LENGTH_UNKNOWN: u64 = u64::MAX;
/// The link type of packets that begin with an IPv4 or IPv6 header: LINKTYPE_RAW.
const RAW: u16 = 101;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const INTERFACE_NAME: u16 = 2;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_TIME_RESOLUTION: u16 = 9;
/// Time resolution of 10^-9 s.
const NANOSECONDS: u8 = 9;

/// The largest captured length that Wireshark reads (`WTAP_MAX_PACKET_SIZE_STANDARD`).
const CAPTURED_BYTES_MAX: usize = 262_144;

/// An interface: a point at which packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface<'a> {
    /// The name; truncated to 65,535 bytes.
    pub name: &'a str,
    /// The snap length: the most bytes captured of a packet; 0 for no limit.
    pub snap_length: u32,
}

/// A captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The number of the interface in the section, from 0.
    pub interface: u32,
    /// The timestamp: nanoseconds since 1970, or since the start of a run.
    pub at_ns: u64,
    /// The captured bytes, from the IP header on; truncated to 262,144 bytes.
    pub bytes: &'a [u8],
    /// The original length.
    pub original_bytes: u32,
    /// A comment; truncated to 65,535 bytes.
    pub comment: Option<&'a str>,
}

/// Appends a section header, the beginning of a file.
pub fn section(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0.
        out.extend_from_slice(&1u16.to_le_bytes());
        out.extend_from_slice(&0u16.to_le_bytes());
        out.extend_from_slice(&LENGTH_UNKNOWN.to_le_bytes());
        option(out, SECTION_APPLICATION, application.as_bytes());
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// Appends an interface description. Interfaces are numbered from 0 in this order.
pub fn interface(out: &mut Vec<u8>, interface: &Interface<'_>) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend_from_slice(&RAW.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&interface.snap_length.to_le_bytes());
        option(out, INTERFACE_NAME, interface.name.as_bytes());
        option(out, INTERFACE_TIME_RESOLUTION, &[NANOSECONDS]);
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// Appends an enhanced packet block.
pub fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    let bytes = &packet.bytes[..packet.bytes.len().min(CAPTURED_BYTES_MAX)];
    let captured = bytes.len() as u32;
    block(out, ENHANCED_PACKET, |out| {
        out.extend_from_slice(&packet.interface.to_le_bytes());
        out.extend_from_slice(&((packet.at_ns >> 32) as u32).to_le_bytes());
        out.extend_from_slice(&(packet.at_ns as u32).to_le_bytes());
        out.extend_from_slice(&captured.to_le_bytes());
        out.extend_from_slice(&packet.original_bytes.max(captured).to_le_bytes());
        padded(out, bytes);
        if let Some(comment) = packet.comment {
            option(out, COMMENT, comment.as_bytes());
            option(out, END_OF_OPTIONS, &[]);
        }
    });
}

/// Appends a block: type, total length, what `body` appends, and the total length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    // Packets and options are bounded, so the length fits.
    let length = ((out.len() - start + 4) as u32).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&length);
    out.extend_from_slice(&length);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = truncate(value);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    padded(out, value);
}

/// Truncates a text to the largest option length, between characters.
fn truncate(text: &[u8]) -> &[u8] {
    let mut length = text.len().min(u16::MAX.into());
    let is_inside = |offset: usize| text.get(offset).is_some_and(|byte| byte & 0xc0 == 0x80);
    while length > 0 && is_inside(length) {
        length -= 1;
    }
    &text[..length]
}

fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    let padding = bytes.len().next_multiple_of(4) - bytes.len();
    out.extend_from_slice(&[0; 3][..padding]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte for byte, from the figures of each block in the draft.
    #[test]
    fn the_blocks_of_a_small_file() {
        let mut out = Vec::new();
        section(&mut out, "bent");
        let section = [
            0x0a, 0x0d, 0x0d, 0x0a, 40, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255,
            255, 255, 255, 255, 255, 4, 0, 4, 0, b'b', b'e', b'n', b't', 0, 0, 0, 0, 40, 0, 0, 0,
        ];
        assert_eq!(out, section);
        out.clear();
        interface(&mut out, &Interface { name: "queue", snap_length: 80 });
        let interface = [
            1, 0, 0, 0, 44, 0, 0, 0, 101, 0, 0, 0, 80, 0, 0, 0, 2, 0, 5, 0, b'q', b'u', b'e', b'u',
            b'e', 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 44, 0, 0, 0,
        ];
        assert_eq!(out, interface);
        out.clear();
        let bytes = &[0x45, 1, 2, 3, 4];
        let at_ns = 0x1_0000_0002;
        let captured_packet =
            Packet { interface: 3, at_ns, bytes, original_bytes: 1500, comment: None };
        packet(&mut out, &captured_packet);
        let plain = [
            6, 0, 0, 0, 40, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0xdc, 5, 0, 0,
            0x45, 1, 2, 3, 4, 0, 0, 0, 40, 0, 0, 0,
        ];
        assert_eq!(out, plain);
        out.clear();
        packet(&mut out, &Packet { comment: Some("lost"), ..captured_packet });
        let options = [1, 0, 4, 0, b'l', b'o', b's', b't', 0, 0, 0, 0, 52, 0, 0, 0];
        assert_eq!((out[4], &out[36..]), (52, &options[..]));
    }

    /// Given a comment of 65,536 bytes whose last character has two bytes, expect it without that one.
    #[test]
    fn a_comment_is_truncated_between_characters() {
        let comment = "x".repeat(65_534) + "é";
        let mut out = Vec::new();
        let bytes = &[][..];
        let comment = Some(comment.as_str());
        packet(&mut out, &Packet { interface: 0, at_ns: 0, bytes, original_bytes: 0, comment });
        assert_eq!(out[28..32], [1, 0, 0xfe, 0xff]);
        // 28 of the fixed part, 4 + 65,536 of the comment, 4 of the end of options, 4 of the length.
        assert_eq!(out.len(), 28 + 4 + 65_536 + 4 + 4);
    }

    #[test]
    fn lengths_are_consistent_and_bounded() {
        let mut out = Vec::new();
        let bytes = &vec![0; CAPTURED_BYTES_MAX + 1][..];
        let captured_packet =
            Packet { interface: 0, at_ns: 0, bytes, original_bytes: 9, comment: None };
        packet(&mut out, &captured_packet);
        let length = (CAPTURED_BYTES_MAX as u32).to_le_bytes();
        assert_eq!((&out[20..24], &out[24..28]), (&length[..], &length[..]));
        assert_eq!(out.len(), 32 + CAPTURED_BYTES_MAX);
    }
}
