//! SYNs that arrive in fragments.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::thread;

use bentpipe_gate::transparent::{SYN_BYTES_MAX, Syn, raw};
use bentpipe_sys::packet_log::PacketLog;
use bentpipe_sys::tcp_sockets::Version;
use rustix::net::{SendFlags, sendto};

use crate::router::{Host, SERVERS, until};
use crate::setup::{Setup, is_possible};

const GROUP: u16 = 7;
/// That of the fragments.
const MARK: u32 = 77;
/// The first fragment has the fields of TCP's header, and the second one some of its options. A multiple of 8.
const FIRST_BYTES: usize = 24;
/// RFC 791 and RFC 8200.
const V4_HEADER_BYTES: usize = 20;
const V4_MORE_FRAGMENTS: u16 = 1 << 13;
const V6_HEADER_BYTES: usize = 40;
const V6_FRAGMENT: u8 = 44;
const IDENTIFICATION: u8 = 9;

/// A packet of IPv4 without options in two fragments; the kernel sets their checksums (raw(7)).
fn v4_fragments(packet: &[u8]) -> [Vec<u8>; 2] {
    let (header, payload) = packet.split_at(V4_HEADER_BYTES);
    let (first, second) = payload.split_at(FIRST_BYTES);
    [(first, V4_MORE_FRAGMENTS), (second, FIRST_BYTES as u16 / 8)].map(|(part, place)| {
        let mut header = header.to_vec();
        header[2..4].copy_from_slice(&((V4_HEADER_BYTES + part.len()) as u16).to_be_bytes());
        header[4..6].copy_from_slice(&[0, IDENTIFICATION]);
        header[6..8].copy_from_slice(&place.to_be_bytes());
        [&header, part].concat()
    })
}

/// A packet of IPv6 without extension headers, likewise.
fn v6_fragments(packet: &[u8]) -> [Vec<u8>; 2] {
    let (header, payload) = packet.split_at(V6_HEADER_BYTES);
    let (first, second) = payload.split_at(FIRST_BYTES);
    [(first, 1), (second, FIRST_BYTES as u16)].map(|(part, place)| {
        let mut header = header.to_vec();
        let place = place.to_be_bytes();
        let fragment = [header[6], 0, place[0], place[1], 0, 0, 0, IDENTIFICATION];
        header[4..6].copy_from_slice(&((fragment.len() + part.len()) as u16).to_be_bytes());
        header[6] = V6_FRAGMENT;
        [&header, &fragment[..], part].concat()
    })
}

/// Takes a SYN that the client drops, and sends it in fragments in its place.
fn send_in_fragments(log: &PacketLog, version: Version, outside: &OwnedFd) {
    until(|| {
        let mut buffer = [0; PacketLog::buffer_bytes(SYN_BYTES_MAX)];
        let Ok(packet) = log.receive(&mut buffer) else { return false };
        let syn = Syn::parse(packet, false).expect("a SYN");
        let fragments = match version {
            Version::V4 => v4_fragments(syn.packet()),
            Version::V6 => v6_fragments(syn.packet()),
        };
        for fragment in &fragments {
            let to = SocketAddr::new(syn.ends().server.ip(), 0);
            sendto(outside, fragment, SendFlags::empty(), &to).expect("it can be sent");
        }
        true
    });
}

/// Given a client whose SYN arrives in two fragments, by IPv4 and by IPv6, expect its connection to be split, and data both
/// ways: connection tracking puts packets together before they are forwarded.
#[test]
fn a_syn_in_fragments_is_split() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("fragments");
    for (version, address) in [Version::V4, Version::V6].into_iter().zip(SERVERS) {
        let chain = "{ type filter hook output priority 0 ; }";
        let rule = format!(
            "meta mark != {MARK} tcp flags & (syn | ack) == syn log group {GROUP} queue-threshold 1 drop"
        );
        setup.router.command(Host::Client, "nft add table inet own");
        setup.router.command(Host::Client, &format!("nft add chain inet own output {chain}"));
        setup.router.command(Host::Client, &format!("nft add rule inet own output {rule}"));
        let open = || (PacketLog::open(GROUP, SYN_BYTES_MAX as u32), raw(version, Some(MARK)));
        let (log, outside) = setup.router.on(Host::Client, open);
        let (log, outside) = (log.expect("a log"), outside.expect("a raw socket"));
        let listener = setup.listen(address);
        thread::scope(|scope| {
            scope.spawn(|| send_in_fragments(&log, version, &outside));
            assert!(setup.relays(&listener), "{address}");
        });
        // Until then the client's own SYNs do not leave it, repeated ones included.
        setup.router.command(Host::Client, "nft flush ruleset");
    }
    let state = setup.state(|state| state.split_connections == 2);
    assert_eq!(state.unsplit_connections, 0);
}
