//! Workloads: the engines that generate and consume traffic.

mod bulk;
mod channel;
mod conference;
mod connections;
mod constant_rate;
mod draw;
mod host;
mod player;
mod request_response;
mod talk_spurts;
mod web_page;

use bentpipe_core::tcp::{Endpoint, Sender};
use bentpipe_core::time::Instant;

pub use bentpipe_core::tcp::Totals;
pub use bulk::{BulkReceiver, BulkSender, Until};
pub use channel::{
    ChannelClient, ChannelConfig, ChannelSchedule, ChannelServer, Download, Downloads,
    ServerAddresses, ServiceTimes, SizeTable,
};
pub use conference::{Member, Participant, Reflector};
pub use constant_rate::{ConstantRate, DatagramSink};
pub use draw::Draws;
pub use host::Host;
pub use player::{Moment, Playback, Player, SegmentSizes, replay};
pub use request_response::{Client, Exchange, ExchangeConfig, ResponseSizes, Schedule, Server};
pub use talk_spurts::TalkSpurts;
pub use web_page::{Page, PageConfig, PageDraws, WebClient, WebServer};

/// Application bytes of the streams of an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamBytes {
    /// Sent at least once.
    pub sent: u64,
    /// Acknowledged.
    pub acked: u64,
    /// Arrived in order.
    pub delivered: u64,
}

/// One connection or several, at one end.
pub trait TcpEnd {
    /// All statistics, at `now`.
    fn totals(&self, now: Instant) -> Totals;

    /// The application bytes: they cost less than [`TcpEnd::totals`].
    fn stream_bytes(&self) -> StreamBytes;
}

impl TcpEnd for Endpoint {
    fn totals(&self, now: Instant) -> Totals {
        Totals::of(self, now)
    }

    fn stream_bytes(&self) -> StreamBytes {
        let (sender, receiver) = (self.sender(), self.receiver());
        StreamBytes {
            sent: sender.sent_bytes(),
            acked: sender.acked_bytes(),
            delivered: receiver.delivered(),
        }
    }
}

/// An end of a flow: each tells what the tables of a run have of it. The defaults are those of an end that has nothing of the kind.
pub trait FlowEnd {
    /// Its connections; `None` if it is not one of TCP.
    fn tcp(&self) -> Option<&dyn TcpEnd> {
        None
    }

    /// The sender of the newest connection, if that is open.
    fn sender(&self) -> Option<&Sender> {
        None
    }

    /// Whether directions of the link count their use by its flow.
    fn counts_use(&self) -> bool {
        false
    }

    /// Whether several connections are open at a time.
    fn is_parallel(&self) -> bool {
        false
    }

    /// The source of its datagrams.
    fn source(&self) -> Option<&ConstantRate> {
        None
    }

    /// The sink of datagrams to it.
    fn sink(&self) -> Option<&DatagramSink> {
        None
    }

    /// Whether it records something for each exchange, page or sender.
    fn records(&self) -> bool {
        false
    }

    /// The exchanges that have started, in order.
    fn exchanges(&self) -> &[Exchange] {
        &[]
    }

    /// The pages that have started, in order.
    fn pages(&self) -> &[Page] {
        &[]
    }

    /// The number of finished exchanges or pages.
    fn finished_exchanges(&self) -> u64 {
        0
    }

    /// When the last datagram was sent, the last byte acknowledged, or the last exchange or page finished; `None` if more
    /// will follow.
    fn finished(&self) -> Option<Instant> {
        None
    }

    /// What the viewer of a video has seen at `now`.
    fn playback(&self, _now: Instant) -> Option<Playback> {
        None
    }

    /// The progress of the flow at `now`, from 0 to 1, if it depends on this end.
    fn fraction(&self, _now: Instant) -> Option<f64> {
        None
    }
}

/// The progress at `now`, from 0 to 1: so many of `total`, or without a total the time until `end`.
#[expect(clippy::cast_precision_loss, reason = "a fraction for a progress bar")]
fn fraction(done: u64, total: Option<u64>, now: Instant, end: Instant) -> f64 {
    match total {
        Some(total) => done as f64 / total as f64,
        None => (now.as_nanos() as f64 / end.as_nanos() as f64).min(1.0),
    }
}
