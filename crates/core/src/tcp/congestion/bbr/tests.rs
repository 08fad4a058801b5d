//! BBR over a path that can be computed on paper, and BBR with scripted ACKs.
//!
//! The path is a bottleneck of 1,250 segments of 1000 bytes per second (10 Mbit/s) with an
//! unlimited queue and a base RTT of 100 ms. Its BDP is 125 segments, and a segment takes 0.8 ms.

use std::collections::VecDeque;

use super::*;
use crate::packet::seq::Position;

const SEGMENT: u64 = 1_000;
const RATE: u64 = 1_250_000;
const RTT: Duration = Duration::from_millis(100);
const SERVICE: Duration = Duration::from_micros(800);
const BDP: u64 = 125 * SEGMENT;

/// Service time of `segments` at the bottleneck.
fn services(segments: u64) -> Duration {
    SERVICE.saturating_mul(segments)
}

struct Path {
    bbr: Bbr,
    window: Window,
    now: Instant,
    /// Positions up to which everything was sent and acknowledged.
    sent: Position,
    acked: Position,
    segments: u64,
    /// When the bottleneck becomes idle.
    free: Instant,
    /// Arrival time and position of ACKs in flight.
    acks: VecDeque<(Instant, Position)>,
    rtt: Duration,
}

impl Path {
    /// A sender with unlimited data and an initial window of ten segments.
    fn new(seed: u64) -> Self {
        let mut bbr = Bbr::new();
        bbr.set_rng(Rng::stream(seed, "bbr test"));
        let window = Window { cwnd: 10 * SEGMENT, ssthresh: None, segment: SEGMENT };
        bbr.on_established(Instant::START, Some(RTT), &window);
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
        bytes_in(RATE, self.free.saturating_since(self.now))
    }

    fn window_allows(&self) -> bool {
        self.in_flight() + SEGMENT <= self.window.cwnd
    }

    fn send(&mut self) {
        while self.window_allows() && self.bbr.pacer.may_send(self.now, SEGMENT) {
            let (pipe_was_empty, end) = (self.in_flight() == 0, self.sent + SEGMENT);
            if pipe_was_empty {
                self.bbr.on_idle_restart(self.now, &mut self.window);
            }
            self.bbr.rate.sent(self.now, self.sent, end, pipe_was_empty);
            self.bbr.pacer.sent(self.now, SEGMENT, SEGMENT, self.segments);
            self.free = self.free.max(self.now) + SERVICE;
            self.acks.push_back((self.free + self.rtt, end));
            self.sent = end;
            self.segments += 1;
        }
    }

    /// Sends what may be sent until the next ACK arrives, and processes it.
    fn next_ack(&mut self) {
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
        let facts = AckFacts {
            now: ack_at,
            rtt: newest.and_then(|newest| newest.round_trip(ack_at)),
            sample: rate.acked(ack_at, end, SEGMENT, newest, Some(RTT)),
            acked: SEGMENT,
            delivered: rate.delivered(),
            delivered_at: rate.delivered_at(),
            in_flight_before,
            in_flight: self.in_flight(),
            ..AckFacts::default()
        };
        self.bbr.update(&facts, &mut self.window);
    }

    /// Processes ACKs until `reached`, for a minute at most.
    #[track_caller]
    fn run_until(&mut self, reached: impl Fn(&Self) -> bool) {
        let end = self.now + Duration::from_secs(60);
        while !reached(self) {
            self.next_ack();
            assert!(self.now < end, "within a minute, not in {:?}", self.bbr.mode());
        }
    }

    fn since(&self, then: Instant) -> Duration {
        self.now.saturating_since(then)
    }
}

fn in_probe_bw(path: &Path) -> bool {
    matches!(path.bbr.mode(), Mode::ProbeBandwidth(..))
}

fn in_probe_rtt(path: &Path) -> bool {
    matches!(path.bbr.mode(), Mode::ProbeRtt(_))
}

/// Given STARTUP, expect cwnd to double each round: each ACK adds what it acknowledges, and a gain
/// of 2.89 lets the pacing rate follow. Rounds 1 to 4 have 10, 20, 40 and 80 segments; the fifth
/// has 160, more than the BDP of 125, and samples at least 95 % of the rate. No later round grows
/// by a quarter, so the third one after it is the last, with 2.89 BDP in flight.
#[test]
fn startup_doubles_each_round_and_ends_after_three_without_growth() {
    let mut path = Path::new(1);
    let mut rounds = Vec::new();
    while path.bbr.mode() == Mode::Startup {
        path.next_ack();
        if path.bbr.round_start {
            rounds.push((path.window.cwnd / SEGMENT, path.bbr.bandwidth(), path.bbr.full_rounds));
        }
    }
    // The ACK that begins a round has already added one segment.
    let windows: Vec<_> = rounds.iter().take(4).map(|round| round.0).collect();
    assert_eq!(windows, [11, 21, 41, 77], "the fourth still has two bursts to send");
    let bandwidths: Vec<_> = rounds.iter().map(|round| round.1).collect();
    assert!(bandwidths[..6].windows(2).all(|pair| pair[1] * 2 >= pair[0] * 3), "{bandwidths:?}");
    assert!(bandwidths[5] >= RATE * 95 / 100 && bandwidths[8] == RATE, "{bandwidths:?}");
    let without_growth: Vec<_> = rounds.iter().map(|round| round.2).collect();
    assert_eq!(without_growth, [0, 0, 0, 0, 0, 0, 1, 2, 3]);
    let in_flight = path.in_flight();
    assert!((BDP * 288 / 100..BDP * 3).contains(&in_flight), "{in_flight}");
    assert_eq!(path.bbr.mode(), Mode::Drain);
    let reached = path.window.ssthresh.expect("DRAIN sets ssthresh");
    assert!((BDP..BDP + 20 * SEGMENT).contains(&reached), "{reached}");
}

/// Given DRAIN with 2.96 BDP in flight, expect it to end with one BDP in flight. The queue holds
/// 1.96 BDP (244 segments) less the data sent last. The send rate is 99 % of 256/739 of the rate,
/// so the queue decreases at 0.657 of the rate: by 244 segments in 297 ms. DRAIN ends slightly
/// earlier, when at most the BDP, three bursts of two and one to make it even will be in flight at
/// the next transmission. That is at most two segments at 0.343 of the rate away, in which the path
/// delivers six.
#[test]
fn drain_ends_with_one_bdp_in_flight() {
    let mut path = Path::new(1);
    path.run_until(|path| path.bbr.mode() == Mode::Drain);
    let (began, queue) = (path.now, path.queue());
    assert!((queue / SEGMENT).abs_diff(244) <= 2, "{queue}");
    path.run_until(in_probe_bw);
    let lasted = path.since(began);
    let min = Duration::from_millis(297 - 20);
    assert!((min..Duration::from_millis(297)).contains(&lasted), "{lasted:?}");
    let max = BDP + (3 * 2 + 1 + 6) * SEGMENT;
    assert!((BDP..=max).contains(&path.in_flight()), "{}", path.in_flight());
}

/// The phases of two seconds in `PROBE_BW`: phase, start, pacing rate, and maximum queue.
fn phases(path: &mut Path) -> Vec<(usize, Instant, u64, u64)> {
    path.run_until(in_probe_bw);
    let mut phases: Vec<(usize, Instant, u64, u64)> = Vec::new();
    let end = path.now + Duration::from_secs(2);
    while path.now < end {
        let Mode::ProbeBandwidth(phase, since) = path.bbr.mode() else { panic!("not in PROBE_BW") };
        if phases.last().is_none_or(|last| last.1 != since) {
            phases.push((phase, since, path.bbr.pacer.rate(), 0));
        }
        let last = phases.last_mut().expect("at least one phase");
        last.3 = last.3.max(path.queue());
        path.next_ack();
    }
    phases
}

/// Given `PROBE_BW`, expect eight phases of one RTT each, with gains of 5/4, 3/4 and six times 1,
/// of 99 % of the bandwidth. The first adds 0.2375 of the rate (1.25 * 0.99 - 1) for an RTT: 30
/// segments of queue. The second removes 0.2575 and ends when at most the BDP (and the quantization
/// budget) is in flight, after at most an RTT. The others remove 1 % per RTT.
#[test]
fn the_gain_cycle_probes_drains_and_cruises() {
    let mut path = Path::new(1);
    let phases = phases(&mut path);
    assert!(phases.len() > 18, "about 20 RTTs");
    let segments = |bytes: u64| bytes.div_ceil(SEGMENT);
    for (number, pair) in phases.windows(2).enumerate().skip(1) {
        let (phase, since, pace, queue) = pair[0];
        assert_eq!(pair[1].0, (phase + 1) % 8, "in order");
        let percent = [125, 75, 100, 100, 100, 100, 100, 100][phase];
        let expected = RATE * percent / 100 * 99 / 100;
        assert!(pace.abs_diff(expected) <= expected / 100, "phase {phase}: {pace}");
        let lasted = pair[1].1.saturating_since(since);
        let (min, max) = match phase {
            // Until the flight reaches its target: an RTT and the time of a burst.
            0 => (RTT, RTT + Duration::from_millis(40)),
            1 => (Duration::ZERO, RTT + services(2)),
            _ => (RTT, RTT + services(2)),
        };
        assert!((min..=max).contains(&lasted), "{number}, phase {phase}: {lasted:?}");
        match phase {
            0 => assert!((24..=42).contains(&segments(queue)), "probing: {queue}"),
            1 => {}
            2.. => assert!(segments(queue) <= 12, "phase {phase}: {queue}"),
        }
    }
}

/// Given random seeds, expect the cycle to begin in any phase but the one that drains, so that
/// flows do not probe at the same time.
#[test]
fn flows_start_the_cycle_in_different_phases() {
    let mut starts = [0u32; 8];
    for seed in 0..350 {
        let mut bbr = Path::new(seed).bbr;
        bbr.probe_bandwidth(Instant::START);
        let Mode::ProbeBandwidth(phase, _) = bbr.mode() else { panic!("not in PROBE_BW") };
        starts[phase] += 1;
    }
    // 50 each, with a standard deviation of 6.5.
    assert_eq!(starts[1], 0);
    assert!(starts.iter().enumerate().all(|(n, &count)| n == 1 || count.abs_diff(50) < 27));
}

/// Given RTTs of 100.8 ms, expect `PROBE_RTT` 10 s after the handshake, whose 100 ms stay the
/// minimum: cwnd becomes four segments. Once the flight is that small, it stays so for 200 ms and
/// one round of 103 ms, and cwnd is restored. The minimum RTT is then that of a segment, measured
/// again every 10 s.
#[test]
fn probe_rtt_after_ten_seconds_with_four_segments_for_200_ms() {
    let mut path = Path::new(1);
    path.run_until(in_probe_rtt);
    let ten = Instant::START + Duration::from_secs(10);
    assert!(path.since(ten) < services(10), "{}", path.now);
    let mut began = path.now;
    for visit in 0..3 {
        let before = path.bbr.prior_cwnd;
        assert_eq!(path.window.cwnd, 4 * SEGMENT);
        path.run_until(|path| path.in_flight() <= 4 * SEGMENT);
        assert!(path.since(began) < RTT + services(40), "a flight and the queue of probing");
        let small = path.now;
        path.run_until(in_probe_bw);
        let lasted = path.since(small);
        let (min, max) = (Duration::from_millis(200), Duration::from_millis(310));
        assert!((min..max).contains(&lasted), "visit {visit}: {lasted:?}");
        assert_eq!(path.bbr.min_rtt(), Some(RTT + SERVICE));
        assert!(path.window.cwnd >= before.min(2 * BDP), "{} not {before}", path.window.cwnd);
        let left = path.now;
        path.run_until(in_probe_rtt);
        let pause = path.since(left);
        let (min, max) = (Duration::from_secs(10), Duration::from_secs(10) + RTT);
        assert!((min..max).contains(&pause), "visit {visit}: {pause:?}");
        began = path.now;
    }
}

/// Given an RTT that decreases by a microsecond every 5 s, like under an approaching satellite,
/// expect no `PROBE_RTT`: there is a new minimum within each 10 s.
#[test]
fn a_new_minimum_rtt_within_ten_seconds_avoids_probe_rtt() {
    let mut path = Path::new(1);
    // A segment's RTT must be below that of the handshake.
    path.rtt = RTT.saturating_sub(services(2));
    for step in 1..12u64 {
        path.rtt = path.rtt.saturating_sub(Duration::from_micros(1));
        let end = Instant::from_millis(5_000 * step);
        while path.now < end {
            path.next_ack();
            assert!(!in_probe_rtt(&path), "at {}", path.now);
        }
    }
}

/// Given an application that sends ten segments per RTT for thirty rounds (8 % of the rate), expect
/// an unchanged bandwidth: application-limited samples are ignored, although ten rounds have
/// passed.
#[test]
fn application_limited_samples_do_not_lower_the_bandwidth() {
    let mut path = Path::new(1);
    path.run_until(in_probe_bw);
    let rounds = path.bbr.rounds;
    for _ in 0..30 {
        path.window.cwnd = 0;
        while path.in_flight() > 0 {
            path.next_ack();
            path.window.cwnd = 0;
        }
        path.bbr.rate.set_app_limited(0);
        path.window.cwnd = 10 * SEGMENT;
        path.send();
    }
    assert_eq!(path.bbr.bandwidth(), RATE);
    assert!(path.bbr.rounds >= rounds + 25, "{} after {rounds}", path.bbr.rounds);
}

/// BBR in `PROBE_BW` with 125 segments in flight and scripted ACKs.
struct Scripted {
    bbr: Bbr,
    window: Window,
    facts: AckFacts,
}

impl Scripted {
    fn new() -> Self {
        let mut path = Path::new(1);
        path.run_until(in_probe_bw);
        let Path { bbr, window, now, .. } = path;
        let delivered = bbr.rate.delivered();
        let facts = AckFacts {
            now,
            delivered,
            delivered_at: now,
            in_flight: BDP,
            in_flight_before: BDP,
            ..AckFacts::default()
        };
        Self { bbr, window, facts }
    }

    /// After a service time, an ACK delivers `acked` segments, sent when `prior` bytes had been
    /// delivered, and shows `lost` segments lost.
    fn ack(&mut self, state: LossState, acked: u64, lost: u64, prior: u64) {
        let (acked, lost) = (acked * SEGMENT, lost * SEGMENT);
        let facts = &mut self.facts;
        facts.now += SERVICE;
        (facts.acked, facts.lost, facts.state) = (acked, lost, state);
        facts.delivered += acked;
        facts.delivered_at = facts.now;
        facts.lost_total += lost;
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

    /// Sends everything that cwnd allows. Returns the number of segments.
    fn fill(&mut self) -> u64 {
        let room = self.window.cwnd.saturating_sub(self.facts.in_flight) / SEGMENT;
        self.facts.in_flight += room * SEGMENT;
        room
    }
}

/// How long the path takes to deliver `bytes`.
fn per_rate(bytes: u64) -> Duration {
    Duration::from_nanos(bytes * 1_000_000_000 / RATE)
}

/// Linux, `bbr_is_next_cycle_phase`: expect the phase that probes to last longer than the minimum RTT, and
/// until a loss or until 5/4 of the BDP are in flight; the phases with a gain of 1 end by time alone.
#[test]
fn a_probe_lasts_a_round_trip_and_until_the_queue_or_a_loss_shows() {
    let Scripted { bbr, facts, .. } = Scripted::new();
    let probe = CYCLE[0];
    let since = facts.now;
    let is_over = |gain, millis, lost, in_flight_before| {
        let now = since + Duration::from_millis(millis);
        let facts = AckFacts { now, delivered_at: now, lost, in_flight_before, ..facts };
        bbr.phase_is_over(&facts, gain, since, SEGMENT)
    };
    // The minimum RTT is 100 ms; 5/4 of the BDP are 156 segments.
    for (lost, in_flight) in [(SEGMENT, 200 * SEGMENT), (SEGMENT, 0), (0, 200 * SEGMENT)] {
        assert!(!is_over(probe, 100, lost, in_flight), "too early");
        assert!(is_over(probe, 102, lost, in_flight), "{lost} lost, {in_flight} in flight");
    }
    assert!(!is_over(probe, 102, 0, 100 * SEGMENT), "neither a queue nor a loss");
    assert!(!is_over(UNIT, 100, SEGMENT, 200 * SEGMENT));
    assert!(is_over(UNIT, 102, 0, 0));
}

/// Given the first round of recovery, expect packet conservation. The first ACK delivers one
/// segment and shows five lost: 119 of 125 are left in flight, and cwnd is 120. One segment is sent
/// for each delivered one, none for lost ones; further losses reduce the flight and cwnd. From the
/// second round on, cwnd grows by twice what is delivered, and the end of recovery restores it.
#[test]
fn the_first_round_of_recovery_conserves_packets() {
    let mut scripted = Scripted::new();
    let before = scripted.window.cwnd;
    assert!(before > BDP + 10 * SEGMENT);
    scripted.bbr.save_cwnd(before);
    let began = scripted.facts.delivered;
    scripted.ack(LossState::Recovery, 1, 5, began - BDP);
    assert_eq!((scripted.window.cwnd, scripted.fill()), (120 * SEGMENT, 1));
    for ack in 2..=60 {
        scripted.ack(LossState::Recovery, 1, 0, began - BDP + ack * SEGMENT);
        assert_eq!((scripted.window.cwnd, scripted.fill()), (120 * SEGMENT, 1), "ACK {ack}");
    }
    scripted.ack(LossState::Recovery, 1, 3, began - BDP + 61 * SEGMENT);
    assert_eq!((scripted.window.cwnd, scripted.fill()), (117 * SEGMENT, 1));
    for ack in 62..=120 {
        scripted.ack(LossState::Recovery, 2, 0, began - BDP + ack * SEGMENT);
        assert_eq!((scripted.window.cwnd, scripted.fill()), (117 * SEGMENT, 2), "ACK {ack}");
    }
    // Data sent after recovery began is acknowledged: the second round.
    let second = scripted.bbr.round_end;
    scripted.ack(LossState::Recovery, 1, 0, second);
    assert_eq!((scripted.window.cwnd, scripted.fill()), (118 * SEGMENT, 2), "as in slow start");
    scripted.ack(LossState::Recovery, 1, 0, second);
    assert_eq!((scripted.window.cwnd, scripted.fill()), (119 * SEGMENT, 2));
    scripted.ack(LossState::Open, 1, 0, second);
    assert!(scripted.window.cwnd >= before.min(2 * BDP), "{} not {before}", scripted.window.cwnd);
}

/// Given a timeout, expect a cwnd of one segment, growth by what each ACK delivers to at least four
/// segments, and the previous cwnd after recovery.
#[test]
fn a_timeout_keeps_the_model() {
    let mut scripted = Scripted::new();
    let (before, bandwidth) = (scripted.window.cwnd, scripted.bbr.bandwidth());
    scripted.bbr.timed_out(&mut scripted.window, false);
    scripted.bbr.timed_out(&mut scripted.window, true);
    assert_eq!(scripted.window.cwnd, SEGMENT);
    let prior = scripted.facts.delivered;
    scripted.facts.in_flight = SEGMENT;
    scripted.ack(LossState::Loss, 1, 0, prior);
    assert_eq!((scripted.window.cwnd, scripted.fill()), (4 * SEGMENT, 4));
    scripted.ack(LossState::Loss, 2, 0, prior + SEGMENT);
    assert_eq!((scripted.window.cwnd, scripted.fill()), (6 * SEGMENT, 4));
    scripted.ack(LossState::Open, 1, 0, prior + SEGMENT);
    assert!(scripted.window.cwnd >= before.min(2 * BDP), "{} not {before}", scripted.window.cwnd);
    assert_eq!(scripted.bbr.bandwidth(), bandwidth);
}

/// Given a policer at half the rate, expect as many segments delivered as lost. The interval begins
/// with the first loss and ends with a loss four rounds later. When the next one has the same rate,
/// the token rate is the bandwidth and the gain is 1 for 48 rounds; the next two intervals end in
/// round 64.
#[test]
fn a_policed_rate_is_used_after_two_intervals() {
    let mut scripted = Scripted::new();
    let mut used = Vec::new();
    for round in 1..=63 {
        let prior = scripted.facts.delivered;
        scripted.facts.in_flight = BDP;
        // A round in one ACK: 62 segments are delivered in 99.2 ms.
        scripted.facts.now += services(123);
        scripted.ack(LossState::Open, 62, 62, prior);
        if scripted.bbr.long_term.bandwidth().is_some() {
            used.push(round);
            assert!(scripted.bbr.bandwidth().abs_diff(RATE / 2) < RATE / 50, "round {round}");
            assert_eq!(scripted.bbr.pacing_gain(), UNIT);
        }
    }
    // The round whose loss begins the first interval is the first of four.
    assert_eq!((used.first(), used.last(), used.len()), (Some(&8), Some(&55), 48));
}
