//! The state machine of a tunnel.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use bentpipe_core::time::{Duration, Instant};

use super::format::{
    Datagram, Header, Kind, MAC_1_AT, OVERHEAD_BYTES, RESPONSE_MAC_AT, noise, start,
};
use super::indexes::Indexes;
use super::keys::{PrivateKey, PublicKey};
use super::limiter::{Limiter, SeenMessages, Verdict};
use super::macs::{CookieJar, ReceiverKeys, mac_1};
use super::noise::Responder;
use super::peer::{Arrival, Peer, Shared};
use super::peer_settings::{PeerId, PeerSettings};
use super::random::Random;
use super::session::Limits;

/// What a tunnel is made of.
pub struct Settings {
    /// The static key of this end.
    pub private_key: PrivateKey,
    /// All that this end talks to.
    pub peers: Vec<PeerSettings>,
    /// [`Limits::DEFAULT`]; tests have shorter ones.
    pub limits: Limits,
}

/// Why a list of peers is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// A peer has the key of this end.
    OwnKey(PeerId),
    /// A peer has the key of one before it.
    Repeated(PeerId),
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnKey(peer) => write!(f, "peer {} has the key of this gateway", peer.0),
            Self::Repeated(peer) => write!(f, "peer {} has the key of another peer", peer.0),
        }
    }
}

impl std::error::Error for PeerError {}

/// There are no keys for a payload yet; a handshake begins, if the peer's address is known. The caller keeps the payload
/// and tries again after the next input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSession;

impl fmt::Display for NoSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no session with this peer")
    }
}

impl std::error::Error for NoSession {}

/// What a datagram leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<'a> {
    /// Nothing: it was a message of the tunnel itself, or it was refused.
    Nothing,
    /// A datagram to send.
    Send(Datagram),
    /// A payload, authenticated, and delivered once.
    Payload {
        /// Its sender.
        peer: PeerId,
        /// Its bytes, in the buffer of the datagram.
        payload: &'a mut [u8],
    },
}

/// What happened, as counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Sessions that this end started and that were completed.
    pub sessions_as_initiator: u64,
    /// First messages of peers that were answered.
    pub answered_handshakes: u64,
    /// Cookies given to addresses under load.
    pub cookie_replies: u64,
    /// Payloads delivered.
    pub payloads: u64,
    /// Datagrams that were refused: malformed, forged, replayed, of no session, or over a limit.
    pub refused_datagrams: u64,
}

/// Sessions with all peers.
///
/// The methods without a result beyond `next_wake` return what is to be sent. After each call, [`Self::next_wake`] says when
/// [`Self::wake`] is due; time never goes backwards.
pub struct Tunnel {
    peers: Vec<Peer>,
    by_key: BTreeMap<PublicKey, PeerId>,
    mac_keys: ReceiverKeys,
    cookies: CookieJar,
    limiter: Limiter,
    seen: SeenMessages,
    shared: Shared,
    /// Not after the earliest deadline of any peer.
    wake_at: Option<Instant>,
    statistics: Statistics,
}

impl Tunnel {
    /// A tunnel without sessions. With peers whose endpoint is known, handshakes are due at once.
    ///
    /// # Errors
    /// If two ends have the same key.
    pub fn new(settings: Settings, mut random: Box<dyn Random>) -> Result<Self, PeerError> {
        let own = settings.private_key.public();
        let mut by_key = BTreeMap::new();
        let mut peers = Vec::new();
        for (place, peer) in settings.peers.iter().enumerate() {
            let id = PeerId(place);
            if peer.public_key == own {
                return Err(PeerError::OwnKey(id));
            }
            if by_key.insert(peer.public_key, id).is_some() {
                return Err(PeerError::Repeated(id));
            }
            peers.push(Peer::new(id, peer, &own));
        }
        let mut tunnel = Self {
            peers,
            by_key,
            mac_keys: ReceiverKeys::new(&own),
            cookies: CookieJar::new(&mut *random),
            limiter: Limiter::new(),
            seen: SeenMessages::new(),
            shared: Shared {
                own: settings.private_key,
                limits: settings.limits,
                indexes: Indexes::default(),
                random,
            },
            wake_at: None,
            statistics: Statistics::default(),
        };
        tunnel.wake_at = tunnel.earliest();
        Ok(tunnel)
    }

    /// Handles a datagram that arrived from `from`. A payload is opened in place: it is a part of `datagram`.
    pub fn input<'a>(
        &mut self,
        datagram: &'a mut [u8],
        from: SocketAddr,
        now: Instant,
    ) -> Output<'a> {
        let output = match Header::parse(datagram) {
            Some(Header::Transport { kind, receiver, counter }) => {
                self.on_transport((kind, receiver, counter), datagram, from, now)
            }
            Some(Header::HandshakeInitiation(sender)) => {
                self.on_initiation(sender, datagram, from, now)
            }
            Some(Header::HandshakeResponse(receiver)) => {
                self.on_response(receiver, datagram, from, now)
            }
            Some(Header::CookieReply(receiver)) => {
                self.on_cookie_reply(receiver, datagram, from, now)
            }
            None => None,
        };
        output.unwrap_or_else(|| {
            self.statistics.refused_datagrams += 1;
            Output::Nothing
        })
    }

    /// Seals a payload in place. `packet` is [`super::HEADER_BYTES`] for the header, the payload, and
    /// [`super::TAG_BYTES`] for the tag. Returns where to send it.
    ///
    /// # Errors
    /// If there is no session; `packet` is unchanged.
    ///
    /// # Panics
    /// If `packet` is shorter than [`OVERHEAD_BYTES`], or `peer` is not one of this tunnel.
    pub fn output(
        &mut self,
        peer: PeerId,
        packet: &mut [u8],
        now: Instant,
    ) -> Result<SocketAddr, NoSession> {
        assert!(packet.len() >= OVERHEAD_BYTES, "a packet has a header and a tag");
        let to = self.peers[peer.0].output(packet, &self.shared.limits, now);
        self.note_deadline(peer);
        to.ok_or(NoSession)
    }

    /// When [`Self::wake`] is due; it may be earlier than needed. `None` if only input or output can change that. Runs in
    /// constant time.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        self.wake_at
    }

    /// Does everything that is due at `now`, and appends what is to be sent. An early or repeated call has no effect.
    ///
    /// `unix_nanos` is the wall clock at `now`, in nanoseconds since 1970. It may be set in between, also back. A peer refuses
    /// handshakes with a lower time than those it knows, so after a restart it should be higher than before.
    pub fn wake(&mut self, now: Instant, unix_nanos: u64, out: &mut Vec<Datagram>) {
        if self.wake_at.is_none_or(|at| now < at) {
            return;
        }
        for peer in &mut self.peers {
            peer.wake(&mut self.shared, (now, unix_nanos), out);
        }
        self.wake_at = self.earliest();
    }

    /// Where a peer is, if known.
    #[must_use]
    pub fn endpoint(&self, peer: PeerId) -> Option<SocketAddr> {
        self.peers[peer.0].endpoint()
    }

    /// Whether payloads for this peer can be sealed.
    #[must_use]
    pub fn has_session(&self, peer: PeerId, now: Instant) -> bool {
        self.peers[peer.0].has_session(&self.shared.limits, now)
    }

    /// The age of the session with which payloads for this peer are sealed, if there is one.
    #[must_use]
    pub fn session_age(&self, peer: PeerId, now: Instant) -> Option<Duration> {
        self.peers[peer.0].session_age(&self.shared.limits, now)
    }

    /// How many handshake initiations of this peer were refused because their timestamp is not higher than that of an earlier
    /// one: the clock of the peer went back, or they are replays. They are refused datagrams, too.
    #[must_use]
    pub fn outdated_handshakes(&self, peer: PeerId) -> u64 {
        self.peers[peer.0].outdated_handshakes()
    }

    /// What happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Whether each session index in use is that of a live session or handshake.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let live: usize = self.peers.iter().map(Peer::index_count).sum();
        self.shared.indexes.count() == live
    }

    fn earliest(&self) -> Option<Instant> {
        self.peers.iter().filter_map(|peer| peer.next_wake(&self.shared.limits)).min()
    }

    /// Deadlines that move away are noticed by the next wake-up, which is early then.
    fn note_deadline(&mut self, peer: PeerId) {
        let at = self.peers[peer.0].next_wake(&self.shared.limits);
        self.wake_at = [self.wake_at, at].into_iter().flatten().min();
    }

    fn on_transport<'a>(
        &mut self,
        header: (Kind, u32, u64),
        packet: &'a mut [u8],
        from: SocketAddr,
        now: Instant,
    ) -> Option<Output<'a>> {
        let peer = self.shared.indexes.peer(header.1)?;
        let arrival = self.peers[peer.0].open(header, packet, from, &mut self.shared, now)?;
        self.note_deadline(peer);
        Some(match arrival {
            Arrival::Nothing => Output::Nothing,
            Arrival::Answer(datagram) => Output::Send(datagram),
            Arrival::Payload(payload) => {
                self.statistics.payloads += 1;
                Output::Payload { peer, payload }
            }
        })
    }

    /// From cheap to expensive: the MAC, the limits, the handshake.
    fn on_initiation(
        &mut self,
        sender: u32,
        message: &[u8],
        from: SocketAddr,
        now: Instant,
    ) -> Option<Output<'static>> {
        if !self.mac_keys.is_signed(message, MAC_1_AT) || self.seen.contains(mac_1(message)) {
            return None;
        }
        let cookies = &self.cookies;
        let hash = || cookies.has_cookie(message, from, now).then(|| cookies.hash(from));
        match self.limiter.admit(now, hash) {
            Verdict::Work => {}
            Verdict::Drop => return None,
            Verdict::Cookie => {
                let cookie = self.cookies.cookie(from, now);
                let random = &mut *self.shared.random;
                let reply = self.mac_keys.seal_cookie(sender, mac_1(message), &cookie, random);
                self.statistics.cookie_replies += 1;
                return Some(Output::Send(Datagram::new(from, &reply)));
            }
        }
        let Shared { own, random, .. } = &mut self.shared;
        let responder = Responder::read(own, start(message), noise(message), &mut **random)?;
        let peer = *self.by_key.get(&responder.initiator)?;
        self.seen.insert(mac_1(message));
        let shared = &mut self.shared;
        let answer = self.peers[peer.0].respond(responder, sender, from, shared, now);
        // One that is refused may have made a handshake due.
        self.note_deadline(peer);
        let answer = answer?;
        self.statistics.answered_handshakes += 1;
        Some(Output::Send(answer))
    }

    fn on_response(
        &mut self,
        receiver: u32,
        message: &[u8],
        from: SocketAddr,
        now: Instant,
    ) -> Option<Output<'static>> {
        let peer = self.shared.indexes.peer(receiver)?;
        if !self.mac_keys.is_signed(message, RESPONSE_MAC_AT) {
            return None;
        }
        let shared = &mut self.shared;
        let confirmation = self.peers[peer.0].complete(receiver, message, from, shared, now)?;
        self.note_deadline(peer);
        self.statistics.sessions_as_initiator += 1;
        Some(Output::Send(confirmation))
    }

    fn on_cookie_reply(
        &mut self,
        receiver: u32,
        reply: &[u8],
        from: SocketAddr,
        now: Instant,
    ) -> Option<Output<'static>> {
        let peer = self.shared.indexes.peer(receiver)?;
        let random = &mut *self.shared.random;
        let repeated = self.peers[peer.0].take_cookie(receiver, reply, from, random, now)?;
        self.note_deadline(peer);
        Some(Output::Send(repeated))
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::RESPONSE_BYTES;
    use super::super::random::OsRandom;
    use super::*;

    fn gateway(own: u8, peer: u8, endpoint: Option<SocketAddr>) -> Tunnel {
        let public_key = PrivateKey::from_bytes([peer; 32]).public();
        let settings = Settings {
            private_key: PrivateKey::from_bytes([own; 32]),
            peers: vec![PeerSettings { public_key, endpoint, keepalive: None }],
            limits: Limits::DEFAULT,
        };
        Tunnel::new(settings, Box::new(OsRandom::new())).expect("distinct keys")
    }

    /// Given forged second messages, when they have no right MAC, then any number does no harm; when 64 have one, then the
    /// handshake is given up, and not before.
    #[test]
    fn forged_second_messages_are_limited() {
        let from = SocketAddr::from(([192, 0, 2, 1], 1));
        for (forgeries, is_signed, expected) in
            [(1_000, false, true), (63, true, true), (64, true, false)]
        {
            let mut initiator = gateway(1, 2, Some(from));
            let mut responder = gateway(2, 1, None);
            let mut out = Vec::new();
            initiator.wake(Instant::START, 1, &mut out);
            let mut message = out[0].bytes().to_vec();
            let Output::Send(answer) = responder.input(&mut message, from, Instant::START) else {
                panic!("an answer");
            };
            let answer: [u8; RESPONSE_BYTES] = answer.bytes().try_into().expect("89 bytes");
            let keys = ReceiverKeys::new(&PrivateKey::from_bytes([1; 32]).public());
            for number in 0..forgeries {
                let mut forged = answer;
                forged[5 + number % 52] ^= 1;
                if is_signed {
                    keys.sign(&mut forged, RESPONSE_MAC_AT);
                }
                let output = initiator.input(&mut forged, from, Instant::START);
                assert_eq!(output, Output::Nothing);
            }
            initiator.input(&mut answer.clone(), from, Instant::START);
            assert_eq!(initiator.has_session(PeerId(0), Instant::START), expected, "{forgeries}");
        }
    }
}
