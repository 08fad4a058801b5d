//! The metrics of a daemon, as a program like curl reads them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::router::{Host, SERVERS, TIMEOUT, until};
use crate::setup::{Setup, is_possible, pep};

const ADDRESS: &str = "127.0.0.1:9119";

/// Sends bytes on a new connection to the listener, and returns what comes back until its end.
fn exchange(setup: &Setup, request: &[u8]) -> std::io::Result<String> {
    let address: SocketAddr = ADDRESS.parse().expect("an address");
    let mut stream = setup.router.on(Host::Gateway, || TcpStream::connect(address))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The value of a line.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {text}")).parse().expect("a number")
}

/// Given a connection that carried a megabyte each way, expect its bytes and RTTs in the metrics, and at `/` their
/// name; expect no answer to anything else, nor to strangers, also while 20 clients send nothing.
#[test]
fn metrics_are_served_to_this_host_only() {
    if !is_possible() {
        return;
    }
    let setup = Setup::with("metrics", |plan| plan.metrics_listen = Some(ADDRESS.to_owned()));
    let listener = setup.listen(SERVERS[0]);
    let (mut client, mut server) = setup.pair(&listener);
    let exchanged = std::thread::scope(|scope| {
        scope.spawn(|| (&client).write_all(&[3; 1_000_000]).expect("it can be written"));
        scope.spawn(|| (&server).write_all(&[4; 1_000_000]).expect("it can be written"));
        let mut data = vec![0; 1_000_000];
        (&server).read_exact(&mut data).and_then(|()| (&client).read_exact(&mut data))
    });
    exchanged.expect("the data arrive");
    client.write_all(&[0]).expect("it can be written");
    server.read_exact(&mut [0]).expect("the data arrive");
    drop((client, server));
    setup.state(|state| state.open_connections == 0);

    let get =
        || exchange(&setup, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n");
    let split = "bentpipe_pep_split_connections_total";
    until(|| get().is_ok_and(|text| value(&text, split) >= 1.0));
    let text = get().expect("an answer");
    assert!(
        text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"),
        "{text}"
    );
    for (name, expected) in [
        (split, 1.0),
        ("bentpipe_pep_relayed_bytes_total{direction=\"to_server\"}", 1_000_001.0),
        ("bentpipe_pep_relayed_bytes_total{direction=\"to_client\"}", 1_000_000.0),
        // The FIN is a byte.
        ("bentpipe_pep_leg_received_bytes_total{leg=\"lan\"}", 1_000_002.0),
        ("bentpipe_pep_leg_received_bytes_total{leg=\"link\"}", 1_000_001.0),
        ("bentpipe_pep_open_connections_limit", 200.0),
    ] {
        assert_eq!(value(&text, name), expected, "{name}");
    }
    for leg in ["lan", "link"] {
        let of = |name: &str| value(&text, &format!("bentpipe_pep_leg_{name}{{leg=\"{leg}\"}}"));
        assert!(of("rtt_seconds_count") >= 1.0 && of("rtt_seconds_sum") > 0.0, "{text}");
        assert!(of("acked_bytes_total") >= 1_000_000.0, "{text}");
    }
    assert!(value(&text, "bentpipe_pep_memory_bytes") > 0.0);
    // This program, without optimisation, is larger than its limit: tests/test_gateway.py compares that which users have.
    assert!(value(&text, "bentpipe_pep_memory_limit_bytes") > 0.0);

    let of = |line: &str| {
        exchange(&setup, format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
    };
    let index = of("GET /").expect("an answer");
    assert!(index.ends_with("\r\n\r\nThe metrics are at /metrics.\n"), "{index}");
    for path in ["/", "/metrics"] {
        let head = of(&format!("HEAD {path}")).expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(value(&head.replace(':', ""), "Content-Length") > 0.0, "{head}");
    }
    for other in
        [&b"GET /other HTTP/1.1\r\n\r\n"[..], b"POST /metrics HTTP/1.1\r\n\r\n", &[7; 10_000]]
    {
        // Closed, or reset if bytes were left unread.
        assert_eq!(exchange(&setup, other).unwrap_or_default(), "");
    }
    let stranger: SocketAddr = "10.1.0.1:9119".parse().expect("an address");
    let connect = || TcpStream::connect_timeout(&stranger, Duration::from_millis(300));
    assert!(setup.router.on(Host::Client, connect).is_err());
    let address: SocketAddr = ADDRESS.parse().expect("an address");
    let silent = || TcpStream::connect(address).expect("it listens");
    let silent: Vec<_> = (0..20).map(|_| setup.router.on(Host::Gateway, silent)).collect();
    assert!(get().expect("an answer").contains(split));
    drop(silent);
}

/// Given a port for metrics that is in use, expect the daemon not to start, with the address in its message, and
/// nothing to be left.
#[test]
fn a_port_in_use_is_named() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("port");
    let mut plan = setup.plan.clone();
    plan.name = "other".to_owned();
    (pep(&mut plan).mark, pep(&mut plan).route_table) = (25_120, 25_121);
    plan.metrics_listen = Some(ADDRESS.to_owned());
    let text = serde_json::to_vec(&plan).expect("a plan");
    let output = setup.router.on(Host::Gateway, || {
        let _listener = TcpListener::bind(ADDRESS).expect("a free port");
        crate::setup::run(&["plan", "run"], &text)
    });
    let printed = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.contains("listening on 127.0.0.1:9119: Address already in use"), "{printed}");
    assert!(printed.contains("to fix it"), "{printed}");
    assert!(!setup.router.gateway("nft list ruleset").contains("other"));
}
