//! Workloads: the engines that generate and consume traffic.

mod bulk;
mod conference;
mod connections;
mod constant_rate;
mod draw;
mod player;
mod request_response;
mod talk_spurts;

pub use bulk::{BulkReceiver, BulkSender, Until};
pub use conference::{Member, Participant, Reflector};
pub use connections::Totals;
pub use constant_rate::{ConstantRate, DatagramSink};
pub use draw::Draws;
pub use player::{Playback, Player, SegmentSizes, replay};
pub use request_response::{
    Client, Exchange, ExchangeConfig, Host, Pause, ResponseSizes, Schedule, Server,
};
pub use talk_spurts::TalkSpurts;
