//! The webhook: namespaces of tenants as a watch shows them, and the server that answers reviews with what
//! [`admission`](bursar_core::admission) decides.

pub mod index;
pub mod server;
