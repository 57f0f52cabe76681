//! Remembers binds that were refused, and when the next one may be tried. Each refused bind counts as a wrong password,
//! and some servers lock an account after five.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::source::LdapConfig;

/// The pause before the second try. Password policies typically allow five or ten failures within 10 to 30 minutes.
const FIRST_PAUSE: Duration = Duration::from_mins(5);
/// The longest pause. When the password is corrected or a temporary lock has ended, the next try comes within this
/// time.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// The answers of the servers of one source to binds. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<Answers>>);

#[derive(Debug, Default)]
struct Answers {
    /// The configuration that the answers are about. If the configuration changes, the answers are dropped, and binds
    /// are tried at once.
    asked: Option<LdapConfig>,
    refused: BTreeMap<String, Refused>,
    /// Servers that accepted the bind account. While another server refuses it, only these servers are asked, because
    /// all servers most likely check the same account.
    accepted: BTreeSet<String>,
}

#[derive(Debug)]
struct Refused {
    why: String,
    pause: Duration,
    until: Instant,
}

impl Refusals {
    /// Returns why no bind is tried at `server` now; `None` if it may be tried.
    #[must_use]
    pub fn standing(&self, config: &LdapConfig, server: &str, now: Instant) -> Option<String> {
        let answers = self.of(config);
        let left = |refused: &Refused| refused.until.checked_duration_since(now).filter(|left| !left.is_zero());
        let own = answers.refused.get(server);
        let any = answers.refused.values().filter(|_| !answers.accepted.contains(server)).max_by_key(|one| one.until);
        let refused = own.filter(|refused| left(refused).is_some()).or(any)?;
        let left = humantime::format_duration(Duration::from_secs(left(refused)?.as_secs() + 1));
        Some(format!(
            "{}; not tried again for {left}, so that the account is not locked (bursar sync tries now)",
            refused.why
        ))
    }

    /// Whether `server` refused the last bind. Other servers are tried before it.
    #[must_use]
    pub fn has_refused(&self, config: &LdapConfig, server: &str) -> bool {
        self.of(config).refused.contains_key(server)
    }

    /// Records that `server` refused a bind because of the name or the password.
    pub fn refused(&self, config: &LdapConfig, server: &str, why: &str, now: Instant) {
        let mut answers = self.of(config);
        if answers.accepted.remove(server) {
            // The password has changed, most likely at the other servers too.
            answers.accepted.clear();
        }
        let known = answers.refused.get(server);
        let pause = known.map_or(FIRST_PAUSE, |known| (known.pause * 2).min(LONGEST_PAUSE));
        answers.refused.insert(server.to_owned(), Refused { why: why.to_owned(), pause, until: now + pause });
    }

    /// Records that `server` accepted the bind account.
    pub fn accepted(&self, config: &LdapConfig, server: &str) {
        let mut answers = self.of(config);
        answers.refused.remove(server);
        answers.accepted.insert(server.to_owned());
    }

    /// Forgets all refusals, so that the next bind is tried at once.
    pub fn forget(&self) {
        *self.lock() = Answers::default();
    }

    fn of(&self, config: &LdapConfig) -> MutexGuard<'_, Answers> {
        let mut answers = self.lock();
        if answers.asked.as_ref() != Some(config) {
            *answers = Answers { asked: Some(config.clone()), ..Answers::default() };
        }
        answers
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LdapConfig {
        LdapConfig::new(vec!["ldaps://a".to_owned(), "ldaps://b".to_owned()])
    }

    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    fn clock() -> impl Fn(u64) -> Instant {
        let began = Instant::now();
        move |minutes| began + Duration::from_mins(minutes)
    }

    #[test]
    fn pauses_double_and_other_credentials_are_tried_at_once() {
        let (refusals, config, minutes) = (Refusals::default(), config(), clock());
        assert_eq!(refusals.standing(&config, "a", minutes(0)), None);
        let mut at = 0;
        for pause in [5, 10, 20, 40, 60, 60] {
            refusals.refused(&config, "a", "bind refused", minutes(at));
            for server in ["a", "b"] {
                assert!(refusals.standing(&config, server, minutes(at + pause - 1)).is_some(), "{pause}");
                assert_eq!(refusals.standing(&config, server, minutes(at + pause)), None, "{pause}");
            }
            at += pause;
        }
        refusals.refused(&config, "a", "bind refused", minutes(at));
        assert!(refusals.standing(&config, "a", minutes(at)).is_some_and(|why| why.contains("bind refused")));
        let other = LdapConfig { bind_dn: Some("cn=other".to_owned()), ..config.clone() };
        assert_eq!(refusals.standing(&other, "a", minutes(at)), None);
        refusals.refused(&config, "a", "bind refused", minutes(at));
        refusals.forget();
        assert_eq!(refusals.standing(&config, "a", minutes(at)), None);
    }

    #[test]
    fn an_accepted_bind_does_not_shorten_the_pause_of_another_server() {
        let (refusals, config, minutes) = (Refusals::default(), config(), clock());
        let mut at = 0;
        for pause in [5, 10, 20] {
            refusals.accepted(&config, "a");
            refusals.refused(&config, "b", "bind refused", minutes(at));
            assert_eq!(refusals.standing(&config, "a", minutes(at)), None, "a accepted the bind");
            assert!(refusals.standing(&config, "b", minutes(at + pause - 1)).is_some());
            assert!(
                refusals.standing(&config, "c", minutes(at + pause - 1)).is_some(),
                "c has not accepted a bind yet"
            );
            at += pause;
        }
        refusals.refused(&config, "a", "bind refused", minutes(at));
        assert!(refusals.has_refused(&config, "a") && !refusals.has_refused(&config, "c"));
        refusals.accepted(&config, "b");
        assert_eq!(refusals.standing(&config, "b", minutes(at)), None);
        refusals.refused(&config, "b", "bind refused", minutes(at));
        assert!(
            refusals.standing(&config, "a", minutes(at + 4)).is_some(),
            "a refused, so b's acceptance no longer counts"
        );
    }
}
