//! Queues that several tests use.

use bentpipe_core::link::{Limit, RedConfig, Unit};
use bentpipe_core::units::{Bits, Probability};

/// RED with thresholds of 5 and 15 packets of 1,000 bytes.
pub(crate) fn red(limit: Limit) -> RedConfig {
    RedConfig {
        limit,
        unit: Unit::Packets,
        min_threshold: 5,
        max_threshold: 15,
        max_probability: Probability::new(0.1).expect("a probability"),
        weight: Probability::new(0.1).expect("a probability"),
        gentle: true,
        ecn: true,
        mean_packet_bytes: 1_000,
        mean_frame: Bits(8 * 1_000),
    }
}
