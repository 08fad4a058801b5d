//! Destroys sockets in TIME-WAIT, as `ss -K` does (sock_diag(7)).
//!
//! A router that has one in its own name does not forward the packets of a connection with the same addresses and ports.

use std::io;

use crate::netlink::{RequestSocket, attributes, word};

/// From linux/sock_diag.h, linux/inet_diag.h and net/tcp_states.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const INET_DIAG_MARK: u16 = 15;
const TCP_TIME_WAIT: u32 = 6;
const IPPROTO_TCP: u8 = 6;
/// AF_INET and AF_INET6.
const FAMILIES: [u8; 2] = [2, 10];
/// `struct inet_diag_req_v2`, in which addresses and ports follow the states.
const REQUEST_BYTES: usize = 56;
const REQUEST_ENDS: usize = 8;
/// `struct inet_diag_msg`, with the same addresses and ports.
const MESSAGE_BYTES: usize = 72;
const MESSAGE_ENDS: std::ops::Range<usize> = 4..52;

/// Destroys the sockets in TIME-WAIT that have this mark, in the calling thread's network namespace. It requires `CAP_NET_ADMIN`.
///
/// # Errors
/// The kernel's error, for instance if it lacks `CONFIG_INET_DIAG_DESTROY`, or can destroy no sockets in TIME-WAIT.
pub fn destroy_all(mark: u32) -> io::Result<()> {
    let socket = RequestSocket::diag()?;
    for family in FAMILIES {
        let mut found = Vec::new();
        let dumped = socket.dump(SOCK_DIAG_BY_FAMILY, &request(family, &[]), |message| {
            found.extend(ends(message, mark).map(|ends| request(family, ends)));
        });
        // What was read of a table that changed meanwhile was there.
        dumped.or_else(ignore(io::ErrorKind::Interrupted))?;
        for request in found {
            let destroyed = socket.change(SOCK_DESTROY, 0, &request);
            destroyed.or_else(ignore(io::ErrorKind::NotFound))?;
        }
    }
    Ok(())
}

fn ignore(kind: io::ErrorKind) -> impl Fn(io::Error) -> io::Result<()> {
    move |error| if error.kind() == kind { Ok(()) } else { Err(error) }
}

/// `struct inet_diag_req_v2` for sockets in TIME-WAIT: all, or the one with these ends.
fn request(family: u8, ends: &[u8]) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    (bytes[0], bytes[1]) = (family, IPPROTO_TCP);
    bytes[4..8].copy_from_slice(&(1_u32 << TCP_TIME_WAIT).to_ne_bytes());
    bytes[REQUEST_ENDS..REQUEST_ENDS + ends.len()].copy_from_slice(ends);
    bytes
}

/// The ends of a socket with this mark.
fn ends(message: &[u8], mark: u32) -> Option<&[u8]> {
    let (_, value) =
        attributes(message.get(MESSAGE_BYTES..)?).find(|&(kind, _)| kind == INET_DIAG_MARK)?;
    (word(value, 0) == Some(mark)).then_some(message.get(MESSAGE_ENDS)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn socket(mark: u32) -> Vec<u8> {
        let mut message: Vec<u8> = (0..MESSAGE_BYTES as u8).collect();
        message.extend([8_u16, INET_DIAG_MARK].map(u16::to_ne_bytes).concat());
        message.extend(mark.to_ne_bytes());
        message
    }

    /// Given sockets with marks, expect a request for the one with that of a gateway, with its addresses and ports.
    #[test]
    fn sockets_with_the_mark_are_chosen() {
        let (own, other) = (socket(0x621a), socket(7));
        assert!(ends(&other, 0x621a).is_none());
        let request = request(2, ends(&own, 0x621a).expect("it has the mark"));
        assert_eq!(request[..4], [2, 6, 0, 0]);
        assert_eq!(request[8..], own[4..52]);
    }

    proptest! {
        #[test]
        fn arbitrary_messages_do_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..100)
        ) {
            let _ = ends(&bytes, 1);
        }
    }
}
