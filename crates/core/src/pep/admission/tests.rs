//! Tests of the admission in virtual time.
