//! What a daemon counts.

use std::io;

use bentpipe_core::tunnel::TunnelSettings;
use serde::{Deserialize, Serialize};

use super::tunnel_report::{TunnelReport, TunnelWorker};
use crate::counts::{Counts, report};
use crate::relay::LegReport;

/// The counts of all workers, and how they are, by function: the file of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Those of the PEP; `null` without one.
    #[serde(deserialize_with = "Option::deserialize")]
    pub pep: Option<Report>,
    /// Those of the tunnel; `null` without one.
    #[serde(deserialize_with = "Option::deserialize")]
    pub tunnel: Option<TunnelReport>,
    /// How the workers of the PEP are; `null` without one.
    #[serde(deserialize_with = "Option::deserialize")]
    pub pep_workers: Option<PepWorkers>,
    /// How the worker of the tunnel is; `null` without one.
    #[serde(deserialize_with = "Option::deserialize")]
    pub tunnel_worker: Option<TunnelWorker>,
}

report! {
    /// How the workers of a PEP are.
    #[derive(Copy)]
    pub struct PepWorkers {
        /// Whether all new connections are split: all workers have reported, and the rules that hold new connections were
        /// renewed. Otherwise the share of those workers passes whose rules have ended.
        pub is_splitting: bool,
    }
    counts {
        workers: "Workers, each of which has a share of the connections." gauge "workers",
        missing: "Workers that do not report, because they have ended, hang or are starting." gauge "missing_workers",
        failures: "Times that a worker has ended or hung, after which another process is started."
            counter "worker_failures_total",
    }
}

impl State {
    /// Reads a state.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// What a worker reports.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WorkerReport {
    Pep(Box<Report>),
    Tunnel(TunnelReport),
}

/// What a worker is told after its start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToWorker {
    /// The state, written down.
    State(StateMessage),
    /// The settings of the tunnel have changed.
    Settings(TunnelSettings),
}

/// The state, for a worker.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct StateMessage {
    pub(super) state: Box<State>,
    /// Whether the rules that hold new connections for this worker were renewed by its last report.
    pub(super) is_renewed: bool,
}

report! {
    /// Counts of a PEP since the start, with the words of the simulated one.
    #[derive(Copy)]
    pub struct Report {
        /// The legs to the hosts behind the gateway.
        pub lan: LegReport,
        /// The legs over the link.
        pub link: LegReport,
    }
    counts {
        open_connections: "Connections that are split now, handshakes that have not ended included."
            gauge "open_connections",
        max_open_connections: "The largest number of these at a time; of several workers, the sum."
            gauge "open_connections_max",
        split_connections: "Connections that were split." counter "split_connections_total" as "connections split",
        unsplit_connections: "Connections that passed unsplit: there were too many, or no route or descriptor."
            counter "unsplit_connections_total" as "passed without the PEP",
        refused_connections: "Connections that their servers refused." counter "refused_connections_total"
            as "refused by the server",
        expired_connections: "Connections whose handshake did not end in time." counter "expired_connections_total"
            as "not answered by the server",
        reset_connections: "Connections that ended with a reset by either peer." counter "reset_connections_total"
            as "reset by a peer",
        timed_out_connections: "Connections that were reset after the idle limit." counter "timed_out_connections_total"
            as "reset after the idle limit",
        to_server_bytes: "Bytes that the sockets of the receiving side have taken."
            counter "relayed_bytes_total{direction=\"to_server\"}",
        to_client_bytes: "Bytes that the sockets of the receiving side have taken."
            counter "relayed_bytes_total{direction=\"to_client\"}",
        memory_bytes: "Memory of the processes that relay." gauge "memory_bytes",
        cpu_ns: "Time of the processors that these processes used." counter "cpu_seconds_total" / 1e9,
    }
}

impl Report {
    /// Reads a report.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        Ok(serde_json::from_slice(bytes)?)
    }

    /// Adds what earlier processes of the same worker have counted. Their connections and their memory are gone.
    pub(super) fn add_earlier(&mut self, earlier: &Self) {
        let max_open_connections = self.max_open_connections.max(earlier.max_open_connections);
        self.add(&Self { open_connections: 0, memory_bytes: 0, ..*earlier });
        self.max_open_connections = max_open_connections;
    }

    /// Adds that of another worker.
    pub fn add(&mut self, other: &Self) {
        self.add_counts(other);
        self.lan.add(&other.lan);
        self.link.add(&other.link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given a worker that had at most 9 of 20 connections open when it ended, and then one in its place with at most 4 of
    /// 5, expect 25 in all, at most 9 at a time, and those open and the memory of the second alone.
    #[test]
    fn the_counts_of_a_worker_go_on_in_its_next_process() {
        let earlier = Report {
            open_connections: 7,
            max_open_connections: 9,
            split_connections: 20,
            memory_bytes: 1_000,
            cpu_ns: 50,
            ..Report::default()
        };
        let mut report = Report {
            open_connections: 3,
            max_open_connections: 4,
            split_connections: 5,
            memory_bytes: 800,
            cpu_ns: 1,
            ..Report::default()
        };
        report.add_earlier(&earlier);
        let expected = Report {
            open_connections: 3,
            max_open_connections: 9,
            split_connections: 25,
            memory_bytes: 800,
            cpu_ns: 51,
            ..Report::default()
        };
        assert_eq!(report, expected);
    }
}
