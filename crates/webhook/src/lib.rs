//! The webhook: an index of tenants' namespaces, and the server that answers reviews with the decisions of
//! [`admission`](bursar_core::admission).

pub mod index;
pub mod server;
