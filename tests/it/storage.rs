//! Volumes of every kind on a real API server: they are created and kept, and only administrators can move them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use bursar_testkit::Servers;
use bursar_testkit::ldif::PEOPLE_GID;
use bursar_testkit::ready::{DEADLINE, wait_for};

use crate::world::{World, all_is_well};

const CLASS: &str = r#"
[class.lab]
from      = "users"
when      = { group = "lab" }
clusters  = ["test"]
namespace = "@NAME@-u-{name}"
roles     = ["bursar-tenant"]
volumes   = [
    { name = "team", kind = "shared", nfs = { server = "nfs.example.org", path = "/srv/team/{name}" }, options = ["nfsvers=4.2", "hard"], directory = "@FOLDER@/homes/volumes/{name}-team" },
    { name = "own", kind = "personal", nfs = { server = "nfs.example.org", path = "/srv/own/{name}" }, directory = "@FOLDER@/homes/volumes/{name}-own" },
    { name = "scratch", kind = "dynamic", size = "2Gi", storage_class = "@NAME@-fast" },
]
"#;

/// Returns a site with this class and one person in it, and the person's namespace.
fn world(name: &str, uid: u32) -> (World, String) {
    let folder = Servers::shared().folder().join(name);
    let class = CLASS.replace("@NAME@", name).replace("@FOLDER@", &folder.display().to_string());
    let world = World::with(name, &class);
    world.person("ada", uid);
    world.group("lab", &["ada"]);
    let namespace = format!("{name}-u-ada");
    (world, namespace)
}

fn bound(world: &World, volume: &str) {
    world.kubectl(&["wait", "pv", volume, "--for=jsonpath={.status.phase}=Bound", "--timeout=240s"]);
}

#[test]
fn every_kind_of_volume_is_created_and_then_stays_unchanged() {
    let (mut world, namespace) = world("volumes", 62_501);
    all_is_well(&world.cycle());
    let (team, own) = (format!("bursar-{namespace}.team"), format!("bursar-{namespace}.own"));
    for volume in [&team, &own] {
        bound(&world, volume);
    }
    let of = |volume: &str, path: &str| world.kubectl(&["get", "pv", volume, "-o", &format!("jsonpath={{{path}}}")]);
    assert_eq!(of(&team, ".spec.mountOptions"), r#"["nfsvers=4.2","hard"]"#);
    assert_eq!(of(&team, ".spec.claimRef.namespace"), namespace);
    assert_eq!(of(&own, ".spec.claimRef.namespace"), "bursar-storage");
    assert_eq!(of(&own, ".spec.persistentVolumeReclaimPolicy"), "Retain");
    let secret = ["get", "secret", "bursar-storage", "-n", &namespace, "-o"];
    let template = "go-template={{.data.server | base64decode}}:{{.data.path | base64decode}}";
    assert_eq!(world.kubectl(&[&secret[..], &[template]].concat()), "nfs.example.org:/srv/own/ada");
    let claim = world.kubectl(&["get", "pvc", "scratch", "-n", &namespace, "-o", "jsonpath={.spec}"]);
    assert!(claim.contains("volumes-fast") && claim.contains("2Gi") && claim.contains("ReadWriteOnce"), "{claim}");

    let directory =
        |name: &str| fs::metadata(world.folder.join("homes/volumes").join(name)).expect("homed has made the directory");
    for (name, mode) in [("ada-team", 0o2770), ("ada-own", 0o700)] {
        let found = directory(name);
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (62_501, PEOPLE_GID, mode), "{name}");
    }
    world.idle_cycle();
}

#[test]
fn a_volume_with_another_path_stays_and_the_plan_says_how_to_move_it() {
    let (mut world, namespace) = world("moving", 62_511);
    all_is_well(&world.cycle());
    let volume = format!("bursar-{namespace}.team");
    bound(&world, &volume);
    let path = ["get", "pv", &volume, "-o", "jsonpath={.spec.nfs.path}"];

    world.configure("/srv/team/{name}", "/new/team/{name}");
    let plan = world.plan();
    assert_eq!(plan.exit_code, 0, "{}", plan.text);
    for part in ["nfs.example.org:/srv/team/ada", "nfs.example.org:/new/team/ada", "kubectl delete pv"] {
        assert!(plan.text.contains(part), "{}", plan.text);
    }
    world.idle_cycle();
    assert_eq!(world.kubectl(&path), "/srv/team/ada");

    // Follow the plan: delete both, so that the daemon creates both again.
    world.kubectl(&["delete", "pvc", "team", "-n", &namespace]);
    world.kubectl(&["delete", "pv", &volume]);
    wait_for("the claim and the volume exist again", DEADLINE, || {
        let report = world.cycle();
        assert!(report.failing.is_empty(), "{report:#?}");
        let claim = world.kubectl(&["get", "pvc", "team", "-n", &namespace, "--ignore-not-found"]);
        let volumes = world.kubectl(&["get", "pv", "-o", "name"]);
        (!claim.is_empty() && volumes.contains(&volume)).then_some(())
    });
    bound(&world, &volume);
    assert_eq!(world.kubectl(&path), "/new/team/ada");
}

#[test]
fn a_claim_can_grow_but_is_never_shrunk_or_deleted() {
    let (mut world, namespace) = world("growing", 62_521);
    world.servers.cluster.run(
        &["create", "-f", "-"],
        r#"{"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "growing-fast"},
             "provisioner": "example.org/none", "allowVolumeExpansion": true},
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "growing-disk"},
             "spec": {"capacity": {"storage": "9Gi"}, "accessModes": ["ReadWriteOnce"],
                      "storageClassName": "growing-fast", "nfs": {"server": "nfs", "path": "/disk"}}}]}"#,
    );
    all_is_well(&world.cycle());
    bound(&world, "growing-disk");
    let asked = ["get", "pvc", "scratch", "-n", &namespace, "-o", "jsonpath={.spec.resources.requests.storage}"];

    world.configure("size = \"2Gi\"", "size = \"3Gi\"");
    all_is_well(&world.cycle());
    assert_eq!(world.kubectl(&asked), "3Gi");

    world.configure("size = \"3Gi\"", "size = \"1Gi\"");
    let plan = world.plan();
    assert!(plan.text.contains("keeps its size of 3Gi") && plan.exit_code == 0, "{}", plan.text);
    world.idle_cycle();
    assert_eq!(world.kubectl(&asked), "3Gi");

    world.configure(r#"    { name = "scratch", kind = "dynamic", size = "1Gi", storage_class = "growing-fast" },"#, "");
    world.configure(r#"    { name = "own", kind = "personal""#, r#"    { name = "own", kind = "static""#);
    let plan = world.plan();
    assert!(plan.text.contains("claim scratch") && plan.text.contains("is kept, although"), "{}", plan.text);
    assert!(plan.text.contains(&format!("belongs to claim bursar-storage/{namespace}.own")), "{}", plan.text);
    world.cycle();
    assert_eq!(world.kubectl(&asked), "3Gi");
    let personal = world.kubectl(&["get", "pvc", "-n", "bursar-storage", "-o", "name"]);
    assert!(personal.contains(&format!("{namespace}.own")), "{personal}");
}

#[test]
fn a_personal_claim_is_out_of_reach_of_tenants_and_is_kept() {
    let (mut world, namespace) = world("owncls", 62_541);
    let own = r#"    { name = "own", kind = "personal", size = "2Gi", storage_class = "owncls-nfs", access = "ReadWriteMany" },"#;
    let written = fs::read_to_string(world.folder.join("bursar.toml")).expect("the world has a configuration");
    let line = written
        .lines()
        .find(|line| line.contains(r#"name = "own""#))
        .expect("the class has a personal volume")
        .to_owned();
    world.configure(&line, own);
    all_is_well(&world.cycle());
    let name = format!("{namespace}.own");
    let claim = ["get", "pvc", &name, "-n", "bursar-storage", "-o", "jsonpath={.metadata.uid} {.spec}"];
    let made = world.kubectl(&claim);
    assert!(made.contains("owncls-nfs") && made.contains("2Gi") && made.contains("ReadWriteMany"), "{made}");
    let template = "go-template={{.data.namespace | base64decode}}/{{.data.claim | base64decode}}";
    let secret = world.kubectl(&["get", "secret", "bursar-storage", "-n", &namespace, "-o", template]);
    assert_eq!(secret, format!("bursar-storage/{name}"));
    world.idle_cycle();

    world.configure(own, "");
    let plan = world.plan();
    assert!(plan.text.contains(&format!("claim {name} in namespace bursar-storage")), "{}", plan.text);
    world.cycle();
    assert_eq!(world.kubectl(&claim), made);
}

#[test]
fn a_directory_of_another_account_fails_its_tenant_and_no_volume_is_created() {
    let (mut world, namespace) = world("squat", 62_531);
    fs::create_dir(world.folder.join("homes/volumes/ada-team")).expect("the folder is writable");
    let report = world.cycle();
    let reason = report.failing.first().map(|failing| failing.reason.clone()).unwrap_or_default();
    assert!(reason.contains("belongs to uid 0") && reason.contains("chown"), "{report:#?}");
    let volumes = world.kubectl(&["get", "pv", "-o", "name"]);
    assert!(!volumes.contains(&format!("bursar-{namespace}.team")), "{volumes}");
}
