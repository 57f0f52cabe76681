//! Bursar's decisions and the values that they use: identities, configuration, directory snapshots, the ledger's model,
//! the desired and the observed state, and the plan.
//!
//! This crate is pure: it has no runtime, client, file system, environment, thread or clock. Time is a parameter.
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
    use crate::identity::AccountId;
    use crate::inventory::ObservedObject;
    use crate::kinds::{ObjectKey, ObjectName};
    use crate::ledger::{Account, Certificate, CredentialKey, Delivery, ObjectRecord};

    #[test]
    fn the_most_numerous_values_of_a_large_site_stay_small() {
        // 100,000 tenants have twice as many accounts, and a million objects both in the ledger and in the inventory.
        // Each additional byte in an object's value therefore costs two megabytes.
        let sizes = [
            ("account", size_of::<(AccountId, Account)>(), 608),
            ("object's name", size_of::<ObjectName>(), 64),
            ("object in the ledger", size_of::<(ObjectKey, ObjectRecord)>(), 152),
            ("object in the inventory", size_of::<(ObjectKey, ObservedObject)>(), 96),
            ("certificate", size_of::<(CredentialKey, Certificate)>(), 208),
            ("delivery", size_of::<(CredentialKey, Delivery)>(), 216),
        ];
        for (name, size, most) in sizes {
            assert!(size <= most, "{name}: {size} bytes");
        }
    }

    #[test]
    fn json_keys_are_sorted() {
        // If any crate turns on serde_json's feature `preserve_order`, digests, approvals and goldens change.
        assert_eq!(serde_json::json!({"b": 1, "a": 2}).to_string(), r#"{"a":2,"b":1}"#);
    }
}
