//! The handshakes of TLS as bytes on the connection: the flights of the client and of the server.
//!
//! They are whole handshakes with a chain of two certificates, as `docs/model/web-page.md` says, without
//! resumption, session tickets, False Start (RFC 7918) and hybrid key shares (X25519MLKEM768), with which
//! hellos are more than 1 kB larger.

use crate::plan::Tls;

/// A handshake: flights of the client, each with the server's answer, and bytes that the client
/// sends with its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handshake {
    /// Bytes of the client, and of the server in answer.
    flights: &'static [(u64, u64)],
    /// Bytes that the client sends with its first request.
    last: u64,
}

/// A ClientHello that is padded to 512 bytes (RFC 7685, section 4), in a record with a header of 5.
const CLIENT_HELLO: u64 = 517;
/// A Certificate record of TLS 1.2, its header of 5 included, with two certificates of about 1,250 bytes each,
/// as measured by D. Wong, "How big are TLS records during a handshake?", cryptologie.net, June 2017. The
/// message of TLS 1.3 without a header is as large: its context and two empty lists of extensions take 5.
const CERTIFICATE: u64 = 2_540;
/// A ChangeCipherSpec record (RFC 8446, appendix D.4; RFC 5246, section 7.1).
const CHANGE_CIPHER_SPEC: u64 = 6;

/// What an encrypted record of TLS 1.3 adds (RFC 8446, section 5.2): its header, the content type and the tag of
/// AES-GCM.
const PROTECTION: u64 = 5 + 1 + 16;
/// ServerHello (section 4.1.3): the headers of record and message, version, random, session, cipher suite,
/// compression, and the extensions of the version and of a key share of X25519, with their length.
const SERVER_HELLO: u64 = 5 + 4 + 2 + 32 + 33 + 2 + 1 + 2 + 6 + 40;
/// EncryptedExtensions: its header, a length, and the protocol "h2" by ALPN (RFC 7301), also for HTTP/1.1, whose
/// name is 6 bytes longer.
const ENCRYPTED_EXTENSIONS: u64 = 4 + 2 + 9 + PROTECTION;
/// CertificateVerify (section 4.4.3): its header, algorithm and length, and a signature of RSA-2048.
const CERTIFICATE_VERIFY: u64 = 4 + 4 + 256 + PROTECTION;
/// Finished (section 4.4.4): its header, and an HMAC with SHA-256.
const FINISHED: u64 = 4 + 32 + PROTECTION;

/// RFC 8446, section 2: one round trip. The client's Finished goes with its first request.
const TLS_1_3: Handshake = Handshake {
    flights: &[(
        CLIENT_HELLO,
        SERVER_HELLO
            + CHANGE_CIPHER_SPEC
            + ENCRYPTED_EXTENSIONS
            + CERTIFICATE
            + PROTECTION
            + CERTIFICATE_VERIFY
            + FINISHED,
    )],
    last: CHANGE_CIPHER_SPEC + FINISHED,
};

/// RFC 5246, section 7.3, with ECDHE and RSA: two round trips. ServerHello, ServerKeyExchange and
/// ClientKeyExchange are those of Wong; ServerHelloDone has 9 bytes. A Finished of AES-GCM has 45: header 5,
/// nonce 8, message 16 and tag 16.
const TLS_1_2: Handshake = Handshake {
    flights: &[
        (CLIENT_HELLO, 66 + CERTIFICATE + 338 + 9),
        (75 + CHANGE_CIPHER_SPEC + 45, CHANGE_CIPHER_SPEC + 45),
    ],
    last: 0,
};

const NONE: Handshake = Handshake { flights: &[], last: 0 };

impl Handshake {
    pub(super) fn of(tls: Option<Tls>) -> Self {
        match tls {
            Some(Tls::V1_3) => TLS_1_3,
            Some(Tls::V1_2) => TLS_1_2,
            None => NONE,
        }
    }

    /// The number of flights that the client waits for: the round trips.
    pub(super) fn round_trips(self) -> usize {
        self.flights.len()
    }

    /// Bytes of a flight of the client, from 0; 0 after the last one.
    pub(super) fn client_flight(self, number: usize) -> u64 {
        self.flights.get(number).map_or(0, |flight| flight.0)
    }

    /// Bytes of a flight of the server, from 0; 0 after the last one.
    pub(super) fn server_flight(self, number: usize) -> u64 {
        self.flights.get(number).map_or(0, |flight| flight.1)
    }

    /// Bytes that the client sends with its first request.
    pub(super) fn last(self) -> u64 {
        self.last
    }

    /// Bytes of the client's first `number` flights.
    pub(super) fn client_bytes(self, number: usize) -> u64 {
        self.flights.iter().take(number).map(|flight| flight.0).sum()
    }

    /// Bytes of the server's first `number` flights.
    pub(super) fn server_bytes(self, number: usize) -> u64 {
        self.flights.iter().take(number).map(|flight| flight.1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expect the round trips of RFC 8446 and RFC 5246, and flights of the server that fit in an
    /// initial window of ten segments (RFC 6928).
    #[test]
    fn handshakes_have_their_round_trips() {
        for (tls, round_trips) in [(None, 0), (Some(Tls::V1_3), 1), (Some(Tls::V1_2), 2)] {
            let handshake = Handshake::of(tls);
            assert_eq!(handshake.round_trips(), round_trips);
            assert!(handshake.server_bytes(round_trips) < 10 * 1_448);
        }
        // 127 + 6 + 37 + 2,562 + 286 + 58.
        assert_eq!(Handshake::of(Some(Tls::V1_3)).server_flight(0), 3_076);
        assert_eq!(Handshake::of(Some(Tls::V1_2)).server_bytes(2), 2_953 + 51);
    }
}
