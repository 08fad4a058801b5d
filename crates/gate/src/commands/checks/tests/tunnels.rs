//! What keeps a tunnel from carrying packets.

use super::super::super::screen::table;
use super::*;

/// A gateway with a tunnel to a peer.
fn tunnel(key: &str, settings: &str, peer: &str) -> Config {
    let key = placeholder_key(key);
    let has = |text: &str, field: &str| text.contains(&format!("{field} = "));
    let networks = if has(peer, "networks") { "" } else { "networks = ['10.0.3.0/24']\n" };
    let addresses = if has(settings, "addresses") { "" } else { "addresses = ['10.99.0.1/24']\n" };
    let text = format!(
        "name = 'sat'\nfunctions = ['tunnel']\n[tunnel]\nprivate_key = 'key'\ntitration = 'immediate'\n\
         {addresses}{settings}\n[[tunnel.peers]]\nname = 'b'\npublic_key = '{key}'\n{networks}{peer}\n"
    );
    Config::parse(&text, "sat.toml").expect("a configuration")
}

fn ipv6_routes() -> Value {
    json!([
        {"dst": "2001:db8:1::/64", "dev": "lan0", "metric": 256},
        {"dst": "2001:db8:3::/64", "gateway": "2001:db8:2::2", "dev": "sat0", "metric": 1024},
        {"dst": "2001:db8:4::/64", "gateway": "2001:db8:2::2", "dev": "sat0", "metric": 2000},
        {"dst": "fe80::/64", "dev": "lan0", "metric": 256},
        {"dst": "default", "gateway": "2001:db8:2::2", "dev": "sat0", "metric": 1024},
    ])
}

/// A machine with these routes of IPv4 does not start such a tunnel, and says so; or it does, if `said` is empty.
fn expect(key: &str, settings: &str, peer: &str, routes: Value, said: &str) {
    let machine = lacking(|it| it.routes = [routes, ipv6_routes()]);
    let found = failures(&machine, &tunnel(key, settings, peer));
    assert_eq!(found.is_empty(), said.is_empty(), "{peer}: {found:?}");
    assert!(found.concat().contains(said), "{said} in {found:?}");
}

fn plain() -> Value {
    Value::Array(routes())
}

/// A route to the network of the peer, with more fields.
fn beside(more: &Value) -> Value {
    let mut route = json!({"dst": "10.0.3.0/24"});
    let fields = more.as_object().expect("fields").clone();
    route.as_object_mut().expect("a route").extend(fields);
    with_route(route)
}

/// Given keys, routes and addresses, expect the one that is in the way, with the fix.
#[test]
fn another_route_to_the_network_of_a_peer_is_one_line() {
    let other = "another";
    for (key, settings, peer, routes, said) in [
        (other, "", "", plain(), ""),
        (
            "b",
            "",
            "",
            plain(),
            "peers: The public_key of b is the placeholder of an export; to fix it",
        ),
        (
            other,
            "",
            "",
            beside(&json!({"dev": "wan1"})),
            "ip -4 route del 10.0.3.0/24 dev wan1, or other",
        ),
        // What is used after the tunnel's own route, what closes it after a kill, and that route itself.
        (other, "", "", beside(&json!({"dev": "wan1", "metric": 50})), ""),
        (other, "", "", beside(&json!({"type": "unreachable", "protocol": "98"})), ""),
        (other, "", "", beside(&json!({"dev": "bp0"})), ""),
        (
            other,
            "",
            "networks = ['10.0.1.0/24']",
            plain(),
            "10.0.1.0/24 has another route, on lan0",
        ),
        (other, "", "networks = ['0.0.0.0/0']", plain(), "0.0.0.0/0 has another route, on sat0"),
        (
            other,
            "",
            "networks = ['0.0.0.0/0']",
            plain(),
            "networks 0.0.0.0/1 and 128.0.0.0/1, and routes to the",
        ),
        (
            other,
            "addresses = ['10.0.1.9/25']",
            "",
            plain(),
            "are in the network 10.0.1.0/24 on lan0; to fix it",
        ),
    ] {
        expect(key, settings, peer, routes, said);
    }
}

/// Given endpoints and routes of IPv6, expect the one that is in the way, with the fix.
#[test]
fn an_endpoint_within_the_networks_of_the_peers_is_one_line() {
    let other = "another";
    for (key, settings, peer, routes, said) in [
        // What contains it behind a router does not take its packets.
        (
            other,
            "",
            "",
            with_route(json!({"dst": "10.0.0.0/8", "gateway": "10.0.2.2", "dev": "sat0"})),
            "",
        ),
        (
            other,
            "",
            "endpoint = '10.0.3.9:51871'",
            plain(),
            "The endpoint of b, 10.0.3.9, is in the networks",
        ),
        (
            other,
            "",
            "endpoint = '10.0.3.9:51871'",
            with_route(json!({"dst": "10.0.3.9", "dev": "sat0"})),
            "",
        ),
        (other, "", "networks = ['0.0.0.0/1']\nendpoint = '10.0.2.2:51871'", plain(), ""),
        (other, "addresses = ['10.99.0.1/24', 'fe80::1/64']", "", plain(), ""),
        (
            other,
            "",
            "networks = ['2001:db8:1::/64']",
            plain(),
            "ip -6 route del 2001:db8:1::/64 dev lan0, or",
        ),
        (
            other,
            "",
            "networks = ['2001:db8:3::/64']",
            plain(),
            "ip -6 route del 2001:db8:3::/64 dev sat0, or",
        ),
        (other, "", "networks = ['2001:db8:4::/64']", plain(), ""),
        (
            other,
            "",
            "networks = ['::/0']",
            plain(),
            "networks ::/1 and 8000::/1, and routes to the endpoints",
        ),
        (
            other,
            "",
            "networks = ['2001:db8:9::/48']\nendpoint = '[2001:db8:9::5]:51871'",
            plain(),
            "-6 route add",
        ),
        (
            other,
            "",
            "networks = ['0.0.0.0/1']\nendpoint = '9.9.9.9:51871'",
            plain(),
            "add 9.9.9.9 via GATEWAY",
        ),
    ] {
        expect(key, settings, peer, routes, said);
    }
}

/// Given a closed chain, expect advice: what it accepts may contain the tunnel's packets.
#[test]
fn a_filter_that_does_not_name_the_tunnel_is_pointed_out() {
    use Hook::{Forward, Input, Output, Prerouting};
    let port = |number: u16| number.to_be_bytes();
    let ports = match_of(Subject::DestinationPort, &[&port(53), &port(51_871)]);
    for (hook, statement, fix) in [
        (Input, on("lan0"), "nft insert rule ip other own udp dport 51871 accept"),
        (Input, ports, ""),
        (
            Forward,
            on("lan0"),
            "nft insert rule ip other own iifname bp0 accept && nft insert rule ip other own oifname bp0 accept",
        ),
        (Forward, on("bp0"), ""),
        (Input, Statement::Note, "nft insert rule ip other own udp dport"),
        (Output, on("lan0"), "nft insert rule ip other own udp sport 51871 accept"),
        (Prerouting, on("lan0"), ""),
    ] {
        let rules = [vec![statement, Statement::Accept]];
        let machine = lacking(|it| it.ruleset = Ok(ruleset(hook, true, &rules)));
        let checks = checks_of(&machine, &tunnel("another", "", ""), Options::default());
        let advice: Vec<_> = checks.iter().filter(|check| !check.ok).collect();
        assert_eq!(advice.is_empty(), fix.is_empty(), "{hook:?} {rules:?}: {advice:?}");
        assert!(advice.iter().all(|check| check.fix.starts_with(fix)), "{advice:?}");
        assert!(checks.iter().all(Check::passes), "{checks:?}");
    }
}

/// Given a kernel that does not list its rules, expect advice.
#[test]
fn filters_that_cannot_be_listed_keep_no_tunnel_from_starting() {
    let error = "the rules cannot be read; to fix it: try again";
    let machine = lacking(|it| it.ruleset = Err(Failure::Machine(error.to_owned())));
    let checks = checks_of(&machine, &tunnel("another", "", ""), Options::default());
    let advice: Vec<_> = checks.iter().filter(|check| !check.ok).collect();
    let [advice] = advice[..] else { panic!("{advice:?}") };
    assert_eq!((advice.needed, advice.fix.as_str()), (false, "try again"));
    assert_eq!(advice.found, "Filters cannot be checked: the rules cannot be read.");
}

/// Given `fail = "open"`, expect advice that keeps nothing from starting, in a table that fits a terminal; by default, none.
#[test]
fn a_tunnel_that_fails_open_is_advised_against() {
    for (mode, expected) in [("closed", &[][..]), ("open", &["clear text"])] {
        let found = tunnel("another", &format!("fail = '{mode}'"), "");
        let checks = checks_of(&Fake::default(), &found, Options::default());
        let advice: Vec<_> =
            checks.iter().filter(|check| !check.ok).map(|check| check.name.as_str()).collect();
        assert_eq!(advice, expected);
        assert!(checks.iter().all(Check::passes));
        let lines = table(&checks, None);
        let end = "packets for the networks of its peers leave in clear text.";
        let marked: Vec<_> = lines.iter().filter(|line| line.starts_with("-  ")).collect();
        assert_eq!(marked.len(), expected.len());
        assert!(marked.iter().all(|line| line.ends_with(end)), "{marked:?}");
        let fitting = table(&checks, Some(80));
        assert!(fitting.iter().all(|line| line.chars().count() <= 80), "{fitting:?}");
        let words = |lines: &[String]| {
            lines.join("\n").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words(&fitting), words(&lines));
    }
}
