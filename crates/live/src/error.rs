//! Errors of labs.

use std::{fmt, io};

use bentpipe_sim::PlanError;
use bentpipe_sys::SystemError;

/// Why a lab cannot be brought up or has failed.
#[derive(Debug)]
pub enum LabError {
    /// The plan cannot run in real time.
    Plan(PlanError),
    /// The machine lacks a feature or denies a permission, or a program could not be started.
    System(SystemError),
}

impl LabError {
    /// See [`SystemError::privileged`].
    pub(crate) fn privileged(doing: &str, error: impl Into<io::Error>) -> Self {
        Self::System(SystemError::privileged(doing, error))
    }

    /// See [`SystemError::machine`].
    pub(crate) fn machine(doing: &str, error: impl Into<io::Error>, fix: &'static str) -> Self {
        Self::System(SystemError::machine(doing, error, fix))
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(error) => error.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LabError {}

impl From<PlanError> for LabError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

impl From<SystemError> for LabError {
    fn from(error: SystemError) -> Self {
        Self::System(error)
    }
}
