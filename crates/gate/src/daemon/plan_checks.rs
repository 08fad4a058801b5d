//! What all parts of a plan are checked by.

use std::io;

pub(super) fn refused(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the plan is not valid: {message}"))
}

/// As the kernel allows it (`dev_valid_name`); it takes a name with a percent sign as a pattern, and a quote would end
/// the name in the rules.
pub(super) fn is_interface(name: &str) -> bool {
    let is_bad = |byte: u8| byte <= b' ' || b"/:%\"\\\x7f".contains(&byte);
    (1..16).contains(&name.len()) && ![".", ".."].contains(&name) && !name.bytes().any(is_bad)
}
