//! The three webhook configurations, and the requests that each matches.
//!
//! Requests for objects that belong neither to a tenant nor to Bursar never wait for the webhook. Pods, workloads,
//! routes and claims are matched by the label of their namespace, and namespaces by their own label. Bursar's objects
//! are matched by their own label in any namespace, because adopted namespaces have no label of Bursar. The daemon
//! admission policy makes the daemon keep these selectors.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::{APPROVALS, Reached, WEBHOOK, labels};
use crate::bootstrap::NAMESPACE;
use crate::bootstrap::daemon_admission_policy::by_the_daemon;
use crate::contract::{CLASS, MANAGED_BY, MANAGER};
use crate::policy::DAEMON_USER;

const API_VERSION: &str = "admissionregistration.k8s.io/v1";

/// A review takes about a millisecond, and a live read of a namespace at most two seconds. After this time the webhook
/// counts as unreachable.
const TIMEOUT_SECONDS: u64 = 5;

/// Annotation: when the serving certificate expires.
pub const UNTIL: &str = "bursar.dev/certificate-until";
/// Annotation: when the serving certificate is due for renewal.
pub const RENEW_AFTER: &str = "bursar.dev/certificate-renew-after";
/// Annotation: SHA-256 of the webhook's rules and keys.
pub const GIVEN: &str = "bursar.dev/rules";

/// The condition that exempts groups of the site. No other condition depends on the configuration.
pub(in crate::bootstrap) const NOT_EXEMPT: &str = "not-exempt";
/// The webhook for our objects. Their kinds depend on the site's manifests.
pub(in crate::bootstrap) const OBJECTS: &str = "objects";

/// Kinds with pod templates: API group and resources.
const WORKLOADS: [(&str, &[&str]); 3] = [
    ("apps", &["deployments", "replicasets", "statefulsets", "daemonsets"]),
    ("batch", &["jobs", "cronjobs"]),
    ("", &["replicationcontrollers"]),
];
pub(super) const ROUTES: [(&str, &[&str]); 2] =
    [("networking.k8s.io", &["ingresses"]), ("gateway.networking.k8s.io", &["httproutes", "grpcroutes", "tlsroutes"])];

/// API group and resources of everything that the webhook's rules judge, whatever label an object has.
pub(super) fn looked_at() -> Vec<(&'static str, &'static [&'static str])> {
    let pods: (&str, &[&str]) = ("", &["pods", "pods/ephemeralcontainers", "pods/resize", "persistentvolumeclaims"]);
    let namespaces: (&str, &[&str]) = ("", &["namespaces"]);
    WORKLOADS.into_iter().chain(ROUTES).chain([pods, namespaces]).collect()
}

/// The input of the configurations.
#[derive(Debug, Clone)]
pub struct Hooks<'a> {
    /// How the API server reaches the webhook.
    pub reached: &'a Reached,
    /// The certificate authorities that the API server trusts for the webhook, PEM.
    pub authorities: &'a str,
    /// Groups that may change our objects.
    pub exempt: &'a [String],
    /// API group and plural of the kinds that tenants get.
    pub objects: &'a [(String, String)],
    /// [`UNTIL`], [`RENEW_AFTER`] and [`GIVEN`].
    pub annotations: Value,
}

impl Hooks<'_> {
    /// Returns the mutating configuration, the validating one, and the one for approvals.
    #[must_use]
    pub fn configurations(&self) -> [Value; 3] {
        let configuration = |kind: &str, name: &str, hooks: Value| {
            json!({
                "apiVersion": API_VERSION,
                "kind": kind,
                "metadata": {"name": name, "labels": labels()},
                "webhooks": hooks,
            })
        };
        let mutating = configuration("MutatingWebhookConfiguration", WEBHOOK, json!([self.filled(), self.claimed()]));
        let hooks = json!([
            self.pods(),
            self.claims(),
            unless_unseen(self.of_tenants("workloads", &WORKLOADS), &template_differs()),
            unless_unseen(self.of_tenants("routes", &ROUTES), &differs()),
            self.namespaces(),
            self.objects(),
        ]);
        let mut validating = configuration("ValidatingWebhookConfiguration", WEBHOOK, hooks);
        validating["metadata"]["annotations"] = self.annotations.clone();
        let approvals = configuration("ValidatingWebhookConfiguration", APPROVALS, json!([self.approvals()]));
        [mutating, validating, approvals]
    }

    fn hook(&self, name: &str, path: &str, rules: &Value) -> Value {
        let bundle = BASE64.encode(self.authorities);
        let client = match self.reached {
            Reached::Service => {
                json!({"service": {"namespace": NAMESPACE, "name": WEBHOOK, "path": path, "port": 443}, "caBundle": bundle})
            }
            Reached::Url(url) => json!({"url": format!("{}{path}", url.trim_end_matches('/')), "caBundle": bundle}),
        };
        json!({
            "name": format!("{name}.bursar.dev"),
            "clientConfig": client,
            "rules": rules,
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {},
            "objectSelector": {},
        })
    }

    fn in_tenants(&self, name: &str, path: &str, rules: &Value) -> Value {
        let mut hook = self.hook(name, path, rules);
        hook["namespaceSelector"] = of_tenants();
        hook
    }

    fn filled(&self) -> Value {
        let rules = json!([
            rule("", &["pods"], &["CREATE"], "Namespaced"),
            rule("", &["pods/ephemeralcontainers"], &["UPDATE"], "Namespaced"),
        ]);
        let mut hook = self.in_tenants("pods", "/mutate", &rules);
        // If another webhook adds containers to a pod (a sidecar), their fields are filled in too.
        hook["reinvocationPolicy"] = json!("IfNeeded");
        hook
    }

    fn claimed(&self) -> Value {
        let rules = json!([rule("", &["persistentvolumeclaims"], &["CREATE"], "Namespaced")]);
        let mut hook = self.in_tenants("claims", "/mutate", &rules);
        hook["reinvocationPolicy"] = json!("Never");
        hook
    }

    fn pods(&self) -> Value {
        let rules = json!([
            rule("", &["pods"], &["CREATE", "UPDATE"], "Namespaced"),
            rule("", &["pods/ephemeralcontainers", "pods/resize"], &["UPDATE"], "Namespaced"),
        ]);
        unless_unseen(self.in_tenants("pods", "/validate", &rules), &differs())
    }

    fn claims(&self) -> Value {
        let rules = json!([rule("", &["persistentvolumeclaims"], &["CREATE"], "Namespaced")]);
        self.in_tenants("claims", "/validate", &rules)
    }

    fn of_tenants(&self, name: &str, resources: &[(&str, &[&str])]) -> Value {
        let rules = resources.iter().map(|(group, names)| rule(group, names, &["CREATE", "UPDATE"], "Namespaced"));
        self.in_tenants(name, "/validate", &rules.collect())
    }

    /// Selects by the object's label, in the old object too. Removing the label therefore does not evade the webhook.
    fn namespaces(&self) -> Value {
        let rules = json!([
            rule("", &["namespaces"], &["CREATE", "UPDATE", "DELETE"], "Cluster"),
            rule("", &["namespaces/status", "namespaces/finalize"], &["UPDATE"], "Cluster"),
        ]);
        let mut hook = self.hook("namespaces", "/validate", &rules);
        hook["objectSelector"] = of_tenants();
        hook["matchConditions"] = self.exempt_users();
        hook
    }

    fn objects(&self) -> Value {
        let mut rules: Vec<Value> = Vec::new();
        for (group, plural) in self.objects {
            let all = format!("{plural}/*");
            rules.push(rule(group, &[plural, &all], &["CREATE", "UPDATE", "DELETE"], "*"));
        }
        let mut hook = self.hook(OBJECTS, "/validate", &rules.into());
        hook["objectSelector"] =
            json!({"matchExpressions": [{"key": MANAGED_BY, "operator": "In", "values": [MANAGER]}]});
        hook["matchConditions"] = self.exempt_users();
        hook
    }

    fn approvals(&self) -> Value {
        let rules =
            json!([rule("certificates.k8s.io", &["certificatesigningrequests/approval"], &["UPDATE"], "Cluster")]);
        let mut hook = self.hook("approvals", "/validate", &rules);
        hook["matchConditions"] = json!([{"name": "daemon", "expression": by_the_daemon()}]);
        hook
    }

    fn exempt_users(&self) -> Value {
        let groups: Vec<String> =
            std::iter::once("system:nodes").map(text).chain(self.exempt.iter().map(text)).collect();
        let user = "request.userInfo.username";
        json!([
            {"name": "not-bursar", "expression": format!("{user} != {}", text(DAEMON_USER))},
            {"name": "not-kubernetes", "expression": format!(
                "{user} != 'system:apiserver' && !{user}.startsWith('system:serviceaccount:kube-system:')"
            )},
            {"name": NOT_EXEMPT, "expression": format!(
                "!(has(request.userInfo.groups) && request.userInfo.groups.exists(group, group in [{}]))",
                groups.join(", ")
            )},
        ])
    }
}

/// A selector of namespaces with the class label.
pub(in crate::bootstrap) fn of_tenants() -> Value {
    json!({"matchExpressions": [{"key": CLASS, "operator": "Exists"}]})
}

/// Excludes updates that change nothing that a rule judges. An object can therefore always lose its finalizer, and a
/// workload can always be stopped, however large it is and whether or not the webhook runs. The condition excludes only
/// updates that `decide` would allow anyway. If the old or the new object has our label, the update is always sent.
fn unless_unseen(mut hook: Value, differs: &str) -> Value {
    let ours =
        |object: &str| format!("{object}.metadata.?labels[?{}].orValue('') == {}", text(MANAGED_BY), text(MANAGER));
    let expression =
        format!("request.operation != 'UPDATE' || {differs} || {} || {}", ours("object"), ours("oldObject"));
    hook["matchConditions"] = json!([{"name": "differs", "expression": expression}]);
    hook
}

fn differs() -> String {
    "object.?spec != oldObject.?spec || object.metadata.?annotations != oldObject.metadata.?annotations".to_owned()
}

/// CEL that is true if an update changes what the rules on workloads judge: the templates of pods, jobs and claims,
/// except for the node selector of a pod template.
fn template_differs() -> String {
    let parts = ["template.?metadata", "jobTemplate", "volumeClaimTemplates"];
    let parts = parts.map(|part| format!("object.?spec.?{part} != oldObject.?spec.?{part}"));
    let [new, old] = ["object", "oldObject"].map(|object| format!("{object}.?spec.?template.?spec"));
    let without = |spec: &str, other: &str| {
        format!("{spec}.orValue({{}}).exists(k, k != 'nodeSelector' && {spec}[?k] != {other}[?k])")
    };
    format!("{} || {} || {}", parts.join(" || "), without(&new, &old), without(&old, &new))
}

fn rule(group: &str, resources: &[&str], operations: &[&str], scope: &str) -> Value {
    json!({
        "apiGroups": [group],
        "apiVersions": ["*"],
        "resources": resources,
        "operations": operations,
        "scope": scope,
    })
}

/// A CEL string. Quotes and backslashes are removed, so a value cannot end the string; no group has any.
fn text(value: impl AsRef<str>) -> String {
    format!("'{}'", value.as_ref().replace(['\'', '\\'], ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks() -> Vec<Value> {
        let objects = [(String::new(), "resourcequotas".to_owned())];
        let hooks = Hooks {
            reached: &Reached::Url("https://10.0.0.5:9443/".to_owned()),
            authorities: "PEM",
            exempt: &["system:masters".to_owned(), "a'b".to_owned()],
            objects: &objects,
            annotations: json!({}),
        };
        let all = hooks.configurations();
        all.iter().flat_map(|configuration| configuration["webhooks"].as_array().cloned().unwrap_or_default()).collect()
    }

    #[test]
    fn every_hook_is_limited_to_tenants_or_the_daemon_and_fails_closed() {
        let hooks = hooks();
        assert_eq!(hooks.len(), 9);
        for hook in hooks {
            assert_eq!(hook["failurePolicy"], "Fail");
            let by_namespace = hook["namespaceSelector"] == of_tenants();
            let by_object = hook["objectSelector"] != json!({});
            let by_daemon = hook["matchConditions"][0]["expression"] == by_the_daemon();
            assert!(by_namespace || by_object || by_daemon, "{hook}");
            let exempts = hook["matchConditions"].as_array().is_some_and(|conditions| conditions.len() == 3);
            let name = hook["name"].as_str().expect("a name");
            assert_eq!(exempts, ["namespaces.bursar.dev", "objects.bursar.dev"].contains(&name), "{hook}");
        }
    }

    #[test]
    fn only_updates_can_skip_the_webhook_but_not_those_of_our_objects() {
        for hook in hooks() {
            let condition = hook["matchConditions"].as_array().filter(|all| all[0]["name"] == "differs");
            let name = hook["name"].as_str().expect("a name");
            let validates = hook["clientConfig"]["url"].as_str().is_some_and(|url| url.ends_with("/validate"));
            let expected = ["pods.bursar.dev", "workloads.bursar.dev", "routes.bursar.dev"].contains(&name);
            assert_eq!(condition.is_some(), expected && validates, "{name}");
            if let Some([condition]) = condition.map(Vec::as_slice) {
                let text = condition["expression"].as_str().expect("the value is a text");
                assert!(text.starts_with("request.operation != 'UPDATE' || "), "{text}");
                assert_eq!(text.matches("'app.kubernetes.io/managed-by'").count(), 2, "{text}");
            }
        }
    }

    #[test]
    fn a_url_gets_the_path_and_quotes_are_removed() {
        let hooks = hooks();
        assert_eq!(hooks[0]["clientConfig"]["url"], "https://10.0.0.5:9443/mutate");
        let conditions = hooks[6]["matchConditions"].to_string();
        assert!(conditions.contains("['system:nodes', 'system:masters', 'ab']"), "{conditions}");
    }
}
