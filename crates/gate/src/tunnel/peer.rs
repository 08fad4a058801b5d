//! What a tunnel knows of one peer: its sessions, the handshakes under way, and when something is due.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bentpipe_core::time::{Duration, Instant};

use super::format::{
    Datagram, INITIATION_BYTES, Index, KEEPALIVE_BYTES, Kind, MAC_1_AT, RESPONSE_BYTES,
    RESPONSE_MAC_AT, noise, noise_mut, write_start,
};
use super::indexes::Indexes;
use super::keys::{PrivateKey, PublicKey};
use super::macs::{COOKIE_PERIOD, Cookie, ReceiverKeys, add_cookie, mac_1};
use super::noise::{Initiator, Responder, Timestamp};
use super::peer_settings::{PeerId, PeerSettings};
use super::random::{self, Random};
use super::session::{Limits, Opened, Session};

/// The time between two first messages, and up to how much is added to it at random, so that the terminals of a hub that
/// restarts do not keep a common rhythm.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_JITTER: u64 = 250_000_000;
/// How many handshakes with a peer may be under way in each direction: with one a second, round trips of up to 4 s.
const ATTEMPTS: usize = 4;
/// How many sessions before the current one still open packets. Usually one is needed; two, if a handshake follows another
/// one before the peer knew of its end.
const PREVIOUS: usize = 2;
/// How long first messages are repeated after the last payload for a peer that does not answer.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// A peer that received data and sent nothing for this long sends a keepalive.
const ANSWER_AFTER: Duration = Duration::from_millis(250);
/// A peer that has answered nothing for this long has restarted, perhaps: the time of a keepalive and a round trip of a
/// GEO link (0.6 s), twice. With one more round trip for the handshake, traffic flows again within 3 s.
const SILENT_AFTER: Duration = Duration::from_millis(1_500);
/// Second messages that fail, for each handshake: each costs two multiplications on the curve, 0.1 ms. The index of the
/// first message is known only to those who saw that message.
const FAILURES_MAX: u32 = 64;
/// An initiation with an old timestamp comes from a peer whose clock went back, or is a replay. Neither can be told from the
/// other, so the peer is asked, where it was last: by a handshake of this end, which a replay cannot answer. It begins only if
/// nothing authentic has arrived for as long as the peer takes to repeat an initiation, lasts for as long as the four attempts
/// of a round trip of 4 s, and is the only one within twice that time. So replays cause an initiation every 2 s at most.
const RECOVERY_AFTER: Duration = RETRY_AFTER;
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);
const RECOVERY_INTERVAL: Duration = Duration::from_secs(10);

/// The byte of a keepalive.
const NO_ANSWER: u8 = 0;
const ANSWER: u8 = 1;

/// What the peers of a tunnel share.
pub(super) struct Shared {
    pub(super) own: PrivateKey,
    pub(super) limits: Limits,
    pub(super) indexes: Indexes,
    pub(super) random: Box<dyn Random>,
}

/// A first message that was sent.
struct Attempt {
    local: Index,
    state: Initiator,
    message: [u8; INITIATION_BYTES],
    to: SocketAddr,
    failures: u32,
    /// Whether it was repeated with a cookie.
    is_repeated: bool,
}

/// First messages are sent until a session exists.
#[derive(Clone, Copy)]
struct Trying {
    next_at: Instant,
    give_up_at: Instant,
    /// Whether this end gave way to a handshake of the peer. It does so once: a first message may be a replay.
    has_yielded: bool,
}

impl Trying {
    fn new(now: Instant) -> Self {
        Self { next_at: now, give_up_at: now + GIVE_UP_AFTER, has_yielded: false }
    }
}

/// The state of one peer.
pub(super) struct Peer {
    id: PeerId,
    key: PublicKey,
    mac_keys: ReceiverKeys,
    /// Where the peer is, as far as its last packet shows, and where it should be. First messages go to both: a packet that
    /// somebody took and sent on from another address moves the endpoint, but not for long.
    endpoint: Option<SocketAddr>,
    configured: Option<SocketAddr>,
    keepalive: Option<Duration>,
    /// Where both ends start a handshake at once, whether the peer's one counts: the one of the greater public key.
    yields: bool,
    /// Packets are sealed with `current`. `previous`, newest first, still opens those that were in transit when it changed.
    current: Option<Box<Session>>,
    previous: VecDeque<Box<Session>>,
    /// Sessions that the peer started. One of them becomes current with its first packet, which shows that the peer has the
    /// keys now, and was not a replayed first message.
    unconfirmed: VecDeque<Box<Session>>,
    attempts: VecDeque<Attempt>,
    trying: Option<Trying>,
    /// The highest timestamps received and sent.
    received_timestamp: Option<Timestamp>,
    sent_timestamp: Timestamp,
    /// Authentic initiations that were refused because their timestamp is not higher than that of an earlier one.
    outdated_handshakes: u64,
    /// When the last of them made this end start a handshake.
    recovery_at: Option<Instant>,
    /// When something authentic and new arrived last.
    heard_at: Instant,
    cookie: Option<(Cookie, Instant)>,
    /// When the first packet was sent that wants an answer, if nothing has arrived since.
    unanswered_since: Option<Instant>,
    /// When the first data arrived, if nothing was sent since.
    owes_since: Option<Instant>,
    sent_at: Instant,
}

/// What an authenticated packet means for the caller.
pub(super) enum Arrival<'a> {
    Nothing,
    Payload(&'a mut [u8]),
    Answer(Datagram),
}

impl Peer {
    pub(super) fn new(id: PeerId, settings: &PeerSettings, own: &PublicKey) -> Self {
        let key = settings.public_key;
        // A gateway that knows where its peer is starts at once: so a restart interrupts no longer than a handshake.
        Self {
            id,
            key,
            mac_keys: ReceiverKeys::new(&key),
            endpoint: settings.endpoint,
            configured: settings.endpoint,
            keepalive: settings.keepalive,
            yields: *own < key,
            current: None,
            previous: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            attempts: VecDeque::new(),
            trying: settings.endpoint.map(|_| Trying::new(Instant::START)),
            received_timestamp: None,
            sent_timestamp: 0,
            outdated_handshakes: 0,
            recovery_at: None,
            heard_at: Instant::START,
            cookie: None,
            unanswered_since: None,
            owes_since: None,
            sent_at: Instant::START,
        }
    }

    pub(super) fn endpoint(&self) -> Option<SocketAddr> {
        self.endpoint
    }

    /// Authentic handshake initiations that were refused for their timestamp.
    pub(super) fn outdated_handshakes(&self) -> u64 {
        self.outdated_handshakes
    }

    /// Whether payloads can be sealed.
    pub(super) fn has_session(&self, limits: &Limits, now: Instant) -> bool {
        self.endpoint.is_some()
            && self.current.as_ref().is_some_and(|current| current.can_seal(limits, now))
    }

    /// The time since the handshake of the session with which payloads are sealed.
    pub(super) fn session_age(&self, limits: &Limits, now: Instant) -> Option<Duration> {
        let current = self.current.as_ref().filter(|_| self.has_session(limits, now));
        current.map(|current| current.age(now))
    }

    /// Seals a payload in place; `None`, and a handshake begins, if there is no session.
    pub(super) fn output(
        &mut self,
        packet: &mut [u8],
        limits: &Limits,
        now: Instant,
    ) -> Option<SocketAddr> {
        if let Some(trying) = &mut self.trying {
            trying.give_up_at = now + GIVE_UP_AFTER;
        }
        let session = self.current.as_mut().filter(|current| current.can_seal(limits, now));
        let (Some(session), Some(to)) = (session, self.endpoint) else {
            self.begin(now);
            return None;
        };
        session.seal(Kind::Data, packet);
        self.unanswered_since.get_or_insert(now);
        self.note_sent(now);
        Some(to)
    }

    fn note_sent(&mut self, now: Instant) {
        self.owes_since = None;
        self.sent_at = now;
    }

    /// Begins a handshake, if none is under way.
    fn begin(&mut self, now: Instant) {
        if self.endpoint.is_some() && self.trying.is_none() {
            self.trying = Some(Trying::new(now));
        }
    }

    /// Ends the handshakes that this end started.
    fn stop_trying(&mut self, indexes: &mut Indexes) {
        self.trying = None;
        self.drop_attempts(indexes);
    }

    fn drop_attempts(&mut self, indexes: &mut Indexes) {
        self.attempts.drain(..).for_each(|attempt| indexes.release(attempt.local));
    }

    /// Makes a session the current one; the one that was, is the previous one.
    fn install(&mut self, session: Box<Session>, indexes: &mut Indexes) {
        if let Some(replaced) = self.current.replace(session) {
            self.previous.push_front(replaced);
        }
        let ended = self.previous.drain(self.previous.len().min(PREVIOUS)..);
        ended.for_each(|ended| indexes.release(ended.local));
        self.stop_trying(indexes);
        self.unanswered_since = None;
    }

    /// Writes a keepalive, if there is a session.
    fn send_keepalive(&mut self, byte: u8, limits: &Limits, now: Instant) -> Option<Datagram> {
        let session = self.current.as_mut().filter(|current| current.can_seal(limits, now))?;
        let to = self.endpoint?;
        let mut packet = [byte; KEEPALIVE_BYTES];
        session.seal(Kind::Keepalive, &mut packet);
        if byte == ANSWER {
            self.unanswered_since.get_or_insert(now);
        }
        self.note_sent(now);
        Some(Datagram::new(to, &packet))
    }
}

/// Handshakes.
impl Peer {
    /// Writes a first message. Its timestamp is the wall clock of this moment, which may have been set since the last one.
    fn attempt(
        &mut self,
        to: SocketAddr,
        shared: &mut Shared,
        (now, unix_nanos): (Instant, u64),
        out: &mut Vec<Datagram>,
    ) {
        self.sent_timestamp = unix_nanos.max(self.sent_timestamp.saturating_add(1));
        let local = shared.indexes.claim(self.id, &mut *shared.random);
        let mut message = [0; INITIATION_BYTES];
        let start = write_start(&mut message, Kind::HandshakeInitiation, local);
        let state = Initiator::start(
            &shared.own,
            &self.key,
            &start,
            self.sent_timestamp,
            noise_mut(&mut message),
            &mut *shared.random,
        );
        self.mac_keys.sign(&mut message, MAC_1_AT);
        let is_fresh = |at: Instant| now.saturating_since(at) < COOKIE_PERIOD;
        if let Some((cookie, _)) = self.cookie.filter(|&(_, received_at)| is_fresh(received_at)) {
            add_cookie(&mut message, &cookie);
        }
        if self.attempts.len() == ATTEMPTS {
            self.attempts.pop_front().into_iter().for_each(|old| shared.indexes.release(old.local));
        }
        let attempt = Attempt { local, state, message, to, failures: 0, is_repeated: false };
        self.attempts.push_back(attempt);
        self.sent_at = now;
        out.push(Datagram::new(to, &message));
        let other = self.configured.filter(|&configured| configured != to);
        out.extend(other.map(|other| Datagram::new(other, &message)));
    }

    /// Answers an authenticated first message if it is newer than all before.
    pub(super) fn respond(
        &mut self,
        responder: Responder,
        remote: Index,
        from: SocketAddr,
        shared: &mut Shared,
        now: Instant,
    ) -> Option<Datagram> {
        if self.received_timestamp.is_some_and(|newest| responder.timestamp <= newest) {
            self.on_outdated(now);
            return None;
        }
        self.received_timestamp = Some(responder.timestamp);
        self.heard_at = now;
        let local = shared.indexes.claim(self.id, &mut *shared.random);
        let mut message = [0; RESPONSE_BYTES];
        write_start(&mut message, Kind::HandshakeResponse, remote);
        let keys = responder.finish(local, noise_mut(&mut message));
        self.mac_keys.sign(&mut message, RESPONSE_MAC_AT);
        if self.unconfirmed.len() == ATTEMPTS {
            let oldest = self.unconfirmed.pop_front();
            oldest.into_iter().for_each(|old| shared.indexes.release(old.local));
        }
        self.unconfirmed.push_back(Box::new(Session::new((local, remote), &keys, false, now)));
        if self.yields
            && let Some(trying) = self.trying.as_mut().filter(|trying| !trying.has_yielded)
        {
            // The peer's handshake counts. If it does not end, the next attempt follows.
            trying.has_yielded = true;
            trying.next_at = retry_at(&mut *shared.random, now);
            self.drop_attempts(&mut shared.indexes);
        }
        Some(Datagram::new(from, &message))
    }

    /// Counts an initiation with an old timestamp, and starts a handshake with the peer, whose clock may have gone back.
    fn on_outdated(&mut self, now: Instant) {
        self.outdated_handshakes += 1;
        let is_silent = now.saturating_since(self.heard_at) >= RECOVERY_AFTER;
        let is_rare = |at: Instant| now.saturating_since(at) >= RECOVERY_INTERVAL;
        let is_known = self.endpoint.is_some() && self.trying.is_none();
        if is_known && is_silent && self.recovery_at.is_none_or(is_rare) {
            self.recovery_at = Some(now);
            let give_up_at = now + RECOVERY_TIMEOUT;
            self.trying = Some(Trying { give_up_at, ..Trying::new(now) });
        }
    }

    /// Ends a handshake by its second message. The answer tells the peer that this end has the keys.
    pub(super) fn complete(
        &mut self,
        local: Index,
        message: &[u8],
        from: SocketAddr,
        shared: &mut Shared,
        now: Instant,
    ) -> Option<Datagram> {
        let attempts = self.attempts.iter_mut();
        let attempt = attempts.into_iter().find(|attempt| attempt.local == local)?;
        if attempt.failures == FAILURES_MAX {
            return None;
        }
        let Some((remote, keys)) = attempt.state.finish(noise(message)) else {
            attempt.failures += 1;
            return None;
        };
        // Its index lives on in the session.
        self.attempts.retain(|attempt| attempt.local != local);
        let session = Box::new(Session::new((local, remote), &keys, true, now));
        self.endpoint = Some(from);
        self.heard_at = now;
        self.install(session, &mut shared.indexes);
        self.send_keepalive(ANSWER, &shared.limits, now)
    }

    /// Reads a cookie and repeats the message that it answers with it, once. The message may have had a cookie that is not
    /// valid any more: that of another address of this end, or of a peer that has restarted since.
    pub(super) fn take_cookie(
        &mut self,
        local: Index,
        reply: &[u8],
        from: SocketAddr,
        random: &mut dyn Random,
        now: Instant,
    ) -> Option<Datagram> {
        let mut attempts = self.attempts.iter_mut();
        let attempt = attempts.find(|attempt| attempt.local == local && !attempt.is_repeated)?;
        let cookie = self.mac_keys.open_cookie(reply, mac_1(&attempt.message))?;
        self.cookie = Some((cookie, now));
        attempt.is_repeated = true;
        add_cookie(&mut attempt.message, &cookie);
        if let Some(trying) = &mut self.trying {
            trying.next_at = retry_at(random, now);
        }
        let to = if self.configured == Some(from) { from } else { attempt.to };
        Some(Datagram::new(to, &attempt.message))
    }
}

/// Transport packets.
impl Peer {
    /// Opens a packet of the session `local`.
    pub(super) fn open<'a>(
        &mut self,
        (kind, local, counter): (Kind, Index, u64),
        packet: &'a mut [u8],
        from: SocketAddr,
        shared: &mut Shared,
        now: Instant,
    ) -> Option<Arrival<'a>> {
        let limits = shared.limits;
        let opened = if let Some(current) = self.current.as_mut().filter(|it| it.local == local) {
            let opened = current.open(counter, packet, &limits, now)?;
            if opened.is_newest {
                self.endpoint = Some(from);
            }
            opened
        } else if let Some(previous) = self.previous.iter_mut().find(|it| it.local == local) {
            previous.open(counter, packet, &limits, now)?
        } else {
            self.confirm((local, counter), packet, from, shared, now)?
        };
        self.unanswered_since = None;
        self.heard_at = now;
        Some(match (kind, &*opened.payload) {
            (Kind::Data, _) => {
                self.owes_since.get_or_insert(now);
                Arrival::Payload(opened.payload)
            }
            (_, [ANSWER]) => self
                .send_keepalive(NO_ANSWER, &limits, now)
                .map_or(Arrival::Nothing, Arrival::Answer),
            _ => Arrival::Nothing,
        })
    }

    /// Opens a packet of a session that the peer started. If it is authentic, that session is the current one from now on.
    fn confirm<'a>(
        &mut self,
        (local, counter): (Index, u64),
        packet: &'a mut [u8],
        from: SocketAddr,
        shared: &mut Shared,
        now: Instant,
    ) -> Option<Opened<'a>> {
        let position = self.unconfirmed.iter().position(|session| session.local == local)?;
        let opened = self.unconfirmed[position].open(counter, packet, &shared.limits, now)?;
        let confirmed = self.unconfirmed.remove(position)?;
        self.unconfirmed.drain(..).for_each(|other| shared.indexes.release(other.local));
        self.endpoint = Some(from);
        self.install(confirmed, &mut shared.indexes);
        Some(opened)
    }
}

/// Time.
impl Peer {
    /// Does what is due, and appends what is to be sent.
    pub(super) fn wake(
        &mut self,
        shared: &mut Shared,
        (now, unix_nanos): (Instant, u64),
        out: &mut Vec<Datagram>,
    ) {
        self.end_sessions(shared, now);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.give_up_at()) {
            self.stop_trying(&mut shared.indexes);
            self.unanswered_since = None;
        }
        if is_due(self.answer_at()) {
            self.owes_since = None;
            out.extend(self.send_keepalive(NO_ANSWER, &shared.limits, now));
        }
        if is_due(self.keepalive_at()) {
            if self.has_session(&shared.limits, now) {
                out.extend(self.send_keepalive(ANSWER, &shared.limits, now));
            } else {
                self.begin(now);
            }
        }
        // After the packets above, which may be those that make a renewal due.
        if is_due(self.silent_at()) || is_due(self.renewal_at(&shared.limits)) {
            self.unanswered_since = None;
            self.begin(now);
        }
        if let (Some(trying), Some(to)) = (self.trying, self.endpoint)
            && trying.next_at <= now
        {
            let next_at = retry_at(&mut *shared.random, now);
            self.trying = Some(Trying { next_at, ..trying });
            self.attempt(to, shared, (now, unix_nanos), out);
        }
    }

    /// When [`Self::wake`] would do something.
    pub(super) fn next_wake(&self, limits: &Limits) -> Option<Instant> {
        [
            self.trying.map(|trying| trying.next_at),
            self.give_up_at(),
            self.silent_at(),
            self.renewal_at(limits),
            self.keepalive_at(),
            self.answer_at(),
            self.sessions().map(|session| session.ends_at(limits)).min(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn sessions(&self) -> impl Iterator<Item = &Session> {
        let sessions = self.current.iter().chain(&self.previous).chain(&self.unconfirmed);
        sessions.map(|session| &**session)
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.trying.map(|trying| trying.give_up_at)
    }

    /// When the peer has answered nothing for so long that a handshake begins.
    fn silent_at(&self) -> Option<Instant> {
        self.unless_trying(self.unanswered_since).map(|since| since + SILENT_AFTER)
    }

    fn renewal_at(&self, limits: &Limits) -> Option<Instant> {
        self.unless_trying(self.current.as_ref()?.renewal_at(limits))
    }

    fn keepalive_at(&self) -> Option<Instant> {
        self.unless_trying(self.keepalive.map(|interval| self.sent_at + interval))
    }

    fn answer_at(&self) -> Option<Instant> {
        self.owes_since.map(|since| since + ANSWER_AFTER)
    }

    /// `at`, if no handshake is under way and one can be started.
    fn unless_trying(&self, at: Option<Instant>) -> Option<Instant> {
        at.filter(|_| self.trying.is_none() && self.endpoint.is_some())
    }

    /// Drops the sessions whose time is over, and with them their keys.
    fn end_sessions(&mut self, shared: &mut Shared, now: Instant) {
        let Shared { limits, indexes, .. } = shared;
        let is_over = |session: &Session| session.ends_at(limits) <= now;
        if let Some(ended) = self.current.take_if(|session| is_over(session)) {
            indexes.release(ended.local);
        }
        for sessions in [&mut self.previous, &mut self.unconfirmed] {
            sessions.iter().filter(|it| is_over(it)).for_each(|it| indexes.release(it.local));
            sessions.retain(|session| !is_over(session));
        }
    }

    /// The session indexes in use, for tests of leaks.
    pub(super) fn index_count(&self) -> usize {
        self.sessions().count() + self.attempts.len()
    }
}

fn retry_at(random: &mut dyn Random, now: Instant) -> Instant {
    let jitter = u64::from_be_bytes(random::array(random)) % RETRY_JITTER;
    now + RETRY_AFTER + Duration::from_nanos(jitter)
}
