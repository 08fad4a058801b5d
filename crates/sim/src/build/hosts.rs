//! The two ends of each flow.

use bentpipe_core::packet::{FlowId, Maker};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::Endpoint;
use bentpipe_core::tcp::seq::Wire;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::NodeId;
use bentpipe_core::units::BitRate;

use super::Ends;
use crate::plan::{Amount, Flow, Tcp, Workload};
use crate::workload::{BulkReceiver, BulkSender, ConstantRate, DatagramSink, Node, Until};

/// Makes the hosts of a plan, flow by flow.
pub(super) struct Hosts {
    seed: u64,
}

impl Hosts {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Adds both ends of a flow.
    pub(super) fn add(
        &mut self,
        flow: &Flow,
        id: FlowId,
        mut add: impl FnMut(Node) -> NodeId,
    ) -> Ends {
        let start = Instant::from_nanos(flow.start_ns);
        let (sender, receiver) = match &flow.workload {
            Workload::Bulk { amount, sender, receiver } => {
                let [sender, receiver] = self.bulk(flow, id, *amount, [sender, receiver]);
                (add(sender), add(receiver))
            }
            Workload::ConstantRate { rate_bps, payload_bytes, duration_ns } => {
                let end = start + Duration::from_nanos(*duration_ns);
                let source = ConstantRate::new(id, BitRate(*rate_bps), *payload_bytes, start, end);
                let sink = DatagramSink::default();
                (add(Node::ConstantRate(Box::new(source))), add(Node::DatagramSink(Box::new(sink))))
            }
            Workload::RequestResponse { .. } | Workload::Conference { .. } => {
                unreachable!("refused with the plan")
            }
        };
        Ends { terminal: flow.terminal, sender, receiver, start }
    }

    fn bulk(&self, flow: &Flow, id: FlowId, amount: Amount, tcp: [&Tcp; 2]) -> [Node; 2] {
        let start = Instant::from_nanos(flow.start_ns);
        let until = match amount {
            Amount::Bytes(bytes) => Until::Bytes(bytes),
            Amount::DurationNs(nanos) => Until::Time(start + Duration::from_nanos(nanos)),
        };
        let mut rng = Rng::stream(self.seed, &format!("flow.{}", flow.name));
        let mut endpoint = |tcp: &Tcp, maker| {
            // RFC 9293, 3.4.1: a host starts anywhere; so the wrap is met in ordinary runs.
            let initial = u32::try_from(rng.next_u64() >> 32).expect("32 bits");
            Endpoint::new(tcp.config(), id, maker, Wire(initial))
        };
        let [sender, receiver] = tcp;
        let sending = BulkSender::new(endpoint(sender, Maker::Sender), start, until);
        let receiving = BulkReceiver::new(endpoint(receiver, Maker::Receiver));
        [Node::BulkSender(Box::new(sending)), Node::BulkReceiver(Box::new(receiving))]
    }
}
