//! Marks, routing tables and tables of nftables that others use already.

use std::collections::BTreeSet;
use std::ops::Range;

use bentpipe_sys::nftables::{ListedRule, Statement, Subject};
use serde_json::Value;

use super::super::failure::Done;
use super::super::machine::Machine;
use super::{Check, IP_VERSIONS, MARK_STEP, text};
use crate::daemon::PepPlan;
use crate::transparent::marks;

pub(super) fn check(
    machine: &dyn Machine,
    pep: &PepPlan,
    name: &str,
    has_own: bool,
) -> Done<Check> {
    let problems = in_use(machine, pep, name, has_own)?;
    if problems.is_empty() {
        let (mark, table) = (pep.mark, pep.route_table);
        let found = format!("Mark {mark}, routing table {table} and table {name} are free.");
        return Ok(Check::passed("rules", found));
    }
    let mut fixes: Vec<String> = Vec::new();
    let mut found = Vec::new();
    for (problem, fix) in problems {
        found.push(problem);
        if !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    Ok(Check::failed("rules", found.join(" "), fixes.join("; ")))
}

/// What is in use already, each with the fix. `has_own`: rules of this gateway itself are no problem.
fn in_use(
    machine: &dyn Machine,
    pep: &PepPlan,
    name: &str,
    has_own: bool,
) -> Done<Vec<(String, String)>> {
    let (first, table) = (pep.mark, pep.route_table);
    let own = first..first.saturating_add(marks(pep.workers) + 2);
    let other_mark = format!(
        "write mark = {} in the configuration, or another free one",
        first.saturating_add(MARK_STEP)
    );
    let other_table = format!(
        "write route_table = {} in the configuration, or another free one",
        table.saturating_add(1)
    );
    let mut found = Vec::new();
    for version in IP_VERSIONS {
        for rule in machine.routing_rules(version)? {
            let has_mark = has_mark(&rule, &own);
            let has_table = text(&rule, "table") == table.to_string();
            if has_own && has_mark && has_table {
                continue;
            }
            let uses = format!("A rule of ip -{version} rule uses");
            if has_mark {
                let mark = text(&rule, "fwmark");
                found.push((format!("{uses} mark {mark}."), other_mark.clone()));
            }
            if has_table {
                found.push((format!("{uses} routing table {table}."), other_table.clone()));
            }
        }
        if !has_own && !machine.routes(version, table)?.is_empty() {
            found.push((
                format!(
                    "Routing table {table} has routes (ip -{version} route show table {table})."
                ),
                other_table.clone(),
            ));
        }
    }
    found.extend(in_nftables(machine, name, &own, &other_mark, has_own)?);
    Ok(found)
}

fn in_nftables(
    machine: &dyn Machine,
    name: &str,
    own: &Range<u32>,
    other_mark: &str,
    has_own: bool,
) -> Done<Vec<(String, String)>> {
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    let ruleset = machine.ruleset()?;
    if !has_own && ruleset.tables.iter().any(|table| table.is_inet(name)) {
        found.push((
            format!("nftables has a table inet {name}, of another owner."),
            format!("nft delete table inet {name}, or choose another name in the configuration"),
        ));
    }
    for ListedRule { table, statements, .. } in &ruleset.rules {
        let uses = statements.iter().any(|statement| names_mark(statement, own));
        if uses && !table.is_inet(name) && seen.insert(table) {
            let text = format!("Table {table} of nftables uses the mark.");
            found.push((text, other_mark.to_owned()));
        }
    }
    Ok(found)
}

/// Whether a statement is about the mark of a packet or a connection, and has one of these numbers.
fn names_mark(statement: &Statement, own: &Range<u32>) -> bool {
    let (Statement::Match { subject, values, .. } | Statement::Set { subject, values }) = statement
    else {
        return false;
    };
    let is_own = |value: &Vec<u8>| {
        value[..].try_into().is_ok_and(|bytes| own.contains(&u32::from_ne_bytes(bytes)))
    };
    matches!(subject, Subject::Mark | Subject::ConnectionMark) && values.iter().any(is_own)
}

fn has_mark(rule: &Value, own: &Range<u32>) -> bool {
    let number = |field: &str| {
        let text = text(rule, field);
        match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let mask = number("fwmask").unwrap_or(u32::MAX);
    number("fwmark").is_some_and(|value| own.clone().any(|mark| mark & mask == value))
}
