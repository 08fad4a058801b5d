//! Measurements of both emulators in alternating rounds. Other programs can only slow a round down,
//! so the best round of each counts.

use std::io;
use std::process::{Command, Stdio};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_live::lab::{Config, Lab};
use bentpipe_live::measure::{
    DelayErrors, Forwarder, OfferedLoad, Path, delay_errors_of, small_packets_per_second,
    tcp_bits_per_second,
};
use bentpipe_live::{LabError, plain_link};
use bentpipe_sim::Side;
use bentpipe_sys::clock::Clock;

use crate::failure;
use crate::peer::{self, Peer};

/// The number of rounds.
const ROUNDS: usize = 3;
/// The number of starts to time.
const STARTS: usize = 10;
/// Faster than any machine forwards, so that the link is not the bottleneck.
const WIDE_BPS: u64 = 100_000_000_000;

/// The result of one emulator.
pub(crate) struct Rounds<T> {
    /// The best round.
    pub(crate) best: T,
    /// The number of rounds.
    pub(crate) count: usize,
    /// The number of rounds that the emulator did not consider invalid.
    pub(crate) valid: usize,
    /// Why one of them is invalid.
    pub(crate) invalid: Option<String>,
}

/// bentpipe's result, and the peer's if it is installed.
pub(crate) struct Row<T> {
    pub(crate) ours: Rounds<T>,
    pub(crate) peer: Option<Rounds<T>>,
}

impl<T> Row<T> {
    /// Derives another figure from a row.
    pub(crate) fn map<U>(self, figure: impl Fn(T) -> U) -> Row<U> {
        let map = |Rounds { best, count, valid, invalid }| Rounds {
            best: figure(best),
            count,
            valid,
            invalid,
        };
        Row { ours: map(self.ours), peer: self.peer.map(map) }
    }
}

/// A figure, and why its run is invalid, if it is.
type Measured<T> = Result<(T, Option<String>), LabError>;

/// Measures in alternating rounds. A lower `rank` is better.
fn in_rounds<T>(
    ours: impl Fn() -> Measured<T>,
    peer: Option<&dyn Fn() -> Measured<T>>,
    rank: impl Fn(&T) -> f64,
) -> Result<Row<T>, LabError> {
    let (mut of_ours, mut of_peer) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_ours.push(ours()?);
        if let Some(peer) = peer {
            of_peer.push(peer()?);
        }
    }
    let best = |rounds: Vec<(T, Option<String>)>| {
        let valid = rounds.iter().filter(|(_, invalid)| invalid.is_none()).count();
        let invalid = rounds.iter().find_map(|(_, invalid)| invalid.clone());
        // A valid round is better than an invalid one.
        let key = |(round, invalid): &(T, Option<String>)| (invalid.is_some(), rank(round));
        let order = |a: &_, b: &_| {
            let ((invalid, rank), (other_invalid, other)) = (key(a), key(b));
            invalid.cmp(&other_invalid).then(rank.total_cmp(&other))
        };
        let best = rounds.into_iter().min_by(order)?.0;
        Some(Rounds { best, count: ROUNDS, valid, invalid })
    };
    Ok(Row { ours: best(of_ours).expect("three rounds"), peer: best(of_peer) })
}

/// The accuracy of the delay of a load's link. `peer` is the peer's command for the same link.
pub(crate) fn delay_errors(
    load: OfferedLoad,
    time: Duration,
    peer: Option<&[&[&str]]>,
    rank: impl Fn(&DelayErrors) -> f64,
) -> Result<Row<DelayErrors>, LabError> {
    let of = |path: &dyn Path| {
        let errors = delay_errors_of(path, load, time)?;
        let invalid = errors.invalid.clone();
        Ok((errors, invalid))
    };
    let plans = vec![plain_link(load.rate_bps, load.delay, 0.0); load.hops];
    let ours = || of(&Lab::up(Config::of(plans.clone()))?);
    let peer = peer.map(|command| move || of(&Peer::up(command)?));
    in_rounds(ours, peer.as_ref().map(|peer| peer as &dyn Fn() -> _), rank)
}

/// The goodput of one TCP flow over a link whose only limit is the delay.
pub(crate) fn tcp(
    delay: Duration,
    super_packets: bool,
    time: Duration,
    peer: Option<&[&[&str]]>,
) -> Result<Row<f64>, LabError> {
    let of = |path: &dyn Path| {
        let rate = tcp_bits_per_second(path, Side::Island, time)?;
        Ok((rate, path.invalid()))
    };
    let ours = || of(&Lab::up(Config { super_packets, ..Config::plain(WIDE_BPS, delay) })?);
    let peer = peer.map(|command| move || of(&Peer::up(command)?));
    in_rounds(ours, peer.as_ref().map(|peer| peer as &dyn Fn() -> _), |rate| -rate)
}

/// The packets of 64 bytes that pass in a second when more are sent.
pub(crate) fn small_packets(
    time: Duration,
    peer: Option<&[&[&str]]>,
) -> Result<Row<f64>, LabError> {
    // The overload is intended, so the verdict does not matter.
    let of = |path: &dyn Path| Ok((small_packets_per_second(path, Side::Island, time)?, None));
    let ours = || of(&Lab::up(Config::plain(WIDE_BPS, Duration::ZERO))?);
    let peer = peer.map(|command| move || of(&Peer::up(command)?));
    in_rounds(ours, peer.as_ref().map(|peer| peer as &dyn Fn() -> _), |rate| -rate)
}

/// A figure of a lab compared with that of a copy loop.
pub(crate) fn compare_with_forwarder(
    config: &Config,
    figure: impl Fn(&dyn Path) -> Result<f64, LabError>,
) -> Result<Row<f64>, LabError> {
    let lab = || Ok((figure(&Lab::up(config.clone())?)?, None));
    let bare = || Ok((figure(&Forwarder::up(config)?)?, None));
    in_rounds(lab, Some(&bare), |rate| -rate)
}

/// The time from start to end of a program that does nothing behind a link, in seconds: the median
/// for each emulator that is installed.
pub(crate) fn set_up(peer: bool) -> Result<[Option<f64>; 2], LabError> {
    let ours = peer::find("bentpipe");
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..STARTS {
        if let Some(program) = &ours {
            let mut command = Command::new(program);
            times[0].push(seconds_of(command.args(["exec", "--link", "geo", "true"]))?);
        }
        if peer {
            let timed = || seconds_of(&mut peer::command(&["mm-delay", "275", "true"]));
            times[1].push(peer::new_namespace(timed)?.1);
        }
    }
    Ok(times.map(median))
}

fn seconds_of(command: &mut Command) -> Result<f64, LabError> {
    let failed = |error| failure("starting an emulator", error);
    let clock = Clock::start();
    let output = command.stdin(Stdio::null()).output().map_err(failed)?;
    let time = clock.now().saturating_since(Instant::START).as_secs_f64();
    if output.status.success() {
        return Ok(time);
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(failed(io::Error::other(stderr)))
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}
