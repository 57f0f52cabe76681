//! What Bursar decides, and the values it decides about: identities, configuration, what directories say, the ledger's
//! model, what should be, what is there, and the plan.
//!
//! All of it is PURE: no runtime, no client, no file system, no environment, no thread and no clock. Time is a parameter.
//! `tests/it/architecture.rs` checks it, the order of the modules, and what this crate depends on.

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
pub mod snapshot;

#[cfg(test)]
mod tests {
    #[test]
    fn keys_of_json_are_sorted() {
        // serde_json's feature `preserve_order`, turned on by any crate, would change digests, approvals and goldens.
        assert_eq!(serde_json::json!({"b": 1, "a": 2}).to_string(), r#"{"a":2,"b":1}"#);
    }
}
