//! Fuzz targets. `cargo test -p bentpipe-fuzz` replays the corpus of each and some random inputs;
//! `cargo bolero test` searches for new ones (see CONTRIBUTING.md).
//!
//! Every target takes bytes and decodes them itself, so that a corpus stays valid with other versions
//! of the fuzzer. The corpus of a target is in `__fuzz__/<module>__<function>/corpus`.

mod admission;
mod coding;
mod decoder;
mod endpoint;
mod engines;
mod feedback;
mod frames;
mod gateway;
mod headers;
mod http;
mod packets;
mod pcapng;
mod pep;
mod plans;
mod tunnel;
mod tunnel_path;

use std::fs;
use std::path::Path;

/// Random inputs per target in addition to the corpus; `BOLERO_RANDOM_ITERATIONS` overrides it.
const ITERATIONS: usize = 1_000;

/// A corpus in a folder that no target reads would never be replayed.
#[test]
fn every_target_has_a_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets/__fuzz__");
    let mut found: Vec<_> = fs::read_dir(&folder)
        .expect("the folder exists")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
        .collect();
    found.sort();
    let targets = [
        "admission__any_events",
        "coding__any_packets",
        "coding__any_symbols",
        "endpoint__any_events",
        "engines__any_packets",
        "feedback__any_messages",
        "frames__any_payload",
        "gateway__any_configuration",
        "gateway__any_gateway_plan",
        "gateway__any_message",
        "gateway__any_metrics_request",
        "gateway__any_syn",
        "headers__any_bytes",
        "http__any_request",
        "packets__any_offload",
        "packets__any_packets_in_a_lab",
        "pcapng__any_capture",
        "pep__any_events",
        "plans__any_text",
        "tunnel__any_events",
        "tunnel__any_header",
        "tunnel__any_key",
        "tunnel_path__any_datagram",
        "tunnel_path__any_messages_and_packets",
    ];
    assert_eq!(found, targets);
    for target in targets {
        let corpus = fs::read_dir(folder.join(target).join("corpus")).expect("a corpus");
        assert!(corpus.count() > 0, "{target}");
    }
}
