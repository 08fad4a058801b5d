//! What can go wrong outside.

use std::{fmt, io};

/// Why the machine does not do what it is asked for.
#[derive(Debug)]
pub enum SystemError {
    /// The machine lacks something, or does not allow it.
    Machine {
        /// What was tried.
        doing: String,
        /// What the kernel said.
        error: io::Error,
        /// What the user can do.
        fix: &'static str,
    },
    /// A program could not be started.
    Program {
        /// Its name.
        name: String,
        /// What the kernel said.
        error: io::Error,
    },
}

impl SystemError {
    /// For a step that only root, or root of a user namespace, may take.
    pub fn privileged(doing: &str, error: impl Into<io::Error>) -> Self {
        Self::machine(doing, error, "run it as root, or where user namespaces are allowed")
    }

    /// For a step that fails for want of what `fix` names.
    pub fn machine(doing: &str, error: impl Into<io::Error>, fix: &'static str) -> Self {
        Self::Machine { doing: doing.to_owned(), error: error.into(), fix }
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine { doing, error, fix } => write!(f, "{doing}: {error}; to fix it: {fix}"),
            Self::Program { name, error } => write!(f, "{name}: {error}"),
        }
    }
}

impl std::error::Error for SystemError {}
