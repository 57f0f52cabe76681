//! Tests of a subscription (refreshAndPersist): a real `slapd` reports each change when it happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bursar::identity::AccountKind;
use bursar::snapshot::{Completeness, SourceRead, Way};
use bursar_directory::ldap::follow::follow;
use bursar_directory::source::LdapConfig;
use bursar_directory::{Pass, SourceConfig, SyncCache};
use bursar_testkit::ldif::{person_dn, person_ldif, replace_ldif, tool_ldif, toolforge_units_ldif, unit_ldif};
use bursar_testkit::ready::DEADLINE;
use bursar_testkit::sample::sentinel_ldif;
use bursar_testkit::slapd::{BASE_DN, Slapd, SlapdOptions};
use rustix::process::Signal;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::proxy::{Fault, Proxy};
use super::stale::read_after_answer;
use super::syncrepl_random::Model;
use super::{assert_same, ldap, names, read, read_by, site, toolforge, why};

struct Told {
    source: SourceConfig,
    memory: SyncCache,
    changed: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Told {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Told {
    async fn by(ldap: LdapConfig) -> Self {
        let ldap = LdapConfig { way: Way::Persist, timeout: Duration::from_secs(5), ..ldap };
        let told = Self::begin(toolforge(ldap));
        told.heard("the first notice").await;
        told
    }

    fn begin(source: SourceConfig) -> Self {
        let (memory, changed) = (SyncCache::default(), Arc::new(Notify::new()));
        let task = tokio::spawn(follow(source.clone(), memory.clone(), Arc::clone(&changed)));
        Self { source, memory, changed, task }
    }

    async fn heard(&self, what: &str) {
        assert!(timeout(DEADLINE, self.changed.notified()).await.is_ok(), "no notice of {what} arrived");
    }

    async fn read(&self) -> SourceRead {
        read_by(&self.source, &Pass::Changes(self.memory.clone())).await
    }

    fn is_live(&self) -> bool {
        self.memory.live(&self.source).is_some()
    }

    async fn wait(&self, live: bool) {
        let end = Instant::now() + DEADLINE;
        while self.is_live() != live {
            assert!(Instant::now() < end, "the subscription should be {}", if live { "live" } else { "down" });
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the subscription shows the same as a full read.
    async fn becomes_right(&self, truth: &SourceConfig) {
        let end = Instant::now() + DEADLINE;
        let full = read(truth.clone()).await;
        loop {
            let told = self.read().await;
            if (told.way == Way::Persist && told.entries == full.entries) || Instant::now() > end {
                assert_same(&told, &full);
                assert_eq!(told.way, Way::Persist);
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

fn here(slapd: &Slapd) -> LdapConfig {
    ldap(&[&slapd.ldaps_url], slapd)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_is_reported_when_it_happens() {
    let slapd = site(SlapdOptions::default());
    let told = Told::by(here(&slapd)).await;
    told.becomes_right(&told.source).await;
    slapd.add_ldif(&tool_ldif(BASE_DN, "new", 52600, &["alice"]));
    told.heard("a new tool").await;
    told.becomes_right(&told.source).await;
    slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, "bob"), "uidNumber", &["2950"]));
    told.heard("another uid").await;
    told.becomes_right(&told.source).await;
    let carol = person_dn(BASE_DN, "carol");
    slapd.modify_ldif(&format!("dn: {carol}\nchangetype: modrdn\nnewrdn: uid=carola\ndeleteoldrdn: 1\n\n"));
    told.heard("another name").await;
    slapd.delete(&person_dn(BASE_DN, "dave"));
    told.heard("a deletion").await;
    told.becomes_right(&told.source).await;
    assert!(names(&told.read().await, AccountKind::User).contains(&"carola"));
    // No attribute that is read contains the shell: the server reports the write, but nothing changed.
    slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, "bob"), "loginShell", &["/bin/zsh"]));
    slapd.add_ldif(&person_ldif(BASE_DN, "zoe", 2100));
    told.heard("a new person").await;
    assert!(timeout(Duration::from_millis(300), told.changed.notified()).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_random_changes_the_subscription_agrees_with_a_full_read() {
    let slapd = site(SlapdOptions { sessionlog: 40, ..SlapdOptions::default() });
    let told = Told::by(here(&slapd)).await;
    let mut model = Model::of(4534);
    for batch in 0..25 {
        slapd.modify_ldif(&model.changes(1 + batch * 2));
        told.becomes_right(&told.source).await;
        if batch % 10 == 9 {
            slapd.stop();
            slapd.start_again();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_subscription_is_retried_until_a_stopped_or_hung_server_answers() {
    let slapd = site(SlapdOptions::default());
    let told = Told::by(here(&slapd)).await;
    slapd.stop();
    told.wait(false).await;
    assert_ne!(why(&told.read().await), "complete");
    slapd.start_again();
    slapd.delete(&person_dn(BASE_DN, "alice"));
    told.wait(true).await;
    told.becomes_right(&told.source).await;

    slapd.with_process(|process| process.signal(Signal::STOP));
    told.wait(false).await;
    assert_ne!(why(&told.read().await), "complete");
    slapd.with_process(|process| process.signal(Signal::CONT));
    slapd.delete(&person_dn(BASE_DN, "bob"));
    told.wait(true).await;
    told.becomes_right(&told.source).await;

    slapd.start_with(&(toolforge_units_ldif(BASE_DN) + &sentinel_ldif(BASE_DN) + &person_ldif(BASE_DN, "zoe", 2100)));
    told.wait(true).await;
    told.becomes_right(&told.source).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_read_that_differs_restarts_the_subscription() {
    let slapd = site(SlapdOptions::default());
    let told = Told::by(here(&slapd)).await;
    let pass = Pass::Whole(told.memory.clone());
    let whole = || read_by(&told.source, &pass);
    assert_eq!(whole().await.compared.expect("a full read compares the entries").differences, 0);
    assert_eq!(told.read().await.way, Way::Persist);
    // Restores the state before the deletion, as if the server had not reported it.
    let wrong = told.memory.live(&told.source).expect("the source keeps its entries in memory");
    slapd.delete(&person_dn(BASE_DN, "alice"));
    told.heard("a deletion").await;
    let mut wrong = (*wrong).clone();
    wrong.mark = told.memory.live(&told.source).expect("the source keeps its entries in memory").mark.clone();
    let found_wrong = told.memory.found_wrong(&told.source.name);
    assert!(told.memory.follow(&told.source.name, Arc::new(wrong.clone()), found_wrong));
    assert!(names(&told.read().await, AccountKind::User).contains(&"alice"));
    let found = whole().await;
    assert!(
        found
            .compared
            .expect("a full read compares the entries")
            .examples
            .contains(&"user alice was no longer in the directory".to_owned())
    );
    assert_same(&told.read().await, &read(told.source.clone()).await);
    assert!(!told.memory.follow(&told.source.name, Arc::new(wrong), found_wrong), "it descends from wrong entries");
    told.wait(true).await;
    told.becomes_right(&told.source).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_read_that_differs_restarts_the_subscription_while_somebody_writes() {
    let slapd = Arc::new(site(SlapdOptions::default()));
    let guests = format!("ou=guests,ou=people,{BASE_DN}");
    slapd.add_ldif(&unit_ldif(&format!("ou=people,{BASE_DN}"), "guests"));
    slapd.add_ldif(&person_ldif(BASE_DN, "guest", 2100).replace(&format!("ou=people,{BASE_DN}"), &guests));
    let told = Told::by(here(&slapd)).await;
    // A server does not report the entries beneath an entry that was moved.
    let moved =
        format!("dn: {guests}\nchangetype: modrdn\nnewrdn: ou=guests\ndeleteoldrdn: 0\nnewsuperior: {BASE_DN}\n\n");
    slapd.modify_ldif(&moved);
    assert!(names(&told.read().await, AccountKind::User).contains(&"guest"));
    let ended = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (slapd, ended) = (Arc::clone(&slapd), Arc::clone(&ended));
        move || {
            for shell in (0..).take_while(|_| !ended.load(Ordering::SeqCst)) {
                let shell = format!("/bin/shell{shell}");
                slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, "bob"), "loginShell", &[&shell]));
            }
        }
    });
    let found = read_by(&told.source, &Pass::Whole(told.memory.clone())).await;
    ended.store(true, Ordering::SeqCst);
    writer.join().expect("the writes succeed");
    assert!(
        found
            .compared
            .expect("the full read was compared")
            .examples
            .contains(&"user guest was no longer in the directory".to_owned())
    );
    assert_same(&told.read().await, &read(told.source.clone()).await);
    told.wait(true).await;
    told.becomes_right(&told.source).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_server_is_stale_by_the_changes_that_the_subscription_reported() {
    let slapd = site(SlapdOptions::default());
    let backup = slapd.dump();
    let told = Told::by(here(&slapd)).await;
    let before = told.read().await.marks.entries;
    // The write changes no attribute that is read, but proves the time of the server's state.
    slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, "alice"), "loginShell", &["/bin/zsh"]));
    let end = Instant::now() + DEADLINE;
    let seen = loop {
        let read = told.read().await;
        if read.marks.entries != before || Instant::now() > end {
            break read;
        }
        sleep(Duration::from_millis(10)).await;
    };
    let (source, server) = (told.source.clone(), seen.server.clone().expect("a server answered"));
    drop(told);
    slapd.start_copy(&backup);
    // Now its contextCSN is newer than the one that was seen.
    slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, "bob"), "loginShell", &["/bin/zsh"]));
    let found = read_after_answer(&source, &Pass::Changes(SyncCache::default()), &seen.marks, &server).await;
    assert!(matches!(found.completeness, Completeness::Stale { .. }), "{}", why(&found));
    assert!(why(&found).contains("went back"), "{}", why(&found));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_fault_anywhere_the_subscription_becomes_right_again() {
    let slapd = site(SlapdOptions::default());
    let proxy = Proxy::to(&slapd.ldaps_url).await;
    let behind =
        LdapConfig { timeout: Duration::from_secs(5), way: Way::Persist, ..ldap(&[&proxy.url("ldaps")], &slapd) };
    let truth = toolforge(here(&slapd));
    let whole = Told::begin(toolforge(behind.clone()));
    whole.wait(true).await;
    let length = proxy.bytes();
    drop(whole);
    for at in [0, 1, length / 8, length / 3, length / 2, length * 2 / 3, length - 100, length - 1, length + 1] {
        for fault in [Fault::Cut(at), Fault::Flip(at)] {
            proxy.set(fault);
            let before = proxy.connections.load(Ordering::SeqCst);
            let told = Told::begin(toolforge(behind.clone()));
            // The fault can also occur after the initial content was sent, so a change follows.
            slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, "bob"), "uidNumber", &[&(2900 + at % 50).to_string()]));
            let end = Instant::now() + DEADLINE;
            while proxy.connections.load(Ordering::SeqCst) < before + 2 {
                if told.is_live() {
                    slapd.modify_ldif(&replace_ldif(&person_dn(BASE_DN, "bob"), "mail", &["another@example.org"]));
                }
                assert!(Instant::now() < end, "there was no retry after {at} of {length} bytes");
                sleep(Duration::from_millis(20)).await;
            }
            proxy.set(Fault::None);
            told.wait(true).await;
            told.becomes_right(&truth).await;
        }
    }
}
