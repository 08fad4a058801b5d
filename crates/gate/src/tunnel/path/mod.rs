//! The data path of a coded tunnel, without sockets and without a clock: packets of hosts become datagrams for peers,
//! and datagrams of peers become packets for hosts.
//!
//! The caller reads packets and datagrams in batches:
//!
//! - each packet of a host: [`Path::on_packet`]; each datagram: [`Path::on_datagram`];
//! - after a batch, [`Path::flush`]; when it is due by [`Path::next_wake`], [`Path::wake`];
//! - after either of these, it sends [`Path::datagrams`] and delivers [`Path::packets`], and calls [`Path::clear`].
//!
//! A symbol is shared by packets of one batch alone, so none waits for later packets.
//!
//! `docs/model/tunnel-daemon.md` describes the steps and sizes.

mod buffers;
mod counters;
mod inbound;
mod inner;
mod outbound;
mod plan;
mod routes;
mod sizes;
mod too_big;

use std::net::SocketAddr;

use bentpipe_core::coding::ByteRows;
use bentpipe_core::packet::Ecn;
use bentpipe_core::packet::symbol::StreamId;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::token_bucket::TokenBucket;
use bentpipe_core::tunnel::message::{ReceiverId, SEQUENCE_BYTES};
use bentpipe_core::tunnel::{Endpoint, OrderRestorer, TunnelSettings};
use bentpipe_core::units::BitRate;
use bentpipe_core::wire::Headers;

use super::random::{self, Random};
use super::{Datagram, Output, PeerId, Settings, Tunnel};
use buffers::Pool;
use inbound::{Inbound, Receiver};
use inner::FlowHasher;
use outbound::{Outbound, Sender};
use routes::Routes;

pub use buffers::{DatagramEnd, Datagrams};
pub use counters::{
    CodeCounters, HostCounters, OrderCounters, PathCounters, PeerReport, PeerTraffic,
    RepairCounters, SessionCounters, Traffic,
};
pub use plan::{PathPlan, PeerPlan, PlanError};
pub use routes::NetworkError;
pub use sizes::{MTU_MIN, full_symbol_bytes, inner_mtu};

/// Bytes in front of a packet of a host that [`Path::on_packet`] may overwrite.
pub const HEADROOM: usize = SEQUENCE_BYTES;

/// That of what the tunnel sends on its own account: CS0, not ECN-capable.
const CONTROL_CLASS: u8 = 0;

/// One peer.
struct Peer {
    name: String,
    sender: Sender,
    receiver: Receiver,
    traffic: PeerTraffic,
}

/// See the module documentation.
pub struct Path {
    tunnel: Tunnel,
    endpoint: Endpoint<ByteRows>,
    peers: Vec<Peer>,
    routes: Routes,
    mtu: u16,
    hasher: FlowHasher,
    pool: Pool,
    outbound: Outbound,
    inbound: Inbound,
    hosts: HostCounters,
    answers: TokenBucket,
    /// Memory for messages that are built before they are sent.
    control: Vec<Datagram>,
    scratch: Vec<u8>,
}

impl Path {
    /// A path without sessions. With peers whose endpoint is known, handshakes are due at once.
    ///
    /// # Errors
    /// If the plan contradicts itself.
    pub fn new(plan: PathPlan, mut random: Box<dyn Random>) -> Result<Self, PlanError> {
        let routes = plan.check()?;
        let PathPlan { private_key, peers, settings, mtu, limits } = plan;
        let config = settings.endpoint();
        let mut endpoint = Endpoint::new(&config);
        let mut order = settings.order();
        order.held_packets_max = order.held_packets_max.saturating_mul(peers.len().max(1));
        order.held_bytes_max = order.held_bytes_max.saturating_mul(peers.len().max(1) as u64);
        let hasher = FlowHasher::new(&mut *random);
        let mut number = || u16::from_le_bytes(random::array(&mut *random));
        // Those of a peer may be larger: its path may carry larger datagrams.
        let symbol_bytes = full_symbol_bytes(mtu).min(settings.symbol_size_bytes) as usize;
        let memory = usize::from(settings.memory_symbols);
        let states = peers.iter().map(|peer| {
            endpoint.add_peer(&config, StreamId(number()), ReceiverId(number()));
            Peer {
                name: peer.name.clone(),
                sender: Sender::new(symbol_bytes, memory),
                receiver: Receiver::new(2 * memory, settings.signal()),
                traffic: PeerTraffic::default(),
            }
        });
        let states = states.collect();
        let peers = peers.iter().map(|peer| peer.settings).collect();
        let tunnel = Tunnel::new(Settings { private_key, peers, limits }, random)?;
        Ok(Self {
            tunnel,
            endpoint,
            peers: states,
            routes,
            mtu,
            hasher,
            pool: Pool::default(),
            outbound: Outbound::default(),
            inbound: Inbound::new(OrderRestorer::new(order)),
            hosts: HostCounters::default(),
            answers: TokenBucket::FULL,
            control: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Takes a packet of a host, behind [`HEADROOM`] bytes that are overwritten. The packet is changed, too.
    pub fn on_packet(&mut self, now: Instant, buffer: &mut [u8]) {
        let packet = buffer.get_mut(HEADROOM..).unwrap_or_default();
        let Some(headers) = inner::headers(packet) else {
            self.hosts.dropped_malformed += 1;
            return;
        };
        let Some(number) = self.routes.peer(headers.tuple.destination) else {
            self.hosts.dropped_no_route += 1;
            return;
        };
        if packet.len() > self.mtu.into() {
            self.on_too_big(now, packet, &headers);
            return;
        }
        inner::clamp_mss(packet, &headers, self.mtu);
        self.peers[number].traffic.from_hosts.add(packet.len());
        let can_send = self.tunnel.has_session(PeerId(number), now);
        if can_send && !self.peers[number].sender.has_waiting() {
            self.send(now, number, buffer, &headers);
        } else {
            self.hold(now, number, buffer);
        }
    }

    /// Takes a datagram, which is opened in place, with its sender and the ECN field of its IP header.
    pub fn on_datagram(
        &mut self,
        now: Instant,
        datagram: &mut [u8],
        (from, ecn): (SocketAddr, Ecn),
    ) {
        let bytes = datagram.len();
        match self.tunnel.input(datagram, from, now) {
            Output::Nothing => {}
            Output::Send(answer) => self.send_control(now, &answer),
            Output::Payload { peer, payload } => {
                let traffic = &mut self.peers[peer.0].traffic;
                traffic.datagrams_received.add(sizes::ip_bytes(from, bytes) as usize);
                traffic.ce_datagrams += u64::from(ecn == Ecn::Ce);
                self.on_message(now, peer.0, (payload, ecn));
            }
        }
    }

    /// Ends a batch: nothing that can be sent now waits.
    pub fn flush(&mut self, now: Instant) {
        self.send_waiting(now);
        self.flush_symbols(now);
        self.send_repair(now);
        while let Some((number, header, feedback)) = self.endpoint.next_feedback(now) {
            self.scratch.clear();
            header.encode(&feedback, &mut self.scratch);
            let traffic = &mut self.peers[number].traffic;
            let to = (number, traffic, CONTROL_CLASS);
            let parts = [&self.scratch[..], &[]];
            if let Some(ip_bytes) = self.outbound.seal(now, &mut self.tunnel, to, parts) {
                self.endpoint.on_sent(now, ip_bytes, None);
            }
        }
    }

    /// When [`Self::wake`] is due; it may be earlier than needed.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        let wakes = [self.tunnel.next_wake(), self.endpoint.next_wake(), self.inbound.next_wake()];
        wakes.into_iter().flatten().min()
    }

    /// Does everything that is due at `now`, and what [`Self::flush`] does. An early call has no effect. `unix_nanos` is the
    /// wall clock: see [`Tunnel::wake`].
    pub fn wake(&mut self, now: Instant, unix_nanos: u64) {
        self.wake_tunnel(now, unix_nanos);
        self.endpoint.wake(now);
        self.inbound.wake(now);
        self.flush(now);
        // What was sealed may have made a renewal due.
        self.wake_tunnel(now, unix_nanos);
    }

    /// What is to be sent.
    #[must_use]
    pub fn datagrams(&self) -> &Datagrams {
        &self.outbound.datagrams
    }

    /// What is to be delivered to hosts, in order.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.inbound.ready().map(|slot| self.pool.bytes(slot))
    }

    /// Removes what was sent and delivered.
    pub fn clear(&mut self) {
        self.outbound.datagrams.clear();
        for (slot, number) in self.inbound.take_ready() {
            if let Some(number) = number {
                self.peers[number].traffic.to_hosts.add(self.pool.bytes(slot).len());
            }
            self.pool.free(slot);
        }
    }

    /// Changes what may change while a path runs: which packets are coded, how much repair is made and when it is sent,
    /// the rate of the link's input queue, and how flows learn of decoded losses. The other settings keep their values.
    ///
    /// # Errors
    /// If a setting is out of range; nothing changes then.
    pub fn reconfigure(
        &mut self,
        now: Instant,
        settings: &TunnelSettings,
    ) -> Result<(), PlanError> {
        settings.check()?;
        self.endpoint.reconfigure(now, &settings.endpoint_settings());
        self.endpoint.set_rate(now, BitRate(settings.queue.rate_bps));
        for peer in &mut self.peers {
            peer.receiver.set_signal(settings.signal());
        }
        Ok(())
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self, now: Instant) -> PathCounters {
        let (mut traffic, mut code) = (PeerTraffic::default(), CodeCounters::default());
        let mut peers = Vec::with_capacity(self.peers.len());
        for (number, peer) in self.peers.iter().enumerate() {
            let counts = self.endpoint.peer(number);
            traffic += peer.traffic;
            code += counts.into();
            peers.push(PeerReport {
                name: peer.name.clone(),
                endpoint: self.tunnel.endpoint(PeerId(number)),
                has_session: self.tunnel.has_session(PeerId(number), now),
                session_age_ns: self
                    .tunnel
                    .session_age(PeerId(number), now)
                    .map(Duration::as_nanos),
                outdated_handshakes: self.tunnel.outdated_handshakes(PeerId(number)),
                waiting_packets: peer.sender.waiting_packets(),
                redundancy_ppm: counts.redundancy_ppm,
                loss_ppb: counts.loss_ppb,
                traffic: peer.traffic,
                code: counts.into(),
            });
        }
        PathCounters {
            traffic,
            code,
            hosts: self.hosts,
            repair: RepairCounters::new(
                &self.endpoint.titrator(),
                self.endpoint.outdated_repairs(),
            ),
            order: self.inbound.order_counts().into(),
            sessions: self.tunnel.statistics().into(),
            queue_bytes: self.endpoint.queue_bytes(now),
            peers,
        }
    }

    /// Whether each buffer in use holds a packet that waits, and each session index is that of a session.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let waiting: u64 = self.peers.iter().map(|peer| peer.sender.waiting_packets()).sum();
        let held = self.inbound.held_buffers() as u64;
        self.tunnel.is_consistent() && self.pool.used() as u64 == waiting + held
    }

    fn wake_tunnel(&mut self, now: Instant, unix_nanos: u64) {
        let mut control = std::mem::take(&mut self.control);
        self.tunnel.wake(now, unix_nanos, &mut control);
        control.drain(..).for_each(|datagram| self.send_control(now, &datagram));
        self.control = control;
    }

    fn on_too_big(&mut self, now: Instant, packet: &[u8], headers: &Headers) {
        self.hosts.dropped_too_big += 1;
        let is_answered = too_big::answer(packet, headers, self.mtu, &mut self.scratch);
        if is_answered && self.answers.take(too_big::RATE, now) {
            self.hosts.too_big_answers += 1;
            let slot = self.pool.store(&self.scratch);
            self.inbound.deliver_answer(slot);
        }
    }

    fn send_control(&mut self, now: Instant, datagram: &Datagram) {
        self.outbound.datagrams.push(datagram.to(), CONTROL_CLASS, datagram.bytes());
        let ip_bytes = sizes::ip_bytes(datagram.to(), datagram.bytes().len());
        self.endpoint.on_sent(now, ip_bytes, None);
    }
}
