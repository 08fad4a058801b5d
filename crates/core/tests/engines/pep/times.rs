//! The time of a transfer, compared with slow start on paper.
//!
//! A window of 10 segments doubles each RTT, so n segments take K rounds, with 10 (2^K - 1) >= n. On one
//! leg the first data are sent after the handshake, at r, the last round at r + (K - 1) r, and it arrives
//! half an RTT later. On two legs the handshake takes r1 + r2 as well. Then the rounds of both legs
//! overlap, so that only the longer RTT counts K - 1 times, and each packet travels r1 / 2 + r2 / 2.

use bentpipe_core::pep::PepConfig;
use bentpipe_core::time::{Duration, Instant};
use proptest::prelude::*;

use super::configured;
use super::network::{Call, Network, PipeConfig, pep, tcp};

const SEGMENT: u64 = 1_000;

/// When the last of `segments` arrives, with or without a PEP.
fn transfer(rtts_ms: [u64; 2], segments: u64, split: bool) -> Instant {
    transfer_by(if split { pep() } else { unsplit() }, rtts_ms, segments)
}

fn transfer_by(config: PepConfig, rtts_ms: [u64; 2], segments: u64) -> Instant {
    let mut network = Network::split(rtts_ms, config);
    let calls = [(0, Call::Open), (0, Call::Write(segments * SEGMENT)), (0, Call::Close)];
    network.script(&calls, &[]);
    network.run(100_000);
    assert_eq!(network.server().read_bytes, segments * SEGMENT);
    network.server().last_read
}

fn unsplit() -> PepConfig {
    PepConfig { connections_max: 0, ..pep() }
}

fn rounds(segments: u64) -> u64 {
    (1..).find(|&rounds| 10 * ((1 << rounds) - 1) >= segments).expect("a few rounds")
}

/// The two formulas of the module's description, in microseconds.
fn on_paper([r1, r2]: [u64; 2], segments: u64, split: bool) -> Instant {
    let (sum, more) = (r1 + r2, rounds(segments) - 1);
    let repeated = if split { r1.max(r2) } else { sum };
    Instant::START + Duration::from_micros(1_500 * sum + 1_000 * more * repeated)
}

proptest! {
    #![proptest_config(configured())]

    /// Given any two RTTs, below the first timeout, and size, expect exactly the time on paper, with and without a PEP. If the second
    /// leg has the shorter RTT, its rounds end before more data arrive. Its cwnd then grows by less than
    /// twice, as it is not the limit (RFC 7661), and each round but the first may take another RTT.
    #[test]
    fn a_transfer_takes_the_time_on_paper(
        r1 in 1_u64..300,
        r2 in 1_u64..600,
        segments in 1_u64..5_000,
        split in any::<bool>(),
    ) {
        let took = transfer([r1, r2], segments, split);
        let exact = on_paper([r1, r2], segments, split);
        let waits = if split && r2 < r1 { r2 * (rounds(segments) - 1) } else { 0 };
        prop_assert!(took >= exact && took <= exact + Duration::from_millis(waits), "{took}, {exact}");
    }
}

/// 1,000 segments take 7 rounds. Given a link of 500 ms and 80 ms to the server, expect a gain of six
/// times 80 ms.
#[test]
fn a_pep_saves_the_shorter_rtt_in_each_round_but_the_first() {
    let saved = transfer([80, 500], 1_000, false) - transfer([80, 500], 1_000, true);
    assert_eq!(saved, Duration::from_millis(6 * 80));
}

/// Given a PEP that accepts early, expect rounds of the near leg that begin after its own RTT, and a far
/// leg that is open after both: the first data are at the server as without early accept. If the near
/// leg has the longer RTT, its last round is an RTT of the far leg earlier; if the far leg has it, nothing is.
#[test]
fn early_accept_saves_the_far_rtt_behind_a_longer_near_leg() {
    let early = PepConfig { early_accept: true, ..pep() };
    for (rtts_ms, segments, saved_ms) in
        [([500, 80], 10, 0), ([500, 80], 1_000, 80), ([80, 500], 10, 0), ([80, 500], 1_000, 0)]
    {
        let accepted_early = transfer_by(early.clone(), rtts_ms, segments);
        let saved = transfer(rtts_ms, segments, true) - accepted_early;
        assert_eq!(saved, Duration::from_millis(saved_ms), "{rtts_ms:?}, {segments} segments");
    }
}

/// Given 10 Mbit/s and no losses, expect the same time for each further megabyte, with and without a
/// PEP: 1,000 segments of 1,040 bytes at the IP layer take 832 ms.
#[test]
fn the_steady_state_is_unchanged() {
    for split in [false, true] {
        let config = if split { pep() } else { unsplit() };
        let link = PipeConfig { rate_bps: 10_000_000, ..PipeConfig::of_rtt(500) };
        let pipes = [PipeConfig::of_rtt(80), link];
        let mut network = Network::new(&[[tcp(); 2]], &pipes, [config]);
        network.script(&[(0, Call::Open), (0, Call::Write(40_000_000))], &[]);
        network.run(20_000);
        let before = network.server().read_bytes;
        network.run(20_000 + 832);
        assert_eq!(network.server().read_bytes - before, 1_000_000, "split: {split}");
    }
}
