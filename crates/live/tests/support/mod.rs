//! Helpers of tests with real kernels.

use bentpipe_live::LabError;
use bentpipe_sys::SystemError;

/// The value, or `None` with a message where the machine does not allow it. An error if labs are
/// required.
pub(crate) fn allowed<T>(made: Result<T, LabError>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(LabError::System(SystemError::Machine { doing, error, .. })) => {
            skip(&format!("{doing}: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Prints why a test is skipped. Panics if labs are required.
pub(crate) fn skip(reason: &str) {
    let required = std::env::var_os("BENTPIPE_REQUIRE_LABS").is_some();
    assert!(!required, "labs are required, but {reason}");
    eprintln!("skipped: {reason}");
}
