//! Super-packets with real kernels: programs receive what was sent, and the link gets packets that
//! it can carry. Skipped with a message where labs cannot run.

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
use bentpipe_live::measure::while_running;
use bentpipe_live::plain_link;
use bentpipe_sim::{Plan, Side};
use bentpipe_sys::sockets::set_udp_segment;
use support::allowed;

fn lab(link: Plan) -> Option<Lab> {
    allowed(Lab::up(Config { super_packets: true, tap: true, ..Config::of(vec![link]) }))
}

fn failed(error: std::io::Error) -> LabError {
    panic!("{error}")
}

/// Bytes without a period, so that each position is unique.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..count).map(next).collect()
}

/// The packets that a side's kernel received from its device and sent to it, in its own units.
fn kernel_packets(lab: &Lab, side: Side) -> (u64, u64) {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev").map_err(failed);
    let text = lab.namespace(side).run(read).expect("/proc/net/dev");
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(INTERFACE));
    let words: Vec<_> = line.expect("the interface").trim_matches(':').split_whitespace().collect();
    (words[1].parse().expect("a number"), words[9].parse().expect("a number"))
}

/// Sends bytes from the world to the island by TCP, and returns those received.
fn transfer(lab: &Lab, bytes: &[u8]) -> Vec<u8> {
    let to = SocketAddr::from((ipv4(Side::Island), 9_000));
    while_running(lab, || {
        let island = lab.namespace(Side::Island);
        let listener = island.run(|| TcpListener::bind(to).map_err(failed))?;
        let connect = || TcpStream::connect(to).map_err(failed);
        let mut sender = lab.namespace(Side::World).run(connect)?;
        let (mut receiver, _) = listener.accept().map_err(failed)?;
        thread::scope(|scope| {
            scope.spawn(move || sender.write_all(bytes).expect("a receiver"));
            let mut received = Vec::new();
            receiver.read_to_end(&mut received).map_err(failed)?;
            // The report is up to a tenth of a second old.
            thread::sleep(time::Duration::from_millis(250));
            Ok(received)
        })
    })
    .expect("a transfer")
}

/// Given 30 MB by TCP over 2 Gbit/s with bit errors, which lose 1 - (1 - 1e-8)^12000 of the
/// packets, expect the bytes that were sent, packets of at most 1,500 bytes on the link, single
/// packets lost, and fewer packets in the kernels than on the link, since the lab segments and
/// coalesces.
#[test]
fn a_stream_is_intact_and_the_link_carries_packets() {
    const BYTES: usize = 30_000_000;
    let Some(lab) = lab(plain_link(2_000_000_000, Duration::from_millis(1), 1e-8)) else { return };
    let sent = bytes(BYTES);
    assert!(transfer(&lab, &sent) == sent, "other bytes arrived");
    let report = lab.report();
    let (_, forward) = &report.directions[0];
    let packets_min = BYTES as u64 / 1_460;
    assert!(forward.delivered.packets > packets_min, "{}", forward.delivered.packets);
    // 20,548 packets with a loss rate of 1.2e-4: none is lost with a probability of 0.085.
    let lost = forward.dropped[DropCause::BitError as usize].packets;
    assert!(lost < 30, "{lost}");
    let sent_by_kernel = kernel_packets(&lab, Side::World).1;
    let received_by_kernel = kernel_packets(&lab, Side::Island).0;
    assert!(sent_by_kernel < packets_min / 2, "{sent_by_kernel} sent");
    assert!(received_by_kernel < forward.delivered.packets, "{received_by_kernel} received");
    assert_eq!((report.punctuality.unsegmented, report.punctuality.rejected), (0, 0));
    let (record, _) = lab.into_emulator().into_record().expect("a record");
    assert!(record.arrivals.iter().all(|arrival| arrival.bytes <= 1_500));
}

/// Given ten datagrams of 1,000 bytes sent in one call (`UDP_SEGMENT`, udp(7)), expect ten
/// datagrams.
#[test]
fn segmented_datagrams_arrive_separately() {
    let Some(lab) = lab(plain_link(100_000_000, Duration::from_millis(1), 0.0)) else { return };
    let to = SocketAddr::from((ipv4(Side::Island), 9_000));
    let sent = bytes(10_000);
    let received = while_running(&lab, || {
        let bind = |at: SocketAddr| move || UdpSocket::bind(at).map_err(failed);
        let receiver = lab.namespace(Side::Island).run(bind(to))?;
        let sender = SocketAddr::from((ipv4(Side::World), 0));
        let sender = lab.namespace(Side::World).run(bind(sender))?;
        set_udp_segment(&sender, 1_000).map_err(failed)?;
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
    assert_eq!(kernel_packets(&lab, Side::World).1, 1, "the kernel segmented them itself");
}
