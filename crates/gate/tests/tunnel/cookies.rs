//! Floods of first messages.

use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_gate::tunnel::{PrivateKey, Settings, Tunnel};

use crate::network::{
    Network, ONE_WAY, PEER, Seeded, UNIX_NANOS, address, hub, hub_address, ms, settings, terminal,
    terminal_address,
};

/// First messages of gateways that know the hub's key and that the hub does not know.
fn strangers(count: usize) -> Vec<Vec<u8>> {
    let message = |number| {
        let mut random = Seeded(Rng::stream(number as u64, "stranger"));
        let private_key = PrivateKey::generate(&mut random);
        let settings =
            Settings { private_key, ..settings("stranger", &[("hub", Some(hub_address()))]) };
        let mut tunnel = Tunnel::new(settings, Box::new(random)).expect("distinct keys");
        let mut out = Vec::new();
        tunnel.wake(Instant::START, UNIX_NANOS, &mut out);
        out[0].bytes().to_vec()
    };
    (0..count).map(message).collect()
}

fn loaded_hub() -> (Network, usize) {
    let mut network = Network::new();
    let hub = network.add(hub_address(), hub());
    let stranger = address("203.0.113.1:1");
    for (number, message) in strangers(60).iter().enumerate() {
        let answer = network.arrive(hub, stranger, message);
        // The free handshakes are computed, in vain; then there are cookies, which are shorter than the message.
        assert_eq!(answer.map(|it| it.bytes().len()), (number >= 50).then_some(69), "{number}");
    }
    (network, hub)
}

/// Given a hub under load, then a terminal gets a cookie, repeats its message with it at once, and has a session after two
/// round trips: 1.2 s.
#[test]
fn a_cookie_lets_a_terminal_in() {
    let (mut network, hub) = loaded_hub();
    // Between two of the free handshakes, one each 20 ms.
    network.run_until(ms(7));
    let start = network.now;
    network.set_fate(|_| vec![ONE_WAY]);
    let flood = strangers(200);
    let terminal = network.add(terminal_address(), terminal());
    // The flood goes on.
    let mut number = 0;
    while network.now < ms(2_000) {
        network.run_until(network.now + Duration::from_millis(1));
        network.arrive(hub, address("203.0.113.1:1"), &flood[number % 200]);
        number += 1;
    }
    let flood_from = address("203.0.113.1:1");
    let sent = network.sent.iter().filter(|it| it.at >= start && it.to != flood_from);
    let log: Vec<_> = sent.collect();
    let kinds: Vec<_> = log.iter().map(|it| it.bytes[0]).collect();
    assert_eq!(kinds, [1, 3, 1, 2, 5, 5]);
    assert_eq!(log[4].at, ms(1_207));
    // The repeated message differs in its last 32 bytes only: the same handshake, with a MAC by the cookie.
    assert_eq!(log[0].bytes[..141], log[2].bytes[..141]);
    assert_eq!(log[0].bytes[141..], [0; 32]);
    assert!(network.ends[terminal].tunnel.has_session(PEER, network.now));
}

/// Given a cookie reply with any bit changed, or for another message, then the terminal sends nothing; with the true one it
/// does, once.
#[test]
fn a_forged_cookie_is_refused() {
    let (mut network, hub) = loaded_hub();
    network.set_fate(|_| vec![]);
    let terminal = network.add(terminal_address(), terminal());
    network.run_until(ms(0));
    let first = network.sent.last().expect("a first message").clone();
    assert_eq!((first.bytes[0], first.from), (1, terminal_address()));
    let reply = network.arrive(hub, first.from, &first.bytes).expect("a cookie");
    for bit in 0..reply.bytes().len() * 8 {
        let mut forged = reply.bytes().to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(network.arrive(terminal, hub_address(), &forged), None, "{bit}");
    }
    assert!(network.arrive(terminal, hub_address(), reply.bytes()).is_some());
    assert!(network.arrive(terminal, hub_address(), reply.bytes()).is_none());
}

/// Given a stranger with a cookie of its own, then it takes 20 handshakes of its own limit; and with the cookie of another
/// address none.
#[test]
fn a_cookie_is_limited_and_of_one_address() {
    let (mut network, hub) = loaded_hub();
    network.set_fate(|_| vec![]);
    let elsewhere = address("203.0.113.77:1");
    let mut computed = 0;
    for number in 0..40_u64 {
        let mut random = Seeded(Rng::stream(number, "with a cookie"));
        let private_key = PrivateKey::generate(&mut random);
        let settings =
            Settings { private_key, ..settings("stranger", &[("hub", Some(hub_address()))]) };
        let mut tunnel = Tunnel::new(settings, Box::new(random)).expect("distinct keys");
        let mut out = Vec::new();
        tunnel.wake(Instant::START, UNIX_NANOS, &mut out);
        let from = address("203.0.113.5:1");
        let reply = network.arrive(hub, from, out[0].bytes()).expect("a cookie");
        let mut reply = reply.bytes().to_vec();
        let bentpipe_gate::tunnel::Output::Send(repeated) =
            tunnel.input(&mut reply, hub_address(), Instant::START)
        else {
            panic!("a message with the cookie");
        };
        // From another address, it gets a cookie for that address.
        let other = network.arrive(hub, elsewhere, repeated.bytes()).expect("a cookie");
        assert_eq!(other.bytes()[0], 3);
        assert!(network.arrive(hub, from, repeated.bytes()).is_none());
        computed += 1;
    }
    assert_eq!(computed, 40);
    // The limit of that sender is used up, that of the terminal is not.
    network.set_fate(|_| vec![ONE_WAY]);
    let terminal = network.add(terminal_address(), terminal());
    network.run_until(network.now + Duration::from_millis(1_500));
    assert!(network.ends[terminal].tunnel.has_session(PEER, network.now));
}

/// Given a hub under load, when a first message that it has answered is repeated, then it gets no cookie either.
#[test]
fn a_repeated_message_gets_no_cookie() {
    let mut network = crate::network::connected_pair();
    let first = network.sent[0].clone();
    assert_eq!((first.bytes[0], first.from), (1, terminal_address()));
    let flood = strangers(60);
    let answers = flood.iter().filter_map(|message| network.arrive(1, first.from, message)).count();
    assert_eq!(answers, 10);
    assert_eq!(network.arrive(1, first.from, &first.bytes), None);
}

/// Given a cookie, when the message that is repeated with it is lost, then the next one has it from the start.
#[test]
fn a_cookie_is_kept_for_the_next_message() {
    let (mut network, hub) = loaded_hub();
    network.set_fate(|_| vec![]);
    let terminal = network.add(terminal_address(), terminal());
    network.run_until(ms(0));
    let first = network.sent.last().expect("a first message").clone();
    network.arrive(hub, first.from, &first.bytes);
    let reply = network.sent.last().expect("a cookie").clone();
    network.arrive(terminal, hub_address(), &reply.bytes);
    network.run_until(ms(1_300));
    let next = network.sent.last().expect("a first message");
    assert!(next.at >= ms(1_000) && next.bytes[0] == 1);
    assert!(first.bytes[141..] == [0; 32] && next.bytes[141..] != [0; 32]);
}

/// Given a terminal with the cookie of a hub that has restarted under load, expect its next message to get a cookie that is
/// valid, and to be answered when it is repeated with that.
#[test]
fn a_cookie_of_a_former_hub_is_replaced() {
    let (mut network, hub_number) = loaded_hub();
    network.set_fate(|_| vec![]);
    let terminal = network.add(terminal_address(), terminal());
    network.run_until(ms(0));
    let first = network.sent.last().expect("a first message").clone();
    let reply = network.arrive(hub_number, first.from, &first.bytes).expect("a cookie");
    network.arrive(terminal, hub_address(), reply.bytes());
    network.run_until(ms(500));
    network.restart(hub_number, hub());
    network.run_until(ms(1_300));
    for message in strangers(60) {
        network.arrive(hub_number, address("203.0.113.1:1"), &message);
    }
    let is_first = |sent: &&crate::network::Sent| sent.from == terminal_address();
    let next = network.sent.iter().rfind(is_first).expect("a first message").clone();
    assert!(next.at >= ms(1_000) && next.bytes[141..] != [0; 32], "it has the former cookie");
    let reply = network.arrive(hub_number, next.from, &next.bytes).expect("a cookie");
    assert_eq!(reply.bytes().len(), 69);
    let repeated = network.arrive(terminal, hub_address(), reply.bytes()).expect("a message");
    let answer = network.arrive(hub_number, next.from, repeated.bytes()).expect("an answer");
    assert_eq!(answer.bytes().len(), 89);
}
