//! Verdicts, which rules and maps have, and what the encodings of both share.

use super::text;
use crate::netlink::{attribute, nested};

/// From linux/netfilter/nf_tables.h.
pub(super) const DATA_VALUE: u16 = 1;
pub(super) const DATA_VERDICT: u16 = 2;
pub(super) const LIST_ELEMENT: u16 = 1;
pub(super) const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
const DROP: i32 = 0;
const ACCEPT: i32 = 1;
const JUMP: i32 = -3;
const GOTO: i32 = -4;

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This chain, and those that led here, let it pass.
    Accept,
    /// It is dropped.
    Drop,
    /// It goes through another chain, and then on to the next rule.
    Jump(String),
    /// It goes through another chain, and then on as after the end of this one.
    Goto(String),
}

impl Verdict {
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let (code, chain) = match self {
            Self::Accept => (ACCEPT, None),
            Self::Drop => (DROP, None),
            Self::Jump(chain) => (JUMP, Some(chain)),
            Self::Goto(chain) => (GOTO, Some(chain)),
        };
        nested(bytes, DATA_VERDICT, |bytes| {
            attribute(bytes, VERDICT_CODE, &code.to_be_bytes());
            if let Some(chain) = chain {
                text(bytes, VERDICT_CHAIN, chain);
            }
        });
    }
}
