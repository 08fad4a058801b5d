//! What the status of a gateway says of its configuration.

use serde::{Deserialize, Serialize};

/// The description in a record, without what its gateway does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) functions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lan: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) except: Option<SelectionText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) only: Option<SelectionText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peers: Option<Vec<String>>,
}

/// Networks, ports and interfaces, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct SelectionText {
    pub(crate) networks: Vec<String>,
    pub(crate) ports: Vec<Ports>,
    pub(crate) interfaces: Vec<String>,
}

/// A port or a range of ports.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Ports {
    One(u16),
    Range(String),
}

impl Ports {
    pub(crate) fn of([first, last]: &[u16; 2]) -> Self {
        if first == last { Self::One(*first) } else { Self::Range(format!("{first}-{last}")) }
    }
}

impl std::fmt::Display for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::One(port) => port.fmt(f),
            Self::Range(range) => f.write_str(range),
        }
    }
}

impl Description {
    /// What the gateway does, as the predicate of a sentence.
    pub(crate) fn action(&self) -> String {
        let mut parts = Vec::new();
        if let (Some(lan), Some(link)) = (&self.lan, &self.link) {
            parts.push(format!(
                "splits at most {} TCP connections between {} and {}",
                super::wording::grouped(self.connections.unwrap_or(0)),
                lan.join(", "),
                link.join(", ")
            ));
        }
        if let (Some(device), Some(peers)) = (&self.device, &self.peers) {
            parts.push(format!("carries packets of {device} to {}", peers.join(", ")));
        }
        parts.join(" and ")
    }
}
