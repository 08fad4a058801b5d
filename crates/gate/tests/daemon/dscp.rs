//! The DSCP of connections through a daemon, and what follows from it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::{set_ip_tos, set_ipv6_tclass};
use rustix::net::{AddressFamily, SocketType, connect, socket};
use rustix::process::Signal;

use crate::router::{Host, SERVERS, until};
use crate::setup::{Setup, is_possible};

const EF: u8 = 46;
const AF41: u8 = 34;
/// What the gateway sends to the server's port, but of TCP the SYNs alone.
const SYNS_AND_DATAGRAMS: [&str; 2] =
    ["oifname wan0 meta l4proto { tcp, udp } th dport 80", "tcp flags & (syn | ack) != syn return"];
/// The priority in queues, by protocol of the transport layer.
const PRIORITY: (&str, &str) = ("inet_proto . classid", "meta l4proto . meta priority");

fn set_dscp(socket: &impl AsFd, address: SocketAddr, dscp: u8) {
    match address {
        SocketAddr::V4(_) => set_ip_tos(socket, dscp << 2),
        SocketAddr::V6(_) => set_ipv6_tclass(socket, u32::from(dscp) << 2),
    }
    .expect("a socket");
}

/// Records in the sets `seen4` and `seen6` what packets that this host receives, or the gateway sends, have beside their DSCP,
/// which goes through their mark, since nft(8) cannot concatenate that of IPv6 with other keys.
fn record(
    setup: &Setup,
    host: Host,
    [condition, exception]: [&str; 2],
    (kinds, what): (&str, &str),
) {
    let sets = ["seen4", "seen6"]
        .map(|set| format!("set {set} {{ type mark . {kinds}; flags dynamic; size 1000; }}\n"));
    let rules =
        [("ip", "ipv4", "seen4"), ("ip6", "ipv6", "seen6")].map(|(version, family, set)| {
            let marks = (0..64)
                .map(|dscp| format!("{condition} {version} dscp {dscp} meta mark set {dscp}\n"));
            let what = what.replace("IP", version);
            let update = format!("{condition} update @{set} {{ meta mark . {what} }}");
            [marks.collect(), format!("meta nfproto {family} {update}\n")].concat()
        });
    let hook = if host == Host::Gateway { "postrouting" } else { "prerouting" };
    let base = format!("type filter hook {hook} priority 100");
    let chain = format!("chain {hook} {{ {base}\n{exception}\n{} }}\n", rules.concat());
    let file = setup.folder.join("record.nft");
    fs::write(&file, format!("table inet record {{\n{}{chain}}}\n", sets.concat()))
        .expect("written");
    setup.router.command(host, &format!("nft -f {}", file.display()));
}

/// The elements of the set for a version of IP, in order, and forgets them.
fn seen(setup: &Setup, host: Host, version: usize) -> Vec<String> {
    let set = ["seen4", "seen6"][version];
    let listed = setup.router.command(host, &format!("nft -n list set inet record {set}"));
    setup.router.command(host, &format!("nft flush set inet record {set}"));
    let elements = listed.split_once("elements = {").map_or("", |(_, elements)| elements);
    let elements = elements.split_once('}').map_or("", |(elements, _)| elements);
    let each = elements.split(',').map(|each| each.trim().to_owned());
    let mut each: Vec<_> = each.filter(|each| !each.is_empty()).collect();
    each.sort();
    each
}

/// Opens a connection whose packets all have a DSCP.
fn connect_with(setup: &Setup, server: SocketAddr, dscp: u8) -> OwnedFd {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let open = || socket(family, SocketType::STREAM, None).expect("a socket");
    let client = setup.router.on(Host::Client, open);
    set_dscp(&client, server, dscp);
    connect(&client, &server).expect("the server listens");
    client
}

/// Given ends that mark their data once they are connected, as most programs do, with hosts that use ECN, expect the data to
/// arrive with the mark of the other end, and with the ECN field of the leg.
#[test]
fn data_keep_their_dscp_both_ways() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("marked");
    for host in [Host::Client, Host::Gateway, Host::Server] {
        setup.router.command(host, "sysctl -qw net.ipv4.tcp_ecn=1");
    }
    for host in [Host::Client, Host::Server] {
        record(&setup, host, ["meta length > 1000", ""], ("ecn", "IP ecn"));
    }
    for (version, address) in SERVERS.into_iter().enumerate() {
        let listener = setup.listen(address);
        assert!(setup.relays(&listener), "{address}");
        let (client, server) = setup.pair(&listener);
        let ends = [(client, Host::Server, EF), (server, Host::Client, AF41)];
        for (end, _, dscp) in &ends {
            set_dscp(end, listener.local_addr().expect("bound"), *dscp);
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let (mut sender, mut receiver) = (&ends[from].0, &ends[to].0);
            sender.write_all(&[7; 100_000]).expect("it can be written");
            receiver.read_exact(&mut [0; 100_000]).expect("no reset");
        }
        for (_, receiver, dscp) in &ends {
            assert_eq!(
                seen(&setup, *receiver, version),
                [format!("{dscp:#010x} . 0x2")],
                "{address}"
            );
        }
    }
}

/// Given SYNs of each DSCP, expect those of the legs to servers to have it, and the priority in queues of the gateway that
/// datagrams have which it forwards.
#[test]
fn each_dscp_has_the_priority_of_forwarded_packets() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("priority");
    record(&setup, Host::Gateway, SYNS_AND_DATAGRAMS, PRIORITY);
    for (version, address) in SERVERS.into_iter().enumerate() {
        let listener = setup.listen(address);
        let server = listener.local_addr().expect("bound");
        let any: SocketAddr =
            if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().expect("one");
        for dscp in 0..64 {
            let _client = connect_with(&setup, server, dscp);
            listener.accept().expect("it is connected");
            let datagrams = setup.router.on(Host::Client, || UdpSocket::bind(any).expect("a port"));
            set_dscp(&datagrams, server, dscp);
            datagrams.send_to(b"data", server).expect("it is sent");
        }
        let seen = seen(&setup, Host::Gateway, version);
        let of = |protocol: &str| -> Vec<_> {
            let named = format!(" . {protocol} . ");
            let those = seen.iter().filter(|each| each.contains(&named));
            those.map(|each| each.replace(&named, " . ")).collect()
        };
        assert_eq!(of("6"), of("17"), "{address}");
        let dscps: Vec<_> = of("6").iter().map(|each| each[..10].to_owned()).collect();
        assert_eq!(dscps, (0..64).map(|dscp| format!("{dscp:#010x}")).collect::<Vec<_>>());
    }
}

/// Given a daemon that hangs, and a rule of the router's own that sets a priority, expect a SYN with a DSCP to pass with both,
/// and nothing to be recorded of it.
#[test]
fn unsplit_connections_are_not_recorded() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("unsplit-dscp");
    setup.signal(setup.daemon.id(), Signal::STOP);
    until(|| !setup.router.gateway("nft list set inet bentpipe alive_0").contains("expires"));
    record(&setup, Host::Gateway, SYNS_AND_DATAGRAMS, PRIORITY);
    setup
        .router
        .gateway("nft add chain inet record first { type filter hook forward priority 0 ; }");
    setup.router.gateway("nft add rule inet record first meta priority set 0:7");
    for (version, address) in SERVERS.into_iter().enumerate() {
        let listener = setup.listen(address);
        let server = listener.local_addr().expect("bound");
        let _client = connect_with(&setup, server, EF);
        listener.accept().expect("it is connected");
        assert_eq!(seen(&setup, Host::Gateway, version), ["0x0000002e . 6 . 0:7"], "{address}");
    }
    let table = setup.router.gateway("nft list table inet bentpipe");
    assert!(!table.contains("expires"), "{table}");
    setup.signal(setup.daemon.id(), Signal::CONT);
}
