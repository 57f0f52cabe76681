//! 1,000 deliveries while both programs are killed again and again: no half file, no stray one, and all delivered.

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
/// Kills of each of the two programs.
const KILLS: usize = 8;

/// Logins need no signer, so that homes are all that is waited for.
const CLASS: &str = r#"
[class.person]
from       = "users"
clusters   = ["test"]
roles      = []
home       = { prefix = "@HOMES@", kubeconfig = ".kube/config", create = false }
credential = { kind = "oidc", issuer = "https://sso.example.org", client_id = "kubernetes", grant = "device-code", user = "sso:{name}", endpoints = ["internal"] }
"#;

/// The delivering process is killed when this many more files are there: another number each time.
fn some() -> usize {
    usize::from(uuid::Uuid::new_v4().as_bytes()[0]) % 30 + 1
}

fn delivered(homes: &[PathBuf]) -> usize {
    homes.iter().filter(|home| home.join(".kube/config").exists()).count()
}

/// It is whole, the owner's, and nobody else's to read.
fn check(config: &Path, uid: u32) {
    let kubeconfig = Kubeconfig::read_from(config).unwrap_or_else(|error| panic!("{}: {error}", config.display()));
    let user = kubeconfig.auth_infos.first().and_then(|user| user.auth_info.as_ref());
    assert!(user.is_some_and(|user| user.exec.is_some()), "{}", config.display());
    let found = fs::metadata(config).expect("there");
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
            let enough = (delivered(&homes) + some()).min(homes.len());
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
    assert!(delivered(&homes) < homes.len(), "nothing was left to be killed in the middle of");
    drop(daemon);

    wait_for("all of it delivered, also what failed meanwhile and waits", DEADLINE, || {
        let report = world.cycle();
        (report.exit_code() == 0 && report.actions == 0).then_some(())
    });
    for home in &homes {
        let names =
            fs::read_dir(home.join(".kube")).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["config"], "{}", home.display());
    }
    check_all();
}
