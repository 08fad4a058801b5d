//! The test harness: four verbs, and those of the application.

use std::fmt::Write as _;

use crate::engine::{Cx, Engine, Outbox};
use crate::packet::segment::{Flags, Segment, SynOptions, Timestamps};
use crate::packet::seq::SeqNumber;
use crate::packet::{Ecn, FlowId, Origin, Packet, PacketId, Payload};
use crate::tcp::config::Config;
use crate::tcp::endpoint::Endpoint;
use crate::time::{Duration, Instant};
use crate::trace::NodeId;

/// Initial sequence numbers close to the wrap, so that most tests cross it.
const LOCAL: SeqNumber = SeqNumber(u32::MAX - 4_000);
const REMOTE: SeqNumber = SeqNumber(u32::MAX - 2_500);

/// The endpoint under test, with a log of the events so far.
pub(super) struct Host {
    pub(super) endpoint: Endpoint,
    now: Instant,
    log: Vec<String>,
    shows_windows: bool,
    /// The window field of segments without `win`.
    peer_window: u16,
}

impl Host {
    pub(super) fn new(config: Config) -> Self {
        Self {
            endpoint: Endpoint::new(config, FlowId(0), Origin::Sender, LOCAL),
            now: Instant::START,
            log: Vec::new(),
            shows_windows: false,
            peer_window: 65_535,
        }
    }

    /// An endpoint that opened at 0 and received a SYN-ACK at 100 ms, from a peer with the same
    /// options.
    pub(super) fn connected(config: Config) -> Self {
        let mut host = Self::new(config);
        let options = host.all_options(&config);
        host.call(0, "opens", Endpoint::open);
        let answer = if config.timestamps { " ts 0/0" } else { "" };
        host.receives(100, &format!("S 0:1 ack 1 {options}{answer}"));
        host.endpoint_is_open();
        host
    }

    /// An endpoint that received a SYN at 0 and the ACK of its SYN-ACK at 100 ms.
    pub(super) fn accepted(config: Config) -> Self {
        let mut host = Self::new(config);
        let options = host.all_options(&config);
        let stamp = if config.timestamps { " ts 0/0" } else { "" };
        host.receives(0, &format!("S 0:1 {options}{stamp}"));
        host.receives(100, &format!("1:1 ack 1{stamp}"));
        host.endpoint_is_open();
        host
    }

    fn all_options(&self, config: &Config) -> String {
        let scale = if config.window_scaling { " ws 7" } else { "" };
        let sack = if config.sack { " sackok" } else { "" };
        format!("mss {}{scale}{sack}", config.mss)
    }

    fn endpoint_is_open(&self) {
        assert!(self.endpoint.sender().is_established(), "{}", self.report("the handshake failed"));
    }

    pub(super) fn showing_windows(mut self) -> Self {
        self.shows_windows = true;
        self
    }

    pub(super) fn peer_window(mut self, field: u16) -> Self {
        self.peer_window = field;
        self
    }

    /// Verb 1: given a segment at `at_ms`, expect exactly these.
    #[track_caller]
    pub(super) fn given(&mut self, at_ms: u64, segment: &str, expected: &str) {
        let sent = self.receives(at_ms, segment);
        self.expects(&sent, expected);
    }

    /// Verb 2: given a segment at `at_ms`, expect no immediate reply.
    #[track_caller]
    pub(super) fn no_reply(&mut self, at_ms: u64, segment: &str) {
        self.given(at_ms, segment, "");
    }

    /// Verb 3: expect the next timer at exactly `at_ms`, and these segments.
    #[track_caller]
    pub(super) fn timer(&mut self, at_ms: u64, expected: &str) {
        self.timer_us(at_ms * 1_000, expected);
    }

    /// [`Host::timer`] in microseconds.
    #[track_caller]
    pub(super) fn timer_us(&mut self, at_us: u64, expected: &str) {
        let (at, due) = (Instant::START + Duration::from_micros(at_us), self.endpoint.next_wake());
        if due != Some(at) {
            panic!("{}", self.report(&format!("a timer at {at}, not {}", shown(due))));
        }
        let sent = self.call_at(at, "wakes", |endpoint, cx| endpoint.wake(cx));
        self.expects(&sent, expected);
    }

    /// Lets timers expire up to the next expiration of the retransmission timer. Returns its time
    /// and the segments sent then.
    #[track_caller]
    pub(super) fn time_out(&mut self) -> (Instant, String) {
        let timeouts = |endpoint: &Endpoint| endpoint.sender().counters().timeouts;
        let before = timeouts(&self.endpoint);
        loop {
            let Some(due) = self.endpoint.next_wake() else {
                panic!("{}", self.report("a retransmission timeout"));
            };
            let sent = self.call_at(due, "wakes", |endpoint, cx| endpoint.wake(cx));
            if timeouts(&self.endpoint) > before {
                return (due, sent);
            }
        }
    }

    /// Expects that no timer is running.
    #[track_caller]
    pub(super) fn idle(&self) {
        if let Some(due) = self.endpoint.next_wake() {
            panic!("{}", self.report(&format!("an idle endpoint, not a timer at {due}")));
        }
    }

    /// Verb 4: compares a value of the endpoint's state.
    #[track_caller]
    pub(super) fn compare<T: PartialEq + core::fmt::Debug>(
        &self,
        what: &str,
        expected: T,
        actual: impl FnOnce(&Endpoint) -> T,
    ) {
        let actual = actual(&self.endpoint);
        if actual != expected {
            panic!("{}", self.report(&format!("{what} {expected:?}, not {actual:?}")));
        }
    }

    /// Expects this cwnd in bytes.
    #[track_caller]
    pub(super) fn window(&self, expected: u64) {
        self.compare("cwnd", expected, |endpoint| endpoint.sender().control().cwnd());
    }

    #[track_caller]
    pub(super) fn writes(&mut self, at_ms: u64, bytes: u64, expected: &str) {
        let what = format!("writes {bytes}");
        let sent = self.call(at_ms, &what, |endpoint, cx| endpoint.write(cx, bytes));
        self.expects(&sent, expected);
    }

    #[track_caller]
    pub(super) fn closes(&mut self, at_ms: u64, expected: &str) {
        let sent = self.call(at_ms, "closes", Endpoint::close);
        self.expects(&sent, expected);
    }

    #[track_caller]
    pub(super) fn stops(&mut self, at_ms: u64, expected: &str) {
        let sent = self.call(at_ms, "stops", Endpoint::stop);
        self.expects(&sent, expected);
    }

    #[track_caller]
    pub(super) fn auto_read(&mut self, at_ms: u64, enabled: bool, expected: &str) {
        let what = if enabled { "resumes reading" } else { "stops reading" };
        let sent = self.call(at_ms, what, |endpoint, cx| endpoint.set_auto_read(cx, enabled));
        self.expects(&sent, expected);
    }

    fn packet(&self, text: &str) -> Packet {
        let segment = self.parse(text);
        Packet {
            id: PacketId(0),
            created_at: self.now,
            bytes: segment.ip_bytes(),
            payload: Payload::Tcp(segment),
            ecn: if text.ends_with(" ce") { Ecn::Ce } else { Ecn::NotEct },
            ..Packet::default()
        }
    }

    pub(super) fn refuses(&mut self, at_ms: u64, text: &str) -> String {
        let packet = self.packet(text);
        self.call(at_ms, &format!("refuses {text}"), |endpoint, cx| endpoint.refuse(cx, &packet))
    }

    #[track_caller]
    pub(super) fn receives(&mut self, at_ms: u64, text: &str) -> String {
        let packet = self.packet(text);
        self.call(at_ms, &format!("receives {text}"), |endpoint, cx| {
            endpoint.on_packet(cx, &packet);
        })
    }

    /// Calls the endpoint; no timer may have been due before. Returns the sent segments as text.
    #[track_caller]
    pub(super) fn call(
        &mut self,
        at_ms: u64,
        what: &str,
        call: impl FnOnce(&mut Endpoint, &mut Cx<'_>),
    ) -> String {
        self.call_at(Instant::from_millis(at_ms), what, call)
    }

    #[track_caller]
    fn call_at(
        &mut self,
        now: Instant,
        what: &str,
        call: impl FnOnce(&mut Endpoint, &mut Cx<'_>),
    ) -> String {
        assert!(now >= self.now, "{}", self.report("monotonic time"));
        if let Some(due) = self.endpoint.next_wake().filter(|&due| due < now) {
            panic!("{}", self.report(&format!("{what} at {now}, not a timer at {due}")));
        }
        self.now = now;
        self.log.push(format!("{now:>12}  {what}"));
        let mut outbox = Outbox::new();
        call(&mut self.endpoint, &mut Cx::new(now, NodeId(0), &mut outbox, None));
        let sent: Vec<_> = outbox.drain().map(|(_, _, packet)| self.write(&packet)).collect();
        self.log.extend(sent.iter().map(|text| format!("            sends {text}")));
        let next = self.endpoint.next_wake();
        assert!(next.is_none_or(|next| next >= now), "{}", self.report("no deadline in the past"));
        assert_eq!(self.endpoint.ledger().check(), Ok(()), "{}", self.report("a balanced ledger"));
        sent.join(" | ")
    }

    #[track_caller]
    fn expects(&self, sent: &str, expected: &str) {
        if sent != expected {
            let expected = if expected.is_empty() { "nothing" } else { expected };
            panic!("{}", self.report(&format!("{expected}\n          not {sent}")));
        }
    }

    /// The log, and what was expected next.
    fn report(&self, expected: &str) -> String {
        let mut text = String::from("\n");
        for line in &self.log {
            let _ = writeln!(text, "{line}");
        }
        let next = shown(self.endpoint.next_wake());
        let _ = writeln!(text, "            (next timer: {next})\n  expected: {expected}");
        text
    }

    fn write(&self, packet: &Packet) -> String {
        let Payload::Tcp(segment) = &packet.payload else { panic!("a host sends segments") };
        assert_eq!(packet.bytes, segment.ip_bytes());
        let local = |number: SeqNumber| number.0.wrapping_sub(LOCAL.0);
        let remote = |number: SeqNumber| number.0.wrapping_sub(REMOTE.0);
        let mut text = String::new();
        let names = [
            ("S ", Flags::SYN),
            ("F ", Flags::FIN),
            ("R ", Flags::RST),
            ("E ", Flags::ECE),
            ("W ", Flags::CWR),
        ];
        let set = names.iter().filter(|(_, flag)| segment.flags.contains(*flag));
        set.for_each(|(name, _)| text.push_str(name));
        let start = local(segment.seq);
        let _ = write!(text, "{start}:{}", u64::from(start) + segment.sequence_length());
        if let Some(ack) = segment.ack {
            let _ = write!(text, " ack {}", remote(ack));
        }
        if packet.ecn != Ecn::NotEct {
            assert_eq!(packet.ecn, Ecn::Ect0);
            text.push_str(" ect");
        }
        if self.shows_windows {
            let _ = write!(text, " win {}", segment.window);
        }
        for (first, end) in segment.sack.iter() {
            let _ = write!(text, " sack {}-{}", remote(first), remote(end));
        }
        if let Some(Timestamps { value, echo }) = segment.timestamps {
            let _ = write!(text, " ts {value}/{echo}");
        }
        let Some(options) = segment.syn_options else { return text };
        let _ = write!(text, " mss {}", options.mss);
        if let Some(shift) = options.window_shift {
            let _ = write!(text, " ws {shift}");
        }
        text.push_str(if options.sack { " sackok" } else { "" });
        text
    }

    fn parse(&self, text: &str) -> Segment {
        let local = |text: &str| SeqNumber(LOCAL.0.wrapping_add(number(text)));
        let remote = |text: &str| SeqNumber(REMOTE.0.wrapping_add(number(text)));
        let mut segment = Segment { window: self.peer_window, ..Segment::default() };
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("a value follows");
            match word {
                "S" => segment.flags |= Flags::SYN,
                "F" => segment.flags |= Flags::FIN,
                "R" => segment.flags |= Flags::RST,
                "E" => segment.flags |= Flags::ECE,
                "W" => segment.flags |= Flags::CWR,
                "ce" => {}
                "ack" => segment.ack = Some(local(value())),
                "win" => segment.window = number(value()).try_into().expect("16 bits"),
                "ts" => {
                    let (value, echo) = value().split_once('/').expect("value/echo");
                    let (value, echo) = (number(value), number(echo));
                    segment.timestamps = Some(Timestamps { value, echo });
                }
                "sack" => {
                    let (first, end) = value().split_once('-').expect("first-end");
                    segment.sack.push(local(first), local(end));
                }
                "mss" => {
                    syn_options(&mut segment).mss = number(value()).try_into().expect("16 bits")
                }
                "ws" => {
                    let shift = number(value()).try_into().expect("8 bits");
                    syn_options(&mut segment).window_shift = Some(shift);
                }
                "sackok" => syn_options(&mut segment).sack = true,
                range => {
                    let (start, end) = range.split_once(':').expect("start:end");
                    segment.seq = remote(start);
                    let flags = u32::from(segment.flags.syn()) + u32::from(segment.flags.fin());
                    segment.payload =
                        u16::try_from(number(end) - number(start) - flags).expect("short");
                }
            }
        }
        segment
    }
}

fn syn_options(segment: &mut Segment) -> &mut SynOptions {
    segment.syn_options.get_or_insert_default()
}

fn number(text: &str) -> u32 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is a number"))
}

fn shown(at: Option<Instant>) -> String {
    at.map_or_else(|| "none".to_owned(), |at| at.to_string())
}

/// `count` segments of 1000 bytes from `start` on, with `ack 1`.
pub(super) fn segments(start: u32, count: u32) -> String {
    let each =
        (0..count).map(|n| format!("{}:{} ack 1", start + n * 1_000, start + (n + 1) * 1_000));
    each.collect::<Vec<_>>().join(" | ")
}
