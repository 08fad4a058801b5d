//! The packets in symbols: at the sender those that repair may cover, at the receiver those that it may recover.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::coding::SymbolId;
use crate::packet::symbol::SourceSymbol;

/// Symbols in a group. Repair refers to groups, so that a window of a thousand symbols costs no thousand references.
const GROUP: usize = 32;

type Group = Arc<[Arc<SourceSymbol>]>;

/// See the module's description.
#[derive(Debug)]
pub(super) struct Contents {
    groups_max: usize,
    /// What was sent, oldest first, in whole groups, and what does not fill one yet.
    groups: VecDeque<Group>,
    rest: Vec<Arc<SourceSymbol>>,
    /// The missing symbols that repair was a combination of.
    missing: BTreeMap<u32, Arc<SourceSymbol>>,
}

impl Contents {
    /// Nothing, with space for the symbols that a sender keeps.
    pub(super) fn new(memory_symbols: u16) -> Self {
        Self {
            groups_max: usize::from(memory_symbols).div_ceil(GROUP) + 1,
            groups: VecDeque::new(),
            rest: Vec::with_capacity(GROUP),
            missing: BTreeMap::new(),
        }
    }

    /// Keeps the next symbol that is sent.
    pub(super) fn keep(&mut self, symbol: Arc<SourceSymbol>) {
        self.rest.push(symbol);
        if self.rest.len() == GROUP {
            self.groups.push_back(self.rest.drain(..).collect());
            if self.groups.len() > self.groups_max {
                self.groups.pop_front();
            }
        }
    }

    /// The symbols that are kept, from `first` on, perhaps with some before it.
    pub(super) fn from(&self, first: SymbolId) -> Vec<Group> {
        let is_before =
            |group: &&Group| group.last().is_some_and(|last| last.header.id.ahead_of(first) < 0);
        let groups = self.groups.iter().skip_while(is_before).cloned();
        let rest = (!self.rest.is_empty()).then(|| self.rest.iter().cloned().collect());
        groups.chain(rest).collect()
    }

    /// Notes the symbols of repair that are needed.
    pub(super) fn learn(&mut self, sources: &[Group], is_needed: impl Fn(SymbolId) -> bool) {
        // Symbols that were given up are among them until they are more than those that may be missing.
        if self.missing.len() > 2 * GROUP * self.groups_max {
            self.missing.retain(|&id, _| is_needed(SymbolId(id)));
        }
        for group in sources {
            // Ids within a group are consecutive: reading each of them would fetch every symbol from memory.
            let Some(first) = group.first().map(|symbol| symbol.header.id) else { continue };
            for (symbol, offset) in group.iter().zip(0..) {
                let id = first.plus(offset);
                if is_needed(id) {
                    self.missing.entry(id.0).or_insert_with(|| Arc::clone(symbol));
                }
            }
        }
    }

    /// Takes a symbol that is not missing any more.
    pub(super) fn take(&mut self, id: SymbolId) -> Option<Arc<SourceSymbol>> {
        self.missing.remove(&id.0)
    }
}
