//! Turns the configuration file and the environment into [`Settings`]. Everything is checked once, and all errors are
//! reported together, so that later work with the settings cannot fail because of them. This module reads only files,
//! with one exception: if `[security] strict_egress` is set, names are resolved when the configuration is put in force.

mod admission;
mod adopted;
mod class;
mod cluster;
mod credential;
mod egress;
mod file;
mod host;
mod keycloak;
mod manifests;
mod network;
mod profile;
mod realm;
mod reaper;
mod secret;
mod server_rules;
mod site_policy;
mod source;
mod table;
mod uid_range;
mod validate;
mod volume;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bursar_directory::source::{KeycloakConfig, LdifConfig, SourceConfig, SourceKind};

pub use self::egress::{Egress, Names, egress, servers_by_address};
pub use self::realm::RealmSettings;
pub use self::secret::SecretPlace;
pub(crate) use self::table::duration;
use crate::archive::{Archives, Recipient};
use crate::identity::ClusterName;
use crate::policy::Policy;

/// The default of `control.socket`.
pub const CONTROL_SOCKET: &str = "/run/bursar/control.sock";
/// The default of `state_dir`.
const STATE_DIR: &str = "/var/lib/bursar";
/// The default path of the configuration.
pub const DEFAULT_PATH: &str = "/etc/bursar/bursar.toml";

/// Returns the control socket that the file at `path` or the environment names, or the default. This works even if the
/// configuration is wrong or not readable, so that orders always reach the daemon.
#[must_use]
pub fn control_socket(path: &Path) -> PathBuf {
    let told = file::text_of(path, &environment(), &["control", "socket"]).and_then(|text| class::absolute(&text));
    told.unwrap_or_else(|| PathBuf::from(CONTROL_SOCKET))
}

/// Returns the path of the ledger in the state folder that the file at `path` or the environment names, or in the
/// default folder. Like [`control_socket`], this works even if the configuration is wrong.
#[must_use]
pub fn ledger_despite_errors(path: &Path) -> PathBuf {
    let told = file::text_of(path, &environment(), &["state_dir"]).and_then(|text| class::absolute(&text));
    ledger_in(&told.unwrap_or_else(|| PathBuf::from(STATE_DIR)))
}

fn ledger_in(state_dir: &Path) -> PathBuf {
    state_dir.join("ledger.db")
}

/// Returns the environment variables that are valid UTF-8.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The file that these settings were read from.
    pub(crate) file: PathBuf,
    /// Warnings about environment variables `BURSAR_…` that set nothing, with the nearest key.
    pub warnings: Vec<String>,
    /// The name of the site in plans, logs and reports.
    pub site: String,
    /// The folder of the ledger, archives, backups and keys.
    pub state_dir: PathBuf,
    /// The directories, each with the place of its secret. If several have an account, the first one counts.
    sources: Vec<(SourceConfig, Option<SecretPlace>)>,
    /// The desired state of tenants, and the limits.
    pub policy: Policy,
    /// The daemon's kubeconfig of each cluster.
    pub clusters: BTreeMap<ClusterName, PathBuf>,
    pub schedule: Schedule,
    pub homes: Homes,
    /// The address at which metrics are served; `None` if only the control socket serves them.
    pub metrics: Option<SocketAddr>,
    /// The socket on which the daemon answers.
    pub control_socket: PathBuf,
    /// The key that Secrets in archives are encrypted to; `None` if archives have no Secrets.
    pub archive_recipient: Option<Recipient>,
    /// The Keycloak realm that Bursar writes to.
    pub realm: Option<Box<RealmSettings>>,
    /// The container image of the webhook.
    pub webhook_image: Option<String>,
}

/// `[schedule]`: five-field cron expressions, UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// When cycles run.
    pub cycle: String,
    /// When directories that are otherwise read by their changes are read in full.
    pub full_read: String,
    /// When the ledger is backed up.
    pub backup: String,
}

/// `[homes]`: how `bursar-homed` is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Homes {
    /// The socket of `bursar-homed`.
    pub socket: PathBuf,
    /// The most time that one request may take.
    pub deadline: Duration,
    /// The folders beneath which homes may be.
    pub prefixes: Vec<PathBuf>,
}

/// All errors of a configuration, one line each: `bursar.toml: KEY: PROBLEM; for example VALUE (line 3)`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct SettingsErrors(pub Vec<String>);

impl fmt::Display for SettingsErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl Settings {
    /// Reads the file at `path`, the variables `BURSAR_…` of the environment, and the CA bundles and manifests that
    /// they name, but no password.
    pub fn load(path: &Path) -> Result<Self, SettingsErrors> {
        Self::load_with(path, &environment())
    }

    /// Like [`Settings::load`], with `environment` instead of the environment of the process.
    pub fn load_with(path: &Path, environment: &BTreeMap<String, String>) -> Result<Self, SettingsErrors> {
        let text = std::fs::read_to_string(path).map_err(|error| SettingsErrors(vec![unreadable(path, &error)]))?;
        Self::of_text(path, &text, environment, Names::Resolved)
    }

    /// Like [`Settings::load`], but contacts nothing: `strict_egress` is checked with addresses only, not with names.
    pub fn load_offline(path: &Path) -> Result<Self, SettingsErrors> {
        let text = std::fs::read_to_string(path).map_err(|error| SettingsErrors(vec![unreadable(path, &error)]))?;
        Self::parse_offline(path, &text)
    }

    /// Like [`Settings::load_offline`], with `text` instead of the content of the file.
    pub fn parse_offline(path: &Path, text: &str) -> Result<Self, SettingsErrors> {
        Self::of_text(path, text, &environment(), Names::AsWritten)
    }

    /// Like [`Settings::load`], with `text` instead of the content of the file.
    pub fn parse(path: &Path, text: &str) -> Result<Self, SettingsErrors> {
        Self::of_text(path, text, &environment(), Names::Resolved)
    }

    fn of_text(
        path: &Path,
        text: &str,
        environment: &BTreeMap<String, String>,
        names: Names,
    ) -> Result<Self, SettingsErrors> {
        let file::Merged { root, variables, added, warnings } =
            file::merged(path, text, environment).map_err(|error| SettingsErrors(vec![error]))?;
        let errors = table::Errors::default();
        let settings = validate::settings(&table::Table::new("", root, &errors), path);
        // A variable of another program or of another version only causes a warning, because an error would stop all
        // work. Such a variable sets nothing, so the configuration is read without it: otherwise a misspelt variable
        // would excuse the missing key, and a class without that key would be left out.
        let strays: Vec<(&String, String)> = errors
            .unknown()
            .into_iter()
            .filter_map(|(key, what)| {
                let variable = added.get(&key)?;
                let option = file::option_like(variable).map(|option| format!("sets no key; did you mean {option}?"));
                Some((variable, format!("{variable}: {}", option.unwrap_or_else(|| format!("{key}: {what}")))))
            })
            .collect();
        if !strays.is_empty() {
            let is_stray = |name: &String| strays.iter().any(|(stray, _)| *stray == name);
            let others = environment.iter().filter(|(name, _)| !is_stray(name));
            let others: BTreeMap<_, _> = others.map(|(name, value)| (name.clone(), value.clone())).collect();
            let said = strays.iter().map(|(_, said)| said.clone());
            return match Self::of_text(path, text, &others, names) {
                Ok(settings) => {
                    Ok(Self { warnings: settings.warnings.iter().cloned().chain(said).collect(), ..settings })
                }
                Err(SettingsErrors(errors)) => Err(SettingsErrors(errors.into_iter().chain(said).collect())),
            };
        }
        if let Some(settings) = settings.as_ref().filter(|settings| settings.policy.strict_egress) {
            for (class, what) in egress(settings, names).reached {
                errors.add(
                    format!("class.{class}.network"),
                    format!("reaches {what}; [security] strict_egress forbids it"),
                );
            }
        }
        let errors = errors.into_inner();
        match settings {
            Some(settings) if errors.is_empty() => Ok(Self { warnings, ..settings }),
            _ => {
                let (name, lines) = (file_name(path), file::Lines::of(text));
                let said = |table::Wrong { key, what, .. }: &table::Wrong| {
                    if let Some(variable) = variables.get(key) {
                        return format!("{variable}: {what}");
                    }
                    let line = lines.find(key, &added).map(|line| format!(" (line {line})"));
                    format!("{name}: {key}: {what}{}", line.unwrap_or_default())
                };
                Err(SettingsErrors(errors.iter().map(said).collect()))
            }
        }
    }

    /// Whether `other` has the same settings, even if they come from another file.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        *other == Self { file: other.file.clone(), ..self.clone() }
    }

    /// Returns the keys that differ in `other` and that a daemon applies only when it starts, because it holds the
    /// ledger and the sockets open.
    #[must_use]
    pub fn only_at_start(&self, other: &Self) -> Vec<&'static str> {
        let keys = [
            ("state_dir", self.state_dir != other.state_dir),
            ("control.socket", self.control_socket != other.control_socket),
            ("metrics.listen", self.metrics != other.metrics),
        ];
        keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    /// Returns how the file differs now from these settings, which were read from it; `None` if it does not. The daemon
    /// calls this between its cycles, so no name is resolved here: `strict_egress` checks names when the file is put in
    /// force.
    #[must_use]
    pub fn differing_file(&self) -> Option<String> {
        let differs = format!("{} differs from the configuration in force", self.file.display());
        let text = std::fs::read_to_string(&self.file);
        let text = text.map_err(|error| SettingsErrors(vec![format!("{}: {error}", self.file.display())]));
        match text.and_then(|text| Self::of_text(&self.file, &text, &environment(), Names::AsWritten)) {
            Ok(now) if now == *self => None,
            Ok(now) => {
                let act = if self.only_at_start(&now).is_empty() { "reload" } else { "restart" };
                Some(format!("{differs}; to put it in force: systemctl {act} bursard"))
            }
            Err(SettingsErrors(errors)) => {
                let first = errors.first().map(String::as_str).unwrap_or_default();
                Some(format!("{differs}, and has errors; `bursar check` lists all of them; the first: {first}"))
            }
        }
    }

    /// Reads the passwords now, and returns the directories with them. A program that reads no directory needs no
    /// password.
    pub fn sources(&self) -> Result<Vec<SourceConfig>, SettingsErrors> {
        let (sources, wrong) = self.usable_sources();
        if wrong.is_empty() { Ok(sources) } else { Err(SettingsErrors(wrong)) }
    }

    /// Like [`Self::sources`], but returns the directories that can be read, and the errors of the others.
    #[must_use]
    pub fn usable_sources(&self) -> (Vec<SourceConfig>, Vec<String>) {
        let (mut sources, mut wrong) = (Vec::new(), Vec::new());
        for (source, place) in &self.sources {
            let mut source = source.clone();
            let name = source.name.clone();
            let read = match (place, source.secret()) {
                (Some(place), Some((key, secret))) => {
                    place.read().map(|read| *secret = Some(read)).map_err(|error| format!("{key}: {error}"))
                }
                _ => Ok(()),
            };
            match read.and_then(|()| source.check().map_err(|error| error.to_string())) {
                Ok(()) => sources.push(source),
                Err(error) => wrong.push(format!("source.{name}.{error}")),
            }
        }
        (sources, wrong)
    }

    /// Returns errors and warnings about missing files. A missing secret file is an error. A missing credential is a
    /// warning, because `LoadCredential=` of the unit may give it to the daemon only. A missing LDIF file is a warning;
    /// without it, a read is incomplete.
    #[must_use]
    pub fn missing_files(&self) -> (Vec<String>, Vec<String>) {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        for (key, place) in self.secrets() {
            let Some(why) = place.missing() else { continue };
            match place {
                SecretPlace::File(_) => {
                    errors.push(format!("{}: {key}: {why}; write the secret into that file", file_name(&self.file)));
                }
                SecretPlace::Credential(_) => warnings.push(format!("{key}: {why}")),
            }
        }
        for (source, _) in &self.sources {
            let SourceKind::Ldif(LdifConfig { paths }) = &source.kind else { continue };
            let missing = paths.iter().filter(|path| path.try_exists().is_ok_and(|exists| !exists));
            let name = &source.name;
            warnings.extend(missing.map(|path| format!("source.{name}.paths: {} does not exist", path.display())));
        }
        (errors, warnings)
    }

    /// Returns errors and warnings about secret files that exist and that this process may not read. A credential that
    /// this process may not read is only a warning, like a missing one.
    #[must_use]
    pub fn unreadable_secrets(&self) -> (Vec<String>, Vec<String>) {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        for (key, place) in self.secrets() {
            let path = place.path();
            let Err(error) = std::fs::File::open(&path) else { continue };
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                let why = file_error(&path, &error, "");
                match place {
                    SecretPlace::File(_) => errors.push(format!("{}: {key}: {why}", file_name(&self.file))),
                    SecretPlace::Credential(_) => warnings.push(format!("{key}: {why}")),
                }
            }
        }
        (errors, warnings)
    }

    /// Returns the place of each secret, with its key.
    fn secrets(&self) -> impl Iterator<Item = (String, &SecretPlace)> {
        let of_sources = self.sources.iter().filter_map(|(source, place)| {
            let (key, _) = source.clone().secret()?;
            Some((format!("source.{}.{key}", source.name), place.as_ref()?))
        });
        let of_realm = self.realm.iter().filter_map(|realm| realm.own.as_ref()?.1.as_ref());
        of_sources.chain(of_realm.map(|place| ("realm.client_secret".to_owned(), place)))
    }

    /// Returns the connection to the realm that Bursar writes to, with its secret. `sources` must have their secrets.
    pub fn realm_connection(&self, sources: &[SourceConfig]) -> Result<Option<KeycloakConfig>, SettingsErrors> {
        let connection = self.realm.as_ref().map(|realm| realm.connection(sources)).transpose();
        connection.map_err(|error| SettingsErrors(vec![error]))
    }

    /// Returns the names of the directories, in their order.
    pub fn source_names(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|(source, _)| source.name.as_str())
    }

    #[must_use]
    pub fn archives(&self) -> Archives {
        Archives::of(&self.state_dir, self.archive_recipient.clone())
    }

    /// Returns the path of the ledger.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        ledger_in(&self.state_dir)
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    let path = path.display();
    let remedy = "name another configuration with --config FILE";
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{path} does not exist; write it, as in /usr/share/doc/bursar/examples, or {remedy}")
        }
        std::io::ErrorKind::InvalidData => {
            format!("cannot read {path}: it is not UTF-8; save it as UTF-8, or {remedy}")
        }
        _ => format!("cannot read {path}: {error}; {remedy}"),
    }
}

/// Describes why a file cannot be read, with the remedy. `absent` is the remedy if the file does not exist.
fn file_error(path: &Path, error: &std::io::Error, absent: &str) -> String {
    let path = path.display();
    match error.kind() {
        std::io::ErrorKind::NotFound => format!("{path}: {error}; {absent}"),
        std::io::ErrorKind::PermissionDenied => {
            format!("{path}: {error}; let user bursar read the file and enter its folders, for example by group bursar")
        }
        _ => format!("{path}: {error}"),
    }
}

/// Returns the name of a file without its folder, for messages.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
