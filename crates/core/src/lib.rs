//! Bursar's decisions and the values that they use: identities, configuration, directory snapshots, the ledger's model,
//! the desired and the observed state, and the plan.
//!
//! This crate is PURE: it has no runtime, client, file system, environment, thread or clock. Time is a parameter.
//! `tests/it/architecture.rs` checks this, the order of the modules, and the crate's dependencies.

pub mod admission;
pub mod contract;
pub mod desired;
pub mod digest;
pub mod errors;
pub mod evolve;
pub mod identity;
pub mod inventory;
pub mod json_text;
pub mod kinds;
pub mod ledger;
pub mod merge;
pub mod orders;
pub mod outlook;
pub mod packed_text;
pub mod plan;
pub mod policy;
pub mod quantity;
pub mod rules;
pub mod select;
pub mod shared_map;
pub mod shared_text;
pub mod snapshot;

#[cfg(test)]
mod tests {
    #[test]
    fn json_keys_are_sorted() {
        // If any crate turns on serde_json's feature `preserve_order`, digests, approvals and goldens change.
        assert_eq!(serde_json::json!({"b": 1, "a": 2}).to_string(), r#"{"a":2,"b":1}"#);
    }
}
