//! Invalid input: expect no panic, no stall and no unbounded growth.

use proptest::prelude::*;
use proptest::test_runner::Config as Runner;

use super::harness::{Host, segments};
use super::network::random_config;
use super::plain;
use crate::engine::{Cx, Engine, Outbox};
use crate::packet::segment::{Flags, SackBlocks, Segment, SynOptions, Timestamps};
use crate::packet::seq::SeqNumber;
use crate::packet::{FlowId, Origin, Packet, PacketId, Payload};
use crate::rng::Rng;
use crate::tcp::endpoint::Endpoint;
use crate::time::{Duration, Instant};
use crate::trace::NodeId;

/// RFC 9293, 3.10.7.4: given an ACK of unsent data, expect an ACK; its data is dropped.
#[test]
fn an_ack_of_unsent_data_gets_a_challenge_ack() {
    let mut host = Host::connected(plain());
    host.writes(100, 1_000, &segments(1, 1));
    host.given(200, "1:1 ack 1002", "1001:1001 ack 1");
    host.given(200, "1:101 ack 500000", "1001:1001 ack 1");
    host.compare("delivered", 0, |endpoint| endpoint.receiver().delivered());
}

/// RFC 9293, 3.10.7.4: given data outside of the window, expect it to be trimmed and an ACK to be
/// sent.
#[test]
fn a_segment_outside_of_the_window_gets_an_ack() {
    let mut host = Host::accepted(plain());
    host.no_reply(200, "1:1001 ack 1");
    host.given(210, "1:501 ack 1", "1:1 ack 1001");
    host.given(220, "90001:91001 ack 1", "1:1 ack 1001");
    host.compare("delivered", 1_000, |endpoint| endpoint.receiver().delivered());
    host.no_reply(230, "501:2001 ack 1");
    host.compare("delivered", 2_000, |endpoint| endpoint.receiver().delivered());
}

/// RFC 9293, 3.10.7.4 (RFC 5961, 4): given a SYN on an established connection, expect a challenge
/// ACK and no change of the connection's numbers.
#[test]
fn a_syn_on_an_established_connection_gets_a_challenge_ack() {
    let mut host = Host::accepted(plain());
    host.no_reply(200, "1:1001 ack 1");
    host.given(210, "S 1001:1002 ack 1 mss 500 ws 3", "1:1 ack 1001");
    host.given(220, "S 0:1 ack 1 mss 500", "1:1 ack 1001");
    host.compare("delivered", 1_000, |endpoint| endpoint.receiver().delivered());
    host.writes(230, 1_000, "1:1001 ack 1001");
}

/// Given several connections of one flow, expect each endpoint to ignore segments of the others,
/// and its own number and packet ids on what it sends.
#[test]
fn segments_of_another_connection_are_ignored() {
    let endpoint = || Endpoint::new(plain(), FlowId(0), Origin::Receiver, SeqNumber(7));
    let mut endpoints = [3, 4].map(|connection| endpoint().of_connection(connection, 0));
    let mut sent = Outbox::new();
    for connection in [0, 3, 4, 3] {
        let syn = Segment { connection, flags: Flags::SYN, window: 9, ..Segment::default() };
        let (id, payload) = (PacketId(connection.into()), Payload::Tcp(syn));
        let packet =
            Packet { id, created_at: Instant::START, bytes: 40, payload, ..Packet::default() };
        for endpoint in &mut endpoints {
            let mut cx = Cx::new(Instant::START, NodeId(0), &mut sent, None);
            endpoint.on_packet(&mut cx, &packet);
        }
    }
    let sent: Vec<_> = sent.drain().collect();
    let answers = sent.iter().filter_map(|(_, _, packet)| Some(packet.segment()?.connection));
    assert_eq!(answers.collect::<Vec<_>>(), [3, 4, 3], "two SYNs and one duplicate");
    let mut ids: Vec<_> = sent.iter().map(|(_, _, packet)| packet.id).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "{ids:?}");
    assert!(endpoints.iter().all(|endpoint| endpoint.ledger().received.packets == 4));
}

/// Given a second FIN, expect the end of the stream not to move.
#[test]
fn a_second_fin_does_not_move_the_end() {
    let mut host = Host::accepted(plain());
    host.given(200, "F 1:1002 ack 1", "1:1 ack 1002");
    host.given(210, "F 1:502 ack 1", "1:1 ack 1002");
    host.given(220, "1002:2002 ack 1", "1:1 ack 1002");
    host.compare("delivered", 1_000, |endpoint| endpoint.receiver().delivered());
}

/// A number near one of `anchors`, or a random one.
fn sequence_number(rng: &mut Rng, anchors: [u32; 2]) -> SeqNumber {
    let near = u32::try_from(rng.below(6_000)).expect("small").wrapping_sub(1_000);
    match rng.below(8) {
        0 => SeqNumber(u32::try_from(rng.next_u64() >> 32).expect("32 bits")),
        1 => SeqNumber(anchors[0].wrapping_add(near)),
        2 => SeqNumber(anchors[1]),
        _ => SeqNumber(anchors[0]),
    }
}

fn random_segment(rng: &mut Rng, endpoint: &Endpoint, initial: u32, peer: u32) -> Segment {
    let low = |position: u64| u32::try_from(position & 0xFFFF_FFFF).expect("masked");
    let una = initial.wrapping_add(low(endpoint.sender().una()));
    let max = initial.wrapping_add(low(endpoint.sender().max()));
    let next = peer.wrapping_add(low(endpoint.receiver().next()));
    let mut sack = SackBlocks::default();
    for _ in 0..rng.below(5) {
        sack.push(sequence_number(rng, [una, max]), sequence_number(rng, [max, una]));
    }
    let syn = rng.below(20) == 0;
    let bits = |rng: &mut Rng| u32::try_from(rng.next_u64() >> 32).expect("32 bits");
    Segment {
        connection: 0,
        seq: sequence_number(rng, [next, peer]),
        flags: Flags::SYN.when(syn) | Flags::FIN.when(rng.below(60) == 0),
        payload: u16::try_from(rng.below(3) * rng.below(2_000)).expect("small"),
        ack: (rng.below(10) > 0).then(|| sequence_number(rng, [una, max])),
        window: u16::try_from(bits(rng) >> 16).expect("16 bits") >> rng.below(17).min(15),
        syn_options: (syn && rng.below(2) == 0).then(|| SynOptions {
            mss: u16::try_from(bits(rng) >> 16).expect("16 bits"),
            window_shift: (rng.below(2) == 0).then(|| u8::try_from(rng.below(256)).expect("byte")),
            sack: rng.below(2) == 0,
        }),
        timestamps: (rng.below(3) > 0)
            .then(|| Timestamps { value: bits(rng), echo: bits(rng) >> rng.below(32) }),
        sack,
    }
}

/// Sends random segments to an endpoint and lets timers expire; at the end only timers, 100 times.
fn fuzz(seed: u64) {
    let mut rng = Rng::stream(seed, "garbage");
    let mut bits = || u32::try_from(rng.next_u64() >> 32).expect("32 bits");
    let (initial, peer) = (bits(), bits());
    let config = random_config(&mut rng);
    let mut endpoint = Endpoint::new(config, FlowId(0), Origin::Sender, SeqNumber(initial));
    let mut now = Instant::START;
    let mut delivered = 0;
    for step in 0..300u64 {
        let mut outbox = Outbox::new();
        let then = now + Duration::from_micros(rng.below(50_000));
        let due = endpoint.next_wake().filter(|&due| step >= 200 || due <= then);
        now = due.unwrap_or(then);
        let mut cx = Cx::new(now, NodeId(0), &mut outbox, None);
        match rng.below(12) {
            0 if step < 100 => endpoint.write(&mut cx, rng.below(20_000)),
            1 => endpoint.set_auto_read(&mut cx, rng.below(2) == 0),
            2 if step == 102 => endpoint.stop(&mut cx),
            3 => endpoint.open(&mut cx),
            _ if due.is_some() => {
                endpoint.wake(&mut cx);
                assert!(endpoint.next_wake().is_none_or(|next| next > now), "no progress");
            }
            _ => {
                let segment = random_segment(&mut rng, &endpoint, initial, peer);
                let id = PacketId(step);
                let payload = Payload::Tcp(segment);
                let packet =
                    Packet { id, created_at: now, bytes: 40, payload, ..Packet::default() };
                endpoint.on_packet(&mut cx, &packet);
            }
        }
        assert!(endpoint.next_wake().is_none_or(|next| next >= now), "a deadline in the past");
        assert_eq!(endpoint.ledger().check(), Ok(()));
        assert!(endpoint.receiver().delivered() >= delivered, "delivered bytes decreased");
        delivered = endpoint.receiver().delivered();
        assert!(endpoint.sender().una() <= endpoint.sender().max());
        drop(cx);
        let sent = outbox.drain().count();
        assert!(sent < 3_000, "{sent} segments at once");
    }
}

proptest! {
    #![proptest_config(Runner { cases: 2_000, failure_persistence: None, ..Runner::default() })]

    /// Given random segments and timers, expect no panic, no deadline in the past, no timer without
    /// progress, and a balanced ledger.
    #[test]
    fn random_segments_break_no_invariant(seed in any::<u64>()) {
        fuzz(seed);
    }
}
