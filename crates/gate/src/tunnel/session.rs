//! One session: two keys, two counters, a replay window.

use bentpipe_core::time::{Duration, Instant};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::format::{HEADER_BYTES, Header, Index, Kind, OVERHEAD_BYTES, TAG_BYTES};
use super::noise::SessionKeys;
use super::replay::ReplayWindow;

/// When a session is renewed, and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The age at which a used session is renewed.
    pub renew_after: Duration,
    /// The age at which a session ends. Longer than `renew_after` by the time that a handshake may take.
    pub end_after: Duration,
    /// The number of packets in one direction after which a session is renewed.
    pub renew_packets: u64,
    /// The number of packets in one direction with which a session ends.
    pub end_packets: u64,
}

impl Limits {
    /// Time as in WireGuard (Donenfeld 2017, section 6.1). Packets: AES-GCM may seal 2^35 blocks with one key (RFC 9001,
    /// appendix B.1), and a UDP datagram has up to 2^12 blocks: 2^23 packets. Half of them, for the next handshake, are
    /// 12 s at 4 Gbit/s.
    pub const DEFAULT: Self = Self {
        renew_after: Duration::from_secs(120),
        end_after: Duration::from_secs(180),
        renew_packets: 1 << 22,
        end_packets: 1 << 23,
    };
    /// The responder of a session renews it if its initiator has not by then, so that both rarely start at once.
    const RESPONDER_WAITS: Duration = Duration::from_secs(10);
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The keys of a session, for one of its ends.
pub(super) struct Session {
    pub(super) local: Index,
    remote: Index,
    sealing: LessSafeKey,
    opening: LessSafeKey,
    next_counter: u64,
    window: ReplayWindow,
    began: Instant,
    is_initiator: bool,
    /// Whether it carried data. An unused session is not renewed, so that an idle tunnel is silent.
    is_used: bool,
}

/// A packet that was authenticated.
pub(super) struct Opened<'a> {
    pub(super) payload: &'a mut [u8],
    /// Whether no later packet of the session has arrived.
    pub(super) is_newest: bool,
}

impl Session {
    pub(super) fn new(
        (local, remote): (Index, Index),
        keys: &SessionKeys,
        is_initiator: bool,
        now: Instant,
    ) -> Self {
        let key = |bytes: &[u8]| {
            LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).expect("32 bytes"))
        };
        let (sealing, opening) = if is_initiator {
            (&keys.of_initiator, &keys.of_responder)
        } else {
            (&keys.of_responder, &keys.of_initiator)
        };
        Self {
            local,
            remote,
            sealing: key(&**sealing),
            opening: key(&**opening),
            next_counter: 0,
            window: ReplayWindow::new(),
            began: now,
            is_initiator,
            is_used: false,
        }
    }

    /// Whether packets may still be sealed.
    pub(super) fn can_seal(&self, limits: &Limits, now: Instant) -> bool {
        now < self.ends_at(limits) && self.next_counter < limits.end_packets
    }

    /// The time since its handshake.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_since(self.began)
    }

    pub(super) fn ends_at(&self, limits: &Limits) -> Instant {
        self.began + limits.end_after
    }

    /// When its renewal is due; `None` if it is not used.
    pub(super) fn renewal_at(&self, limits: &Limits) -> Option<Instant> {
        if !self.is_used {
            return None;
        }
        let packets = if self.is_initiator {
            self.next_counter.max(self.window.next())
        } else {
            // Later than the initiator, which counts these packets, too.
            self.next_counter.saturating_sub(limits.renew_packets / 4)
        };
        if packets >= limits.renew_packets {
            return Some(Instant::START);
        }
        let wait = if self.is_initiator { Duration::ZERO } else { Limits::RESPONDER_WAITS };
        Some(self.began + limits.renew_after + wait)
    }

    /// Seals a packet in place: `packet` has room for the header before the payload and for the tag behind it. The caller
    /// asks [`Self::can_seal`] before.
    pub(super) fn seal(&mut self, kind: Kind, packet: &mut [u8]) {
        Header::write_transport(packet, kind, self.remote, self.next_counter);
        let (header, rest) = packet.split_at_mut(HEADER_BYTES);
        let (payload, tag) = rest.split_at_mut(rest.len() - TAG_BYTES);
        let sealed = self
            .sealing
            .seal_in_place_separate_tag(nonce(self.next_counter), Aad::from(&*header), payload)
            .expect("a packet is shorter than 64 GiB");
        tag.copy_from_slice(sealed.as_ref());
        // The counter is the nonce: it never repeats, whatever happens to this packet.
        self.next_counter += 1;
        self.is_used |= kind == Kind::Data;
    }

    /// Opens a packet in place. `None` if it is forged, has arrived before, is older than the replay window or came after
    /// the end of the session.
    pub(super) fn open<'a>(
        &mut self,
        counter: u64,
        packet: &'a mut [u8],
        limits: &Limits,
        now: Instant,
    ) -> Option<Opened<'a>> {
        let is_late = now >= self.ends_at(limits) || counter >= limits.end_packets;
        if is_late || !self.window.is_new(counter) || packet.len() < OVERHEAD_BYTES {
            return None;
        }
        let (header, sealed) = packet.split_at_mut(HEADER_BYTES);
        let payload =
            self.opening.open_in_place(nonce(counter), Aad::from(&*header), sealed).ok()?;
        self.is_used |= header[0] == Kind::Data as u8;
        Some(Opened { payload, is_newest: self.window.record(counter) })
    }
}

/// Noise, section 12.4: 32 zero bits and the counter.
fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    const LIMITS: Limits = Limits { end_packets: 10, ..Limits::DEFAULT };

    /// Both ends of a session that began at 0 s.
    fn ends() -> [Session; 2] {
        let keys = SessionKeys {
            of_initiator: Zeroizing::new([1; 32]),
            of_responder: Zeroizing::new([2; 32]),
        };
        [true, false].map(|is_initiator| Session::new((1, 2), &keys, is_initiator, Instant::START))
    }

    fn seal(session: &mut Session) -> [u8; OVERHEAD_BYTES + 4] {
        let mut packet = [9; OVERHEAD_BYTES + 4];
        session.seal(Kind::Data, &mut packet);
        packet
    }

    /// Given a session of 10 packets, then the packets with the counters 0 to 9 are opened, and one with the counter 10, from
    /// a peer that does not end, is not.
    #[test]
    fn counters_after_the_last_one_are_refused() {
        let [mut initiator, mut responder] = ends();
        for counter in 0..11 {
            assert_eq!(initiator.can_seal(&LIMITS, Instant::START), counter < 10);
            let mut packet = seal(&mut initiator);
            let opened = responder.open(counter, &mut packet, &LIMITS, Instant::START);
            assert_eq!(opened.is_some(), counter < 10, "{counter}");
        }
    }

    /// Given a session of 0 s, then it is used before 180 s and not from then on.
    #[test]
    fn a_session_that_is_over_opens_nothing() {
        let [mut initiator, mut responder] = ends();
        let (mut first, mut second) = (seal(&mut initiator), seal(&mut initiator));
        let end = Instant::from_millis(180_000);
        let before = Instant::from_nanos(end.as_nanos() - 1);
        assert!(initiator.can_seal(&LIMITS, before) && !initiator.can_seal(&LIMITS, end));
        assert!(responder.open(1, &mut second, &LIMITS, end).is_none());
        assert!(responder.open(0, &mut first, &LIMITS, before).is_some());
    }

    /// An end does not open what it has sealed itself: each direction has its key.
    #[test]
    fn a_reflected_packet_is_refused() {
        let [mut initiator, _] = ends();
        let mut packet = seal(&mut initiator);
        assert!(initiator.open(0, &mut packet, &LIMITS, Instant::START).is_none());
    }
}
