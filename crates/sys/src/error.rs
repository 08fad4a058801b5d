//! Errors of the operating system.

use std::{fmt, io};

/// Why a system call or a program failed.
#[derive(Debug)]
pub enum SystemError {
    /// The machine lacks a feature, or denies a permission.
    Machine {
        /// The operation that failed, as a participle: "opening /dev/net/tun".
        doing: String,
        /// The kernel's error.
        error: io::Error,
        /// How the user can fix it.
        fix: &'static str,
    },
    /// A program could not be started.
    Program {
        /// The program's name.
        name: String,
        /// The kernel's error.
        error: io::Error,
    },
}

impl SystemError {
    /// An operation that needs root privileges, possibly of a user namespace.
    pub fn privileged(doing: &str, error: impl Into<io::Error>) -> Self {
        Self::machine(doing, error, "run it as root, or where user namespaces are allowed")
    }

    /// An operation that `fix` makes possible.
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
