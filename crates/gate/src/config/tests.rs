//! See the module.
