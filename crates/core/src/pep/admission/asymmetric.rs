//! Asymmetric paths: clients whose servers answer them past this gateway.
//!
//! The gateway sends a SYN of its own to the server, in the name of the client. If the answer goes to the client directly, it
//! acknowledges a sequence number that the client has not sent. The client answers with a reset (RFC 9293, section
//! 3.10.7.3), which the gateway forwards: the server forgets the connection, and the client's own SYN opens it. A host
//! with a stateful firewall drops such an answer instead, so that nothing tells its path from a server that is silent. Such a
//! server is given up after a time, unless it has answered before, or the link seems to be interrupted. This connection opens
//! only when the server has forgotten the SYN of the gateway (Linux: after 63 s), but the next one to it opens at once.

use super::recent::Recent;
use crate::pep::Side;
use crate::time::{Duration, Instant};

/// The time after which a server is taken for one that may have answered past the gateway. Leg and client have then
/// repeated their SYNs after 1 s (RFC 6298), and the client does it again after 3 s.
const UNANSWERED: Duration = Duration::from_millis(2_500);
/// Paths change. What shows that one is still asymmetric, in each connection, begins this time again.
const REMEMBERED: Duration = Duration::from_secs(300);

/// See the module documentation. `Hosts` are a client and a server.
#[derive(Debug)]
pub(super) struct AsymmetricPaths<Hosts> {
    known: Recent<Hosts>,
    /// Those that are not asymmetric, since legs were answered.
    symmetric: Recent<Hosts>,
    /// When a server on each side has last answered.
    answered: [Option<Instant>; 2],
}

impl<Hosts: Copy + Ord> AsymmetricPaths<Hosts> {
    /// Remembers at most so many pairs of hosts of each kind.
    pub(super) fn new(hosts_max: usize) -> Self {
        let [known, symmetric] = [REMEMBERED; 2].map(|time| Recent::new(time, hosts_max));
        Self { known, symmetric, answered: [None; 2] }
    }

    pub(super) fn contains(&self, hosts: Hosts, now: Instant) -> bool {
        self.known.contains(&hosts, now)
    }

    pub(super) fn insert(&mut self, hosts: Hosts, now: Instant) {
        self.known.insert(hosts, (), now);
    }

    pub(super) fn forget_old(&mut self, now: Instant) {
        self.known.forget_old(now);
        self.symmetric.forget_old(now);
    }

    /// A server on this side has answered its leg.
    pub(super) fn on_answer(&mut self, hosts: Hosts, server: Side, now: Instant) {
        self.answered[server as usize] = Some(now);
        self.symmetric.insert(hosts, (), now);
    }

    /// Whether a repeated SYN passes that is held since then, because its server on this side has not answered. While no
    /// server there answers, as they did before, it is the link that is interrupted.
    pub(super) fn passes(&self, hosts: Hosts, server: Side, since: Instant, now: Instant) -> bool {
        let is_late = now.saturating_since(since) >= UNANSWERED;
        let others_answer = self.answered[server as usize].is_none_or(|answered| answered > since);
        let may_be_asymmetric = !self.symmetric.contains(&hosts, now);
        self.contains(hosts, now) || is_late && others_answer && may_be_asymmetric
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    /// Given a SYN held since 1 s and repeated after 1 and 3 s, expect the last one to pass if no server has ever
    /// answered, or another one has since, but not if the last answer was before, or the same host has answered.
    #[test]
    fn a_silent_server_is_given_up_while_others_answer() {
        let mut paths = AsymmetricPaths::new(usize::MAX);
        let passes =
            |paths: &AsymmetricPaths<_>, at| paths.passes((1, 2), Side::Link, MS(1_000), MS(at));
        assert!(!passes(&paths, 2_000) && passes(&paths, 4_000));
        paths.on_answer((1, 3), Side::Link, MS(900));
        paths.on_answer((1, 3), Side::Lan, MS(3_000));
        assert!(!passes(&paths, 4_000));
        paths.on_answer((1, 3), Side::Link, MS(3_500));
        assert!(passes(&paths, 4_000));
        paths.on_answer((1, 2), Side::Link, MS(3_600));
        assert!(!passes(&paths, 4_000));
        assert!(passes(&paths, 303_600));
    }

    /// Given a client that a server answered past the gateway, expect its connections to that server to pass for five
    /// minutes, and those to other servers not to.
    #[test]
    fn a_path_is_remembered_for_its_hosts() {
        let mut paths = AsymmetricPaths::new(usize::MAX);
        paths.insert((1, 2), MS(0));
        assert!(paths.contains((1, 2), MS(1)) && !paths.contains((1, 3), MS(1)));
        assert!(paths.passes((1, 2), Side::Link, MS(5), MS(6)));
        assert!(paths.contains((1, 2), MS(299_999)) && !paths.contains((1, 2), MS(300_000)));
    }
}
