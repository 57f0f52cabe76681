//! The labels of what homed makes, with SELinux in the kernel of a virtual machine. `tests/nfs.sh` loads a policy
//! there, and sets `$BURSAR_TEST_SELINUX` to a folder with the label of `/home`, and `$BURSAR_TEST_DOMAIN` to the
//! domain in which systemd starts a service by that policy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bursar_protocol::{HomeTarget, Work};

use super::ssh::key;
use super::{Homed, UID, command, entries, folder, names_in, parses, write};

fn label(path: &Path) -> String {
    let mut label = [0; 256];
    let length = rustix::fs::lgetxattr(path, "security.selinux", &mut label[..]).expect("SELinux labels every file");
    let label = String::from_utf8_lossy(&label[..length]).trim_end_matches('\0').to_owned();
    label.split(':').nth(2).expect("a label has a type").to_owned()
}

#[tokio::test]
#[ignore = "needs SELinux: tests/nfs.sh"]
async fn homes_and_what_is_in_them_have_the_labels_that_sshd_needs() {
    let setting = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("tests/nfs.sh sets {name}"));
    let (prefix, domain) = (PathBuf::from(setting("BURSAR_TEST_SELINUX")), setting("BURSAR_TEST_DOMAIN"));
    let folder = folder();
    let inner = command(folder.path(), &["--ssh-keys", "--create-prefix", prefix.to_str().expect("the path is UTF-8")]);
    // As systemd does: the domain is set for the next program.
    let child = Command::new("sh")
        .args(["-c", "echo -n $0 >/proc/self/attr/exec && exec \"$@\"", &format!("system_u:system_r:{domain}:s0")])
        .arg(inner.get_program())
        .args(inner.get_args())
        .spawn()
        .expect("sh is installed");
    let homed = Homed::waited_for(folder, child);
    let current = fs::read_to_string(format!("/proc/{}/attr/current", homed.child.id())).expect("homed runs");
    assert!(current.contains(&domain), "homed runs as {current}");
    fs::write("/sys/fs/selinux/enforce", "1").expect("the policy may be enforced");
    let target = HomeTarget::new(prefix.join("ann"), UID, UID);
    let asked = [
        Work::EnsureHome { create: true, skeleton: false },
        write(entries("1")),
        write(entries("2")),
        Work::SshKeys { keys: vec![key(1)] },
    ];
    let mut answers = Vec::new();
    for work in asked {
        answers.push(homed.ask(&target, work).await);
    }
    let volume = HomeTarget::new(prefix.join("volume"), UID, UID);
    answers.push(homed.ask(&volume, Work::MakeDirectory { shared: false }).await);
    fs::write("/sys/fs/selinux/enforce", "0").expect("the policy may be set aside");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(parses(&target.home.join(".kube/config")), "{:?}", names_in(&target.home));
    assert_eq!(label(&target.home), "user_home_dir_t");
    assert_eq!(label(&volume.home), label(&prefix), "the directory of a volume is no home");
    let labels = [".kube", ".kube/config", ".ssh", ".ssh/authorized_keys"].map(|name| label(&target.home.join(name)));
    println!("labels by the policy of {domain}: {labels:?}");
    if domain == "unconfined_service_t" {
        assert_eq!(labels, ["user_home_t", "user_home_t", "ssh_home_t", "ssh_home_t"]);
    }
}
