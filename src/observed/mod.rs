//! Observes clusters and realms. `cluster`, `adopted_watch` and `pod_watch` watch a cluster, and `cache`, which is
//! pure, keeps its inventory. `prometheus`, `realm` and `discovery` send requests.

pub mod adopted_watch;
pub mod cache;
pub mod cluster;
pub mod discovery;
pub mod pod_watch;
pub mod prometheus;
pub mod realm;
