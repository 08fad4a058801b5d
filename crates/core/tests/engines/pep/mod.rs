//! The PEP between two hosts, and the admission of its connections.

mod admission;
mod early;
mod network;
mod properties;
mod relay;
mod times;

use proptest::prelude::ProptestConfig;

/// At least 200 cases.
fn configured() -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let cases = from_environment.cases.max(200);
    ProptestConfig { cases, failure_persistence: None, ..from_environment }
}
