//! BBR over a path that can be computed on paper, and BBR told facts by hand.
//!
//! The path is a bottleneck of 1,250 segments of 1000 bytes a second (10 Mbit/s) without a limit to
//! its queue, and 100 ms there and back. So it holds 125 segments, and each takes 0.8 ms.

use std::collections::VecDeque;

use super::*;
use crate::tcp::seq::Position;

const SEGMENT: u64 = 1_000;
const RATE: u64 = 1_250_000;
const RTT: Duration = Duration::from_millis(100);
const SERVICE: Duration = Duration::from_micros(800);
const BDP: u64 = 125 * SEGMENT;

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

#[test]
fn explore() {
    let mut path = Path::new(1);
    let mut last = path.bbr.mode();
    for _ in 0..20000 {
        path.take_ack();
        let mode = path.bbr.mode();
        let same = core::mem::discriminant(&mode) == core::mem::discriminant(&last);
        if path.bbr.round_start && path.now < Instant::from_millis(3000) || !same {
            println!(
                "{} {:?} round {} bw {} cwnd {} q {} fl {} pace {} full {} {}",
                path.now,
                mode,
                path.bbr.rounds,
                path.bbr.bandwidth(),
                path.window.cwnd,
                path.queue(),
                path.in_flight(),
                path.bbr.pacer.rate(),
                path.bbr.full_rounds,
                path.bbr.full_bandwidth
            );
        }
        last = mode;
    }
}
