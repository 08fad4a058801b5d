//! Builds the two ends of each flow.

mod channels;

use std::collections::BTreeMap;

use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::packet::{Address, Class, FlowId, Origin};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::Endpoint;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::NodeId;
use bentpipe_core::units::BitRate;

use super::{Ends, NET, Station};
use crate::node::Node;
use crate::plan::{Amount, Draw, Flow, HUB, Heading, HostChoice, Plan, Tcp, WebPage, Workload};
use crate::workload::{
    BulkReceiver, BulkSender, Client, ConstantRate, DatagramSink, Draws, ExchangeConfig, Host,
    Member, PageConfig, PageDraws, Participant, Player, Reflector, ResponseSizes, Schedule,
    SegmentSizes, Server, SizeTable, TalkSpurts, Until, WebClient, WebServer,
};

/// Builds the ends of flows, one flow after the other.
pub(super) struct Hosts<'a> {
    plan: &'a Plan,
    seed: u64,
    /// The ends of flows, by address.
    stations: Vec<Station>,
    /// The further addresses of channels, which follow.
    server_stations: Vec<Station>,
    /// The servers of each channel.
    channel_servers: Vec<NodeId>,
    /// The sizes of the last channel, and their table.
    size_table: Option<(&'a [(u64, u64)], SizeTable)>,
    /// The first host of each gateway in the plan, and the number of its hosts.
    hosts_behind: Vec<(u32, u32)>,
    /// The reflector of each conference of the flows so far.
    reflectors: BTreeMap<u32, NodeId>,
}

impl<'a> Hosts<'a> {
    pub(super) fn new(plan: &'a Plan, seed: u64) -> Self {
        let mut hosts_behind = vec![(0, 0); plan.gateways.len()];
        for (number, host) in (0..).zip(&plan.hosts) {
            let (first, count) = &mut hosts_behind[host.gateway as usize];
            if *count == 0 {
                *first = number;
            }
            *count += 1;
        }
        Self {
            plan,
            seed,
            stations: Vec::new(),
            server_stations: Vec::new(),
            channel_servers: Vec::new(),
            size_table: None,
            hosts_behind,
            reflectors: BTreeMap::new(),
        }
    }

    /// The ends of all added flows, by address, and the servers of channels.
    pub(super) fn into_stations(mut self) -> (Vec<Station>, Vec<NodeId>) {
        self.stations.append(&mut self.server_stations);
        (self.stations, self.channel_servers)
    }

    /// Adds both ends of a flow.
    pub(super) fn add(
        &mut self,
        flow: &'a Flow,
        id: FlowId,
        mut add: impl FnMut(Node) -> NodeId,
    ) -> Ends {
        let start = self.start(flow);
        let [sender, receiver] = match &flow.workload {
            Workload::Bulk { amount, sender, receiver } => {
                self.bulk(flow, id, start, (*amount, [sender, receiver])).map(&mut add)
            }
            Workload::ConstantRate { rate_bps, payload_bytes, duration_ns } => {
                let end = self.end(flow, start, *duration_ns);
                let source = source(flow, id, *rate_bps, *payload_bytes, [start, end]);
                [source.into(), DatagramSink::default().into()].map(&mut add)
            }
            Workload::Voice { .. } => self.voice(flow, id, start).map(&mut add),
            Workload::RequestResponse { .. } => self.requests(flow, id, start).map(&mut add),
            Workload::Video { .. } => self.video(flow, id, start).map(&mut add),
            Workload::WebPage(page) => self.pages(flow, page, id, start).map(&mut add),
            Workload::Channel(channel) => self.channel(flow, channel, id, start).map(&mut add),
            Workload::Conference { conference, rate_bps, payload_bytes, duration_ns } => {
                let end = self.end(flow, start, *duration_ns);
                let source = source(flow, id, *rate_bps, *payload_bytes, [start, end]);
                let participant = add(Participant::new(source).into());
                [participant, self.reflector(*conference, &mut add)]
            }
        };
        let back = match flow.direction {
            Heading::Forward => Heading::Return,
            Heading::Return => Heading::Forward,
        };
        for (node, heading) in [(sender, flow.direction), (receiver, back)] {
            self.stations.push(self.station(flow, heading, node));
        }
        if let Workload::Channel(channel) = &flow.workload {
            self.add_server_stations(flow, channel, [sender, receiver]);
        }
        let direction = match flow.direction {
            Heading::Forward => HUB,
            Heading::Return => 1 + flow.terminal,
        };
        Ends { terminal: flow.terminal, sender, receiver, direction, start }
    }

    /// When a flow starts. Its stream serves no other draw.
    fn start(&self, flow: &Flow) -> Instant {
        let jitter_ns = match flow.start_jitter_ns {
            0 => 0,
            range_ns => self.stream(flow, "start").below(range_ns),
        };
        Instant::from_nanos(flow.start_ns + jitter_ns)
    }

    /// When a source of datagrams ends. Jitter does not move the end beyond that of the run.
    fn end(&self, flow: &Flow, start: Instant, duration_ns: u64) -> Instant {
        let duration = Duration::from_nanos(duration_ns);
        let without_jitter = Instant::from_nanos(flow.start_ns) + duration;
        (start + duration).min(without_jitter.max(Instant::from_nanos(self.plan.stop_ns)))
    }

    fn bulk(
        &self,
        flow: &Flow,
        id: FlowId,
        start: Instant,
        (amount, tcp): (Amount, [&Tcp; 2]),
    ) -> [Node; 2] {
        let until = match amount {
            Amount::Bytes(bytes) => Until::Bytes(bytes),
            Amount::DurationNs(nanos) => Until::Time(start + Duration::from_nanos(nanos)),
        };
        let mut rng = Rng::stream(self.seed, &format!("flow.{}", flow.name));
        let mut endpoint = |tcp: &Tcp, origin, part| {
            // Random initial sequence numbers (RFC 9293, section 3.4.1) make ordinary runs cover
            // the wrap.
            let initial = u32::try_from(rng.next_u64() >> 32).expect("32 bits");
            let cycle_rng = self.stream(flow, &format!("{part}.cycle"));
            let endpoint = Endpoint::new(tcp.config(), id, origin, SeqNumber(initial));
            endpoint.with_rng(cycle_rng).toward(peer(id, origin), Class(flow.priority))
        };
        let [sender, receiver] = tcp;
        let sending = BulkSender::new(endpoint(sender, Origin::Sender, "sender"), start, until);
        let receiving = BulkReceiver::new(endpoint(receiver, Origin::Receiver, "receiver"));
        [sending.into(), receiving.into()]
    }

    fn voice(&self, flow: &Flow, id: FlowId, start: Instant) -> [Node; 2] {
        let Workload::Voice {
            rate_bps,
            payload_bytes,
            duration_ns,
            jitter_buffer_ns,
            talk_spurts,
            ..
        } = flow.workload
        else {
            unreachable!("the caller checked the kind");
        };
        let end = self.end(flow, start, duration_ns);
        let mut source = source(flow, id, rate_bps, payload_bytes, [start, end]);
        if let Some(means) = talk_spurts {
            let stream = |part: &str| self.stream(flow, part);
            source = source.with_talk_spurts(TalkSpurts::new(start, means, stream));
        }
        let sink = DatagramSink::with_jitter_buffer(Duration::from_nanos(jitter_buffer_ns));
        [source.into(), sink.into()]
    }

    /// A random stream for one purpose of a flow.
    fn stream(&self, flow: &Flow, part: &str) -> Rng {
        Rng::stream(self.seed, &format!("flow.{}.{part}", flow.name))
    }

    fn requests(&self, flow: &Flow, id: FlowId, start: Instant) -> [Node; 2] {
        let Workload::RequestResponse {
            request_bytes,
            response_bytes,
            think_ns,
            exchanges,
            keep_connection,
            server,
            client,
        } = &flow.workload
        else {
            unreachable!("the caller checked the kind");
        };
        let draws = |draw, part: &str| Draws::new(draw, self.stream(flow, part));
        let config = ExchangeConfig {
            request_bytes: *request_bytes,
            response_bytes: ResponseSizes::Drawn(draws(*response_bytes, "responses")),
            keep_connection: *keep_connection,
        };
        let schedule = self.schedule(flow, start, *think_ns, *exchanges);
        let [server, client] = self.tcp_hosts(flow, id, [server, client]);
        let server = Server::new(server, config.clone());
        [server.into(), Client::new(client, config, schedule).into()]
    }

    fn video(&self, flow: &Flow, id: FlowId, start: Instant) -> [Node; 2] {
        let Workload::Video { media, request_bytes, server, client } = &flow.workload else {
            unreachable!("the caller checked the kind");
        };
        let config = ExchangeConfig {
            request_bytes: *request_bytes,
            response_bytes: ResponseSizes::Segments(SegmentSizes::new(media)),
            keep_connection: true,
        };
        let think_ns = Draw::Constant { value: 0 };
        let schedule = self.schedule(flow, start, think_ns, Some(media.segments()));
        let [server, client] = self.tcp_hosts(flow, id, [server, client]);
        let server = Server::new(server, config.clone());
        let player = Player::new(media, start);
        [server.into(), Client::new(client, config, schedule).with_player(player).into()]
    }

    fn pages(&self, flow: &Flow, page: &WebPage, id: FlowId, start: Instant) -> [Node; 2] {
        let stream = |part: &str| self.stream(flow, part);
        let config = PageConfig {
            request_bytes: page.request_bytes,
            http: page.http,
            connections: page.connections,
            tls: page.tls,
            dns: page.dns,
            draws: PageDraws {
                objects: Draws::new(page.objects, stream("objects")),
                document_bytes: Draws::new(page.document_bytes, stream("documents")),
                object_bytes: page.object_bytes,
                seeds: stream("pages"),
            },
        };
        let schedule = self.schedule(flow, start, page.think_ns, page.pages);
        let [server, client] = self.tcp_hosts(flow, id, [&page.server, &page.client]);
        let server = WebServer::new(server, config.clone());
        [server.into(), WebClient::new(client, config, schedule).into()]
    }

    fn schedule(
        &self,
        flow: &Flow,
        start: Instant,
        think_ns: Draw,
        count: Option<u64>,
    ) -> Schedule {
        Schedule {
            start,
            end: Instant::from_nanos(self.plan.stop_ns),
            think_ns: Draws::new(think_ns, self.stream(flow, "think")),
            count,
        }
    }

    /// The hosts of a server and a client.
    fn tcp_hosts(&self, flow: &Flow, id: FlowId, [server, client]: [&Tcp; 2]) -> [Host; 2] {
        let host = |tcp: &Tcp, part: &str, origin: Origin| Host {
            config: tcp.config(),
            peer: peer(id, origin),
            class: Class(flow.priority),
            initials: self.stream(flow, part),
            cycles: self.stream(flow, &format!("{part}.cycle")),
            flow: id,
        };
        [host(server, "server", Origin::Sender), host(client, "client", Origin::Receiver)]
    }

    /// The station of the end that sends in a direction.
    fn station(&self, flow: &Flow, heading: Heading, node: NodeId) -> Station {
        let (gateway, choice, side) = match heading {
            Heading::Forward => (HUB, flow.world_host, "world_host"),
            Heading::Return => (1 + flow.terminal, flow.island_host, "island_host"),
        };
        let host = choice.map(|choice| match choice {
            HostChoice::Named { host } => host,
            HostChoice::Random => {
                let (first, count) = self.hosts_behind[gateway as usize];
                first + self.stream(flow, side).below(count.into()) as u32
            }
        });
        Station { port: (node, NET), gateway, host, from_host: None }
    }

    /// The reflector of a conference, shared by its participants.
    fn reflector(&mut self, number: u32, mut add: impl FnMut(Node) -> NodeId) -> NodeId {
        *self.reflectors.entry(number).or_insert_with(|| {
            let flows = (0..).map(FlowId).zip(&self.plan.flows);
            let of_it = flows.filter(|(_, flow)| match &flow.workload {
                Workload::Conference { conference, .. } => *conference == number,
                Workload::Bulk { .. }
                | Workload::ConstantRate { .. }
                | Workload::Voice { .. }
                | Workload::RequestResponse { .. }
                | Workload::Video { .. }
                | Workload::WebPage(_)
                | Workload::Channel(_) => false,
            });
            let participants = of_it.map(|(id, flow)| Member {
                flow: id,
                address: peer(id, Origin::Receiver),
                class: Class(flow.priority),
            });
            add(Reflector::new(participants).into())
        })
    }
}

/// The address of an end of a flow. The two ends have consecutive addresses; one engine can have
/// several.
pub(crate) fn address(flow: FlowId, end: Origin) -> Address {
    match end {
        Origin::Sender => Address(2 * flow.0),
        Origin::Receiver => Address(2 * flow.0 + 1),
    }
}

/// The address of the other end of a flow.
fn peer(flow: FlowId, own: Origin) -> Address {
    address(flow, own.opposite())
}

fn source(
    flow: &Flow,
    id: FlowId,
    rate_bps: u64,
    payload_bytes: u32,
    [start, end]: [Instant; 2],
) -> ConstantRate {
    let source = ConstantRate::new(id, BitRate(rate_bps), payload_bytes, start, end);
    source.toward(peer(id, Origin::Sender), Class(flow.priority))
}
