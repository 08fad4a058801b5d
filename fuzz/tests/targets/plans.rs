//! Plans: any text is refused with a message, or is a plan that is built and runs.

use bentpipe_sim::{MemoryEstimate, Plan, Simulation};

use crate::ITERATIONS;

/// A plan of a few flows needs some hundred kilobytes; one with millions of hosts is not built here.
const FIXED_BYTES_MAX: u64 = 16 << 20;
const MEMORY_BYTES_MAX: u64 = 64 << 20;
/// A slice is one step of a run.
const SLICES: usize = 20;

#[test]
fn any_text() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let plan = match Plan::parse(text) {
            Ok(plan) => plan,
            Err(error) => {
                assert!(!error.problem.is_empty());
                return;
            }
        };
        if MemoryEstimate::of(&plan).fixed > FIXED_BYTES_MAX {
            return;
        }
        let mut simulation = Simulation::new(&plan, 1).with_memory_limit(MEMORY_BYTES_MAX);
        for _ in 0..SLICES {
            if !simulation.advance() {
                break;
            }
        }
        simulation.finish().expect("packets are conserved");
    });
}
