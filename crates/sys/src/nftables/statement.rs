//! What the expressions of a listed rule say, as far as a gateway asks.

use std::collections::BTreeMap;
use std::io;

use super::values::{find, number, text};
use super::verdict::{DATA_VALUE, DATA_VERDICT, LIST_ELEMENT, VERDICT_CODE};
use crate::netlink::attributes;

/// From linux/netfilter/nf_tables.h: attributes of all expressions, and of several.
const NAME: u16 = 1;
const DATA: u16 = 2;
const VERDICT_REGISTER: u32 = 0;
const ACCEPT: u32 = 1;
const DROP: u32 = 0;
const CMP_EQ: u32 = 0;
const CMP_NEQ: u32 = 1;
const INVERTED: u32 = 1;
/// The transport header of `payload`.
const TRANSPORT: u32 = 2;
/// Registers of 16 bytes have the numbers 1 to 4; those of 4 bytes follow from 8 on.
const WORDS_FROM: u32 = 8;
/// Expressions that load what is not looked at, and change nothing.
const LOADS: [&str; 9] =
    ["exthdr", "fib", "hash", "numgen", "osf", "payload", "rt", "tunnel", "xfrm"];
/// Modules of iptables about marks: their data begin with the mark.
const MARK_MODULES: [&str; 4] = ["mark", "connmark", "MARK", "CONNMARK"];

/// What a rule compares or sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The mark of the packet, in host byte order.
    Mark,
    /// That of its connection.
    ConnectionMark,
    /// The number of the interface by which it came, in host byte order.
    IngressIndex,
    /// The name of that interface.
    IngressName,
    /// The number of the interface by which it leaves.
    EgressIndex,
    /// The name of that interface.
    EgressName,
    /// A port of its sender, in network byte order.
    SourcePort,
    /// A port of its receiver.
    DestinationPort,
    /// Whether its socket is transparent.
    TransparentSocket,
    /// Something else.
    Other,
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// The packet is accepted.
    Accept,
    /// It is dropped or rejected.
    Refuse,
    /// It is counted or logged.
    Note,
    /// The rule is for packets whose subject is one of these values, or between the first and the last of them.
    Match {
        /// What is compared.
        subject: Subject,
        /// The values; none if they are not known.
        values: Vec<Vec<u8>>,
        /// Whether it is for the others.
        is_inverted: bool,
    },
    /// The mark of the packet or of its connection is set; these are the values and the masks of it.
    Set {
        /// What is set.
        subject: Subject,
        /// The values.
        values: Vec<Vec<u8>>,
    },
    /// Something else: another verdict, a limit, a translation.
    Other,
}

/// What a register has.
#[derive(Clone, Debug)]
struct Loaded {
    subject: Subject,
    /// Whether an integer was turned into network byte order.
    is_swapped: bool,
    /// What it was combined with.
    values: Vec<Vec<u8>>,
}

impl Loaded {
    fn of(subject: Subject) -> Self {
        Self { subject, is_swapped: false, values: Vec::new() }
    }

    fn match_of(&self, values: Vec<Vec<u8>>, is_inverted: bool) -> Statement {
        let swap = |mut value: Vec<u8>| {
            if self.is_swapped && cfg!(target_endian = "little") {
                value.reverse();
            }
            value
        };
        let values = values.into_iter().map(swap).chain(self.values.clone()).collect();
        Statement::Match { subject: self.subject, values, is_inverted }
    }
}

/// The statements of a rule; `elements` has those of its sets.
pub(super) fn statements(
    expressions: &[u8],
    mut elements: impl FnMut(&str) -> io::Result<Vec<Vec<u8>>>,
) -> io::Result<Vec<Statement>> {
    let mut registers = Registers::default();
    let mut statements = Vec::new();
    for (_, expression) in attributes(expressions).filter(|(kind, _)| *kind == LIST_ELEMENT) {
        let name = find(expression, NAME).map(text).unwrap_or_default();
        let data = find(expression, DATA).unwrap_or_default();
        if name == "lookup" {
            let (at, loaded) = (find(data, 2).and_then(number), registers.get(data, 2));
            let is_verdict = find(data, 3).is_some();
            let is_inverted = find(data, 5).and_then(number) == Some(INVERTED);
            let set = find(data, 1).map(text).unwrap_or_default();
            let is_asked = at.is_some() && loaded.subject != Subject::Other;
            let values = if is_asked { elements(&set)? } else { Vec::new() };
            statements.push(match is_verdict {
                true => Statement::Other,
                false => loaded.match_of(values, is_inverted),
            });
        } else {
            statements.extend(registers.run(&name, data));
        }
    }
    Ok(statements)
}

#[derive(Default)]
struct Registers(BTreeMap<u32, Loaded>);

impl Registers {
    /// What the register in this attribute has.
    fn get(&self, data: &[u8], attribute: u16) -> Loaded {
        let place = place(data, attribute);
        let loaded = place.and_then(|place| self.0.get(&place));
        loaded.cloned().unwrap_or_else(|| Loaded::of(Subject::Other))
    }

    fn put(&mut self, data: &[u8], attribute: u16, loaded: Loaded) {
        if let Some(place) = place(data, attribute) {
            self.0.insert(place, loaded);
        }
    }

    /// What an expression does, if it is more than to load something. Numbers are those of its attributes.
    fn run(&mut self, name: &str, data: &[u8]) -> Option<Statement> {
        let word = |attribute| find(data, attribute).and_then(number);
        let value = |attribute| find(data, attribute).and_then(|it| find(it, DATA_VALUE));
        let bytes = |attribute| value(attribute).map(<[u8]>::to_vec);
        match name {
            "meta" | "ct" => return self.run_load(name, data),
            "socket" => {
                let is_transparent = word(1) == Some(0);
                let subject =
                    if is_transparent { Subject::TransparentSocket } else { Subject::Other };
                self.put(data, 2, Loaded::of(subject));
            }
            "payload" if find(data, 1).is_some() => {
                let subject = match (word(2), word(3), word(4)) {
                    (Some(TRANSPORT), Some(0), Some(2)) => Subject::SourcePort,
                    (Some(TRANSPORT), Some(2), Some(2)) => Subject::DestinationPort,
                    _ => Subject::Other,
                };
                self.put(data, 1, Loaded::of(subject));
            }
            "bitwise" => {
                let mut loaded = self.get(data, 1);
                loaded.values.extend([4, 5].into_iter().filter_map(bytes));
                self.put(data, 2, loaded);
            }
            "byteorder" => {
                let mut loaded = self.get(data, 1);
                loaded.is_swapped = !loaded.is_swapped;
                self.put(data, 2, loaded);
            }
            "cmp" => {
                let values = bytes(3).into_iter().collect();
                let is_equality = matches!(word(2), Some(CMP_EQ | CMP_NEQ));
                let is_inverted = is_equality && word(2) == Some(CMP_NEQ);
                return Some(self.get(data, 1).match_of(values, is_inverted));
            }
            "range" => {
                let values = [3, 4].into_iter().filter_map(bytes).collect();
                return Some(self.get(data, 1).match_of(values, word(2) == Some(INVERTED)));
            }
            "immediate" if word(1) == Some(VERDICT_REGISTER) => return Some(verdict(data)),
            "immediate" => {
                let values = bytes(2).into_iter().collect();
                self.put(data, 1, Loaded { values, ..Loaded::of(Subject::Other) });
            }
            "reject" => return Some(Statement::Refuse),
            "counter" | "log" => return Some(Statement::Note),
            "match" | "target" => return Some(of_iptables(data)),
            known if LOADS.contains(&known) => self.put(data, 1, Loaded::of(Subject::Other)),
            _ => {
                self.0.clear();
                return Some(Statement::Other);
            }
        }
        None
    }

    /// Loads or sets a property of the packet or of its connection.
    fn run_load(&mut self, name: &str, data: &[u8]) -> Option<Statement> {
        let subject = match (name, find(data, 2).and_then(number)?) {
            ("meta", 3) => Subject::Mark,
            ("ct", 3) => Subject::ConnectionMark,
            ("meta", 4) => Subject::IngressIndex,
            ("meta", 5) => Subject::EgressIndex,
            ("meta", 6) => Subject::IngressName,
            ("meta", 7) => Subject::EgressName,
            _ => Subject::Other,
        };
        let source = if name == "meta" { 3 } else { 4 };
        if find(data, source).is_none() {
            self.put(data, 1, Loaded::of(subject));
            return None;
        }
        Some(Statement::Set { subject, values: self.get(data, source).values })
    }
}

/// The number of the first four bytes of a register.
fn place(data: &[u8], attribute: u16) -> Option<u32> {
    let register = find(data, attribute).and_then(number)?;
    Some(match register {
        1..=4 => (register - 1) * 4,
        _ => register.checked_sub(WORDS_FROM)?,
    })
}

fn verdict(data: &[u8]) -> Statement {
    let verdict = find(data, 2).and_then(|data| find(data, DATA_VERDICT));
    match verdict.and_then(|verdict| number(find(verdict, VERDICT_CODE)?)) {
        Some(ACCEPT) => Statement::Accept,
        Some(DROP) => Statement::Refuse,
        _ => Statement::Other,
    }
}

/// A module of iptables, which has its own data.
fn of_iptables(data: &[u8]) -> Statement {
    let name = find(data, 1).map(text).unwrap_or_default();
    if name == "REJECT" {
        return Statement::Refuse;
    }
    let mark = find(data, 3).and_then(|data| data.get(..4)).map(<[u8]>::to_vec);
    match mark.filter(|_| MARK_MODULES.contains(&name.as_str())) {
        Some(mark) => Statement::Set { subject: Subject::Mark, values: vec![mark] },
        None => Statement::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::{AnonymousSet, Expression, Field, Header, KeyType, Verdict};

    fn read(expressions: &[Expression]) -> Vec<Statement> {
        let mut bytes = Vec::new();
        for expression in expressions {
            expression.encode(&mut bytes, Some(("__set0", 1)));
        }
        let elements = |set: &str| {
            assert_eq!(set, "__set0");
            Ok(vec![b"lo\0".to_vec()])
        };
        statements(&bytes, elements).expect("elements")
    }

    fn match_of(subject: Subject, values: &[&[u8]], is_inverted: bool) -> Statement {
        let values = values.iter().map(|value| value.to_vec()).collect();
        Statement::Match { subject, values, is_inverted }
    }

    fn equal(value: &[u8], is_inverted: bool) -> Expression {
        Expression::Compare { value: value.to_vec(), is_inverted }
    }

    #[test]
    fn verdicts_are_read() {
        for (verdict, expected) in [
            (Verdict::Accept, Statement::Accept),
            (Verdict::Drop, Statement::Refuse),
            (Verdict::Jump("other".to_owned()), Statement::Other),
        ] {
            assert_eq!(read(&[Expression::Verdict(verdict)]), [expected]);
        }
    }

    /// Given comparisons of what this module knows, expect its values; given those of something else, no subject.
    #[test]
    fn comparisons_have_their_subject() {
        let port = |offset| Field::Payload { header: Header::Transport, offset, bytes: 2 };
        for (field, subject) in [
            (Field::Mark, Subject::Mark),
            (Field::IngressName, Subject::IngressName),
            (Field::EgressName, Subject::EgressName),
            (Field::SocketIsTransparent, Subject::TransparentSocket),
            (port(0), Subject::SourcePort),
            (port(2), Subject::DestinationPort),
            (port(4), Subject::Other),
            (Field::SocketMark, Subject::Other),
            (Field::Length, Subject::Other),
            (Field::HasTcpOption(19), Subject::Other),
        ] {
            for is_inverted in [false, true] {
                let found = read(&[Expression::Load(field, 0), equal(&[7], is_inverted)]);
                assert_eq!(found, [match_of(subject, &[&[7]], is_inverted)], "{field:?}");
            }
        }
    }

    /// Given a register that another load has replaced, expect the subject of the second one.
    #[test]
    fn a_register_has_what_was_loaded_last() {
        let loads = [Field::Mark, Field::Protocol].map(|field| Expression::Load(field, 0));
        let found = read(&[loads.to_vec(), vec![equal(&[6], false)]].concat());
        assert_eq!(found, [match_of(Subject::Other, &[&[6]], false)]);
    }

    /// Given a mark between 8 and 11, which is compared in network byte order, expect the numbers in host byte order.
    #[test]
    fn integers_are_in_host_byte_order() {
        let range = [8_u32, 11].map(|value| value.to_be_bytes().to_vec());
        let range = Expression::Range { range, is_inverted: false };
        let found = read(&[Expression::Load(Field::Mark, 0), Expression::ToNetworkOrder, range]);
        let values = [8_u32, 11].map(u32::to_ne_bytes);
        assert_eq!(found, [match_of(Subject::Mark, &[&values[0], &values[1]], false)]);
    }

    /// Given a set of names, expect its elements; given one of something else, expect nobody to ask for them.
    #[test]
    fn sets_have_their_elements() {
        let set = AnonymousSet::of_values(KeyType::InterfaceName, [b"lo".to_vec()]);
        for (field, subject, values) in [
            (Field::IngressName, Subject::IngressName, &[&b"lo\0"[..]][..]),
            (Field::Protocol, Subject::Other, &[]),
        ] {
            let lookup = Expression::Contained { set: set.clone(), is_inverted: false };
            let found = read(&[Expression::Load(field, 0), lookup]);
            assert_eq!(found, [match_of(subject, values, false)]);
        }
    }

    #[test]
    fn marks_that_are_set_have_their_values() {
        let value = 9_u32.to_ne_bytes().to_vec();
        let found = read(&[Expression::Immediate(value.clone(), 0), Expression::SetMark]);
        assert_eq!(found, [Statement::Set { subject: Subject::Mark, values: vec![value] }]);
    }

    #[test]
    fn logs_are_notes_and_translations_others() {
        let log = Expression::Log { group: 1, bytes: 2 };
        assert_eq!(read(&[log]), [Statement::Note]);
        assert_eq!(read(&[Expression::SourceNat { is_ipv6: false }]), [Statement::Other]);
    }
}
