//! Two hosts with a PEP or two between them, on pipes with delay, rate, loss and reordering.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bentpipe_core::conformance::{Recorder, Script};
use bentpipe_core::engine::{Count, Cx, Engine, Ledger};
use bentpipe_core::graph::Graph;
use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::packet::{Address, Class, FlowId, Origin, Packet, PacketId, Port};
use bentpipe_core::pep::{LegConfig, Pep, PepConfig};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::config::{
    AckPolicy, AvoidanceCounting, BufferCounts, CongestionName, RtoConfig, RtoMinBounds,
    StackVariant,
};
use bentpipe_core::tcp::{Config, Endpoint};
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, NodeId};

/// Segments of 1,000 bytes, initial windows of ten, SACK, an ACK for each segment, and buffers larger
/// than any transfer of the tests.
pub(crate) fn tcp() -> Config {
    Config {
        mss: 1_000,
        initial_window_segments: 10,
        congestion: CongestionName::Cubic,
        sack: true,
        timestamps: false,
        window_scaling: true,
        send_buffer: 1 << 26,
        receive_buffer: 1 << 26,
        receive_buffer_initial: 1 << 26,
        receive_buffer_counts: BufferCounts::Window,
        acks: AckPolicy {
            delayed_segments: 1,
            delayed_timeout: Duration::from_millis(40),
            quick_segments: 0,
        },
        rto: RtoConfig {
            initial: Duration::from_secs(1),
            min: Duration::from_millis(200),
            max: Duration::from_secs(60),
            granularity: Duration::from_millis(1),
            min_bounds: RtoMinBounds::Variance,
        },
        slow_start_segments_per_ack: 1,
        avoidance: AvoidanceCounting::Bytes,
        limited_transmit: false,
        rack_tlp: true,
        prr: true,
        hystart: false,
        stack: StackVariant::Rfc,
        ecn: false,
    }
}

pub(crate) fn leg(tcp: Config) -> LegConfig {
    LegConfig { tcp, unsent_low_water: None }
}

pub(crate) fn address(flow: FlowId, end: Origin) -> Address {
    Address(2 * flow.0 + u32::from(end == Origin::Receiver))
}

pub(crate) fn pep() -> PepConfig {
    PepConfig {
        lan: leg(tcp()),
        link: leg(tcp()),
        buffer_bytes: 1 << 26,
        connections_max: 100,
        early_accept: false,
        unsplittable: Arc::default(),
        address,
        first_serial: PacketId::HOST_SERIALS,
        rng: Rng::stream(1, "pep"),
    }
}

/// The configuration of a PEP by its number on the path.
pub(crate) fn numbered(config: PepConfig, number: u64) -> PepConfig {
    let first_serial = PacketId::HOST_SERIALS + number * Pep::SERIALS;
    PepConfig { first_serial, rng: Rng::stream(number, "pep"), ..config }
}

/// A call of the application.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Open,
    /// Writes as soon as the send buffer has room.
    Write(u64),
    /// Closes behind everything written before.
    Close,
    Abort,
    /// Reads so many bytes at a time, each millisecond.
    Read(u64),
}

/// A host with one connection.
pub(crate) struct Host {
    endpoint: Endpoint,
    calls: VecDeque<(Instant, Call)>,
    /// Not written yet.
    to_write: u64,
    closing: bool,
    /// Bytes that it reads each millisecond; `None` while it does not read.
    read: Option<u64>,
    next_read: Option<Instant>,
    pub(crate) read_bytes: u64,
    pub(crate) last_read: Instant,
    /// Whether it refuses connections, or ignores all packets.
    pub(crate) refuses: bool,
    pub(crate) is_silent: bool,
    sent_before: Count,
}

impl Host {
    fn new(config: Config, flow: FlowId, end: Origin) -> Self {
        let peer = address(flow, end.opposite());
        let initial = SeqNumber(u32::MAX - 10_000 * (1 + flow.0));
        let endpoint = Endpoint::new(config, flow, end, initial).toward(peer, Class(0));
        Self {
            endpoint,
            calls: VecDeque::new(),
            to_write: 0,
            closing: false,
            read: Some(u64::MAX),
            next_read: None,
            read_bytes: 0,
            last_read: Instant::START,
            refuses: false,
            is_silent: false,
            sent_before: Count::default(),
        }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn call(&mut self, cx: &mut Cx<'_>, call: Call) {
        match call {
            Call::Open => {
                self.endpoint.set_auto_read(cx, false);
                self.endpoint.open(cx);
            }
            Call::Write(bytes) => self.to_write += bytes,
            Call::Close => self.closing = true,
            Call::Abort => self.endpoint.abort(cx),
            Call::Read(bytes) => self.read = Some(bytes),
        }
    }

    /// Aborts, and makes no further calls.
    pub(crate) fn abort(&mut self, cx: &mut Cx<'_>) {
        self.calls.clear();
        self.endpoint.abort(cx);
    }

    /// Reads and writes what is possible.
    fn run(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        let due = self.next_read.is_none_or(|next| next <= now);
        if let Some(most) = self.read.filter(|_| due) {
            let read = self.endpoint.read(cx, most);
            self.read_bytes += read;
            if read > 0 {
                self.last_read = now;
            }
            let more = self.endpoint.readiness().readable > 0;
            self.next_read = more.then_some(now + Duration::from_millis(1));
        }
        self.to_write -= self.endpoint.try_write(cx, self.to_write);
        if self.closing && self.to_write == 0 {
            self.closing = false;
            self.endpoint.close(cx);
        }
    }
}

impl Engine for Host {
    fn input(&mut self, cx: &mut Cx<'_>, _: Port, packet: Box<Packet>) {
        self.sent_before.add(packet.bytes);
        let segment = packet.segment().expect("hosts receive segments");
        if self.is_silent {
            cx.discard(packet);
            return;
        }
        if segment.flags.syn() && segment.ack.is_none() {
            self.endpoint.set_auto_read(cx, false);
            if self.refuses {
                self.endpoint.refuse(cx, &packet);
            }
        }
        self.endpoint.on_packet(cx, &packet);
        self.run(cx);
        cx.discard(packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        while let Some(&(at, call)) = self.calls.front()
            && at <= now
        {
            self.calls.pop_front();
            self.call(cx, call);
        }
        if self.endpoint.next_wake().is_some_and(|due| due <= now) {
            self.endpoint.wake(cx);
        }
        self.run(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        let call = self.calls.front().map(|call| call.0);
        let next_read = self.next_read.filter(|_| self.read.is_some());
        [self.endpoint.next_wake(), call, next_read].into_iter().flatten().min()
    }

    fn ledger(&self) -> Ledger {
        let sent = self.endpoint.ledger().sent;
        let received = self.sent_before;
        Ledger { received, consumed: received, created: sent, sent, ..Ledger::default() }
    }
}

/// Both directions between two engines.
#[derive(Clone, Debug)]
pub(crate) struct PipeConfig {
    pub(crate) delay: Duration,
    /// The longest additional delay.
    pub(crate) jitter: Duration,
    /// Lost packets in 1,000.
    pub(crate) losses: u64,
    /// Bits per second; 0 for no limit.
    pub(crate) rate_bps: u64,
}

impl PipeConfig {
    /// A pipe of an RTT in milliseconds, without losses.
    pub(crate) fn of_rtt(rtt_ms: u64) -> Self {
        let delay = Duration::from_micros(rtt_ms * 500);
        Self { delay, jitter: Duration::ZERO, losses: 0, rate_bps: 0 }
    }
}

pub(crate) struct Pipe {
    config: PipeConfig,
    rng: Rng,
    queue: BTreeMap<(Instant, u64), (Port, Box<Packet>)>,
    free_at: [Instant; 2],
    ledger: Ledger,
}

impl Pipe {
    fn new(config: PipeConfig, name: &str) -> Self {
        Self {
            config,
            rng: Rng::stream(1, name),
            queue: BTreeMap::new(),
            free_at: [Instant::START; 2],
            ledger: Ledger::default(),
        }
    }
}

impl Engine for Pipe {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.ledger.received.add(packet.bytes);
        if self.rng.below(1_000) < self.config.losses {
            self.ledger.dropped[DropCause::BitError as usize].add(packet.bytes);
            cx.discard(packet);
            return;
        }
        let PipeConfig { delay, jitter, rate_bps, .. } = self.config;
        let free_at = &mut self.free_at[usize::from(port.0)];
        let bits = 8 * u64::from(packet.bytes);
        let nanos = (bits * 1_000_000_000).checked_div(rate_bps).unwrap_or(0);
        *free_at = (*free_at).max(cx.now()) + Duration::from_nanos(nanos);
        let extra = Duration::from_nanos(self.rng.below(jitter.as_nanos() + 1));
        self.ledger.held.add(packet.bytes);
        let order = self.ledger.received.packets;
        self.queue.insert((*free_at + delay + extra, order), (Port(1 - port.0), packet));
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        while let Some(first) = self.queue.first_entry()
            && first.key().0 <= cx.now()
        {
            let (port, packet) = first.remove();
            self.ledger.held.remove(packet.bytes);
            self.ledger.sent.add(packet.bytes);
            cx.forward(port, packet);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|(key, _)| key.0)
    }

    fn ledger(&self) -> Ledger {
        self.ledger
    }
}

pub(crate) enum Node {
    Host(Box<Host>),
    Pep(Box<Recorder<Pep>>),
    Pipe(Box<Pipe>),
}

macro_rules! each {
    ($node:expr, $engine:ident => $call:expr) => {
        match $node {
            Node::Host($engine) => $call,
            Node::Pep($engine) => $call,
            Node::Pipe($engine) => $call,
        }
    };
}

impl Engine for Node {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        each!(self, engine => engine.input(cx, port, packet));
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        each!(self, engine => engine.wake(cx));
    }

    fn next_wake(&self) -> Option<Instant> {
        each!(self, engine => engine.next_wake())
    }

    fn ledger(&self) -> Ledger {
        each!(self, engine => engine.ledger())
    }
}

/// Pairs of hosts, a flow each, on one row of pipes and PEPs: client - pipe - PEP - pipe ... server.
pub(crate) struct Network {
    pub(crate) graph: Graph<Node>,
    pub(crate) clients: Vec<NodeId>,
    pub(crate) servers: Vec<NodeId>,
    pub(crate) peps: Vec<NodeId>,
}

impl Network {
    /// `pipes` has one more than `peps`. The LAN of each PEP is on the client's side.
    pub(crate) fn new(
        hosts: &[[Config; 2]],
        pipes: &[PipeConfig],
        peps: impl IntoIterator<Item = PepConfig>,
    ) -> Self {
        let mut graph = Graph::default();
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for (flow, [client, server]) in (0..).map(FlowId).zip(hosts) {
            clients.push(graph.add(Node::Host(Box::new(Host::new(*client, flow, Origin::Sender)))));
            servers.push(graph.add(Node::Host(Box::new(Host::new(
                *server,
                flow,
                Origin::Receiver,
            )))));
        }
        let first = graph.add(Node::Pipe(Box::new(Pipe::new(pipes[0].clone(), "pipe-0"))));
        let mut last = (first, Port(1));
        let mut nodes = Vec::new();
        for ((number, pipe), config) in (1u64..).zip(&pipes[1..]).zip(peps) {
            let config = numbered(config, number - 1);
            let pep = graph.add(Node::Pep(Box::new(Recorder::new(Pep::new(config)))));
            let pipe = Pipe::new(pipe.clone(), &format!("pipe-{number}"));
            let pipe = graph.add(Node::Pipe(Box::new(pipe)));
            for (a, b) in [(last, (pep, Pep::LAN)), ((pep, Pep::LINK), (pipe, Port(0)))] {
                graph.connect(a, b);
                graph.connect(b, a);
            }
            nodes.push(pep);
            last = (pipe, Port(1));
        }
        let ends = [(first, Port(0)), last];
        let mut routes = Vec::new();
        for (&client, &server) in clients.iter().zip(&servers) {
            routes.extend([Some((client, Port(0))), Some((server, Port(0)))]);
            graph.connect((client, Port(0)), ends[0]);
            graph.connect((server, Port(0)), ends[1]);
        }
        for end in ends {
            graph.connect_by_destination(end, routes.clone());
        }
        Self { graph, clients, servers, peps: nodes }
    }

    /// A client and a server with the same TCP, and a PEP between pipes of these RTTs in milliseconds.
    pub(crate) fn split(rtts_ms: [u64; 2], config: PepConfig) -> Self {
        Self::new(&[[tcp(); 2]], &rtts_ms.map(PipeConfig::of_rtt), [config])
    }

    pub(crate) fn host(&mut self, node: NodeId) -> &mut Host {
        match self.graph.engine_mut(node) {
            Node::Host(host) => host,
            _ => unreachable!("a host"),
        }
    }

    pub(crate) fn client(&mut self) -> &mut Host {
        self.host(self.clients[0])
    }

    pub(crate) fn server(&mut self) -> &mut Host {
        self.host(self.servers[0])
    }

    pub(crate) fn pep(&self, number: usize) -> &Pep {
        match self.graph.engine(self.peps[number]) {
            Node::Pep(pep) => pep.engine(),
            _ => unreachable!("a PEP"),
        }
    }

    /// What a PEP received.
    pub(crate) fn recorded(&self, number: usize) -> &Script {
        match self.graph.engine(self.peps[number]) {
            Node::Pep(pep) => pep.script(),
            _ => unreachable!("a PEP"),
        }
    }

    pub(crate) fn statistic(&self, name: &str) -> u64 {
        let all = self.pep(0).statistics();
        all.into_iter().find(|statistic| statistic.0 == name).expect("a statistic").1
    }

    /// Makes a host call `calls`, at times in milliseconds.
    pub(crate) fn calls(&mut self, node: NodeId, calls: &[(u64, Call)]) {
        let now = self.graph.now();
        self.graph.alter(now, node, None, |node, _| {
            if let Node::Host(host) = node {
                host.calls.extend(calls.iter().map(|&(at, call)| (Instant::from_millis(at), call)));
            }
        });
    }

    /// The calls of the first client and server.
    pub(crate) fn script(&mut self, client: &[(u64, Call)], server: &[(u64, Call)]) {
        self.calls(self.clients[0], client);
        self.calls(self.servers[0], server);
    }

    /// Runs until `at_ms`, and checks the invariants.
    pub(crate) fn run(&mut self, at_ms: u64) {
        self.graph.run_until(Instant::from_millis(at_ms), None);
        self.check();
    }

    pub(crate) fn check(&self) {
        let (mut sent, mut received) = (Count::default(), self.graph.unrouted());
        for engine in self.graph.engines() {
            let ledger = engine.ledger();
            assert_eq!(ledger.check(), Ok(()));
            sent = sent.plus(ledger.sent);
            received = received.plus(ledger.received);
        }
        assert_eq!(sent, received);
        for number in 0..self.peps.len() {
            assert_eq!(self.pep(number).check(), Ok(()));
        }
    }
}
