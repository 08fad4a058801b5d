//! Traffic in a plan.

use serde::{Deserialize, Serialize};

use super::{
    BYTES_MAX, Check, DownloadChannel, Draw, HUB, Host, Media, Plan, RATE_BPS_MAX, TIME_NS_MAX,
    Tcp, WebPage,
};

/// A flow between two hosts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Unique; names the flow's random streams.
    pub name: String,
    /// The terminal that it passes: terminal `t` is gateway `1 + t`.
    pub terminal: u32,
    /// The direction of its data.
    pub direction: Heading,
    /// Its host behind the hub; `null` for a host at the gateway.
    pub world_host: Option<HostChoice>,
    /// Its host behind the terminal; `null` for a host at the gateway.
    pub island_host: Option<HostChoice>,
    /// When it starts, at the earliest.
    pub start_ns: u64,
    /// The range of its start: a random delay below it, drawn once per run, is added to `start_ns`.
    /// Zero for none.
    pub start_jitter_ns: u64,
    /// Its class in strict priority queues; 0 is served first.
    pub priority: u8,
    /// Whether a PEP can split its TCP connections; false for QUIC, or TCP inside a VPN.
    pub splittable: bool,
    /// The traffic that its ends generate.
    pub workload: Workload,
}

/// The host that an end of a flow runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum HostChoice {
    /// A specific host.
    Named {
        /// An index into `hosts`.
        host: u32,
    },
    /// A host behind its gateway, drawn once per run.
    Random,
}

/// The direction of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Heading {
    /// Hub to user.
    Forward,
    /// User to hub.
    Return,
}

/// The traffic of a flow.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Workload {
    /// One TCP transfer at full speed.
    Bulk {
        /// The size or the duration.
        amount: Amount,
        /// The TCP that sends.
        sender: Box<Tcp>,
        /// The TCP that receives.
        receiver: Box<Tcp>,
    },
    /// UDP datagrams at a constant rate.
    ConstantRate {
        /// Payload bits per second.
        rate_bps: u64,
        /// Payload of a datagram.
        payload_bytes: u32,
        /// How long.
        duration_ns: u64,
    },
    /// Speech: UDP datagrams at a constant rate, played by a jitter buffer.
    Voice {
        /// The codec by name, for the rating of the call.
        codec: String,
        /// Payload bits per second while speech is sent.
        rate_bps: u64,
        /// Payload of a datagram.
        payload_bytes: u32,
        /// How long.
        duration_ns: u64,
        /// The time that the first datagram waits in the jitter buffer.
        jitter_buffer_ns: u64,
        /// The means of talk spurts and pauses with silence suppression; `null` without.
        talk_spurts: Option<TalkSpurts>,
    },
    /// Requests and responses, one after the other. The flow's direction is that of the responses.
    RequestResponse {
        /// Bytes of a request.
        request_bytes: u64,
        /// Bytes of a response.
        response_bytes: Draw,
        /// Nanoseconds from the end of a response to the next request.
        think_ns: Draw,
        /// The number of exchanges; `null` for no limit.
        exchanges: Option<u64>,
        /// Whether all exchanges use one connection, instead of one each.
        keep_connection: bool,
        /// The TCP of the server.
        server: Box<Tcp>,
        /// The TCP of the client.
        client: Box<Tcp>,
    },
    /// A video that is fetched in segments over one connection, each by a request, and played from
    /// a buffer. The flow's direction is that of the media.
    Video {
        /// The media and the buffer of the player.
        media: Media,
        /// Bytes of a request.
        request_bytes: u64,
        /// The TCP of the server.
        server: Box<Tcp>,
        /// The TCP of the player.
        client: Box<Tcp>,
    },
    /// Web pages with their objects.
    WebPage(Box<WebPage>),
    /// Downloads over one connection after another. The flow's direction is "forward".
    Channel(Box<DownloadChannel>),
    /// One participant of a conference: datagrams at a constant rate to a reflector at the hub,
    /// which sends a copy of each to every other participant. The flow's direction is "return".
    Conference {
        /// The number of the conference.
        conference: u32,
        /// Payload bits per second.
        rate_bps: u64,
        /// Payload of a datagram.
        payload_bytes: u32,
        /// How long.
        duration_ns: u64,
    },
}

/// The mean durations of talk spurts and of the pauses between them, both exponential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TalkSpurts {
    /// Of talk spurts.
    pub talk_ns: u64,
    /// Of pauses, during which nothing is sent.
    pub pause_ns: u64,
}

/// The size of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "unit", content = "value", rename_all = "snake_case", deny_unknown_fields)]
pub enum Amount {
    /// Application bytes.
    Bytes(u64),
    /// Nanoseconds from the start.
    DurationNs(u64),
}

const DATAGRAM_PAYLOAD_BYTES_MAX: u32 = 65_507;
impl Flow {
    pub(super) fn check(&self, check: &mut Check, plan: &Plan, at: &dyn Fn(&str) -> String) {
        check.that(
            self.start_ns < plan.stop_ns,
            || at("start_ns"),
            "must be before the end of the run",
        );
        check.within(self.start_jitter_ns, 0..=TIME_NS_MAX, || at("start_jitter_ns"));
        let terminals = plan.terminals();
        check.that(
            (self.terminal as usize) < terminals,
            || at("terminal"),
            "must be the number of a terminal, from 0",
        );
        self.check_host(check, plan, self.world_host, HUB, &|| at("world_host"));
        let terminal = self.terminal.saturating_add(1);
        self.check_host(check, plan, self.island_host, terminal, &|| at("island_host"));
        let gateways = [HUB, terminal];
        let passed = plan.directions.iter().filter(|direction| gateways.contains(&direction.from));
        for classes in passed.filter_map(|direction| direction.queue.classes()) {
            check.that(
                self.priority < classes,
                || at("priority"),
                "must be below the number of classes of every queue on the path",
            );
        }
        self.workload.check(check, self.direction, &|field| at(&format!("workload.{field}")));
        let is_conference = matches!(self.workload, Workload::Conference { .. });
        check.that(
            !is_conference || self.world_host.is_none(),
            || at("world_host"),
            "must be null: the reflector of a conference is at the hub",
        );
        if let Workload::Channel(channel) = &self.workload {
            channel.check_servers(check, plan, at);
            check.that(
                self.world_host.is_none(),
                || at("world_host"),
                "must be null: a channel lists its servers",
            );
        }
    }

    fn check_host(
        &self,
        check: &mut Check,
        plan: &Plan,
        host: Option<HostChoice>,
        gateway: u32,
        at: &dyn Fn() -> String,
    ) {
        let behind = |host: &Host| host.gateway == gateway;
        match host {
            None => {}
            Some(HostChoice::Named { host }) => check.that(
                plan.hosts.get(host as usize).is_some_and(behind),
                at,
                "must be the index of a host behind that gateway",
            ),
            Some(HostChoice::Random) => check.that(
                plan.hosts.iter().any(behind),
                at,
                "must not be drawn: there is no host behind that gateway",
            ),
        }
    }
}

impl Workload {
    fn check(&self, check: &mut Check, heading: Heading, at: &dyn Fn(&str) -> String) {
        match self {
            Self::Bulk { amount, sender, receiver } => {
                let (Amount::Bytes(size) | Amount::DurationNs(size)) = amount;
                check.that(
                    (1..=BYTES_MAX).contains(size),
                    || at("amount"),
                    "must be from 1 to 2^50 bytes or ns",
                );
                sender.check(check, &|field| at(&format!("sender.{field}")));
                receiver.check(check, &|field| at(&format!("receiver.{field}")));
            }
            Self::ConstantRate { rate_bps, payload_bytes, duration_ns } => {
                check_datagrams(check, *rate_bps, *payload_bytes, *duration_ns, at);
            }
            Self::Voice {
                rate_bps,
                payload_bytes,
                duration_ns,
                jitter_buffer_ns,
                talk_spurts,
                ..
            } => {
                check_datagrams(check, *rate_bps, *payload_bytes, *duration_ns, at);
                let times = 0..=TIME_NS_MAX;
                check.within(*jitter_buffer_ns, times, || at("jitter_buffer_ns"));
                if let Some(TalkSpurts { talk_ns, pause_ns }) = *talk_spurts {
                    check.within(talk_ns, 1..=TIME_NS_MAX, || at("talk_spurts.talk_ns"));
                    check.within(pause_ns, 1..=TIME_NS_MAX, || at("talk_spurts.pause_ns"));
                }
            }
            Self::RequestResponse { request_bytes, exchanges, server, client, .. } => {
                check.within(*request_bytes, 1..=BYTES_MAX, || at("request_bytes"));
                self.check_draws(check, at);
                check.that(
                    *exchanges != Some(0),
                    || at("exchanges"),
                    "must be at least 1, or null for no limit",
                );
                server.check(check, &|field| at(&format!("server.{field}")));
                client.check(check, &|field| at(&format!("client.{field}")));
            }
            Self::Video { media, request_bytes, server, client } => {
                media.check(check, &|field| at(&format!("media.{field}")));
                check.within(*request_bytes, 1..=BYTES_MAX, || at("request_bytes"));
                server.check(check, &|field| at(&format!("server.{field}")));
                client.check(check, &|field| at(&format!("client.{field}")));
            }
            Self::WebPage(page) => page.check(check, at),
            Self::Channel(channel) => {
                channel.check(check, at);
                check.that(
                    heading == Heading::Forward,
                    || at("kind"),
                    "must have direction \"forward\": the servers of a channel are behind the hub",
                );
            }
            Self::Conference { rate_bps, payload_bytes, duration_ns, .. } => {
                check_datagrams(check, *rate_bps, *payload_bytes, *duration_ns, at);
                check.that(
                    heading == Heading::Return,
                    || at("kind"),
                    "must have direction \"return\": participants of a conference send to the hub",
                );
            }
        }
    }

    /// The channel, if the flow is one.
    pub(super) fn channel(&self) -> Option<&DownloadChannel> {
        match self {
            Self::Channel(channel) => Some(channel),
            _ => None,
        }
    }

    fn check_draws(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let Self::RequestResponse { response_bytes, think_ns, .. } = self else { return };
        response_bytes.check(check, 1..=BYTES_MAX, &|field| at(&format!("response_bytes.{field}")));
        think_ns.check(check, 0..=TIME_NS_MAX, &|field| at(&format!("think_ns.{field}")));
    }
}

fn check_datagrams(
    check: &mut Check,
    rate_bps: u64,
    payload_bytes: u32,
    duration_ns: u64,
    at: &dyn Fn(&str) -> String,
) {
    check.that(
        (1..=RATE_BPS_MAX).contains(&rate_bps),
        || at("rate_bps"),
        "must be from 1 bit/s to 100 Tbit/s",
    );
    check.that(
        (1..=DATAGRAM_PAYLOAD_BYTES_MAX).contains(&payload_bytes),
        || at("payload_bytes"),
        "must be from 1 to 65,507 bytes",
    );
    check.that(
        u64::from(payload_bytes).saturating_mul(8_000_000_000) >= rate_bps,
        || at("rate_bps"),
        "must be at most one datagram per nanosecond",
    );
    check.that(
        (1..=TIME_NS_MAX).contains(&duration_ns),
        || at("duration_ns"),
        "must be from 1 ns to 100 days",
    );
}
