//! What the firewall of a network namespace has: tables, chains and rules of nftables, of all families.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use super::statement::{Statement, statements};
use super::values::{find, number, text};
use super::verdict::{DATA_VALUE, LIST_ELEMENT};
use super::{
    CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TABLE, CHAIN_TYPE, GET_CHAIN, HOOK_NUMBER, Hook,
    NFPROTO_INET, RULE_CHAIN, RULE_EXPRESSIONS, RULE_TABLE, SUBSYSTEM, TABLE_NAME, header, texts,
};
use crate::netlink::{RequestSocket, attributes};

/// From linux/netfilter/nf_tables.h.
const GET_TABLE: u16 = 1;
const GET_RULE: u16 = 7;
const GET_ELEMENTS: u16 = 13;
const ELEMENTS_TABLE: u16 = 1;
const ELEMENTS_SET: u16 = 2;
const ELEMENTS: u16 = 3;
const ELEMENT_KEY: u16 = 1;
const NF_DROP: u32 = 0;
/// Families (linux/netfilter.h).
const FAMILIES: [(u8, &str); 6] =
    [(1, "inet"), (2, "ip"), (3, "arp"), (5, "netdev"), (7, "bridge"), (10, "ip6")];
/// Those whose hooks are the ones of IP.
const HOOKED: [u8; 4] = [1, 2, 7, 10];
/// Other programs change rules all at once, so another attempt succeeds.
const ATTEMPTS: usize = 5;
/// `struct nfgenmsg`.
const HEADER: usize = 4;

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Table {
    /// The number of its family.
    pub family: u8,
    /// Its name.
    pub name: String,
}

impl Table {
    /// The name of its family.
    #[must_use]
    pub fn family_name(&self) -> &'static str {
        FAMILIES.iter().find(|(number, _)| *number == self.family).map_or("?", |(_, name)| name)
    }
}

impl Table {
    /// Whether it is the table of this name for both versions of IP.
    #[must_use]
    pub fn is_inet(&self, name: &str) -> bool {
        self.family == NFPROTO_INET && self.name == name
    }

    /// Whether its chains see packets of IP alone.
    #[must_use]
    pub fn is_of_ip(&self) -> bool {
        ["inet", "ip", "ip6"].contains(&self.family_name())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.family_name(), self.name)
    }
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedChain {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: String,
    /// Where it filters packets of IP; `None` for one that does not, and for one that other chains lead to.
    pub filters: Option<Hook>,
    /// Whether it drops packets that none of its rules decides on.
    pub drops: bool,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRule {
    /// Its table.
    pub table: Table,
    /// The name of its chain.
    pub chain: String,
    /// What it consists of.
    pub statements: Vec<Statement>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// The tables.
    pub tables: Vec<Table>,
    /// The chains.
    pub chains: Vec<ListedChain>,
    /// The rules, in the order of each chain.
    pub rules: Vec<ListedRule>,
}

impl Ruleset {
    /// Reads that of the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error. It requires `CAP_NET_ADMIN`.
    pub fn read() -> io::Result<Self> {
        let mut read = Self::read_once();
        for _ in 1..ATTEMPTS {
            match &read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    read = Self::read_once()
                }
                _ => break,
            }
        }
        read
    }

    fn read_once() -> io::Result<Self> {
        let socket = RequestSocket::netfilter()?;
        let dump = |kind: u16, read: &mut dyn FnMut(&[u8])| {
            socket.dump(SUBSYSTEM << 8 | kind, &header(0, 0), read)
        };
        let mut ruleset = Self::default();
        dump(GET_TABLE, &mut |body| ruleset.tables.extend(table(body, TABLE_NAME)))?;
        dump(GET_CHAIN, &mut |body| ruleset.chains.extend(chain(body)))?;
        let mut rules = Vec::new();
        dump(GET_RULE, &mut |body| rules.extend(RawRule::parse(body)))?;
        let mut sets = BTreeMap::new();
        for RawRule { table, chain, expressions } in rules {
            let elements = |set: &str| -> io::Result<Vec<Vec<u8>>> {
                let key = (table.clone(), set.to_owned());
                if let Some(elements) = sets.get(&key) {
                    return Ok(Vec::clone(elements));
                }
                let found = elements(&socket, &table, set)?;
                sets.insert(key, found.clone());
                Ok(found)
            };
            let statements = statements(&expressions, elements)?;
            ruleset.rules.push(ListedRule { table, chain, statements });
        }
        Ok(ruleset)
    }
}

/// A rule with its expressions as they came.
struct RawRule {
    table: Table,
    chain: String,
    expressions: Vec<u8>,
}

impl RawRule {
    fn parse(body: &[u8]) -> Option<Self> {
        let table = table(body, RULE_TABLE)?;
        let values = body.get(HEADER..)?;
        let chain = text(find(values, RULE_CHAIN)?);
        let expressions = find(values, RULE_EXPRESSIONS).unwrap_or_default().to_vec();
        Some(Self { table, chain, expressions })
    }
}

fn table(body: &[u8], name: u16) -> Option<Table> {
    let family = *body.first()?;
    Some(Table { family, name: text(find(body.get(HEADER..)?, name)?) })
}

fn chain(body: &[u8]) -> Option<ListedChain> {
    let table = table(body, CHAIN_TABLE)?;
    let values = body.get(HEADER..)?;
    let name = text(find(values, CHAIN_NAME)?);
    let is_filter = find(values, CHAIN_TYPE).is_some_and(|kind| text(kind) == "filter");
    let hook = find(values, CHAIN_HOOK).and_then(|hook| number(find(hook, HOOK_NUMBER)?));
    let is_known = is_filter && HOOKED.contains(&table.family);
    let filters = hook.filter(|_| is_known).and_then(Hook::of_number);
    let drops = find(values, CHAIN_POLICY).and_then(number) == Some(NF_DROP);
    Some(ListedChain { table, name, filters, drops })
}

/// The keys of a set. Of intervals they are the ends.
fn elements(socket: &RequestSocket, table: &Table, set: &str) -> io::Result<Vec<Vec<u8>>> {
    let names = texts(&[(ELEMENTS_TABLE, &table.name), (ELEMENTS_SET, set)]);
    let body = [&header(table.family, 0)[..], &names].concat();
    let mut keys = Vec::new();
    socket.dump(SUBSYSTEM << 8 | GET_ELEMENTS, &body, |body| keys.extend(keys_of(body)))?;
    Ok(keys)
}

fn keys_of(body: &[u8]) -> Vec<Vec<u8>> {
    let list = body.get(HEADER..).and_then(|values| find(values, ELEMENTS)).unwrap_or_default();
    let elements = attributes(list).filter(|(kind, _)| *kind == LIST_ELEMENT);
    let keys = elements.filter_map(|(_, element)| find(find(element, ELEMENT_KEY)?, DATA_VALUE));
    keys.map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_is_shown_with_its_family() {
        let shown = [1, 2, 99].map(|family| Table { family, name: "own".to_owned() }.to_string());
        assert_eq!(shown, ["inet own", "ip own", "? own"]);
    }

    proptest! {
        #[test]
        fn arbitrary_replies_do_not_panic(body: Vec<u8>) {
            let _ = (table(&body, TABLE_NAME), chain(&body), keys_of(&body));
            if let Some(rule) = RawRule::parse(&body) {
                let _ = statements(&rule.expressions, |_| Ok(Vec::new()));
            }
        }
    }
}
