//! The tables `flows` and `flow_samples`.

use bentpipe_core::graph::Graph;
use bentpipe_core::tcp::Sender;
use bentpipe_core::tcp::congestion::Control;
use bentpipe_core::time::{Duration, Instant};

use super::{Cell, ColumnSchema, Table, TableSchema};
use crate::build::Ends;
use crate::node::Node;
use crate::workload::{ConstantRate, DatagramSink, Totals};

type Column = ColumnSchema;

/// A row of `flows`; values that a workload does not have keep their defaults.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    established: Option<Instant>,
    last_ack: Option<Instant>,
    finished: Option<Instant>,
    sent_bytes: u64,
    acked_bytes: u64,
    delivered_bytes: u64,
    first_delivery: Option<Instant>,
    last_delivery: Option<Instant>,
    sent_segments: u64,
    retransmitted_segments: u64,
    timeouts: u64,
    fast_recoveries: u64,
    tail_loss_probes: u64,
    spurious_timeouts: u64,
    spurious_recoveries: u64,
    acks_sent: u64,
    received_segments: u64,
    rtt_min: Option<Duration>,
    rtt_mean_ns: Option<f64>,
    delay_mean_ns: Option<f64>,
    delay_max: Option<Duration>,
    exchanges: u64,
}

#[expect(clippy::cast_precision_loss, reason = "a mean")]
fn mean_ns(sum: Duration, count: u64) -> Option<f64> {
    (count > 0).then(|| sum.as_nanos() as f64 / count as f64)
}

/// The row of a TCP flow.
fn tcp(sender: &Totals, receiver: &Totals, finished: Option<Instant>) -> Row {
    let received = receiver.data_segments_received;
    Row {
        established: sender.established,
        last_ack: sender.last_ack,
        finished,
        sent_bytes: sender.sent_bytes,
        acked_bytes: sender.acked_bytes,
        delivered_bytes: receiver.delivered_bytes,
        first_delivery: receiver.first_delivery,
        last_delivery: receiver.last_delivery,
        sent_segments: sender.counters.segments,
        retransmitted_segments: sender.counters.retransmitted_segments,
        timeouts: sender.counters.timeouts,
        fast_recoveries: sender.counters.fast_recoveries,
        tail_loss_probes: sender.counters.tail_loss_probes,
        spurious_timeouts: sender.counters.spurious_timeouts,
        spurious_recoveries: sender.counters.spurious_recoveries,
        acks_sent: receiver.acks_sent,
        received_segments: received,
        rtt_min: sender.rtt_min,
        rtt_mean_ns: mean_ns(sender.rtt_sum, sender.rtt_samples),
        delay_mean_ns: mean_ns(receiver.one_way_delay_sum, received),
        delay_max: (received > 0).then_some(receiver.one_way_delay_max),
        exchanges: 0,
    }
}

fn datagrams(source: &ConstantRate, sink: &DatagramSink) -> Row {
    let received = sink.received().packets;
    let (delay_sum, delay_max) = sink.delays();
    let (first_delivery, last_delivery) = sink.span();
    Row {
        finished: source.finished(),
        sent_bytes: source.payload_bytes(),
        delivered_bytes: sink.payload_bytes(),
        first_delivery,
        last_delivery,
        sent_segments: source.datagrams(),
        received_segments: received,
        delay_mean_ns: mean_ns(delay_sum, received),
        delay_max: (received > 0).then_some(delay_max),
        ..Row::default()
    }
}

pub(crate) fn flows_table(graph: &Graph<Node>, flows: &[Ends]) -> Table {
    let mut table = Table::new(flows_schema());
    for (flow, &Ends { terminal, sender, receiver, start }) in (0u64..).zip(flows) {
        let row = match (graph.engine(sender), graph.engine(receiver)) {
            (Node::BulkSender(sender), Node::BulkReceiver(receiver)) => {
                let finished = sender.finished();
                tcp(&Totals::of(sender.endpoint()), &Totals::of(receiver.endpoint()), finished)
            }
            (Node::Server(server), Node::Client(client)) => Row {
                exchanges: client.finished_exchanges(),
                ..tcp(&server.totals(), &client.totals(), client.finished())
            },
            (Node::Participant(participant), Node::Reflector(_)) => {
                datagrams(participant.source(), participant.sink())
            }
            (Node::ConstantRate(source), Node::DatagramSink(sink)) => datagrams(source, sink),
            _ => unreachable!("both ends of a flow have the same workload"),
        };
        let at = |instant: Option<Instant>| instant.map(Instant::as_nanos);
        let long = |duration: Option<Duration>| duration.map(Duration::as_nanos);
        let row: [Cell; 25] = [
            flow.into(),
            u64::from(terminal).into(),
            start.as_nanos().into(),
            at(row.established).into(),
            at(row.last_ack).into(),
            at(row.finished).into(),
            row.sent_bytes.into(),
            row.acked_bytes.into(),
            row.delivered_bytes.into(),
            at(row.first_delivery).into(),
            at(row.last_delivery).into(),
            row.sent_segments.into(),
            row.retransmitted_segments.into(),
            row.timeouts.into(),
            row.fast_recoveries.into(),
            row.tail_loss_probes.into(),
            row.spurious_timeouts.into(),
            row.spurious_recoveries.into(),
            row.acks_sent.into(),
            row.received_segments.into(),
            long(row.rtt_min).into(),
            row.rtt_mean_ns.into(),
            row.delay_mean_ns.into(),
            long(row.delay_max).into(),
            row.exchanges.into(),
        ];
        table.push(row);
    }
    table
}

pub(super) fn flows_schema() -> TableSchema {
    let mut columns = times_and_bytes();
    columns.extend(segments_and_delays());
    TableSchema { name: "flows", row: "one flow over the whole run", columns }
}

fn times_and_bytes() -> Vec<ColumnSchema> {
    let app = "application bytes";
    vec![
        Column::u32("flow", "index", "Index of the flow in the plan."),
        Column::u32("terminal", "index", "Terminal of the flow, from 0."),
        Column::u64("start_ns", "ns", "Start of the flow."),
        Column::u64("established_ns", "ns", "End of the handshake, at the sender.").nullable(),
        Column::u64("last_ack_ns", "ns", "Arrival of the last acknowledgement of new data.")
            .nullable(),
        Column::u64(
            "finished_ns",
            "ns",
            "Bulk: last byte acknowledged. Datagrams: last one sent. Exchanges: last one finished.",
        )
        .nullable(),
        Column::u64("sent_bytes", app, "Sent, without retransmissions."),
        Column::u64("acked_bytes", app, "Acknowledged to the sender."),
        Column::u64(
            "delivered_bytes",
            app,
            "Delivered in order to the receiver; in a conference, to this participant.",
        ),
        Column::u64("first_delivery_ns", "ns", "First delivery to the receiver.").nullable(),
        Column::u64("last_delivery_ns", "ns", "Last delivery to the receiver.").nullable(),
    ]
}

fn segments_and_delays() -> Vec<ColumnSchema> {
    vec![
        Column::u64(
            "sent_segments",
            "segments",
            "Data segments or datagrams sent, retransmissions included.",
        ),
        Column::u64("retransmitted_segments", "segments", "Retransmitted data segments."),
        Column::u64("timeouts", "events", "Retransmission timeouts."),
        Column::u64("fast_recoveries", "events", "Entries into fast recovery."),
        Column::u64("tail_loss_probes", "segments", "Tail loss probes sent (RFC 8985)."),
        Column::u64("spurious_timeouts", "events", "Timeouts found spurious and undone."),
        Column::u64("spurious_recoveries", "events", "Fast recoveries found spurious and undone."),
        Column::u64("acks_sent", "segments", "Pure acknowledgements sent by the receiver."),
        Column::u64(
            "received_segments",
            "segments",
            "Data segments or datagrams that arrived at the receiver.",
        ),
        Column::u64("rtt_min_ns", "ns", "Minimum of the sender's round-trip samples.").nullable(),
        Column::f64("rtt_mean_ns", "ns", "Mean of the sender's round-trip samples.").nullable(),
        Column::f64(
            "one_way_delay_mean_ns",
            "ns",
            "Mean delay of data packets from sender to receiver.",
        )
        .nullable(),
        Column::u64(
            "one_way_delay_max_ns",
            "ns",
            "Maximum delay of data packets from sender to receiver.",
        )
        .nullable(),
        Column::u64("exchanges", "exchanges", "Finished exchanges; 0 for other workloads."),
    ]
}

pub(super) fn flow_samples_schema() -> TableSchema {
    let app = "application bytes";
    TableSchema {
        name: "flow_samples",
        row: "one TCP flow at one time",
        columns: vec![
            Column::u64("time_ns", "ns", "Time of the sample, from the start of the run."),
            Column::u32("flow", "index", "Index of the flow in the plan."),
            Column::u64("cwnd_bytes", app, "Congestion window."),
            Column::u64(
                "ssthresh_bytes",
                app,
                "Slow start threshold; null until the first congestion event.",
            )
            .nullable(),
            Column::u64("srtt_ns", "ns", "Smoothed round-trip time (RFC 6298).").nullable(),
            Column::u64("in_flight_bytes", app, "In flight, as the sender estimates it."),
            Column::u64("acked_bytes", app, "Acknowledged so far."),
            Column::u64("delivered_bytes", app, "Delivered in order so far."),
        ],
    }
}

/// The `flow_samples` table.
pub(crate) struct FlowSamples(Table);

impl FlowSamples {
    pub(crate) fn new() -> Self {
        Self(Table::new(flow_samples_schema()))
    }

    /// Adds a row for each TCP flow. The congestion window is that of the newest connection, or 0
    /// if that is closed.
    pub(crate) fn push(&mut self, now: Instant, graph: &Graph<Node>, flows: &[Ends]) {
        for (flow, ends) in (0u64..).zip(flows) {
            let (sender, acked, delivered) =
                match (graph.engine(ends.sender), graph.engine(ends.receiver)) {
                    (Node::BulkSender(sender), Node::BulkReceiver(receiver)) => {
                        let sender = sender.endpoint().sender();
                        let delivered = receiver.endpoint().receiver().delivered();
                        (Some(sender), sender.acked_bytes(), delivered)
                    }
                    (Node::Server(server), Node::Client(client)) => {
                        let acked = server.totals().acked_bytes;
                        (server.sender(), acked, client.totals().delivered_bytes)
                    }
                    _ => continue,
                };
            let control = sender.map(Sender::control);
            let row: [Cell; 8] = [
                now.as_nanos().into(),
                flow.into(),
                control.map_or(0, Control::cwnd).into(),
                control.and_then(Control::ssthresh).into(),
                sender.and_then(|sender| sender.rtt().srtt()).map(Duration::as_nanos).into(),
                sender.map_or(0, Sender::in_flight).into(),
                acked.into(),
                delivered.into(),
            ];
            self.0.push(row);
        }
    }

    pub(crate) fn rows(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn table(self) -> Table {
        self.0
    }
}

/// Memory of a row of samples.
pub(crate) fn flow_sample_bytes() -> u64 {
    FlowSamples::new().0.row_bytes()
}
