//! The integration tests: Bursar against real servers, which the whole binary shares.

#![expect(clippy::disallowed_methods, reason = "waits for real servers, with deadlines, and measures them")]

mod template;
mod workspace;
mod world;

mod active_directory;
mod admission;
mod adopt;
mod adopted;
mod architecture;
mod archive;
mod bootstrap;
mod bulk;
mod cli;
mod clusters;
mod confinement;
mod daemon;
mod directory;
mod disk;
mod doctor;
mod documents;
mod endpoints;
mod ensure;
mod execute;
mod harness;
mod homes;
mod keycloak;
mod ledger;
mod ledger_restore;
mod ledger_upgrade;
mod life;
mod life_workloads;
mod logins;
mod migration;
mod narrowing;
mod own;
mod pace;
mod persist;
mod plain_english;
mod quiet;
mod quota;
mod realm;
mod reaper;
mod recovery;
mod rejected;
mod repairs;
mod revocation;
mod rollback;
mod runbooks;
mod sources;
mod ssh_keys;
mod storage;
mod tenants;
mod tokens;
mod wrong_directory;
