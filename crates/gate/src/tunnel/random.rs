//! Where random bytes come from: the operating system, or a test.

use ring::rand::{SecureRandom, SystemRandom};

/// A source of random bytes for keys, session indexes and nonces.
pub trait Random: Send {
    /// Fills `bytes`. In operation they must be unpredictable.
    fn fill(&mut self, bytes: &mut [u8]);
}

/// The random bytes of the operating system (`getrandom(2)`).
#[derive(Debug)]
pub struct OsRandom(SystemRandom);

impl OsRandom {
    /// The source of this system.
    #[must_use]
    pub fn new() -> Self {
        Self(SystemRandom::new())
    }
}

impl Default for OsRandom {
    fn default() -> Self {
        Self::new()
    }
}

impl Random for OsRandom {
    /// # Panics
    /// If the system gives no random bytes: without them no key is secret.
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes).expect("the system gives random bytes");
    }
}

/// `N` random bytes.
pub(super) fn array<const N: usize>(random: &mut dyn Random) -> [u8; N] {
    let mut bytes = [0; N];
    random.fill(&mut bytes);
    bytes
}
