//! Follows the pages of `docs/migration` with a shell, block by block, in a cluster like that of each former system,
//! while clients work with the old credentials. The commands and the configuration exist only in the pages, so page and
//! test cannot disagree.

mod crownlabs;
mod maintain_kubeusers;
mod open_ondemand;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bursar_testkit::Servers;
use bursar_testkit::pki::Identity;
use bursar_testkit::ready::{DEADLINE, wait_for};
use serde_json::{Value, json};

use crate::runbooks::follow;
use crate::world::World;

/// A page, read from its beginning to its end.
pub struct Page {
    blocks: std::vec::IntoIter<&'static str>,
    /// Words of the page, and their values in the test.
    words: Vec<(&'static str, String)>,
}

impl Page {
    /// Makes a site with the classes of the page's `toml` block, and opens the page. `words` maps words of the page to
    /// their values in the test, except folders.
    pub fn open(
        servers: &Arc<Servers>,
        name: &str,
        text: &'static str,
        words: &[(&'static str, &str)],
    ) -> (World, Self) {
        let world = World::bare(Arc::clone(servers), name, "");
        let homes = world.folder.join("homes");
        let place = |path: PathBuf| path.display().to_string();
        let mut all = vec![
            ("~/.kube/config", place(servers.cluster.admin_kubeconfig.clone())),
            ("/root/migration", place(world.folder.join("migration"))),
            ("\"/home\"", format!("\"{}\"", place(homes.join("home")))),
            ("/home/", place(homes.join("home/"))),
            ("/data/project", place(homes.join("data/project"))),
            ("dc=example,dc=org", world.base.clone()),
        ];
        all.extend(words.iter().map(|(there, here)| (*there, (*here).to_owned())));
        let page = Self { blocks: blocks(text, "sh").into_iter(), words: all };
        let [classes] = blocks(text, "toml")[..] else { panic!("the page has one configuration") };
        let config = fs::read_to_string(world.config()).expect("the world has a configuration");
        let (head, _) = config.split_once("[class.tool]").expect("the text has this part");
        fs::write(world.config(), head.to_owned() + &page.here(classes)).expect("the folder is writable");
        (world, page)
    }

    fn here(&self, text: &str) -> String {
        self.words.iter().fold(text.to_owned(), |text, (there, here)| text.replace(there, here))
    }

    /// Runs the next block, which must end with this code. Returns its output.
    #[track_caller]
    pub fn ends(&mut self, world: &World, code: i32) -> String {
        let block = self.blocks.next().expect("the text has this part");
        let block = self.here(block);
        let (ended, said) = follow(world, &block);
        assert_eq!(ended, Some(code), "{block}\n{said}");
        said
    }

    /// Runs the next block, which must succeed.
    #[track_caller]
    pub fn done(&mut self, world: &World) -> String {
        self.ends(world, 0)
    }

    /// Checks that every block was run.
    #[track_caller]
    pub fn ended(mut self) {
        assert_eq!(self.blocks.next(), None);
    }
}

fn blocks(page: &'static str, language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let mut rest = page;
    let mut found = Vec::new();
    while let Some((_, after)) = rest.split_once(fence.as_str()) {
        let (block, after) = after.split_once("```").expect("the text has this part");
        found.push(block);
        rest = after;
    }
    found
}

/// The pause of a [`Client`] between two runs, so that several clients leave enough of the machine to Bursar.
const PAUSE: Duration = Duration::from_millis(500);

/// A client that works all the time with the current content of a kubeconfig.
pub struct Client {
    over: Arc<AtomicBool>,
    done: Arc<AtomicU32>,
    work: JoinHandle<Vec<String>>,
    what: String,
}

impl Client {
    pub fn start(world: &World, kubeconfig: &Path, arguments: &'static [&'static str]) -> Self {
        let (servers, kubeconfig, over) =
            (world.servers.clone(), kubeconfig.to_owned(), Arc::new(AtomicBool::new(false)));
        let what = format!("{} {arguments:?}", kubeconfig.display());
        let done = Arc::new(AtomicU32::new(0));
        let (told, count) = (Arc::clone(&over), Arc::clone(&done));
        let work = std::thread::spawn(move || {
            let mut failures = Vec::new();
            while !told.load(Ordering::Relaxed) {
                let output =
                    servers.cluster.kubectl_as(&kubeconfig).args(arguments).output().expect("kubectl is installed");
                if !output.status.success() {
                    failures.push(crate::world::stderr(&output));
                }
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
            failures
        });
        Self { over, done, work, what }
    }

    /// Stops the client, and checks that no run failed, including one that began after this call. The number of runs
    /// depends on how busy the machine is.
    #[track_caller]
    pub fn end(self) {
        let until_now = self.done.load(Ordering::Relaxed);
        wait_for("two more runs are over", DEADLINE, || {
            (self.done.load(Ordering::Relaxed) >= until_now + 2).then_some(())
        });
        self.over.store(true, Ordering::Relaxed);
        let failures = self.work.join().expect("the thread does not panic");
        let runs = self.done.load(Ordering::Relaxed);
        println!("{}: {runs} runs", self.what);
        assert!(failures.is_empty(), "{}: {} of {runs}: {failures:#?}", self.what, failures.len());
    }
}

/// Returns a certificate that the cluster's signer issued, as the former system requested it.
pub fn certificate(world: &World, user: &str, group: &str) -> Identity {
    let cluster = &world.servers.cluster;
    let key = rcgen::KeyPair::generate().expect("a key can be generated");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, user);
    params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
    let request = params.serialize_request(&key).and_then(|request| request.pem()).expect("the request is valid");
    let name = format!("former-{user}");
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {
            "request": BASE64.encode(request), "usages": ["client auth"],
            "signerName": "kubernetes.io/kube-apiserver-client", "expirationSeconds": 31_536_000,
        },
    });
    cluster.run(&["create", "-f", "-"], &object.to_string());
    cluster.run(&["certificate", "approve", &name], "");
    let certificate = wait_for("the certificate is issued", DEADLINE, || {
        let certificate = cluster.run(&["get", "csr", &name, "-o", "jsonpath={.status.certificate}"], "");
        Some(certificate).filter(|certificate| !certificate.is_empty())
    });
    cluster.run(&["delete", "csr", &name], "");
    let certificate = BASE64.decode(certificate).expect("the value is base64");
    Identity { certificate: String::from_utf8(certificate).expect("PEM is UTF-8"), key: key.serialize_pem() }
}

/// Returns a kubeconfig as the former system wrote it: one cluster, one context with the same name, and one user.
pub fn kubeconfig(world: &World, context: &str, namespace: &str, (name, user): (&str, Value)) -> Value {
    let ca = fs::read(&world.servers.cluster.ca_pem).expect("the file is readable");
    let cluster = json!({"server": world.servers.cluster.url, "certificate-authority-data": BASE64.encode(ca)});
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": context,
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": name, "namespace": namespace}}],
    })
}

/// Writes a file in a home, with the home's owner.
pub fn file_at_home(home: &Path, file: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::MetadataExt as _;
    let (path, owner) = (home.join(file), fs::metadata(home).expect("the path exists"));
    let folder = path.parent().expect("the path has a parent");
    fs::create_dir_all(folder).expect("the parent folder is writable");
    fs::write(&path, text).expect("the folder is writable");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("tests run as root, who may change modes");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("tests run as root, who may change modes");
    for path in [folder, &path] {
        chown(path, Some(owner.uid()), Some(owner.gid())).expect("tests run as root, who may change owners");
    }
    path
}

/// Returns the user name that the API server has for a kubeconfig.
pub fn who(world: &World, kubeconfig: &Path, context: &[&str]) -> String {
    let mut arguments = vec!["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
    arguments.extend_from_slice(context);
    let output = world.kubectl_with(kubeconfig, &arguments);
    assert!(output.status.success(), "{}", crate::world::stderr(&output));
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// Creates a Deployment in a namespace, and waits for its pod.
pub fn deploy(world: &World, namespace: &str) {
    let small = json!({"cpu": "100m", "memory": "128Mi"});
    let container = json!({
        "name": "web", "image": "registry.example.org/web", "resources": {"requests": small, "limits": small},
    });
    make(
        world,
        &[json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
            },
        })],
    );
    wait_for("the Deployment has a pod", DEADLINE, || (!pods(world, namespace).is_empty()).then_some(()));
}

fn pods(world: &World, namespace: &str) -> String {
    world.kubectl(&["get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].metadata.uid}"])
}

/// Returns the uids of a namespace, its Deployment and its pods.
pub fn identity(world: &World, namespace: &str) -> [String; 3] {
    let uid = "jsonpath={.metadata.uid}";
    [
        world.kubectl(&["get", "namespace", namespace, "-o", uid]),
        world.kubectl(&["get", "deployment", "web", "-n", namespace, "-o", uid]),
        pods(world, namespace),
    ]
}

/// Returns the amounts of a quota.
pub fn amounts(world: &World, namespace: &str, quota: &str) -> Value {
    let text = world.kubectl(&["get", "resourcequota", quota, "-n", namespace, "-o", "jsonpath={.spec.hard}"]);
    serde_json::from_str(&text).expect("the text is JSON")
}

/// Creates objects as the cluster's administrator.
pub fn make(world: &World, objects: &[Value]) {
    for object in objects {
        world.servers.cluster.run(&["apply", "-f", "-"], &object.to_string());
    }
}

/// Returns a binding in a namespace.
pub fn binding(namespace: &str, name: &str, role: &str, (kind, subject): (&str, &str)) -> Value {
    let group = if kind == "ServiceAccount" { "" } else { "rbac.authorization.k8s.io" };
    let place = if kind == "ServiceAccount" { json!(namespace) } else { Value::Null };
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": kind, "name": subject, "namespace": place}],
    })
}

/// Returns a ClusterRole with rights that people have in their namespaces.
pub fn role(name: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
        "rules": [{"apiGroups": ["", "apps"], "resources": resources, "verbs": verbs}],
    })
}
