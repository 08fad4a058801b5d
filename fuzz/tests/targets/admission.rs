//! The admission of a PEP's connections, with any settings and any events, against its model.

use bentpipe_core::conformance::admission::{AdmissionEvent, Key, Opening, check_admission};
use bentpipe_core::pep::{Abandoned, AdmissionConfig, Answer, Side};
use bentpipe_core::time::Duration;

use crate::ITERATIONS;
use crate::decoder::Decoder;

const EVENTS_MAX: usize = 400;

#[test]
fn any_events() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let mut decoder = Decoder::new(bytes);
        let config = config(&mut decoder);
        let mut events = Vec::new();
        while !decoder.is_empty() && events.len() < EVENTS_MAX {
            events.push(event(&mut decoder));
        }
        if let Err(violation) = check_admission(config, &events) {
            panic!("{violation}");
        }
    });
}

fn config(decoder: &mut Decoder<'_>) -> AdmissionConfig {
    AdmissionConfig {
        connections_max: decoder.below(8) as usize,
        waiting_max: decoder.below(8) as usize,
        handshake_max: Duration::from_millis(decoder.scaled(10)),
        early_accept: decoder.flag(),
        started_memory: Duration::from_millis(decoder.scaled(6)),
        may_be_asymmetric: decoder.flag(),
        remembered_max: usize::MAX,
    }
}

fn key(decoder: &mut Decoder<'_>) -> Key {
    let number = decoder.u8();
    Key { hosts: number / 4 % 4, ports: number % 4 }
}

fn opening(decoder: &mut Decoder<'_>) -> Opening {
    match decoder.below(8) {
        0..5 => Opening::Opened,
        5 => Opening::Taken,
        6 => Opening::Unopened,
        _ => Opening::Lost,
    }
}

fn event(decoder: &mut Decoder<'_>) -> AdmissionEvent {
    match decoder.below(16) {
        0..5 => {
            let (key, number) = (key(decoder), decoder.below(3) as u32);
            let side = if decoder.flag() { Side::Link } else { Side::Lan };
            AdmissionEvent::Syn(key, number, side, opening(decoder))
        }
        5..8 => {
            let time = Duration::from_millis(decoder.scaled(11));
            AdmissionEvent::Wait(time, opening(decoder))
        }
        8..11 => {
            let key = key(decoder);
            let answers =
                [Answer::Connected(()), Answer::Refused, Answer::Unreachable, Answer::Failed];
            AdmissionEvent::Answer(key, answers[decoder.below(4) as usize])
        }
        11 => AdmissionEvent::Accepted(key(decoder)),
        12 => AdmissionEvent::Ended,
        13 => {
            let reason = if decoder.flag() { Abandoned::Reset } else { Abandoned::Expired };
            AdmissionEvent::Abandoned(key(decoder), reason)
        }
        14 => AdmissionEvent::Asymmetric(key(decoder)),
        _ => AdmissionEvent::Expire,
    }
}
