use super::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bentpipe_core::time::Duration as Span;
use bentpipe_sim::plan::{Limit, Queue};
use bentpipe_sim::{InterfaceId, Side};
use proptest::prelude::*;

use crate::emulator::{Emulator, Options};
use crate::measure::plain_link;

const MS: Span = Span::from_millis(1);

/// A file that stalls for as long as somebody holds its lock, and is full at some size.
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

/// A packet that comes: when, from where, how long it is.
type Arrival = (Instant, Side, usize);

/// What became of arrivals: when each packet came out, on which side, with which bytes; and what each
/// direction lost.
#[derive(Debug, PartialEq)]
struct Course {
    departures: Vec<(Instant, InterfaceId, Vec<u8>)>,
    delivered: BTreeMap<String, u64>,
    dropped: BTreeMap<String, u64>,
}

/// Bytes that are those of one packet alone. The first one is zero: no IP header, which could be
/// marked on its way.
fn content(serial: usize, bytes: usize) -> Vec<u8> {
    let mut content = vec![serial as u8; bytes];
    content[..8].copy_from_slice(&(serial as u64).to_be_bytes());
    content
}

fn run(
    plans: &[Plan],
    arrivals: &[Arrival],
    recorder: Option<Recorder>,
) -> (Course, Option<Captured>) {
    run_and_tell(plans, arrivals, recorder, || {})
}

/// Runs arrivals through a link, until all have left, tells it, and ends the capture.
fn run_and_tell(
    plans: &[Plan],
    arrivals: &[Arrival],
    recorder: Option<Recorder>,
    tell: impl FnOnce(),
) -> (Course, Option<Captured>) {
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
            emulator.free(departure.place);
        }
    };
    for (serial, &(at, side, bytes)) in arrivals.iter().enumerate() {
        let place = emulator.room().expect("there is room");
        emulator.bytes_mut(place)[..bytes].copy_from_slice(&content(serial, bytes));
        emulator.arrive(at, side, place, bytes);
        take(&mut emulator);
    }
    let mut end = Instant::START;
    while let Some(at) = emulator.next_event() {
        emulator.run_until(at);
        end = end.max(at);
        take(&mut emulator);
    }
    tell();
    emulator.end_capture(end);
    let captured = emulator.captured();
    let (mut delivered, mut dropped) = (BTreeMap::new(), BTreeMap::new());
    for (name, counters) in emulator.counters() {
        let lost = counters.dropped.iter().map(|count| count.packets).sum();
        delivered.insert(name.clone(), counters.delivered.packets);
        dropped.insert(name, lost);
    }
    (Course { departures, delivered, dropped }, captured)
}

/// A packet in a file.
#[derive(Debug)]
struct Block {
    at_ns: u64,
    interface: String,
    bytes: Vec<u8>,
    is_dropped: bool,
}

/// Reads a file, which must be whole.
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

/// Every packet in a file has the bytes of the one that came, and none is before the one above it.
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

/// Given two packets of 1,500 bytes at once over 12 Mbit/s and 20 ms, expect the second one sent 1 ms
/// after it came, and both to arrive 20 ms after their last bits were sent.
#[test]
fn times_are_those_of_the_link() {
    let disk = Disk::of(1 << 20);
    let plans = [plain_link(12_000_000, Span::from_millis(20), 0.0)];
    let recorder = Recorder::start(disk.clone(), &plans).expect("a thread");
    let arrivals = from_world(2, Span::ZERO);
    let (_, captured) = run(&plans, &arrivals, Some(recorder));
    let captured = captured.expect("it was asked for");
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

/// Given room for 43 packets in each of 4 chunks and 5,000 packets while the disk stalls, expect most
/// of them missing in the file and counted, and every packet to leave as it does without a capture.
#[test]
fn a_disk_that_stalls_costs_the_capture_and_no_packet() {
    let plans = [plain_link(100_000_000, MS, 0.0)];
    let arrivals = from_world(5_000, Span::from_micros(100));
    let (expected, _) = run(&plans, &arrivals, None);
    assert_eq!(expected.departures.len(), 5_000);
    let disk = Disk::of(1 << 30);
    let recorder = Recorder::with_chunks(4, disk.clone(), &plans).expect("a thread");
    let stalled = Arc::clone(&disk.content);
    let (go, gone) = std::sync::mpsc::channel();
    let (course, captured) = thread::scope(|scope| {
        let lock = stalled.lock().unwrap_or_else(PoisonError::into_inner);
        let tell = move || go.send(()).expect("somebody listens");
        let running = scope.spawn(|| run_and_tell(&plans, &arrivals, Some(recorder), tell));
        // The end of a capture waits for the disk, nothing before it does.
        gone.recv().expect("all packets leave while the disk stalls");
        drop(lock);
        running.join().expect("it does not panic")
    });
    let captured = captured.expect("it was asked for");
    assert_eq!(course, expected);
    assert_eq!(captured.packets + captured.missing, 3 * 5_000);
    assert!(captured.missing > 3 * 4_000, "{captured:?}");
    let blocks = read(&disk.read());
    assert_eq!(blocks.len() as u64, captured.packets);
    check_packets(&blocks, &arrivals);
}

/// Given room for 100 kB on the disk, expect the capture to end with the system's error, and every
/// packet to leave as it does without one.
#[test]
fn a_disk_that_is_full_costs_the_capture_and_no_packet() {
    let plans = [plain_link(100_000_000, MS, 0.0)];
    let arrivals = from_world(5_000, Span::from_micros(100));
    let (expected, _) = run(&plans, &arrivals, None);
    let recorder = Recorder::with_chunks(4, Disk::of(100_000), &plans).expect("a thread");
    let (course, captured) = run(&plans, &arrivals, Some(recorder));
    assert_eq!(course, expected);
    assert_eq!(
        captured.and_then(|captured| captured.error_number),
        Some(Errno::NOSPC.raw_os_error())
    );
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
    let is_it = |block: &&Block| block.interface == name && block.is_dropped == is_dropped;
    blocks.iter().filter(is_it).count() as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes, packets leave as without a capture, and the file has what the counters have:
    /// what is let in is sent or lost, what is sent is delivered or lost.
    #[test]
    fn a_file_has_what_the_counters_have(
        plans in prop::collection::vec(links(), 1..3), arrivals in arrivals(),
    ) {
        let disk = Disk::of(1 << 30);
        let recorder = Recorder::start(disk.clone(), &plans).expect("a thread");
        let (expected, _) = run(&plans, &arrivals, None);
        let (course, captured) = run(&plans, &arrivals, Some(recorder));
        prop_assert_eq!(&course, &expected);
        let blocks = read(&disk.read());
        let captured = captured.expect("it was asked for");
        let packets = blocks.len() as u64;
        prop_assert_eq!(captured, Captured { packets, missing: 0, error_number: None });
        check_packets(&blocks, &arrivals);
        for (name, delivered) in &course.delivered {
            let count = |point, is_dropped| count(&blocks, name, point, is_dropped);
            prop_assert_eq!(count("delivered", false), *delivered);
            let (refused, lost) = (count("queue", true), count("lost", true));
            prop_assert_eq!(refused + lost, course.dropped[name]);
            prop_assert_eq!(count("queue", false), delivered + lost);
            prop_assert!(count("transmitter", false) <= delivered + lost);
            prop_assert_eq!(count("lost", false) + count("transmitter", true), 0);
        }
    }

    /// However little room there is, what is not in the file is counted.
    #[test]
    fn nothing_is_lost_in_silence(
        chunks in 1..4_usize, link in links(), arrivals in arrivals(),
    ) {
        let (all, some) = (Disk::of(1 << 30), Disk::of(1 << 30));
        let plans = [link];
        let with = |chunks, disk: &Disk| {
            let recorder = Recorder::with_chunks(chunks, disk.clone(), &plans).expect("a thread");
            run(&plans, &arrivals, Some(recorder)).1.expect("it was asked for")
        };
        let (whole, part) = (with(CHUNKS, &all), with(chunks, &some));
        prop_assert_eq!(part.packets + part.missing, whole.packets);
        let blocks = read(&some.read());
        prop_assert_eq!(blocks.len() as u64, part.packets);
        check_packets(&blocks, &arrivals);
    }
}
