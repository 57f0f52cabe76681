//! The context of every command: the options, and access to the settings, the ledger and the daemon.

use std::cell::Cell;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::unistd::{Uid, User};

use super::arguments::Global;
use super::exit::{Exit, Failure};
use super::output::clean;
use crate::control::client::ControlClient;
use crate::errors::chain;
use crate::ledger::LedgerState;
use crate::settings::{Settings, SettingsErrors, control_socket, ledger_despite_errors};
use crate::store::{FILE, ReadStore, StoreError, Temporary, backup, must_exist};

/// The first bytes of a SQLite file (sqlite.org/fileformat.html).
const SQLITE: &[u8] = b"SQLite format 3\0";
/// The remedy if the caller may not read a file.
const READING: &str = "reading needs group bursar";

/// The options of the program, and the caller.
pub(super) struct Context {
    pub(super) global: Global,
    /// The name of the caller, from before the process becomes user `bursar`.
    pub(super) actor: String,
    warned: Cell<bool>,
}

impl Context {
    pub(super) fn new(global: Global) -> Self {
        Self { global, actor: crate::control::caller::own_name(), warned: Cell::new(false) }
    }

    /// Reads the configuration. Its warnings are printed once, on standard error.
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let settings = self.read_settings(Settings::load)?;
        if !self.warned.replace(true) {
            for warning in &settings.warnings {
                // If standard error is closed, the warning is lost.
                let _ = writeln!(std::io::stderr(), "warning: {}", clean(warning));
            }
        }
        Ok(settings)
    }

    /// Reads the configuration for a command that prints the warnings in its answer and contacts nothing.
    pub(super) fn offline_settings(&self) -> Result<Settings, Failure> {
        self.read_settings(Settings::load_offline)
    }

    fn read_settings(&self, load: fn(&Path) -> Result<Settings, SettingsErrors>) -> Result<Settings, Failure> {
        let path = &self.global.config;
        // A caller who may not read the file is not allowed to run the command. The error says this, and not that the
        // configuration is wrong.
        if std::fs::File::open(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            return Err(Failure::new(Exit::Forbidden, format!("you may not read {}; {READING}", path.display())));
        }
        Ok(load(path)?)
    }

    /// Returns a client of the daemon, even if the daemon does not run. A configuration that is wrong, or that the
    /// caller may not read, does not matter.
    pub(super) fn daemon(&self) -> Result<ControlClient, Failure> {
        Ok(ControlClient::new(&control_socket(&self.global.config))?)
    }

    /// Returns the path of the ledger: that of `--ledger`, or the configured one. To read the configured ledger, root
    /// becomes user `bursar`.
    pub(super) fn ledger(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.global.ledger {
            return Ok(path.clone());
        }
        let path = self.settings()?.ledger();
        become_bursar()?;
        Ok(path)
    }

    /// Opens the ledger for reading, with the schema of this version.
    pub(super) async fn store(&self) -> Result<ReadStore, Failure> {
        Ok(self.store_as_it_is().await?.up_to_date().await?)
    }

    /// Like [`Self::store`], but also works while the configuration has errors. For a command that has given its order
    /// to the daemon, and must not fail because of them.
    pub(super) async fn store_despite_errors(&self) -> Result<ReadStore, Failure> {
        match self.store().await {
            Err(Failure { exit: Exit::Configuration, .. }) => {
                become_bursar()?;
                Ok(opened(&ledger_despite_errors(&self.global.config)).await?.up_to_date().await?)
            }
            other => other,
        }
    }

    /// Opens the ledger for reading, with the schema that the file has.
    pub(super) async fn store_as_it_is(&self) -> Result<ReadStore, Failure> {
        let path = self.ledger()?;
        if self.global.ledger.is_none() {
            return opened(&path).await;
        }
        let found = std::fs::metadata(&path).and_then(|_| File::open(&path));
        found.map_err(|error| {
            let (exit, remedy) = match error.kind() {
                ErrorKind::PermissionDenied => (Exit::Forbidden, "let your user read the file"),
                _ => (Exit::Failed, "--ledger must name a ledger, or a backup of one"),
            };
            Failure::new(exit, format!("{}: {error}; {remedy}", path.display()))
        })?;
        named(&path).await
    }

    /// Does `work`, which reads the ledger, and becomes the caller again. The configured ledger is read as user `bursar`;
    /// the ledger of `--ledger` belongs to the caller.
    pub(super) async fn reading<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        match self.global.ledger {
            Some(_) => work.await,
            None => as_bursar(work).await.flatten(),
        }
    }
}

/// Opens the file of `--ledger`. If it is not a ledger, the error says only that, because the remedies for a damaged
/// ledger concern the configured ledger.
async fn named(path: &Path) -> Result<ReadStore, Failure> {
    let is_no = |why: &str| {
        Failure::new(Exit::Failed, format!("{} is neither a ledger nor a backup of one: {why}", path.display()))
    };
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SQLITE.len() as u64).read_to_end(&mut begin));
    read.map_err(|error| is_no(&error.to_string()))?;
    if begin != SQLITE && !backup::is_packed(path).is_ok_and(|is_packed| is_packed) {
        return Err(is_no("it is not a SQLite file"));
    }
    let mut store = opened(path).await?;
    store.rows("SELECT last_generation FROM ledger", &[]).await.map_err(|error| is_no(&chain(&error)))?;
    Ok(store)
}

/// Loads the ledger of the configuration.
pub(super) async fn ledger_of(settings: &Settings) -> Result<LedgerState, Failure> {
    Ok(opened(&settings.ledger()).await?.up_to_date().await?.state().await?)
}

/// Opens a ledger that the configuration names, or a packed one.
async fn opened(path: &Path) -> Result<ReadStore, Failure> {
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    let is_packed = must_exist(path).and_then(|()| backup::is_packed(path).map_err(failed));
    let is_packed = is_packed.map_err(|error| match error {
        StoreError::File { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            Failure::new(Exit::Forbidden, format!("{}: {source}; {READING}", path.display()))
        }
        other => other.into(),
    })?;
    if !is_packed {
        return Ok(ReadStore::open(path).await?);
    }
    let folder = Temporary::new().with_context(Temporary::remedy)?;
    let plain = folder.0.join(FILE);
    let unpacked = File::open(path).and_then(|mut packed| backup::unpack(&mut packed, &mut File::create(&plain)?));
    unpacked.with_context(|| format!("cannot unpack the backup: {}", Temporary::remedy()))?;
    // The folder is removed when this function returns. The open file stays readable until it is closed.
    Ok(ReadStore::open(&plain).await?)
}

/// If the process is root, it becomes user `bursar`, so that no file in the state folder ever belongs to root.
pub(super) fn become_bursar() -> Result<(), Failure> {
    crate::privilege::become_bursar().map_err(not_bursar)
}

/// Does `work` as user `bursar`, who owns the files, if the process is root.
pub(super) async fn as_bursar<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    crate::privilege::as_bursar(work).await.map_err(not_bursar)
}

fn not_bursar(error: nix::Error) -> Failure {
    Failure::new(Exit::Forbidden, format!("cannot become user bursar: {error}"))
}

/// Whether this process may do the daemon's work while the daemon does not run: it is root or user `bursar`.
pub(super) fn may_act() -> bool {
    let own = User::from_name(crate::privilege::USER).ok().flatten();
    Uid::effective().is_root() || own.is_some_and(|user| user.uid == Uid::effective())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_may_act() {
        assert!(may_act() || !Uid::effective().is_root());
    }
}
