//! The table `flows`.

use std::collections::BTreeMap;

use bentpipe_core::drop_counts::{ByCause, DropCounts};
use bentpipe_core::graph::Graph;
use bentpipe_core::packet::{FlowId, LimitedBy, Origin};
use bentpipe_core::play_out::PlayOut;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, NodeId};

use super::link::meaning_of;
use super::{Cell, ColumnSchema, Table, TableSchema};
use crate::build::Ends;
use crate::node::Node;
use crate::workload::{ConstantRate, DatagramSink, FlowEnd, Playback, Totals};

type Column = ColumnSchema;

/// A row of `flows`. What a workload does not have keeps its default: counts are 0, all else is `None`.
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
    retransmitted_bytes: u64,
    timeouts: u64,
    fast_recoveries: u64,
    tail_loss_probes: u64,
    spurious_timeouts: u64,
    spurious_recoveries: u64,
    acks_sent: u64,
    received_segments: u64,
    expected_segments: Option<u64>,
    rtt_min: Option<Duration>,
    rtt_mean_ns: Option<f64>,
    delay_mean_ns: Option<f64>,
    delay_percentiles: [Option<Duration>; PERCENTILES.len()],
    delay_max: Option<Duration>,
    jitter: Option<Duration>,
    jitter_mean: Option<Duration>,
    play_out: Option<PlayOut>,
    exchanges: u64,
    playback: Option<Playback>,
    limit_times: Option<[Duration; LimitedBy::OF_SENDER]>,
    lost: ByCause,
}

/// The percentiles of the delays of datagrams.
const PERCENTILES: [u64; 3] = [50, 95, 99];

#[expect(clippy::cast_precision_loss, reason = "a mean")]
pub(super) fn mean_ns(sum: Duration, count: u64) -> Option<f64> {
    (count > 0).then(|| sum.as_nanos() as f64 / count as f64)
}

/// The state of a TCP flow at a time: the totals of its two ends, and when it finished.
pub(super) struct TcpFlow {
    pub(super) sender: Totals,
    pub(super) receiver: Totals,
    pub(super) finished: Option<Instant>,
}

impl TcpFlow {
    /// The flow at `now`; `None` if it is not one of TCP.
    pub(super) fn of(graph: &Graph<Node>, ends: Ends, now: Instant) -> Option<Self> {
        let [end_of_sender, end_of_receiver] =
            [ends.sender, ends.receiver].map(|node| graph.engine(node).end());
        let sender = end_of_sender.tcp()?.totals(now);
        let receiver = end_of_receiver.tcp()?.totals(now);
        let finished = match end_of_sender.finished() {
            // A bulk transfer. A PEP acknowledges data before they are delivered: wait for that, too.
            Some(last_ack) => (receiver.delivered_bytes == sender.sent_bytes)
                .then(|| last_ack.max(receiver.last_delivery.unwrap_or(last_ack))),
            // Not yet, or what a client asks for, which is finished at the receiver.
            None => end_of_receiver.finished(),
        };
        Some(Self { sender, receiver, finished })
    }

    /// The time for which each limit applied to the sender, from the start of the flow until it finished, or
    /// until the run ends. The sender counts from its first SYN on, so that what it does not count belongs to
    /// the application, as does the time without a connection. It counts after the end, too, for instance the
    /// recovery of a lost FIN, which is then missing from the time of the application.
    fn limit_times(&self, start: Instant, run_end: Instant) -> [Duration; LimitedBy::OF_SENDER] {
        let mut times = self.sender.limit_times;
        let mut idle = self.finished.unwrap_or(run_end).saturating_since(start);
        // The first is the application.
        for time in &times[1..] {
            idle = idle.saturating_sub(*time);
        }
        times[LimitedBy::Application as usize] = idle;
        times
    }
}

/// The row of a TCP flow.
fn tcp(TcpFlow { sender, receiver, finished }: TcpFlow) -> Row {
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
        retransmitted_bytes: sender.counters.retransmitted_bytes,
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
        ..Row::default()
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
        expected_segments: Some(source.datagrams()),
        delay_mean_ns: mean_ns(delay_sum, received),
        delay_percentiles: PERCENTILES.map(|percent| sink.delay_histogram().percentile(percent)),
        delay_max: (received > 0).then_some(delay_max),
        jitter: sink.jitter(),
        jitter_mean: sink.jitter_mean(),
        play_out: sink.play_out().copied(),
        ..Row::default()
    }
}

/// The datagrams that all participants of a conference sent, and those lost on the way to the
/// reflector. A datagram lost there is lost for every other participant.
#[derive(Clone, Copy, Debug, Default)]
struct Conference {
    sent: u64,
    lost: ByCause,
}

/// The conferences, by their reflectors: the receivers of the flows of all participants.
pub(super) struct Conferences(BTreeMap<NodeId, Conference>);

impl Conferences {
    /// The conferences of some flows so far.
    pub(super) fn of<'a>(
        graph: &Graph<Node>,
        flows: impl IntoIterator<Item = (FlowId, &'a Ends)>,
    ) -> Self {
        let mut conferences = BTreeMap::<NodeId, Conference>::new();
        for (flow, ends) in flows {
            let end = graph.engine(ends.sender).end();
            // An end that both sends and receives is a participant.
            if let (Some(source), Some(_)) = (end.source(), end.sink()) {
                let conference = conferences.entry(ends.receiver).or_default();
                conference.sent += source.datagrams();
                let lost = graph.drops().packets(flow, Origin::Sender);
                conference.lost = combine(conference.lost, lost, u64::saturating_add);
            }
        }
        Self(conferences)
    }

    /// The datagrams that the receiver of a flow should have received, and those lost on the way: `sent` ones of
    /// the flow's sender. In a conference they are those of the other participants: all of theirs up to the
    /// reflector, and this participant's copies from there. Both sums have its own, so no difference is negative.
    pub(super) fn to_receiver(
        &self,
        flow: FlowId,
        ends: &Ends,
        sent: u64,
        drops: &DropCounts,
    ) -> (u64, ByCause) {
        let own = drops.packets(flow, Origin::Sender);
        let Some(conference) = self.0.get(&ends.receiver) else { return (sent, own) };
        let of_others = combine(conference.lost, own, u64::saturating_sub);
        let from_reflector = drops.packets(flow, Origin::Receiver);
        (conference.sent - sent, combine(of_others, from_reflector, u64::saturating_add))
    }
}

fn combine(one: ByCause, other: ByCause, how: fn(u64, u64) -> u64) -> ByCause {
    std::array::from_fn(|cause| how(one[cause], other[cause]))
}

/// The source and the sink of a flow of datagrams; `None` if it is one of TCP.
pub(super) fn datagram_ends(
    graph: &Graph<Node>,
    ends: Ends,
) -> Option<(&ConstantRate, &DatagramSink)> {
    let [sender, receiver] = [ends.sender, ends.receiver].map(|node| graph.engine(node).end());
    Some((sender.source()?, receiver.sink().or_else(|| sender.sink())?))
}

pub(crate) fn flows_table(graph: &Graph<Node>, flows: &[Ends], end: Instant) -> Table {
    let mut table = Table::new(flows_schema());
    let conferences = Conferences::of(graph, (0..).map(FlowId).zip(flows));
    for (flow, ends) in (0..).map(FlowId).zip(flows) {
        let mut row = row_of(graph, *ends, end);
        let sent = row.sent_segments;
        let (expected, lost) = conferences.to_receiver(flow, ends, sent, graph.drops());
        // `None` of TCP stays so.
        row.expected_segments = row.expected_segments.map(|_| expected);
        row.lost = lost;
        table.push(row.cells(flow, *ends));
    }
    table
}

fn row_of(graph: &Graph<Node>, ends: Ends, end: Instant) -> Row {
    if let Some(flow) = TcpFlow::of(graph, ends, end) {
        let receiver = graph.engine(ends.receiver).end();
        let (exchanges, playback) = (receiver.finished_exchanges(), receiver.playback(end));
        // The connections of a page are limited by different causes at the same time, which are no parts of it.
        let limit_times = (!receiver.is_parallel()).then(|| flow.limit_times(ends.start, end));
        return Row { exchanges, playback, limit_times, ..tcp(flow) };
    }
    let (source, sink) =
        datagram_ends(graph, ends).expect("both ends have TCP, or both have datagrams");
    datagrams(source, sink)
}

impl Row {
    /// The cells in the order of [`flows_schema`].
    fn cells(self, flow: FlowId, ends: Ends) -> impl IntoIterator<Item = Cell> {
        let row = self;
        let at = |instant: Option<Instant>| instant.map(Instant::as_nanos);
        let long = |duration: Option<Duration>| duration.map(Duration::as_nanos);
        let times = (0..LimitedBy::OF_SENDER)
            .map(move |limit| long(row.limit_times.map(|times| times[limit])).into());
        let first: [Cell; 39] = [
            u64::from(flow.0).into(),
            u64::from(ends.terminal).into(),
            ends.start.as_nanos().into(),
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
            row.retransmitted_bytes.into(),
            row.timeouts.into(),
            row.fast_recoveries.into(),
            row.tail_loss_probes.into(),
            row.spurious_timeouts.into(),
            row.spurious_recoveries.into(),
            row.acks_sent.into(),
            row.received_segments.into(),
            row.expected_segments.into(),
            long(row.rtt_min).into(),
            row.rtt_mean_ns.into(),
            row.delay_mean_ns.into(),
            long(row.delay_percentiles[0]).into(),
            long(row.delay_percentiles[1]).into(),
            long(row.delay_percentiles[2]).into(),
            long(row.delay_max).into(),
            long(row.jitter).into(),
            long(row.jitter_mean).into(),
            long(row.play_out.and_then(|play_out| play_out.delay())).into(),
            row.play_out.map(|play_out| play_out.late()).into(),
            row.play_out.map(|play_out| play_out.bursts()).into(),
            row.exchanges.into(),
            long(row.playback.and_then(|playback| playback.start_up)).into(),
            row.playback.map(|playback| playback.stalls).into(),
            long(row.playback.map(|playback| playback.stalled)).into(),
            long(row.playback.map(|playback| playback.played)).into(),
        ];
        first.into_iter().chain(times).chain(row.lost.map(Cell::from))
    }
}

pub(super) fn flows_schema() -> TableSchema {
    let mut columns = times_and_bytes();
    columns.extend(segments());
    columns.extend(round_trips_and_delays());
    columns.extend(jitter_buffer());
    columns.push(Column::u64(
        "exchanges",
        "exchanges",
        "Finished exchanges, connections of a channel, pages, or segments of a video; 0 for other workloads.",
    ));
    columns.extend(playback());
    columns.extend(LimitedBy::ALL[..LimitedBy::OF_SENDER].iter().map(limited_time));
    columns.extend(DropCause::ALL.map(lost_packets));
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
            "Bulk: last byte acknowledged. Datagrams: last one sent. Exchanges, pages, segments: last one finished.",
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

fn lost_packets(cause: DropCause) -> ColumnSchema {
    let meaning = format!("Lost on the way to the receiver: {}.", meaning_of(cause));
    Column::u64(format!("lost_{}_packets", cause.name()), "packets", meaning)
}

/// The column of the time for which a limit applied to the sender.
fn limited_time(limit: &LimitedBy) -> ColumnSchema {
    let what = match limit {
        LimitedBy::Application => "nothing was left to send",
        LimitedBy::Handshake => "data waited for the handshake",
        LimitedBy::ReceiveWindow => "the receiver's window stopped the sender",
        LimitedBy::SendBuffer => "the send buffer stopped the sender",
        LimitedBy::SlowStart => "the congestion window stopped the sender, in slow start",
        LimitedBy::CongestionAvoidance => {
            "the congestion window or the pacer stopped the sender, after slow start"
        }
        LimitedBy::Recovery => "the sender recovered from losses",
        LimitedBy::Gateway | LimitedBy::AccessLine => unreachable!("not a limit of a sender"),
    };
    let name = format!("{}_limited_ns", limit.name());
    Column::u64(name, "ns", format!("Time for which {what}. Null for UDP and web pages."))
        .nullable()
}

fn segments() -> Vec<ColumnSchema> {
    vec![
        Column::u64(
            "sent_segments",
            "segments",
            "Data segments or datagrams sent, retransmissions included.",
        ),
        Column::u64("retransmitted_segments", "segments", "Retransmitted data segments."),
        Column::u64(
            "retransmitted_bytes",
            "application bytes",
            "Payload of the retransmitted segments.",
        )
        .nullable(),
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
        Column::u64(
            "expected_segments",
            "segments",
            "Datagrams sent to the receiver; in a conference, by the others. Null for TCP.",
        )
        .nullable(),
    ]
}

/// The column of a percentile of one-way delays.
fn percentile(name: &'static str, percent: u64) -> ColumnSchema {
    let meaning = format!("{percent}th percentile of the delays of datagrams. Null for TCP.");
    Column::u64(name, "ns", meaning).nullable()
}

fn round_trips_and_delays() -> Vec<ColumnSchema> {
    let [p50, p95, p99] = PERCENTILES;
    vec![
        Column::u64("rtt_min_ns", "ns", "Minimum of the sender's round-trip samples.").nullable(),
        Column::f64("rtt_mean_ns", "ns", "Mean of the sender's round-trip samples.").nullable(),
        Column::f64(
            "one_way_delay_mean_ns",
            "ns",
            "Mean delay of data packets from sender to receiver.",
        )
        .nullable(),
        percentile("one_way_delay_p50_ns", p50),
        percentile("one_way_delay_p95_ns", p95),
        percentile("one_way_delay_p99_ns", p99),
        Column::u64(
            "one_way_delay_max_ns",
            "ns",
            "Maximum delay of data packets from sender to receiver.",
        )
        .nullable(),
        Column::u64(
            "jitter_ns",
            "ns",
            "Interarrival jitter after the last datagram (RFC 3550, section 6.4.1). Null for TCP.",
        )
        .nullable(),
        Column::u64(
            "jitter_mean_ns",
            "ns",
            "Mean difference of the delays of successive datagrams (RFC 3611, section 4.6). Null for TCP.",
        )
        .nullable(),
    ]
}

fn jitter_buffer() -> Vec<ColumnSchema> {
    vec![
        Column::u64(
            "play_out_delay_ns",
            "ns",
            "Delay of the first datagram plus the jitter buffer. Null unless the flow is voice.",
        )
        .nullable(),
        Column::u64(
            "late_packets",
            "packets",
            "Datagrams that arrived after the play-out delay. Null unless the flow is voice.",
        )
        .nullable(),
        Column::u64(
            "loss_bursts",
            "events",
            "Bursts of lost or late datagrams. Null unless the flow is voice.",
        )
        .nullable(),
    ]
}

fn playback() -> Vec<ColumnSchema> {
    vec![
        Column::u64(
            "start_up_time_ns",
            "ns",
            "Time from the start of a video to its first frame. Null without one.",
        )
        .nullable(),
        Column::u64("stalls", "events", "Stalls of a video. Null for other workloads.").nullable(),
        Column::u64("stalled_ns", "ns", "Time of the stalls. Null unless the flow is a video.")
            .nullable(),
        Column::u64("played_ns", "ns", "Media that was played. Null unless the flow is a video.")
            .nullable(),
    ]
}
