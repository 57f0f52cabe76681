//! SSH keys from the directory to a home, and out of it again: a whole cycle.

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

fn says(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).expect("a file");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn keys_of_the_directory_are_in_the_home_while_their_person_has_access() {
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
    fs::create_dir(homes.join("sshk-ann/.ssh")).expect("a folder");
    fs::write(&file, "ssh-rsa AAAA own\n").expect("a file");
    for path in [&homes.join("sshk-ann/.ssh"), &file] {
        std::os::unix::fs::chown(path, Some(67_901), None).expect("owner");
    }
    let (one, two) = (key(1), key(2));
    let bad = format!("command=\"/bin/sh\" {}", key(3));
    set(&[&one, &bad]);
    let report = world.cycle();
    all_is_well(&report);
    assert_eq!(says(&file), ["ssh-rsa AAAA own", &one]);
    assert!(!homes.join("sshk-bob/.ssh").exists(), "who has no key gets no folder");
    let report = world.cycle();
    assert_eq!((report.exit_code(), report.actions), (0, 0), "{report:#?}");
    let plan = world.plan();
    assert!(plan.text.contains("an SSH key of the directory is not delivered"), "{}", plan.text);

    // Another key in the directory, in the home with the next cycle; the plan says so before.
    set(&[&one, &two]);
    let plan = world.plan();
    assert!(plan.text.contains("SSH keys changed") && plan.text.contains("2 SSH keys"), "{}", plan.text);
    all_is_well(&world.cycle());
    assert_eq!(says(&file), ["ssh-rsa AAAA own", &one, &two]);
    set(&[&two]);
    all_is_well(&world.cycle());
    assert_eq!(says(&file), ["ssh-rsa AAAA own", &two]);

    // Somebody changed our block; the next look puts it right.
    let text = fs::read_to_string(&file).expect("a file");
    fs::write(&file, text.replace(&two, &one)).expect("written");
    world.clock = in_7_hours;
    world.stop();
    all_is_well(&world.cycle());
    assert_eq!(says(&file), ["ssh-rsa AAAA own", &two]);
    assert_eq!(world.rows("SELECT account FROM history WHERE action = 'SSH keys written again'").len(), 1);

    // Out with the access, back with it: by a mark in the directory, and by an order.
    slapd.modify_ldif(&disable_ldif(&ann));
    all_is_well(&world.cycle());
    assert_eq!(fs::read_to_string(&file).expect("a file"), "ssh-rsa AAAA own\n");
    slapd.modify_ldif(&enable_ldif(&ann));
    all_is_well(&world.cycle());
    assert_eq!(says(&file), ["ssh-rsa AAAA own", &two]);
    let reason = Some("a test".to_owned());
    let target = Target { kind: AccountKind::User, name: "sshk-ann".to_owned(), reason, ticket: None };
    all_is_well(&world.order(&OrderRequest::Suspend(target.clone())).expect("suspended"));
    assert_eq!(says(&file), ["ssh-rsa AAAA own"]);
    all_is_well(&world.order(&OrderRequest::Resume(target)).expect("resumed"));
    assert_eq!(says(&file), ["ssh-rsa AAAA own", &two]);

    // Without any in the directory, and without the key in the configuration, there is no block.
    set(&[]);
    all_is_well(&world.cycle());
    assert_eq!(fs::read_to_string(&file).expect("a file"), "ssh-rsa AAAA own\n");
    set(&[&one]);
    all_is_well(&world.cycle());
    world.configure("ssh_keys = true", "ssh_keys = false");
    all_is_well(&world.cycle());
    assert_eq!(fs::read_to_string(&file).expect("a file"), "ssh-rsa AAAA own\n");
}

/// A folder that is mounted at another.
struct Mount {
    at: PathBuf,
}

impl Mount {
    fn of(folder: &Path, at: &Path) -> Self {
        let mounted = Command::new("mount").arg("--bind").args([folder, at]).status().expect("mount");
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
fn keys_in_a_home_that_is_not_mounted_stay_an_open_finding_until_they_are_gone() {
    let mut world = World::new("sshmount");
    let (homes, exported) = (world.folder.join("homes/home"), world.folder.join("exported"));
    for folder in [&homes, &exported] {
        fs::create_dir_all(folder).expect("a folder");
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
    assert_eq!(says(&homes.join(file)), [key(1)]);

    // What somebody left in a mount point proves nothing of the homes.
    drop(mount);
    fs::write(homes.join("stray"), "").expect("a file");
    slapd.modify_ldif(&disable_ldif(&ann));
    let report = world.cycle();
    assert_ne!(report.exit_code(), 0, "{report:#?}");
    let failing = world.rows("SELECT reason FROM failing WHERE account = 'user:sshm-ann'");
    let reason = failing[0]["reason"].as_str().expect("a reason");
    assert!(reason.contains(homes.to_str().expect("UTF-8")) && reason.contains("not mounted"), "{reason}");

    let _mount = Mount::of(&exported, &homes);
    assert_eq!(says(&homes.join(file)), [key(1)], "they were away");
    world.clock = in_7_hours;
    world.stop();
    all_is_well(&world.cycle());
    assert_eq!(says(&homes.join(file)), Vec::<String>::new());
}
