//! Writes kubeconfig files for the control plane, and reads the kubeconfig of an existing cluster.

use std::path::PathBuf;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::pki::Identity;

/// A kubeconfig (in JSON, which is YAML) with embedded certificates.
#[must_use]
pub fn kubeconfig(url: &str, ca: &str, user: &Identity) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": BASE64.encode(ca)}}],
        "users": [{"name": "test", "user": {
            "client-certificate-data": BASE64.encode(&user.certificate),
            "client-key-data": BASE64.encode(&user.key),
        }}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    });
    format!("{config:#}\n")
}

/// An existing cluster.
#[derive(Debug)]
pub struct Existing {
    /// The URL of its API server.
    pub url: String,
    /// The authority of its API server's certificate, PEM.
    pub ca: String,
    /// A kubeconfig of its administrator.
    pub kubeconfig: PathBuf,
}

/// The cluster of `KUBECONFIG`, if `BURSAR_TEST_EXISTING_CLUSTER=1`. The tests create and delete objects in it.
#[must_use]
pub fn existing_cluster() -> Option<Existing> {
    if std::env::var_os("BURSAR_TEST_EXISTING_CLUSTER")? != "1" {
        return None;
    }
    let kubeconfig = std::env::var_os("KUBECONFIG").expect("BURSAR_TEST_EXISTING_CLUSTER=1 needs KUBECONFIG");
    let output = Command::new("kubectl")
        .args(["config", "view", "--raw", "--minify", "--flatten", "-o", "json"])
        .output()
        .expect("`kubectl`, which reads KUBECONFIG, is in PATH");
    assert!(output.status.success(), "kubectl config view: {}", String::from_utf8_lossy(&output.stderr));
    let view: Value = serde_json::from_slice(&output.stdout).expect("kubectl writes JSON");
    let cluster = &view["clusters"][0]["cluster"];
    let text = |key: &str| cluster[key].as_str().unwrap_or_else(|| panic!("KUBECONFIG: no {key}")).to_owned();
    let ca = BASE64.decode(text("certificate-authority-data")).expect("kubectl writes base64");
    Some(Existing {
        url: text("server"),
        ca: String::from_utf8(ca).expect("PEM is UTF-8"),
        kubeconfig: PathBuf::from(kubeconfig),
    })
}
