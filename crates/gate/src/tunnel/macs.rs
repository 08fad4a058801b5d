//! The MACs that guard the work of a handshake, and cookies.
//!
//! The first MAC of a message is keyed by the public key of its receiver: whoever does not know that key gets no answer.
//! The second one is keyed by a cookie that the receiver gave to the sender's address: under load it shows that packets
//! to that address reach the sender, so that a limit for each address limits the sender.

use std::net::{IpAddr, SocketAddr};

use bentpipe_core::time::{Duration, Instant};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::digest::{Context, SHA256};
use ring::hmac::{self, HMAC_SHA256};
use zeroize::Zeroizing;

use super::format::{
    COOKIE_NONCE_BYTES, COOKIE_REPLY_BYTES, Index, Kind, MAC_1_AT, MAC_2_AT, MAC_BYTES,
    cookie_parts, start, write_start,
};
use super::keys::PublicKey;
use super::random::{self, Random};

const MAC_LABEL: &[u8] = b"bentpipe tunnel mac";
const COOKIE_LABEL: &[u8] = b"bentpipe tunnel cookie";

/// A cookie is made of the number of such a period, and accepted in the next one, too: for this long at least.
pub(super) const COOKIE_PERIOD: Duration = Duration::from_secs(120);

/// What a responder gives to an address.
pub(super) type Cookie = [u8; MAC_BYTES];

/// The key of the first MAC of messages to one receiver, and that of its cookie replies.
pub(super) struct ReceiverKeys {
    mac: hmac::Key,
    cookie: hmac::Key,
}

impl ReceiverKeys {
    pub(super) fn new(receiver: &PublicKey) -> Self {
        let key = |label| {
            let mut context = Context::new(&SHA256);
            context.update(label);
            context.update(receiver.as_bytes());
            hmac::Key::new(HMAC_SHA256, context.finish().as_ref())
        };
        Self { mac: key(MAC_LABEL), cookie: key(COOKIE_LABEL) }
    }

    /// Writes the first MAC of a message, which is at `at`.
    pub(super) fn sign(&self, message: &mut [u8], at: usize) {
        let (covered, mac) = message.split_at_mut(at);
        mac[..MAC_BYTES].copy_from_slice(hmac::sign(&self.mac, covered).as_ref());
    }

    /// Whether the first MAC of a message, at `at`, is right; compared in constant time.
    pub(super) fn is_signed(&self, message: &[u8], at: usize) -> bool {
        let (covered, mac) = message.split_at(at);
        hmac::verify(&self.mac, covered, &mac[..MAC_BYTES]).is_ok()
    }

    /// The key of one cookie reply. The nonce and the MAC of the message that it answers make it unique, so that the nonce
    /// of the cipher may be zero.
    fn reply_key(&self, nonce: &[u8], mac_1: &[u8]) -> LessSafeKey {
        let mut context = hmac::Context::with_key(&self.cookie);
        context.update(nonce);
        context.update(mac_1);
        let key = context.sign();
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_ref()).expect("32 bytes"))
    }

    /// A cookie reply to the initiator `receiver` of a first message with this first MAC.
    pub(super) fn seal_cookie(
        &self,
        receiver: Index,
        mac_1: &[u8],
        cookie: &Cookie,
        random: &mut dyn Random,
    ) -> [u8; COOKIE_REPLY_BYTES] {
        let mut reply = [0; COOKIE_REPLY_BYTES];
        let start = write_start(&mut reply, Kind::CookieReply, receiver);
        let nonce: [u8; COOKIE_NONCE_BYTES] = random::array(random);
        let key = self.reply_key(&nonce, mac_1);
        let mut sealed = *cookie;
        let tag = key
            .seal_in_place_separate_tag(zero_nonce(), Aad::from(start), &mut sealed)
            .expect("a cookie is short");
        let (_, rest) = reply.split_at_mut(start.len());
        let parts = nonce.iter().chain(&sealed).chain(tag.as_ref());
        rest.iter_mut().zip(parts).for_each(|(byte, part)| *byte = *part);
        reply
    }

    /// The cookie in a reply to a first message with this first MAC; `None` if the reply is forged.
    pub(super) fn open_cookie(&self, reply: &[u8], mac_1: &[u8]) -> Option<Cookie> {
        let (nonce, sealed) = cookie_parts(reply);
        let mut sealed = sealed.to_vec();
        let key = self.reply_key(nonce, mac_1);
        let opened = key.open_in_place(zero_nonce(), Aad::from(start(reply)), &mut sealed).ok()?;
        Some((&*opened).try_into().expect("the length was compared"))
    }
}

fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

/// The first MAC of a first handshake message.
pub(super) fn mac_1(message: &[u8]) -> &[u8] {
    &message[MAC_1_AT..MAC_2_AT]
}

/// Writes the second MAC of a first handshake message, keyed by a cookie.
pub(super) fn add_cookie(message: &mut [u8], cookie: &Cookie) {
    let (covered, mac) = message.split_at_mut(MAC_2_AT);
    mac.copy_from_slice(hmac::sign(&hmac::Key::new(HMAC_SHA256, cookie), covered).as_ref());
}

/// Makes and checks the cookies of this end. No state is kept for an address.
pub(super) struct CookieJar {
    secret: hmac::Key,
}

impl CookieJar {
    pub(super) fn new(random: &mut dyn Random) -> Self {
        let secret: Zeroizing<[u8; 32]> = Zeroizing::new(random::array(random));
        Self { secret: hmac::Key::new(HMAC_SHA256, &*secret) }
    }

    /// The cookie for an address at `now`.
    pub(super) fn cookie(&self, from: SocketAddr, now: Instant) -> Cookie {
        self.cookie_of(from, period(now))
    }

    /// Whether the second MAC of a first handshake message is keyed by a recent cookie for `from`.
    pub(super) fn has_cookie(&self, message: &[u8], from: SocketAddr, now: Instant) -> bool {
        let (covered, mac) = message.split_at(MAC_2_AT);
        let now = period(now);
        [Some(now), now.checked_sub(1)].into_iter().flatten().any(|period| {
            let key = hmac::Key::new(HMAC_SHA256, &self.cookie_of(from, period));
            hmac::verify(&key, covered, mac).is_ok()
        })
    }

    /// A number that a stranger cannot predict, for the addresses that one sender can have: one IPv4 address, or 2^64 IPv6
    /// addresses (RFC 4291, section 2.5.1).
    pub(super) fn hash(&self, from: SocketAddr) -> usize {
        // A socket for both families gives IPv4 addresses as IPv6 ones, which all have the same first half.
        let digest = match from.ip().to_canonical() {
            IpAddr::V4(address) => hmac::sign(&self.secret, &address.octets()),
            IpAddr::V6(address) => hmac::sign(&self.secret, &address.octets()[..8]),
        };
        usize::from(digest.as_ref()[0])
    }

    fn cookie_of(&self, from: SocketAddr, period: u64) -> Cookie {
        let mut context = hmac::Context::with_key(&self.secret);
        context.update(&period.to_be_bytes());
        context.update(&from.port().to_be_bytes());
        match from.ip() {
            IpAddr::V4(address) => context.update(&address.octets()),
            IpAddr::V6(address) => context.update(&address.octets()),
        }
        context.sign().as_ref().try_into().expect("32 bytes")
    }
}

fn period(now: Instant) -> u64 {
    now.as_nanos() / COOKIE_PERIOD.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::super::format::INITIATION_BYTES;
    use super::super::random::OsRandom;
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn message() -> [u8; INITIATION_BYTES] {
        let mut message = [7; INITIATION_BYTES];
        message[0] = Kind::HandshakeInitiation as u8;
        message
    }

    /// Given a signed message, when any bit before or in the MAC is changed, or the receiver is another one, then it is
    /// not signed.
    #[test]
    fn a_mac_covers_every_bit_before_it() {
        let keys = ReceiverKeys::new(&PublicKey::from_bytes([1; 32]));
        let mut message = message();
        keys.sign(&mut message, MAC_1_AT);
        assert!(keys.is_signed(&message, MAC_1_AT));
        assert!(!ReceiverKeys::new(&PublicKey::from_bytes([2; 32])).is_signed(&message, MAC_1_AT));
        for bit in 0..MAC_2_AT * 8 {
            message[bit / 8] ^= 1 << (bit % 8);
            assert!(!keys.is_signed(&message, MAC_1_AT), "bit {bit}");
            message[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Given a cookie of 0 s, then it is accepted until 240 s, from its own address and port only.
    #[test]
    fn a_cookie_is_of_one_address_and_two_periods() {
        let jar = CookieJar::new(&mut OsRandom::new());
        let from = address("192.0.2.1:1000");
        let mut message = message();
        add_cookie(&mut message, &jar.cookie(from, Instant::START));
        assert!(jar.has_cookie(&message, from, Instant::from_millis(239_999)));
        assert!(!jar.has_cookie(&message, from, Instant::from_millis(240_000)));
        for other in ["192.0.2.1:1001", "192.0.2.2:1000", "[2001:db8::1]:1000"] {
            assert!(!jar.has_cookie(&message, address(other), Instant::START), "{other}");
        }
        message[20] ^= 1;
        assert!(!jar.has_cookie(&message, from, Instant::START));
        // Without a cookie the field is zero.
        assert!(!jar.has_cookie(&[0; INITIATION_BYTES], from, Instant::START));
    }

    /// Given a cookie reply, then only the message that it answers opens it, and no bit of it may differ.
    #[test]
    fn a_cookie_reply_is_for_one_message() {
        let keys = ReceiverKeys::new(&PublicKey::from_bytes([1; 32]));
        let mut reply = keys.seal_cookie(5, &[3; 32], &[9; 32], &mut OsRandom::new());
        assert_eq!(keys.open_cookie(&reply, &[3; 32]), Some([9; 32]));
        assert_eq!(keys.open_cookie(&reply, &[4; 32]), None);
        for bit in 0..reply.len() * 8 {
            reply[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(keys.open_cookie(&reply, &[3; 32]), None, "bit {bit}");
            reply[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Addresses of one IPv6 subnet share a limit; the ports of an address do, too.
    #[test]
    fn addresses_of_one_sender_have_one_hash() {
        let jar = CookieJar::new(&mut OsRandom::new());
        let hash = |text| jar.hash(address(text));
        assert_eq!(hash("192.0.2.1:1"), hash("192.0.2.1:2"));
        assert_eq!(hash("[2001:db8::1]:1"), hash("[2001:db8::ffff:1]:2"));
        assert_eq!(hash("192.0.2.1:1"), hash("[::ffff:192.0.2.1]:1"));
        let distinct: std::collections::BTreeSet<_> =
            (0..200).map(|host| jar.hash(SocketAddr::from(([192, 0, 2, host], 1)))).collect();
        // 200 draws of 256 give 139 distinct ones on average, with a standard deviation of 4.
        assert!(distinct.len() > 100, "{}", distinct.len());
    }
}
