//! From a domain to a kubeconfig, and back when somebody is disabled.

use std::os::unix::fs::PermissionsExt as _;

use super::rid;
use crate::servers::Servers;
use crate::servers::samba::{SLICE, Samba, person_ldif};
use crate::world::World;

#[test]
fn a_person_of_the_domain_gets_a_namespace_and_loses_it_when_disabled() {
    let samba = Samba::shared();
    let base = samba.unit("cycle");
    let dn = format!("CN=cyc-alice,{base}");
    samba.add_ldif(&person_ldif(&base, "cyc-alice", ""));
    let uid = SLICE + rid(samba, &dn);
    let homes = Servers::shared().folder().join("adc/homes/home");
    let configuration = format!(
        r#"
[[source]]
name     = "domain"
type     = "ad"
urls     = ["{url}"]
ca       = "{ca}"
bind_dn  = "bursar@ad.example.org"
password = {{ file = "{password}" }}
[source.users]
base = "{base}"

[class.person]
from         = "users"
when         = {{ base = "{base}" }}
clusters     = ["test"]
namespace    = "adc-p-{{name}}"
home         = {{ prefix = "{homes}", kubeconfig = ".kube/config", create = false }}
quota        = {{ pods = "4" }}
credential   = {{ kind = "certificate", lifetime = "7d", endpoints = ["internal"] }}
"#,
        url = samba.ldaps_url,
        ca = samba.ca_pem.display(),
        password = samba.reader_password.display(),
        homes = homes.display(),
    );
    let mut world = World::with("adc", &configuration);
    let home = homes.join("cyc-alice");
    std::fs::create_dir_all(&home).expect("a home");
    std::os::unix::fs::chown(&home, Some(uid), Some(SLICE + 513)).expect("its owner");
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).expect("its mode");

    let report = world.cycle();
    assert_eq!(report.exit_code(), 0, "{report:#?}");
    let kubeconfig = home.join(".kube/config");
    assert!(world.kubectl_with(&kubeconfig, &["get", "pods"]).status.success());
    let rows = world.rows("SELECT name, uid, gid, source, state FROM users WHERE name = 'cyc-alice'");
    assert_eq!(rows[0]["uid"], uid);
    assert_eq!((&rows[0]["source"], &rows[0]["state"]), (&"domain".into(), &"active".into()));
    let annotation = world.kubectl(&["get", "namespace", "adc-p-cyc-alice", "-o", "yaml"]);
    assert!(annotation.contains(&format!("bursar.dev/uid: \"{uid}\"")), "{annotation}");

    samba.modify_ldif(&format!(
        "dn: {dn}\nchangetype: modify\nreplace: userAccountControl\nuserAccountControl: 546\n\n"
    ));
    world.cycle();
    assert_eq!(world.rows("SELECT state FROM users WHERE name = 'cyc-alice'")[0]["state"], "suspended");
    assert!(!world.kubectl_with(&kubeconfig, &["get", "pods"]).status.success());

    samba.modify_ldif(&format!(
        "dn: {dn}\nchangetype: modify\nreplace: userAccountControl\nuserAccountControl: 544\n\n"
    ));
    world.cycle();
    assert!(world.kubectl_with(&kubeconfig, &["get", "pods"]).status.success());
}
