//! Bursar keeps the accounts of a shared Kubernetes cluster.
//!
//! The product is one pipeline of values, and [`cycle`](../bursar/cycle/index.html) reads like its table of contents:
//! directories are fetched, what was seen is remembered in the ledger, what is wanted is derived, compared with
//! what is there, decided as a plan, guarded by limits, and only then executed.

pub mod admission;
pub mod archive;
pub mod bootstrap;
pub mod certificate;
pub mod cli;
pub mod contract;
pub mod control;
pub mod cycle;
pub mod daemon;
pub mod desired;
pub mod digest;
pub mod directory;
pub mod engine;
pub mod errors;
pub mod evolve;
pub mod execute;
pub mod identity;
pub mod inventory;
pub mod kinds;
pub mod ledger;
pub mod merge;
pub mod observed;
pub mod orders;
pub mod plan;
pub mod policy;
pub mod privilege;
pub mod quantity;
pub mod recovery;
pub mod report;
pub mod rules;
pub mod select;
pub mod settings;
pub mod snapshot;
pub mod store;
pub mod telemetry;
pub mod webhook;
