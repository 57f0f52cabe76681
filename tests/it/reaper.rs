//! Pods and namespaces past their lifetime, on a real control plane. There is no node, so the test itself reports that
//! pods started.

use bursar::execute::request::{ApiServer, Ask};
use bursar::orders::request::OrderRequest;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::prometheus::Prometheus;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};

use crate::world::{World, all_is_well, extend, runtime, target};

const MORE: &str = "\n[limits]\nsuspend_per_day = { count = 20 }\n[reaper.pods]\nenabled = true\n";

fn create(world: &World, object: &Value) {
    world.servers.cluster.run(&["create", "-f", "-"], &object.to_string());
}

fn pod(world: &World, namespace: &str, name: &str, lifetime: &str, job: &str) {
    let labels = if job.is_empty() { json!({}) } else { json!({"job": job}) };
    let annotations = json!({"pod.kubernetes.io/lifetime": lifetime});
    let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
    started(world, namespace, &json!({"metadata": metadata}), LONG_AGO);
}

/// Returns a pod spec that every Pod Security level allows.
fn spec() -> Value {
    json!({
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "c", "image": "example.org/i",
            "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "1Mi"}},
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        }],
    })
}

/// Creates one object of each kind that belongs to a job.
fn companions(world: &World, namespace: &str, job: &str) {
    for (kind, rest) in [
        ("ConfigMap", json!({})),
        ("Secret", json!({"stringData": {"password": "hunter2"}})),
        ("Service", json!({"spec": {"ports": [{"port": 80}]}})),
    ] {
        let name = format!("{job}-{}", kind.to_lowercase());
        let mut object = json!({
            "apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace, "labels": {"job": job}},
        });
        extend(&mut object, &rest);
        create(world, &object);
    }
}

fn left(world: &World, namespace: &str) -> String {
    world.kubectl(&["get", "pod,configmap,secret,service", "-n", namespace, "-o", "name"])
}

#[test]
fn pods_past_their_lifetime_are_deleted_with_the_objects_of_their_job() {
    let options = ControlPlaneOptions::default();
    let servers = crate::quiet::own_servers(&options);
    let mut world = World::on(servers, "reaper", MORE);
    world.tool("foo", 62_901, &[]);
    world.tool("bar", 62_902, &[]);
    all_is_well(&world.cycle());
    let (foo, bar) = (world.namespace("foo"), world.namespace("bar"));
    world.kubectl(&["create", "namespace", "others"]);
    for (namespace, name, lifetime, job) in [
        (foo.as_str(), "old", "90m", "a1"),
        (&foo, "young", "9999d", "b2"),
        (&foo, "odd", "soon", ""),
        (&bar, "same-job", "9999d", "a1"),
        ("others", "theirs", "90m", "a1"),
    ] {
        world.servers.cluster.wait_for_pods(namespace);
        pod(&world, namespace, name, lifetime, job);
    }
    companions(&world, &foo, "a1");
    companions(&world, &foo, "b2");
    companions(&world, &bar, "a1");
    let report = wait_for("the watch shows the pods", DEADLINE, || {
        let plan = world.plan();
        plan.text.contains("deleted, with all of job a1").then(|| (plan, world.cycle()))
    });
    assert!(report.0.text.contains("lifetime \"soon\" is ignored: it is not a duration"), "{}", report.0.text);
    assert_eq!(report.1.exit_code(), 0, "{:#?}", report.1);
    let gone = wait_for("the pod is gone", DEADLINE, || {
        let left = left(&world, &foo);
        (!left.contains("pod/old")).then_some(left)
    });
    assert!(!gone.contains("/a1-"), "{gone}");
    for stays in ["pod/young", "pod/odd", "configmap/b2-configmap", "secret/b2-secret", "service/b2-service"] {
        assert!(gone.contains(stays), "{stays}: {gone}");
    }
    assert!(left(&world, &bar).contains("secret/a1-secret"), "objects in another namespace are kept");
    assert!(left(&world, "others").contains("pod/theirs"), "pods outside tenants' namespaces are kept");
    let told = world.rows("SELECT account, detail FROM history WHERE action = 'pod reaped'");
    assert_eq!(told.len(), 1, "{told:?}");
    let detail = told[0]["detail"].as_str().expect("the value is a string");
    assert!(detail.contains("Secret/a1-secret") && !detail.contains("hunter2"), "{detail}");
    let quiet = wait_for("there is nothing left to do", DEADLINE, || {
        let report = world.cycle();
        (report.actions == 0).then_some(report)
    });
    assert_eq!(quiet.exit_code(), 0, "{quiet:#?}");
    idle(&mut world);
    evidence(&mut world);
}

/// The class has a longest lifetime, but no webhook refused pods with a longer one.
#[test]
fn pods_end_at_the_longest_lifetime_of_their_class() {
    let options = ControlPlaneOptions::default();
    let servers = crate::quiet::own_servers(&options);
    let more = format!("{MORE}[class.tool.admission]\nlifetime = {{ max = \"1h\", warn = \"45m\" }}\n");
    let mut world = World::on(servers, "walltime", &more);
    world.tool("foo", 62_911, &[]);
    all_is_well(&world.cycle());
    let foo = world.namespace("foo");
    world.servers.cluster.wait_for_pods(&foo);
    pod(&world, &foo, "long", "9999d", "");
    pod(&world, &foo, "near", "2h", "");
    let begun = bursar::daemon::now() - jiff::SignedDuration::from_mins(30);
    let begun = json!({"status": {"startTime": format!("{begun:.0}")}}).to_string();
    world.kubectl(&["patch", "pod", "near", "-n", &foo, "--subresource=status", "-p", &begun]);
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": spec()});
    let mut of_job = template.clone();
    of_job["spec"]["restartPolicy"] = json!("Never");
    of_job["metadata"] = json!({});
    for (api_version, kind, spec) in [
        (
            "apps/v1",
            "Deployment",
            json!({"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}),
        ),
        ("batch/v1", "Job", json!({"template": of_job})),
    ] {
        let metadata = json!({"name": "again", "namespace": foo});
        create(&world, &json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}));
    }
    let made = |world: &World| {
        let names = world.kubectl(&["get", "pods", "-n", &foo, "-o", "name"]);
        names.lines().filter(|name| name.starts_with("pod/again")).map(str::to_owned).collect::<Vec<_>>()
    };
    let pods =
        wait_for("the controllers make their pods", DEADLINE, || Some(made(&world)).filter(|pods| pods.len() == 2));
    // Controllers find their objects whatever API version the owner reference has.
    for what in ["pods", "replicasets"] {
        let listed = world.kubectl(&["get", what, "-n", &foo, "-l", "app=web", "-o", "json"]);
        let listed: Value = serde_json::from_str(&listed).expect("the text is JSON");
        let object = &listed["items"][0];
        let mut owners = object["metadata"]["ownerReferences"].clone();
        owners[0]["apiVersion"] = json!("apps/v2");
        let change = json!({"metadata": {"ownerReferences": owners}}).to_string();
        let name = object["metadata"]["name"].as_str().expect("a name is a string");
        world.kubectl(&["patch", what, name, "-n", &foo, "--type=merge", "-p", &change]);
    }
    for name in &pods {
        let old = json!({"status": {"phase": "Running", "startTime": LONG_AGO}}).to_string();
        world.kubectl(&["patch", name, "-n", &foo, "--subresource=status", "-p", &old]);
    }
    wait_for("pods past the longest lifetime end", DEADLINE, || {
        all_is_well(&world.cycle());
        let left = left(&world, &foo);
        (!left.contains("pod/long") && !left.contains("pod/again")).then_some(())
    });
    let field = |world: &World, what: &str, path: &str| {
        world.kubectl(&["get", what, "-n", &foo, "-o", &format!("jsonpath={path}")])
    };
    assert_eq!(field(&world, "deployment/again", "{.spec.replicas}"), "0");
    assert_eq!(field(&world, "job/again", "{.spec.activeDeadlineSeconds}"), "1");
    assert!(made(&world).is_empty(), "no controller makes the pods again");
    let told = wait_for("the tenant is told when the pod ends", DEADLINE, || {
        world.cycle();
        Some(field(&world, "pod/near", "{.metadata.annotations.bursar\\.dev/ends-at}")).filter(|at| !at.is_empty())
    });
    assert!(told.parse::<jiff::Timestamp>().is_ok(), "{told}");
    let events = |world: &World| world.kubectl(&["get", "events", "-n", &foo]).matches("This pod ends").count();
    assert_eq!(events(&world), 1);
    world.cycle();
    assert_eq!(events(&world), 1, "the event is written once");
    // The right to write that annotation does not allow other changes to pods.
    let kubeconfig = world.settings().clusters.values().next().expect("the settings have a cluster").clone();
    for change in [
        json!({"spec": {"activeDeadlineSeconds": 5}}),
        json!({"metadata": {"labels": {"app": "stolen"}}}),
        json!({"metadata": {"annotations": {"other": "x"}}}),
    ] {
        let refused = runtime().block_on(async {
            let client = bursar::bootstrap::client(&kubeconfig).await.expect("the kubeconfig is valid");
            let cluster = bursar::identity::ClusterName("test".into());
            let server = ApiServer::new(cluster, client, std::sync::Arc::default());
            server.ask(&format!("/api/v1/namespaces/{foo}/pods/near"), Ask::Merge(&change)).await
        });
        let text = bursar::errors::chain(&refused.expect_err("the API server refuses the change"));
        assert!(text.contains("may change nothing of a pod except annotation"), "{change}: {text}");
    }
}

/// A tenant writes everything that could keep a pod running.
#[test]
fn a_tenant_cannot_keep_a_pod_past_its_end() {
    let servers = crate::quiet::own_servers(&ControlPlaneOptions::default());
    let more = format!("{MORE}[class.tool.admission]\nlifetime = {{ max = \"1h\", warn = \"45m\" }}\n");
    let mut world = World::bare(servers, "keepsit", &more);
    // The site's own Deployment must go on when a tenant shortens the life of its pod.
    let manifests = world.folder.join("manifests/tool");
    std::fs::create_dir_all(&manifests).expect("the folder is writable");
    let labels = json!({"app": "proxy"});
    let proxy = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "proxy"}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec()},
    }});
    std::fs::write(manifests.join("proxy.yaml"), proxy.to_string()).expect("the folder is writable");
    world.initialise_again();
    world.tool("foo", 62_921, &[]);
    assert_eq!(world.cycle().exit_code(), 0);
    let foo = world.namespace("foo");
    let proxies = |world: &World| world.kubectl(&["get", "pods", "-n", &foo, "-l", "app=proxy", "-o", "name"]);
    let proxy = wait_for("the pod of the site's Deployment", DEADLINE, || {
        Some(proxies(&world).trim().to_owned()).filter(|name| !name.is_empty())
    });
    let old = json!({"status": {"phase": "Running", "startTime": LONG_AGO}}).to_string();
    world.kubectl(&["patch", &proxy, "-n", &foo, "--subresource=status", "-p", &old]);
    world.kubectl(&["annotate", &proxy, "-n", &foo, "pod.kubernetes.io/lifetime=1s"]);
    create(&world, &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
    world.servers.cluster.wait_for_pods(&foo);
    // Pods of a node end only when the node reports it, and this node does not exist.
    for name in ["slow", "asked"] {
        let spec = json!({"nodeName": "n1", "terminationGracePeriodSeconds": TEN_YEARS});
        started(&world, &foo, &json!({"metadata": {"name": name}, "spec": spec}), LONG_AGO);
    }
    world.kubectl(&["delete", "pod", "asked", "-n", &foo, "--wait=false"]);
    let labels = json!({"app.kubernetes.io/managed-by": "bursar"});
    started(&world, &foo, &json!({"metadata": {"name": "ours", "labels": labels}}), LONG_AGO);
    let uid = padded_job(&world, &foo);
    let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "padded", "uid": uid, "controller": true}]);
    let labels = json!({"batch.kubernetes.io/controller-uid": uid});
    for (name, start) in [("of-padded", LONG_AGO), ("young", &*ago(1))] {
        let metadata = json!({"name": name, "labels": labels, "ownerReferences": owner});
        started(&world, &foo, &json!({"metadata": metadata}), start);
    }
    // The garbage collector cannot ask for a name with a percent sign, so it keeps the pod.
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web%20", "uid": uid, "controller": true}]);
    started(&world, &foo, &json!({"metadata": {"name": "astray", "ownerReferences": owner}}), LONG_AGO);
    let full = json!({"pad": "x".repeat((256 << 10) - 10)});
    started(&world, &foo, &json!({"metadata": {"name": "full", "annotations": full}}), &ago(30));
    let field = |world: &World, what: &str, path: &str| {
        world.kubectl(&["get", what, "-n", &foo, "-o", &format!("jsonpath={path}")])
    };
    assert_eq!(field(&world, "pod/asked", "{.metadata.deletionGracePeriodSeconds}"), TEN_YEARS.to_string());
    wait_for("all of them end", DEADLINE, || {
        world.cycle();
        let left = left(&world, &foo);
        let seconds = ["slow", "asked"]
            .map(|name| field(&world, &format!("pod/{name}"), "{.metadata.deletionGracePeriodSeconds}"));
        let gone = ["pod/ours", "pod/of-padded", "pod/astray", &proxy].iter().all(|name| !left.contains(name));
        (gone && seconds == ["30", "30"]).then_some(())
    });
    let told = world.rows("SELECT detail FROM history WHERE action = 'pod reaped'");
    let details: String = told.iter().filter_map(|row| row["detail"].as_str()).collect();
    assert!(details.contains("Pod/of-padded"), "{details}");
    assert!(details.contains("no ReplicaSet web%20"), "{details}");
    for what in ["deployments", "replicasets"] {
        let replicas = world.kubectl(&["get", what, "-n", &foo, "-o", "jsonpath={.items[*].spec.replicas}"]);
        assert_eq!(replicas, "1", "{what} of the site's manifest go on");
    }
    assert!(!details.contains("Deployment/proxy") && !details.contains("ReplicaSet/proxy"), "{details}");
    assert_eq!(
        world.kubectl(&["get", "events", "-n", &foo]).matches("This pod ends").count(),
        0,
        "pod full has no room for the annotation, so no event is written"
    );
    let quiet = wait_for("nothing fails any more", DEADLINE, || {
        let report = world.cycle();
        (report.exit_code() == 0).then_some(report)
    });
    assert_eq!(quiet.exit_code(), 0, "{quiet:#?}");
    // A suspension also ends the pods of a workload that cannot be stopped.
    assert!(left(&world, &foo).contains("pod/young"));
    world.order(&OrderRequest::Suspend(target("foo"))).expect("the order is accepted");
    world.cycle();
    assert!(!left(&world, &foo).contains("pod/young"));
}

const TEN_YEARS: i64 = 315_360_000;
const LONG_AGO: &str = "2026-01-01T00:00:00Z";

fn ago(minutes: i64) -> String {
    format!("{:.0}", bursar::daemon::now() - jiff::SignedDuration::from_mins(minutes))
}

/// Creates a pod that started at this time.
fn started(world: &World, namespace: &str, with: &Value, start: &str) {
    let metadata = json!({"namespace": namespace});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec()});
    for part in ["metadata", "spec"] {
        let more = with[part].as_object().cloned().unwrap_or_default();
        pod[part].as_object_mut().expect("the value is an object").extend(more);
    }
    create(world, &pod);
    let name = with["metadata"]["name"].as_str().expect("a name is a string");
    let started = json!({"status": {"phase": "Running", "startTime": start}}).to_string();
    world.kubectl(&["patch", "pod", name, "-n", namespace, "--subresource=status", "-p", &started]);
}

/// Returns the largest size that `takes` accepts. It accepts `most` and refuses `refused`.
async fn fullest(mut takes: impl AsyncFnMut(usize) -> bool, (mut most, mut refused): (usize, usize)) -> usize {
    while most + 1 < refused {
        let size = usize::midpoint(most, refused);
        if takes(size).await { most = size } else { refused = size }
    }
    most
}

async fn admin(world: &World) -> ApiServer {
    let client =
        bursar::bootstrap::client(&world.servers.cluster.admin_kubeconfig).await.expect("the kubeconfig is valid");
    ApiServer::new(bursar::identity::ClusterName("test".into()), client, std::sync::Arc::default())
}

/// Creates a Job of the largest size that etcd accepts, so that it cannot be changed. Returns its uid.
fn padded_job(world: &World, namespace: &str) -> String {
    runtime().block_on(async {
        let server = admin(world).await;
        let jobs = format!("/apis/batch/v1/namespaces/{namespace}/jobs");
        let make = async |size: usize| {
            let container = json!({"name": "c", "image": "example.org/i", "args": ["x".repeat(size)]});
            let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
            // No controller acts on this Job.
            let spec = json!({"managedBy": "example.org/nobody", "template": template});
            let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "padded"}, "spec": spec});
            let made = server.ask(&jobs, Ask::Create(&job)).await.ok()?;
            Some(made.object["metadata"]["uid"].as_str().expect("the value is a string").to_owned())
        };
        let takes = async |size| {
            let Some(uid) = make(size).await else { return false };
            server
                .ask(&format!("{jobs}/padded"), Ask::Delete { uid: &uid })
                .await
                .expect("the API server accepts the deletion");
            true
        };
        let size = fullest(takes, (1 << 20, 2 << 20)).await;
        make(size).await.expect("the API server accepts a pod of this size")
    })
}

/// Nothing runs in the namespaces of two tools: one is suspended, the other is exempt. The pods of other tools run.
fn idle(world: &mut World) {
    world.tool("idle", 62_903, &[]);
    world.tool("kept", 62_904, &[]);
    world.cycle();
    world.kubectl(&["annotate", "namespace", &world.namespace("kept"), "bursar.dev/keep=true"]);
    let reaper = "[reaper.namespaces]\nenabled = true\nidle_for = \"3s\"\nwarn_for = \"2s\"\n[reaper.pods]";
    world.configure("[reaper.pods]", reaper);
    world.initialise_again();
    world.cycles_until("tool idle is suspended", |world| world.state("idle") == "suspended");
    let told = world.kubectl(&["get", "events", "-n", &world.namespace("idle")]);
    assert!(told.contains("Nothing has run in this namespace since"), "{told}");
    let events = world
        .rows("SELECT action, account FROM history WHERE action IN ('warned of suspension', 'suspended') ORDER BY at");
    let events: Vec<_> = events.iter().map(|row| (row["action"].as_str(), row["account"].as_str())).collect();
    let expected = [Some("warned of suspension"), Some("suspended")].map(|action| (action, Some("tool:idle")));
    assert_eq!(events, expected);
    for stays in ["foo", "bar", "kept"] {
        assert_eq!(world.state(stays), "active", "{stays}");
    }
    world.order(&OrderRequest::Resume(target("idle"))).expect("the order is accepted");
    assert_eq!(world.state("idle"), "active");
    let works = world.kubectl_as_tool("idle", &["get", "pods"]);
    assert!(works.status.success(), "{}", crate::world::stderr(&works));
}

/// Prometheus first shows no evidence, and then shows that a namespace is in use although nothing runs in it.
fn evidence(world: &mut World) {
    let prometheus = Prometheus::start(&world.folder);
    let section = format!(
        "[reaper.namespaces.prometheus.test]\nurl = \"{}\"\nquery = \"sum by (namespace) (in_use)\"\n\
         control = [\"gateway\"]\n[reaper.pods]",
        prometheus.url
    );
    for (tool, uid) in [("seen", 62_905), ("unseen", 62_906)] {
        world.tool(tool, uid, &[]);
    }
    let seen = world.namespace("seen");
    world.configure("[reaper.pods]", &section);
    world.cycle();
    let trouble = |world: &mut World| {
        world.cycle();
        world.trouble().filter(|text| text.contains("control namespace gateway is not in use"))
    };
    wait_for("status says that there is no evidence", DEADLINE, || trouble(world));
    let doctor = |world: &mut World| {
        world.stop();
        let findings: Value = serde_json::from_str(&world.bursar("--json doctor")).expect("the text is JSON");
        let about = |finding: &&Value| finding["subject"] == "reaper.namespaces.prometheus.test";
        findings.as_array().and_then(|findings| findings.iter().find(about)).expect("the doctor has a finding").clone()
    };
    let finding = doctor(world);
    assert!(finding["remedy"].as_str().is_some_and(|remedy| remedy.contains("control")), "{finding}");
    assert_eq!(
        world.rows("SELECT * FROM idle WHERE account = 'tool:unseen'").len(),
        0,
        "without evidence no idle time is counted"
    );

    prometheus.show(&["gateway", &seen]);
    let finding = wait_for("Prometheus shows the control namespace", DEADLINE, || {
        let finding = doctor(world);
        finding["remedy"].is_null().then_some(finding)
    });
    assert!(finding["text"].as_str().is_some_and(|text| text.contains("2 namespaces in use")), "{finding}");
    world.cycles_until("the unused tool is suspended", |world| world.state("unseen") == "suspended");
    assert_eq!(world.state("seen"), "active");
    assert_eq!(world.rows("SELECT * FROM idle WHERE account = 'tool:seen'").len(), 0);
    let metrics = world.metrics();
    assert!(metrics.contains("bursar_suspensions{cause=\"idle\"}"), "{metrics}");
    assert!(metrics.contains("bursar_account_changes_total{action=\"suspended\"}"), "{metrics}");
}
