//! A table of values by flow.

use crate::packet::FlowId;

/// A value for each flow, by flow number; initially the default.
///
/// Flow numbers are indices into the flows of the run, but a queue may see few of them: the return
/// direction of one terminal among ten thousand has a handful of a hundred thousand. Values are therefore
/// stored in pages, which are allocated when one of their flows is first changed. This is nearly as fast
/// as a plain vector, and iteration order plays no part.
#[derive(Clone, Debug)]
pub(super) struct FlowTable<T> {
    pages: Vec<Option<Page<T>>>,
}

type Page<T> = Box<[T; PAGE_FLOWS]>;

const PAGE_FLOWS: usize = 64;

impl<T> Default for FlowTable<T> {
    fn default() -> Self {
        Self { pages: Vec::new() }
    }
}

impl<T: Copy + Default> FlowTable<T> {
    #[inline]
    pub(super) fn of(&self, flow: FlowId) -> T {
        let (page, index) = location_of(flow);
        match self.pages.get(page) {
            Some(Some(values)) => values[index],
            Some(None) | None => T::default(),
        }
    }

    #[inline]
    pub(super) fn of_mut(&mut self, flow: FlowId) -> &mut T {
        let (page, index) = location_of(flow);
        if !matches!(self.pages.get(page), Some(Some(_))) {
            return self.allocate(page, index);
        }
        let values = self.pages[page].as_mut().expect("the page was just found");
        &mut values[index]
    }

    #[cold]
    #[inline(never)]
    fn allocate(&mut self, page: usize, index: usize) -> &mut T {
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let values = self.pages[page].insert(Box::new([T::default(); PAGE_FLOWS]));
        &mut values[index]
    }
}

fn location_of(flow: FlowId) -> (usize, usize) {
    let number = flow.0 as usize;
    (number / PAGE_FLOWS, number % PAGE_FLOWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_has_its_own_value() {
        let mut values = FlowTable::<u32>::default();
        for flow in [0, 63, 64, 200, 63] {
            *values.of_mut(FlowId(flow)) += flow + 1;
        }
        let found = [0, 1, 63, 64, 200, 201, 100_000].map(|flow| values.of(FlowId(flow)));
        assert_eq!(found, [1, 0, 128, 65, 201, 0, 0]);
    }

    /// The last of a hundred thousand flows costs one page, and no memory for those before it.
    #[test]
    fn a_high_number_costs_one_page() {
        let mut values = FlowTable::<u64>::default();
        *values.of_mut(FlowId(99_999)) = 1;
        assert_eq!(values.pages.iter().flatten().count(), 1);
        assert_eq!(values.pages.len(), 1_563, "100,000 / 64, rounded up");
    }
}
