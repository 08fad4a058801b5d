//! What programs in a lab send to its HTTP server.

use bentpipe_live::http::{HEADER_BYTES_MAX, answer};

use crate::ITERATIONS;

/// A request is answered as soon as it is whole, and the same whatever follows it; what can be none is answered, too, and
/// ends the connection.
#[test]
fn any_request() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let Some((length, response)) = answer(bytes, 0) else {
            assert!(bytes.len() <= HEADER_BYTES_MAX);
            return;
        };
        assert!(length <= bytes.len());
        let head = String::from_utf8(response.head.clone()).expect("text");
        assert!(head.starts_with("HTTP/1.1 ") && head.contains("\r\n\r\n"), "{head}");
        assert_eq!(head.contains("\r\nConnection: close\r\n"), response.closes, "{head}");
        if !response.closes {
            assert_eq!(answer(&bytes[..length], 0), Some((length, response)));
            assert_eq!(answer(&bytes[..length - 1], 0), None);
        }
    });
}
