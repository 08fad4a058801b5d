//! The processor time of packets and handshakes in the sessions of the tunnel, without sockets.

use std::net::SocketAddr;

use bentpipe_core::time::Instant;
use bentpipe_gate::tunnel::{
    Datagram, Limits, OVERHEAD_BYTES, OsRandom, Output, PeerId, PeerSettings, PrivateKey, Settings,
    Tunnel,
};
use bentpipe_sys::clock::Clock;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

pub(crate) const PAYLOAD_BYTES: usize = 1_400;
/// As many packets as one system call brings.
const PACKETS: usize = 64;
const BATCHES: u32 = 5_000;
const HANDSHAKES: u32 = 200;
/// The only peer of each end.
const PEER: PeerId = PeerId(0);

/// Nanoseconds to seal a packet, and to open it.
pub(crate) type SealOpen = [u64; 2];

/// A terminal, and a hub that learns where the terminal is.
struct Pair {
    terminal: Tunnel,
    hub: Tunnel,
}

fn addresses() -> [SocketAddr; 2] {
    [1, 2].map(|host| ([192, 0, 2, host], 4_000).into())
}

/// What an end answers to a datagram.
fn answer(end: &mut Tunnel, datagram: &Datagram, from: SocketAddr) -> Option<Datagram> {
    match end.input(&mut datagram.bytes().to_vec(), from, Instant::START) {
        Output::Send(answer) => Some(answer),
        Output::Nothing | Output::Payload { .. } => None,
    }
}

impl Pair {
    fn new() -> Self {
        let end = |own, peer, endpoint| {
            let public_key = PrivateKey::from_bytes([peer; 32]).public();
            let settings = Settings {
                private_key: PrivateKey::from_bytes([own; 32]),
                peers: vec![PeerSettings { public_key, endpoint, keepalive: None }],
                limits: Limits::DEFAULT,
            };
            Tunnel::new(settings, Box::new(OsRandom::new())).expect("distinct keys")
        };
        let [_, hub] = addresses();
        Self { terminal: end(1, 2, Some(hub)), hub: end(2, 1, None) }
    }

    /// Exchanges messages until both ends can send payloads.
    fn connect(&mut self) {
        let [terminal, hub] = addresses();
        let mut due = Vec::new();
        self.terminal.wake(Instant::START, 1, &mut due);
        let mut message = due.pop();
        while let Some(to_hub) = message {
            let to_terminal = answer(&mut self.hub, &to_hub, terminal);
            message = to_terminal.and_then(|datagram| answer(&mut self.terminal, &datagram, hub));
        }
        let has_session = |end: &Tunnel| end.has_session(PEER, Instant::START);
        assert!(has_session(&self.terminal) && has_session(&self.hub));
    }
}

/// The buffers of a batch: header, payload and tag of each packet.
type Packets = [[u8; PAYLOAD_BYTES + OVERHEAD_BYTES]];

/// A packet in the sessions, and by the cipher alone. Their batches alternate; the best of each counts, because others
/// were interrupted.
pub(crate) fn seal_and_open() -> [SealOpen; 2] {
    let mut pair = Pair::new();
    pair.connect();
    let key = UnboundKey::new(&AES_256_GCM, &[1; 32]).expect("32 bytes");
    let key = LessSafeKey::new(key);
    let mut packets = vec![[0; PAYLOAD_BYTES + OVERHEAD_BYTES]; PACKETS];
    let mut best = [[u64::MAX; 2]; 2];
    for _ in 0..BATCHES {
        let batch = [session_batch(&mut pair, &mut packets), cipher_batch(&key, &mut packets)];
        best = [0, 1].map(|which| [0, 1].map(|part| best[which][part].min(batch[which][part])));
    }
    best.map(|nanos| nanos.map(|nanos| nanos / PACKETS as u64))
}

fn session_batch(pair: &mut Pair, packets: &mut Packets) -> [u64; 2] {
    let [from, to] = addresses();
    let clock = Clock::start();
    for packet in &mut *packets {
        assert_eq!(pair.terminal.output(PEER, packet, Instant::START), Ok(to));
    }
    let sealed = clock.now().as_nanos();
    for packet in packets {
        let output = pair.hub.input(packet, from, Instant::START);
        assert!(matches!(output, Output::Payload { .. }));
    }
    [sealed, clock.now().as_nanos() - sealed]
}

fn cipher_batch(key: &LessSafeKey, packets: &mut Packets) -> [u64; 2] {
    let nonce = || Nonce::assume_unique_for_key([0; 12]);
    // As long as the authenticated header of a packet.
    let header = || Aad::from([0; 13]);
    let tag_bytes = AES_256_GCM.tag_len();
    let clock = Clock::start();
    for packet in &mut *packets {
        let (payload, rest) = packet.split_at_mut(PAYLOAD_BYTES);
        let tag = key.seal_in_place_separate_tag(nonce(), header(), payload);
        rest[..tag_bytes].copy_from_slice(tag.expect("a short packet").as_ref());
    }
    let sealed = clock.now().as_nanos();
    for packet in packets {
        let opened = key.open_in_place(nonce(), header(), &mut packet[..PAYLOAD_BYTES + tag_bytes]);
        assert!(opened.is_ok());
    }
    [sealed, clock.now().as_nanos() - sealed]
}

/// Nanoseconds of a handshake, both ends together.
pub(crate) fn handshake() -> u64 {
    let connect = |_| {
        let mut pair = Pair::new();
        let clock = Clock::start();
        pair.connect();
        clock.now().as_nanos()
    };
    (0..HANDSHAKES).map(connect).min().expect("there are some")
}
