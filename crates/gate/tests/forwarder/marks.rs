//! DSCP and ECN field between the gateways.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use bentpipe_gate::tunnel::Limits;
use bentpipe_sys::datagrams::{ReceiveBatch, Run, enable_traffic_class, send_runs};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::hosts::{Hosts, settings};
use crate::requirements::is_possible;

/// DSCP EF, and ECT(0), CE.
const EF: u8 = 46 << 2;
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// Marks the datagrams between the gateways that have DSCP EF and ECT(0) as they arrive, like a queue on the way.
const MARKING: &str = "add table ip marks; \
    add chain ip marks in { type filter hook prerouting priority raw; }; \
    add rule ip marks in udp dport 7777 ip dscp ef ip ecn ect0 counter ip ecn set ce";

fn receive(socket: &UdpSocket, batch: &mut ReceiveBatch) -> (u8, usize) {
    let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)).expect("a socket");
    batch.receive(socket).expect("a socket");
    let message = batch.messages().next().expect("a datagram");
    (message.traffic_class, message.bytes.len())
}

/// Given a network that marks datagrams of DSCP EF and ECT(0), expect the mark on packets inside that have both, coded and
/// uncoded, of IPv4 and IPv6: so the datagrams have both, too. Expect packets with another DSCP, or that are not ECN-capable,
/// to arrive as they were.
#[test]
fn dscp_and_ecn_pass_between_the_gateways() {
    if !is_possible(&["ip", "nft"]) {
        return;
    }
    let hosts = Hosts::new("marks", &settings(), Limits::DEFAULT, None);
    let mut batch = ReceiveBatch::new(1);
    for is_marking in [false, true] {
        if is_marking {
            let nft = || Command::new("nft").arg(MARKING).output().expect("nft runs");
            let output = hosts.on(1, nft);
            assert!(output.status.success(), "{output:?}");
        }
        for addresses in ["10.99.0.1:7000 10.99.0.2:7000", "[fd99::1]:7000 [fd99::2]:7000"] {
            let (from, to) = addresses.split_once(' ').expect("two");
            let sender = hosts.on(0, || UdpSocket::bind(from).expect("an address"));
            let receiver = hosts.on(1, || UdpSocket::bind(to).expect("an address"));
            enable_traffic_class(&receiver).expect("a socket");
            let to: SocketAddr = to.parse().expect("an address");
            // Packets from 200 bytes are coded.
            for bytes in [50, 1_000] {
                for traffic_class in [EF | ECT_0, EF, ECT_0, 0] {
                    let run = Run { to, bytes: 0..bytes, datagram_bytes: bytes, traffic_class };
                    let sent = send_runs(&sender, to.is_ipv6(), &[7; 1_000], &[run]);
                    assert_eq!(sent.expect("a route"), 1);
                    let is_marked = is_marking && traffic_class == EF | ECT_0;
                    let expected = if is_marked { EF | CE } else { traffic_class };
                    assert_eq!(receive(&receiver, &mut batch), (expected, bytes), "{to}");
                }
            }
        }
    }
    let traffic = hosts.counters(1).path.traffic;
    assert_eq!((traffic.ce_datagrams, traffic.unmarked_packets), (4, 0));
}
