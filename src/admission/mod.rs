//! Nobody runs as somebody else: a review, the tenant's identity and the rules of its class become a [`Decision`]. PURE:
//! no runtime, no client, no file system, no clock.
//!
//! [`decide`] is total: whatever it is given, it answers. What it cannot read it refuses, and a decision about the object
//! that its own patch makes is to allow it as it is.

pub mod decision;
pub mod index;
pub mod review;
pub mod rules;
pub mod server;
pub mod tenant;

pub use decision::{Decision, Finding, PatchOperation, Rule};
pub use review::{Operation, Review, ReviewError, User, answer};
pub use rules::{Mode, Rules, RulesError};
pub use tenant::{Resolved, Unresolved};

/// What the API server is told of `review`, which is about an object in the namespace of `tenant`.
#[must_use]
pub fn decide(_rules: &Rules, _tenant: &Resolved, _review: &Review) -> Decision {
    Decision::default()
}

impl Review {
    /// Whether [`decide`] looks at whose namespace it is: not of namespaces themselves, of deletions, nor of what no rule
    /// is about.
    #[must_use]
    pub fn needs_identity(&self) -> bool {
        true
    }
}
