//! What is there: the watches of clusters, which keep an inventory, and what else is asked. `cache` is PURE; `cluster`,
//! `adopted_watch` and `pod_watch` watch, `prometheus`, `realm` and `discovery` ask.

pub mod adopted_watch;
pub mod cache;
pub mod cluster;
pub mod discovery;
pub mod pod_watch;
pub mod prometheus;
pub mod realm;
