//! What a gateway reads: its configuration, SYNs from the network, requests for metrics, plans, and the messages between its
//! parts. Any bytes are refused, or are what they say when they are written again.

use bentpipe_core::wire::Headers;
use bentpipe_gate::config::{Config, Files};
use bentpipe_gate::daemon::{
    Leftovers, MetricsPage, MetricsRequest, Plan, SocketRequest, Start, State,
};
use bentpipe_gate::transparent::Syn;

use crate::ITERATIONS;

/// The offset of the flags in a TCP header, and those of a reset that acknowledges.
const FLAGS: usize = 13;
const RST_ACK: u8 = 0x14;

/// A SYN has a right checksum, its refusal leads back, and both are read again as they are. Those that open nothing lead in
/// both directions.
#[test]
fn any_syn() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let Some((first, packet)) = bytes.split_first() else { return };
        let Some(syn) = Syn::parse(packet, first & 1 == 1) else { return };
        assert!(syn.packet().len() <= packet.len());
        // Its checksum was right, or was computed.
        assert_eq!(Syn::parse(syn.packet(), true).as_ref(), Some(&syn));
        let refusal = syn.refusal();
        let headers = Headers::of(&refusal).expect("a whole packet");
        let tuple = headers.tuple;
        assert_eq!(
            (tuple.source, tuple.source_port),
            (syn.ends().server.ip(), syn.ends().server.port())
        );
        assert_eq!(
            (tuple.destination, tuple.destination_port),
            (syn.ends().client.ip(), syn.ends().client.port())
        );
        assert_eq!(refusal[headers.transport_offset + FLAGS], RST_ACK);
        let tuples = syn.reopening().map(|packet| Headers::of(&packet).expect("a packet").tuple);
        assert_eq!(tuples, [tuple.reversed(), tuple]);
    });
}

/// A request for a page of metrics begins with its line and ends with an empty one; each of its beginnings is incomplete.
#[test]
fn any_metrics_request() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        match MetricsRequest::parse(bytes) {
            MetricsRequest::Page { page, is_head } => {
                let method = if is_head { "HEAD" } else { "GET" };
                let path = if page == MetricsPage::Index { "/" } else { "/metrics" };
                assert!(bytes.starts_with(format!("{method} {path} HTTP/1.").as_bytes()));
                assert!(bytes.ends_with(b"\r\n\r\n"));
                assert_eq!(
                    MetricsRequest::parse(&bytes[..bytes.len() - 1]),
                    MetricsRequest::Incomplete
                );
            }
            MetricsRequest::Incomplete => assert!(bytes.len() < 4_096),
            MetricsRequest::Other => {
                // More bytes make no request of it.
                let longer = [bytes, b"\r\n\r\n"].concat();
                assert_ne!(MetricsRequest::parse(&longer), MetricsRequest::Incomplete);
            }
        }
    });
}

/// A plan that is accepted is accepted again, and one that is refused has a message.
#[test]
fn any_gateway_plan() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        match Plan::parse(text) {
            Ok(plan) => {
                let written = serde_json::to_string(&plan).expect("text");
                assert_eq!(Plan::parse(&written).expect("it was accepted"), plan);
                Leftovers::parse(text).expect("a plan says what it leaves");
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput),
        }
    });
}

/// The messages between the two parts: the start of a worker, its report, and its request for sockets.
#[test]
fn any_message() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let Some((kind, message)) = bytes.split_first() else { return };
        match kind % 3 {
            0 => {
                let Ok(start) = Start::parse(message) else { return };
                let written = serde_json::to_vec(&start).expect("text");
                assert_eq!(Start::parse(&written).expect("it was accepted"), start);
            }
            1 => {
                let Ok(state) = State::parse(message) else { return };
                let written = serde_json::to_vec(&state).expect("text");
                assert_eq!(State::parse(&written).expect("it was accepted"), state);
                let Some(report) = state.pep else { return };
                let mut sum = report;
                sum.add(&report);
                let expected = report.split_connections.saturating_mul(2);
                assert_eq!(sum.split_connections, expected);
            }
            _ => assert_eq!(
                SocketRequest::parse(message).is_some(),
                matches!(message, [0 | 1, 0 | 1])
            ),
        }
    });
}

/// A configuration becomes a plan that is read again as it is, or one that the daemon refuses; another text has one mistake
/// at least.
#[test]
fn any_configuration() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        match Config::parse(text, "sat.toml") {
            Ok(config) => {
                let file = |name: &str| std::path::PathBuf::from(format!("/none/{name}"));
                let files =
                    Files { state: file("state"), control: file("control"), others: vec![] };
                let plan = config.plan(std::path::Path::new("/none/sat.toml"), &files);
                let written = serde_json::to_string(&plan).expect("a plan is JSON");
                if let Ok(read) = Plan::parse(&written) {
                    assert_eq!(read, plan);
                }
            }
            Err(problems) => assert!(!problems.problems.is_empty()),
        }
    });
}
