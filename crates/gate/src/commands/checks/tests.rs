//! What a gateway checks before it starts, on machines that lack one thing each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use bentpipe_sys::nftables::{Hook, ListedChain, ListedRule, Ruleset, Statement, Subject, Table};
use serde_json::{Value, json};

use super::*;
use crate::config::{Files, placeholder_key};

mod tunnels;

/// A machine as data.
struct Fake {
    missing: Vec<&'static str>,
    sysctls: BTreeMap<String, String>,
    refused: Option<&'static str>,
    ruleset: Done<Ruleset>,
    links: Value,
    routes: [Value; 2],
    rules: [Value; 2],
    congestion_controls: Vec<&'static str>,
    sockets: Done<String>,
    tried: RefCell<Vec<Plan>>,
}

const SYSCTLS: [(&str, &str); 6] = [
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv6.conf.all.forwarding", "0"),
    ("net.ipv6.conf.lo.disable_ipv6", "0"),
    ("net.ipv4.tcp_available_congestion_control", "reno cubic"),
    ("net.ipv4.tcp_mtu_probing", "1"),
    ("fs.pipe-max-size", "1048576"),
];

fn routes() -> Vec<Value> {
    vec![
        json!({"dst": "default", "gateway": "10.0.2.2", "dev": "sat0"}),
        json!({"dst": "10.0.1.0/24", "dev": "lan0"}),
        json!({"dst": "10.0.2.0/24", "dev": "sat0"}),
    ]
}

fn with_route(route: Value) -> Value {
    Value::Array([routes(), vec![route]].concat())
}

impl Default for Fake {
    /// A router on which nothing is missing.
    fn default() -> Self {
        let local = json!([{"priority": 0, "table": "local"}]);
        Self {
            missing: Vec::new(),
            sysctls: SYSCTLS.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            refused: None,
            ruleset: Ok(Ruleset::default()),
            links: json!({"lo": {"flags": ["UP"]}, "lan0": {"flags": ["UP"]}, "sat0": {"flags": ["UP"]}}),
            routes: [Value::Array(routes()), json!([])],
            rules: [local.clone(), local],
            congestion_controls: vec!["reno", "cubic"],
            sockets: Ok("at most 10000 connections, with at most 9 MB".to_owned()),
            tried: RefCell::default(),
        }
    }
}

fn array(value: &Value) -> Vec<Value> {
    value.as_array().cloned().expect("a list")
}

impl Machine for Fake {
    fn daemon(&self) -> Done<PathBuf> {
        Ok(PathBuf::from("/usr/bin/bentpipe-gate"))
    }

    fn missing_capabilities(&self) -> Vec<&'static str> {
        self.missing.clone()
    }

    fn sysctl(&self, name: &str) -> Option<String> {
        self.sysctls.get(name).cloned()
    }

    fn validate(&self, part: KernelPart) -> io::Result<()> {
        let is_refused = self.refused == Some(part.word);
        if is_refused { Err(io::Error::from_raw_os_error(2)) } else { Ok(()) }
    }

    fn ruleset(&self) -> Done<Ruleset> {
        self.ruleset.clone()
    }

    fn links(&self) -> Done<BTreeMap<String, Value>> {
        let links = self.links.as_object().expect("interfaces").clone();
        Ok(links.into_iter().collect())
    }

    fn routes(&self, version: u8, table: u32) -> Done<Vec<Value>> {
        let routes = array(&self.routes[usize::from(version == 6)]);
        Ok(if table == MAIN_TABLE { routes } else { Vec::new() })
    }

    fn routing_rules(&self, version: u8) -> Done<Vec<Value>> {
        Ok(array(&self.rules[usize::from(version == 6)]))
    }

    fn has_congestion_control(&self, name: &str) -> bool {
        self.congestion_controls.contains(&name)
    }

    fn open_sockets(&self, plan: &Plan) -> Done<String> {
        self.tried.borrow_mut().push(plan.clone());
        self.sockets.clone()
    }
}

const PEP: &str = "name = 'sat'\nlan.interfaces = ['lan0']\nlink.interfaces = ['sat0']\n";

fn config(more: &str) -> Config {
    Config::parse(&format!("{PEP}{more}"), "sat.toml").expect("a configuration")
}

fn checks_of(machine: &Fake, config: &Config, options: Options) -> Vec<Check> {
    let files = Files { state: PathBuf::new(), control: PathBuf::new(), others: Vec::new() };
    let plan = config.plan(std::path::Path::new("/none/sat.toml"), &files);
    examine(machine, config, &plan, options).expect("the checks are made")
}

/// The lines of the error of `up`.
fn failures(machine: &Fake, config: &Config) -> Vec<String> {
    match require(&checks_of(machine, config, Options::default())) {
        Ok(()) => Vec::new(),
        Err(error) => {
            assert_eq!(error.exit_code(), 3);
            error.to_string().lines().map(str::to_owned).collect()
        }
    }
}

#[test]
fn on_a_healthy_router_all_checks_are_passed() {
    let checks = checks_of(&Fake::default(), &config(""), Options::default());
    assert!(checks.iter().all(|check| check.ok), "{checks:?}");
    assert_eq!(summary(&checks), "14 checks passed, 0 failed");
    let found = &checks.last().expect("checks").found;
    assert_eq!(
        found,
        "The daemon can open its sockets: at most 10000 connections, with at most 9 MB."
    );
}

/// Given interfaces that select connections, expect one check of each, and advice on one that does not exist.
#[test]
fn interfaces_that_select_connections_need_not_exist() {
    let config = config("pep.except.interfaces = ['lan0', 'wg0']\npep.only.interfaces = ['wg0']");
    let checks = checks_of(&Fake::default(), &config, Options::default());
    let advice: Vec<_> = checks.iter().filter(|check| !check.ok).collect();
    let found =
        advice.iter().map(|check| (check.name.as_str(), check.found.as_str(), check.needed));
    let expected = ("interface wg0", "It does not exist; there are lan0, lo, sat0.", false);
    assert_eq!(found.collect::<Vec<_>>(), [expected]);
    let machine = lacking(|it| it.links["wg0"] = json!({"flags": []}));
    let checks = checks_of(&machine, &config, Options::default());
    assert_eq!(summary(&checks), "15 checks passed, 0 failed");
}

/// A machine that lacks one thing.
fn lacking(change: impl FnOnce(&mut Fake)) -> Fake {
    let mut machine = Fake::default();
    change(&mut machine);
    machine
}

fn set(machine: &mut Fake, name: &str, value: &str) {
    machine.sysctls.insert(name.to_owned(), value.to_owned());
}

#[test]
fn what_is_missing_of_the_machine_is_one_line_with_the_fix() {
    for (machine, line) in [
        (
            lacking(|it| it.missing = vec!["CAP_NET_ADMIN", "CAP_NET_RAW"]),
            "privileges: This process lacks CAP_NET_ADMIN, CAP_NET_RAW; to fix it: run it as root, with sudo",
        ),
        (
            lacking(|it| drop(it.sysctls.remove("net.ipv6.conf.lo.disable_ipv6"))),
            "ipv6: The kernel has no IPv6; to fix it: start it without ipv6.disable=1",
        ),
        (
            lacking(|it| set(it, "net.ipv6.conf.lo.disable_ipv6", "1")),
            "ipv6: IPv6 is disabled on lo, where the daemon listens; to fix it: sysctl -w \
             net.ipv6.conf.lo.disable_ipv6=0",
        ),
        (
            lacking(|it| set(it, "net.ipv4.tcp_mtu_probing", "0")),
            "path MTU: Legs do not look for a smaller path MTU: large transfers of hosts that do would stall \
             where it is smaller and ICMP errors are filtered; to fix it: sysctl -w net.ipv4.tcp_mtu_probing=1",
        ),
        (
            lacking(|it| set(it, "net.ipv4.ip_forward", "0")),
            "forwarding: This machine does not forward IPv4 packets, so it is no gateway; to fix it: \
             sysctl -w net.ipv4.ip_forward=1",
        ),
        (
            lacking(|it| {
                it.links = json!({"lo": {}, "lan0": {"flags": ["UP"]}, "sat1": {"flags": ["UP"]}});
            }),
            "interface sat0: It does not exist; did you mean \"sat1\"?; to fix it: name one that exists in \
             the configuration",
        ),
        (
            lacking(|it| it.links["sat0"] = json!({"flags": []})),
            "interface sat0: It is down; to fix it: ip link set sat0 up",
        ),
        (
            lacking(|it| set(it, "net.ipv4.conf.sat0.src_valid_mark", "1")),
            "source check: The kernel checks the sources of packets on sat0 by their marks \
             (src_valid_mark), and would drop those of the gateway; to fix it: sysctl -w \
             net.ipv4.conf.all.src_valid_mark=0 net.ipv4.conf.sat0.src_valid_mark=0",
        ),
    ] {
        assert_eq!(failures(&machine, &config("")), [line]);
    }
}

#[test]
fn a_kernel_without_a_module_is_told_which() {
    for KernelPart { word, module } in KERNEL_PARTS {
        let machine = lacking(|it| it.refused = Some(word));
        let line = format!(
            "kernel: The kernel does not take a rule with {word}: No such file or directory; to fix it: modprobe \
             {module}, or use a kernel with CONFIG_{}",
            module.to_uppercase()
        );
        assert_eq!(failures(&machine, &config("")), [line]);
    }
}

#[test]
fn numbers_and_sockets_in_use_are_one_line_with_the_fix() {
    let in_use = |rule: Value| lacking(|it| it.rules = [json!([rule]), json!([])]);
    for (machine, line) in [
        (
            lacking(|it| {
                let text = "10000 connections need 71284 open files; to fix it: fewer";
                it.sockets = Err(Failure::Machine(text.to_owned()));
            }),
            "sockets: The daemon: 10000 connections need 71284 open files; to fix it: fewer",
        ),
        (
            lacking(|it| {
                let text = "listening for metrics: Address already in use";
                it.sockets = Err(Failure::Machine(text.to_owned()));
            }),
            "sockets: The daemon: listening for metrics: Address already in use; to fix it: report it with \
             the configuration",
        ),
        (
            lacking(|it| {
                it.ruleset = Ok(with_own_table());
            }),
            "rules: nftables has a table inet bentpipe-sat, of another owner; to fix it: nft delete table \
             inet bentpipe-sat, or choose another name in the configuration",
        ),
        (
            lacking(|it| it.rules = [(); 2].map(|()| json!([{"priority": 5, "table": "25113"}]))),
            "rules: A rule of ip -4 rule uses routing table 25113. A rule of ip -6 rule uses routing table \
             25113; to fix it: write route_table = 25114 in the configuration, or another free one",
        ),
        (
            in_use(json!({"fwmark": "0x200", "fwmask": "0x200", "table": "9"})),
            "rules: A rule of ip -4 rule uses mark 0x200; to fix it: write mark = 25344 in the configuration, \
             or another free one",
        ),
    ] {
        assert_eq!(failures(&machine, &config("")), [line]);
    }
}

/// Given a configuration that the daemon refuses, expect bad input.
#[test]
fn what_the_daemon_refuses_is_bad_input() {
    let machine = lacking(|it| it.sockets = Err(Failure::Input("a key".to_owned())));
    let config = config("");
    let files = Files { state: PathBuf::new(), control: PathBuf::new(), others: Vec::new() };
    let plan = config.plan(std::path::Path::new("/none/sat.toml"), &files);
    let error = examine(&machine, &config, &plan, Options::default()).expect_err("it is refused");
    assert_eq!(error, Failure::Input("a key".to_owned()));
}

#[test]
fn settings_that_the_kernel_lacks_are_named() {
    let found = config("pep.link_tcp.congestion_control = 'westwood'");
    assert_eq!(
        failures(&Fake::default(), &found),
        [
            "congestion control westwood: The kernel has none of that name; it has reno, cubic; to fix it: \
             modprobe tcp_westwood, or choose another one"
        ]
    );
    assert_eq!(
        failures(&Fake::default(), &config("pep.buffer = '2 MiB'")),
        [
            "buffer: A pipe holds at most 1048576 B here (fs.pipe-max-size), and buffer is 2097152 B; to fix \
             it: sysctl -w fs.pipe-max-size=2097152, or a smaller buffer"
        ]
    );
}

/// Given a gateway that is up, expect its rules to conflict with none, and its ports not to be tried.
#[test]
fn rules_of_the_gateway_itself_conflict_with_none() {
    let own = json!({"fwmark": "0x6200", "fwmask": "0xfffffffe", "table": "25113"});
    let machine = lacking(|it| {
        it.rules = [json!([own]), json!([own])];
        it.ruleset = Ok(with_own_table());
    });
    let found = config("metrics.listen = '127.0.0.1:9464'");
    let checks = checks_of(&machine, &found, Options { has_own: true, is_up: true });
    require(&checks).expect("all are passed");
    assert_eq!(machine.tried.borrow()[0].metrics_listen, None);
    assert!(failures(&machine, &found)[0].contains("of another owner"));
}

/// A ruleset with a table of the gateway's name.
fn with_own_table() -> Ruleset {
    let table = Table { family: 1, name: "bentpipe-sat".to_owned() };
    Ruleset { tables: vec![table], ..Ruleset::default() }
}

fn match_of(subject: Subject, values: &[&[u8]]) -> Statement {
    let values = values.iter().map(|value| value.to_vec()).collect();
    Statement::Match { subject, values, is_inverted: false }
}

/// A match of packets that came by an interface.
fn on(interface: &str) -> Statement {
    match_of(Subject::IngressName, &[format!("{interface}\0").as_bytes()])
}

/// Given a chain for this machine's own packets, expect one line with the rule that helps.
#[test]
fn a_filter_that_drops_the_legs_is_refused() {
    use Hook::{Forward, Input, Output};
    use Statement::{Accept, Note, Other, Refuse};
    let (on_lo, on_lan) = (on("lo"), on("lan0"));
    let lo_by_index = match_of(Subject::IngressIndex, &[&1_u32.to_ne_bytes()]);
    let values = vec![b"lo\0".to_vec()];
    let not_lo = Statement::Match { subject: Subject::IngressName, values, is_inverted: true };
    let legs = match_of(Subject::TransparentSocket, &[&[1]]);
    let on_lan = || vec![on_lan.clone(), Accept];
    let on_lo = || vec![on_lo.clone(), Accept];
    let legs = || vec![legs.clone(), Accept];
    for (hook, drops, rules, is_refused) in [
        (Input, true, vec![on_lan()], true),
        (Input, true, vec![on_lo()], false),
        (Input, true, vec![vec![lo_by_index, Accept]], false),
        (Input, true, vec![vec![not_lo, Accept]], true),
        (Input, true, vec![vec![on("lo"), Refuse]], true),
        (Input, true, vec![legs()], false),
        (Input, false, vec![on_lan()], false),
        (Input, false, vec![on_lan(), vec![Refuse]], true),
        (Input, false, vec![on_lo(), vec![Refuse]], false),
        (Input, false, vec![vec![Note, Note, Refuse]], true),
        (Input, false, vec![vec![Other, Refuse]], false),
        (Output, true, vec![on_lo()], true),
        (Output, true, vec![legs()], false),
        (Forward, true, vec![], false),
    ] {
        let machine = lacking(|it| it.ruleset = Ok(ruleset(hook, drops, &rules)));
        let lines = failures(&machine, &config(""));
        assert_eq!(lines.len(), usize::from(is_refused), "{hook:?} {drops} {rules:?}: {lines:?}");
        let fix = "nft insert rule ip other own socket transparent 1 accept";
        assert!(lines.iter().all(|line| line.contains(fix)), "{lines:?}");
    }
}

/// A filter chain with rules.
fn ruleset(hook: Hook, drops: bool, rules: &[Vec<Statement>]) -> Ruleset {
    let table = Table { family: 2, name: "other".to_owned() };
    let rule = |statements: &Vec<Statement>| ListedRule {
        table: table.clone(),
        chain: "own".to_owned(),
        statements: statements.clone(),
    };
    let (name, filters) = ("own".to_owned(), Some(hook));
    let chain = ListedChain { table: table.clone(), name, filters, drops };
    let rules = rules.iter().map(rule).collect();
    Ruleset { tables: vec![table], chains: vec![chain], rules }
}

/// Given a rule of ip rule by interface, expect it to need another by source.
#[test]
fn a_rule_for_packets_of_hosts_needs_one_for_the_legs() {
    let by_interface = json!({"src": "all", "iif": "lan0", "table": "7"});
    let machine = lacking(|it| it.rules = [json!([by_interface]), json!([])]);
    let line = &failures(&machine, &config(""))[0];
    let fix = "ip -4 rule add from NETWORK lookup 7, with the network behind lan0";
    assert!(line.contains(fix), "{line}");
    let by_source = json!({"src": "10.0.1.0", "table": "7"});
    let machine = lacking(|it| it.rules = [json!([by_interface, by_source]), json!([])]);
    assert!(failures(&machine, &config("")).is_empty());
}

#[test]
fn marks_in_rules_of_others_are_found() {
    let value = |number: u32| number.to_ne_bytes();
    let set = |subject| Statement::Set { subject, values: vec![value(25_088).to_vec()] };
    for (statement, is_in_use) in [
        (match_of(Subject::Mark, &[&value(25_089)]), true),
        (match_of(Subject::Mark, &[&value(1), &value(25_088)]), true),
        (set(Subject::Mark), true),
        (set(Subject::ConnectionMark), true),
        (match_of(Subject::Mark, &[&value(25_091)]), true),
        (match_of(Subject::Mark, &[&value(25_092)]), false),
        (Statement::Note, false),
        (match_of(Subject::Other, &[&value(25_088)]), false),
    ] {
        let rules = [vec![statement.clone()]];
        let machine = lacking(|it| it.ruleset = Ok(ruleset(Hook::Forward, false, &rules)));
        let found = failures(&machine, &config(""));
        assert_eq!(!found.is_empty(), is_in_use, "{statement:?}");
        let start = "rules: Table ip other of nftables uses the mark; to fix it: ";
        assert!(found.iter().all(|line| line.starts_with(start)), "{found:?}");
    }
}

#[test]
fn paths_past_the_gateway_are_found() {
    let sides = [vec!["lan0".to_owned()], vec!["sat0".to_owned()]];
    let both = json!([{"dev": "sat0"}, {"dev": "wan1"}]);
    let instead = |route: Value| Value::Array([vec![route], routes()[1..].to_vec()].concat());
    for (routes, said) in [
        (Value::Array(routes()), None),
        // A default route that another one replaces is not used.
        (with_route(json!({"dst": "default", "dev": "wan1", "metric": 100})), None),
        (with_route(json!({"dst": "192.168.0.0/24", "dev": "mgmt0"})), None),
        (
            instead(json!({"dst": "default", "dev": "wan1"})),
            Some("The IPv4 default route uses wan1, on"),
        ),
        (
            instead(json!({"dst": "default", "nexthops": both})),
            Some("The IPv4 default route uses wan1, on neither side"),
        ),
        (
            with_route(json!({"dst": "10.9.0.0/16", "nexthops": both})),
            Some("A part of the packets to 10.9.0.0/16 uses wan1"),
        ),
        (with_route(json!({"dst": "10.9.0.0/16", "type": "blackhole"})), None),
        (
            Value::Array(routes()[1..2].to_vec()),
            Some("No route uses sat0, so no packet leaves on it."),
        ),
    ] {
        let machine = lacking(|it| it.routes[0] = routes.clone());
        let problem = paths::problem(&machine, &sides[0], &sides[1], &[]).expect("routes");
        match (said, problem) {
            (Some(said), Some(problem)) => assert!(problem.found.contains(said), "{problem:?}"),
            (said, problem) => assert_eq!(said.is_some(), problem.is_some(), "{routes}"),
        }
    }
}

/// Given a PEP before a tunnel, and a plain route to the network of its peer, expect the fix.
#[test]
fn a_route_beside_that_of_the_tunnel_is_to_be_deleted_first() {
    let (lan, link) = (vec!["lan0".to_owned()], vec!["sat0".to_owned(), "bp0".to_owned()]);
    let tunneled = [json!({"dst": "10.0.3.0/24", "dev": "bp0"})];
    let plain = with_route(json!({"dst": "10.0.3.0/24", "dev": "wan1"}));
    let machine = lacking(|it| it.routes[0] = plain);
    let problem = paths::problem(&machine, &lan, &link, &tunneled).expect("routes");
    let fix =
        "ip -4 route del 10.0.3.0/24 dev wan1, so that the tunnel alone has this network; or add ";
    assert!(problem.expect("a problem").fix.starts_with(fix));
    // The tunnel's own route of a gateway that is up is no obstacle.
    let machine = lacking(|it| it.routes[0] = with_route(tunneled[0].clone()));
    let problem = paths::problem(&machine, &lan, &link, &tunneled).expect("routes");
    assert_eq!(problem, None);
}
