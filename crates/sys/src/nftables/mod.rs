//! Rules of the firewall, over nfnetlink: tables, chains, sets and rules of nftables, for packets of both versions of IP.
//!
//! Changes are collected in a [`Batch`], which the kernel applies as a whole or not at all. Rules consist of the
//! [expressions](Expression) of the kernel; nft(8) lists them in its own language.

mod expression;
mod listing;
mod set;
mod statement;
mod values;
mod verdict;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::{
    Timeout, set_socket_send_buffer_size, set_socket_send_buffer_size_force, set_socket_timeout,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

pub use expression::{Bytes, Expression, Field, Header, SetOperation};
pub use listing::{ListedChain, ListedRule, Ruleset, Table};
pub use set::{AnonymousSet, KeyType, Set, VerdictMap};
pub use statement::{Statement, Subject};
pub use verdict::Verdict;

use crate::netlink::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NLMSG_ERROR, attribute, error, explain_errors, message,
    messages, nested, truncated,
};

/// From linux/netlink.h, linux/netfilter/nfnetlink.h and nf_tables.h.
const NLM_F_APPEND: u16 = 0x800;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const SUBSYSTEM: u16 = 10;
const NFPROTO_INET: u8 = 1;
const NEW_TABLE: u16 = 0;
const DEL_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const NEW_RULE: u16 = 6;
const DEL_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const NEW_ELEMENTS: u16 = 12;
const DEL_ELEMENTS: u16 = 14;
const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const NF_ACCEPT: u32 = 1;

/// The kernel replies before send(2) returns. The timeout covers a kernel that does not.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Errors are short, since they do not quote the request.
const REPLY_BYTES: usize = 4 * 1024;
/// What the kernel takes of the send buffer beside a message (`netlink_sendmsg`).
const SEND_OVERHEAD_BYTES: usize = 64;

/// Where a chain sees packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// The hook.
    pub hook: Hook,
    /// Chains of lower priorities come first.
    pub priority: i32,
    /// Whether its rules translate addresses: then it sees the first packet of each connection.
    pub is_nat: bool,
}

/// The hooks for packets (linux/netfilter.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets that were received.
    Prerouting = 0,
    /// Packets for this host.
    Input = 1,
    /// Packets that are forwarded.
    Forward = 2,
    /// Packets of this host.
    Output = 3,
    /// All packets that leave this host.
    Postrouting = 4,
}

impl Hook {
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        let all = [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];
        all.get(number as usize).copied()
    }
}

/// Changes to one table, in the order in which they were added.
#[derive(Clone, Debug)]
pub struct Batch {
    table: String,
    changes: Vec<Change>,
    /// The number of sets, by which rules name those without a name.
    sets: u32,
}

#[derive(Clone, Debug)]
struct Change {
    kind: u16,
    flags: u16,
    attributes: Vec<u8>,
    /// What an error is about.
    object: String,
}

impl Batch {
    /// No change to the table of this name.
    #[must_use]
    pub fn new(table: &str) -> Self {
        Self { table: table.to_owned(), changes: Vec::new(), sets: 0 }
    }

    /// Adds the table unless there is one.
    pub fn add_table(&mut self) {
        let attributes = texts(&[(TABLE_NAME, &self.table)]);
        self.push(NEW_TABLE, NLM_F_CREATE, attributes, "table".to_owned());
    }

    /// Deletes the table with all that is in it. It is an error if there is none.
    pub fn delete_table(&mut self) {
        let attributes = texts(&[(TABLE_NAME, &self.table)]);
        self.push(DEL_TABLE, 0, attributes, "table".to_owned());
    }

    /// Adds a chain, which a base chain is if it sees packets without another that leads to it. It accepts packets that
    /// none of its rules decides on.
    pub fn add_chain(&mut self, name: &str, base: Option<BaseChain>) {
        let mut bytes = texts(&[(CHAIN_TABLE, &self.table), (CHAIN_NAME, name)]);
        if let Some(base) = base {
            nested(&mut bytes, CHAIN_HOOK, |bytes| {
                attribute(bytes, HOOK_NUMBER, &(base.hook as u32).to_be_bytes());
                attribute(bytes, HOOK_PRIORITY, &base.priority.to_be_bytes());
            });
            attribute(&mut bytes, CHAIN_POLICY, &NF_ACCEPT.to_be_bytes());
            text(&mut bytes, CHAIN_TYPE, if base.is_nat { "nat" } else { "filter" });
        }
        self.push(NEW_CHAIN, NLM_F_CREATE, bytes, format!("chain {name}"));
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, name: &str) {
        let attributes = texts(&[(RULE_TABLE, &self.table), (RULE_CHAIN, name)]);
        self.push(DEL_RULE, 0, attributes, format!("chain {name}"));
    }

    /// Appends a rule to a chain, after the sets that it contains.
    pub fn add_rule(&mut self, chain: &str, expressions: &[Expression]) {
        let mut encoded = Vec::new();
        for expression in expressions {
            let set = match expression {
                Expression::Contained { set, .. } => Some(self.add_anonymous_set(set)),
                Expression::Map(map) => Some(self.add_verdict_map(map)),
                _ => None,
            };
            expression.encode(&mut encoded, set);
        }
        let mut bytes = texts(&[(RULE_TABLE, &self.table), (RULE_CHAIN, chain)]);
        nested(&mut bytes, RULE_EXPRESSIONS, |bytes| bytes.extend(encoded));
        self.push(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, bytes, format!("a rule of chain {chain}"));
    }

    fn push(&mut self, kind: u16, flags: u16, attributes: Vec<u8>, object: String) {
        self.changes.push(Change { kind, flags, attributes, object });
    }

    /// Applies all changes in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error, with what it is about; nothing is changed. It requires `CAP_NET_ADMIN`.
    pub fn commit(&self) -> io::Result<()> {
        if self.changes.is_empty() {
            return Ok(());
        }
        self.send(true)
    }

    /// Lets the kernel say whether it would apply all changes, and changes nothing.
    ///
    /// # Errors
    /// As [`Batch::commit`].
    pub fn validate(&self) -> io::Result<()> {
        if self.changes.is_empty() { Ok(()) } else { self.send(false) }
    }

    fn send(&self, is_committed: bool) -> io::Result<()> {
        let request = self.encode(is_committed);
        let socket = open(request.len() + SEND_OVERHEAD_BYTES)?;
        send(&socket, &request, SendFlags::empty())?;
        let last = self.changes.len() as u32;
        let mut reply = [0; REPLY_BYTES];
        loop {
            let (bytes, _) = recv(&socket, &mut reply[..], RecvFlags::empty())?;
            for message in messages(&reply[..bytes]).filter(|each| each.kind == NLMSG_ERROR) {
                if let Some(error) = error(message.body) {
                    return Err(self.refused(message.sequence, &error));
                }
                if message.sequence == last {
                    return Ok(());
                }
            }
        }
    }

    /// All changes as one message. Their sequence numbers count from 1; the kernel acknowledges the last one, unless it
    /// refuses any. A batch without its end is not committed.
    fn encode(&self, is_committed: bool) -> Vec<u8> {
        let mut bytes = message(BATCH_BEGIN, NLM_F_REQUEST, 0, &header(0, SUBSYSTEM));
        for (change, sequence) in self.changes.iter().zip(1..) {
            let is_last = sequence as usize == self.changes.len();
            let flags = NLM_F_REQUEST | change.flags | if is_last { NLM_F_ACK } else { 0 };
            let body = [&header(NFPROTO_INET, 0)[..], &change.attributes].concat();
            bytes.extend(message(SUBSYSTEM << 8 | change.kind, flags, sequence, &body));
        }
        if is_committed {
            let end = self.changes.len() as u32 + 1;
            bytes.extend(message(BATCH_END, NLM_F_REQUEST, end, &header(0, SUBSYSTEM)));
        }
        bytes
    }

    /// An error of the kernel, which keeps its kind.
    fn refused(&self, sequence: u32, error: &io::Error) -> io::Error {
        let change = (sequence as usize).checked_sub(1).and_then(|at| self.changes.get(at));
        let object = change.map_or(String::new(), |change| format!("{} in ", change.object));
        let table = &self.table;
        io::Error::new(error.kind(), format!("nftables: {object}table inet {table}: {error}"))
    }
}

/// Whether a table has a chain, in the calling thread's network namespace.
///
/// # Errors
/// The kernel's error, other than that there is none. It requires `CAP_NET_ADMIN`.
pub fn has_chain(table: &str, chain: &str) -> io::Result<bool> {
    let names = texts(&[(CHAIN_TABLE, table), (CHAIN_NAME, chain)]);
    let body = [&header(NFPROTO_INET, 0)[..], &names].concat();
    let request = message(SUBSYSTEM << 8 | GET_CHAIN, NLM_F_REQUEST, 1, &body);
    let socket = open(request.len() + SEND_OVERHEAD_BYTES)?;
    send(&socket, &request, SendFlags::empty())?;
    let mut reply = [0; REPLY_BYTES];
    let (bytes, _) = recv(&socket, &mut reply[..], RecvFlags::empty())?;
    let message = messages(&reply[..bytes]).next().ok_or_else(truncated)?;
    let error = (message.kind == NLMSG_ERROR).then(|| error(message.body)).flatten();
    match error {
        Some(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Some(error) => Err(error),
        None => Ok(true),
    }
}

/// Opens a socket with room for a message.
fn open(send_buffer_bytes: usize) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    // Without CAP_NET_ADMIN in the initial user namespace, net.core.wmem_max limits it.
    if set_socket_send_buffer_size_force(&socket, send_buffer_bytes).is_err() {
        set_socket_send_buffer_size(&socket, send_buffer_bytes)?;
    }
    explain_errors(&socket)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
    Ok(socket)
}

/// `struct nfgenmsg`: the family, the version of the protocol, 0, and the subsystem of a batch.
fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// Appends an attribute with a text, which ends with a zero.
fn text(bytes: &mut Vec<u8>, kind: u16, value: &str) {
    attribute(bytes, kind, &[value.as_bytes(), &[0]].concat());
}

fn texts(values: &[(u16, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &(kind, value) in values {
        text(&mut bytes, kind, value);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::MESSAGE_HEADER;

    /// Given a batch of three changes, expect five messages with sequence numbers in order, of which the last change alone is
    /// to be acknowledged.
    #[test]
    fn the_last_change_is_acknowledged() {
        let mut batch = Batch::new("test");
        batch.add_table();
        batch.add_chain("chain", None);
        batch.add_rule("chain", &[Expression::Verdict(Verdict::Drop)]);
        let bytes = batch.encode(true);
        let mut at = 0;
        let mut flags = Vec::new();
        for (message, sequence) in messages(&bytes).zip(0..) {
            assert_eq!(message.sequence, sequence);
            flags.push(u16::from_ne_bytes([bytes[at + 6], bytes[at + 7]]) & NLM_F_ACK != 0);
            at += MESSAGE_HEADER + message.body.len().next_multiple_of(4);
        }
        assert_eq!(flags, [false, false, false, true, false]);
        assert_eq!(at, bytes.len());
    }

    /// Given the error of a change, expect its object; given that of the whole batch, none.
    #[test]
    fn an_error_names_its_object() {
        let mut batch = Batch::new("test");
        batch.add_chain("chain", None);
        let error = io::Error::from_raw_os_error(2);
        let texts = [1, 0, 9].map(|sequence| batch.refused(sequence, &error).to_string());
        let whole = "nftables: table inet test: No such file or directory (os error 2)";
        let chain = whole.replace("table inet", "chain chain in table inet");
        assert_eq!(texts, [&chain, whole, whole]);
        assert_eq!(batch.refused(1, &error).kind(), io::ErrorKind::NotFound);
    }
}
