//! Super-packets through real kernels: what programs get is what was sent, and the link saw packets that
//! it could carry. Skipped with a message where there can be no lab.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time;

use bentpipe_core::time::Duration;
use bentpipe_core::trace::DropCause;
use bentpipe_live::LabError;
use bentpipe_live::addresses::ipv4;
use bentpipe_live::lab::{Config, INTERFACE, Lab};
use bentpipe_live::measure::{plain_link, while_running};
use bentpipe_sim::{Plan, Side};
use bentpipe_sys::sockets::cut_datagrams;
use support::allowed;

fn lab(link: Plan) -> Option<Lab> {
    allowed(Lab::up(Config { super_packets: true, tap: true, ..Config::of(vec![link]) }))
}

fn failed(error: std::io::Error) -> LabError {
    panic!("{error}")
}

/// Bytes without a period that a place could be mistaken by.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..count).map(next).collect()
}

/// What a side's kernel received from its device and sent to it, in packets of its own.
fn kernel_packets(lab: &Lab, side: Side) -> (u64, u64) {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev").map_err(failed);
    let text = lab.namespace(side).run(read).expect("there is a table");
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(INTERFACE));
    let words: Vec<_> = line.expect("it is there").trim_matches(':').split_whitespace().collect();
    (words[1].parse().expect("a number"), words[9].parse().expect("a number"))
}

/// Sends bytes from the world to the island by TCP; what came.
fn sent_over(lab: &Lab, bytes: &[u8]) -> Vec<u8> {
    let to = SocketAddr::from((ipv4(Side::Island), 9_000));
    while_running(lab, || {
        let island = lab.namespace(Side::Island);
        let listener = island.run(|| TcpListener::bind(to).map_err(failed))?;
        let connect = || TcpStream::connect(to).map_err(failed);
        let mut sender = lab.namespace(Side::World).run(connect)?;
        let (mut receiver, _) = listener.accept().map_err(failed)?;
        thread::scope(|scope| {
            scope.spawn(move || sender.write_all(bytes).expect("it is read"));
            let mut received = Vec::new();
            receiver.read_to_end(&mut received).map_err(failed)?;
            // What it counts is told a tenth of a second ago at most.
            thread::sleep(time::Duration::from_millis(250));
            Ok(received)
        })
    })
    .expect("a transfer")
}

/// Given 30 MB by TCP over 2 Gbit/s with bit errors, which lose 1 - (1 - 1e-8)^12000 of the packets,
/// expect them as they were sent; packets on the link of 1,500 bytes at most, and single ones lost; and
/// kernels that saw fewer than the link did, since they left the cutting, and took what was joined.
#[test]
fn a_stream_comes_as_it_was_sent_and_the_link_sees_packets() {
    const BYTES: usize = 30_000_000;
    let Some(lab) = lab(plain_link(2_000_000_000, Duration::from_millis(1), 1e-8)) else { return };
    let sent = bytes(BYTES);
    assert!(sent_over(&lab, &sent) == sent, "other bytes came");
    let report = lab.report();
    let (_, forward) = &report.directions[0];
    let least = BYTES as u64 / 1_460;
    assert!(forward.delivered.packets > least, "{}", forward.delivered.packets);
    // 20,548 packets, each lost with a chance of 1.2e-4: none with one of 0.085.
    let lost = forward.dropped[DropCause::BitError as usize].packets;
    assert!(lost < 30, "{lost}");
    let handed_over = kernel_packets(&lab, Side::World).1;
    let taken = kernel_packets(&lab, Side::Island).0;
    assert!(handed_over < least / 2, "{handed_over} handed over");
    assert!(taken < forward.delivered.packets, "{taken} taken");
    assert_eq!((report.punctuality.not_split, report.punctuality.not_taken), (0, 0));
    let (record, _) = lab.into_emulator().tapped().expect("it was asked for");
    assert!(record.arrivals.iter().all(|arrival| arrival.bytes <= 1_500));
}

/// Given ten datagrams of 1,000 bytes that were handed over as one (`UDP_SEGMENT`, udp(7)), expect ten.
#[test]
fn datagrams_come_one_by_one() {
    let Some(lab) = lab(plain_link(100_000_000, Duration::from_millis(1), 0.0)) else { return };
    let to = SocketAddr::from((ipv4(Side::Island), 9_000));
    let sent = bytes(10_000);
    let received = while_running(&lab, || {
        let bind = |at: SocketAddr| move || UdpSocket::bind(at).map_err(failed);
        let receiver = lab.namespace(Side::Island).run(bind(to))?;
        let sender = SocketAddr::from((ipv4(Side::World), 0));
        let sender = lab.namespace(Side::World).run(bind(sender))?;
        cut_datagrams(&sender, 1_000).map_err(failed)?;
        sender.send_to(&sent, to).map_err(failed)?;
        receiver.set_read_timeout(Some(time::Duration::from_secs(5))).map_err(failed)?;
        let mut received = Vec::new();
        for _ in 0..10 {
            let mut datagram = [0; 2_000];
            let count = receiver.recv(&mut datagram).map_err(failed)?;
            received.push(datagram[..count].to_vec());
        }
        Ok(received)
    })
    .expect("a transfer");
    let expected: Vec<_> = sent.chunks(1_000).collect();
    assert_eq!(received, expected);
    assert_eq!(kernel_packets(&lab, Side::World).1, 1, "the kernel cut them itself");
}
