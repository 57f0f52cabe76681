//! The exit codes of `bursar`, and the error type that its commands return.

use std::process::ExitCode;

use crate::control::client::ClientError;
use crate::errors::chain;
use crate::identity::AccountKind;
use crate::orders::request::RequestRefusal;
use crate::orders::unknown;
use crate::runtime::RuntimeError;
use crate::settings::SettingsErrors;
use crate::store::{StoreError, VerifyError};

/// Exit codes. Scripts depend on them. Codes from 64 on are those of sysexits.h(3head).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command did its work, or there was nothing to do.
    Done = 0,
    /// The command failed, or failed for some accounts.
    Failed = 1,
    /// `plan` found changes, or `directory diff` found differences.
    Changes = 2,
    /// A limit refuses a part of the changes.
    Refused = 3,
    /// The account or the archive does not exist.
    NoAccount = 4,
    /// Wrong arguments.
    Usage = 64,
    /// The daemon is not reachable.
    Unavailable = 69,
    /// Another process holds a lock, or too many requests wait for the daemon.
    Busy = 75,
    /// The caller is not allowed to do this.
    Forbidden = 77,
    /// Wrong configuration, a lost ledger, or a ledger that does not own a cluster.
    Configuration = 78,
}

impl Exit {
    /// Returns the exit code for a number that the daemon answered.
    #[must_use]
    pub const fn of(code: u8) -> Self {
        match code {
            0 => Self::Done,
            2 => Self::Changes,
            3 => Self::Refused,
            4 => Self::NoAccount,
            64 => Self::Usage,
            69 => Self::Unavailable,
            75 => Self::Busy,
            77 => Self::Forbidden,
            78 => Self::Configuration,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed, and the exit code for it.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// The message for people, with the remedy.
    pub text: String,
}

impl Failure {
    pub fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into() }
    }

    /// Returns the failure for an account that the ledger does not have.
    #[must_use]
    pub fn no_account(kind: AccountKind, name: &str) -> Self {
        Self::new(Exit::NoAccount, unknown(kind, name))
    }
}

impl From<RequestRefusal> for Failure {
    fn from(refusal: RequestRefusal) -> Self {
        Self::new(Exit::of(refusal.exit_code), refusal.text)
    }
}

impl From<SettingsErrors> for Failure {
    fn from(errors: SettingsErrors) -> Self {
        Self::new(Exit::Configuration, errors.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Exit::Failed, chain(error.as_ref()))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let error = error.of_reader();
        let exit = match &error {
            StoreError::Lost { .. } => Exit::Configuration,
            StoreError::Busy | StoreError::Read(_) | StoreError::Locked => Exit::Busy,
            StoreError::File { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => Exit::Forbidden,
            _ => Exit::Failed,
        };
        Self::new(exit, chain(&error))
    }
}

impl From<VerifyError> for Failure {
    fn from(error: VerifyError) -> Self {
        match error {
            VerifyError::Store(error) => error.into(),
            broken @ VerifyError::Broken(_) => Self::new(Exit::Failed, chain(&broken)),
        }
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Store(error) => error.into(),
            RuntimeError::Settings(errors) => errors.into(),
            other => {
                let exit = match other {
                    RuntimeError::Seal { .. }
                    | RuntimeError::NotOwner { .. }
                    | RuntimeError::Behind { .. }
                    | RuntimeError::Copied { .. } => Exit::Configuration,
                    _ => Exit::Failed,
                };
                Self::new(exit, chain(&other))
            }
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(refusal) => refusal.into(),
            ClientError::Absent { .. } | ClientError::Silent => Self::new(Exit::Unavailable, error.to_string()),
            ClientError::Forbidden { .. } => Self::new(Exit::Forbidden, error.to_string()),
            other => Self::new(Exit::Failed, chain(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_codes_become_the_same_exit_codes() {
        for exit in [Exit::Done, Exit::Changes, Exit::Refused, Exit::NoAccount, Exit::Usage, Exit::Forbidden] {
            assert_eq!(Exit::of(exit as u8), exit);
        }
        assert_eq!(Exit::of(255), Exit::Failed);
    }
}
