//! Workloads: the engines that generate and consume traffic.

mod bulk;
mod channel;
mod conference;
mod connections;
mod constant_rate;
mod draw;
mod player;
mod request_response;
mod talk_spurts;
mod web_page;

pub use bentpipe_core::tcp::Totals;
pub use bulk::{BulkReceiver, BulkSender, Until};
pub use channel::{
    ChannelClient, ChannelConfig, ChannelSchedule, ChannelServer, Download, Downloads,
    ServerAddresses, ServiceTimes, SizeTable,
};
pub use conference::{Member, Participant, Reflector};
pub use constant_rate::{ConstantRate, DatagramSink};
pub use draw::Draws;
pub use player::{Moment, Playback, Player, SegmentSizes, replay};
pub use request_response::{
    Client, Exchange, ExchangeConfig, Host, ResponseSizes, Schedule, Server,
};
pub use talk_spurts::TalkSpurts;
pub use web_page::{Page, PageConfig, PageDraws, WebClient, WebServer};
