//! Bursar keeps the accounts of a shared Kubernetes cluster.
//!
//! The product is one pipeline of values, and [`cycle`](../bursar/cycle/index.html) reads like its table of contents:
//! directories are fetched, what was seen is remembered in the ledger, what is wanted is derived, compared with
//! what is there, decided as a plan, guarded by limits, and only then executed.

pub use bursar_core::{
    admission, contract, desired, digest, errors, evolve, identity, inventory, json_text, kinds, ledger, merge, orders,
    outlook, packed_text, plan, policy, quantity, rules, select, snapshot,
};

pub mod archive;
pub mod bootstrap;
pub mod certificate;
pub mod cli;
pub mod control;
pub mod cycle;
pub mod daemon;
pub mod execute;
pub mod observed;
pub mod privilege;
pub mod recovery;
pub mod report;
pub mod runtime;
pub mod settings;
pub mod store;
pub mod telemetry;
