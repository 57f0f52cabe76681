//! Asks a cluster's Prometheus which namespaces are in use, for the reaper of idle namespaces. Writes nothing.
//!
//! An answer counts only if it contains every control namespace. Otherwise, it does not prove that a missing namespace
//! is idle.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Certificate;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use crate::errors::chain;
use crate::identity::ClusterName;
use crate::policy::{Evidence, NamespaceReaper};

/// After this time the request fails.
const PATIENCE: Duration = Duration::from_secs(10);
/// The maximum interval between two requests. With a longer interval, a short use between two requests might not be
/// seen.
const EVERY: Duration = Duration::from_mins(5);

/// Why it is unknown which namespaces are in use.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// The bearer token cannot be read.
    #[error("cannot read the token for Prometheus")]
    Token(#[source] std::io::Error),
    /// The request failed or was not answered.
    #[error("Prometheus does not answer")]
    Request(#[source] reqwest::Error),
    /// Prometheus answered with an error or a warning, so the answer may be incomplete.
    #[error("Prometheus answered: {0}")]
    Refused(String),
    /// The query does not return a vector with label `namespace`.
    #[error("the query does not give a vector with label namespace; for example sum by (namespace) (…)")]
    Shape,
    /// The answer lacks a namespace that is always in use.
    #[error("control namespace {0} is not in use according to Prometheus, so its answer proves nothing")]
    Control(String),
}

/// Asks at intervals, until this value is dropped.
#[derive(Debug)]
pub struct UseWatch {
    shared: Arc<Mutex<State>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    in_use: Option<Arc<BTreeSet<String>>>,
    error: Option<String>,
}

impl UseWatch {
    /// Starts the requests, if `rules` name a Prometheus for the cluster. Must be called within a runtime.
    #[must_use]
    pub fn start(cluster: &ClusterName, rules: &NamespaceReaper) -> Option<Self> {
        let evidence = rules.evidence.get(cluster)?.clone();
        let every = EVERY.min(rules.idle_for / 10);
        let shared = Arc::new(Mutex::new(State::default()));
        let task = AbortOnDropHandle::new(tokio::spawn(keep_asking(Arc::clone(&shared), evidence, every)));
        Some(Self { shared, _task: task })
    }

    /// Returns the namespaces in use; `None` while unknown.
    #[must_use]
    pub fn namespaces(&self) -> Option<Arc<BTreeSet<String>>> {
        self.shared.lock().in_use.clone()
    }

    /// Returns why the namespaces in use are unknown.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.shared.lock().error.clone()
    }
}

async fn keep_asking(shared: Arc<Mutex<State>>, evidence: Evidence, every: Duration) {
    loop {
        let state = match ask(&evidence).await {
            Ok(in_use) => State { in_use: Some(Arc::new(in_use)), error: None },
            Err(error) => {
                State { in_use: None, error: Some(format!("Prometheus at {}: {}", evidence.url, chain(&error))) }
            }
        };
        *shared.lock() = state;
        tokio::time::sleep(every).await;
    }
}

/// The answer to an instant query (Prometheus HTTP API, `/api/v1/query`).
#[derive(Debug, Deserialize)]
struct QueryAnswer {
    status: String,
    error: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
    data: Option<Data>,
}

/// `resultType` is not checked, because only a vector has samples of this form.
#[derive(Debug, Deserialize)]
struct Data {
    result: Value,
}

#[derive(Debug, Deserialize)]
struct Sample {
    metric: Labels,
    value: (f64, String),
}

#[derive(Debug, Deserialize)]
struct Labels {
    namespace: Option<String>,
}

/// Sends one request.
///
/// # Errors
/// The request fails, or the answer is incomplete or lacks a control namespace.
pub async fn ask(evidence: &Evidence) -> Result<BTreeSet<String>, EvidenceError> {
    let mut client = reqwest::Client::builder().timeout(PATIENCE);
    if let Some(pem) = &evidence.ca_pem {
        client = client.tls_certs_only(Certificate::from_pem_bundle(pem.as_bytes()).map_err(EvidenceError::Request)?);
    }
    let url = format!("{}/api/v1/query", evidence.url);
    let mut request = client.build().map_err(EvidenceError::Request)?.get(url).query(&[("query", &evidence.query)]);
    if let Some(path) = &evidence.token {
        request = request.bearer_auth(fs::read_to_string(path).map_err(EvidenceError::Token)?.trim_end());
    }
    // The body of an error has the same form and says more than its status.
    let answer = request.send().await.map_err(EvidenceError::Request)?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(EvidenceError::Request)?;
    let answer: QueryAnswer =
        serde_json::from_slice(&body).map_err(|error| EvidenceError::Refused(format!("{status}, {error}")))?;
    in_use(answer, &evidence.control)
}

fn in_use(answer: QueryAnswer, control: &[String]) -> Result<BTreeSet<String>, EvidenceError> {
    let QueryAnswer { status, error, warnings, data } = answer;
    if status != "success" || !warnings.is_empty() {
        let why = error.into_iter().chain(warnings).collect::<Vec<_>>().join("; ");
        return Err(EvidenceError::Refused(why));
    }
    let samples = data.and_then(|data| serde_json::from_value::<Vec<Sample>>(data.result).ok());
    let samples = samples.ok_or(EvidenceError::Shape)?;
    let mut namespaces = BTreeSet::new();
    for sample in samples {
        let namespace = sample.metric.namespace.ok_or(EvidenceError::Shape)?;
        if sample.value.1.parse::<f64>().is_ok_and(|value| value > 0.0) {
            namespaces.insert(namespace);
        }
    }
    match control.iter().find(|name| !namespaces.contains(*name)) {
        Some(missing) => Err(EvidenceError::Control(missing.clone())),
        None => Ok(namespaces),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(text: &str) -> Result<BTreeSet<String>, String> {
        let answer = serde_json::from_str(text).expect("the text is an answer");
        in_use(answer, &["ingress".to_owned()]).map_err(|error| error.to_string())
    }

    fn vector(samples: &[(&str, &str)], warnings: &str) -> String {
        let samples: Vec<String> = samples
            .iter()
            .map(|(namespace, value)| format!(r#"{{"metric":{{"namespace":"{namespace}"}},"value":[1.5,"{value}"]}}"#))
            .collect();
        let samples = samples.join(",");
        format!(
            r#"{{"status":"success","warnings":[{warnings}],"data":{{"resultType":"vector","result":[{samples}]}}}}"#
        )
    }

    #[test]
    fn only_a_complete_answer_with_the_control_namespaces_counts() {
        let all = [("ingress", "3"), ("tool-foo", "0.1"), ("tool-bar", "0"), ("tool-odd", "NaN")];
        let in_use = answered(&vector(&all, "")).expect("the answer is complete");
        assert_eq!(in_use, BTreeSet::from(["ingress".to_owned(), "tool-foo".to_owned()]));
        assert!(
            answered(&vector(&all[1..], ""))
                .expect_err("a control namespace is missing")
                .contains("control namespace ingress")
        );
        assert!(answered(&vector(&[("ingress", "0")], "")).is_err());
        let part = answered(&vector(&all, r#""a store did not answer""#)).expect_err("the answer has a warning");
        assert!(part.contains("a store did not answer"), "{part}");
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}"#;
        assert!(answered(scalar).expect_err("the result is not a vector").contains("sum by (namespace)"));
        let bare = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"1"]}]}}"#;
        assert!(answered(bare).expect_err("the sample has no namespace").contains("label namespace"));
        let refused = r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#;
        assert!(answered(refused).expect_err("the answer is an error").contains("parse error"));
    }
}
