//! From the first message to the first payload.

use bentpipe_core::time::{Duration, Instant};
use bentpipe_gate::tunnel::{PeerError, PeerId, Settings, Tunnel};

use crate::network::{
    Network, ONE_WAY, PEER, Seeded, Sent, address, connected_pair, hub, hub_address, ms, pair,
    private_key, settings, terminal, terminal_address,
};

/// Given a terminal that knows the hub, at 0 s it starts: 173 bytes, 89 bytes back, a keepalive that confirms the keys,
/// and its answer, each after one way. The terminal has a session after 600 ms, the hub after 900 ms. Then both are silent.
#[test]
fn a_handshake_takes_one_and_a_half_round_trips() {
    let mut network = pair();
    network.run_until(ms(599));
    assert!(!network.ends[0].tunnel.has_session(PEER, network.now));
    network.run_until(ms(600));
    assert!(network.ends[0].tunnel.has_session(PEER, network.now));
    assert!(!network.ends[1].tunnel.has_session(PEER, network.now));
    network.run_until(ms(900));
    assert!(network.ends[1].tunnel.has_session(PEER, network.now));
    network.run_until(ms(60_000));
    assert_eq!(network.log(Instant::START), [(1, 0, 173), (2, 1, 89), (5, 0, 30), (5, 1, 30)]);
    let at: Vec<_> = network.sent.iter().map(|sent| sent.at).collect();
    assert_eq!(at, [ms(0), ms(300), ms(600), ms(900)]);
}

/// Payloads of all sizes arrive as they were sent, in both directions, with 29 bytes more on the way.
#[test]
fn payloads_arrive_unchanged() {
    let mut network = connected_pair();
    for size in [0, 1, 15, 16, 17, 1_400, 9_000, 65_478] {
        let payload: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
        for end in [0, 1] {
            assert!(network.send(end, PEER, &payload));
            let sent = network.sent.last().expect("it was sent");
            assert_eq!(sent.bytes.len(), size + 29);
            let other = &sent.bytes[13..];
            assert!(size < 16 || !other.windows(16).any(|part| part == &payload[..16]));
        }
        network.run_until(network.now + ONE_WAY);
        for end in &network.ends {
            assert_eq!(end.payloads().last(), Some(&&payload[..]));
        }
    }
}

/// Given the loss of any one of the first four datagrams without data, then a payload that the terminal sends as soon as it has a
/// session, and one that the hub sends as soon as it has one, arrive within a retry (1.25 s) and the 1.2 s of the
/// handshake more.
#[test]
fn the_loss_of_any_message_is_repaired() {
    for lost in 0..4 {
        let mut network = pair();
        let mut number = 0;
        network.set_fate(move |sent| {
            number += i32::from(sent.bytes[0] != 4);
            let is_lost = sent.bytes[0] != 4 && number == lost + 1;
            if is_lost { vec![] } else { vec![ONE_WAY] }
        });
        let mut has_sent = [false; 2];
        while network.now < ms(4_000) {
            network.run_until(network.now + Duration::from_millis(10));
            for (end, has_sent) in has_sent.iter_mut().enumerate() {
                let now = network.now;
                if !*has_sent && network.ends[end].tunnel.has_session(PEER, now) {
                    *has_sent = network.send(end, PEER, b"payload");
                }
            }
        }
        for end in &network.ends {
            assert_eq!(end.payloads(), [b"payload"], "lost: {lost}");
            assert!(end.delivered[0].0 <= ms(2_450), "lost: {lost}: {:?}", end.delivered[0].0);
        }
    }
}

/// Given a round trip of 3.9 s, when first messages are repeated each second or so, then the answer to an early one still
/// counts.
#[test]
fn a_round_trip_may_be_longer_than_the_retry_interval() {
    let mut network = pair();
    network.set_fate(|_| vec![Duration::from_millis(1_950)]);
    network.run_until(ms(3_900));
    assert!(network.ends[0].tunnel.has_session(PEER, network.now));
    network.run_until(ms(20_000));
    assert!(network.send(0, PEER, b"up") && network.send(1, PEER, b"down"));
    network.run_until(ms(22_000));
    assert_eq!(network.ends[1].payloads(), [b"up"]);
    assert_eq!(network.ends[0].payloads(), [b"down"]);
}

/// Two gateways that know each other, in either sequence of their keys.
fn both_know(is_swapped: bool) -> Network {
    let names = if is_swapped { ["hub", "terminal"] } else { ["terminal", "hub"] };
    let addresses = [terminal_address(), hub_address()];
    let mut network = Network::new();
    for end in [0, 1] {
        let peer = (names[1 - end], Some(addresses[1 - end]));
        network.add(addresses[end], settings(names[end], &[peer]));
    }
    network
}

/// Given both ends start at once, then the handshake of the end with the greater public key counts, and there is one
/// session: 600 ms after the start that end has it, 900 ms after it both.
#[test]
fn of_two_handshakes_at_once_one_counts() {
    for is_swapped in [false, true] {
        let mut network = both_know(is_swapped);
        network.run_until(ms(900));
        assert!(network.ends.iter().all(|end| end.tunnel.has_session(PEER, ms(900))));
        network.run_until(ms(60_000));
        let names = if is_swapped { ["hub", "terminal"] } else { ["terminal", "hub"] };
        let keys = names.map(|name| private_key(name).public());
        for (end, key) in keys.iter().enumerate() {
            let counts = u64::from(*key > keys[1 - end]);
            let statistics = network.ends[end].tunnel.statistics();
            assert_eq!(statistics.sessions_as_initiator, counts, "{end} {is_swapped}");
        }
        // Two first messages, two answers, a confirmation and its answer.
        assert_eq!(network.sent.len(), 6);
    }
}

/// Given both ends start at once and the messages of the end whose handshake counts do not arrive for 5 s (its peer is
/// elsewhere, say), then the handshake of the other end is answered.
#[test]
fn the_rule_for_two_handshakes_excludes_no_one() {
    for is_swapped in [false, true] {
        let mut network = both_know(is_swapped);
        let keys = ["terminal", "hub"].map(|name| private_key(name).public());
        let first_wins = (keys[0] > keys[1]) != is_swapped;
        let winner = if first_wins { terminal_address() } else { hub_address() };
        network.set_fate(move |sent: &Sent| {
            let is_lost = sent.bytes[0] == 1 && sent.from == winner && sent.at < ms(5_000);
            if is_lost { vec![] } else { vec![ONE_WAY] }
        });
        network.run_until(ms(900));
        for end in [0, 1] {
            assert!(network.ends[end].tunnel.has_session(PEER, network.now), "{end}");
            assert!(network.send(end, PEER, b"payload"));
        }
        network.run_until(ms(1_200));
        assert!(network.ends.iter().all(|end| end.payloads() == [b"payload"]));
    }
}

/// Given nothing but payloads for a peer whose address nobody knows, then nothing is sent; the handshake of the peer
/// brings the address.
#[test]
fn a_peer_without_an_address_is_waited_for() {
    let mut network = Network::new();
    let hub = network.add(hub_address(), hub());
    assert!(!network.send(hub, PEER, b"too early"));
    network.run_until(ms(10_000));
    assert_eq!(network.sent.len(), 0);
    assert_eq!(network.ends[hub].tunnel.endpoint(PEER), None);
    network.add(terminal_address(), terminal());
    network.run_until(ms(11_000));
    assert_eq!(network.ends[hub].tunnel.endpoint(PEER), Some(terminal_address()));
    assert!(network.send(hub, PEER, b"in time"));
}

/// Given a peer that does not exist, then first messages are sent for 60 s, one each 1 to 1.25 s; a payload begins that
/// anew at once.
#[test]
fn first_messages_end_after_a_minute() {
    let mut network = Network::new();
    let terminal = network.add(terminal_address(), terminal());
    network.run_until(ms(600_000));
    let count = network.sent.len();
    assert!((48..=60).contains(&count), "{count}");
    assert!(network.sent.last().expect("messages").at < ms(60_000));
    let gaps = network.sent.windows(2).map(|pair| pair[1].at.saturating_since(pair[0].at));
    let (least, greatest) = (gaps.clone().min().expect("gaps"), gaps.max().expect("gaps"));
    assert!(least >= Duration::from_millis(1_000) && greatest < Duration::from_millis(1_250));

    assert!(!network.send(terminal, PEER, b"payload"));
    network.run_until(ms(600_000));
    assert_eq!(network.sent.len(), count + 1);
    network.run_until(ms(1_200_000));
    assert!(network.sent.last().expect("messages").at < ms(660_000));
}

/// Given a gateway whose key the hub does not have, then its first message gets no answer, and neither does one to a hub
/// with another key than expected.
#[test]
fn strangers_get_no_answer() {
    let mut network = Network::new();
    let hub = network.add(hub_address(), hub());
    network.add(terminal_address(), settings("stranger", &[("hub", Some(hub_address()))]));
    let other = address("192.0.2.9:4000");
    network.add(other, settings("terminal", &[("former hub", Some(hub_address()))]));
    network.run_until(ms(30_000));
    assert!(network.sent.len() >= 48);
    assert!(network.sent.iter().all(|sent| sent.from != hub_address()));
    let refused = network.ends[hub].tunnel.statistics().refused_datagrams;
    assert!(refused >= 46, "{refused}");
}

/// Each of three terminals has a session of its own, and payloads are attributed to their senders.
#[test]
fn peers_are_told_apart() {
    let mut network = Network::new();
    let names = ["first", "second", "third"];
    let hub = settings("hub", &names.map(|name| (name, None)));
    let hub = network.add(hub_address(), hub);
    for (number, name) in names.iter().enumerate() {
        let own = address(&format!("192.0.2.{}:4000", number + 1));
        network.add(own, settings(name, &[("hub", Some(hub_address()))]));
    }
    network.run_until(ms(2_000));
    for (number, name) in names.iter().enumerate() {
        assert!(network.send(number + 1, PEER, name.as_bytes()));
        assert!(network.send(hub, PeerId(number), name.as_bytes()));
    }
    network.run_until(ms(3_000));
    for (number, name) in names.iter().enumerate() {
        assert_eq!(network.ends[number + 1].payloads(), [name.as_bytes()]);
        let (_, peer, payload) = &network.ends[hub].delivered[number];
        assert_eq!((peer.0, &payload[..]), (number, name.as_bytes()));
    }
}

#[test]
fn equal_keys_are_refused() {
    let new = |settings: Settings| {
        let random = Box::new(Seeded(bentpipe_core::rng::Rng::stream(1, "random")));
        Tunnel::new(settings, random).err()
    };
    assert_eq!(new(settings("a", &[("b", None), ("a", None)])), Some(PeerError::OwnKey(PeerId(1))));
    let repeated = settings("a", &[("b", None), ("b", None)]);
    assert_eq!(new(repeated), Some(PeerError::Repeated(PeerId(1))));
    assert_eq!(new(settings("a", &[("b", None), ("c", None)])), None);
}

/// Given payloads each 10 s until 300 s for a peer that does not exist, then first messages end 60 s after the last one.
#[test]
fn payloads_prolong_the_search() {
    let mut network = Network::new();
    let terminal = network.add(terminal_address(), terminal());
    for tens in 0..=30 {
        network.run_until(ms(tens * 10_000));
        assert!(!network.send(terminal, PEER, b"payload"));
    }
    network.run_until(ms(1_200_000));
    let last = network.sent.last().expect("messages").at;
    assert!(last >= ms(358_000) && last < ms(360_000), "{last:?}");
}

/// Given a session of 0.6 s, when the peer is gone and the last payload is sent 5 s after the first one, then first messages
/// begin 1.5 s after the first one and end 60 s after the last one. They come again when the renewal is due, at 120.6 s, for
/// another 60 s; then all is silent.
#[test]
fn the_search_for_a_lost_peer_ends() {
    let mut network = connected_pair();
    network.set_fate(|_| vec![]);
    assert!(network.send(0, PEER, b"first, at 2 s"));
    network.run_until(ms(7_000));
    assert!(network.send(0, PEER, b"last"));
    network.run_until(ms(1_200_000));
    let searches: Vec<_> = network.sent.iter().filter(|sent| sent.bytes[0] == 1).collect();
    assert_eq!(searches[1].at, ms(3_500));
    let at = searches.iter().map(|sent| sent.at);
    let before = at.clone().filter(|&at| at < ms(100_000)).max().expect("messages");
    assert!(before > ms(65_000) && before <= ms(67_000), "{before:?}");
    assert_eq!(at.clone().find(|&at| at > before), Some(ms(120_600)));
    assert!(at.max().expect("messages") <= ms(180_600));
    assert!(network.sent.last().expect("messages").at <= ms(180_600));
}

/// Given an end that gives way and restarts, when first messages that its peer sent before are replayed to it each 600 ms,
/// oldest first, then it gives way once, and its next handshake is answered: within 1.25 s and a round trip.
#[test]
fn replayed_first_messages_do_not_stop_a_handshake() {
    let keys = ["terminal", "hub"].map(|name| private_key(name).public());
    let (yielding, peer) = if keys[0] < keys[1] { (0, 1) } else { (1, 0) };
    let addresses = [terminal_address(), hub_address()];
    let mut network = both_know(false);
    network.set_fate(
        move |sent: &Sent| {
            if sent.from == addresses[peer] { vec![] } else { vec![ONE_WAY] }
        },
    );
    network.run_until(ms(20_000));
    let recorded: Vec<_> = network.sent.iter().filter(|it| it.from == addresses[peer]).collect();
    let recorded: Vec<_> =
        recorded.iter().filter(|it| it.bytes[0] == 1).map(|it| it.bytes.clone()).collect();
    assert!(recorded.len() > 10);
    network.set_fate(move |sent: &Sent| {
        let is_first_of_peer = sent.from == addresses[peer] && sent.bytes[0] == 1;
        if is_first_of_peer { vec![] } else { vec![ONE_WAY] }
    });
    let name = ["terminal", "hub"][yielding];
    let other = (["terminal", "hub"][peer], Some(addresses[peer]));
    network.restart(yielding, settings(name, &[other]));
    for (number, message) in recorded.iter().take(4).enumerate() {
        network.arrive(yielding, addresses[peer], message);
        network.run_until(ms(20_000 + 600 * (number as u64 + 1)));
    }
    assert!(network.ends[yielding].tunnel.statistics().sessions_as_initiator >= 1);
}
