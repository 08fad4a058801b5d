//! Engines against their invariants, published vectors and figures derived on paper: one binary, since each more takes
//! seconds to link.

mod coding;
mod conformance;
mod graph;
mod pep;
mod properties_change;
mod properties_link;
mod properties_processor;
mod properties_queue;
mod properties_queue_times;
mod properties_replace;
mod properties_shared_rate;
mod properties_wire;
mod queues;
