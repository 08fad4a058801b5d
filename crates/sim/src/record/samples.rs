//! The tables `flow_samples` and `datagram_samples`: flows over time.

use bentpipe_core::graph::Graph;
use bentpipe_core::packet::FlowId;
use bentpipe_core::tcp::Sender;
use bentpipe_core::tcp::congestion::Control;
use bentpipe_core::time::{Duration, Instant};

use super::flows::{Conferences, datagram_ends};
use super::{Cell, ColumnSchema, Table, TableSchema};
use crate::build::Ends;
use crate::node::Node;

type Column = ColumnSchema;

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
            let [sender, receiver] =
                [ends.sender, ends.receiver].map(|node| graph.engine(node).end());
            let (Some(sending), Some(receiving)) = (sender.tcp(), receiver.tcp()) else { continue };
            let sender = sender.sender();
            let control = sender.map(Sender::control);
            let row: [Cell; 8] = [
                now.as_nanos().into(),
                flow.into(),
                control.map_or(0, Control::cwnd).into(),
                control.and_then(Control::ssthresh).into(),
                sender.and_then(|sender| sender.rtt().srtt()).map(Duration::as_nanos).into(),
                sender.map_or(0, Sender::in_flight).into(),
                sending.stream_bytes().acked.into(),
                receiving.stream_bytes().delivered.into(),
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

/// Memory of a row of samples of a TCP flow.
pub(crate) fn flow_sample_bytes() -> u64 {
    FlowSamples::new().0.row_bytes()
}

pub(super) fn datagram_samples_schema() -> TableSchema {
    TableSchema {
        name: "datagram_samples",
        row: "one flow of datagrams at one time",
        columns: vec![
            Column::u64("time_ns", "ns", "Time of the sample, from the start of the run."),
            Column::u32("flow", "index", "Index of the flow in the plan."),
            Column::u64(
                "expected_segments",
                "segments",
                "Datagrams sent to the receiver so far; in a conference, by the others.",
            ),
            Column::u64("received_segments", "segments", "Datagrams received so far."),
            Column::u64("delivered_bytes", "application bytes", "Delivered so far."),
            Column::u64("lost_packets", "packets", "Lost so far on the way to the receiver.")
                .nullable(),
            Column::u64(
                "one_way_delay_sum_ns",
                "ns",
                "Sum of the delays of the datagrams received so far.",
            ),
            Column::u64("jitter_ns", "ns", "Interarrival jitter (RFC 3550, section 6.4.1).")
                .nullable(),
            Column::u64(
                "late_packets",
                "packets",
                "Datagrams so far that arrived after the play-out delay. Null unless the flow is voice.",
            )
            .nullable(),
            Column::u64(
                "loss_bursts",
                "events",
                "Bursts of lost or late datagrams so far. Null unless the flow is voice.",
            )
            .nullable(),
        ],
    }
}

/// The `datagram_samples` table, and the flows that it has rows of.
pub(crate) struct DatagramSamples {
    table: Table,
    flows: Vec<(FlowId, Ends)>,
}

impl DatagramSamples {
    pub(crate) fn new(graph: &Graph<Node>, flows: &[Ends]) -> Self {
        let has_datagrams = |(_, ends): &(FlowId, Ends)| datagram_ends(graph, *ends).is_some();
        let flows = (0..).map(FlowId).zip(flows.iter().copied()).filter(has_datagrams);
        Self { table: Table::new(datagram_samples_schema()), flows: flows.collect() }
    }

    /// Adds a row for each flow of datagrams.
    pub(crate) fn push(&mut self, now: Instant, graph: &Graph<Node>) {
        let flows = self.flows.iter().map(|(flow, ends)| (*flow, ends));
        let conferences = Conferences::of(graph, flows);
        for (flow, ends) in &self.flows {
            let Some((source, sink)) = datagram_ends(graph, *ends) else { continue };
            let sent = source.datagrams();
            let (expected, lost) = conferences.to_receiver(*flow, ends, sent, graph.drops());
            let play_out = sink.play_out();
            let row: [Cell; 10] = [
                now.as_nanos().into(),
                u64::from(flow.0).into(),
                expected.into(),
                sink.received().packets.into(),
                sink.payload_bytes().into(),
                lost.iter().sum::<u64>().into(),
                sink.delays().0.as_nanos().into(),
                sink.jitter().map(Duration::as_nanos).into(),
                play_out.map(|play_out| play_out.late()).into(),
                play_out.map(|play_out| play_out.bursts()).into(),
            ];
            self.table.push(row);
        }
    }

    pub(crate) fn rows(&self) -> u64 {
        self.table.len() as u64
    }

    pub(crate) fn table(self) -> Table {
        self.table
    }
}

/// Memory of a row of samples of a flow of datagrams.
pub(crate) fn datagram_sample_bytes() -> u64 {
    Table::new(datagram_samples_schema()).row_bytes()
}
