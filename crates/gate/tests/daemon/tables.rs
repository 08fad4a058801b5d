//! The rules of the firewall, as the program `nft` lists them.

use std::io::ErrorKind;

use bentpipe_gate::Network;
use bentpipe_gate::transparent::{Connections, KERNEL_PARTS, Rules, SideRules};
use bentpipe_sys::nftables::{Hook, Ruleset, Statement, Subject};

use crate::router::{Host, Router};
use crate::setup::is_possible;

const LIST: &str = "nft list table inet bentpipe";

fn connections(networks: &[&str], ports: &[[u16; 2]], interfaces: &[&str]) -> Connections {
    let network = |&text: &&str| Network::try_from(text.to_owned()).expect("a network");
    Connections {
        networks: networks.iter().map(network).collect(),
        ports: ports.to_vec(),
        interfaces: interfaces.iter().map(|&name| name.to_owned()).collect(),
    }
}

fn side(interfaces: &[&str], listeners: &[[u16; 2]]) -> SideRules {
    let interfaces = interfaces.iter().map(|&name| name.to_owned()).collect();
    SideRules { interfaces, listeners: listeners.to_vec() }
}

/// Clients on both sides, two processes, and lists of one and of several entries.
fn both() -> Rules {
    Rules {
        table: "bentpipe".to_owned(),
        mark: 8,
        processes: 2,
        route_table: 100,
        sides: [
            side(&["lan0", "lan1"], &[[4_000, 6_000], [4_002, 6_002]]),
            side(&["sat0"], &[[4_001, 6_001], [4_003, 6_003]]),
        ],
        except: connections(
            &["10.0.0.0/8", "192.0.2.1/32", "fd00::/64"],
            &[[22, 22], [8_000, 8_099]],
            &["wg0", "tun0"],
        ),
        only: connections(
            &["172.16.0.0/12", "2001:db8::/32", "2001:dba::/33"],
            &[[443, 443]],
            &["lan1"],
        ),
    }
}

/// Clients on one side, one process, and lists that leave nothing out.
fn lan() -> Rules {
    Rules {
        table: "bentpipe".to_owned(),
        mark: 6,
        processes: 1,
        route_table: 65_535,
        sides: [side(&["lan0"], &[[4_000, 6_000]]), side(&[], &[])],
        except: connections(&["::/0"], &[[80, 90]], &["wg0"]),
        only: connections(
            &["10.0.0.0/9", "10.128.0.0/9"],
            &[[1, 1_023], [1_024, 65_535]],
            &["lan0", "sat0"],
        ),
    }
}

/// Given rules, expect the same listing as from their text in the language of `nft`, also if they replace others.
#[test]
fn tables_are_listed_as_their_texts() {
    if !is_possible() {
        return;
    }
    let router = Router::new("tables");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/daemon/tables");
    for (name, rules) in [("both", both()), ("lan", lan())] {
        router.command(Host::Client, &format!("nft -I {folder} -f {folder}/{name}.nft"));
        router.on(Host::Gateway, || rules.replace()).expect("the kernel takes the rules");
        let expected = router.command(Host::Client, LIST);
        assert_listing(name, &router.gateway(LIST), &expected);
    }
    router.on(Host::Gateway, || both().remove()).expect("they are removed");
    assert_eq!(router.gateway("nft list ruleset"), "");
}

/// Names the first line that differs.
fn assert_listing(name: &str, listed: &str, expected: &str) {
    for (found, line) in listed.lines().zip(expected.lines()) {
        assert_eq!(found, line, "{name}");
    }
    assert_eq!(listed, expected, "{name}");
}

/// Given the longest lists, which take several messages, expect all of their entries, and another selection in their place.
#[test]
fn long_lists_are_complete() {
    if !is_possible() {
        return;
    }
    let router = Router::new("lists");
    let network = |number| {
        Network::try_from(match number % 2 {
            0 => format!("10.{number}.0.0/16"),
            _ => format!("fd00:{number:x}::/32"),
        })
    };
    let networks: Vec<_> = (0..256).map(|number| network(number).expect("a network")).collect();
    let ports: Vec<_> = (1..=256).map(|number| [number * 4, number * 4 + 1]).collect();
    let interfaces: Vec<_> = (0..256).map(|number| format!("interface{number}")).collect();
    let long = Connections { networks, ports, interfaces };
    let rules = Rules { except: long.clone(), only: long.clone(), ..both() };
    router.on(Host::Gateway, || rules.replace()).expect("the kernel takes the rules");
    let shown = router.gateway("nft list chain inet bentpipe passing");
    for network in &long.networks {
        // For either end, in both lists.
        assert_eq!(shown.matches(&format!(" {network}")).count(), 4, "{network}");
    }
    for [first, last] in &long.ports {
        assert_eq!(shown.matches(&format!(" {first}-{last}")).count(), 2, "{first}");
    }
    for name in &long.interfaces {
        // For arrival and departure, in both lists.
        assert_eq!(shown.matches(&format!("\"{name}\"")).count(), 4, "{name}");
    }
    let none = Rules { except: Connections::default(), only: Connections::default(), ..both() };
    router.on(Host::Gateway, || none.select()).expect("the kernel takes the rules");
    let shown = router.gateway("nft list chain inet bentpipe passing");
    assert_eq!(shown.matches("accept").count(), 2, "of signed connections: {shown}");
}

/// Given rules of others in the language of `nft`, expect what the kernel says of them.
#[test]
fn rules_of_others_are_read() {
    if !is_possible() {
        return;
    }
    let router = Router::new("listed");
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/daemon/tables/others.nft");
    router.gateway(&format!("nft -f {rules}"));
    let ruleset = router.on(Host::Gateway, Ruleset::read).expect("the rules are listed");
    let chains: Vec<_> = ruleset
        .chains
        .iter()
        .map(|chain| (chain.table.to_string(), &chain.name[..], chain.filters, chain.drops))
        .collect();
    let expected = [
        ("inet other", "in", Some(Hook::Input), true),
        ("inet other", "allowed", None, false),
        ("ip nat", "source", None, false),
        ("ip6 last", "out", Some(Hook::Output), false),
        ("arp own", "in", None, true),
    ];
    let expected = expected.map(|(table, name, hook, drops)| (table.to_owned(), name, hook, drops));
    assert_eq!(chains, expected);
    let name = |name: &str| format!("{name:\0<16}").into_bytes();
    let mark = |number: u32| number.to_ne_bytes().to_vec();
    let port = |number: u16| number.to_be_bytes().to_vec();
    let of = |subject, values: &[Vec<u8>]| Statement::Match {
        subject,
        values: values.to_vec(),
        is_inverted: false,
    };
    let expected = [
        vec![of(Subject::IngressIndex, &[mark(1)]), Statement::Accept],
        vec![of(Subject::TransparentSocket, &[vec![1]]), Statement::Accept],
        vec![of(Subject::IngressName, &[name("lan0"), name("lo")]), Statement::Other],
        vec![Statement::Note, Statement::Note, Statement::Refuse],
        vec![
            of(Subject::Other, &[vec![17]]),
            of(Subject::DestinationPort, &[port(53), port(51_871)]),
            Statement::Accept,
        ],
        vec![of(Subject::Mark, &[mark(8), mark(11)]), Statement::Refuse],
        vec![Statement::Set { subject: Subject::ConnectionMark, values: vec![mark(9)] }],
        vec![Statement::Other],
    ];
    let listed = ruleset.rules.iter().map(|rule| sorted(&rule.statements));
    for (found, expected) in listed.zip(&expected) {
        assert_eq!(&found, expected);
    }
    assert_eq!(ruleset.rules.len(), expected.len());
}

/// With the values of each statement in order: the kernel lists those of a set by their hashes.
fn sorted(statements: &[Statement]) -> Vec<Statement> {
    let mut statements = statements.to_vec();
    for statement in &mut statements {
        if let Statement::Match { values, .. } = statement {
            values.sort();
        }
    }
    statements
}

/// Given a kernel with all modules, expect it to take a rule with each part, and nothing to be left of them.
#[test]
fn parts_are_tried_without_a_trace() {
    if !is_possible() {
        return;
    }
    let router = Router::new("tried");
    for part in KERNEL_PARTS {
        let tried = router.on(Host::Gateway, || part.validate());
        tried.unwrap_or_else(|error| panic!("{part:?}: {error}"));
    }
    assert_eq!(router.gateway("nft list ruleset"), "");
}

/// Given a table that another program has removed, expect a renewal, another selection and other listeners to make it again,
/// and a release to fail; given one that is there, expect these to change the set of one process, or the rules alone.
#[test]
fn a_table_that_is_gone_is_made_again() {
    if !is_possible() {
        return;
    }
    let router = Router::new("healed");
    let on_gateway = |change: &(dyn Fn(&Rules) -> std::io::Result<()> + Sync)| {
        let rules = both();
        router.on(Host::Gateway, || change(&rules))
    };
    let holds = || {
        [0, 1].map(|process| {
            let set = router.gateway(&format!("nft list set inet bentpipe alive_{process}"));
            set.contains("tcp expires")
        })
    };
    on_gateway(&|rules| rules.renew(&[0, 1], &[])).expect("the table is made");
    assert_eq!(holds(), [true, true]);
    on_gateway(&|rules| rules.release(1)).expect("the table is there");
    assert_eq!(holds(), [true, false]);
    let mut others = both();
    others.sides[1].listeners[0] = [4_005, 6_005];
    router.on(Host::Gateway, || others.listen()).expect("the table is there");
    let listed = router.gateway("nft list chain inet bentpipe from_relay");
    assert!(listed.contains(":4005") && !listed.contains(":4001"), "{listed}");
    on_gateway(&Rules::listen).expect("the table is there");
    assert_eq!(holds(), [true, false]);
    on_gateway(&|rules| rules.renew(&[1], &[0])).expect("the table is there");
    assert_eq!(holds(), [true, true]);
    let listed = router.gateway(LIST);
    let without_lease =
        |text: &str| text.lines().filter(|line| !line.contains("elements")).collect::<String>();
    for make in [Rules::select, Rules::listen] {
        router.gateway("nft flush ruleset");
        let error = on_gateway(&|rules| rules.release(0)).expect_err("the table is gone");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let object = "nftables: set alive_0 in table inet bentpipe: ";
        assert!(error.to_string().starts_with(object), "{error}");
        on_gateway(&make).expect("the table is made");
        assert_eq!(holds(), [false, false]);
        assert_eq!(without_lease(&router.gateway(LIST)), without_lease(&listed));
    }
    for _ in 0..2 {
        on_gateway(&Rules::remove).expect("nothing is left");
    }
    on_gateway(&|rules| rules.renew(&[1], &[0])).expect("the table is made");
    assert_eq!(holds(), [true, true]);
}
