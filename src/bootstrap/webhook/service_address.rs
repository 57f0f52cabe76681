//! Finds out whether an address is in a cluster's range for Services. The daemon may not list Services. It asks with a
//! Service in a dry run: the API server refuses an address outside the range, and does not reserve one within it.

use std::net::IpAddr;

use http::Request;
use kube::Client;
use serde_json::{Value, json};

use crate::contract::SELFTEST;

/// Whether the address is in the range. Returns false if the API server does not say so.
pub async fn is_service_address(client: &Client, address: IpAddr) -> bool {
    let spec = json!({"clusterIP": address.to_string(), "ports": [{"port": 2049}]});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "selftest"}, "spec": spec});
    let uri = format!("/api/v1/namespaces/{SELFTEST}/services?dryRun=All");
    let request = Request::post(uri).header("content-type", "application/json").body(service.to_string().into_bytes());
    let Ok(request) = request else { return false };
    match client.request::<Value>(request).await {
        Ok(_) => true,
        Err(kube::Error::Api(status)) => status.message.contains("already allocated"),
        Err(_) => false,
    }
}
