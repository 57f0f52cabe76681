//! A Prometheus that shows the values that a test sets. They come from recording rules, so nothing is scraped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::ports::free_port;
use crate::process::Process;
use crate::ready::wait_for;

const DEADLINE: Duration = Duration::from_mins(1);

/// A running server. It ends when this value is dropped.
pub struct Prometheus {
    /// `http://127.0.0.1:PORT`.
    pub url: String,
    folder: PathBuf,
    process: Process,
}

impl Prometheus {
    /// Starts a server that shows nothing.
    #[must_use]
    pub fn start(folder: &Path) -> Self {
        let folder = folder.join("prometheus");
        fs::create_dir_all(&folder).expect("the folder is writable");
        let config = "global: {evaluation_interval: 200ms}\nrule_files: [rules.yml]\n";
        fs::write(folder.join("prometheus.yml"), config).expect("the folder is writable");
        fs::write(folder.join("rules.yml"), rules(&[])).expect("the folder is writable");
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"));
        let process = Process::start("prometheus", &command, &folder.join("log"));
        process.wait_until("Prometheus listens", DEADLINE, || std::net::TcpStream::connect(&address).is_ok());
        Self { url: format!("http://{address}"), folder, process }
    }

    /// Sets `in_use{namespace=…}` to 1 for these namespaces only.
    pub fn show(&self, namespaces: &[&str]) {
        fs::write(self.folder.join("rules.yml"), rules(namespaces)).expect("the folder is writable");
        let loaded = || fs::read_to_string(self.process.log()).unwrap_or_default().matches("Completed loading").count();
        let before = loaded();
        self.process.signal(Signal::HUP);
        wait_for("the rules are loaded", DEADLINE, || (loaded() > before).then_some(()));
    }
}

fn rules(namespaces: &[&str]) -> String {
    let rule =
        |namespace: &&str| format!("  - {{record: in_use, expr: vector(1), labels: {{namespace: {namespace}}}}}\n");
    let rules: String = namespaces.iter().map(rule).collect();
    if rules.is_empty() { "groups: []\n".to_owned() } else { format!("groups:\n- name: use\n  rules:\n{rules}") }
}
