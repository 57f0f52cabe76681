//! Binds that were refused, and when the next one may be tried: each counts as a wrong password, and some servers lock an
//! account after five.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::source::LdapConfig;

/// Before the second try. Password policies count failures within 10 to 30 minutes and allow five or ten of them.
const FIRST_PAUSE: Duration = Duration::from_mins(5);
/// After the password is put right, the next try comes within this time, and a lock that ends by itself is noticed.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// What is known of the refusals of one source. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<Option<Refused>>>);

#[derive(Debug, Clone)]
struct Refused {
    /// Who was refused: other credentials are tried at once.
    asked: LdapConfig,
    why: String,
    pause: Duration,
    until: Instant,
}

impl Refusals {
    /// Why no bind is tried now.
    #[must_use]
    pub fn standing(&self, config: &LdapConfig, now: Instant) -> Option<String> {
        let refused = self.lock();
        let refused = refused.as_ref().filter(|refused| refused.asked == *config)?;
        let left = refused.until.checked_duration_since(now).filter(|left| !left.is_zero())?;
        let left = humantime::format_duration(Duration::from_secs(left.as_secs() + 1));
        Some(format!(
            "{}; not tried again for {left}, so that the account is not locked (bursar sync tries now)",
            refused.why
        ))
    }

    /// Notes that a bind was refused for good.
    pub fn refused(&self, config: &LdapConfig, why: &str, now: Instant) {
        let mut refused = self.lock();
        let known = refused.as_ref().filter(|refused| refused.asked == *config);
        let pause = known.map_or(FIRST_PAUSE, |known| (known.pause * 2).min(LONGEST_PAUSE));
        *refused = Some(Refused { asked: config.clone(), why: why.to_owned(), pause, until: now + pause });
    }

    /// The next bind is tried, as if none had been refused.
    pub fn forget(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Refused>> {
        // A value is replaced in one step: a thread that panicked left it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_other_credentials_do_not_wait() {
        let (refusals, config) = (Refusals::default(), LdapConfig::new(vec!["ldaps://a".to_owned()]));
        #[expect(clippy::disallowed_methods, reason = "any moment will do")]
        let began = Instant::now();
        let minutes = |count| began + Duration::from_mins(count);
        assert_eq!(refusals.standing(&config, began), None);
        let mut at = 0;
        for pause in [5, 10, 20, 40, 60, 60] {
            refusals.refused(&config, "bind refused", minutes(at));
            assert!(refusals.standing(&config, minutes(at + pause - 1)).is_some(), "{pause}");
            assert_eq!(refusals.standing(&config, minutes(at + pause)), None, "{pause}");
            at += pause;
        }
        refusals.refused(&config, "bind refused", minutes(at));
        let other = LdapConfig { bind_dn: Some("cn=other".to_owned()), ..config.clone() };
        assert_eq!(refusals.standing(&other, minutes(at)), None);
        assert!(refusals.standing(&config, minutes(at)).is_some_and(|why| why.contains("bind refused")));
        refusals.forget();
        assert_eq!(refusals.standing(&config, minutes(at)), None);
    }
}
