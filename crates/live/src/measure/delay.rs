//! The accuracy of delay and rate.

use bentpipe_core::time::Duration;
use bentpipe_sim::Side;

use super::{Path, Stream, errors_ns, measure, with_cpu_time};
use crate::error::LabError;
use crate::lab::{Config, Lab};
use crate::plain_link::plain_link;
use bentpipe_sys::clock::Clock;

/// A link and its load, sent from the island to the world.
#[derive(Clone, Copy, Debug)]
pub struct OfferedLoad {
    /// Of each hop.
    pub rate_bps: u64,
    /// Of each hop.
    pub delay: Duration,
    /// The number of hops in series, in one process.
    pub hops: usize,
    /// The packet size at the IP layer.
    pub packet_bytes: usize,
    /// The time between packets.
    pub interval: Duration,
}

impl OfferedLoad {
    /// Packets of 1,500 bytes at a rate 5 % above that of the link, so that it is never idle.
    #[must_use]
    pub fn full(rate_bps: u64, delay: Duration) -> Self {
        const PACKET_BYTES: usize = 1_500;
        let time = PACKET_BYTES as u64 * 8 * 1_000_000_000 / rate_bps;
        let interval = Duration::from_nanos(time * 20 / 21);
        Self { rate_bps, delay, hops: 1, packet_bytes: PACKET_BYTES, interval }
    }

    /// Packets of 100 bytes, 10,000 a second, over a link of 100 Mbit/s.
    #[must_use]
    pub fn sparse(delay: Duration) -> Self {
        let interval = Duration::from_micros(100);
        Self { rate_bps: 100_000_000, delay, hops: 1, packet_bytes: 100, interval }
    }
}

/// The difference of one-way delays from the model, in nanoseconds; negative is early.
#[derive(Clone, Debug)]
pub struct DelayErrors {
    /// The packets sent.
    pub packets: u64,
    /// The packets lost.
    pub lost: u64,
    /// The minimum.
    pub min_ns: i64,
    /// The median.
    pub p50_ns: i64,
    /// The 99th percentile.
    pub p99_ns: i64,
    /// The 99.9th percentile.
    pub p999_ns: i64,
    /// The maximum.
    pub max_ns: i64,
    /// The relative error of the received rate; meaningful at full load.
    pub rate_error: f64,
    /// The packets sent per second: fewer than requested if the sender could not keep up.
    pub packets_per_second: f64,
    /// The share of one processor that moving packets took, user and system.
    pub cpu_share: f64,
    /// Why the path considers the run invalid, if it does.
    pub invalid: Option<String>,
}

impl DelayErrors {
    /// The minimum, the median, the 99th percentile and the maximum, by name.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, i64); 4] {
        let Self { min_ns, p50_ns, p99_ns, max_ns, .. } = *self;
        [("min_ns", min_ns), ("p50_ns", p50_ns), ("p99_ns", p99_ns), ("max_ns", max_ns)]
    }
}

/// Sends a load over a lab and compares the delays with the model.
///
/// # Errors
/// If no lab can be brought up, or no packet arrives.
pub fn delay_errors(load: OfferedLoad, time: Duration) -> Result<DelayErrors, LabError> {
    let plans = vec![plain_link(load.rate_bps, load.delay, 0.0); load.hops];
    delay_errors_of(&Lab::up(Config::of(plans))?, load, time)
}

/// Sends a load over a path and compares the delays with the model of the load's link.
///
/// # Errors
/// If the path fails, or no packet arrives.
#[expect(clippy::cast_precision_loss, reason = "shares and rates for display")]
pub fn delay_errors_of(
    path: &dyn Path,
    load: OfferedLoad,
    time: Duration,
) -> Result<DelayErrors, LabError> {
    let OfferedLoad { packet_bytes, interval, rate_bps, .. } = load;
    let packets = (time.as_nanos() / interval.as_nanos()).max(100);
    let stream = Stream { from: Side::Island, packet_bytes, interval, packets };
    let (samples, cpu_time) = with_cpu_time(path, || measure(path, stream, Clock::start()))?;
    let [first, .., last] = &samples[..] else {
        let error = std::io::Error::other("no packets arrived");
        return Err(LabError::machine("measuring", error, "try again"));
    };
    let frame_bits = packet_bytes as u64 * 8;
    let mut errors = errors_ns(&samples, frame_bits, &vec![(rate_bps, load.delay); load.hops]);
    errors.sort_unstable();
    let quantile = |share: f64| errors[((errors.len() - 1) as f64 * share) as usize];
    // The queue has built up after a tenth of the time.
    let steady = &samples[samples.len() / 10];
    let bits = (last.sequence - steady.sequence) * frame_bits;
    let received_bps = bits as f64 / last.received.saturating_since(steady.received).as_secs_f64();
    let sending = last.sent.saturating_since(first.sent).as_secs_f64();
    Ok(DelayErrors {
        packets,
        lost: packets - samples.len() as u64,
        min_ns: quantile(0.0),
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        p999_ns: quantile(0.999),
        max_ns: quantile(1.0),
        rate_error: received_bps / rate_bps as f64 - 1.0,
        packets_per_second: (last.sequence - first.sequence) as f64 / sending,
        cpu_share: cpu_time.as_secs_f64() / sending,
        invalid: path.invalid(),
    })
}
