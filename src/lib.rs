//! Bursar keeps the accounts of a shared Kubernetes cluster.
//!
//! The product is one pipeline of values, and [`cycle`](../bursar/cycle/index.html) reads like its table of contents:
//! directories are read, the ledger remembers what they showed, the desired state is derived and compared with the
//! observed state, the difference becomes a plan, limits guard the plan, and only then is the plan executed.

pub use bursar_core::{
    admission, contract, desired, digest, errors, evolve, identity, inventory, json_text, kinds, ledger, merge, orders,
    outlook, packed_text, plan, policy, quantity, rules, select, shared_text, snapshot,
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
