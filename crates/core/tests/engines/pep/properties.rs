//! Property tests: every stream arrives complete, for any losses, delays, buffers, calls and readers.
//!
//! `PROPTEST_CASES` and `PROPTEST_RNG_SEED` (read by proptest) run more cases, or the same ones again.

use bentpipe_core::conformance::{Guarantees, check};
use bentpipe_core::pep::{LegConfig, Pep, PepConfig};
use bentpipe_core::tcp::Config;
use bentpipe_core::tcp::config::{CongestionName, StackVariant};
use bentpipe_core::time::Duration;
use proptest::prelude::*;

use super::configured;
use super::network::{Call, Network, PipeConfig, numbered, pep, tcp};

/// What one host writes and when, when it closes, and how it reads.
#[derive(Clone, Debug)]
struct App {
    writes: Vec<(u64, u64)>,
    close_ms: u64,
    /// Bytes per millisecond until a time, and then everything at once.
    reads: u64,
    reads_all_ms: u64,
}

impl App {
    fn bytes(&self) -> u64 {
        self.writes.iter().map(|write| write.1).sum()
    }

    /// The calls in order of time.
    fn calls(&self, opens: bool) -> Vec<(u64, Call)> {
        let mut calls: Vec<_> =
            self.writes.iter().map(|&(at, bytes)| (at, Call::Write(bytes))).collect();
        calls.extend([(0, Call::Read(self.reads)), (self.reads_all_ms, Call::Read(1 << 40))]);
        calls.extend(opens.then_some((0, Call::Open)));
        calls.sort_by_key(|call| call.0);
        let last_write = self.writes.iter().map(|write| write.0).max().unwrap_or(0);
        let close = last_write.max(self.close_ms);
        let at = calls.partition_point(|call| call.0 <= close);
        calls.insert(at, (close, Call::Close));
        calls
    }
}

fn apps() -> impl Strategy<Value = App> {
    let writes = prop::collection::vec((0_u64..4_000, 0_u64..120_000), 0..4);
    (writes, 0_u64..5_000, 0_u64..2_000, 0_u64..20_000).prop_map(
        |(writes, close_ms, reads, reads_all_ms)| App { writes, close_ms, reads, reads_all_ms },
    )
}

fn hosts() -> impl Strategy<Value = Config> {
    let buffers = (1_000_u64..200_000, 1_000_u64..200_000, 1_000_u64..200_000);
    let congestion = (0..CongestionName::ALL.len()).prop_map(|n| CongestionName::ALL[n].1);
    let flags = prop::collection::vec(any::<bool>(), 6);
    (buffers, congestion, flags, 1_u32..30, 1_u32..3).prop_map(
        |((send, receive, initial), congestion, flags, initial_window, delayed)| {
            let mut config = Config {
                congestion,
                initial_window_segments: initial_window,
                sack: flags[0],
                timestamps: flags[1],
                window_scaling: flags[2],
                rack_tlp: flags[3],
                prr: flags[4],
                stack: if flags[5] { StackVariant::Linux } else { StackVariant::Rfc },
                send_buffer: send,
                receive_buffer: receive,
                receive_buffer_initial: initial.min(receive),
                ..tcp()
            };
            config.acks.delayed_segments = delayed;
            config
        },
    )
}

fn legs() -> impl Strategy<Value = LegConfig> {
    (hosts(), prop::option::of(1_u64..50_000))
        .prop_map(|(tcp, unsent_low_water)| LegConfig { tcp, unsent_low_water })
}

fn peps() -> impl Strategy<Value = PepConfig> {
    (legs(), legs(), 0_u64..100_000, any::<bool>(), 0_usize..4).prop_map(
        |(lan, link, buffer_bytes, early_accept, connections_max)| PepConfig {
            lan,
            link,
            buffer_bytes,
            early_accept,
            connections_max,
            ..pep()
        },
    )
}

fn pipes() -> impl Strategy<Value = PipeConfig> {
    (0_u64..300_000, 0_u64..50_000, 0_u64..80, 0_u64..20_000_000).prop_map(
        |(delay_us, jitter_us, losses, rate_bps)| PipeConfig {
            delay: Duration::from_micros(delay_us),
            jitter: Duration::from_micros(if jitter_us < 25_000 { 0 } else { jitter_us }),
            losses: losses.saturating_sub(20),
            rate_bps: if rate_bps < 200_000 { 0 } else { rate_bps },
        },
    )
}

#[derive(Clone, Debug)]
struct Setup {
    apps: Vec<[App; 2]>,
    hosts: [Config; 2],
    pipes: Vec<PipeConfig>,
    peps: Vec<PepConfig>,
}

impl Setup {
    fn network(&self) -> Network {
        let hosts = vec![self.hosts; self.apps.len()];
        let mut network = Network::new(&hosts, &self.pipes, self.peps.clone());
        for (number, [client, server]) in self.apps.iter().enumerate() {
            network.calls(network.clients[number], &client.calls(true));
            network.calls(network.servers[number], &server.calls(false));
        }
        network
    }
}

fn setups() -> impl Strategy<Value = Setup> {
    let apps = prop::collection::vec([apps(), apps()], 1..4);
    let peps = prop::collection::vec(peps(), 1..3);
    (apps, [hosts(), hosts()], prop::collection::vec(pipes(), 3), peps).prop_map(
        |(apps, hosts, mut pipes, peps)| {
            pipes.truncate(peps.len() + 1);
            Setup { apps, hosts, pipes, peps }
        },
    )
}

/// A day.
const END_MS: u64 = 86_400_000;

proptest! {
    #![proptest_config(configured())]

    /// Expect that both hosts read what the other one wrote and its FIN, that no buffer ever holds more
    /// than its size, that no state remains, and that the PEP keeps the contract of engines.
    #[test]
    fn every_stream_arrives_complete(setup in setups()) {
        let mut network = setup.network();
        for at_ms in (0..20_000).step_by(250) {
            network.run(at_ms);
        }
        network.run(END_MS);
        for (number, [client, server]) in setup.apps.iter().enumerate() {
            let [client_node, server_node] = [network.clients[number], network.servers[number]];
            prop_assert_eq!(network.host(client_node).read_bytes, server.bytes(), "flow {}", number);
            prop_assert_eq!(network.host(server_node).read_bytes, client.bytes(), "flow {}", number);
            for node in [client_node, server_node] {
                prop_assert!(network.host(node).endpoint().is_closed(), "flow {}", number);
                prop_assert!(!network.host(node).endpoint().is_reset(), "flow {}", number);
            }
        }
        for number in 0..setup.peps.len() {
            prop_assert_eq!(network.pep(number).open_connections(), 0);
        }
        prop_assert!(network.graph.next_event().is_none());
        for (config, number) in setup.peps.iter().zip(0..) {
            let build = || Pep::new(numbered(config.clone(), number));
            let script = network.recorded(number as usize);
            prop_assert_eq!(check(build, &Guarantees::default(), script), Ok(()), "PEP {}", number);
        }
    }

    /// Given a host that aborts at any time, expect that the other one reads a part of the stream, that a
    /// FIN comes only behind the whole stream, and without losses that it is reset or done.
    #[test]
    fn a_reset_truncates_without_a_fin(
        setup in setups(),
        (end, at_ms) in (0_usize..2, 0_u64..6_000),
    ) {
        let mut network = setup.network();
        let ends = [network.clients[0], network.servers[0]];
        network.run(at_ms);
        network.graph.alter(network.graph.now(), ends[end], None, |node, cx| {
            if let super::network::Node::Host(host) = node {
                host.abort(cx);
            }
        });
        for after in (0..20_000).step_by(500) {
            network.run(at_ms + after);
        }
        network.run(END_MS);
        let written = setup.apps[0][end].bytes();
        let peer = network.host(ends[1 - end]);
        prop_assert!(peer.read_bytes <= written);
        if peer.endpoint().readiness().fin && !peer.endpoint().is_reset() {
            prop_assert_eq!(peer.read_bytes, written);
        }
        let is_over = peer.endpoint().is_closed() || peer.endpoint().stats().established.is_none();
        if setup.pipes.iter().all(|pipe| pipe.losses == 0) {
            prop_assert!(is_over, "{:?}", peer.endpoint().readiness());
        }
    }
}
