//! Counts of a relay.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::legs::{LegCounters, LegReport, Sampled};
use crate::Side;

/// Counts since the start, updated by all threads.
#[derive(Debug, Default)]
pub struct Counters {
    accepted: AtomicU64,
    ended: AtomicU64,
    reset: AtomicU64,
    refused: AtomicU64,
    expired: AtomicU64,
    idle: AtomicU64,
    to_server_bytes: AtomicU64,
    to_client_bytes: AtomicU64,
    legs: [LegCounters; 2],
}

/// Why a connection is no longer relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both directions ended with a FIN.
    Fin,
    /// A leg was reset, or failed.
    Reset,
    /// The server refused.
    Refused,
    /// The server did not answer.
    Expired,
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
        /// Connections that were reset because the server refused.
        refused,
        /// Connections that were reset because the server did not answer.
        expired,
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
        let failed = self.refused() + self.expired() + self.idle();
        let ended = self.ended() + self.reset() + failed;
        self.accepted().saturating_sub(ended)
    }

    /// The legs on a side.
    #[must_use]
    pub fn legs(&self, side: Side) -> LegReport {
        self.legs[side as usize].report()
    }

    pub(super) fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self, end: End) {
        let counter = match end {
            End::Fin => &self.ended,
            End::Reset => &self.reset,
            End::Refused => &self.refused,
            End::Expired => &self.expired,
            End::Idle => &self.idle,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn relayed(&self, to_server: u64, to_client: u64) {
        self.to_server_bytes.fetch_add(to_server, Ordering::Relaxed);
        self.to_client_bytes.fetch_add(to_client, Ordering::Relaxed);
    }

    pub(super) fn sample(&self, side: Side, socket: impl AsFd, before: &mut Sampled) {
        self.legs[side as usize].sample(socket, before);
    }
}
