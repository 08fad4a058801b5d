use super::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bentpipe_core::time::Duration as Span;
use bentpipe_sim::plan::{Limit, Queue};
use bentpipe_sim::{InterfaceId, Side};
use proptest::prelude::*;

use crate::emulator::{Emulator, Options};
use crate::plain_link::plain_link;

const MS: Span = Span::from_millis(1);

/// A file that stalls while its lock is held, and fails with ENOSPC at a size.
#[derive(Clone)]
struct Disk {
    content: Arc<Mutex<Vec<u8>>>,
    size: usize,
}

impl Disk {
    fn of(size: usize) -> Self {
        Self { content: Arc::default(), size }
    }

    fn read(&self) -> Vec<u8> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        if content.len() + bytes.len() > self.size {
            return Err(io::Error::from_raw_os_error(Errno::NOSPC.raw_os_error()));
        }
        content.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An arrival: time, side, length.
type Arrival = (Instant, Side, usize);

/// The outcome of a run: for each packet its departure time, interface and bytes, and the counters
/// of each direction.
#[derive(Debug, PartialEq)]
struct Outcome {
    departures: Vec<(Instant, InterfaceId, Vec<u8>)>,
    delivered: BTreeMap<String, u64>,
    dropped: BTreeMap<String, u64>,
}

/// The unique content of a packet. The first byte is zero, so it is not an IP header, whose ECN
/// field could be marked.
fn content(serial: usize, bytes: usize) -> Vec<u8> {
    let mut content = vec![serial as u8; bytes];
    content[..8].copy_from_slice(&(serial as u64).to_be_bytes());
    content
}

/// An IPv4 packet whose ECN field can be marked: ECT(0), and nothing else of a header.
fn markable(serial: usize, bytes: usize) -> Vec<u8> {
    let mut packet = content(serial, bytes);
    packet[..2].copy_from_slice(&[0x45, 2]);
    packet
}

fn run(
    plans: &[Plan],
    arrivals: &[Arrival],
    recorder: Option<Recorder>,
) -> (Outcome, Option<Captured>) {
    run_and_notify(plans, arrivals, content, recorder, || {})
}

/// Runs arrivals through a link until all have departed, calls `notify`, and ends the capture.
fn run_and_notify(
    plans: &[Plan],
    arrivals: &[Arrival],
    content: fn(usize, usize) -> Vec<u8>,
    recorder: Option<Recorder>,
    notify: impl FnOnce(),
) -> (Outcome, Option<Captured>) {
    let mut emulator = Emulator::new(plans, 1, Options::default()).expect("a link");
    if let Some(recorder) = recorder {
        emulator.capture(recorder);
    }
    let (mut last, mut departures) = (Vec::new(), Vec::new());
    let mut take = |emulator: &mut Emulator| {
        emulator.take_departures(&mut last);
        for departure in &last {
            let bytes = emulator.bytes(departure).to_vec();
            departures.push((departure.due, departure.to, bytes));
            emulator.free(departure.slot);
        }
    };
    for (serial, &(at, side, bytes)) in arrivals.iter().enumerate() {
        let slot = emulator.alloc().expect("there is room");
        emulator.bytes_mut(slot)[..bytes].copy_from_slice(&content(serial, bytes));
        emulator.arrive(at, side, slot, bytes);
        take(&mut emulator);
    }
    let mut end = Instant::START;
    while let Some(at) = emulator.next_event() {
        emulator.run_until(at);
        end = end.max(at);
        take(&mut emulator);
    }
    notify();
    emulator.end_capture(end);
    let captured = emulator.captured();
    let (mut delivered, mut dropped) = (BTreeMap::new(), BTreeMap::new());
    for (name, counters) in emulator.counters() {
        let lost = counters.dropped.iter().map(|count| count.packets).sum();
        delivered.insert(name.clone(), counters.delivered.packets);
        dropped.insert(name, lost);
    }
    (Outcome { departures, delivered, dropped }, captured)
}

/// A packet in a capture file.
#[derive(Debug)]
struct Block {
    at_ns: u64,
    interface: String,
    bytes: Vec<u8>,
    is_dropped: bool,
}

/// Parses a file, which must be complete.
fn read(mut file: &[u8]) -> Vec<Block> {
    fn number(bytes: &[u8], at: usize) -> usize {
        u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
    }
    let (mut names, mut blocks) = (Vec::new(), Vec::new());
    while !file.is_empty() {
        let length = number(file, 4);
        let (block, rest) = file.split_at(length);
        assert_eq!(number(block, length - 4), length);
        file = rest;
        match number(block, 0) {
            0x0a0d_0d0a => assert!(names.is_empty(), "there is one section"),
            1 => {
                let name = &block[20..20 + (number(block, 16) >> 16)];
                names.push(String::from_utf8(name.to_vec()).expect("a name"));
            }
            6 => {
                let captured = number(block, 20);
                assert_eq!(number(block, 24), captured, "packets are whole");
                let end = 28 + captured.next_multiple_of(4);
                blocks.push(Block {
                    at_ns: (number(block, 12) as u64) << 32 | number(block, 16) as u64,
                    interface: names[number(block, 8)].clone(),
                    bytes: block[28..28 + captured].to_vec(),
                    is_dropped: length > end + 4,
                });
            }
            kind => panic!("a block of kind {kind}"),
        }
    }
    blocks
}

/// Every packet has the bytes of the one that arrived, and times do not decrease.
fn check_packets(blocks: &[Block], arrivals: &[Arrival]) {
    for block in blocks {
        let serial = u64::from_be_bytes(block.bytes[..8].try_into().expect("eight bytes"));
        let (at, _, bytes) = arrivals[serial as usize];
        assert_eq!(block.bytes, content(serial as usize, bytes));
        assert!(block.at_ns >= at.as_nanos());
    }
    assert!(blocks.is_sorted_by_key(|block| block.at_ns));
}

fn from_world(packets: u64, interval: Span) -> Vec<Arrival> {
    (0..packets)
        .map(|number| (Instant::START + interval.saturating_mul(number), Side::World, 1_500))
        .collect()
}

/// Given two packets of 1,500 bytes at the same time over 12 Mbit/s and 20 ms, expect the second
/// transmission 1 ms after the first, and both deliveries 20 ms after the end of the transmission.
#[test]
fn times_are_those_of_the_link() {
    let disk = Disk::of(1 << 20);
    let plans = [plain_link(12_000_000, Span::from_millis(20), 0.0)];
    let recorder = Recorder::start(disk.clone(), &plans).expect("a thread");
    let arrivals = from_world(2, Span::ZERO);
    let (_, captured) = run(&plans, &arrivals, Some(recorder));
    let captured = captured.expect("a capture");
    assert_eq!(captured, Captured { packets: 6, missing: 0, error_number: None });
    let seen: Vec<_> = read(&disk.read())
        .into_iter()
        .map(|block| (block.at_ns / 1_000_000, block.interface, block.bytes[7]))
        .collect();
    let name = |point: &str| format!("forward.{point}");
    let expected = [
        (0, name("queue"), 0),
        (0, name("transmitter"), 0),
        (0, name("queue"), 1),
        (1, name("transmitter"), 1),
        (21, name("delivered"), 0),
        (22, name("delivered"), 1),
    ];
    assert_eq!(seen, expected);
}

/// Given 4 chunks of 43 packets and 5,000 packets while the disk stalls, expect most of them
/// missing in the file and counted, and the outcome of a run without a capture.
#[test]
fn a_stalled_disk_affects_the_capture_but_no_packet() {
    let plans = [plain_link(100_000_000, MS, 0.0)];
    let arrivals = from_world(5_000, Span::from_micros(100));
    let (expected, _) = run(&plans, &arrivals, None);
    assert_eq!(expected.departures.len(), 5_000);
    let disk = Disk::of(1 << 30);
    let recorder = Recorder::with_chunks(4, disk.clone(), &plans).expect("a thread");
    let stalled = Arc::clone(&disk.content);
    let (all_departed, departed) = std::sync::mpsc::channel();
    let (outcome, captured) = thread::scope(|scope| {
        let lock = stalled.lock().unwrap_or_else(PoisonError::into_inner);
        let notify = move || all_departed.send(()).expect("the receiver exists");
        let running =
            scope.spawn(|| run_and_notify(&plans, &arrivals, content, Some(recorder), notify));
        // Only the end of a capture waits for the disk.
        departed
            .recv_timeout(std::time::Duration::from_secs(60))
            .expect("all packets leave while the disk stalls");
        drop(lock);
        running.join().expect("it does not panic")
    });
    let captured = captured.expect("a capture");
    assert_eq!(outcome, expected);
    assert_eq!(captured.packets + captured.missing, 3 * 5_000);
    assert!(captured.missing > 3 * 4_000, "{captured:?}");
    let blocks = read(&disk.read());
    assert_eq!(blocks.len() as u64, captured.packets);
    check_packets(&blocks, &arrivals);
}

/// Given a disk of 100 kB, expect the capture to end with ENOSPC, and the outcome of a run without
/// a capture.
#[test]
fn a_full_disk_affects_the_capture_but_no_packet() {
    let plans = [plain_link(100_000_000, MS, 0.0)];
    let arrivals = from_world(5_000, Span::from_micros(100));
    let (expected, _) = run(&plans, &arrivals, None);
    let recorder = Recorder::with_chunks(4, Disk::of(100_000), &plans).expect("a thread");
    let (outcome, captured) = run(&plans, &arrivals, Some(recorder));
    assert_eq!(outcome, expected);
    assert_eq!(
        captured.and_then(|captured| captured.error_number),
        Some(Errno::NOSPC.raw_os_error())
    );
}

/// Given packets that a queue marks, and a disk that takes few of them, expect those of the file and those missing to
/// be all: a mark is no packet.
#[test]
fn a_mark_without_a_chunk_is_not_a_missing_packet() {
    let limit = Limit::Packets(1_000);
    let mut plans = [plain_link(10_000_000, MS, 0.0)];
    plans[0].directions[0].queue =
        Queue::Codel { limit, target_ns: 1_000_000, interval_ns: 5_000_000, ecn: true };
    let arrivals = from_world(2_000, Span::from_micros(600));
    let with = |chunks| {
        let disk = Disk::of(1 << 30);
        let recorder = Recorder::with_chunks(chunks, disk.clone(), &plans).expect("a thread");
        let run = run_and_notify(&plans, &arrivals, markable, Some(recorder), || {});
        (run.1.expect("a capture"), read(&disk.read()))
    };
    let ((whole, blocks), (part, _)) = (with(CHUNKS), with(1));
    assert!(blocks.iter().any(|block| block.bytes[1] == 3), "no packet is marked");
    assert_eq!(whole.missing, 0);
    assert!(part.missing > 0, "nothing is missing");
    assert_eq!(part.packets + part.missing, whole.packets);
}

fn queues() -> impl Strategy<Value = Queue> {
    let limit = Limit::Packets(20);
    let (target_ns, interval_ns) = (1_000_000, 5_000_000);
    prop_oneof![
        Just(Queue::DropTail { limit: Limit::Unlimited }),
        Just(Queue::DropTail { limit: Limit::Packets(5) }),
        Just(Queue::Codel { limit, target_ns, interval_ns, ecn: true }),
        Just(Queue::FqCodel {
            limit,
            target_ns,
            interval_ns,
            quantum_bytes: 1_514,
            queues: 16,
            ecn: false,
        }),
    ]
}

fn links() -> impl Strategy<Value = Plan> {
    (queues(), queues(), prop_oneof![Just(0.0), Just(1e-5)], 0..2_u64).prop_map(
        |(forward, back, errors, milliseconds)| {
            let mut plan = plain_link(10_000_000, Span::from_millis(milliseconds), errors);
            (plan.directions[0].queue, plan.directions[1].queue) = (forward, back);
            plan
        },
    )
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let one = (0..600_u64, any::<bool>(), 8..1_500_usize);
    prop::collection::vec(one, 0..400).prop_map(|gaps| {
        let mut at = Instant::START;
        let next = |(micros, is_world, bytes)| {
            at += Span::from_micros(micros);
            (at, if is_world { Side::World } else { Side::Island }, bytes)
        };
        gaps.into_iter().map(next).collect()
    })
}

fn count(blocks: &[Block], direction: &str, point: &str, is_dropped: bool) -> u64 {
    let name = format!("{direction}.{point}");
    let matches = |block: &&Block| block.interface == name && block.is_dropped == is_dropped;
    blocks.iter().filter(matches).count() as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Given any arrivals, expect the outcome of a run without a capture, and a file that agrees
    /// with the counters: packets enqueued are transmitted or lost, packets transmitted are
    /// delivered or lost.
    #[test]
    fn a_file_agrees_with_the_counters(
        plans in prop::collection::vec(links(), 1..3), arrivals in arrivals(),
    ) {
        let disk = Disk::of(1 << 30);
        let recorder = Recorder::start(disk.clone(), &plans).expect("a thread");
        let (expected, _) = run(&plans, &arrivals, None);
        let (outcome, captured) = run(&plans, &arrivals, Some(recorder));
        prop_assert_eq!(&outcome, &expected);
        let blocks = read(&disk.read());
        let captured = captured.expect("a capture");
        let packets = blocks.len() as u64;
        prop_assert_eq!(captured, Captured { packets, missing: 0, error_number: None });
        check_packets(&blocks, &arrivals);
        for (name, delivered) in &outcome.delivered {
            let count = |point, is_dropped| count(&blocks, name, point, is_dropped);
            prop_assert_eq!(count("delivered", false), *delivered);
            let (refused, lost) = (count("queue", true), count("lost", true));
            prop_assert_eq!(refused + lost, outcome.dropped[name]);
            prop_assert_eq!(count("queue", false), delivered + lost);
            prop_assert!(count("transmitter", false) <= delivered + lost);
            prop_assert_eq!(count("lost", false) + count("transmitter", true), 0);
        }
    }

    /// Given any number of chunks, expect packets missing in the file to be counted.
    #[test]
    fn missing_packets_are_counted(
        chunks in 1..4_usize, link in links(), arrivals in arrivals(),
    ) {
        let (all, some) = (Disk::of(1 << 30), Disk::of(1 << 30));
        let plans = [link];
        let with = |chunks, disk: &Disk| {
            let recorder = Recorder::with_chunks(chunks, disk.clone(), &plans).expect("a thread");
            run(&plans, &arrivals, Some(recorder)).1.expect("a capture")
        };
        let (whole, part) = (with(CHUNKS, &all), with(chunks, &some));
        prop_assert_eq!(part.packets + part.missing, whole.packets);
        let blocks = read(&some.read());
        prop_assert_eq!(blocks.len() as u64, part.packets);
        check_packets(&blocks, &arrivals);
    }
}
