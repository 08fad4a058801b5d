//! Captures: any packets, names and comments give a file that a strict reader of pcapng accepts.

use bentpipe_core::wire::pcapng;

use crate::ITERATIONS;
use crate::decoder::Decoder;

/// Longer than the largest option and the largest captured length.
const REPEATS: usize = 2_000;

#[test]
fn any_capture() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let mut decoder = Decoder::new(bytes);
        let mut out = Vec::new();
        let name = text(&mut decoder);
        pcapng::section(&mut out, &name);
        let interface = pcapng::Interface { name: &name, snap_length: decoder.u32() };
        pcapng::interface(&mut out, &interface);
        let mut expected = Vec::new();
        while !decoder.is_empty() {
            let (interface, at_ns) = (decoder.u32(), decoder.u64());
            let comment = decoder.flag().then(|| text(&mut decoder));
            let repeats = if decoder.u8() == 0 { REPEATS } else { 1 };
            let length = decoder.u8();
            let content = decoder.bytes(length.into()).repeat(repeats);
            let packet = pcapng::Packet {
                interface,
                at_ns,
                bytes: &content,
                original_bytes: decoder.u32(),
                comment: comment.as_deref(),
            };
            pcapng::packet(&mut out, &packet);
            expected.push((interface, at_ns, content, comment));
        }
        check(&out, &expected);
    });
}

/// A text of any characters, at times longer than an option holds.
fn text(decoder: &mut Decoder<'_>) -> String {
    let repeats = if decoder.u8() == 0 { REPEATS } else { 1 };
    let length = decoder.u8();
    String::from_utf8_lossy(decoder.bytes(length.into())).repeat(repeats)
}

type Packet = (u32, u64, Vec<u8>, Option<String>);

fn number(bytes: &[u8]) -> u32 {
    bytes[..4].iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

/// Reads the file block by block (draft-ietf-opsawg-pcapng, section 3.1).
fn check(mut rest: &[u8], expected: &[Packet]) {
    let (mut blocks, mut packets) = (Vec::new(), expected.iter());
    while !rest.is_empty() {
        let (kind, length) = (number(rest), number(&rest[4..]) as usize);
        assert_eq!(length % 4, 0);
        let (block, following) = rest.split_at(length);
        assert_eq!(number(&block[length - 4..]) as usize, length, "the length is repeated");
        let body = &block[8..length - 4];
        match kind {
            0x0a0d_0d0a => check_options(&body[16..]),
            1 => check_options(&body[8..]),
            6 => check_packet(body, packets.next().expect("a packet")),
            _ => panic!("unknown block {kind}"),
        }
        blocks.push(kind);
        rest = following;
    }
    assert!(packets.next().is_none());
    assert_eq!(blocks[..2], [0x0a0d_0d0a, 1]);
}

/// Section 4.3 of the draft.
fn check_packet(body: &[u8], (interface, at_ns, content, comment): &Packet) {
    assert_eq!(number(body), *interface);
    let at = u64::from(number(&body[4..])) << 32 | u64::from(number(&body[8..]));
    assert_eq!(at, *at_ns);
    let (captured, original) = (number(&body[12..]) as usize, number(&body[16..]) as usize);
    assert!(captured <= original && captured <= 262_144);
    assert_eq!(body[20..20 + captured], content[..captured]);
    let options = &body[20 + captured.next_multiple_of(4)..];
    assert_eq!(options.is_empty(), comment.is_none());
    let Some(comment) = comment else { return };
    check_options(options);
    let length = usize::from(u16::from_le_bytes([options[2], options[3]]));
    assert!(length == comment.len() || length > 65_535 - 4);
    assert!(comment.as_bytes().starts_with(&options[4..4 + length]));
    assert!(std::str::from_utf8(&options[4..4 + length]).is_ok());
}

/// Options up to the end-of-options option, which is the last (section 3.5 of the draft).
fn check_options(mut options: &[u8]) {
    loop {
        let code = u16::from_le_bytes([options[0], options[1]]);
        let length = usize::from(u16::from_le_bytes([options[2], options[3]]));
        options = &options[4 + length.next_multiple_of(4)..];
        if code == 0 {
            assert!(length == 0 && options.is_empty());
            return;
        }
    }
}
