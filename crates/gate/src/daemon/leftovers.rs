//! What a daemon that was killed has left. Its plan may be one of an earlier version, so only what is needed is read.

use std::fs;
use std::io;

use serde::Deserialize;

use super::FailMode;
use super::plan::check_name;
use super::plan_checks::refused;
use super::unreachable_routes;
use crate::network::Network;
use crate::transparent::{Connections, Rules, SideRules};

/// The parts of a plan that name what a daemon makes outside itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Leftovers {
    name: String,
    state_file: String,
    control_file: Option<String>,
    pep: Option<PepLeftovers>,
    tunnel: Option<TunnelLeftovers>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct PepLeftovers {
    mark: u32,
    route_table: u32,
    workers: usize,
}

#[derive(Clone, Debug, Deserialize)]
struct TunnelLeftovers {
    fail: FailMode,
    peers: Vec<PeerLeftovers>,
}

#[derive(Clone, Debug, Deserialize)]
struct PeerLeftovers {
    networks: Vec<Network>,
}

impl Leftovers {
    /// Reads them from a plan.
    ///
    /// # Errors
    /// `InvalidInput` with what is wrong, and where.
    pub fn parse(text: &str) -> io::Result<Self> {
        let leftovers: Self =
            serde_json::from_str(text).map_err(|error| refused(&error.to_string()))?;
        check_name(&leftovers.name)?;
        Ok(leftovers)
    }

    /// Removes the rules and routes of a daemon that could not remove them itself, and the files of its state and its control
    /// socket. What is not there is no error.
    ///
    /// # Errors
    /// As [`Rules::remove`], or the file's.
    pub fn remove(&self) -> io::Result<()> {
        let mut removed = self.rules().as_ref().map_or(Ok(()), Rules::remove);
        if let Some(TunnelLeftovers { fail: FailMode::Closed, peers }) = &self.tunnel {
            let networks = peers.iter().flat_map(|peer| peer.networks.iter().copied());
            removed = removed.and(unreachable_routes::remove(networks));
        }
        let _ = self.control_file.as_ref().map(fs::remove_file);
        removed?;
        match fs::remove_file(&self.state_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io::Error::other(format!("removing {}: {error}", self.state_file)))
            }
            _ => Ok(()),
        }
    }

    /// Those of the PEP, as far as they have names.
    fn rules(&self) -> Option<Rules> {
        let PepLeftovers { mark, route_table, workers } = self.pep?;
        Some(Rules {
            table: self.name.clone(),
            mark,
            processes: workers,
            route_table,
            sides: [SideRules::default(), SideRules::default()],
            except: Connections::default(),
            only: Connections::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given a plan with parts that this version does not have, and without others that it has, expect the rules.
    #[test]
    fn a_plan_of_another_version_says_what_it_left() {
        let text = r#"{
            "name": "bentpipe-sat", "state_file": "/none/state.json", "speed": 3,
            "pep": {"mark": 8, "route_table": 300, "workers": 2, "speed": 3},
            "tunnel": {"fail": "closed", "peers": [{"networks": ["10.3.0.0/24"], "speed": 3}]}
        }"#;
        let leftovers = Leftovers::parse(text).expect("it is one");
        let rules = leftovers.rules().expect("it has a PEP");
        assert_eq!((rules.table.as_str(), rules.mark, rules.processes), ("bentpipe-sat", 8, 2));
        assert_eq!(leftovers.tunnel.expect("it has one").peers[0].networks.len(), 1);
    }

    /// Given the name of a table with which other commands would begin, expect it to be refused.
    #[test]
    fn a_name_is_one_of_a_table() {
        let text = r#"{"name": "a\nflush ruleset", "state_file": "", "pep": null, "tunnel": null}"#;
        let error = Leftovers::parse(text).expect_err("it is refused").to_string();
        assert!(error.contains("is no name of a table"), "{error}");
    }
}
