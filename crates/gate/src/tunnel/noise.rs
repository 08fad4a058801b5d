//! The handshake: Noise IK with X25519, AES-256-GCM and SHA-256 (The Noise Protocol Framework, revision 34), by `snow`.
//!
//! ```text
//! IK:  <- s   ...   -> e, es, s, ss, timestamp   <- e, ee, se, session index
//! ```
//!
//! The initiator knows the responder's static key; its own one travels sealed in the first message.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{BoxedCryptoResolver, CryptoResolver, DefaultResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random as SnowRandom};
use snow::{Builder, Error, HandshakeState};
use zeroize::Zeroizing;

use super::format::{Index, NOISE_1_BYTES, NOISE_2_BYTES};
use super::keys::{KEY_BYTES, PrivateKey, PublicKey};
use super::random::{self, Random};

const NAME: &str = "Noise_IK_25519_AESGCM_SHA256";
/// What both ends must have in common: the version of the protocol, and the start of the first message, so that its
/// session index is authenticated, too.
const PROLOGUE: &[u8] = b"bentpipe tunnel 1";

/// Nanoseconds since 1970 by the initiator's clock; each of its first messages has a higher one than all before.
pub(super) type Timestamp = u64;

/// The keys of a session, by direction.
pub(super) struct SessionKeys {
    pub(super) of_initiator: Zeroizing<[u8; KEY_BYTES]>,
    pub(super) of_responder: Zeroizing<[u8; KEY_BYTES]>,
}

/// A handshake that this end started.
pub(super) struct Initiator(HandshakeState);

/// A handshake whose first message this end has read.
pub(super) struct Responder {
    state: HandshakeState,
    /// The static key of the initiator, which the first message has proved.
    pub(super) initiator: PublicKey,
    pub(super) timestamp: Timestamp,
}

/// One ephemeral key, drawn before the handshake; the other primitives are those of ring, and X25519 of curve25519-dalek,
/// because ring does not compute with static keys.
struct Resolver(Zeroizing<[u8; KEY_BYTES]>);

struct OneKey(Option<Zeroizing<[u8; KEY_BYTES]>>);

impl SnowRandom for OneKey {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let key = self.0.take().filter(|key| key.len() == bytes.len()).ok_or(Error::Rng)?;
        bytes.copy_from_slice(&*key);
        Ok(())
    }
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn SnowRandom>> {
        Some(Box::new(OneKey(Some(self.0.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

fn builder(random: &mut dyn Random) -> Builder<'static> {
    let resolver: BoxedCryptoResolver = Box::new(Resolver(Zeroizing::new(random::array(random))));
    Builder::with_resolver(NAME.parse().expect("a Noise protocol"), resolver)
}

fn prologue(start: &[u8]) -> Vec<u8> {
    [PROLOGUE, start].concat()
}

impl Initiator {
    /// Starts a handshake with `responder` and writes its first message. `start` is what precedes that message.
    pub(super) fn start(
        own: &PrivateKey,
        responder: &PublicKey,
        start: &[u8],
        timestamp: Timestamp,
        message: &mut [u8],
        random: &mut dyn Random,
    ) -> Self {
        let prologue = prologue(start);
        let mut build = || {
            builder(random)
                .local_private_key(own.as_bytes())?
                .remote_public_key(responder.as_bytes())?
                .prologue(&prologue)?
                .build_initiator()
        };
        let mut state = build().expect("all keys are given");
        let written = state.write_message(&timestamp.to_be_bytes(), message);
        assert_eq!(written.ok(), Some(NOISE_1_BYTES), "the layout of the first message");
        Self(state)
    }

    /// Reads the second message: the responder's session index and the keys. After an error it can read another one, so
    /// that a forged message does not end the handshake.
    pub(super) fn finish(&mut self, message: &[u8]) -> Option<(Index, SessionKeys)> {
        let mut payload = [0; NOISE_2_BYTES];
        let length = self.0.read_message(message, &mut payload).ok()?;
        let index = Index::from_be_bytes(payload[..length].try_into().ok()?);
        Some((index, keys(&mut self.0)))
    }
}

impl Responder {
    /// Reads a first message; `None` if it is not for this end or was changed.
    pub(super) fn read(
        own: &PrivateKey,
        start: &[u8],
        message: &[u8],
        random: &mut dyn Random,
    ) -> Option<Self> {
        let prologue = prologue(start);
        let mut build = || {
            builder(random)
                .local_private_key(own.as_bytes())?
                .prologue(&prologue)?
                .build_responder()
        };
        let mut state = build().expect("all keys are given");
        let mut payload = [0; NOISE_1_BYTES];
        let length = state.read_message(message, &mut payload).ok()?;
        let timestamp = Timestamp::from_be_bytes(payload[..length].try_into().ok()?);
        let initiator = PublicKey::from_bytes(state.get_remote_static()?.try_into().ok()?);
        Some(Self { state, initiator, timestamp })
    }

    /// Writes the second message, with this end's session index.
    pub(super) fn finish(mut self, index: Index, message: &mut [u8]) -> SessionKeys {
        let written = self.state.write_message(&index.to_be_bytes(), message);
        assert_eq!(written.ok(), Some(NOISE_2_BYTES), "the layout of the second message");
        keys(&mut self.state)
    }
}

fn keys(state: &mut HandshakeState) -> SessionKeys {
    let (of_initiator, of_responder) = state.dangerously_get_raw_split();
    SessionKeys {
        of_initiator: Zeroizing::new(of_initiator),
        of_responder: Zeroizing::new(of_responder),
    }
}

#[cfg(test)]
mod tests {
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

    use super::super::random::OsRandom;
    use super::*;

    /// Bytes that are known before.
    struct Fixed(Vec<u8>);

    impl Random for Fixed {
        fn fill(&mut self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.0);
        }
    }

    struct Ends {
        initiator: PrivateKey,
        responder: PrivateKey,
    }

    fn ends() -> Ends {
        Ends {
            initiator: PrivateKey::from_bytes([1; 32]),
            responder: PrivateKey::from_bytes([2; 32]),
        }
    }

    fn first(ends: &Ends, random: &mut dyn Random) -> (Initiator, [u8; NOISE_1_BYTES]) {
        let mut message = [0; NOISE_1_BYTES];
        let to = ends.responder.public();
        let started = Initiator::start(&ends.initiator, &to, b"start", 77, &mut message, random);
        (started, message)
    }

    /// The vector of this protocol by cacophony, a Noise library in Haskell (vectors/cacophony.txt): both handshake
    /// messages, and with the two keys the first packet of each direction.
    #[test]
    fn the_handshake_matches_the_published_vector() {
        let initiator = bytes("e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1");
        let responder = bytes("4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893");
        let to = bytes("31e0303fd6418d2f8c0e78b91f22e8caed0fbe48656dcf4767e4834f701b8f62");
        let drawn_1 = bytes("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a");
        let drawn_2 = bytes("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b");
        let (mut drawn_1, mut drawn_2) = (Fixed(drawn_1), Fixed(drawn_2));
        let with = |random, own| {
            let builder = builder(random).local_private_key(own)?;
            builder.prologue(b"John Galt")
        };
        let first = with(&mut drawn_1, &initiator).and_then(|end| end.remote_public_key(&to));
        let mut first = first.and_then(Builder::build_initiator).expect("keys");
        let second = with(&mut drawn_2, &responder);
        let mut second = second.and_then(Builder::build_responder).expect("keys");

        let mut message = [0; 200];
        let mut payload = [0; 200];
        let length = first.write_message(b"Ludwig von Mises", &mut message).expect("written");
        let expected = bytes(
            "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79444e417bc55c7a8166c993356c1be41ef6\
             7818a292426f301556c7f26b21d25ddb097153891a9a956cff47b83e63ad8d701c1342c209cff1ca5ecd43402762ac24\
             9e3bd3a4c0a145fe07cb5dae28ea13a3",
        );
        assert_eq!(message[..length], expected);
        second.read_message(&message[..length], &mut payload).expect("valid");
        let length = second.write_message(b"Murray Rothbard", &mut message).expect("written");
        let expected = bytes(
            "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843af2ccf9972e22afc67aeafcd25162f7f\
             98c363b7762e3e4cb7d272e39f27a5",
        );
        assert_eq!(message[..length], expected);
        first.read_message(&message[..length], &mut payload).expect("valid");

        for (keys, opened) in [(keys(&mut first), "initiator"), (keys(&mut second), "responder")] {
            let sealed = seal(&keys.of_initiator, b"F. A. Hayek");
            assert_eq!(
                sealed,
                bytes("66acfc92e3197de166809e6d4d5d003dcc819a84bc3522ca53c9d9"),
                "{opened}"
            );
            let sealed = seal(&keys.of_responder, b"Carl Menger");
            assert_eq!(
                sealed,
                bytes("71f89aa6533a6de70b0826864dd75f60806ee40170c16290189eb3"),
                "{opened}"
            );
        }
    }

    /// Noise, section 12.4: the nonce is 32 zero bits and the counter, here 0.
    fn seal(key: &[u8; 32], payload: &[u8]) -> Vec<u8> {
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("32 bytes"));
        let mut sealed = payload.to_vec();
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        key.seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed).expect("short");
        sealed
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |index| u8::from_str_radix(&hex[index..index + 2], 16).expect("a digit");
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    /// Both ends derive the same keys, each direction has its own, and the payloads arrive.
    #[test]
    fn both_ends_have_the_same_keys() {
        let ends = ends();
        let random = &mut OsRandom::new();
        let (mut initiator, message_1) = first(&ends, random);
        let responder =
            Responder::read(&ends.responder, b"start", &message_1, random).expect("valid");
        assert_eq!((responder.initiator, responder.timestamp), (ends.initiator.public(), 77));
        let mut message_2 = [0; NOISE_2_BYTES];
        let keys = responder.finish(9, &mut message_2);
        let (index, found) = initiator.finish(&message_2).expect("valid");
        assert_eq!(index, 9);
        assert_eq!(*keys.of_initiator, *found.of_initiator);
        assert_eq!(*keys.of_responder, *found.of_responder);
        assert_ne!(*keys.of_initiator, *keys.of_responder);
    }

    /// Given a first message, when a bit of it or of what precedes it is changed, or it is for another end, then it is
    /// refused.
    #[test]
    fn a_changed_first_message_is_refused() {
        let ends = ends();
        let random = &mut OsRandom::new();
        let (_, mut message) = first(&ends, random);
        assert!(Responder::read(&ends.responder, b"start", &message, random).is_some());
        assert!(Responder::read(&ends.responder, b"stArt", &message, random).is_none());
        assert!(Responder::read(&ends.initiator, b"start", &message, random).is_none());
        // Bits of the ephemeral key, of the static one, of the timestamp and of both tags.
        for bit in (0..message.len() * 8).step_by(29) {
            // X25519 ignores the highest bit of a public key (RFC 7748, section 5), but the transcript does not.
            message[bit / 8] ^= 1 << (bit % 8);
            let read = Responder::read(&ends.responder, b"start", &message, random);
            assert!(read.is_none(), "bit {bit}");
            message[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Given forged second messages, when the true one comes after them, then it still ends the handshake.
    #[test]
    fn a_forged_second_message_does_not_end_a_handshake() {
        let ends = ends();
        let random = &mut OsRandom::new();
        let (mut initiator, message_1) = first(&ends, random);
        let responder = Responder::read(&ends.responder, b"start", &message_1, random);
        let mut message_2 = [0; NOISE_2_BYTES];
        let keys = responder.expect("valid").finish(9, &mut message_2);
        for bit in (0..message_2.len() * 8).step_by(7) {
            let mut forged = message_2;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(initiator.finish(&forged).is_none(), "bit {bit}");
        }
        assert!(initiator.finish(&[0; NOISE_2_BYTES]).is_none());
        let (_, found) = initiator.finish(&message_2).expect("the true one");
        assert_eq!(*found.of_responder, *keys.of_responder);
    }
}
