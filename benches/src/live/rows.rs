//! What is measured of both emulators, in turns: other programs on the machine only ever slow them
//! down, so the best turn of each counts.

use std::io;
use std::process::{Command, Stdio};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_live::LabError;
use bentpipe_live::lab::{Config, Lab};
use bentpipe_live::measure::{
    Bare, DelayErrors, Load, Path, delay_errors_of, plain_link, small_packets_per_second,
    tcp_bits_per_second,
};
use bentpipe_sim::Side;
use bentpipe_sys::clock::Clock;

use crate::failure;
use crate::peer::{self, Peer};

/// How often each emulator is measured.
const TURNS: usize = 3;
/// How often each is started.
const STARTS: usize = 10;
/// Faster than anything here, so that it does not limit.
const WIDE_BPS: u64 = 100_000_000_000;

/// What one emulator reached.
pub(crate) struct Turns<T> {
    /// The best turn.
    pub(crate) best: T,
    /// Of how many.
    pub(crate) count: usize,
    /// In how many of them the emulator did not call the run invalid.
    pub(crate) valid: usize,
    /// Why one of them is invalid.
    pub(crate) invalid: Option<String>,
}

/// Ours, and the peer's where there is one.
pub(crate) struct Row<T> {
    pub(crate) ours: Turns<T>,
    pub(crate) peer: Option<Turns<T>>,
}

impl<T> Row<T> {
    /// The row of a figure that is derived from what was measured.
    pub(crate) fn map<U>(self, figure: impl Fn(T) -> U) -> Row<U> {
        let map = |Turns { best, count, valid, invalid }| Turns {
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

/// Measures in turns. `rank` is less the better a turn is.
fn in_turns<T>(
    ours: impl Fn() -> Measured<T>,
    peer: Option<&dyn Fn() -> Measured<T>>,
    rank: impl Fn(&T) -> f64,
) -> Result<Row<T>, LabError> {
    let (mut of_ours, mut of_peer) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        of_ours.push(ours()?);
        if let Some(peer) = peer {
            of_peer.push(peer()?);
        }
    }
    let best = |turns: Vec<(T, Option<String>)>| {
        let valid = turns.iter().filter(|(_, invalid)| invalid.is_none()).count();
        let invalid = turns.iter().find_map(|(_, invalid)| invalid.clone());
        // A valid turn is better than any that is not.
        let key = |(turn, invalid): &(T, Option<String>)| (invalid.is_some(), rank(turn));
        let order = |a: &_, b: &_| {
            let ((invalid, rank), (other_invalid, other)) = (key(a), key(b));
            invalid.cmp(&other_invalid).then(rank.total_cmp(&other))
        };
        let best = turns.into_iter().min_by(order)?.0;
        Some(Turns { best, count: TURNS, valid, invalid })
    };
    Ok(Row { ours: best(of_ours).expect("there were turns"), peer: best(of_peer) })
}

/// How exact the delay of a load's link is. `peer` is what to start for the same link.
pub(crate) fn delay_errors(
    load: Load,
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
    in_turns(ours, peer.as_ref().map(|peer| peer as &dyn Fn() -> _), rank)
}

/// The rate of one TCP flow over a link that limits nothing but the delay.
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
    in_turns(ours, peer.as_ref().map(|peer| peer as &dyn Fn() -> _), |rate| -rate)
}

/// How many packets of 64 bytes come through in a second when more are sent.
pub(crate) fn small_packets(
    time: Duration,
    peer: Option<&[&[&str]]>,
) -> Result<Row<f64>, LabError> {
    // More is sent on purpose, so the verdict says nothing.
    let of = |path: &dyn Path| Ok((small_packets_per_second(path, Side::Island, time)?, None));
    let ours = || of(&Lab::up(Config::plain(WIDE_BPS, Duration::ZERO))?);
    let peer = peer.map(|command| move || of(&Peer::up(command)?));
    in_turns(ours, peer.as_ref().map(|peer| peer as &dyn Fn() -> _), |rate| -rate)
}

/// A figure of a lab beside that of a loop that only copies.
pub(crate) fn beside_bare(
    config: &Config,
    figure: impl Fn(&dyn Path) -> Result<f64, LabError>,
) -> Result<Row<f64>, LabError> {
    let lab = || Ok((figure(&Lab::up(config.clone())?)?, None));
    let bare = || Ok((figure(&Bare::up(config)?)?, None));
    in_turns(lab, Some(&bare), |rate| -rate)
}

/// How long a program that does nothing takes behind a link, from its start to its end, in seconds:
/// the median of each emulator, if it is installed.
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
            times[1].push(peer::outside(timed)?.1);
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
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(failed(io::Error::other(said)))
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}
