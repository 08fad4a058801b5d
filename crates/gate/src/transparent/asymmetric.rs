//! Asymmetric paths: clients whose servers answer them past this gateway.
//!
//! The gateway sends a SYN of its own to the server, in the name of the client. If the answer goes to the client directly, it
//! acknowledges a sequence number that the client has not sent. The client answers with a reset (RFC 9293, section
//! 3.10.7.3), which the gateway forwards: the server forgets the connection, and the client's own SYN opens it. A host
//! with a stateful firewall drops such an answer instead, so that nothing tells its path from a server that is silent. Such a
//! server is given up after a time, unless it has answered before, or the link seems to be interrupted. This connection opens
//! only when the server has forgotten the SYN of the gateway (Linux: after 63 s), but the next one to it opens at once.

use std::net::IpAddr;

use bentpipe_core::time::{Duration, Instant};

use super::recent::Recent;
use super::syn::Ends;
use crate::side::Side;

/// A client and a server.
type HostPair = (IpAddr, IpAddr);

/// The time after which a server is taken for one that may have answered past the gateway. Leg and client have then
/// repeated their SYNs after 1 s (RFC 6298), and the client does it again after 3 s.
const UNANSWERED: Duration = Duration::from_millis(2_500);
/// Paths change. What shows that one is still asymmetric, in each connection, begins this time again.
const REMEMBERED: Duration = Duration::from_secs(300);

/// See the module documentation.
pub(super) struct AsymmetricPaths {
    known: Recent<HostPair>,
    /// Those that are not asymmetric, since legs were answered.
    symmetric: Recent<HostPair>,
    /// When a server on each side has last answered.
    answered: [Option<Instant>; 2],
}

impl AsymmetricPaths {
    pub(super) fn new() -> Self {
        let [known, symmetric] = [REMEMBERED; 2].map(Recent::new);
        Self { known, symmetric, answered: [None; 2] }
    }

    pub(super) fn contains(&self, ends: &Ends) -> bool {
        self.known.contains(&hosts(ends))
    }

    pub(super) fn insert(&mut self, ends: &Ends, now: Instant) {
        self.known.insert(hosts(ends), now);
    }

    pub(super) fn forget_old(&mut self, now: Instant) {
        self.known.forget_old(now);
        self.symmetric.forget_old(now);
    }

    /// A server on this side has answered its leg.
    pub(super) fn on_answer(&mut self, ends: &Ends, server: Side, now: Instant) {
        self.answered[server as usize] = Some(now);
        self.symmetric.insert(hosts(ends), now);
    }

    /// Whether a repeated SYN passes that is held since then, because its server on this side has not answered. While no
    /// server there answers, as they did before, it is the link that is interrupted.
    pub(super) fn passes(&self, ends: &Ends, server: Side, since: Instant, now: Instant) -> bool {
        let is_late = now.saturating_since(since) >= UNANSWERED;
        let others_answer = self.answered[server as usize].is_none_or(|answered| answered > since);
        let may_be_asymmetric = !self.symmetric.contains(&hosts(ends));
        self.contains(ends) || is_late && others_answer && may_be_asymmetric
    }
}

fn hosts(ends: &Ends) -> HostPair {
    (ends.client.ip(), ends.server.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection from a port of one client to a host.
    fn ends(port: u16, host: u8) -> Ends {
        Ends { client: ([10, 1, 0, 2], port).into(), server: ([10, 2, 0, host], 80).into() }
    }

    const MS: fn(u64) -> Instant = Instant::from_millis;

    /// Given a SYN held since 1 s and repeated after 1 and 3 s, expect the last one to pass if no server has ever
    /// answered, or another one has since, but not if the last answer was before, or the same host has answered.
    #[test]
    fn a_silent_server_is_given_up_while_others_answer() {
        let mut paths = AsymmetricPaths::new();
        let passes =
            |paths: &AsymmetricPaths, at| paths.passes(&ends(1, 2), Side::Link, MS(1_000), MS(at));
        assert!(!passes(&paths, 2_000) && passes(&paths, 4_000));
        paths.on_answer(&ends(1, 3), Side::Link, MS(900));
        paths.on_answer(&ends(1, 3), Side::Lan, MS(3_000));
        assert!(!passes(&paths, 4_000));
        paths.on_answer(&ends(1, 3), Side::Link, MS(3_500));
        assert!(passes(&paths, 4_000));
        paths.on_answer(&ends(7, 2), Side::Link, MS(3_600));
        assert!(!passes(&paths, 4_000));
        paths.forget_old(MS(303_600));
        assert!(passes(&paths, 303_600));
    }

    /// Given a client that a server answered past the gateway, expect its other connections to that server to pass for five
    /// minutes, and those to other servers not to.
    #[test]
    fn a_path_is_remembered_for_its_hosts() {
        let mut paths = AsymmetricPaths::new();
        paths.insert(&ends(1, 2), MS(0));
        assert!(paths.contains(&ends(2, 2)) && !paths.contains(&ends(2, 3)));
        assert!(paths.passes(&ends(2, 2), Side::Link, MS(5), MS(6)));
        paths.forget_old(MS(299_999));
        assert!(paths.contains(&ends(2, 2)));
        paths.forget_old(MS(300_000));
        assert!(!paths.contains(&ends(2, 2)));
    }
}
