//! Errors of a command with their exit codes, and lines for the user.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use serde::Serialize;

use crate::config::Problems;

/// Separates what is wrong from its remedy.
pub(super) const FIX: &str = "; to fix it: ";
/// The name of this program.
pub(crate) const PROGRAM: &str = "bentpipe-gate";
/// What the Python package calls this program.
const WITHIN_BENTPIPE: &str = "bentpipe gateway";

/// How the user has called this program.
static CALLED: OnceLock<&'static str> = OnceLock::new();

/// Notes the name by which the program was called, its first argument.
pub(super) fn note_name(name: &str) {
    let name = if name == WITHIN_BENTPIPE { WITHIN_BENTPIPE } else { PROGRAM };
    let _ = CALLED.set(name);
}

/// The program as the user calls it.
pub(super) fn called() -> &'static str {
    CALLED.get().copied().unwrap_or(PROGRAM)
}

/// Why a command has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Bad input.
    Input(String),
    /// The machine lacks something; the message names it and the fix.
    Machine(String),
}

impl Failure {
    /// The exit code: 2 for bad input, 3 for the machine.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Machine(_) => 3,
        }
    }

    /// What an error of this crate says.
    pub(super) fn of(error: &io::Error) -> Self {
        let message = error.to_string();
        if error.kind() == io::ErrorKind::InvalidInput {
            Self::Input(message)
        } else {
            Self::Machine(message)
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Input(message) | Self::Machine(message)) = self;
        f.write_str(message)
    }
}

impl std::error::Error for Failure {}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self::Input(problems.to_string())
    }
}

/// What a command returns.
pub(super) type Done<T = ()> = Result<T, Failure>;

/// Prints a line for the user on standard error.
pub(super) fn note(text: &str) {
    let name = called().split(' ').next().unwrap_or(PROGRAM);
    let _ = writeln!(io::stderr(), "{name}: {text}");
}

/// Prints lines on standard output. One that is closed ends nothing: the command has done its work.
pub(super) fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Prints data on standard output, as JSON.
pub(super) fn print_json(data: &impl Serialize) {
    print(&serde_json::to_string_pretty(data).unwrap_or_default());
}
