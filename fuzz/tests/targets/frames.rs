//! Frames of packets: no payload makes the reader panic, and what it reads is written and read back.

use bentpipe_core::aggregation::{FrameReader, FrameWriter, packed_bytes};

use crate::ITERATIONS;

#[test]
fn any_payload() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|payload: &[u8]| {
        let read: Vec<_> = FrameReader::new(payload).collect();
        let is_complete = read.iter().all(Result::is_ok);
        assert!(read.iter().rev().skip(1).all(Result::is_ok), "nothing follows an error");
        let packets: Vec<_> = read.into_iter().filter_map(Result::ok).collect();
        let mut writer = FrameWriter::default();
        let mut bytes = 0;
        for (number, packet) in packets.iter().enumerate() {
            assert!(writer.push(packet), "a length of three bytes fits");
            bytes += packed_bytes(packet.len() as u32, number == 0) as usize;
        }
        let written = writer.take();
        assert_eq!(written.len(), bytes);
        // A length in more bytes than it needs is read, but not written.
        assert!(written.len() <= payload.len());
        if is_complete && written.len() == payload.len() {
            assert_eq!(written, payload);
        }
        let again: Result<Vec<_>, _> = FrameReader::new(&written).collect();
        assert_eq!(again, Ok(packets));
    });
}
