//! Runs an LDAP server with the sample people and a Kubernetes control plane, for a script: `site FOLDER` writes the
//! files that an administrator gets into FOLDER, prints `ready`, and runs until its input ends.

use std::io::Read as _;
use std::path::PathBuf;

use bursar_testkit::Servers;
use bursar_testkit::slapd::READER_PASSWORD;

fn main() {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("usage: site FOLDER"));
    let servers = Servers::start();
    // The kubeconfig and the URL contain the address, because the script may run where no name can be resolved.
    let by_address = |text: &str| text.replace("localhost", "127.0.0.1");
    let admin = std::fs::read_to_string(&servers.cluster.admin_kubeconfig).expect("the cluster has a kubeconfig");
    let copies = [("ldap-ca.pem", &servers.slapd.ca_pem), ("k8s-ca.pem", &servers.cluster.ca_pem)];
    let texts = [
        ("admin.kubeconfig", by_address(&admin)),
        ("k8s-url", by_address(&servers.cluster.url)),
        ("ldap-url", servers.slapd.ldaps_url.clone()),
        ("ldap-password", READER_PASSWORD.to_owned()),
    ];
    for (name, from) in copies {
        std::fs::copy(from, folder.join(name)).expect("the file can be copied");
    }
    for (name, text) in texts {
        std::fs::write(folder.join(name), text).expect("the folder is writable");
    }
    std::fs::copy(servers.cluster.kubectl_path(), folder.join("kubectl")).expect("the file can be copied");
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
