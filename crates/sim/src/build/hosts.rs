//! The two ends of each flow.

use std::collections::BTreeMap;

use bentpipe_core::packet::seq::Wire;
use bentpipe_core::packet::{FlowId, Origin};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::Endpoint;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::NodeId;
use bentpipe_core::units::BitRate;

use super::Ends;
use crate::plan::{Amount, Flow, Plan, Tcp, Workload};
use crate::workload::{
    BulkReceiver, BulkSender, Client, ConstantRate, DatagramSink, Draws, Exchanges, Host, Node,
    Participant, Reflector, Schedule, Server, Until,
};

/// Makes the hosts of a plan, flow by flow.
pub(super) struct Hosts<'a> {
    plan: &'a Plan,
    seed: u64,
    /// The reflector of each conference that has begun.
    reflectors: BTreeMap<u32, NodeId>,
}

impl<'a> Hosts<'a> {
    pub(super) fn new(plan: &'a Plan, seed: u64) -> Self {
        Self { plan, seed, reflectors: BTreeMap::new() }
    }

    /// Adds both ends of a flow.
    pub(super) fn add(
        &mut self,
        flow: &Flow,
        id: FlowId,
        mut add: impl FnMut(Node) -> NodeId,
    ) -> Ends {
        let [sender, receiver] = match &flow.workload {
            Workload::Bulk { amount, sender, receiver } => {
                self.bulk(flow, id, *amount, [sender, receiver]).map(&mut add)
            }
            Workload::ConstantRate { rate_bps, payload_bytes, duration_ns } => {
                let source = source(flow, id, *rate_bps, *payload_bytes, *duration_ns);
                let sink = DatagramSink::default();
                [Node::ConstantRate(Box::new(source)), Node::DatagramSink(Box::new(sink))]
                    .map(&mut add)
            }
            Workload::RequestResponse { .. } => self.requests(flow, id).map(&mut add),
            Workload::Conference { conference, rate_bps, payload_bytes, duration_ns } => {
                let source = source(flow, id, *rate_bps, *payload_bytes, *duration_ns);
                let participant = add(Node::Participant(Box::new(Participant::new(source))));
                [participant, self.reflector(*conference, &mut add)]
            }
        };
        let start = Instant::from_nanos(flow.start_ns);
        Ends { terminal: flow.terminal, sender, receiver, start }
    }

    fn bulk(&self, flow: &Flow, id: FlowId, amount: Amount, tcp: [&Tcp; 2]) -> [Node; 2] {
        let start = Instant::from_nanos(flow.start_ns);
        let until = match amount {
            Amount::Bytes(bytes) => Until::Bytes(bytes),
            Amount::DurationNs(nanos) => Until::Time(start + Duration::from_nanos(nanos)),
        };
        let mut rng = Rng::stream(self.seed, &format!("flow.{}", flow.name));
        let mut endpoint = |tcp: &Tcp, origin, part| {
            // RFC 9293, 3.4.1: a host starts anywhere; so the wrap is met in ordinary runs.
            let initial = u32::try_from(rng.next_u64() >> 32).expect("32 bits");
            let chance = self.stream(flow, &format!("{part}.cycle"));
            Endpoint::new(tcp.config(), id, origin, Wire(initial)).with_chance(chance)
        };
        let [sender, receiver] = tcp;
        let sending = BulkSender::new(endpoint(sender, Origin::Sender, "sender"), start, until);
        let receiving = BulkReceiver::new(endpoint(receiver, Origin::Receiver, "receiver"));
        [Node::BulkSender(Box::new(sending)), Node::BulkReceiver(Box::new(receiving))]
    }

    /// A stream of draws for one purpose of a flow.
    fn stream(&self, flow: &Flow, part: &str) -> Rng {
        Rng::stream(self.seed, &format!("flow.{}.{part}", flow.name))
    }

    fn requests(&self, flow: &Flow, id: FlowId) -> [Node; 2] {
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
            unreachable!("the caller looked at the kind");
        };
        let stream = |part: &str| self.stream(flow, part);
        let host = |tcp: &Tcp, part: &str| Host {
            config: tcp.config(),
            initials: stream(part),
            cycles: stream(&format!("{part}.cycle")),
            flow: id,
        };
        let what = Exchanges {
            request_bytes: *request_bytes,
            response_bytes: Draws::new(*response_bytes, stream("responses")),
            keep_connection: *keep_connection,
        };
        let schedule = Schedule {
            start: Instant::from_nanos(flow.start_ns),
            end: Instant::from_nanos(self.plan.stop_ns),
            think_ns: Draws::new(*think_ns, stream("think")),
            count: *exchanges,
        };
        let server = Server::new(host(server, "server"), what.clone());
        let client = Client::new(host(client, "client"), what, schedule);
        [Node::Server(Box::new(server)), Node::Client(Box::new(client))]
    }

    /// The reflector of a conference, which all its participants share.
    fn reflector(&mut self, number: u32, mut add: impl FnMut(Node) -> NodeId) -> NodeId {
        *self.reflectors.entry(number).or_insert_with(|| {
            let flows = (0..).map(FlowId).zip(&self.plan.flows);
            let participants = flows.filter(|(_, flow)| match &flow.workload {
                Workload::Conference { conference, .. } => *conference == number,
                Workload::Bulk { .. }
                | Workload::ConstantRate { .. }
                | Workload::RequestResponse { .. } => false,
            });
            let reflector = Reflector::new(participants.map(|(id, _)| id));
            add(Node::Reflector(Box::new(reflector)))
        })
    }
}

fn source(
    flow: &Flow,
    id: FlowId,
    rate_bps: u64,
    payload_bytes: u32,
    duration_ns: u64,
) -> ConstantRate {
    let start = Instant::from_nanos(flow.start_ns);
    let end = start + Duration::from_nanos(duration_ns);
    ConstantRate::new(id, BitRate(rate_bps), payload_bytes, start, end)
}
