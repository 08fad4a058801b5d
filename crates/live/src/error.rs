//! What can go wrong outside.

use std::{fmt, io};

use bentpipe_sim::PlanError;

/// Why a lab cannot be set up or go on.
#[derive(Debug)]
pub enum LabError {
    /// The plan is not for real time.
    Plan(PlanError),
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

impl LabError {
    /// For a step that only root, or root of a user namespace, may take.
    pub(crate) fn privileged(doing: &str, error: impl Into<io::Error>) -> Self {
        Self::machine(doing, error, "run it as root, or where user namespaces are allowed")
    }

    pub(crate) fn machine(doing: &str, error: impl Into<io::Error>, fix: &'static str) -> Self {
        Self::Machine { doing: doing.to_owned(), error: error.into(), fix }
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(error) => error.fmt(f),
            Self::Machine { doing, error, fix } => write!(f, "{doing}: {error}; to fix it: {fix}"),
            Self::Program { name, error } => write!(f, "{name}: {error}"),
        }
    }
}

impl std::error::Error for LabError {}

impl From<PlanError> for LabError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}
