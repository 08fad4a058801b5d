//! Whole runs: one binary, since each more takes seconds to link.

mod capture;
mod conformance;
mod lab;
mod network;
mod parsing;
mod plans;
mod properties;
