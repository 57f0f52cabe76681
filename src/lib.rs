//! Bursar keeps the accounts of a shared Kubernetes cluster.
