//! Faults of a real lab that must make a run invalid. Each is certain, however fast the machine is,
//! because the limits of lateness are out of reach. Skipped with a message where namespaces are not
//! permitted.

mod support;

use std::io;
use std::net::UdpSocket;
use std::process::Command;

use bentpipe_core::time::Duration;
use bentpipe_live::LabError;
use bentpipe_live::addresses::ipv4;
use bentpipe_live::lab::{Config, Lab, Report};
use bentpipe_live::lateness::Limits;
use bentpipe_live::measure::while_running;
use bentpipe_live::plain_link;
use bentpipe_sim::Side;
use support::{allowed, skip};

/// A lab with a link of 1 Gbit/s without delay, or `None` where the machine does not allow one or has
/// no ip(8).
fn lab(super_packets: bool) -> Option<Lab> {
    if let Err(error) = Command::new("ip").arg("-V").output() {
        skip(&format!("ip cannot be executed (apt install iproute2): {error}"));
        return None;
    }
    let never = Duration::from_secs(1_000_000);
    let limits = Some(Limits { late: never, max: never, ..Limits::default() });
    let plans = vec![plain_link(1_000_000_000, Duration::ZERO, 0.0)];
    allowed(Lab::up(Config { limits, super_packets, ..Config::of(plans) }))
}

fn inside<T>(lab: &Lab, side: Side, work: impl FnOnce() -> io::Result<T> + Send) -> T
where
    T: Send,
{
    let done = lab.namespace(side).run(|| Ok::<_, LabError>(work()));
    done.expect("a thread in the namespace").expect("no error")
}

/// Runs ip(8) on a side.
fn ip(lab: &Lab, side: Side, words: &str) {
    let status = inside(lab, side, || Command::new("ip").args(words.split(' ')).status());
    assert!(status.success(), "ip {words}");
}

/// Sends datagrams from the world to the island, where no server is listening.
fn send(lab: &Lab, count: usize, payload_bytes: usize) {
    inside(lab, Side::World, || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect((ipv4(Side::Island), 9))?;
        for _ in 0..count {
            // The next call reports the island's ICMP error that no server is listening.
            let _ = socket.send(&vec![0; payload_bytes]);
        }
        Ok(())
    });
}

/// The report of a run as soon as it is invalid, or after 20 s, which is a deadline against hanging
/// alone.
fn reported(lab: &Lab) -> Report {
    while_running(lab, || {
        for _ in 0..400 {
            if lab.report().invalid.is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Ok(lab.report())
    })
    .expect("it runs")
}

/// Given an island with its interface down and 10 packets to it, expect an invalid run.
#[test]
fn packets_that_the_receiving_kernel_refuses() {
    let Some(lab) = lab(false) else { return };
    ip(&lab, Side::Island, "link set dev link down");
    send(&lab, 10, 100);
    let report = reported(&lab);
    assert_eq!(report.punctuality.rejected, 10);
    let reason = report.invalid.expect("10 packets were rejected");
    assert!(reason.starts_with("the receiving kernel rejected 10 packets"), "{reason}");
}

/// Given a renamed interface and more packets than its queue holds before the link reads any,
/// expect the kernel's drops to be counted and an invalid run.
#[test]
fn packets_dropped_at_a_renamed_interface() {
    let Some(lab) = lab(false) else { return };
    ip(&lab, Side::World, "link set dev link down");
    ip(&lab, Side::World, "link set dev link name other");
    ip(&lab, Side::World, "link set dev other up");
    send(&lab, 12_000, 10);
    let report = reported(&lab);
    let dropped = report.kernel_dropped.expect("the kernel's counters");
    assert!(dropped >= 2_000, "{dropped}: its queue holds 10,000");
    let reason = report.invalid.expect("packets were dropped");
    assert!(reason.starts_with("the kernel dropped"), "{reason}");
}

/// Given a host that raises its MTU from 1,500 to 9,000, and packets of 1,500, 1,501 and 4,028
/// bytes, expect the first one to be carried, the others to be counted and dropped, and an invalid
/// run, with super-packets too.
#[test]
fn packets_longer_than_the_mtu() {
    for super_packets in [false, true] {
        let Some(lab) = lab(super_packets) else { return };
        ip(&lab, Side::World, "link set dev link mtu 9000");
        [1_472, 1_473, 4_000].into_iter().for_each(|payload_bytes| send(&lab, 1, payload_bytes));
        let report = reported(&lab);
        assert_eq!(report.punctuality.too_long, 2);
        let forward = &report.directions[0].1;
        assert_eq!(forward.delivered.bytes, 1_500);
        let reason = report.invalid.expect("two were too long");
        assert!(reason.starts_with("2 packets longer than the MTU"), "{reason}");
    }
}

/// Given a lab that is up for longer than its counters may be old before its link runs, as while an
/// uplink starts, expect the first reports of the run to have the counters.
#[test]
fn counters_are_known_from_the_first_report_on() {
    let Some(lab) = lab(false) else { return };
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    let after = std::time::Duration::from_millis(150);
    let idle = || {
        std::thread::sleep(after);
        Ok(())
    };
    while_running(&lab, idle).expect("a run");
    let report = lab.report();
    assert_eq!((report.kernel_dropped, report.invalid), (Some(0), None));
}

/// Given a queue length that is increased between two runs of the link, expect the first run to be
/// valid and the second invalid: packets may wait in the queue for longer than the link assumes.
#[test]
fn a_longer_queue_before_the_link() {
    let Some(lab) = lab(false) else { return };
    while_running(&lab, || Ok(())).expect("a run");
    assert_eq!(lab.report().invalid, None);
    ip(&lab, Side::Island, "link set dev link txqueuelen 20000");
    let reason = reported(&lab).invalid.expect("its queue is longer");
    assert!(reason.contains("in the island was changed"), "{reason}");
}
