//! Faults on the connection to a domain controller. After a fault, the read is Partial, or everything is read again. No
//! existing account is reported as absent.

use std::time::Duration;

use bursar::identity::AccountKind;
use bursar::snapshot::{Completeness, SourceRead, Way};
use bursar_directory::source::LdapConfig;
use bursar_testkit::samba::{Samba, group_ldif, person_ldif};

use super::{Polled, assert_same, change, delete};
use crate::active_directory::proxy::{Fault, Proxy};
use crate::active_directory::{source, with};
use crate::directory::{assert_why, names, read, why};

/// The number of places in a conversation at which a fault occurs.
const PLACES: usize = 18;
/// More bytes than a TLS handshake and a bind take. A server that falls silent before it has sent this many counts as
/// unreachable.
const HANDSHAKE: usize = 1_600;

/// People and their group beneath a base, and a proxy to their server.
struct Site {
    samba: &'static Samba,
    name: &'static str,
    base: String,
    proxy: Proxy,
}

impl Site {
    async fn new(name: &'static str) -> Self {
        let (samba, base) = Samba::with_unit(name);
        let people: Vec<String> = (0..12).map(|at| format!("{name}-{at:02}")).collect();
        samba
            .add_ldif(&people.iter().fold(String::new(), |ldif, person| ldif + &person_ldif(&base, person, "") + "\n"));
        let dns: Vec<String> = people.iter().map(|person| format!("CN={person},{base}")).collect();
        samba.add_ldif(&group_ldif(&base, &format!("{name}-all"), &dns));
        Self { samba, name, base, proxy: Proxy::before(samba).await }
    }

    fn polled(&self) -> Polled {
        let ldap = LdapConfig {
            page_size: 5,
            members_at_once: Some(5),
            timeout: Duration::from_secs(10),
            ..self.proxy.ldap(self.samba)
        };
        Polled::new(with(ldap, &self.base))
    }

    /// Returns the actual entries, read without the proxy.
    async fn truth(&self) -> SourceRead {
        read(source(self.samba, &self.base)).await
    }

    /// Adds a person to the base and the group, and deletes the person whom the previous change added.
    fn change(&self, at: usize) {
        let person = |at: usize| format!("{}-new-{at}", self.name);
        let dn = |at: usize| format!("CN={},{}", person(at), self.base);
        let mut ldif =
            person_ldif(&self.base, &person(at), "").replace("\nobjectClass", "\nchangetype: add\nobjectClass");
        if at > 0 {
            ldif += &delete(&dn(at - 1));
        }
        ldif += &change(&format!("CN={}-all,{}", self.name, self.base), "add", "member", &dn(at));
        self.samba.modify_ldif(&ldif);
    }
}

/// Checks that a complete read has the actual entries. Returns whether the read was complete.
#[track_caller]
fn nobody_is_missing(found: &SourceRead, truth: &SourceRead, what: &str) -> bool {
    if found.completeness == Completeness::Complete {
        assert_same(found, truth, what);
    }
    found.completeness == Completeness::Complete
}

fn faults(at: usize) -> [Fault; 3] {
    [Fault::Cut(at), Fault::Noise(at), Fault::Silent(at)]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disturbed_first_read_is_partial_and_the_next_one_complete() {
    let site = Site::new("dist").await;
    let truth = site.truth().await;
    site.polled().poll().await;
    let length = site.proxy.answered();
    let mut partial = 0;
    for place in 0..PLACES {
        let polled = site.polled();
        let fault = faults(length * place / PLACES)[place % 3];
        site.proxy.always(fault);
        let found = polled.poll().await;
        partial += usize::from(!nobody_is_missing(&found, &truth, &format!("{fault:?} of {length}")));
        site.proxy.always(Fault::None);
        let found = polled.poll().await;
        assert_eq!(why(&found), "complete", "after {fault:?}");
        assert_same(&found, &truth, &format!("after {fault:?}"));
    }
    assert!(partial > PLACES * 3 / 4, "only {partial} of {PLACES} faults were noticed");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_disturbed_poll_the_next_one_is_complete() {
    let site = Site::new("torn").await;
    let polled = site.polled();
    polled.poll().await;
    site.change(0);
    site.proxy.begin();
    let found = polled.poll().await;
    assert_same(&found, &site.truth().await, "undisturbed");
    assert!(!site.proxy.started_over());
    let length = site.proxy.answered();
    for place in 0..PLACES {
        site.change(place + 1);
        let truth = site.truth().await;
        let fault = faults(length * place / PLACES)[place % 3];
        let what = format!("{fault:?} of {length}");
        if place % 2 == 0 {
            site.proxy.next(fault);
        } else {
            site.proxy.always(fault);
        }
        let found = polled.poll().await;
        let whole = nobody_is_missing(&found, &truth, &what);
        // If an established connection is lost, everything is read on another one.
        let is_greeted = length * place / PLACES > HANDSHAKE;
        assert!(whole || place % 2 == 1 || !is_greeted, "{what}: {}", why(&found));
        site.proxy.always(Fault::None);
        let found = polled.poll().await;
        assert_eq!((why(&found), found.way), ("complete", Way::Incremental), "after {what}");
        assert_same(&found, &truth, &format!("after {what}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_results_never_hide_an_account() {
    let site = Site::new("wrong").await;
    let polled = site.polled();
    polled.poll().await;
    let mut partial = 0;
    for place in 0..12 {
        site.change(place);
        let truth = site.truth().await;
        // timeLimitExceeded, sizeLimitExceeded, unavailableCriticalExtension, insufficientAccessRights, busy,
        // unwillingToPerform.
        let fault = Fault::Result(place, [3, 4, 12, 50, 51, 53][place % 6]);
        site.proxy.always(fault);
        let found = polled.poll().await;
        partial += usize::from(!nobody_is_missing(&found, &truth, &format!("{fault:?}")));
        site.proxy.always(Fault::None);
        let found = polled.poll().await;
        assert_eq!(why(&found), "complete", "after {fault:?}");
        assert_same(&found, &truth, &format!("after {fault:?}"));
    }
    assert!(partial > 0, "no wrong result was noticed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_server_is_read_completely() {
    let site = Site::new("slow").await;
    let polled = site.polled();
    site.proxy.always(Fault::Late(Duration::from_millis(20)));
    assert_same(&polled.poll().await, &site.truth().await, "at first");
    site.change(0);
    assert_same(&polled.poll().await, &site.truth().await, "changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_controller_is_read_in_full() {
    let site = Site::new("life").await;
    let polled = site.polled();
    polled.poll().await;
    site.change(0);
    assert_same(&polled.poll().await, &site.truth().await, "the same controller");
    let other = Fault::Answer(b"CN=DC1,", b"CN=DC2,");
    for (fault, is_full) in [(Fault::None, false), (other, true), (other, false), (Fault::None, true)] {
        site.proxy.always(fault);
        site.proxy.begin();
        let what = format!("{fault:?}, is_full: {is_full}");
        assert_same(&polled.poll().await, &site.truth().await, &what);
        assert_eq!(site.proxy.started_over(), is_full, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_that_the_server_does_not_know_leads_to_a_full_read() {
    let site = Site::new("cookie").await;
    let polled = site.polled();
    polled.poll().await;
    site.change(0);
    site.proxy.begin();
    // The bytes are the version of the cookie and the number of controllers in it. The change raises this number above
    // the actual one.
    site.proxy.next(Fault::Question(&[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]));
    assert_same(&polled.poll().await, &site.truth().await, "a cookie of nobody");
    assert!(site.proxy.started_over());
    site.proxy.begin();
    polled.check("and on").await;
    assert!(!site.proxy.started_over());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_dir_sync_the_count_of_changes_is_used() {
    let site = Site::new("count").await;
    let unknown = Fault::Answer(b"1.2.840.113556.1.4.841", b"1.2.840.113556.1.4.999");
    // The request then lacks object security, and needs a right that the account does not have.
    let refused = Fault::Question(&[2, 4, 0x80, 0, 0, 1], &[2, 4, 0x80, 0, 0, 0]);
    for (at, fault) in [unknown, refused].into_iter().enumerate() {
        let polled = site.polled();
        site.proxy.always(fault);
        assert_eq!(why(&polled.poll().await), "complete");
        site.change(at);
        site.proxy.begin();
        let found = polled.poll().await;
        assert!(
            site.proxy.asked("MSDS") == 0 && !site.proxy.started_over(),
            "no cookie may be used, and not everything may be read"
        );
        assert_same(&found, &site.truth().await, "by the count");
        assert_eq!(names(&found, AccountKind::User).len(), 13);
        site.proxy.always(Fault::None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_partial_if_its_base_is_gone() {
    let site = Site::new("gone").await;
    let polled = site.polled();
    polled.poll().await;
    let parent = bursar_testkit::samba::DOMAIN_DN;
    site.samba.modify_ldif(&super::rename(&site.base, "OU=gone-elsewhere", parent));
    assert_why(&polled.poll().await, &["no such base"]);
    site.samba.modify_ldif(&super::rename(&format!("OU=gone-elsewhere,{parent}"), "OU=gone", parent));
    polled.check("it is back").await;
}
