//! The checks that every engine must pass.
