//! How exact delay and rate are.

use bentpipe_core::time::Duration;
use bentpipe_sim::Side;

use super::{Stream, errors_ns, measure, plain_link, while_running};
use crate::error::LabError;
use crate::lab::{Config, Lab};
use bentpipe_sys::clock::Clock;

/// A link and what is sent over it from the world to the island.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Of each hop.
    pub rate_bps: u64,
    /// Of each hop.
    pub delay: Duration,
    /// Hops in a row, in one process.
    pub hops: usize,
    /// At the IP layer.
    pub packet_bytes: usize,
    /// From one packet to the next.
    pub interval: Duration,
}

impl Load {
    /// Packets of 1,500 bytes, by a twentieth more than the link carries: it is never idle.
    #[must_use]
    pub fn full(rate_bps: u64, delay: Duration) -> Self {
        const PACKET_BYTES: usize = 1_500;
        let time = PACKET_BYTES as u64 * 8 * 1_000_000_000 / rate_bps;
        let interval = Duration::from_nanos(time * 20 / 21);
        Self { rate_bps, delay, hops: 1, packet_bytes: PACKET_BYTES, interval }
    }
}

/// By how much one-way delays differ from those of the model, in nanoseconds: negative is early.
#[derive(Clone, Debug)]
pub struct DelayErrors {
    /// How many packets were sent.
    pub packets: u64,
    /// How many of them did not come.
    pub lost: u64,
    /// The earliest.
    pub min_ns: i64,
    /// The median.
    pub p50_ns: i64,
    /// What 99 of 100 did not exceed.
    pub p99_ns: i64,
    /// The latest.
    pub max_ns: i64,
    /// At which rate packets came, over the link's, less one; it means something at full load.
    pub rate_error: f64,
    /// What the lab says of its own lateness.
    pub lateness_p99: Duration,
    /// Why the lab says that the run does not count, if it does.
    pub invalid: Option<String>,
}

/// Sends a load for some time and compares.
///
/// # Errors
/// If there can be no lab, or nothing comes.
#[expect(clippy::cast_precision_loss, reason = "shares and rates for people")]
pub fn delay_errors(load: Load, time: Duration) -> Result<DelayErrors, LabError> {
    let plans = vec![plain_link(load.rate_bps, load.delay, 0.0); load.hops];
    let lab = Lab::up(Config::of(plans))?;
    let packets = (time.as_nanos() / load.interval.as_nanos()).max(100);
    let Load { packet_bytes, interval, .. } = load;
    let stream = Stream { from: Side::World, packet_bytes, interval, packets };
    let seen = while_running(&lab, || measure(&lab, stream, Clock::start()))?;
    let [.., last] = &seen[..] else {
        let error = std::io::Error::other("no packet came");
        return Err(LabError::machine("measuring", error, "try again"));
    };
    let frame_bits = packet_bytes as u64 * 8;
    let mut errors = errors_ns(&seen, frame_bits, &vec![(load.rate_bps, load.delay); load.hops]);
    errors.sort_unstable();
    let quantile = |share: f64| errors[((errors.len() - 1) as f64 * share) as usize];
    // The queue is there after a tenth of the time.
    let settled = &seen[seen.len() / 10];
    let bits = (last.sequence - settled.sequence) * frame_bits;
    let rate_bps = bits as f64 / last.received.saturating_since(settled.received).as_secs_f64();
    let report = lab.report();
    Ok(DelayErrors {
        packets,
        lost: packets - seen.len() as u64,
        min_ns: quantile(0.0),
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        max_ns: quantile(1.0),
        rate_error: rate_bps / load.rate_bps as f64 - 1.0,
        lateness_p99: report.punctuality.lateness.quantile(0.99),
        invalid: report.invalid,
    })
}
