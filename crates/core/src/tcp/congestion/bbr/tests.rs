//! BBR over a path that can be computed on paper, and BBR told facts by hand.
//!
//! The path is a bottleneck of 1,250 segments of 1000 bytes a second (10 Mbit/s) without a limit to
//! its queue, and 100 ms there and back. So it holds 125 segments, and each takes 0.8 ms.

use std::collections::VecDeque;

use super::*;
use crate::packet::seq::Position;

const SEGMENT: u64 = 1_000;
const RATE: u64 = 1_250_000;
const RTT: Duration = Duration::from_millis(100);
const SERVICE: Duration = Duration::from_micros(800);
const BDP: u64 = 125 * SEGMENT;

/// What so many segments take at the bottleneck.
fn services(segments: u64) -> Duration {
    SERVICE.saturating_mul(segments)
}

struct Path {
    bbr: Bbr,
    window: Window,
    now: Instant,
    /// Positions up to which all was sent and acknowledged.
    sent: Position,
    acked: Position,
    segments: u64,
    /// When the bottleneck has sent all it has.
    free: Instant,
    /// When which ACK comes.
    acks: VecDeque<(Instant, Position)>,
    rtt: Duration,
}

impl Path {
    /// A sender with endless data and an initial window of ten segments.
    fn new(seed: u64) -> Self {
        let mut bbr = Bbr::new();
        bbr.set_chance(Rng::stream(seed, "bbr test"));
        let window = Window { cwnd: 10 * SEGMENT, ssthresh: None, segment: SEGMENT };
        bbr.opened(Instant::START, Some(RTT), &window);
        Self {
            bbr,
            window,
            now: Instant::START,
            sent: 0,
            acked: 0,
            segments: 0,
            free: Instant::START,
            acks: VecDeque::new(),
            rtt: RTT,
        }
    }

    fn in_flight(&self) -> u64 {
        self.sent - self.acked
    }

    fn queue(&self) -> u64 {
        in_time(RATE, self.free.saturating_since(self.now))
    }

    fn window_allows(&self) -> bool {
        self.in_flight() + SEGMENT <= self.window.cwnd
    }

    fn send(&mut self) {
        while self.window_allows() && self.bbr.pacer.lets_out(self.now, SEGMENT) {
            let (alone, end) = (self.in_flight() == 0, self.sent + SEGMENT);
            if alone {
                self.bbr.restarted(self.now, &mut self.window);
            }
            self.bbr.rate.sent(self.now, self.sent, end, alone);
            self.bbr.pacer.sent(self.now, SEGMENT, SEGMENT, self.segments);
            self.free = self.free.max(self.now) + SERVICE;
            self.acks.push_back((self.free + self.rtt, end));
            self.sent = end;
            self.segments += 1;
        }
    }

    /// Sends what may be sent until the next ACK comes, and takes that.
    fn take_ack(&mut self) {
        self.send();
        let &(ack_at, end) = self.acks.front().expect("something is in flight");
        while self.window_allows() && self.bbr.pacer.next() < ack_at {
            self.now = self.bbr.pacer.next();
            self.send();
        }
        self.acks.pop_front();
        self.now = ack_at;
        let in_flight_before = self.in_flight();
        self.acked = end;
        let rate = &mut self.bbr.rate;
        let newest = rate.newest_before(end);
        let facts = Facts {
            now: ack_at,
            rtt: newest.and_then(|newest| newest.round_trip(ack_at)),
            sample: rate.acked(ack_at, end, SEGMENT, newest, Some(RTT)),
            acked: SEGMENT,
            delivered: rate.delivered(),
            delivered_at: rate.delivered_at(),
            in_flight_before,
            in_flight: self.in_flight(),
            ..Facts::default()
        };
        self.bbr.update(&facts, &mut self.window);
    }

    /// Takes ACKs until something holds, for a minute at most.
    #[track_caller]
    fn until(&mut self, holds: impl Fn(&Self) -> bool) {
        let end = self.now + Duration::from_secs(60);
        while !holds(self) {
            self.take_ack();
            assert!(self.now < end, "within a minute, not in {:?}", self.bbr.mode());
        }
    }

    fn since(&self, then: Instant) -> Duration {
        self.now.saturating_since(then)
    }
}

fn is_probing(path: &Path) -> bool {
    matches!(path.bbr.mode(), Mode::ProbeBandwidth(..))
}

fn probes_rtt(path: &Path) -> bool {
    matches!(path.bbr.mode(), Mode::ProbeRtt(_))
}

/// STARTUP, on paper: each ACK adds what it acknowledges, so the window doubles each round, and a
/// gain of 2.89 lets the pace follow. Rounds 1 to 4 have 10, 20, 40 and 80 segments; the fifth has
/// 160, more than the 125 of the path, and shows 95 % of its rate at least. No later round shows a
/// quarter more, so the third one after it is the last: by then 2.89 times the path's content is in
/// flight.
#[test]
fn startup_doubles_each_round_and_ends_after_three_without_growth() {
    let mut path = Path::new(1);
    let mut rounds = Vec::new();
    while path.bbr.mode() == Mode::Startup {
        path.take_ack();
        if path.bbr.round_start {
            rounds.push((path.window.cwnd / SEGMENT, path.bbr.bandwidth(), path.bbr.full_rounds));
        }
    }
    // The ACK that begins a round has added one segment already.
    let windows: Vec<_> = rounds.iter().take(4).map(|round| round.0).collect();
    assert_eq!(windows, [11, 21, 41, 77], "the fourth had its last two bursts still to send");
    let bandwidths: Vec<_> = rounds.iter().map(|round| round.1).collect();
    assert!(bandwidths[..6].windows(2).all(|pair| pair[1] * 2 >= pair[0] * 3), "{bandwidths:?}");
    assert!(bandwidths[5] >= RATE * 95 / 100 && bandwidths[8] == RATE, "{bandwidths:?}");
    let without_growth: Vec<_> = rounds.iter().map(|round| round.2).collect();
    assert_eq!(without_growth, [0, 0, 0, 0, 0, 0, 1, 2, 3]);
    let in_flight = path.in_flight();
    assert!((BDP * 288 / 100..BDP * 3).contains(&in_flight), "{in_flight}");
    assert_eq!(path.bbr.mode(), Mode::Drain);
    let holds = path.window.ssthresh.expect("set for others to see");
    assert!((BDP..BDP + 20 * SEGMENT).contains(&holds), "{holds}");
}

/// DRAIN, on paper: with 2.96 BDP in flight, the queue holds 1.96 BDP (244 segments) less what has
/// been sent in the last moment. Sent is 99 % of 256/739 of the rate, so the queue falls at 0.657
/// of the rate: by 244 segments in 297 ms. It ends a little early: when no more will be in flight
/// at the next sending than BDP, three bursts of two, and one to make it even. The next sending is
/// two segments at 0.343 of the rate away at most, in which the path delivers six.
#[test]
fn drain_ends_with_one_bdp_in_flight() {
    let mut path = Path::new(1);
    path.until(|path| path.bbr.mode() == Mode::Drain);
    let (began, queue) = (path.now, path.queue());
    assert!((queue / SEGMENT).abs_diff(244) <= 2, "{queue}");
    path.until(is_probing);
    let lasted = path.since(began);
    let least = Duration::from_millis(297 - 20);
    assert!((least..Duration::from_millis(297)).contains(&lasted), "{lasted:?}");
    let most = BDP + (3 * 2 + 1 + 6) * SEGMENT;
    assert!((BDP..=most).contains(&path.in_flight()), "{}", path.in_flight());
}

/// The phases that a path goes through in two seconds of `PROBE_BW`: which, when, with what pace,
/// and the largest queue.
fn phases(path: &mut Path) -> Vec<(usize, Instant, u64, u64)> {
    path.until(is_probing);
    let mut phases: Vec<(usize, Instant, u64, u64)> = Vec::new();
    let end = path.now + Duration::from_secs(2);
    while path.now < end {
        let Mode::ProbeBandwidth(phase, since) = path.bbr.mode() else { panic!("it stays") };
        if phases.last().is_none_or(|last| last.1 != since) {
            phases.push((phase, since, path.bbr.pacer.rate(), 0));
        }
        let last = phases.last_mut().expect("there");
        last.3 = last.3.max(path.queue());
        path.take_ack();
    }
    phases
}

/// `PROBE_BW`, on paper: eight phases of one round trip each, with gains of 5/4, 3/4 and six times
/// 1, of 99 % of the bandwidth. The first adds 0.2375 of the rate (1.25 * 0.99 - 1) for a round
/// trip: 30 segments of queue. The second takes 0.2575 and ends when no more than BDP (and the
/// allowance of bursts) is in flight, a round trip later at the latest. The others take 1 % a round
/// trip.
#[test]
fn the_gain_cycle_probes_drains_and_cruises() {
    let mut path = Path::new(1);
    let phases = phases(&mut path);
    assert!(phases.len() > 18, "20 round trips, more or less");
    let segments = |bytes: u64| bytes.div_ceil(SEGMENT);
    for (number, pair) in phases.windows(2).enumerate().skip(1) {
        let (phase, since, pace, queue) = pair[0];
        assert_eq!(pair[1].0, (phase + 1) % 8, "in turn");
        let percent = [125, 75, 100, 100, 100, 100, 100, 100][phase];
        let expected = RATE * percent / 100 * 99 / 100;
        assert!(pace.abs_diff(expected) <= expected / 100, "phase {phase}: {pace}");
        let lasted = pair[1].1.saturating_since(since);
        let (least, most) = match phase {
            // Until the flight is what was aimed at: a round trip and what the burst takes to return.
            0 => (RTT, RTT + Duration::from_millis(40)),
            1 => (Duration::ZERO, RTT + services(2)),
            _ => (RTT, RTT + services(2)),
        };
        assert!((least..=most).contains(&lasted), "{number}, phase {phase}: {lasted:?}");
        match phase {
            0 => assert!((24..=42).contains(&segments(queue)), "probing: {queue}"),
            1 => {}
            2.. => assert!(segments(queue) <= 12, "phase {phase}: {queue}"),
        }
    }
}

/// The cycle begins anywhere but in the phase that drains, so that flows do not probe together.
#[test]
fn flows_begin_the_cycle_in_different_phases() {
    let mut begun = [0u32; 8];
    for seed in 0..350 {
        let mut bbr = Path::new(seed).bbr;
        bbr.probe_bandwidth(Instant::START);
        let Mode::ProbeBandwidth(phase, _) = bbr.mode() else { panic!("that was asked for") };
        begun[phase] += 1;
    }
    // 50 each, with a standard deviation of 6.5.
    assert_eq!(begun[1], 0);
    assert!(begun.iter().enumerate().all(|(n, &count)| n == 1 || count.abs_diff(50) < 27));
}

/// `PROBE_RTT`, on paper: segments take 100.8 ms, so the 100 ms of the handshake stay the shortest,
/// and 10 s after it the window falls to four segments. When all that was in flight has arrived,
/// the flight is that small, for 200 ms and one round, which takes 103 ms; and the window comes
/// back. The shortest round trip is then that of a segment, and 10 s later it is measured again.
#[test]
fn probe_rtt_after_ten_seconds_with_four_segments_for_200_ms() {
    let mut path = Path::new(1);
    path.until(probes_rtt);
    let ten = Instant::START + Duration::from_secs(10);
    assert!(path.since(ten) < services(10), "{}", path.now);
    let mut began = path.now;
    for visit in 0..3 {
        let before = path.bbr.prior_cwnd;
        assert_eq!(path.window.cwnd, 4 * SEGMENT);
        path.until(|path| path.in_flight() <= 4 * SEGMENT);
        assert!(path.since(began) < RTT + services(40), "a flight and the queue of probing");
        let small = path.now;
        path.until(is_probing);
        let lasted = path.since(small);
        let (least, most) = (Duration::from_millis(200), Duration::from_millis(310));
        assert!((least..most).contains(&lasted), "visit {visit}: {lasted:?}");
        assert_eq!(path.bbr.min_rtt(), Some(RTT + SERVICE));
        assert!(path.window.cwnd >= before.min(2 * BDP), "{} not {before}", path.window.cwnd);
        let left = path.now;
        path.until(probes_rtt);
        let pause = path.since(left);
        let (least, most) = (Duration::from_secs(10), Duration::from_secs(10) + RTT);
        assert!((least..most).contains(&pause), "visit {visit}: {pause:?}");
        began = path.now;
    }
}

/// A path whose round trip shortens by a microsecond every 5 s, as one under a satellite that comes
/// nearer, shows a new shortest one within each 10 s: no visit to `PROBE_RTT`.
#[test]
fn a_lower_round_trip_in_time_makes_probe_rtt_needless() {
    let mut path = Path::new(1);
    // So that a segment's round trip is below that of the handshake.
    path.rtt = RTT.saturating_sub(services(2));
    for step in 1..12u64 {
        path.rtt = path.rtt.saturating_sub(Duration::from_micros(1));
        let end = Instant::from_millis(5_000 * step);
        while path.now < end {
            path.take_ack();
            assert!(!probes_rtt(&path), "at {}", path.now);
        }
    }
}

/// Given an application that sends ten segments a round trip for thirty rounds, 8 % of the rate,
/// expect the bandwidth of before: such samples say nothing about the path, although ten rounds are
/// over.
#[test]
fn an_application_that_is_slow_is_no_slow_path() {
    let mut path = Path::new(1);
    path.until(is_probing);
    let rounds = path.bbr.rounds;
    for _ in 0..30 {
        path.window.cwnd = 0;
        while path.in_flight() > 0 {
            path.take_ack();
            path.window.cwnd = 0;
        }
        path.bbr.rate.limit_by_application(0);
        path.window.cwnd = 10 * SEGMENT;
        path.send();
    }
    assert_eq!(path.bbr.bandwidth(), RATE);
    assert!(path.bbr.rounds >= rounds + 25, "{} after {rounds}", path.bbr.rounds);
}

/// BBR in `PROBE_BW` with 125 segments in flight, told by hand what ACKs bring.
struct Told {
    bbr: Bbr,
    window: Window,
    facts: Facts,
}

impl Told {
    fn new() -> Self {
        let mut path = Path::new(1);
        path.until(is_probing);
        let Path { bbr, window, now, .. } = path;
        let delivered = bbr.rate.delivered();
        let facts = Facts {
            now,
            delivered,
            delivered_at: now,
            in_flight: BDP,
            in_flight_before: BDP,
            ..Facts::default()
        };
        Self { bbr, window, facts }
    }

    /// A service time later so many segments are delivered, which were sent when `prior` bytes had
    /// been (a round trip of delivery ago), and so many are lost; `sent` more leave then.
    fn ack(&mut self, state: LossState, acked: u64, lost: u64, prior: u64) {
        let (acked, lost) = (acked * SEGMENT, lost * SEGMENT);
        let facts = &mut self.facts;
        facts.now += SERVICE;
        (facts.acked, facts.lost, facts.state) = (acked, lost, state);
        facts.delivered += acked;
        facts.delivered_at = facts.now;
        facts.lost_in_all += lost;
        facts.in_flight_before = facts.in_flight;
        facts.in_flight -= acked + lost;
        facts.sample = Some(RateSample {
            prior_delivered: prior,
            delivered: facts.delivered - prior,
            interval: per_rate(facts.delivered - prior),
            app_limited: false,
        });
        self.bbr.update(facts, &mut self.window);
    }

    /// Sends all that the window allows; how many segments.
    fn fill(&mut self) -> u64 {
        let room = self.window.cwnd.saturating_sub(self.facts.in_flight) / SEGMENT;
        self.facts.in_flight += room * SEGMENT;
        room
    }
}

/// How long the path takes to deliver so many bytes.
fn per_rate(bytes: u64) -> Duration {
    Duration::from_nanos(bytes * 1_000_000_000 / RATE)
}

/// Packet conservation, on paper: the first ACK of recovery delivers one segment and shows five
/// lost; from 125 in flight 119 are left, and the window is 120: for what left the network by
/// arriving one is sent, for what was lost none. So it goes on through the round; further losses
/// lower the flight, and then the window. From the second round on the window grows by twice what
/// arrives, and when recovery ends it is what it was before.
#[test]
fn the_first_round_of_recovery_conserves_packets() {
    let mut told = Told::new();
    let before = told.window.cwnd;
    assert!(before > BDP + 10 * SEGMENT);
    told.bbr.save_cwnd(before);
    let began = told.facts.delivered;
    told.ack(LossState::Recovery, 1, 5, began - BDP);
    assert_eq!((told.window.cwnd, told.fill()), (120 * SEGMENT, 1));
    for ack in 2..=60 {
        told.ack(LossState::Recovery, 1, 0, began - BDP + ack * SEGMENT);
        assert_eq!((told.window.cwnd, told.fill()), (120 * SEGMENT, 1), "ACK {ack}");
    }
    told.ack(LossState::Recovery, 1, 3, began - BDP + 61 * SEGMENT);
    assert_eq!((told.window.cwnd, told.fill()), (117 * SEGMENT, 1));
    for ack in 62..=120 {
        told.ack(LossState::Recovery, 2, 0, began - BDP + ack * SEGMENT);
        assert_eq!((told.window.cwnd, told.fill()), (117 * SEGMENT, 2), "ACK {ack}");
    }
    // What was sent after recovery began arrives: the second round.
    let second = told.bbr.round_end;
    told.ack(LossState::Recovery, 1, 0, second);
    assert_eq!((told.window.cwnd, told.fill()), (118 * SEGMENT, 2), "as in slow start");
    told.ack(LossState::Recovery, 1, 0, second);
    assert_eq!((told.window.cwnd, told.fill()), (119 * SEGMENT, 2));
    told.ack(LossState::Open, 1, 0, second);
    assert!(told.window.cwnd >= before.min(2 * BDP), "{} not {before}", told.window.cwnd);
}

/// After a time-out one segment leaves (the window), as much again and more with each ACK, four
/// segments at least; when all is repaired the window is what it was.
#[test]
fn a_timeout_keeps_the_model() {
    let mut told = Told::new();
    let (before, bandwidth) = (told.window.cwnd, told.bbr.bandwidth());
    told.bbr.timed_out(&mut told.window, false);
    told.bbr.timed_out(&mut told.window, true);
    assert_eq!(told.window.cwnd, SEGMENT);
    let prior = told.facts.delivered;
    told.facts.in_flight = SEGMENT;
    told.ack(LossState::Loss, 1, 0, prior);
    assert_eq!((told.window.cwnd, told.fill()), (4 * SEGMENT, 4));
    told.ack(LossState::Loss, 2, 0, prior + SEGMENT);
    assert_eq!((told.window.cwnd, told.fill()), (6 * SEGMENT, 4));
    told.ack(LossState::Open, 1, 0, prior + SEGMENT);
    assert!(told.window.cwnd >= before.min(2 * BDP), "{} not {before}", told.window.cwnd);
    assert_eq!(told.bbr.bandwidth(), bandwidth);
}

/// A policer of half the rate, on paper: of what is sent at the bandwidth, as many segments arrive
/// as are lost. The interval opens with the first loss and closes with a loss four rounds later;
/// when the next one shows the same rate, that of the tokens is the bandwidth and the gain 1, for
/// 48 rounds; the next two intervals end in round 64.
#[test]
fn a_policed_rate_is_believed_after_two_intervals() {
    let mut told = Told::new();
    let mut used = Vec::new();
    for round in 1..=63 {
        let prior = told.facts.delivered;
        told.facts.in_flight = BDP;
        // A round in one ACK: 62 segments arrive in 99.2 ms.
        told.facts.now += services(123);
        told.ack(LossState::Open, 62, 62, prior);
        if told.bbr.long_term.bandwidth().is_some() {
            used.push(round);
            assert!(told.bbr.bandwidth().abs_diff(RATE / 2) < RATE / 50, "round {round}");
            assert_eq!(told.bbr.pacing_gain(), UNIT);
        }
    }
    // The round whose loss opens the first interval is the first of four.
    assert_eq!((used.first(), used.last(), used.len()), (Some(&8), Some(&55), 48));
}
