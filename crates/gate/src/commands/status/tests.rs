use serde_json::json;

use super::*;
use crate::config::Ports;

fn pep_counters() -> Value {
    json!({
        "open_connections": 1_234, "split_connections": 5_678_901, "unsplit_connections": 3,
        "refused_connections": 4, "expired_connections": 5, "reset_connections": 6,
        "timed_out_connections": 7, "to_server_bytes": 123_456_789_012_u64,
        "to_client_bytes": 9_876_543_210_987_u64,
        "lan": {"rtt_sum_us": 3_000, "rtt_counts": [1, 1, 0], "retransmitted_segments": 1},
        "link": {"rtt_sum_us": 0, "rtt_counts": [0, 0, 0], "retransmitted_segments": 0},
    })
}

fn status_of(workers: Value, age_s: f64) -> (Status, f64) {
    let now_s = 1e9;
    let counters = json!({"pep": pep_counters(), "tunnel": null, "pep_workers": workers,
                          "unix_s": now_s - age_s});
    let described = Description {
        name: "sat".to_owned(),
        functions: vec!["pep".to_owned()],
        lan: Some(vec!["lan0".to_owned(), "lan1".to_owned()]),
        link: Some(vec!["sat0".to_owned()]),
        connections: Some(10_000),
        ..Description::default()
    };
    (Status { described, started_unix_s: now_s - 240.0, counters }, now_s)
}

#[test]
fn the_status_says_whether_new_connections_are_split() {
    let workers = |is_splitting, missing, failures| json!({"is_splitting": is_splitting, "workers": 3, "missing": missing, "failures": failures});
    for (workers, age_s, expected) in [
        (workers(true, 0, 0), 1.0, None),
        (workers(true, 0, 2), 1.0, Some("workers replaced            2")),
        (
            workers(false, 1, 0),
            1.0,
            Some("new connections             a share passes unsplit: 1 of 3 workers missing"),
        ),
        (
            workers(false, 3, 0),
            1.0,
            Some("new connections             pass without the PEP: 3 workers missing"),
        ),
        (
            workers(false, 0, 0),
            1.0,
            Some("new connections             pass without the PEP: no rules in force"),
        ),
        (
            workers(true, 0, 0),
            60.0,
            Some("new connections             unknown: no counters for 60 s"),
        ),
    ] {
        let (status, now_s) = status_of(workers, age_s);
        let lines = status.lines(now_s);
        let title = "sat: pep, lan0, lan1 to sat0, up for 4 min; counters as of ";
        assert_eq!(lines[0], format!("{title}{age_s:.1} s ago"));
        let mut following = lines[1..].iter().map(String::as_str);
        if expected.is_some() {
            assert_eq!(following.next(), expected);
        }
        assert_eq!(following.next(), Some("open connections            1,234 of 10,000"));
    }
}

#[test]
fn the_status_fits_80_columns() {
    let workers = json!({"is_splitting": false, "workers": 64, "missing": 63, "failures": 0});
    let (mut status, now_s) = status_of(workers, 0.0);
    let networks = ["2001:db8:1::/48", "2001:db8:2::/48", "2001:db8:3::/48", "10.0.0.0/8"];
    let networks = networks.map(str::to_owned).to_vec();
    status.described.only = Some(SelectionText { networks, ..SelectionText::default() });
    let ports = vec![Ports::of(&[22, 22]), Ports::of(&[5_000, 5_999])];
    let interfaces = vec!["wg0".to_owned(), "lan1.7".to_owned()];
    status.described.except = Some(SelectionText { ports, interfaces, ..SelectionText::default() });
    let lines = status.lines(now_s);
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
    for line in [
        "left out, ports             22, 5000-5999",
        "left out, interfaces        wg0, lan1.7",
        "only split, networks        4 entries",
        "open connections            1,234 of 10,000",
        "legs to the hosts           mean RTT 1.5 ms, 1 segment retransmitted",
        "legs over the link          mean RTT not measured, 0 segments retransmitted",
    ] {
        assert!(lines.iter().any(|it| it == line), "{line} in {lines:?}");
    }
    let totals = totals_lines(&json!({"pep": pep_counters(), "tunnel": null}));
    assert_eq!(totals, ["5,678,901 connections, 123.5 GB to servers, 9877 GB to clients"]);
}

#[test]
fn the_status_of_a_tunnel_has_its_peers() {
    let peer = json!({
        "name": "terminal-of-a-long-name",
        "endpoint": "[2001:db8:1111:2222:3333:4444:5555:6666]:51871",
        "session_age_ns": 35_900_000_000_u64, "outdated_handshakes": 1_234,
        "sent_packets": 1_234_567_890, "sent_bytes": 1_234_567_890_123_u64, "received_packets": 5,
        "received_bytes": 5_000, "dropped_packets": 7, "refused_packets": 8,
        "repairs_sent": 123_456_789, "sources_recovered": 20, "sources_lost": 1,
        "redundancy_ppm": 62_500, "loss_ppb": 10_100_000,
    });
    let tunnel = json!({"refused_datagrams": 3, "unroutable_packets": 0, "peers": [peer]});
    let described = Description {
        name: "hub".to_owned(),
        functions: vec!["tunnel".to_owned()],
        device: Some("bp0".to_owned()),
        peers: Some(vec!["terminal".to_owned()]),
        ..Description::default()
    };
    assert_eq!(described.action(), "carries packets of bp0 to terminal");
    let worker = json!({"missing": 1, "failures": 2});
    let counters = json!({"pep": null, "tunnel": tunnel, "tunnel_worker": worker, "unix_s": 0.0});
    let status = Status { described, started_unix_s: 0.0, counters: counters.clone() };
    let lines = status.lines(0.0);
    assert!(lines.iter().all(|line| line.chars().count() <= 100), "{lines:?}");
    assert!(lines[0].starts_with("hub: tunnel, bp0 to 1 peer, up for "), "{lines:?}");
    assert_eq!(lines[1], "tunnel                      carries nothing: its worker is missing");
    assert_eq!(lines[2], "tunnel worker replaced      2");
    assert!(lines[3].ends_with("]:51871, session of 35 s"), "{lines:?}");
    for line in [
        "  loss before decoding      1.01 % on the way there",
        "  recovered here            20 of 21 lost symbols",
        "  redundancy                6.2 %, 123,456,789 repair symbols",
        "datagrams refused           3",
        "  refused                   1,234 handshakes with an old timestamp: its clock went back?",
    ] {
        assert!(lines.iter().any(|it| it == line), "{line} in {lines:?}");
    }
    assert_eq!(totals_lines(&counters), ["1235 GB to peers, 5 kB from peers"]);
}

/// Given counters of two times, expect the rates between them, which stay while the counters do.
#[test]
fn a_watched_status_has_rates() {
    let at = |bytes: u64| json!({"pep": {"to_server_bytes": bytes, "to_client_bytes": 0}});
    let mut rates = Rates::default();
    assert!(rates.lines(&at(0), 0.0).is_empty());
    let expected = ["now                         8 Mbit/s to servers, 0 bit/s to clients"];
    assert_eq!(rates.lines(&at(1_000_000), 1.0), expected);
    assert_eq!(rates.lines(&at(1_000_000), 1.5), expected);
    assert_ne!(rates.lines(&at(1_000_000), 3.5), expected);
}
