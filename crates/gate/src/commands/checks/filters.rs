//! Filters of nftables that drop what a gateway sends and receives itself.

use serde_json::{Value, json};

use super::super::failure::Done;
use super::super::machine::Machine;
use super::{Check, parts, text};

/// A filter chain that drops or rejects by policy or by its last rule.
pub(super) struct ClosedChain {
    pub(super) family: String,
    pub(super) hook: String,
    pub(super) name: String,
    /// Its table, with the family.
    pub(super) owner: String,
    /// The rules of all chains of the table.
    pub(super) rules: Vec<Value>,
}

/// Checks that INPUT and OUTPUT chains let the legs of connections pass.
pub(super) fn check(machine: &dyn Machine, mark: u32, table: &str) -> Done<Check> {
    for chain in closed_chains(machine, &format!("inet {table}"))? {
        let ClosedChain { hook, name, owner, rules, .. } = &chain;
        let is_own = ["input", "output"].contains(&hook.as_str());
        if is_own && !rules.iter().any(|rule| accepts_legs(rule, hook)) {
            return Ok(Check::failed(
                "filters",
                format!(
                    "Chain {name} of {owner} in nftables drops or rejects what no rule accepts in the hook \
                     {hook}: the PEP's own packets."
                ),
                format!("nft insert rule {owner} {name} socket transparent 1 accept"),
            ));
        }
    }
    Ok(Check::passed("filters", format!("Filters of nftables let packets of mark {mark} pass.")))
}

/// The closed chains of nftables, without those of the table `own`.
pub(super) fn closed_chains(machine: &dyn Machine, own: &str) -> Done<Vec<ClosedChain>> {
    let ruleset = machine.nft_ruleset()?;
    let all = |kind: &str| -> Vec<Value> {
        let objects = ruleset.iter().filter_map(|object| object.get(kind));
        objects.filter(|object| owner(object) != own).cloned().collect()
    };
    let rules = all("rule");
    let closed = |chain: Value| {
        let owner = owner(&chain);
        let inside: Vec<_> = rules.iter().filter(|rule| self::owner(rule) == owner).collect();
        let last = inside.iter().rev().find(|rule| rule["chain"] == chain["name"]);
        let is_closed = is_refusal(&text(&chain, "policy")) || last.is_some_and(|it| refuses(it));
        (chain["type"] == "filter" && is_closed).then(|| ClosedChain {
            family: text(&chain, "family"),
            hook: text(&chain, "hook"),
            name: text(&chain, "name"),
            rules: inside.into_iter().cloned().collect(),
            owner,
        })
    };
    Ok(all("chain").into_iter().filter_map(closed).collect())
}

fn owner(object: &Value) -> String {
    let table = if object.get("table").is_some() { "table" } else { "name" };
    format!("{} {}", text(object, "family"), text(object, table))
}

fn is_refusal(verdict: &str) -> bool {
    ["drop", "reject"].contains(&verdict)
}

/// Whether a rule refuses all packets: a counter and a log leave a verdict one for all, unlike a match or a limit.
fn refuses(rule: &Value) -> bool {
    let statements = rule["expr"].as_array().into_iter().flatten().filter_map(Value::as_object);
    let mut names = statements
        .flat_map(|statement| statement.keys())
        .filter(|name| !["counter", "log"].contains(&name.as_str()));
    match (names.next(), names.next()) {
        (Some(only), None) => is_refusal(only),
        _ => false,
    }
}

/// Whether a rule accepts all legs; in INPUT, those that arrive on lo are enough.
fn accepts_legs(rule: &Value, hook: &str) -> bool {
    let statements: Vec<_> = rule["expr"].as_array().into_iter().flatten().collect();
    let matches: Vec<_> = statements.iter().filter_map(|it| it.get("match")).collect();
    if !statements.iter().any(|statement| statement.get("accept").is_some()) {
        return false;
    }
    let is_transparent = |found: &&Value| {
        found["left"] == json!({"socket": {"key": "transparent"}}) && found["right"] == 1
    };
    let is_of_lo = |found: &&Value| {
        let mut interfaces = ["iif", "iifname"].into_iter();
        interfaces.any(|key| found["left"] == json!({"meta": {"key": key}}))
            && parts(&found["right"]).iter().any(|part| **part == "lo")
    };
    matches.iter().any(is_transparent) || (hook == "input" && matches.first().is_some_and(is_of_lo))
}
