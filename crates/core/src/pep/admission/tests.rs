//! Admission in virtual time: given events, at a time, expect decisions.

use super::*;

const MS: fn(u64) -> Instant = Instant::from_millis;

/// Hosts and ports.
type Key = (u8, u8);

impl ConnectionKey for Key {
    type Hosts = u8;

    fn hosts(&self) -> u8 {
        self.0
    }

    fn first_of(hosts: u8) -> Self {
        (hosts, 0)
    }
}

const KEY: Key = (1, 1);
/// The sequence number of its SYN.
const NUMBER: u32 = 7;

fn config() -> AdmissionConfig {
    AdmissionConfig {
        connections_max: 10,
        waiting_max: 10,
        handshake_max: Duration::from_secs(30),
        early_accept: false,
        started_memory: Duration::from_secs(10),
        may_be_asymmetric: true,
        remembered_max: 100,
    }
}

/// An admission whose callers keep a name with each SYN and each leg.
struct Pep(Admission<Key, &'static str, &'static str>);

impl Pep {
    fn new(change: impl Fn(&mut AdmissionConfig)) -> Self {
        let mut config = config();
        change(&mut config);
        Self(Admission::new(config))
    }

    /// A SYN from the LAN with the usual number.
    fn syn(&mut self, key: Key, at_ms: u64) -> Decision {
        self.0.on_syn(key, NUMBER, Side::Lan, MS(at_ms))
    }

    /// Holds a SYN whose leg can be opened.
    fn hold(&mut self, key: Key, at_ms: u64) {
        assert_eq!(self.syn(key, at_ms), Decision::Open, "at {at_ms} ms");
        self.0.on_opened(&key, "syn", MS(at_ms));
    }

    fn start(&mut self, key: Key, at_ms: u64) {
        self.hold(key, at_ms);
        let replied = self.0.on_answer(&key, Answer::Connected("leg"), MS(at_ms));
        assert_eq!(replied, Some((Reply::SendOn, "syn")));
    }

    fn counters(&self) -> AdmissionCounters {
        self.0.counters()
    }
}

/// Given a server that accepts after 600 ms and a client that the relay has accepted 40 ms later, expect the SYN to be held
/// until the one, and its connection to count until it has ended. A copy of the SYN does nothing while it is held, goes on
/// while the relay waits, and is dropped for 10 s after it went on.
#[test]
fn a_syn_is_held_until_its_server_has_accepted() {
    let mut pep = Pep::new(|_| ());
    pep.hold(KEY, 0);
    assert_eq!(pep.syn(KEY, 500), Decision::Drop);
    let replied = pep.0.on_answer(&KEY, Answer::Connected("leg"), MS(600));
    assert_eq!(replied, Some((Reply::SendOn, "syn")));
    assert_eq!(pep.syn(KEY, 620), Decision::SendOn);
    assert_eq!((pep.0.on_accepted(&KEY), pep.0.on_accepted(&KEY)), (Some("leg"), None));
    assert_eq!((pep.0.connections(), pep.0.waiting()), (1, 0));
    assert_eq!(pep.syn(KEY, 10_599), Decision::Drop);
    pep.0.on_ended();
    assert_eq!((pep.0.connections(), pep.0.max_connections()), (0, 1));
    let another = pep.0.on_syn(KEY, NUMBER + 1, Side::Lan, MS(10_599));
    assert_eq!(another, Decision::Open, "the port is used again");
    pep.0.on_lost(&KEY);
    assert_eq!(pep.syn(KEY, 10_600), Decision::Open);
    let expected = AdmissionCounters { split: 1, accepted: 1, ..AdmissionCounters::default() };
    assert_eq!(pep.counters(), expected);
}

/// Given each way in which a leg can fail, expect what the client is told, and that nothing is left: a new SYN opens a leg.
#[test]
fn a_failure_is_passed_on() {
    for (answer, reply, [refused, expired]) in [
        (Answer::Refused, Reply::Reset, [1, 0]),
        (Answer::Unreachable, Reply::Unreachable, [0, 1]),
        (Answer::Failed, Reply::Nothing, [0, 1]),
    ] {
        let mut pep = Pep::new(|_| ());
        pep.hold(KEY, 0);
        assert_eq!(pep.0.on_answer(&KEY, answer, MS(50)), Some((reply, "syn")));
        assert_eq!(pep.0.on_answer(&KEY, answer, MS(50)), None, "once");
        assert_eq!(pep.0.connections(), 0);
        assert_eq!(pep.syn(KEY, 60), Decision::Open);
        let expected =
            AdmissionCounters { split: 1, refused, expired, ..AdmissionCounters::default() };
        assert_eq!(pep.counters(), expected);
    }
}

/// Given early accept, expect the SYN to go on at once, and the relay to get what was kept for the leg.
#[test]
fn early_accept_asks_no_server() {
    let mut pep = Pep::new(|config| config.early_accept = true);
    assert_eq!(pep.syn(KEY, 0), Decision::Accept);
    pep.0.on_started(&KEY, "unopened", MS(0));
    assert_eq!(pep.syn(KEY, 1_000), Decision::SendOn);
    assert_eq!(pep.0.on_answer(&KEY, Answer::Refused, MS(1_100)), None, "no server was asked");
    assert_eq!(pep.0.on_accepted(&KEY), Some("unopened"));
    assert_eq!((pep.counters().split, pep.counters().accepted), (1, 1));
}

/// Given room for two connections, of which one is held and one is open, expect the third to pass. Its SYN passes for 127 s
/// after each copy of it, although there is room again from 1 s on.
#[test]
fn a_bypassed_connection_is_not_split_while_its_syn_is_repeated() {
    let mut pep = Pep::new(|config| config.connections_max = 2);
    pep.start((1, 1), 0);
    assert!(pep.0.on_accepted(&(1, 1)).is_some());
    pep.hold((1, 2), 0);
    assert_eq!(pep.syn((1, 3), 0), Decision::Pass);
    pep.0.on_ended();
    for at in [1_000, 3_000, 7_000, 15_000, 31_000, 63_000, 189_999] {
        assert_eq!(pep.syn((1, 3), at), Decision::Pass, "at {at} ms");
    }
    assert_eq!(pep.counters().unsplit, 1);
    assert_eq!(pep.syn((1, 3), 189_999 + 127_000), Decision::Open);
}

/// Given a client that always has the same port, and whose first connection passed, expect those after 127 s to be split:
/// its other SYNs are not copies of the first.
#[test]
fn a_port_that_is_used_again_is_split_again() {
    let mut pep = Pep::new(|config| config.connections_max = 1);
    pep.hold((1, 1), 0);
    assert_eq!(pep.syn(KEY, 0), Decision::Drop);
    assert_eq!(pep.syn((1, 2), 0), Decision::Pass);
    assert!(pep.0.on_answer(&(1, 1), Answer::Refused, MS(0)).is_some());
    for (at, expected) in
        [(60_000, Decision::Pass), (126_999, Decision::Pass), (127_000, Decision::Open)]
    {
        assert_eq!(pep.0.on_syn((1, 2), 8, Side::Lan, MS(at)), expected, "at {at} ms");
    }
}

/// Given SYNs that wait and a maximum of two of them, expect the third to pass; given that one goes on to the relay, expect
/// room.
#[test]
fn few_syns_wait_at_the_same_time() {
    let mut pep = Pep::new(|config| config.waiting_max = 2);
    pep.hold((1, 1), 0);
    assert_eq!(pep.syn((1, 2), 0), Decision::Open);
    pep.0.on_taken(&(1, 2), "deferred", MS(0));
    assert_eq!((pep.0.waiting(), pep.0.connections()), (2, 1));
    assert_eq!(pep.syn((1, 3), 0), Decision::Pass);
    assert!(pep.0.on_answer(&(1, 1), Answer::Connected("leg"), MS(1)).is_some());
    assert_eq!(pep.syn((1, 4), 1), Decision::Open);
}

/// Given a server, and then a client, that is silent, expect the connection to expire 30 s after it was held, or after it
/// went on, and not a nanosecond before. The SYN of the first comes back, whose leg is to be closed.
#[test]
fn silence_expires() {
    let mut pep = Pep::new(|_| ());
    pep.hold((1, 1), 1_000);
    pep.start((1, 2), 2_000);
    let before = |at_ms| Instant::from_nanos(MS(at_ms).as_nanos() - 1);
    assert!(pep.0.expire(before(31_000)).is_empty());
    assert_eq!(pep.0.expire(MS(31_000)), ["syn"]);
    assert!(pep.0.expire(before(32_000)).is_empty() && pep.0.is_started(&(1, 2)));
    assert!(pep.0.expire(MS(32_000)).is_empty() && !pep.0.is_started(&(1, 2)));
    assert_eq!((pep.counters().expired, pep.0.connections()), (2, 0));
}

/// Given a leg that can never be opened, expect tries after 10 ms, later after a quarter of the time before, and none when
/// the client has repeated its SYN.
#[test]
fn tries_of_a_deferred_syn_are_ever_rarer() {
    let mut pep = Pep::new(|_| ());
    assert_eq!(pep.syn(KEY, 0), Decision::Open);
    pep.0.on_taken(&KEY, "syn", MS(0));
    let mut tries = Vec::new();
    for at in 0..2_000 {
        while let Some((key, syn, decision)) = pep.0.next_due(MS(at)) {
            assert_eq!((key, syn, decision), (KEY, "syn", Decision::Open));
            tries.push(at);
            pep.0.on_taken(&key, syn, MS(at));
        }
    }
    assert_eq!(tries[..6], [10, 20, 30, 40, 50, 63]);
    assert_eq!((tries.len(), tries[tries.len() - 1]), (19, 1_162));
    assert_eq!((pep.0.waiting(), pep.0.next_due_at()), (0, None));
    assert_eq!(pep.counters(), AdmissionCounters::default());
}

/// Given a deferred SYN that the client repeats, expect a try at once, and no other one at its time.
#[test]
fn a_repeated_syn_is_tried_at_once() {
    let mut pep = Pep::new(|_| ());
    assert_eq!(pep.syn(KEY, 0), Decision::Open);
    pep.0.on_taken(&KEY, "syn", MS(0));
    assert_eq!(pep.0.next_due_at(), Some(MS(10)));
    pep.hold(KEY, 5);
    assert_eq!((pep.0.next_due(MS(100)), pep.0.next_due_at()), (None, None));
}

/// Given a deferred SYN, and another connection between the same hosts whose server answers past the gateway, expect the
/// deferred SYN to pass when it is repeated or due, and no leg to be opened for it after that: the server would see two
/// connections with the same addresses and ports.
#[test]
fn a_deferred_syn_on_an_asymmetric_path_passes_once() {
    for repeated in [false, true] {
        let mut pep = Pep::new(|_| ());
        assert_eq!(pep.syn((1, 1), 0), Decision::Open);
        pep.0.on_taken(&(1, 1), "deferred", MS(0));
        pep.hold((1, 2), 1);
        assert_eq!(pep.0.on_asymmetric(&(1, 2), MS(2)), [((1, 2), "syn")]);
        if repeated {
            assert_eq!(pep.syn((1, 1), 3), Decision::Pass);
        } else {
            assert_eq!(pep.0.next_due(MS(10)), Some(((1, 1), "deferred", Decision::Pass)));
        }
        assert_eq!(pep.0.next_due(MS(2_000)), None);
        assert_eq!((pep.counters().unsplit, pep.0.connections()), (2, 0));
    }
}

/// Given connections of two clients whose SYNs are held, and one that went on, expect those of the one client to pass when
/// its reset shows that its server answers past the gateway. Its next connection passes at once; that of the other does not.
#[test]
fn an_asymmetric_path_releases_the_syns_between_its_hosts() {
    let mut pep = Pep::new(|_| ());
    for key in [(1, 1), (1, 2), (2, 1)] {
        pep.hold(key, 0);
    }
    pep.start((1, 3), 0);
    assert_eq!(pep.0.on_asymmetric(&(3, 1), MS(50)), [], "it is of no connection");
    let released = pep.0.on_asymmetric(&(1, 2), MS(50));
    assert_eq!(released, [((1, 1), "syn"), ((1, 2), "syn")]);
    assert!(pep.0.is_started(&(1, 3)));
    assert_eq!((pep.syn((1, 4), 60), pep.syn((2, 2), 60)), (Decision::Pass, Decision::Open));
    let expected =
        AdmissionCounters { split: 4, released: 2, unsplit: 3, ..AdmissionCounters::default() };
    assert_eq!(pep.counters(), expected);
}

/// Given a server that has not answered for 3 s, expect it to be given up when the client repeats its SYN, only where paths
/// may be asymmetric.
#[test]
fn a_silent_server_is_given_up() {
    for (may_be_asymmetric, expected) in [(true, Decision::GiveUp), (false, Decision::Drop)] {
        let mut pep = Pep::new(|config| config.may_be_asymmetric = may_be_asymmetric);
        pep.hold(KEY, 0);
        assert_eq!(pep.syn(KEY, 1_000), Decision::Drop);
        assert_eq!(pep.syn(KEY, 3_000), expected);
    }
}

/// Given a leg that cannot be opened at all, expect the SYN to pass, and its copy as well.
#[test]
fn a_syn_without_a_leg_passes() {
    let mut pep = Pep::new(|_| ());
    assert_eq!(pep.syn(KEY, 0), Decision::Open);
    pep.0.on_unopened(&KEY, MS(0));
    assert_eq!((pep.syn(KEY, 1_000), pep.counters().unsplit), (Decision::Pass, 1));
    assert_eq!((pep.counters().split, pep.0.connections()), (0, 0));
}

/// Given a client that resets its connection while it is held or started, or whose handshake the caller ends, expect each to
/// be counted once, and not as one that was open.
#[test]
fn an_abandoned_handshake_is_counted_once() {
    let mut pep = Pep::new(|_| ());
    pep.hold((1, 1), 0);
    pep.start((1, 2), 0);
    assert!(pep.0.on_abandoned(&(1, 1), Abandoned::Reset));
    assert!(pep.0.on_abandoned(&(1, 2), Abandoned::Expired));
    assert!(!pep.0.on_abandoned(&(1, 1), Abandoned::Reset));
    let expected =
        AdmissionCounters { split: 2, reset: 1, expired: 1, ..AdmissionCounters::default() };
    assert_eq!((pep.counters(), pep.0.connections()), (expected, 0));
}

/// Given one more bypassed connection than is remembered, expect the oldest to be split when its SYN is repeated.
#[test]
fn a_flood_of_syns_takes_bounded_memory() {
    let mut pep = Pep::new(|config| (config.connections_max, config.remembered_max) = (0, 100));
    for ports in 0..=100 {
        assert_eq!(pep.syn((1, ports), 0), Decision::Pass);
    }
    pep.0.config.connections_max = 1;
    assert_eq!((pep.syn((1, 1), 1), pep.syn((1, 0), 1)), (Decision::Pass, Decision::Open));
}
