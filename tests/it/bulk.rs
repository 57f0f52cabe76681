//! 1,000 deliveries while both programs are killed repeatedly: no partial or stray files, and every file is delivered.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use bursar_testkit::ldif::{PEOPLE_GID, person_ldif};
use bursar_testkit::ready::{DEADLINE, wait_for};
use kube::config::Kubeconfig;

use crate::daemon::Daemon;
use crate::world::World;

const PEOPLE: u32 = 1_000;
const FIRST_UID: u32 = 67_000;
/// How often each of the two programs is killed.
const KILLS: usize = 8;

/// Logins need no certificate, so the test waits only for homes.
const CLASS: &str = r#"
[class.person]
from       = "users"
clusters   = ["test"]
roles      = []
home       = { prefix = "@HOMES@", kubeconfig = ".kube/config", create = false }
credential = { kind = "oidc", issuer = "https://sso.example.org", client_id = "kubernetes", grant = "device-code", user = "sso:{name}", endpoints = ["internal"] }
"#;

/// Returns after how many more files the program is killed. The number is random.
fn random_count() -> usize {
    usize::from(uuid::Uuid::new_v4().as_bytes()[0]) % 30 + 1
}

fn delivered(homes: &[PathBuf]) -> usize {
    homes.iter().filter(|home| home.join(".kube/config").exists()).count()
}

/// Checks that the kubeconfig is complete, belongs to this uid and is readable for nobody else.
fn check(config: &Path, uid: u32) {
    let kubeconfig = Kubeconfig::read_from(config).unwrap_or_else(|error| panic!("{}: {error}", config.display()));
    let user = kubeconfig.auth_infos.first().and_then(|user| user.auth_info.as_ref());
    assert!(user.is_some_and(|user| user.exec.is_some()), "{}", config.display());
    let found = fs::metadata(config).expect("the kubeconfig exists");
    assert_eq!((found.uid(), found.permissions().mode() & 0o777), (uid, 0o600), "{}", config.display());
}

#[test]
fn a_thousand_deliveries_survive_kills_of_both_programs() {
    let mut world = World::new("thousand");
    let folder = world.folder.join("homes/home");
    let class = CLASS.replace("@HOMES@", &folder.display().to_string());
    world.configure("[class.admin]", &format!("{class}\n[class.admin]"));
    let name = |number: u32| format!("bulk-{number:04}");
    let mut records = String::new();
    for number in 0..PEOPLE {
        world.make_home("home", &name(number), FIRST_UID + number, PEOPLE_GID);
        records += &person_ldif(&world.base, &name(number), FIRST_UID + number);
    }
    world.add(&records);
    let homes: Vec<PathBuf> = (0..PEOPLE).map(|number| folder.join(name(number))).collect();

    let check_all = || {
        for (number, home) in (0..).zip(&homes).filter(|(_, home)| home.join(".kube/config").exists()) {
            check(&home.join(".kube/config"), FIRST_UID + number);
        }
    };
    let mut daemon = Daemon::start(&world);
    for _ in 0..KILLS {
        for kills_homed in [true, false] {
            let enough = (delivered(&homes) + random_count()).min(homes.len());
            wait_for("deliveries", DEADLINE, || (delivered(&homes) >= enough).then_some(()));
            if kills_homed {
                world.restart_homed(&[]);
            } else {
                daemon.process.kill();
                check_all();
                daemon = Daemon::start(&world);
            }
        }
    }
    assert!(delivered(&homes) < homes.len(), "the last kill came after all deliveries");
    drop(daemon);

    wait_for("all files are delivered, also those that had failed", DEADLINE, || {
        let report = world.cycle();
        (report.exit_code() == 0 && report.actions == 0).then_some(())
    });
    for home in &homes {
        let names = fs::read_dir(home.join(".kube"))
            .expect("the folder exists")
            .map(|entry| entry.expect("the folder is readable").file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["config"], "{}", home.display());
    }
    check_all();
}
