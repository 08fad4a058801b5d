//! What a daemon counts.

use std::io;

use bentpipe_core::tunnel::TunnelSettings;
use serde::{Deserialize, Serialize};

use super::tunnel_report::TunnelReport;
use crate::relay::LegReport;

/// The counts of all workers, by function: the file of the state.
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
}

/// How the workers of a PEP are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PepWorkers {
    /// Whether new connections are split: all workers have reported, and the rule that holds new connections was renewed.
    pub is_splitting: bool,
    /// Workers that do not report, because they have ended, hang or are starting.
    pub missing: u64,
    /// Times that a worker has ended or was ended because it hung.
    pub failures: u64,
}

impl State {
    /// Reads a state.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        Ok(serde_json::from_slice(bytes)?)
    }

    /// Adds the report of a worker.
    pub(super) fn add(&mut self, report: WorkerReport) {
        match report {
            WorkerReport::Pep(report) => self.pep.get_or_insert_default().add(&report),
            WorkerReport::Tunnel(report) => self.tunnel = Some(report),
        }
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
    /// The state, written down. If it is splitting, all workers have reported, and the rule was renewed.
    State(Box<State>),
    /// The settings of the tunnel have changed.
    Settings(TunnelSettings),
}

/// Counts of a PEP since the start, with the words of the simulated one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Connections that are split now, handshakes that have not ended included.
    pub open_connections: u64,
    /// The largest number of these at a time; of several workers, the sum.
    pub max_open_connections: u64,
    /// Connections that were split.
    pub split_connections: u64,
    /// Connections that passed without the relay, because there were too many, or no route or descriptor.
    pub unsplit_connections: u64,
    /// Connections that their servers refused.
    pub refused_connections: u64,
    /// Connections that ended with a reset by either peer.
    pub reset_connections: u64,
    /// Connections whose handshake did not end in time.
    pub expired_connections: u64,
    /// Connections that were reset after the idle limit.
    pub timed_out_connections: u64,
    /// Bytes relayed to servers.
    pub to_server_bytes: u64,
    /// Bytes relayed to clients.
    pub to_client_bytes: u64,
    /// Memory of the processes that relay.
    pub memory_bytes: u64,
    /// Time of the processors that these processes used.
    pub cpu_ns: u64,
    /// The legs to the hosts behind the gateway.
    pub lan: LegReport,
    /// The legs over the link.
    pub link: LegReport,
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
        let Self {
            open_connections,
            max_open_connections,
            split_connections,
            unsplit_connections,
            refused_connections,
            reset_connections,
            expired_connections,
            timed_out_connections,
            to_server_bytes,
            to_client_bytes,
            memory_bytes,
            cpu_ns,
            lan,
            link,
        } = self;
        for (sum, value) in [
            (open_connections, other.open_connections),
            (max_open_connections, other.max_open_connections),
            (split_connections, other.split_connections),
            (unsplit_connections, other.unsplit_connections),
            (refused_connections, other.refused_connections),
            (reset_connections, other.reset_connections),
            (expired_connections, other.expired_connections),
            (timed_out_connections, other.timed_out_connections),
            (to_server_bytes, other.to_server_bytes),
            (to_client_bytes, other.to_client_bytes),
            (memory_bytes, other.memory_bytes),
            (cpu_ns, other.cpu_ns),
        ] {
            *sum = sum.saturating_add(value);
        }
        lan.add(&other.lan);
        link.add(&other.link);
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
