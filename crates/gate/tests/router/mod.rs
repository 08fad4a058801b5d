//! Three hosts in series, of which the middle one is a router, in network namespaces; for tests and
//! benchmarks of the daemon.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use bentpipe_gate::daemon::{PepPlan, Plan, SidePlan};
use bentpipe_gate::transparent::Connections;
use bentpipe_sys::SystemError;
use bentpipe_sys::netns::Namespace;

/// The longest time without progress. A SYN that is lost three times takes 1 + 2 + 4 s (RFC 6298), the limit of the
/// plan for servers 3 s; the rest is for a machine that stands still meanwhile.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// What the tests of a router need, beside root.
pub(crate) const PROGRAMS: [&str; 2] = ["nft", "ip"];
/// The addresses of the server, by version of IP.
pub(crate) const SERVERS: [&str; 2] = ["10.2.0.2", "fd02::2"];

/// A host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Client,
    Gateway,
    Server,
}

/// See the module documentation.
pub(crate) struct Router {
    names: [String; 3],
}

fn ip(arguments: &str) -> Output {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
    output
}

impl Router {
    pub(crate) fn new(name: &str) -> Self {
        let names = ["c", "g", "s"].map(|host| format!("bp-{}-{name}-{host}", std::process::id()));
        let router = Self { names };
        let [client, gateway, server] = &router.names;
        for name in &router.names {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("netns exec {name} sysctl -qw net.ipv6.conf.default.accept_dad=0"));
        }
        ip(&format!("link add net0 netns {client} type veth peer name lan0 netns {gateway}"));
        ip(&format!("link add net0 netns {server} type veth peer name wan0 netns {gateway}"));
        for (name, device, v4, v6) in [
            (client, "net0", "10.1.0.2/24", "fd01::2/64"),
            (gateway, "lan0", "10.1.0.1/24", "fd01::1/64"),
            (gateway, "wan0", "10.2.0.1/24", "fd02::1/64"),
            (server, "net0", "10.2.0.2/24", "fd02::2/64"),
        ] {
            ip(&format!("-n {name} addr add {v4} dev {device}"));
            ip(&format!("-n {name} addr add {v6} dev {device} nodad"));
            ip(&format!("-n {name} link set {device} up"));
        }
        for (name, network) in [(client, 1), (server, 2)] {
            ip(&format!("-n {name} route add default via 10.{network}.0.1"));
            ip(&format!("-n {name} route add default via fd0{network}::1"));
        }
        let forwarding = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1";
        router.gateway(forwarding);
        router.wait_for_neighbors([1, 2, 1]);
        router
    }

    /// Lets packets from the server to the client return by a link of their own, past the gateway.
    #[allow(dead_code, reason = "the benchmarks use this module, too")]
    pub(crate) fn return_past_gateway(&self) {
        let [client, _, server] = &self.names;
        ip(&format!("link add back0 netns {server} type veth peer name back0 netns {client}"));
        for (name, number) in [(client, 1), (server, 2)] {
            ip(&format!("-n {name} addr add 10.3.0.{number}/24 dev back0"));
            ip(&format!("-n {name} addr add fd03::{number}/64 dev back0 nodad"));
            ip(&format!("-n {name} link set back0 up"));
        }
        // The client's own route to the server does not lead there.
        let filters = ["all", "back0"].map(|each| format!("net.ipv4.conf.{each}.rp_filter=0"));
        self.command(Host::Client, &format!("sysctl -qw {}", filters.join(" ")));
        self.wait_for_neighbors([2, 2, 2]);
        ip(&format!("-n {server} route add 10.1.0.0/24 via 10.3.0.1"));
        ip(&format!("-n {server} route add fd01::/64 via fd03::1"));
    }

    /// Gives the client a second link to the gateway, by which it reaches the address 10.2.0.3 of the server.
    #[allow(dead_code, reason = "the benchmarks use this module, too")]
    pub(crate) fn add_client_link(&self) {
        let [client, gateway, server] = &self.names;
        ip(&format!("link add net1 netns {client} type veth peer name lan1 netns {gateway}"));
        for (name, device, number) in [(client, "net1", 2), (gateway, "lan1", 1)] {
            ip(&format!("-n {name} addr add 10.4.0.{number}/24 dev {device}"));
            ip(&format!("-n {name} link set {device} up"));
        }
        ip(&format!("-n {server} addr add 10.2.0.3/24 dev net0"));
        self.wait_for_neighbors([2, 3, 1]);
        ip(&format!("-n {client} route add 10.2.0.3 via 10.4.0.1"));
    }

    /// Waits until every device has its link-local address, so many for each host. Before, its carrier may not have been
    /// noticed yet, which takes up to 1 s, and the first neighbour solicitation of IPv6 would be lost, and repeated after 1 s
    /// (RFC 4861, section 10).
    fn wait_for_neighbors(&self, devices: [usize; 3]) {
        let ready = |name: &str| {
            let shown = ip(&format!("-n {name} -6 -o addr show scope link -tentative")).stdout;
            shown.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count()
        };
        until(|| self.names.each_ref().map(|name| ready(name)) == devices);
    }

    /// Runs a closure in the namespace of a host.
    pub(crate) fn on<T: Send>(&self, host: Host, act: impl FnOnce() -> T + Send) -> T {
        let open = |path: String| File::open(path).expect("it exists").into();
        let net = open(format!("/run/netns/{}", self.names[host as usize]));
        let namespace = Namespace::from_fds([net, open("/proc/self/ns/mnt".to_owned())]);
        namespace.run(|| Ok::<_, SystemError>(act())).expect("the namespace is entered")
    }

    /// What a program on the gateway prints.
    pub(crate) fn gateway(&self, command: &str) -> String {
        self.command(Host::Gateway, command)
    }

    /// What a program on a host prints.
    pub(crate) fn command(&self, host: Host, command: &str) -> String {
        let output = ip(&format!("netns exec {} {command}", self.names[host as usize]));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Drops what TCP on a host would send and this condition of nftables holds for.
    #[allow(dead_code, reason = "the benchmarks use this module, too")]
    pub(crate) fn mute(&self, host: Host, condition: &str) {
        let chain = "{ type filter hook output priority 0 ; }";
        self.command(host, "nft add table inet mute");
        self.command(host, &format!("nft add chain inet mute output {chain}"));
        self.command(host, &format!("nft add rule inet mute output {condition} drop"));
    }

    /// Ends [`Router::mute`].
    #[allow(dead_code, reason = "the benchmarks use this module, too")]
    pub(crate) fn unmute(&self, host: Host) {
        self.command(host, "nft delete table inet mute");
    }

    /// The plan of a daemon here.
    pub(crate) fn plan(&self, folder: &Path, connections: usize) -> Plan {
        Plan {
            name: "bentpipe".to_owned(),
            state_file: folder.join("state.json").display().to_string(),
            control_file: folder.join("control").display().to_string(),
            files: Vec::new(),
            user: 65_534,
            group: 65_534,
            metrics_listen: None,
            pep: Some(PepPlan {
                mark: 25_112,
                route_table: 25_113,
                workers: 1,
                threads: 1,
                connections,
                buffer_bytes: 256 * 1024,
                early_accept: false,
                connect_limit_ns: 3_000_000_000,
                idle_limit_ns: None,
                keep_alive_ns: None,
                except: Connections::default(),
                only: Connections::default(),
                lan: SidePlan { interfaces: vec!["lan0".to_owned()], ..SidePlan::default() },
                link: SidePlan::default(),
            }),
            tunnel: None,
        }
    }

    /// Starts a daemon on the gateway, and waits until it holds new connections.
    pub(crate) fn start(&self, program: &str, plan: &Plan) -> Child {
        let child = self.spawn(program, &["plan", "run"], plan);
        // It is written after the rule that holds them was renewed.
        until(|| Path::new(&plan.state_file).exists());
        child
    }

    /// Runs the program of the daemon on the gateway until it ends.
    #[allow(dead_code, reason = "the benchmarks use this module, too")]
    pub(crate) fn run(&self, program: &str, arguments: &[&str], plan: &Plan) -> ExitStatus {
        self.spawn(program, arguments, plan).wait().expect("it ends")
    }

    fn spawn(&self, program: &str, arguments: &[&str], plan: &Plan) -> Child {
        let gateway = &self.names[Host::Gateway as usize];
        let _ = std::fs::remove_file(&plan.state_file);
        // Without `ip netns exec` in between, so that signals reach the daemon itself.
        let mut child = Command::new("nsenter")
            .args([&format!("--net=/run/netns/{gateway}"), program])
            .args(arguments)
            .stdin(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let text = serde_json::to_vec(plan).expect("a plan");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(&text).expect("it reads its plan");
        drop(stdin);
        child
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Waits until a condition holds.
pub(crate) fn until(condition: impl Fn() -> bool) {
    let pause = Duration::from_millis(20);
    for _ in 0..TIMEOUT.as_millis() / pause.as_millis() {
        if condition() {
            return;
        }
        thread::sleep(pause);
    }
    panic!("this was waited for in vain");
}

/// The worker of a daemon, or the first of several.
pub(crate) fn worker(daemon: &Child) -> u32 {
    let pid = daemon.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("the daemon runs");
    let is_worker = |pid: &&str| {
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        arguments.is_ok_and(|arguments| arguments.ends_with("worker\0"))
    };
    let worker = children.split_whitespace().find(is_worker).expect("a worker");
    worker.parse().expect("a number")
}
