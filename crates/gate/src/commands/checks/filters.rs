//! Filters of nftables that drop what a gateway sends and receives itself.

use bentpipe_sys::nftables::{Hook, ListedChain, ListedRule, Statement, Subject, Table};

use super::super::failure::Done;
use super::super::machine::Machine;
use super::Check;

/// A filter chain that drops or rejects by policy or by its last rule.
pub(super) struct ClosedChain {
    pub(super) hook: Hook,
    pub(super) name: String,
    pub(super) table: Table,
    /// The rules of all chains of the table.
    pub(super) rules: Vec<ListedRule>,
}

/// Checks that INPUT and OUTPUT chains let the legs of connections pass.
pub(super) fn check(machine: &dyn Machine, mark: u32, table: &str) -> Done<Check> {
    for chain in closed_chains(machine, Some(table))? {
        let ClosedChain { hook, name, table, rules } = &chain;
        let hook_name = match hook {
            Hook::Input => "input",
            Hook::Output => "output",
            _ => continue,
        };
        if !rules.iter().any(|rule| accepts_legs(rule, *hook)) {
            return Ok(Check::failed(
                "filters",
                format!(
                    "Chain {name} of {table} in nftables drops or rejects what no rule accepts in the hook \
                     {hook_name}: the PEP's own packets."
                ),
                format!("nft insert rule {table} {name} socket transparent 1 accept"),
            ));
        }
    }
    Ok(Check::passed("filters", format!("Filters of nftables let packets of mark {mark} pass.")))
}

/// The closed chains of nftables, without those of the gateway's own table.
pub(super) fn closed_chains(machine: &dyn Machine, own: Option<&str>) -> Done<Vec<ClosedChain>> {
    let ruleset = machine.ruleset()?;
    let closed = |chain: ListedChain| {
        let ListedChain { table, name, filters, drops } = chain;
        let is_inside = |rule: &&ListedRule| rule.table == table;
        let rules: Vec<_> = ruleset.rules.iter().filter(is_inside).cloned().collect();
        let last = rules.iter().rfind(|rule| rule.chain == name);
        let is_closed = drops || last.is_some_and(refuses);
        let is_own = own.is_some_and(|own| table.is_inet(own));
        let hook = filters.filter(|_| is_closed && !is_own)?;
        Some(ClosedChain { hook, name, table, rules })
    };
    Ok(ruleset.chains.iter().cloned().filter_map(closed).collect())
}

/// Whether a rule refuses all packets: a counter and a log leave a verdict one for all, unlike a match or a limit.
fn refuses(rule: &ListedRule) -> bool {
    let mut decisive = rule.statements.iter().filter(|it| **it != Statement::Note);
    decisive.next() == Some(&Statement::Refuse) && decisive.next().is_none()
}

/// Whether a rule accepts all legs; in INPUT, those that arrive on lo are enough.
fn accepts_legs(rule: &ListedRule, hook: Hook) -> bool {
    if !rule.statements.contains(&Statement::Accept) {
        return false;
    }
    let matches = || {
        rule.statements.iter().filter_map(|statement| match statement {
            Statement::Match { subject, values, is_inverted } => {
                Some((*subject, values, *is_inverted))
            }
            _ => None,
        })
    };
    let is_transparent = matches().any(|(subject, values, is_inverted)| {
        let is_one = values.iter().any(|value| value[..] == [1]);
        subject == Subject::TransparentSocket && is_one != is_inverted
    });
    let is_of_lo = matches().next().is_some_and(|(subject, values, is_inverted)| {
        let is_lo = |value: &Vec<u8>| match subject {
            Subject::IngressIndex => value[..] == LOOPBACK_INDEX.to_ne_bytes(),
            Subject::IngressName => value.starts_with(b"lo\0"),
            _ => false,
        };
        values.iter().any(is_lo) && !is_inverted
    });
    is_transparent || (hook == Hook::Input && is_of_lo)
}

/// That of `lo` in each network namespace (`LOOPBACK_IFINDEX` in linux/net_namespace.h).
const LOOPBACK_INDEX: u32 = 1;
