//! The command line of `bursar-homed`, which is its whole configuration.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bursar_protocol::USUAL_KUBECONFIG;
use clap::Parser;

use crate::bounds::{Bounds, Prefix};
use crate::server::{self, HomedError, HomedSettings};

/// Writes kubeconfigs in homes as their owners, for bursard only.
#[derive(Clone, Debug, Parser)]
#[command(name = "bursar-homed", version)]
pub struct Arguments {
    /// A directory beneath which homes may be; may be repeated.
    #[arg(long = "prefix", value_name = "PATH")]
    pub prefixes: Vec<PathBuf>,
    /// Like --prefix, but missing homes may be made there; not for exports that squash root.
    #[arg(long = "create-prefix", value_name = "PATH")]
    pub create_prefixes: Vec<PathBuf>,
    /// A kubeconfig that may be written, relative to a home; may be repeated.
    #[arg(long = "kubeconfig", value_name = "PATH", default_value = USUAL_KUBECONFIG)]
    pub kubeconfigs: Vec<PathBuf>,
    /// The name of clusters and contexts that a former system wrote in kubeconfigs: they count as Bursar's from now on;
    /// may be repeated.
    #[arg(long = "take-over", value_name = "NAME")]
    pub take_over: Vec<String>,
    /// SSH keys may be written in homes: the daemon's host then decides who can log in on every host with these homes.
    #[arg(long)]
    pub ssh_keys: bool,
    /// A path at or below which homes were mounted before they were moved: Bursar then ignores where it last saw these
    /// homes mounted; may be repeated.
    #[arg(long = "former-mount", value_name = "PATH")]
    pub former_mounts: Vec<PathBuf>,
    /// The only user who may send requests: name or uid.
    #[arg(long, value_name = "NAME", default_value = "bursar")]
    pub client_user: String,
    /// The most time that one request may take.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub deadline: Duration,
    /// The most processor time that one request may take, in seconds: a file that needs more is refused as too complex.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub cpu_seconds: u64,
    /// How long an export that hangs is not used before it is tried again; doubles with each failed attempt.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub backoff: Duration,
    /// The folder whose files are copied into a new home.
    #[arg(long, value_name = "PATH", default_value = "/etc/skel")]
    pub skeleton: PathBuf,
    /// Listen on this path instead of on the socket from systemd.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Parses a duration. The error shows an example.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| format!("{text:?} is not a duration; for example 30s or 2m"))
}

impl Arguments {
    /// Returns the checked settings; `clock` is the wall clock. Called before the service reports to systemd that it is
    /// ready.
    pub fn settings(&self, clock: fn() -> SystemTime) -> Result<HomedSettings, HomedError> {
        let prefix = |allow_create| move |path: &PathBuf| Prefix { path: path.clone(), allow_create };
        let prefixes = self.prefixes.iter().map(prefix(false)).chain(self.create_prefixes.iter().map(prefix(true)));
        let bounds = Bounds {
            prefixes: prefixes.collect(),
            skeleton: Some(self.skeleton.clone()),
            kubeconfigs: self.kubeconfigs.clone(),
            take_over: self.take_over.clone(),
            ssh_keys: self.ssh_keys,
            former_mounts: self.former_mounts.clone(),
        };
        let client_uid = server::client_uid(&self.client_user)?;
        let Self { deadline, backoff, cpu_seconds, .. } = *self;
        let settings = HomedSettings { bounds, client_uid, deadline, backoff, cpu_seconds, clock };
        server::check(&settings)?;
        Ok(settings)
    }
}
