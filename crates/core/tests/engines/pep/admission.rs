//! The laws of the admission of connections, for any events.

use bentpipe_core::conformance::admission::{AdmissionEvent, Key, Opening, check_admission};
use bentpipe_core::pep::{Abandoned, AdmissionConfig, Answer, Side};
use bentpipe_core::time::Duration;
use proptest::prelude::*;
use proptest::sample::select;

use super::configured;

fn config() -> impl Strategy<Value = AdmissionConfig> {
    (0_usize..6, 0_usize..6, 0_u64..40_000, any::<[bool; 2]>(), select(vec![0, 1, 10_000]))
        .prop_map(
            |(
                connections_max,
                waiting_max,
                handshake_ms,
                [early_accept, may_be_asymmetric],
                memory,
            )| {
                AdmissionConfig {
                    connections_max,
                    waiting_max,
                    handshake_max: Duration::from_millis(handshake_ms),
                    early_accept,
                    started_memory: Duration::from_millis(memory),
                    may_be_asymmetric,
                    remembered_max: usize::MAX,
                }
            },
        )
}

fn key() -> impl Strategy<Value = Key> {
    (0_u8..3, 0_u8..3).prop_map(|(hosts, ports)| Key { hosts, ports })
}

fn opening() -> impl Strategy<Value = Opening> {
    // Legs can mostly be opened, or are taken for a while.
    let openings = [Opening::Opened, Opening::Taken, Opening::Unopened, Opening::Lost];
    select([vec![Opening::Opened; 6], vec![Opening::Taken; 3], openings.to_vec()].concat())
}

fn event() -> impl Strategy<Value = AdmissionEvent> {
    let times = select(vec![1, 9, 10, 100, 600, 1_000, 2_500, 30_000, 64_000, 127_000, 300_000]);
    let answers =
        select(vec![Answer::Connected(()), Answer::Refused, Answer::Unreachable, Answer::Failed]);
    let reasons = select(vec![Abandoned::Reset, Abandoned::Expired]);
    let syn = (key(), 0_u32..2, select(Side::ALL.to_vec()), opening());
    prop_oneof![
        6 => syn.prop_map(|(key, number, side, opening)| {
            AdmissionEvent::Syn(key, number, side, opening)
        }),
        4 => (times, opening())
            .prop_map(|(ms, opening)| AdmissionEvent::Wait(Duration::from_millis(ms), opening)),
        3 => (key(), answers).prop_map(|(key, answer)| AdmissionEvent::Answer(key, answer)),
        2 => key().prop_map(AdmissionEvent::Accepted),
        1 => Just(AdmissionEvent::Ended),
        1 => (key(), reasons).prop_map(|(key, reason)| AdmissionEvent::Abandoned(key, reason)),
        1 => key().prop_map(AdmissionEvent::Asymmetric),
        1 => Just(AdmissionEvent::Expire),
    ]
}

proptest! {
    #![proptest_config(configured())]

    /// Given any events, expect the decisions of a simple model, no more connections and SYNs than may be, and every
    /// connection to be counted once.
    #[test]
    fn any_events_keep_the_laws(
        config in config(),
        events in prop::collection::vec(event(), 0..200),
    ) {
        check_admission(config, &events).map_err(TestCaseError::fail)?;
    }
}
