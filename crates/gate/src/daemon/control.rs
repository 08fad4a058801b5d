//! A socket on which the settings of a running daemon are changed, in a folder that only its owner may enter.
//!
//! A client sends the whole new plan as one message and gets one message back, a [`Reply`].

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Plan;
use super::handover::{receive, send};

/// A client sends its plan at once. The rules are renewed meanwhile at the latest.
const TIMEOUT: core::time::Duration = core::time::Duration::from_millis(100);
const CLIENTS: i32 = 4;
/// The fields that may change: an object, by JSON Pointer (RFC 6901), and a field of it. Those of the PEP are in its rules
/// alone; those of the tunnel are what `Path::reconfigure` takes.
const CHANGEABLE: [(&str, &str); 9] = [
    ("/pep", "except"),
    ("/pep", "only"),
    ("/tunnel/settings", "classifier"),
    ("/tunnel/settings", "redundancy"),
    ("/tunnel/settings", "overflow"),
    ("/tunnel/settings", "titration"),
    ("/tunnel/settings", "hold_bytes"),
    ("/tunnel/settings", "congestion_signal"),
    ("/tunnel/settings/queue", "rate_bps"),
];

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// The settings were changed, or passed on to the worker.
    Changed,
    /// Nothing was changed, because these parts of the plan differ, which a running daemon cannot change.
    Differs(Vec<String>),
    /// Nothing was changed, because this is wrong with the plan.
    Refused(String),
    /// This failed; it says what was changed.
    Failed(String),
}

/// See the module documentation.
pub(super) struct Control {
    listener: OwnedFd,
    path: String,
}

impl Control {
    pub(super) fn open(path: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = || {
            let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            // One that a killed daemon has left.
            let _ = fs::remove_file(path);
            bind(&listener, &SocketAddrUnix::new(path)?)?;
            listen(&listener, CLIENTS)?;
            Ok::<_, io::Error>(Self { listener, path: path.to_owned() })
        };
        open().map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
    }

    /// Answers one client. An error of it is its own.
    pub(super) fn answer(&self, reload: impl FnOnce(&Plan) -> Reply) {
        let _ = self.serve(reload);
    }

    fn serve(&self, reload: impl FnOnce(&Plan) -> Reply) -> io::Result<()> {
        let client = accept_with(&self.listener, SocketFlags::CLOEXEC)?;
        set_socket_timeout(&client, Timeout::Recv, Some(TIMEOUT))?;
        set_socket_timeout(&client, Timeout::Send, Some(TIMEOUT))?;
        let parsed = match receive(&client) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error),
            received => {
                std::str::from_utf8(&received?.0).map_err(io::Error::other).and_then(Plan::parse)
            }
        };
        let reply = match parsed {
            Ok(plan) => reload(&plan),
            Err(error) => Reply::Refused(error.to_string()),
        };
        send(&client, &serde_json::to_vec(&reply)?, &[])
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Expects a new plan to differ in nothing but what may change.
///
/// # Errors
/// The paths of what else differs.
pub(super) fn require_changeable(plan: &Plan, new: &Plan) -> Result<(), Vec<String>> {
    let without_changeable = |plan: &Plan| {
        let mut value = serde_json::to_value(plan).unwrap_or_default();
        for (object, field) in CHANGEABLE {
            if let Some(object) = value.pointer_mut(object).and_then(Value::as_object_mut) {
                object.remove(field);
            }
        }
        value
    };
    let mut differing = Vec::new();
    compare("", &without_changeable(plan), &without_changeable(new), &mut differing);
    if differing.is_empty() { Ok(()) } else { Err(differing) }
}

/// Appends the paths at which two values differ, with dots.
fn compare(path: &str, one: &Value, other: &Value, differing: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) if one.keys().eq(other.keys()) => {
            for ((field, one), other) in one.iter().zip(other.values()) {
                let dot = if path.is_empty() { "" } else { "." };
                compare(&format!("{path}{dot}{field}"), one, other, differing);
            }
        }
        _ if one != other => differing.push(path.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_core::tunnel::{RedundancySettings, TitrationSettings};

    use super::super::PepPlan;
    use super::super::pep_plan::tests::complete as pep;
    use super::super::tunnel_plan::tests::complete;
    use super::*;

    fn plan() -> Plan {
        Plan {
            name: "sat".to_owned(),
            state_file: "/none/state.json".to_owned(),
            control_file: "/none/control".to_owned(),
            files: Vec::new(),
            user: 65_534,
            group: 65_534,
            metrics_listen: None,
            pep: None,
            tunnel: Some(complete()),
        }
    }

    /// Given other redundancy, titration, classes, another hold buffer and rate, expect no difference.
    #[test]
    fn policies_may_change() {
        let mut new = plan();
        let tunnel = new.tunnel.as_mut().expect("a tunnel");
        tunnel.settings.redundancy =
            RedundancySettings::Fixed { redundancy_ppm: 1, window_symbols: 7 };
        tunnel.settings.titration = TitrationSettings::None;
        tunnel.settings.classifier.classes = Some(vec![46]);
        tunnel.settings.hold_bytes = 7;
        tunnel.settings.queue.rate_bps = 7;
        assert_eq!(require_changeable(&plan(), &new), Ok(()));
    }

    /// Given a PEP that leaves out other connections, expect no difference; given another limit of connections, expect one.
    #[test]
    fn the_connections_that_a_pep_leaves_out_may_change() {
        let with_pep = || Plan { pep: Some(pep()), ..plan() };
        let changed = |change: fn(&mut PepPlan)| {
            let mut new = with_pep();
            new.pep.as_mut().map(change);
            require_changeable(&with_pep(), &new)
        };
        assert_eq!(changed(|pep| pep.except.ports.push([22, 22])), Ok(()));
        assert_eq!(changed(|pep| pep.only.ports.push([22, 22])), Ok(()));
        assert_eq!(changed(|pep| pep.except.interfaces.push("wg0".to_owned())), Ok(()));
        assert_eq!(changed(|pep| pep.connections += 1), Err(vec!["pep.connections".to_owned()]));
    }

    /// Given other changes, alone or with one that is possible, expect their paths.
    #[test]
    fn nothing_else_may_change() {
        let mut new = plan();
        new.user = 1;
        let tunnel = new.tunnel.as_mut().expect("a tunnel");
        tunnel.settings.titration = TitrationSettings::None;
        tunnel.settings.queue.capacity_bytes = 1;
        tunnel.peers.clear();
        let differing = ["tunnel.peers", "tunnel.settings.queue.capacity_bytes", "user"];
        let mut found = require_changeable(&plan(), &new).expect_err("they differ");
        found.sort();
        assert_eq!(found, differing);
        assert_eq!(
            require_changeable(&plan(), &Plan { tunnel: None, ..plan() }),
            Err(vec!["tunnel".to_owned()])
        );
    }
}
