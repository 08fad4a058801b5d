//! Connections that the plan leaves out.

use bentpipe_gate::Network;
use bentpipe_gate::transparent::Connections;

use crate::router::SERVERS;
use crate::setup::{Setup, is_possible, pep};

fn networks(texts: &[&str]) -> Connections {
    let network = |&text: &&str| Network::try_from(text.to_owned()).expect("a network");
    Connections { networks: texts.iter().map(network).collect(), ports: Vec::new() }
}

fn ports(ports: &[[u16; 2]]) -> Connections {
    Connections { networks: Vec::new(), ports: ports.to_vec() }
}

/// Given exceptions and selections by the network of the client, by that of the server and by its port, 80, expect
/// connections to be relayed to [the server of IPv4, that of IPv6] as they say, and all others to pass.
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
