//! SSH keys from the directory are delivered to a home and removed again, in whole cycles.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bursar::daemon;
use bursar::identity::AccountKind;
use bursar::orders::request::{OrderRequest, Target};
use bursar_testkit::Servers;
use bursar_testkit::ldif::{disable_ldif, enable_ldif, person_dn, replace_ldif};
use jiff::{SignedDuration, Timestamp};

use crate::homes::ssh::key;
use crate::world::{World, all_is_well};

const CLASS: &str = r#"
[class.person]
from       = "users"
clusters   = ["test"]
roles      = []
home       = { prefix = "@HOMES@", kubeconfig = ".kube/config", create = false, ssh_keys = true }
credential = { kind = "oidc", issuer = "https://sso.example.org", client_id = "kubernetes", grant = "device-code", user = "sso:{name}", endpoints = ["internal"] }
"#;

fn in_7_hours() -> Timestamp {
    daemon::now() + SignedDuration::from_hours(7)
}

fn keys_in(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).expect("the file is readable");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn ssh_keys_are_in_the_home_while_the_person_has_access() {
    let mut world = World::new("sshkeys");
    let homes = world.folder.join("homes/home");
    let class = CLASS.replace("@HOMES@", &homes.display().to_string());
    world.configure("[class.admin]", &format!("{class}\n[class.admin]"));
    let slapd = &Servers::shared().slapd;
    for (uid, name) in [(67_901, "sshk-ann"), (67_902, "sshk-bob")] {
        world.person(name, uid);
    }
    let ann = person_dn(&world.base, "sshk-ann");
    let set = |keys: &[&str]| slapd.modify_ldif(&replace_ldif(&ann, "sshPublicKey", keys));
    let file = homes.join("sshk-ann/.ssh/authorized_keys");
    fs::create_dir(homes.join("sshk-ann/.ssh")).expect("the home is writable");
    fs::write(&file, "ssh-rsa AAAA own\n").expect("the folder is writable");
    let owned_by = |uid| {
        for path in [&homes.join("sshk-ann/.ssh"), &file] {
            std::os::unix::fs::chown(path, Some(uid), None).expect("tests run as root, who may change owners");
        }
    };
    owned_by(67_901);
    let (one, two) = (key(1), key(2));
    let bad = format!("command=\"/bin/sh\" {}", key(3));
    set(&[&one, &bad]);
    let report = world.cycle();
    all_is_well(&report);
    assert_eq!(keys_in(&file), ["ssh-rsa AAAA own", &one]);
    assert!(!homes.join("sshk-bob/.ssh").exists(), "a person without a key gets no folder");
    world.idle_cycle();
    let plan = world.plan();
    assert!(plan.text.contains("an SSH key of the directory is not delivered"), "{}", plan.text);

    // A new key in the directory reaches the home in the next cycle. The plan shows it before that.
    set(&[&one, &two]);
    let plan = world.plan();
    assert!(plan.text.contains("SSH keys changed") && plan.text.contains("2 SSH keys"), "{}", plan.text);
    all_is_well(&world.cycle());
    assert_eq!(keys_in(&file), ["ssh-rsa AAAA own", &one, &two]);
    set(&[&two]);
    all_is_well(&world.cycle());
    assert_eq!(keys_in(&file), ["ssh-rsa AAAA own", &two]);

    // Somebody changed Bursar's block. The next check repairs it.
    let text = fs::read_to_string(&file).expect("the file is readable");
    fs::write(&file, text.replace(&two, &one)).expect("the file is writable");
    world.clock = in_7_hours;
    world.stop();
    all_is_well(&world.cycle());
    assert_eq!(keys_in(&file), ["ssh-rsa AAAA own", &two]);
    assert_eq!(world.rows("SELECT account FROM history WHERE action = 'SSH keys written again'").len(), 1);

    // The keys leave with the access and return with it: after a mark in the directory, and after an order.
    slapd.modify_ldif(&disable_ldif(&ann));
    all_is_well(&world.cycle());
    assert_eq!(fs::read_to_string(&file).expect("the file is readable"), "ssh-rsa AAAA own\n");
    slapd.modify_ldif(&enable_ldif(&ann));
    all_is_well(&world.cycle());
    assert_eq!(keys_in(&file), ["ssh-rsa AAAA own", &two]);
    let reason = Some("a test".to_owned());
    let target = Target { kind: AccountKind::User, name: "sshk-ann".to_owned(), reason, ticket: None };
    all_is_well(&world.order(&OrderRequest::Suspend(target.clone())).expect("the order is accepted"));
    assert_eq!(keys_in(&file), ["ssh-rsa AAAA own"]);
    all_is_well(&world.order(&OrderRequest::Resume(target.clone())).expect("the order is accepted"));
    assert_eq!(keys_in(&file), ["ssh-rsa AAAA own", &two]);

    // There is no block if the directory has no keys, or if the configuration does not deliver keys.
    set(&[]);
    all_is_well(&world.cycle());
    assert_eq!(fs::read_to_string(&file).expect("the file is readable"), "ssh-rsa AAAA own\n");
    set(&[&one]);
    // If the delivery is not confirmed, the keys may be in the home, so a suspension removes them.
    owned_by(1);
    assert_ne!(world.cycle().exit_code(), 0);
    let recorded = |world: &World| world.rows("SELECT home FROM ssh_delivery").len();
    assert_eq!(recorded(&world), 1);
    owned_by(67_901);
    all_is_well(&world.order(&OrderRequest::Suspend(target.clone())).expect("the order is accepted"));
    assert_eq!(recorded(&world), 0);
    all_is_well(&world.order(&OrderRequest::Resume(target)).expect("the order is accepted"));
    assert_eq!(keys_in(&file), ["ssh-rsa AAAA own", &one]);
    world.configure("ssh_keys = true", "ssh_keys = false");
    all_is_well(&world.cycle());
    assert_eq!(fs::read_to_string(&file).expect("the file is readable"), "ssh-rsa AAAA own\n");
}

/// A bind mount of a folder. It is unmounted when this is dropped.
struct Mount {
    at: PathBuf,
}

impl Mount {
    fn of(folder: &Path, at: &Path) -> Self {
        let mounted = Command::new("mount").arg("--bind").args([folder, at]).status().expect("mount is installed");
        assert!(mounted.success());
        Self { at: at.to_owned() }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

#[test]
fn keys_in_a_home_that_is_not_mounted_are_reported_until_they_are_removed() {
    let mut world = World::new("sshmount");
    let (homes, exported) = (world.folder.join("homes/home"), world.folder.join("exported"));
    for folder in [&homes, &exported] {
        fs::create_dir_all(folder).expect("the folder is writable");
    }
    let mount = Mount::of(&exported, &homes);
    let class = CLASS.replace("@HOMES@", &homes.display().to_string());
    world.configure("[class.admin]", &format!("{class}\n[class.admin]"));
    world.person("sshm-ann", 67_911);
    let ann = person_dn(&world.base, "sshm-ann");
    let slapd = &Servers::shared().slapd;
    slapd.modify_ldif(&replace_ldif(&ann, "sshPublicKey", &[&key(1)]));
    all_is_well(&world.cycle());
    let file = "sshm-ann/.ssh/authorized_keys";
    assert_eq!(keys_in(&homes.join(file)), [key(1)]);

    // A stray file in an empty mount point does not prove that the homes are mounted.
    drop(mount);
    fs::write(homes.join("stray"), "").expect("the folder is writable");
    slapd.modify_ldif(&disable_ldif(&ann));
    let report = world.cycle();
    assert_ne!(report.exit_code(), 0, "{report:#?}");
    let failing = world.rows("SELECT reason FROM failing WHERE account = 'user:sshm-ann'");
    let reason = failing[0]["reason"].as_str().expect("a failure has a reason");
    assert!(reason.contains(homes.to_str().expect("the path is UTF-8")) && reason.contains("not mounted"), "{reason}");

    let _mount = Mount::of(&exported, &homes);
    assert_eq!(keys_in(&homes.join(file)), [key(1)], "the keys were still in the unmounted home");
    world.clock = in_7_hours;
    world.stop();
    all_is_well(&world.cycle());
    assert_eq!(keys_in(&homes.join(file)), Vec::<String>::new());
}
