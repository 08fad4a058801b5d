//! Counts of a relay.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the start, updated by all threads.
#[derive(Debug, Default)]
pub struct Counters {
    accepted: AtomicU64,
    ended: AtomicU64,
    reset: AtomicU64,
    not_connected: AtomicU64,
    over_limit: AtomicU64,
    idle: AtomicU64,
    to_server_bytes: AtomicU64,
    to_client_bytes: AtomicU64,
}

/// Why a connection is no longer relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both directions ended with a FIN.
    Fin,
    /// A leg was reset, or failed.
    Reset,
    /// The server refused or did not answer.
    NotConnected,
    /// No data for too long.
    Idle,
}

macro_rules! reads {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(&self) -> u64 {
            self.$name.load(Ordering::Relaxed)
        })*
    };
}

impl Counters {
    reads! {
        /// Connections of clients that were accepted.
        accepted,
        /// Connections that ended with a FIN in both directions.
        ended,
        /// Connections that ended with a reset.
        reset,
        /// Connections that were reset because the server refused or did not answer.
        not_connected,
        /// Connections that were reset because there were too many.
        over_limit,
        /// Connections that were reset after the idle limit.
        idle,
        /// Bytes that servers' sockets have taken.
        to_server_bytes,
        /// Bytes that clients' sockets have taken.
        to_client_bytes,
    }

    /// The number of connections that are open.
    #[must_use]
    pub fn open(&self) -> u64 {
        // Ends are read first, so that the number is not below zero.
        let ended = self.ended() + self.reset() + self.not_connected() + self.idle();
        self.accepted().saturating_sub(ended + self.over_limit())
    }

    /// Counts a connection, unless there are `limit` already.
    pub(super) fn accept(&self, limit: u64) -> bool {
        let is_over = self.open() >= limit;
        self.accepted.fetch_add(1, Ordering::Relaxed);
        if is_over {
            self.over_limit.fetch_add(1, Ordering::Relaxed);
        }
        !is_over
    }

    pub(super) fn end(&self, end: End) {
        let counter = match end {
            End::Fin => &self.ended,
            End::Reset => &self.reset,
            End::NotConnected => &self.not_connected,
            End::Idle => &self.idle,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn relayed(&self, to_server: u64, to_client: u64) {
        self.to_server_bytes.fetch_add(to_server, Ordering::Relaxed);
        self.to_client_bytes.fetch_add(to_client, Ordering::Relaxed);
    }
}
