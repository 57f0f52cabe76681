//! Follows docs/migration/crownlabs.md in a cluster that has the kinds, owners and finalizers of `CrownLabs`' tenant
//! operator. The cluster runs Kubernetes' garbage collector.

use std::fs;
use std::path::PathBuf;

use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ldif::{person_dn, replace_ldif};
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};

use super::{Client, Page, amounts, binding, certificate, deploy, identity, kubeconfig, make, role};
use crate::daemon::Daemon;
use crate::quiet::own_servers;
use crate::world::World;

const PAGE: &str = include_str!("../../../docs/migration/crownlabs.md");
const GROUP: &str = "crownlabs.polito.it";

/// Returns the definition of one of the operator's kinds, as far as the test needs it.
fn definition(kind: &str, version: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": any}}],
        },
    })
}

/// Creates an owner, and returns the owner references to it.
fn owner(world: &World, kind: &str, version: &str, name: &str, spec: &Value) -> Value {
    let api_version = format!("{GROUP}/{version}");
    let finalizers = [format!("{GROUP}/tenant-operator")];
    make(
        world,
        &[json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"name": name, "finalizers": finalizers}, "spec": spec,
        })],
    );
    let plural = format!("{}s.{GROUP}", kind.to_lowercase());
    let uid = world.kubectl(&["get", &plural, name, "-o", "jsonpath={.metadata.uid}"]);
    json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true,
            "blockOwnerDeletion": true}])
}

fn owned(mut object: Value, owner: &Value) -> Value {
    object["metadata"]["ownerReferences"] = owner.clone();
    object
}

fn namespace(name: &str, kind: &str) -> Value {
    let labels = json!({"crownlabs.polito.it/type": kind, "crownlabs.polito.it/managed-by": kind});
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// Creates a Tenant, and the objects that the operator makes for it.
fn tenant(world: &World, name: &str, role: &str, cpus: &str) {
    let spec = json!({"email": format!("{name}@example.org"), "workspaces": [{"name": "algebra", "role": role}]});
    let owner = owner(world, "Tenant", "v1alpha2", name, &spec);
    let plain = name.replace('.', "-");
    let place = format!("tenant-{plain}");
    let hard = json!({
        "limits.cpu": cpus, "limits.memory": "8Gi", "requests.cpu": cpus, "requests.memory": "8Gi",
        "count/instances.crownlabs.polito.it": "3",
    });
    let named = |kind: &str, api: &str, name: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": place}});
    let mut quota = named("ResourceQuota", "v1", "crownlabs-resource-quota");
    quota["spec"] = json!({"hard": hard});
    let mut policy = named("NetworkPolicy", "networking.k8s.io/v1", "crownlabs-deny-ingress-traffic");
    policy["spec"] = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
    let mut drive = named("Secret", "v1", "mydrive-info");
    drive["stringData"] = json!({"server-name": "nfs.example.org", "path": format!("/{plain}")});
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": format!("{plain}-drive"), "namespace": "mydrive-pvcs"},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "nfs", "resources": {"requests": {"storage": "1Gi"}}},
    });
    let bound = binding(&place, "crownlabs-manage-instances", "crownlabs-manage-instances", ("User", name));
    for object in [namespace(&place, "tenant"), quota, policy, drive, claim, bound] {
        make(world, &[owned(object, &owner)]);
    }
}

fn crownlabs(world: &World) {
    let read = ["get", "list", "watch"];
    make(
        world,
        &[
            definition("Tenant", "v1alpha2"),
            definition("Workspace", "v1alpha1"),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "crownlabs"}}),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mydrive-pvcs"}}),
            role("crownlabs-manage-instances", &["pods", "configmaps"], &["get", "list", "watch", "create", "delete"]),
            role("crownlabs-view-templates", &["configmaps"], &read),
            role("crownlabs-manage-templates", &["configmaps"], &["create", "update", "delete"]),
        ],
    );
    world.kubectl(&["create", "deployment", "crownlabs-tenant", "--image=x", "-n", "crownlabs"]);
    for kind in ["tenants", "workspaces"] {
        world.kubectl(&["wait", "--for=condition=Established", "--timeout=240s", &format!("crd/{kind}.{GROUP}")]);
    }
    let workspace = owner(world, "Workspace", "v1alpha1", "algebra", &json!({"prettyName": "Algebra"}));
    let place = "workspace-algebra";
    let group = |role: &str| format!("kubernetes:workspace-algebra:{role}");
    let view = binding(place, "crownlabs-view-templates", "crownlabs-view-templates", ("Group", &group("user")));
    let manage =
        binding(place, "crownlabs-manage-templates", "crownlabs-manage-templates", ("Group", &group("manager")));
    for object in [namespace(place, "workspace"), view, manage] {
        make(world, &[owned(object, &workspace)]);
    }
    deploy(world, place);
    for (name, uid, role, cpus) in [("john.doe", 61_201, "user", "6"), ("jane", 61_202, "manager", "4")] {
        tenant(world, name, role, cpus);
        world.person(name, uid);
    }
    // A person who never logged in has no namespace.
    owner(world, "Tenant", "v1alpha2", "ivy", &json!({"workspaces": []}));
    world.person("ivy", 61_203);
    world.group("algebra", &["john.doe", "jane"]);
    let dn = format!("cn=algebra,ou=groups,{}", world.base);
    world.servers.slapd.modify_ldif(&replace_ldif(&dn, "owner", &[&person_dn(&world.base, "jane")]));
}

/// Returns a kubeconfig for the user and group that a Keycloak token would contain. The test uses a client certificate
/// instead of Keycloak.
fn login(world: &World, name: &str, role: &str) -> PathBuf {
    let identity = certificate(world, name, &format!("kubernetes:workspace-algebra:{role}"));
    let certificate = world.folder.join(format!("{name}.crt"));
    let key = world.folder.join(format!("{name}.key"));
    fs::write(&certificate, identity.certificate).expect("the folder is writable");
    fs::write(&key, identity.key).expect("the folder is writable");
    let user = json!({"client-certificate": certificate, "client-key": key});
    let file = world.folder.join(format!("{name}.kubeconfig"));
    fs::write(&file, kubeconfig(world, "crownlabs", "default", (name, user)).to_string())
        .expect("the folder is writable");
    file
}

#[test]
fn namespaces_outlive_the_tenants_that_owned_them_and_logins_keep_working() {
    let servers = own_servers(&ControlPlaneOptions::default());
    let words = [("--cluster prod", "--cluster test"), ("[\"prod\"]", "[\"test\"]"), ("ou=workspaces", "ou=groups")];
    let (world, mut page) = Page::open(&servers, "crown", PAGE, &words);
    crownlabs(&world);
    let personal = ["tenant-john-doe", "tenant-jane"];
    for namespace in personal {
        deploy(&world, namespace);
    }
    let (john, jane) = (login(&world, "john.doe", "user"), login(&world, "jane", "manager"));
    wait_for("the old bindings work", DEADLINE, || {
        world.kubectl_with(&john, &["get", "pods", "-n", personal[0]]).status.success().then_some(())
    });
    let quotas = personal.map(|namespace| amounts(&world, namespace, "crownlabs-resource-quota"));
    let namespaces = ["tenant-john-doe", "tenant-jane", "workspace-algebra"];
    let before = namespaces.map(|namespace| identity(&world, namespace));
    let create = ["create", "configmap", "x", "-n", "workspace-algebra", "--dry-run=server"].as_slice();
    let clients = [
        Client::start(&world, &john, &["get", "pods", "-n", "tenant-john-doe"]),
        Client::start(&world, &john, &["get", "configmaps", "-n", "workspace-algebra"]),
        Client::start(&world, &jane, create),
    ];

    page.done(&world);
    page.done(&world);
    page.done(&world);
    page.done(&world);
    let daemon = Daemon::ready(&world);
    page.ends(&world, 1);
    assert_eq!(page.done(&world), "", "the directory and the Tenants have the same workspaces");
    let said = page.done(&world);
    assert!(said.contains("user:john.doe") && said.contains("user:jane"), "{said}");
    page.done(&world);
    assert_eq!(personal.map(|namespace| amounts(&world, namespace, "bursar")), quotas);
    page.done(&world);
    page.done(&world);
    wait_for("the objects that Tenants still owned are deleted", DEADLINE, || {
        let left = world.kubectl(&["get", "networkpolicies", "-A", "-o", "name"]);
        (!left.contains("crownlabs-deny")).then_some(())
    });
    page.done(&world);
    page.ended();
    clients.into_iter().for_each(Client::end);
    assert_eq!(namespaces.map(|namespace| identity(&world, namespace)), before);
    let drives = world.kubectl(&["get", "pvc", "-n", "mydrive-pvcs", "-o", "name"]);
    assert_eq!(drives.lines().count(), 2, "{drives}");
    world.kubectl(&["get", "secret", "mydrive-info", "-n", "tenant-john-doe"]);
    let places = world.rows("SELECT account, namespace FROM namespaces ORDER BY namespace");
    let places: Vec<_> = places.iter().map(|row| (row["account"].as_str(), row["namespace"].as_str())).collect();
    let expected = [("user:jane", namespaces[1]), ("user:john.doe", namespaces[0]), ("group:algebra", namespaces[2])];
    assert_eq!(places, expected.map(|(account, namespace)| (Some(account), Some(namespace))));
    assert_eq!(world.rows("SELECT * FROM failing").len(), 0);
    daemon.stop();
}
