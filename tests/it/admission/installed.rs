//! What `bursar webhook` does, and how the admission policy limits the rights that the daemon has for the webhook.

use bursar_testkit::ports::free_port;
use bursar_testkit::process::run;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};

use super::files::shown;
use super::site::{Site, out, pod, said};

fn daemon(site: &Site, arguments: &[&str], input: &str) -> std::process::Output {
    let mut command = site.cluster.kubectl_as(site.daemon_kubeconfig());
    command.args(arguments);
    run(command, input)
}

#[test]
fn the_selftest_reports_rules_that_are_not_in_force() {
    let site = Site::alone();
    let text = site.must(&["webhook", "selftest", "--cluster", "test"]);
    assert!(text.contains("+ class tool: a plain pod: passes"), "{text}");
    assert!(text.contains("+ class tool: a pod that runs as root: refused"), "{text}");
    assert!(text.contains("+ class trial: a plain pod: passes"), "{text}");
    // This class requires a lifetime.
    assert!(text.contains("+ class batch: a plain pod: passes"), "{text}");
    assert!(text.contains("+ class batch: a pod that names its node: refused"), "{text}");
    assert!(!text.contains("class trial: a pod that runs as root"), "{text}");
    for what in ["a load balancer", "a pod that names its node", "a pod that opens low ports"] {
        assert!(text.contains(&format!("+ class tool: {what}: refused")), "{what}: {text}");
    }
    assert!(text.contains("+ class shop: an ingress of another class: refused"), "{text}");
    assert!(
        !text.contains("class shop: a pod that names its node"),
        "the class allows node names, so this is not tested: {text}"
    );
    let rows: Vec<Value> =
        serde_json::from_str(&site.must(&["webhook", "selftest", "--json"])).expect("the text is JSON");
    assert!(rows.len() > 8 && rows.iter().all(|row| row["wrong"].is_null()), "{rows:#?}");

    // A quota without a default would refuse every plain pod of a tenant.
    let quota = "[class.tool.quota]\n\"limits.memory\" = \"8Gi\"\n";
    site.configure(quota);
    let trapped = site.bursar(&["webhook", "selftest"]);
    let line = "! class tool: a plain pod under the quota: does not pass: a quota or an override limits limits.memory";
    assert!(trapped.status.code() == Some(1) && out(&trapped).contains(line), "{}", out(&trapped));
    let remedy = "    remedy: give [class.tool] defaults, for example limit_range = ";
    assert!(out(&trapped).contains(remedy) && !out(&trapped).contains("next:"), "{}", out(&trapped));
    site.configure(&format!("{quota}[class.tool.limit_range]\ncontainer = {{ default = {{ memory = \"512Mi\" }} }}\n"));
    let text = site.must(&["webhook", "selftest"]);
    assert!(text.contains("+ class tool: a plain pod under the quota: passes"), "{text}");
    site.configure("");

    // Objects of the self-test must not be created for real.
    let image = &format!("--image=registry.example.org/bursar-selftest/x@sha256:{}", "0".repeat(64));
    let real = daemon(&site, &["run", "a", "-n", "bursar-selftest", image], "");
    assert!(said(&real).contains("bursar-cage"), "{}", said(&real));

    // The self-test also notices if rules of the API server are not in force.
    site.cluster.run(&["delete", "validatingadmissionpolicybinding", "bursar-rules-enforce"], "");
    wait_for("the self-test reports the missing policies", DEADLINE, || {
        let found = out(&site.bursar(&["webhook", "selftest"]));
        found.contains("! class tool: a load balancer: not refused").then_some(())
    });
    site.install();

    // The self-test notices rules that let root through.
    let file = site.dir().join("rules.json");
    let rules = std::fs::read_to_string(&file).expect("the file is readable");
    let (others, level) = rules.split_at(rules.find("\"level\":").expect("the text has this part"));
    let rules = others.to_owned() + &level.replacen("\"enforce\"", "\"off\"", 1);
    std::fs::write(&file, rules).expect("the folder is writable");
    // While the webhook loads the rules, a self-test may notice only a part of the change.
    wait_for("the self-test reports the weaker rules", DEADLINE, || {
        let output = site.bursar(&["webhook", "selftest"]);
        let found = out(&output).contains("! class level: a pod that runs as root: not refused");
        (output.status.code() == Some(1) && found).then_some(())
    });
}

#[test]
fn a_webhook_that_does_not_answer_changes_nothing_that_is_in_force() {
    let mut site = Site::alone();
    let dir = site.dir().display().to_string();
    let install = |site: &Site, url: &str| {
        let install = ["webhook", "install", "--cluster", "test", "--url", url, "--write", &dir, "--wait", "1s"];
        let output = site.bursar(&install);
        assert_eq!(output.status.code(), Some(1), "{}{}", out(&output), said(&output));
        said(&output)
    };
    let certificate = site.dir().join("tls.crt");
    let moved = install(&site, &format!("https://127.0.0.2:{}", free_port()));
    assert!(moved.contains(&format!("the webhook at {} stays in force", site.url())), "{moved}");
    let text = std::fs::read_to_string(&certificate).expect("the file is readable");
    wait_for("the webhook shows its new certificate", DEADLINE, || shown(&site).contains(&text).then_some(()));
    for host in ["127.0.0.1", "127.0.0.2"] {
        let mut openssl = std::process::Command::new("openssl");
        openssl.args(["x509", "-noout", "-checkip", host, "-in"]).arg(&certificate);
        let checked = out(&run(openssl, ""));
        assert!(checked.contains("does match certificate"), "{checked}");
    }
    // The API server opens a new connection to a webhook that was started again.
    site.kill_webhook();
    site.start_webhook();
    site.create(&pod("stays")).expect("the pod is allowed");

    site.uninstall(&[]);
    site.kill_webhook();
    let silent = install(&site, &site.url());
    assert!(silent.contains("nothing is enforced yet"), "{silent}");
    let configurations = ["get", "validatingwebhookconfigurations", "bursar-webhook", "--ignore-not-found"];
    assert_eq!(site.cluster.run(&configurations, ""), "");
}

#[test]
fn doctor_warns_30_days_before_the_files_expire() {
    let site = Site::alone();
    let webhook = || {
        let findings: Vec<Value> =
            serde_json::from_str(&out(&site.bursar(&["--json", "doctor"]))).expect("the text is JSON");
        let found = findings.into_iter().find(|finding| finding["subject"] == "cluster test, webhook");
        found.expect("the doctor has a finding")
    };
    assert_eq!(webhook()["remedy"], Value::Null, "{}", webhook());
    // The files are valid for a year.
    site.install_at(bursar::daemon::now() - jiff::SignedDuration::from_hours(336 * 24));
    let soon = webhook();
    let again = format!("bursar webhook install --cluster test --url {} --write FOLDER", site.url());
    assert_eq!(soon["remedy"], json!(again), "{soon}");
    assert!(soon["text"].as_str().is_some_and(|text| text.starts_with("its files are good until")), "{soon}");
}

#[test]
fn the_confinement_limits_webhooks_that_the_daemon_writes() {
    let site = Site::shared();
    let hook = |selector: Value, rules: Value| {
        json!({
            "name": "evil.bursar.dev", "clientConfig": {"url": "https://127.0.0.1:1/"}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
            "namespaceSelector": selector, "rules": rules,
        })
    };
    let rule = |resources: Value, scope: &str| json!([{"apiGroups": [""], "apiVersions": ["*"], "resources": resources, "operations": ["CREATE"], "scope": scope}]);
    let tenants = json!({"matchExpressions": [{"key": "bursar.dev/class", "operator": "Exists"}]});
    let others = json!({"matchExpressions": [{"key": "bursar.dev/class", "operator": "DoesNotExist"}]});
    let configuration = |kind: &str, hook: Value| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": "bursar-webhook"}, "webhooks": [hook]})
    };
    let apply = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=bursar-webhook",
        "--dry-run=server",
        "-f",
        "-",
    ];
    for (kind, hook) in [
        ("ValidatingWebhookConfiguration", hook(json!({}), rule(json!(["secrets"]), "Namespaced"))),
        ("ValidatingWebhookConfiguration", hook(others.clone(), rule(json!(["secrets"]), "Namespaced"))),
        ("ValidatingWebhookConfiguration", hook(tenants.clone(), rule(json!(["nodes"]), "*"))),
        ("MutatingWebhookConfiguration", hook(json!({}), rule(json!(["pods"]), "Namespaced"))),
        ("MutatingWebhookConfiguration", hook(tenants.clone(), rule(json!(["pods"]), "*"))),
        ("MutatingWebhookConfiguration", hook(tenants.clone(), rule(json!(["secrets"]), "Namespaced"))),
    ] {
        let refused = daemon(&site, &apply, &configuration(kind, hook.clone()).to_string());
        assert!(said(&refused).contains("bursar-cage"), "{kind} {hook}: {}{}", out(&refused), said(&refused));
    }
    // The installed configurations may be written again, but not with any field weakened.
    let read = |kind: &str, name: &str| -> Value {
        let text = site.cluster.run(&["get", kind, name, "-o", "json"], "");
        let found: Value = serde_json::from_str(&text).expect("the text is JSON");
        json!({"apiVersion": found["apiVersion"], "kind": found["kind"],
            "metadata": {"name": name}, "webhooks": found["webhooks"]})
    };
    let installed = [
        read("mutatingwebhookconfiguration", "bursar-webhook"),
        read("validatingwebhookconfiguration", "bursar-webhook"),
        read("validatingwebhookconfiguration", "bursar-approvals"),
    ];
    for configuration in &installed {
        let let_through = daemon(&site, &apply, &configuration.to_string());
        assert!(let_through.status.success(), "{configuration:#}: {}", said(&let_through));
        let none = json!({"matchExpressions": [
            {"key": "bursar.dev/class", "operator": "Exists"}, {"key": "no", "operator": "Exists"},
        ]});
        for (field, value) in [
            ("failurePolicy", json!("Ignore")),
            ("namespaceSelector", none.clone()),
            ("objectSelector", none),
            ("matchConditions", json!([{"name": "never", "expression": "false"}])),
            (
                "rules",
                json!([{"apiGroups": ["x"], "apiVersions": ["*"], "resources": ["x"], "operations": ["CREATE"]}]),
            ),
        ] {
            let mut weak = configuration.clone();
            weak["webhooks"][0][field] = value;
            let refused = daemon(&site, &apply, &weak.to_string());
            assert!(said(&refused).contains("bursar-cage"), "{field}: {}{}", out(&refused), said(&refused));
        }
    }

    let others = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "others", "namespace": "bursar"}, "spec": {"podSelector": {}}});
    site.cluster.run(&["apply", "-f", "-"], &others.to_string());
    for (arguments, by) in [
        (&["get", "secret", "bursar-webhook-tls", "-n", "bursar"][..], "forbidden"),
        (&["delete", "validatingadmissionpolicy", "bursar-uid"], "forbidden"),
        (
            &["label", "namespace", "bursar", "pod-security.kubernetes.io/enforce=privileged", "--overwrite"],
            "bursar-cage",
        ),
        (&["run", "a", "-n", "bursar", "--image=x"], "forbidden"),
        (&["create", "serviceaccount", "a", "-n", "bursar"], "forbidden"),
        (&["delete", "networkpolicy", "others", "-n", "bursar"], "bursar-cage"),
        (&["annotate", "networkpolicy", "others", "-n", "bursar", "a=b"], "bursar-cage"),
    ] {
        let refused = daemon(&site, arguments, "");
        assert!(said(&refused).contains(by), "{arguments:?}: {}{}", out(&refused), said(&refused));
    }
}

#[test]
fn no_request_waits_for_the_webhook_before_it_runs() {
    let site = Site::alone();
    site.uninstall(&["--backstop"]);
    let with_addresses = "[cluster.test.webhook]\napi_server_cidrs = [\"10.0.0.0/28\", \"fd00::/64\"]";
    site.configure(with_addresses);
    // No pod runs on this control plane, so the API server reaches no webhook.
    let install = ["webhook", "install", "--cluster", "test", "--wait", "0s"];
    let unreached = |installed: &std::process::Output| {
        let remedy = "bursar webhook uninstall --cluster test --admin-kubeconfig FILE";
        let (code, said) = (installed.status.code(), said(installed));
        assert!(code == Some(1) && said.contains("through the API server") && said.contains(remedy), "{said}");
    };
    std::thread::scope(|scope| {
        let installing = scope.spawn(|| site.bursar(&install));
        let pods = wait_for("the Deployment has two pods", DEADLINE, || {
            let pods = site.cluster.run(&["get", "pods", "-n", "bursar", "-o", "json"], "");
            let pods: Value = serde_json::from_str(&pods).expect("the text is JSON");
            pods["items"].as_array().filter(|pods| pods.len() == 2).cloned()
        });
        let configurations = ["get", "validatingwebhookconfigurations", "bursar-webhook", "--ignore-not-found"];
        assert_eq!(site.cluster.run(&configurations, ""), "", "the configuration is made only when the webhook runs");
        // There is no node, so the test itself reports the pods as ready.
        let ready =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}).to_string();
        for pod in &pods {
            let name = pod["metadata"]["name"].as_str().expect("a name is a string");
            site.cluster.run(&["patch", "pod", name, "-n", "bursar", "--subresource=status", "-p", &ready], "");
        }
        let installed = installing.join().expect("the thread does not panic");
        unreached(&installed);
        assert!(out(&installed).contains("Deployment bursar-webhook"), "{}", out(&installed));
        assert_ne!(site.cluster.run(&configurations, ""), "");
    });
    let service = "jsonpath={.webhooks[*].clientConfig.service.name}";
    let found = site.cluster.run(&["get", "validatingwebhookconfigurations", "bursar-webhook", "-o", service], "");
    assert!(found.contains("bursar-webhook"), "{found}");
    let secret =
        site.cluster.run(&["get", "secret", "bursar-webhook-tls", "-n", "bursar", "-o", "jsonpath={.data}"], "");
    assert!(secret.contains("tls.crt") && secret.contains("tls.key"), "{secret}");

    let policies = || site.cluster.run(&["get", "networkpolicies", "-n", "bursar", "-o", "json"], "");
    let policy: Value = serde_json::from_str(&policies()).expect("the text is JSON");
    let rules = &policy["items"][0]["spec"]["ingress"];
    assert_eq!(rules[0]["from"], json!([{"ipBlock": {"cidr": "10.0.0.0/28"}}, {"ipBlock": {"cidr": "fd00::/64"}}]));
    assert_eq!((&rules[0]["ports"][0]["port"], &rules[1]["ports"][0]["port"]), (&json!(9443), &json!(9444)));
    assert_eq!(rules[1]["from"], Value::Null, "probes may come from anywhere");
    site.configure("");
    let doctor = out(&site.bursar(&["doctor"]));
    assert!(doctor.contains("its network policy does not match api_server_cidrs"), "{doctor}");
    unreached(&site.bursar(&install));
    assert!(!policies().contains("bursar-webhook"), "{}", policies());
    site.configure(with_addresses);
    unreached(&site.bursar(&install));
    site.uninstall(&[]);
    let left = site
        .cluster
        .run(&["get", "deployments,services,pdb,secrets,configmaps,networkpolicies", "-n", "bursar", "-o", "name"], "");
    assert!(!left.contains("bursar-webhook"), "{left}");
    assert!(left.contains("bursar-owner"), "{left}");
}

#[test]
fn the_api_server_accepts_the_manifests() {
    let site = Site::shared();
    let yaml = site.must(&["webhook", "manifests", "--cluster", "test"]);
    let taken =
        site.cluster.run(&["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"], &yaml);
    for what in ["deployment.apps/bursar-webhook", "bursar-uid", "poddisruptionbudget", "bursar-approvals"] {
        assert!(taken.contains(what), "{what} in {taken}");
    }
    assert!(!yaml.contains("PRIVATE KEY"));
}

#[test]
fn tenants_may_not_make_secrets_that_kubernetes_fills_with_tokens() {
    let site = Site::shared();
    let secret = |name: &str, of: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": of,
            "metadata": {"name": name, "namespace": "tool-foo",
                "annotations": {"kubernetes.io/service-account.name": "default"}},
        })
        .to_string()
    };
    let refused = site.tool("foo", &["create", "-f", "-"], &secret("planted", "kubernetes.io/service-account-token"));
    assert!(said(&refused).contains("bursar-tokens") && said(&refused).contains("outlives"), "{}", said(&refused));
    let own = site.tool("foo", &["create", "-f", "-"], &secret("own", "Opaque"));
    assert!(own.status.success(), "{}", said(&own));
    let changed = r#"{"type":"kubernetes.io/service-account-token"}"#;
    let refused = site.tool("foo", &["patch", "secret", "own", "-n", "tool-foo", "-p", changed], "");
    assert!(said(&refused).contains("field is immutable"), "{}", said(&refused));
    site.delete("secret", "own", "tool-foo");
}

/// If a tenant's pod could name this service account, a controller would create the pod as soon as a revocation has
/// created the service account.
#[test]
fn pods_may_not_name_the_service_account_of_the_next_generation() {
    let site = Site::shared();
    let account = |name: &str| {
        let labels = json!({"app.kubernetes.io/managed-by": "bursar"});
        let metadata = json!({"name": name, "namespace": "tool-foo", "labels": labels});
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}).to_string()
    };
    let pod = |of: &str| {
        let spec =
            json!({"serviceAccountName": of, "containers": [{"name": "web", "image": "registry.example.org/web"}]});
        let metadata = json!({"name": "waits", "namespace": "tool-foo"});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).to_string()
    };
    let refused = site.tool("foo", &["create", "-f", "-"], &account("bursar-g1044"));
    assert!(said(&refused).contains("only Bursar makes"), "{}", said(&refused));
    for (name, passes) in [("bursar-g1044", false), ("bursar-given", true)] {
        if passes {
            let made = site.tool("foo", &["create", "-f", "-"], &account(name));
            assert!(made.status.success(), "{}", said(&made));
        } else {
            let daemon = ["--as", "bursar:daemon", "--as-group", "system:masters"];
            site.cluster.run(&[&["create", "-f", "-"], &daemon[..]].concat(), &account(name));
        }
        let made = site.tool("foo", &["create", "--dry-run=server", "-f", "-"], &pod(name));
        assert_eq!(made.status.success(), passes, "{}", said(&made));
        assert!(passes || said(&made).contains("also after a revocation"), "{}", said(&made));
        site.delete("serviceaccount", name, "tool-foo");
    }
}

#[test]
fn wrong_arguments_are_refused_with_the_correct_ones() {
    let site = Site::shared();
    for (arguments, code, text) in [
        (&["webhook", "install", "--cluster", "prd"][..], 64, "the configuration has: test"),
        (&["webhook", "install", "--url", "https://a:1"], 64, "--write"),
        (&["webhook", "install", "--url", "http://a:1", "--write", "/nowhere"], 64, "https://10.0.0.5:9443"),
    ] {
        let output = site.bursar(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(text), "{arguments:?}: {}", said(&output));
    }
}

#[test]
fn the_kustomize_folder_has_the_objects_that_install_makes() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/webhook");
    let made = bursar::bootstrap::webhook::yaml(&bursar::bootstrap::webhook::fixed("bursar-webhook"))
        .expect("the text is YAML");
    let text = format!("# Made by bursar::bootstrap::webhook: UPDATE_GOLDENS=1 writes it again.\n{made}");
    let file = folder.join("bursar-webhook.yaml");
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        std::fs::write(&file, &text).expect("the folder is writable");
    }
    assert_eq!(std::fs::read_to_string(&file).expect("the file is readable"), text);
    let site = Site::shared();
    let built = site.cluster.run(&["kustomize", folder.to_str().expect("the path is UTF-8")], "");
    assert!(built.contains("image: registry.example.org/bursar-webhook:0.1.0"), "{built}");
    site.cluster.run(&["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"], &built);
}
