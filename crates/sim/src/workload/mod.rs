//! Workloads: the engines that generate and consume traffic.

mod bulk;
mod conference;
mod connections;
mod constant_rate;
mod draw;
mod player;
mod request_response;
mod talk_spurts;
mod web_page;

pub use bulk::{BulkReceiver, BulkSender, Until};
pub use conference::{Member, Participant, Reflector};
pub use connections::Totals;
pub use constant_rate::{ConstantRate, DatagramSink};
pub use draw::Draws;
pub use player::{Moment, Playback, Player, SegmentSizes, replay};
pub use request_response::{
    Client, Exchange, ExchangeConfig, Host, ResponseSizes, Schedule, Server,
};
pub use talk_spurts::TalkSpurts;
pub use web_page::{Page, PageConfig, PageDraws, WebClient, WebServer};
