//! What all parts of a plan are checked by.

use std::io;

pub(super) fn refused(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the plan is not valid: {message}"))
}
