//! Connections that the plan leaves out, and changes to it.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use bentpipe_gate::Network;
use bentpipe_gate::daemon::{PepPlan, Plan, Reply};
use bentpipe_gate::transparent::Connections;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
};
use rustix::process::Signal;

use crate::router::{Host, Router, SERVERS, until};
use crate::setup::{Setup, is_possible, pep};

fn networks(texts: &[&str]) -> Connections {
    let network = |&text: &&str| Network::try_from(text.to_owned()).expect("a network");
    Connections { networks: texts.iter().map(network).collect(), ..Connections::default() }
}

fn ports(ports: &[[u16; 2]]) -> Connections {
    Connections { ports: ports.to_vec(), ..Connections::default() }
}

fn interfaces(names: &[&str]) -> Connections {
    let interfaces = names.iter().map(|&name| name.to_owned()).collect();
    Connections { interfaces, ..Connections::default() }
}

/// Given exceptions and selections by the network of the client, by that of the server, by its port, 80, by the interface on
/// which SYNs arrive, lan0, and by that by which they leave, wan0, expect connections to be relayed to [the server of IPv4, that of IPv6] as they say, and all others to pass.
#[test]
fn connections_that_are_left_out_pass_unsplit() {
    if !is_possible() {
        return;
    }
    let none = Connections::default;
    let cases = [
        (networks(&["10.1.0.0/24"]), none(), [false, true]),
        (networks(&["10.9.0.0/16", "fd02::2/128"]), none(), [true, false]),
        (networks(&["0.0.0.0/0", "::/0"]), none(), [false, false]),
        (ports(&[[22, 22], [79, 81]]), none(), [false, false]),
        (ports(&[[22, 22], [443, 443]]), none(), [true, true]),
        (none(), networks(&["10.2.0.0/16"]), [true, false]),
        (none(), networks(&["fd01::/64"]), [false, true]),
        (none(), ports(&[[80, 80]]), [true, true]),
        (none(), ports(&[[443, 443]]), [false, false]),
        (networks(&["10.2.0.2/32"]), ports(&[[80, 80]]), [false, true]),
        (interfaces(&["wan0"]), none(), [false, false]),
        (interfaces(&["none0", "lan0"]), none(), [false, false]),
        (interfaces(&["none0", "lan"]), interfaces(&["none0", "wan0"]), [true, true]),
        (none(), interfaces(&["none0", "none1"]), [false, false]),
    ];
    for (except, only, expected) in cases {
        let setup = Setup::with("selection", |plan| {
            (pep(plan).except, pep(plan).only) = (except.clone(), only.clone());
        });
        for (address, is_relayed) in SERVERS.into_iter().zip(expected) {
            let listener = setup.listen(address);
            assert_eq!(setup.relays(&listener), is_relayed, "{address}: {except:?} {only:?}");
        }
        let split = expected.into_iter().filter(|&is_relayed| is_relayed).count() as u64;
        let state = setup.state(|state| state.split_connections == split);
        assert_eq!(state.unsplit_connections, 0, "the daemon does not see them");
    }
}

/// Given two interfaces of clients, expect connections from one to pass unsplit and those from the other to be split, by
/// exception and, after a reload, by selection; after another reload, expect one that is open to go on.
#[test]
fn connections_are_selected_by_the_interface_of_the_client() {
    if !is_possible() {
        return;
    }
    let excepted = |pep: &mut PepPlan| pep.except = interfaces(&["lan1"]);
    let router = Router::new("by-interface");
    router.add_client_link();
    let mut setup = Setup::on(router, "by-interface", |plan| {
        pep(plan).lan.interfaces.push("lan1".to_owned());
        excepted(pep(plan));
    });
    let [by_lan0, by_lan1] = ["10.2.0.2", "10.2.0.3"].map(|address| setup.listen(address));
    assert!(setup.relays(&by_lan0));
    assert!(!setup.relays(&by_lan1));
    pep(&mut setup.plan).except = Connections::default();
    let only = interfaces(&["lan1"]);
    assert_eq!(reload_with(&setup, |pep| pep.only = only), Reply::Changed);
    assert!(!setup.relays(&by_lan0));
    assert!(setup.relays(&by_lan1));
    let (mut client, mut server) = setup.pair(&by_lan1);
    assert_eq!(reload_with(&setup, excepted), Reply::Changed);
    client.write_all(b"still").expect("it is open");
    server.read_exact(&mut [0; 5]).expect("it is open");
}

/// Tells the daemon to leave out connections to servers with these ports.
pub(crate) fn reload(setup: &Setup, except: &[[u16; 2]]) -> Reply {
    reload_with(setup, |pep| pep.except = ports(except))
}

/// Sends the daemon its plan with a change of the PEP.
fn reload_with(setup: &Setup, change: impl FnOnce(&mut PepPlan)) -> Reply {
    let mut plan: Plan = setup.plan.clone();
    change(pep(&mut plan));
    reload_plan(setup, &plan)
}

/// Sends the daemon a plan.
pub(crate) fn reload_plan(setup: &Setup, plan: &Plan) -> Reply {
    let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let address = SocketAddrUnix::new(setup.folder.join("control")).expect("a path");
    connect(&client, &address).expect("the daemon listens");
    let message = serde_json::to_vec(plan).expect("a plan");
    send(&client, &message, SendFlags::empty()).expect("it is read");
    let mut reply = [0; 1_024];
    let (bytes, _) = recv(&client, &mut reply[..], RecvFlags::empty()).expect("a reply");
    serde_json::from_slice(&reply[..bytes]).expect("a reply")
}

/// Given a reload, expect new connections to pass, also after another program has flushed all rules, and after a worker was
/// replaced; after the reverse, expect the next connection to be split at once.
#[test]
fn what_is_left_out_stays_so() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("stays-out");
    let listener = setup.listen(SERVERS[0]);
    assert!(setup.relays(&listener));
    assert_eq!(reload(&setup, &[[80, 80]]), Reply::Changed);
    assert!(!setup.relays(&listener));
    assert_eq!(reload(&setup, &[]), Reply::Changed);
    assert!(setup.relays(&listener));

    setup.router.gateway("nft flush ruleset");
    assert_eq!(reload(&setup, &[[80, 80]]), Reply::Changed);
    let has_lease = || setup.router.gateway("nft list set inet bentpipe alive_0").contains("tcp");
    until(has_lease);
    assert!(!setup.relays(&listener));

    setup.signal(setup.workers()[0], Signal::KILL);
    setup.workers_state(|workers| workers.failures == 1);
    assert_eq!(reload(&setup, &[[79, 80]]), Reply::Changed);
    setup.workers_state(|workers| workers.is_splitting);
    assert!(!setup.relays(&listener));
}

/// Given a connection whose server does not answer, left out by a reload meanwhile, expect the repeated SYN of its client not
/// to pass: its server would see two connections with the same addresses and ports. That of another client passes.
#[test]
fn a_connection_that_waits_for_its_server_is_not_left_out_later() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("waits-out");
    let _listener = setup.listen(SERVERS[0]);
    setup.router.mute(Host::Server, "tcp flags syn");
    let chain = "{ type filter hook forward priority 2000 ; }";
    for rule in [
        "add table inet passed",
        &format!("add chain inet passed forward {chain}"),
        "add rule inet passed forward tcp flags syn counter",
    ] {
        setup.router.gateway(&format!("nft {rule}"));
    }
    let passes = |packets| {
        let shown = setup.router.gateway("nft list chain inet passed forward");
        shown.contains(&format!("counter packets {packets} "))
    };
    thread::scope(|scope| {
        // It sends a SYN, and another one after 1 s.
        let client =
            scope.spawn(|| setup.connect_within(SERVERS[0], 80, Duration::from_millis(1_500)));
        until(|| setup.router.gateway("nft list set inet bentpipe held4").contains(" . 80 "));
        assert_eq!(reload(&setup, &[[80, 80]]), Reply::Changed);
        client.join().expect("no panic").expect_err("the server does not answer");
    });
    assert!(passes(0));
    setup
        .connect_within(SERVERS[0], 80, Duration::from_millis(500))
        .expect_err("it does not answer");
    assert!(passes(1));
}
