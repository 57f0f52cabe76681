//! `bursar ensure`: who may ask for an account, that it is created on request, how long that takes, and that its
//! kubeconfig works.

use std::os::unix::process::CommandExt as _;
use std::process::Output;
use std::time::{Duration, Instant};

use bursar_testkit::Servers;
use bursar_testkit::ldif::{disable_ldif, person_dn};
use bursar_testkit::slapd::READER_DN;

use crate::daemon::Daemon;
use crate::world::{World, stderr};

/// A time after which the daemon no longer relies on its last check of a home.
const STALE: Duration = Duration::from_secs(11);

/// Returns a site with a class of people who get a namespace only on request.
fn site(name: &str) -> World {
    let homes = Servers::shared().folder().join(name).join("homes/home");
    let class = format!(
        r#"
[class.person]
from       = "users"
provision  = "on-demand"
clusters   = ["test"]
namespace  = "{name}-u-{{name}}"
home       = {{ prefix = "{}", kubeconfig = ".kube/config", create = false }}
credential = {{ kind = "certificate", lifetime = "7d", endpoints = ["internal"] }}
"#,
        homes.display()
    );
    World::with(name, &class)
}

fn ensure(world: &World, uid: u32, kind: &str, name: &str) -> Output {
    let mut command = world.command(&["ensure", kind, name, "--timeout", "60s"]);
    command.uid(uid).gid(uid).current_dir("/").output().expect("bursar is built")
}

fn ready(world: &World, uid: u32, kind: &str, name: &str) {
    let output = ensure(world, uid, kind, name);
    assert!(output.status.success(), "{kind} {name} by {uid}: {}", stderr(&output));
}

fn refused(world: &World, uid: u32, kind: &str, name: &str, exit: i32) {
    let output = ensure(world, uid, kind, name);
    assert_eq!(output.status.code(), Some(exit), "{kind} {name} by {uid}: {}", stderr(&output));
}

#[test]
fn a_person_gets_an_account_on_request() {
    const ANN: u32 = 63_201;
    const BEN: u32 = 63_202;
    let world = site("ensure");
    world.person("ens-ann", ANN);
    world.person("ens-ben", BEN);
    world.tool("foo", 63_203, &["ens-ann"]);
    let daemon = Daemon::ready(&world);
    refused(&world, BEN, "user", "ens-ann", 77);
    refused(&world, BEN, "user", "nobody", 77);
    refused(&world, 0, "user", "nobody", 4);
    ready(&world, ANN, "tool", "foo");
    refused(&world, BEN, "tool", "foo", 77);
    let made = world.rows("SELECT account FROM namespaces WHERE class = 'person'");
    assert!(made.is_empty(), "{made:?}");

    ready(&world, ANN, "user", "ens-ann");
    assert!(world.works(&world.kubeconfig_of("ens-ann")));
    let made = world.rows("SELECT account FROM namespaces WHERE class = 'person'");
    assert_eq!(made.len(), 1, "{made:?}");
    let noted = world.rows("SELECT u.at FROM last_use u JOIN users a ON a.id = u.account_id WHERE a.name = 'ens-ann'");
    assert_eq!(noted.len(), 1, "{noted:?}");

    // A person who lost the kubeconfig gets it again at the next login.
    std::fs::remove_file(world.kubeconfig_of("ens-ann")).expect("the kubeconfig exists");
    std::thread::sleep(STALE);
    ready(&world, ANN, "user", "ens-ann");
    assert!(world.works(&world.kubeconfig_of("ens-ann")));

    // This person has just been added to the directory.
    world.person("ens-cid", 63_204);
    ready(&world, 0, "user", "ens-cid");
    assert!(world.works(&world.kubeconfig_of("ens-cid")));

    Servers::shared().slapd.modify_ldif(&disable_ldif(&person_dn(&world.base, "ens-ann")));
    crate::daemon::curl(&world, "POST", "/v1/sync");
    refused(&world, ANN, "user", "ens-ann", 1);
    daemon.stop();
    refused(&world, ANN, "user", "ens-ann", 69);
}

/// How often the server refused a bind as `dn`.
fn refused_binds(world: &World, dn: &str) -> usize {
    world.servers.slapd.search(dn, "(objectClass=*)", &["pwdFailureTime"]).matches("pwdFailureTime: ").count()
}

#[test]
fn logins_do_not_repeat_a_refused_bind() {
    let mut world = World::new("lockout");
    world.stop();
    let (policy, reader) = (format!("cn=lockout,{}", world.base), format!("cn=reader,{}", world.base));
    world.add(&format!(
        "dn: {policy}\nobjectClass: organizationalRole\nobjectClass: pwdPolicy\ncn: lockout\npwdAttribute: userPassword\n\
         pwdLockout: TRUE\npwdMaxFailure: 5\n\n\
         dn: {reader}\nobjectClass: organizationalRole\nobjectClass: simpleSecurityObject\ncn: reader\n\
         userPassword: rotated\npwdPolicySubentry: {policy}\n\n"
    ));
    let config = std::fs::read_to_string(world.config()).expect("the world has a configuration");
    std::fs::write(world.config(), config.replace(READER_DN, &reader)).expect("the folder is writable");
    let daemon = Daemon::ready(&world);
    daemon.cycled(&world);
    assert_eq!(refused_binds(&world, &reader), 1);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| refused(&world, 0, "user", "nobody", 4));
        }
    });
    // The directory was read again; otherwise the logins would still wait.
    assert_eq!(refused_binds(&world, &reader), 1);
    crate::daemon::curl(&world, "POST", "/v1/sync");
    assert_eq!(refused_binds(&world, &reader), 2, "a sync tries the bind once more");
    daemon.stop();
}

#[test]
fn login_hooks_end_within_seconds() {
    const PEOPLE: u32 = 50;
    let world = site("quick");
    let people: Vec<(u32, String)> = (0..PEOPLE).map(|number| (63_300 + number, format!("qu-{number}"))).collect();
    for (uid, name) in &people {
        world.person(name, *uid);
    }
    let daemon = Daemon::ready(&world);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for some in people.chunks(5) {
            scope.spawn(|| some.iter().for_each(|(uid, name)| ready(&world, *uid, "user", name)));
        }
    });
    println!("{PEOPLE} new people, ten logins at a time: {:.1} s", began.elapsed().as_secs_f64());
    std::thread::sleep(STALE);
    let mut took: Vec<Duration> = people
        .iter()
        .map(|(uid, name)| {
            let began = Instant::now();
            ready(&world, *uid, "user", name);
            began.elapsed()
        })
        .collect();
    took.sort();
    let of = |percent: usize| took[(took.len() * percent).div_ceil(100) - 1].as_secs_f64();
    println!("{PEOPLE} known people: p50 {:.3} s, p99 {:.3} s", of(50), of(99));
    assert!(of(99) < 20.0, "{took:?}");
    daemon.stop();
}
