//! Adopted namespaces: Kubeflow makes one for each of its profiles, and Bursar binds the owner that its annotation
//! names.

use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, Target};
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ldif::replace_ldif;
use bursar_testkit::ready::{DEADLINE, poll, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::daemon::{Daemon, status};
use crate::quiet::own_servers;
use crate::world::{World, stderr};

const DAEMON: &str = "bursar:daemon";

const CLASSES: &str = r#"
[class.person]
from       = "users"
clusters   = ["test"]
namespace  = "prof-u-{name}"
home       = { prefix = "@HOMES@", kubeconfig = ".kube/config" }
roles      = ["bursar-tenant"]
network    = "open"
credential = { kind = "certificate", lifetime = "7d", endpoints = ["internal"] }
[class.profile]
from                  = "adopted"
clusters              = ["test"]
selector              = "app.kubernetes.io/part-of=kubeflow-profile"
owner_annotation      = "owner"
roles                 = ["bursar-tenant"]
service_account_roles = ["view"]
quota                 = { pods = "9" }
"#;

/// The limits of sites in which several people lose access at once. With two people, the default limit allows one.
const MANY: &str = "\n[limits]\nremove_access_per_cycle = { count = 19 }\nremove_access_per_day = { count = 19 }\n";

/// Makes a site with the two classes and two people.
fn site(name: &str, more: &str) -> World {
    let mut world = World::on(own_servers(&ControlPlaneOptions::default()), name, more);
    let homes = world.folder.join("homes/home").display().to_string();
    world.configure("[class.admin]", &format!("{}[class.admin]", CLASSES.replace("@HOMES@", &homes)));
    world.initialise_again();
    for (person, uid) in ["ada", "boole"].into_iter().zip(63_301..) {
        world.person(person, uid);
    }
    let settled = poll(DEADLINE, || world.cycle().exit_code() == 0);
    assert!(settled, "{:?}", world.rows("SELECT * FROM failing"));
    world
}

/// Makes a namespace as Kubeflow's profile controller does.
fn profile(world: &World, name: &str, owner: &str) {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/part-of": "kubeflow-profile"},
            "annotations": {"owner": owner},
        },
    });
    world.servers.cluster.run(&["create", "-f", "-"], &namespace.to_string());
}

fn may(world: &World, person: &str, verb: &str, namespace: &str) -> bool {
    let arguments = ["auth", "can-i", verb, "configmaps", "-n", namespace];
    let output = world.kubectl_with(&world.kubeconfig_of(person), &arguments);
    String::from_utf8_lossy(&output.stdout).trim() == "yes"
}

fn ours(world: &World, namespace: &str) -> Vec<String> {
    let arguments =
        ["get", "rolebinding,quota", "-n", namespace, "-l", "app.kubernetes.io/managed-by=bursar", "-o", "name"];
    let names = world.kubectl(&arguments);
    names.lines().map(|line| line.rsplit('/').next().unwrap_or_default().to_owned()).collect()
}

/// Returns the time from the API server's answer to the creation of a namespace until its answer to the owner's
/// binding.
fn took(world: &World, mark: u64, namespace: &str) -> SignedDuration {
    let requests = || world.servers.cluster.requests_since(mark);
    let bound = wait_for("the audit log shows the binding", DEADLINE, || {
        let bound = |uri: &str| uri.contains(&format!("/namespaces/{namespace}/rolebindings/bursar-bursar-tenant"));
        let mut requests = requests().into_iter();
        requests.find(|request| request.user == DAEMON && request.verb == "patch" && bound(&request.uri))
    });
    assert!(bound.status < 300, "{bound:?}");
    let created = requests().into_iter().find(|request| {
        request.verb == "create" && request.uri.starts_with("/api/v1/namespaces?") && request.status == 201
    });
    let created: Timestamp = created.expect("the namespace was created").at;
    bound.at.duration_since(created)
}

#[test]
fn a_profile_is_bound_to_its_owner_within_a_second_and_repaired() {
    let mut world = site("prof", MANY);
    world.stop();
    let daemon = Daemon::ready(&world);
    // The first cycle must be over before times are measured.
    daemon.cycled(&world);
    let mut times = Vec::new();
    // The median of five consecutive times counts, because the machine may be busy at times.
    let is_quick = ('a'..='o').any(|letter| {
        let (name, mark) = (format!("lab-{letter}"), world.servers.cluster.audit_mark());
        profile(&world, &name, "ada");
        times.push(took(&world, mark, &name));
        let mut last: Vec<SignedDuration> = times.iter().rev().take(5).copied().collect();
        last.sort();
        last.len() == 5 && last[2] < SignedDuration::from_secs(1)
    });
    println!("from its creation to the owner's binding: {times:?}");
    assert!(is_quick, "{times:?}");

    assert!(poll(DEADLINE, || may(&world, "ada", "create", "lab-a")), "{:?}", ours(&world, "lab-a"));
    assert!(!may(&world, "boole", "get", "lab-a"));
    let pods = ["auth", "can-i", "get", "configmaps", "-n", "lab-a", "--as", "system:serviceaccount:lab-a:default"];
    assert_eq!(world.kubectl(&pods).trim(), "yes");
    assert_eq!(ours(&world, "lab-a"), ["bursar-bursar-tenant", "bursar-sa-view", "bursar"]);
    let row = "SELECT class, account FROM namespaces WHERE namespace = 'lab-a'";
    assert_eq!(world.rows(row)[0]["account"], "user:ada");
    assert_eq!(world.rows(row)[0]["class"], "profile");

    // A binding is deleted, and another one emptied.
    world.kubectl(&["delete", "rolebinding", "bursar-bursar-tenant", "-n", "lab-a"]);
    let emptied = r#"{"subjects":[]}"#;
    world.kubectl(&["patch", "rolebinding", "bursar-sa-view", "-n", "lab-a", "--type=merge", "-p", emptied]);
    let back = || {
        let subjects = ["get", "rolebinding", "bursar-sa-view", "-n", "lab-a", "-o", "jsonpath={.subjects[0].name}"];
        may(&world, "ada", "create", "lab-a") && world.kubectl(&subjects) == "default"
    };
    assert!(poll(DEADLINE, back), "{:?}", ours(&world, "lab-a"));

    // The annotation names a new owner: the access of the former owner is removed first.
    world.kubectl(&["annotate", "namespace", "lab-a", "owner=user:boole", "--overwrite"]);
    assert!(poll(DEADLINE, || may(&world, "boole", "create", "lab-a")), "{:?}", ours(&world, "lab-a"));
    assert!(!may(&world, "ada", "get", "lab-a"));
    assert_eq!(ours(&world, "lab-a").len(), 3);
    let access = "SELECT member, at_end < '9999' AS past FROM access_on WHERE namespace = 'lab-a' ORDER BY at_start";
    let access =
        wait_for("the view has both owners", DEADLINE, || Some(world.rows(access)).filter(|rows| rows.len() == 2));
    assert_eq!((&access[0]["member"], &access[0]["past"]), (&json!("user:ada"), &json!(1)));
    assert_eq!((&access[1]["member"], &access[1]["past"]), (&json!("user:boole"), &json!(0)));

    // A namespace is released: our objects are removed, and everything else stays.
    world.kubectl(&["create", "configmap", "theirs", "-n", "lab-b"]);
    world.kubectl(&["create", "rolebinding", "theirs", "--clusterrole=view", "--user=somebody", "-n", "lab-b"]);
    world.kubectl(&["label", "namespace", "lab-b", "app.kubernetes.io/part-of-"]);
    world.kubectl(&["annotate", "namespace", "lab-c", "owner=somebody@example.org", "--overwrite"]);
    assert!(poll(DEADLINE, || ours(&world, "lab-b").is_empty() && ours(&world, "lab-c").is_empty()));
    world.kubectl(&["get", "configmap/theirs", "rolebinding/theirs", "-n", "lab-b"]);
    let unowned = || status(&world)["unowned"].clone();
    assert!(poll(DEADLINE, || unowned().as_array().is_some_and(|all| all.len() == 1)), "{}", unowned());
    assert_eq!(unowned()[0]["namespace"], "lab-c");
    assert!(unowned()[0]["why"].as_str().is_some_and(|why| why.contains("who is in no source")), "{}", unowned());

    // The owner is named by mail address, as Kubeflow does.
    world.kubectl(&["annotate", "namespace", "lab-c", "owner=Boole@Example.org", "--overwrite"]);
    assert!(poll(DEADLINE, || may(&world, "boole", "create", "lab-c")), "{}", unowned());

    // A person who is disabled loses access, and the namespace keeps its quota.
    let ada = bursar_testkit::ldif::person_dn(&world.base, "ada");
    world.servers.slapd.modify_ldif(&replace_ldif(&ada, "mail", &["boole@example.org"]));
    world.servers.slapd.modify_ldif(&bursar_testkit::ldif::disable_ldif(&ada));
    assert!(poll(DEADLINE, || ours(&world, "lab-d") == ["bursar"]), "{:?}", ours(&world, "lab-d"));
    assert!(
        may(&world, "boole", "create", "lab-c"),
        "boole keeps the namespace although two people now have the address"
    );
    let namespaces = world.kubectl(&["get", "namespaces", "-o", "name"]);
    assert!((b'a'..=b'e').all(|letter| namespaces.contains(&format!("lab-{}", char::from(letter)))), "{namespaces}");
    let log = daemon.process.log_end();
    daemon.stop();
    assert_eq!(world.rows("SELECT * FROM failing").len(), 0, "{log}");

    // The class is removed from the configuration, and `init` removes its part of the admission policy.
    let text = std::fs::read_to_string(world.config()).expect("the world has a configuration");
    let (before, rest) = text.split_once("[class.profile]").expect("the text has this part");
    let (_, after) = rest.split_once("[class.admin]").expect("the text has this part");
    std::fs::write(world.config(), format!("{before}[class.admin]{after}")).expect("the folder is writable");
    world.initialise_again();
    let gone = poll(DEADLINE, || {
        world.cycle();
        ["lab-a", "lab-c", "lab-d", "lab-e"].iter().all(|name| ours(&world, name).is_empty())
    });
    assert!(gone, "{:?}", world.rows("SELECT * FROM failing"));
    world.cycle();
    assert_eq!(world.rows("SELECT * FROM adopted_namespace").len(), 0);
}

#[test]
fn a_mistyped_selector_removes_no_more_access_than_the_limit_allows() {
    let mut world = site("profslip", "");
    profile(&world, "lab-a", "ada");
    profile(&world, "lab-b", "boole");
    let kept = |world: &World| ["lab-a", "lab-b"].into_iter().filter(|name| ours(world, name).len() == 3).count();
    let bound = poll(DEADLINE, || {
        world.cycle();
        kept(&world) == 2
    });
    assert!(bound, "{:?}", world.rows("SELECT * FROM failing"));
    world.configure("part-of=kubeflow-profile", "part-of=kubeflow-profiles");
    let refused = wait_for("the report has a refusal", DEADLINE, || {
        let report = world.cycle();
        report.refusals.into_iter().next()
    });
    assert!(refused.limit.starts_with("remove_access_per_"), "{refused:?}");
    assert!(world.bursar("status").contains(&format!("bursar approve {}", refused.hash)), "{}", world.bursar("status"));
    let released = poll(DEADLINE, || {
        assert_eq!(world.cycle().exit_code(), 3);
        kept(&world) == 1
    });
    assert!(released, "{:?} {:?}", ours(&world, "lab-a"), ours(&world, "lab-b"));
    let (person, lab) = if ours(&world, "lab-a").is_empty() { ("boole", "lab-b") } else { ("ada", "lab-a") };
    for _ in 0..3 {
        assert_eq!(world.cycle().exit_code(), 3);
        assert!(may(&world, person, "create", lab) && kept(&world) == 1);
    }

    // A revocation also replaces the binding that the limit keeps.
    let old = world.folder.join("stolen");
    std::fs::copy(world.kubeconfig_of(person), &old).expect("the file can be copied");
    let target =
        Target { kind: AccountKind::User, name: person.to_owned(), reason: Some("stolen".to_owned()), ticket: None };
    world.order(&OrderRequest::Revoke(target)).expect("the order is accepted");
    let arguments = ["auth", "can-i", "get", "configmaps", "-n", lab];
    let output = world.kubectl_with(&old, &arguments);
    assert_ne!(String::from_utf8_lossy(&output.stdout).trim(), "yes");
    assert!(poll(DEADLINE, || may(&world, person, "create", lab)));

    world.configure("part-of=kubeflow-profiles", "part-of=kubeflow-profile");
    let back = poll(DEADLINE, || world.cycle().exit_code() == 0 && kept(&world) == 2);
    assert!(back, "{:?}", world.rows("SELECT * FROM failing"));
    assert!(may(&world, "ada", "create", "lab-a") && may(&world, "boole", "create", "lab-b"));
}

#[test]
fn in_foreign_namespaces_the_daemon_may_only_do_what_the_adopting_class_says() {
    let mut world = site("profcage", MANY);
    profile(&world, "lab-a", "ada");
    let settled = poll(DEADLINE, || {
        world.cycle();
        ours(&world, "lab-a").len() == 3
    });
    assert!(settled, "{:?}", world.rows("SELECT * FROM failing"));
    world.stop();
    world.kubectl(&["create", "namespace", "foreign"]);
    world.kubectl(&["create", "rolebinding", "theirs", "--clusterrole=view", "--user=somebody", "-n", "lab-a"]);
    let daemon = world.state_dir().join("clusters/test.kubeconfig");
    let group = "--group=bursar:user:ada#1";
    let refused = |arguments: &[&str]| {
        let output = world.kubectl_with(&daemon, arguments);
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains("bursar-cage"), "{arguments:?}: {said}");
    };
    let label = r#"{"metadata":{"labels":{"app.kubernetes.io/managed-by":"bursar"}}}"#;
    refused(&["create", "rolebinding", "x", "--clusterrole=bursar-tenant", group, "-n", "foreign"]);
    refused(&["create", "quota", "x", "--hard=pods=0", "-n", "foreign"]);
    // Objects without our label, and objects of others.
    refused(&["create", "rolebinding", "x", "--clusterrole=bursar-tenant", group, "-n", "lab-a"]);
    refused(&["patch", "rolebinding", "theirs", "--type=merge", "-p", label, "-n", "lab-a"]);
    refused(&["delete", "rolebinding", "theirs", "-n", "lab-a"]);
    // Subjects that the class does not bind, and objects that it does not make.
    let others = r#"{"subjects":[{"kind":"User","name":"mallory","apiGroup":"rbac.authorization.k8s.io"}]}"#;
    refused(&["patch", "rolebinding", "bursar-bursar-tenant", "--type=merge", "-p", others, "-n", "lab-a"]);
    let pvc = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "x", "namespace": "lab-a", "labels": {"app.kubernetes.io/managed-by": "bursar"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let file = world.folder.join("pvc.json");
    std::fs::write(&file, pvc.to_string()).expect("the folder is writable");
    refused(&["create", "-f", &file.display().to_string()]);
    refused(&["label", "namespace", "lab-a", "x=y"]);
    refused(&["delete", "namespace", "lab-a"]);
}

fn policies(world: &World) -> Vec<String> {
    let kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings";
    let names = world.kubectl(&["get", kinds, "-o", "name"]);
    let ours = names.lines().filter_map(|line| line.split_once("bursar-adopted-")).map(|(_, name)| name.to_owned());
    ours.collect()
}

#[test]
fn init_installs_changes_and_removes_rules_for_adopted_namespaces() {
    let mut world = site("profrules", MANY);
    profile(&world, "lab-a", "ada");
    let findings = |world: &mut World| -> Vec<String> {
        world.cycle();
        let clusters = world.status().clusters.into_values();
        clusters.flat_map(|cluster| cluster.confinement).filter(|what| what.contains("adopted")).collect()
    };
    let told = |world: &mut World, what: &str| {
        wait_for("the expected finding is reported", DEADLINE, || {
            findings(world).iter().any(|found| found.contains(what)).then_some(())
        });
    };
    let whole = |world: &mut World| {
        wait_for("nothing is found any more", DEADLINE, || findings(world).is_empty().then_some(()));
    };
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "x", "namespace": "lab-a"},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}},
    });
    let file = world.folder.join("claim.json");
    std::fs::write(&file, claim.to_string()).expect("the folder is writable");
    let admin = world.servers.cluster.admin_kubeconfig.clone();
    let create = |world: &World| {
        let output = world.kubectl_with(&admin, &["create", "--dry-run=server", "-f", &file.display().to_string()]);
        (output.status.success(), stderr(&output))
    };
    assert_eq!(policies(&world), Vec::<String>::new());
    whole(&mut world);

    let (quota, rule) = ("quota                 = { pods = \"9\" }\n", |mode: &str| {
        format!("[class.profile.admission]\nclaims = {{ mode = \"{mode}\", read_write_many = [\"nfs\"] }}\n")
    });
    world.configure(quota, &format!("{quota}{}", rule("warn")));
    told(&mut world, "bursar-adopted-profile-warn is not in force; run bursar init");
    world.stop();
    let dry = format!("init --cluster test --dry-run --admin-kubeconfig {}", admin.display());
    assert!(world.bursar(&dry).contains("bursar-adopted-profile-warn"), "{}", world.bursar(&dry));
    assert_eq!(policies(&world), Vec::<String>::new(), "a dry run creates no policies");
    world.initialise_again();
    assert_eq!(policies(&world), ["profile-warn", "profile-warn"]);
    wait_for("the claim is allowed with a warning", DEADLINE, || {
        let (passes, said) = create(&world);
        (passes && said.contains("Warning") && said.contains("set spec.storageClassName to \"nfs\"")).then_some(())
    });
    whole(&mut world);

    world.configure(&rule("warn"), &rule("enforce"));
    told(&mut world, "bursar-adopted-profile-warn comes from an older configuration; run bursar init");
    world.stop();
    world.initialise_again();
    assert_eq!(policies(&world), ["profile-enforce", "profile-enforce"]);
    wait_for("the claim is refused", DEADLINE, || (!create(&world).0).then_some(()));
    whole(&mut world);

    // A policy is weakened, and a binding is deleted.
    let (policy, weaken) = ("bursar-adopted-profile-enforce", r#"{"spec":{"failurePolicy":"Ignore"}}"#);
    world.kubectl(&["patch", "validatingadmissionpolicy", policy, "--type=merge", "-p", weaken]);
    told(&mut world, "bursar-adopted-profile-enforce was changed since init made it; run bursar init");
    world.kubectl(&["delete", "validatingadmissionpolicybinding", policy]);
    told(&mut world, "Binding bursar-adopted-profile-enforce is not in force; run bursar init");
    world.stop();
    world.initialise_again();
    whole(&mut world);

    world.configure(&rule("enforce"), "");
    told(&mut world, "bursar-adopted-profile-enforce comes from an older configuration; run bursar init");
    world.stop();
    world.initialise_again();
    assert_eq!(policies(&world), Vec::<String>::new());
    wait_for("the claim is allowed", DEADLINE, || create(&world).0.then_some(()));
    whole(&mut world);
    assert_eq!(world.rows("SELECT * FROM failing").len(), 0);
}

#[test]
fn a_pod_security_level_is_set_only_if_there_is_none() {
    const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
    let mut world = site("proflevel", MANY);
    profile(&world, "lab-old", "ada");
    let bound = |world: &mut World, name: &str| {
        let all = poll(DEADLINE, || {
            world.cycle();
            ours(world, name).len() == 3
        });
        assert!(all, "{name}: {:?} {:?}", ours(world, name), world.rows("SELECT * FROM failing"));
    };
    let level = |world: &World, name: &str| {
        let path = "jsonpath={.metadata.labels.pod-security\\.kubernetes\\.io/enforce}";
        world.kubectl(&["get", "namespace", name, "-o", path])
    };
    bound(&mut world, "lab-old");
    assert_eq!(level(&world, "lab-old"), "");

    // Before `init`, the admission policy refuses the level, so nobody is bound in a new namespace.
    world.configure("owner_annotation      = \"owner\"", "owner_annotation = \"owner\"\npod_security = \"baseline\"");
    profile(&world, "lab-new", "boole");
    let refused = poll(DEADLINE, || {
        world.cycle();
        world.rows("SELECT reason FROM failing").iter().any(|row| row["reason"].to_string().contains("bursar-cage"))
    });
    assert!(refused, "{:?}", world.rows("SELECT * FROM failing"));
    assert_eq!((ours(&world, "lab-new"), level(&world, "lab-new")), (Vec::new(), String::new()));
    world.stop();
    world.initialise_again();
    bound(&mut world, "lab-new");
    assert!(poll(DEADLINE, || {
        world.cycle();
        level(&world, "lab-new") == "baseline" && level(&world, "lab-old") == "baseline"
    }));
    let history = world.rows("SELECT detail FROM history WHERE action = 'pod security level set'");
    assert_eq!(history.len(), 2, "{history:?}");

    // A level that the creator of the namespace sets stays, and a weaker level is reported.
    let set = |world: &World, name: &str, to: &str| {
        world.kubectl(&["label", "namespace", name, &format!("{ENFORCE}{to}"), "--overwrite"]);
    };
    let weaker = |world: &mut World| -> Vec<String> {
        world.cycle();
        world.status().clusters.into_values().flat_map(|cluster| cluster.weaker).collect()
    };
    set(&world, "lab-new", "=privileged");
    set(&world, "lab-old", "=restricted");
    let told =
        wait_for("the weaker level is reported", DEADLINE, || Some(weaker(&mut world)).filter(|told| !told.is_empty()));
    let remedy = format!("kubectl label namespace lab-new {ENFORCE}=baseline --overwrite");
    assert!(matches!(&*told, [one] if one.contains("\"privileged\"") && one.contains(&remedy)), "{told:?}");
    assert!(world.plan().text.contains(&remedy), "{}", world.plan().text);
    world.stop();
    let (found, _) = crate::doctor::wrong(&world, &[]);
    let doctor = format!("{found:?}");
    assert!(doctor.contains(&remedy) && !doctor.contains("namespace lab-old has"), "{doctor}");
    for _ in 0..3 {
        assert_eq!(world.cycle().exit_code(), 0);
    }
    assert_eq!(
        (level(&world, "lab-new"), level(&world, "lab-old")),
        ("privileged".to_owned(), "restricted".to_owned())
    );
    // A creator that applies the whole namespace takes over the label. If the value is the same, this needs no force.
    let whole = |value: &str| {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": "lab-third", "annotations": {"owner": "ada"},
            "labels": {"app.kubernetes.io/part-of": "kubeflow-profile", ENFORCE: value},
        }})
    };
    profile(&world, "lab-third", "ada");
    bound(&mut world, "lab-third");
    assert_eq!(level(&world, "lab-third"), "baseline");
    let apply = ["apply", "--server-side", "--field-manager=maker", "-f", "-"];
    world.servers.cluster.run(&apply, &whole("baseline").to_string());
    world.servers.cluster.run(&[&apply[..], &["--force-conflicts"]].concat(), &whole("privileged").to_string());
    assert!(poll(DEADLINE, || weaker(&mut world).len() == 2));
    assert_eq!(level(&world, "lab-third"), "privileged");

    // A level that is removed is set again; a namespace that is released keeps its level.
    set(&world, "lab-new", "-");
    assert!(poll(DEADLINE, || {
        world.cycle();
        level(&world, "lab-new") == "baseline"
    }));
    world.kubectl(&["label", "namespace", "lab-new", "app.kubernetes.io/part-of-"]);
    assert!(poll(DEADLINE, || {
        world.cycle();
        ours(&world, "lab-new").is_empty()
    }));
    assert_eq!(level(&world, "lab-new"), "baseline");
    // Without an owner, nothing is written to a namespace.
    profile(&world, "lab-nobody", "nobody");
    for _ in 0..3 {
        world.cycle();
    }
    assert_eq!(level(&world, "lab-nobody"), "");
}

#[test]
fn a_binding_without_labels_in_a_namespace_without_labels_is_deleted() {
    let mut world = site("profbare", MANY);
    profile(&world, "lab-a", "ada");
    let bound = poll(DEADLINE, || {
        world.cycle();
        may(&world, "ada", "create", "lab-a")
    });
    assert!(bound, "{:?}", world.rows("SELECT * FROM failing"));
    world.kubectl(&["label", "namespace", "lab-a", "app.kubernetes.io/part-of-"]);
    for name in ["bursar-bursar-tenant", "bursar-sa-view"] {
        world.kubectl(&["label", "rolebinding", name, "-n", "lab-a", "app.kubernetes.io/managed-by-"]);
    }
    world
        .servers
        .slapd
        .modify_ldif(&bursar_testkit::ldif::disable_ldif(&bursar_testkit::ldif::person_dn(&world.base, "ada")));
    let gone = poll(DEADLINE, || {
        world.cycle();
        world.kubectl(&["get", "rolebindings", "-n", "lab-a", "-o", "name"]).is_empty()
    });
    assert!(gone, "{:?}", world.rows("SELECT * FROM failing"));
}

#[test]
fn a_foreign_object_in_one_adopted_namespace_delays_no_certificate_and_no_other_namespace() {
    let mut world = site("profalien", MANY);
    let old = world.folder.join("stolen");
    std::fs::copy(world.kubeconfig_of("ada"), &old).expect("the kubeconfig can be copied");
    // A role binding of somebody else has the name that Bursar would use, before the namespace is adopted.
    world.kubectl(&["create", "namespace", "lab-a"]);
    let theirs =
        ["create", "rolebinding", "bursar-bursar-tenant", "--clusterrole=view", "--user=mallory", "-n", "lab-a"];
    world.kubectl(&theirs);
    world.kubectl(&["annotate", "namespace", "lab-a", "owner=ada"]);
    world.kubectl(&["label", "namespace", "lab-a", "app.kubernetes.io/part-of=kubeflow-profile"]);
    profile(&world, "lab-b", "ada");
    let failing = |world: &World| world.rows("SELECT step, reason FROM failing");
    world.cycles_until("the foreign object is reported", |world| {
        failing(world).iter().any(|row| row["step"] == "adopted namespace")
    });
    assert_eq!(ours(&world, "lab-b").len(), 3, "the other namespace is bound");

    let target =
        Target { kind: AccountKind::User, name: "ada".to_owned(), reason: Some("stolen".to_owned()), ticket: None };
    world.order(&OrderRequest::Revoke(target)).expect("the order is accepted");
    let replaced = poll(DEADLINE, || {
        world.cycle();
        may(&world, "ada", "create", "lab-b")
    });
    assert!(replaced, "{:?}", failing(&world));
    let output = world.kubectl_with(&old, &["auth", "can-i", "get", "configmaps", "-n", "lab-b"]);
    assert_ne!(String::from_utf8_lossy(&output.stdout).trim(), "yes");
    assert!(!failing(&world).is_empty(), "the foreign object is still reported");

    world.kubectl(&["delete", "rolebinding", "bursar-bursar-tenant", "-n", "lab-a"]);
    let bound = poll(DEADLINE, || {
        world.cycle();
        failing(&world).is_empty() && may(&world, "ada", "create", "lab-a")
    });
    assert!(bound, "{:?}", failing(&world));
}
