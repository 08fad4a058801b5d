//! Properties of captures, over random small plans: the packets of each interface match the
//! counters of the run and are in order of time, and a capture does not change the run.

use crate::plans;
use std::collections::{BTreeMap, BTreeSet};

use bentpipe_core::trace::DropCause;
use bentpipe_core::wire::{FiveTuple, Headers, TCP, tcp};
use bentpipe_sim::record::Table;
use bentpipe_sim::{Outcome, Plan, Simulation};
use proptest::prelude::*;
use proptest::test_runner::Config;
use serde_json::Value;

/// A packet in the file.
#[derive(Debug)]
struct Seen {
    at_ns: u64,
    bytes: Vec<u8>,
    original_bytes: u32,
    comment: Option<String>,
}

/// The packets of each interface in the file, by the interface's name.
type Capture = BTreeMap<String, Vec<Seen>>;

fn number(bytes: &[u8], from: usize) -> u32 {
    u32::from_le_bytes(bytes[from..from + 4].try_into().expect("four bytes"))
}

/// The value of the first option of a kind, in the options of a block.
fn option(mut rest: &[u8], wanted: u8) -> Option<String> {
    while let [code, 0, low, high, ..] = *rest {
        let length = usize::from(u16::from_le_bytes([low, high]));
        if code == wanted {
            return Some(String::from_utf8(rest[4..4 + length].to_vec()).expect("text"));
        }
        rest = &rest[4 + length.next_multiple_of(4)..];
        if code == 0 {
            break;
        }
    }
    None
}

/// Reads a file; expects whole blocks, and packets in order of time.
fn read(file: &[u8]) -> Capture {
    let (mut names, mut capture, mut rest, mut now) = (Vec::new(), Capture::new(), file, 0);
    while !rest.is_empty() {
        let length = number(rest, 4) as usize;
        let (block, after) = rest.split_at(length);
        rest = after;
        match number(block, 0) {
            0x0a0d_0d0a => assert!(names.is_empty(), "one section"),
            1 => {
                let name = option(&block[16..length - 4], 2).expect("a name");
                capture.insert(name.clone(), Vec::new());
                names.push(name);
            }
            6 => {
                let captured = number(block, 20) as usize;
                let options = 28 + captured.next_multiple_of(4);
                let at_ns = u64::from(number(block, 12)) << 32 | u64::from(number(block, 16));
                assert!(now <= at_ns, "in the order of time");
                now = at_ns;
                let name = &names[number(block, 8) as usize];
                capture.get_mut(name).expect("described").push(Seen {
                    at_ns,
                    bytes: block[28..28 + captured].to_vec(),
                    original_bytes: number(block, 24),
                    comment: option(&block[options..length - 4], 1),
                });
            }
            other => panic!("a block of type {other}"),
        }
    }
    capture
}

/// Runs up to `slices` slices, and returns the outcome and the capture.
fn run(plan: &Plan, seed: u64, slices: usize) -> (Outcome, Capture) {
    let mut simulation = Simulation::new(plan, seed).with_capture(plan);
    let mut file = simulation.take_captured();
    for _ in 0..slices {
        let goes_on = simulation.advance();
        file.extend(simulation.take_captured());
        if !goes_on {
            break;
        }
    }
    assert!(simulation.take_captured().is_empty(), "taken once");
    (simulation.finish().expect("conservation holds"), read(&file))
}

fn value(table: &Table, name: &str, row: usize) -> u64 {
    table.column(name).expect("the column exists").integer(row).expect("never missing")
}

fn count(capture: &Capture, interface: &str) -> u64 {
    capture[interface].len() as u64
}

/// The comments of a place, with the number of packets of each.
fn comments(capture: &Capture, place: &str) -> BTreeMap<String, u64> {
    let mut comments = BTreeMap::new();
    for interface in ["queue", "lost"] {
        for seen in &capture[&format!("{place}.{interface}")] {
            seen.comment.iter().for_each(|text| *comments.entry(text.clone()).or_default() += 1);
        }
    }
    comments
}

/// The branches of a direction.
fn branches_of(plan: &Plan, direction: &str) -> Vec<String> {
    let own = plan.branches().filter(|(of, _)| of.name == direction);
    own.map(|(of, branch)| format!("{}-{}", of.name, plan.gateways[branch.gateway as usize].name))
        .collect()
}

fn check_directions(plan: &Plan, outcome: &Outcome, capture: &Capture) {
    let table = outcome.table("directions").expect("there");
    for (row, name) in plan.direction_names().into_iter().enumerate() {
        let packets = |point: &str| count(capture, &format!("{name}.{point}"));
        assert_eq!(packets("queue"), value(table, "received_packets", row), "{name}");
        let branches = branches_of(plan, &name);
        let not_arrived = branches.iter().map(|branch| {
            count(capture, &format!("{branch}.queue"))
                - count(capture, &format!("{branch}.delivered"))
        });
        let delivered = packets("delivered") - not_arrived.sum::<u64>();
        assert_eq!(delivered, value(table, "delivered_packets", row), "{name}");
        // One transmission can be incomplete.
        let incomplete = packets("transmitter") - value(table, "sent_packets", row);
        assert!(
            incomplete <= u64::from(!outcome.completed),
            "{name}: {incomplete} being transmitted"
        );
        let dropped = DropCause::ALL.into_iter().filter_map(|cause| {
            let column = table.column(&format!("dropped_{}_packets", cause.name()))?;
            let packets = column.integer(row).filter(|&packets| packets > 0)?;
            Some((format!("dropped: {}", cause.name()), packets))
        });
        let mut seen = comments(capture, &name);
        for (text, count) in branches.iter().flat_map(|branch| comments(capture, branch)) {
            *seen.entry(text).or_default() += count;
        }
        assert_eq!(seen, dropped.collect(), "{name}");
    }
}

fn check_processors(plan: &Plan, outcome: &Outcome, capture: &Capture) {
    let table = outcome.table("processors").expect("there");
    let mut names = plan.place_names().split_off(plan.direction_names().len());
    names.retain(|name| name.ends_with("-processor"));
    assert_eq!(names.len(), table.len());
    for (row, name) in names.iter().enumerate() {
        let both = |what: &str| {
            let side = |side| value(table, &format!("{what}_{side}_packets"), row);
            side("lan") + side("link")
        };
        let packets = |point: &str| count(capture, &format!("{name}.{point}"));
        assert_eq!(packets("queue"), both("received"), "{name}");
        assert_eq!(packets("forwarded"), both("forwarded"), "{name}");
        let dropped_at_queue: u64 = comments(capture, name).values().sum();
        assert_eq!(dropped_at_queue, both("dropped"), "{name}");
    }
}

/// Expects complete headers with the packet's length and with addresses on opposite sides, and the
/// packets of later points of a place to be among those that were enqueued.
fn check_packets(capture: &Capture) {
    for (name, packets) in capture {
        for Seen { bytes, original_bytes, comment, .. } in packets {
            let headers = Headers::of(bytes).expect("an IP packet");
            assert_eq!(headers.total_bytes, *original_bytes as usize);
            let FiveTuple { source, destination, protocol, source_port, .. } = headers.tuple;
            let is_world = |address: &str| address.starts_with("10.0.");
            let ends = [source, destination].map(|address| is_world(&address.to_string()));
            assert_ne!(ends[0], ends[1], "on opposite sides");
            assert!(source_port != 0);
            if protocol == TCP {
                let header = tcp::Header::parse(&bytes[20..]).expect("whole");
                assert_eq!(bytes.len(), 20 + header.bytes);
            }
            let may_have = name.ends_with("queue") || name.ends_with("lost");
            assert!(comment.is_none() || may_have, "{name}: {comment:?}");
            assert!(comment.is_some() || !name.ends_with("lost"), "{name}");
        }
    }
    for (name, packets) in capture {
        let Some(place) = name.strip_suffix(".queue") else { continue };
        let enqueued = packets.iter().filter(|seen| seen.comment.is_none());
        let enqueued: BTreeSet<_> = enqueued.map(unmarked).collect();
        for later in ["transmitter", "delivered", "cpu", "forwarded", "lost"] {
            for seen in capture.get(&format!("{place}.{later}")).into_iter().flatten() {
                assert!(enqueued.contains(&unmarked(seen)), "{place}.{later}");
            }
        }
    }
}

/// A packet without its ECN field, which a queue can mark, and its IP checksum.
fn unmarked(seen: &Seen) -> (Vec<u8>, u32) {
    let mut bytes = seen.bytes.clone();
    bytes[1] &= !0b11;
    bytes[10..12].fill(0);
    (bytes, seen.original_bytes)
}

fn check(plan: &Value, seed: u64, slices: usize) {
    let plan = &Plan::parse(&plan.to_string()).expect("the strategy makes valid plans");
    let (outcome, capture) = run(plan, seed, slices);
    check_directions(plan, &outcome, &capture);
    check_processors(plan, &outcome, &capture);
    check_packets(&capture);
    let last = capture.values().flatten().map(|seen| seen.at_ns).max();
    assert!(last.is_none_or(|last| last <= outcome.end.as_nanos()));
}

proptest! {
    #![proptest_config(Config { cases: 200, failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_capture_agrees_with_the_counters(plan in plans::plan(), seed in any::<u64>()) {
        check(&plan, seed, usize::MAX);
    }

    /// Given a run that is stopped early, with packets in flight, expect the same.
    #[test]
    fn a_capture_of_an_interrupted_run_agrees_with_the_counters(
        plan in plans::plan(),
        seed in any::<u64>(),
        slices in 0..400usize,
    ) {
        check(&plan, seed, slices);
    }

    #[test]
    fn a_capture_does_not_change_the_run(plan in plans::plan(), seed in any::<u64>()) {
        let plan = Plan::parse(&plan.to_string()).expect("the strategy makes valid plans");
        let mut alone = Simulation::new(&plan, seed);
        while alone.advance() {
            prop_assert!(alone.take_captured().is_empty());
        }
        let (listened, _) = run(&plan, seed, usize::MAX);
        // The capture counts as memory.
        let memory_bytes_max = listened.memory_bytes_max;
        let alone = alone.finish().expect("conservation holds");
        prop_assert_eq!(Outcome { memory_bytes_max, ..alone }, listened);
    }
}
