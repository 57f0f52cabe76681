//! Recognises the marks that disable an entry.

use std::str::FromStr;

use jiff::Timestamp;

use crate::entry::broken_down;
use crate::entry::raw::RawEntry;
use crate::entry::windows::file_time;
use crate::source::SourceError;

/// A condition on an attribute that disables an entry. It is written `attribute`, `attribute=value`,
/// `attribute=begin*`, `attribute&bits`, `attribute<now` or `attribute<today`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisabledMark {
    pub attribute: String,
    /// The condition on its values.
    pub test: MarkTest,
}

/// The condition that a value of the attribute must meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkTest {
    /// The value is not `FALSE` (`nsAccountLock: FALSE`).
    Present,
    /// The value is equal to this, ignoring case. A `*` at the end matches any rest.
    Value(String),
    /// The value is a number that has one of these bits. Every account has such an attribute. If an entry does not show
    /// it, the attribute is hidden from Bursar, and the entry is rejected instead of counting as enabled.
    Bits(u32),
    /// The value is a time in the past, as LDAP writes it (RFC 4517, 3.3.13) or Active Directory ([`file_time`]). The
    /// times that stand for "never" are not in the past.
    Past,
    /// The value is today or an earlier day, in days since 1970 (`shadowExpire`, RFC 2307 and shadow(5)). A negative
    /// number means never.
    PastDay,
}

impl DisabledMark {
    /// Returns the mark that disables `raw` as `attribute: value`; `None` if `raw` is not disabled by this mark.
    /// Returns `Err` with the reason if the value cannot be read.
    pub fn of(&self, raw: &RawEntry, now: Timestamp) -> Result<Option<String>, String> {
        let name = &self.attribute;
        if matches!(self.test, MarkTest::Bits(_)) && !raw.has(name) {
            return Err(format!("{name} is missing, or hidden from Bursar"));
        }
        let mut unreadable = None;
        for value in raw.values(name) {
            let value = String::from_utf8_lossy(value);
            match self.test.matches(&value, now) {
                Ok(Some(shown)) => return Ok(Some(format!("{name}: {shown}"))),
                Ok(None) => {}
                Err(why) => unreadable = Some(format!("{name} {why}")),
            }
        }
        unreadable.map_or(Ok(None), Err)
    }
}

impl MarkTest {
    /// Returns `value` in readable form if it disables the entry.
    fn matches(&self, value: &str, now: Timestamp) -> Result<Option<String>, String> {
        let folded = value.to_lowercase();
        let disables = match self {
            Self::Present => folded != "false",
            Self::Value(wanted) => {
                let wanted = wanted.to_lowercase();
                wanted.strip_suffix('*').map_or(folded == wanted, |begin| folded.starts_with(begin))
            }
            Self::Bits(bits) => {
                let number: i64 = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
                number & i64::from(*bits) != 0
            }
            Self::PastDay => {
                let days: i64 = value.trim().parse().map_err(|_| format!("{value:?} is not a number of days"))?;
                let second = days.checked_mul(DAY).and_then(|second| Timestamp::from_second(second).ok());
                let past = days >= 0 && days <= now.as_second().div_euclid(DAY);
                let day = second.map(|day| format!(" ({})", day.strftime("%Y-%m-%d"))).unwrap_or_default();
                return Ok(past.then(|| format!("{value}{day}")));
            }
            Self::Past => {
                let time = expiry(value).ok_or_else(|| format!("{value:?} is not a time"))?;
                return Ok(time.filter(|time| *time <= now).map(|time| format!("{time:.0}")));
            }
        };
        Ok(disables.then(|| value.to_owned()))
    }
}

impl FromStr for DisabledMark {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let wrong = |what: &str| SourceError::new("attributes.disabled", format!("{text:?} {what}"));
        let (attribute, says) = if let Some(name) = text.strip_suffix("<now") {
            (name, MarkTest::Past)
        } else if let Some(name) = text.strip_suffix("<today") {
            (name, MarkTest::PastDay)
        } else if let Some((name, value)) = text.split_once('=') {
            (name, MarkTest::Value(value.to_owned()))
        } else if let Some((name, bits)) = text.split_once('&') {
            (name, MarkTest::Bits(bits.parse().map_err(|_| wrong("does not end with a number of bits, such as &2"))?))
        } else {
            (text, MarkTest::Present)
        };
        if !is_attribute_name(attribute) {
            return Err(wrong("does not begin with an attribute"));
        }
        Ok(Self { attribute: attribute.to_owned(), test: says })
    }
}

const DAY: i64 = 24 * 3600;

/// Parses the time at which an account expires. Returns `Some(None)` for two times that mean "never". One is time 0,
/// the beginning of 1970, which MIT Kerberos stores. The other is the end of the year 9999, which is later than a
/// [`Timestamp`] can be.
#[expect(clippy::option_option, reason = "a text that is not a time differs from an absent time")]
fn expiry(value: &str) -> Option<Option<Timestamp>> {
    let Some(time) = broken_down(value) else { return file_time(value).ok() };
    match time.to_timestamp() {
        Ok(time) => Some(Some(time).filter(|time| *time != Timestamp::UNIX_EPOCH)),
        Err(_) => time.to_datetime().ok().map(|_| None),
    }
}

pub(super) fn is_attribute_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-21T09:00:00Z";

    fn mark(mark: &str, pairs: &[(&str, &str)]) -> Result<Option<String>, String> {
        let mark: DisabledMark = mark.parse().expect("the mark is valid");
        mark.of(&RawEntry::from_texts("cn=a", pairs), NOW.parse().expect("NOW is a valid time"))
    }

    #[expect(clippy::unnecessary_wraps, reason = "the value is compared with that of a mark")]
    fn yes(shown: &str) -> Result<Option<String>, String> {
        Ok(Some(shown.to_owned()))
    }

    #[test]
    fn an_attribute_or_its_value_disables() {
        assert_eq!(mark("nsAccountLock", &[("nsaccountlock", "TRUE")]), yes("nsAccountLock: TRUE"));
        assert_eq!(mark("nsAccountLock", &[("nsaccountlock", "false")]), Ok(None));
        assert_eq!(mark("nsAccountLock", &[]), Ok(None));
        assert_eq!(mark("policy=cn=disabled,*", &[("policy", "CN=Disabled,dc=x")]), yes("policy: CN=Disabled,dc=x"));
        assert_eq!(mark("policy=cn=disabled,*", &[("policy", "cn=default,dc=x")]), Ok(None));
    }

    #[test]
    fn a_value_that_cannot_be_read_hides_no_other_value() {
        let end = |values: &[&str]| {
            let pairs: Vec<(&str, &str)> = values.iter().map(|value| ("pwdEndTime", *value)).collect();
            mark("pwdEndTime<now", &pairs)
        };
        assert_eq!(end(&["soon", "20261120000000Z"]), yes("pwdEndTime: 2026-11-20T00:00:00Z"));
        assert!(end(&["soon", "20991120000000Z"]).is_err() && end(&["20991120000000Z", "soon"]).is_err());
        let mut raw = RawEntry::new("cn=a".to_owned());
        raw.add(b"locked", &[0xff]);
        let locked: DisabledMark = "locked".parse().expect("the mark is valid");
        assert!(locked.of(&raw, Timestamp::UNIX_EPOCH).is_ok_and(|mark| mark.is_some()), "the value is not text");
    }

    #[test]
    fn only_the_configured_bit_disables() {
        let control = |value| mark("userAccountControl&2", &[("userAccountControl", value)]);
        assert_eq!(control("514"), yes("userAccountControl: 514"));
        // 16 is LOCKOUT (MS-ADTS 2.2.16).
        for enabled in ["512", "528", "66048", "-2147483136"] {
            assert_eq!(control(enabled), Ok(None), "{enabled}");
        }
        assert_eq!(control("0x202"), Err("userAccountControl \"0x202\" is not a number".to_owned()));
        let hidden = "userAccountControl is missing, or hidden from Bursar";
        assert_eq!(mark("userAccountControl&2", &[]), Err(hidden.to_owned()));
    }

    #[test]
    fn an_expired_account_is_disabled() {
        let expires = |value| mark("accountExpires<now", &[("accountExpires", value)]);
        assert_eq!(expires("134396064000000000"), yes("accountExpires: 2026-11-20T00:00:00Z"));
        for not_yet in ["0", "9223372036854775807", "134400000000000000"] {
            assert_eq!(expires(not_yet), Ok(None), "{not_yet}");
        }
        assert_eq!(expires("20261120000000Z"), yes("accountExpires: 2026-11-20T00:00:00Z"));
        assert_eq!(expires("20261121090001Z"), Ok(None));
        for never in ["19700101000000Z", "19700101000000.0Z", "19700101010000+0100", "99991231235959Z"] {
            assert_eq!(expires(never), Ok(None), "{never}");
        }
        assert_eq!(expires("19700101000001Z"), yes("accountExpires: 1970-01-01T00:00:01Z"));
        assert_eq!(expires("99991331235959Z"), Err("accountExpires \"99991331235959Z\" is not a time".to_owned()));
        assert_eq!(expires("never"), Err("accountExpires \"never\" is not a time".to_owned()));
        assert_eq!(mark("accountExpires<now", &[]), Ok(None));
        // Days since 1970 are not a FILETIME. Read as a FILETIME, such a number would mean that the account expired in
        // 1601.
        assert_eq!(expires("20000"), Err("accountExpires \"20000\" is not a time".to_owned()));
    }

    #[test]
    fn an_account_is_disabled_from_its_expiry_day_on() {
        let expires = |value| mark("shadowExpire<today", &[("shadowExpire", value)]);
        assert_eq!(expires("20778"), yes("shadowExpire: 20778 (2026-11-21)"));
        assert_eq!(expires("0"), yes("shadowExpire: 0 (1970-01-01)"));
        for not_yet in ["20779", "-1", "99999999999999"] {
            assert_eq!(expires(not_yet), Ok(None), "{not_yet}");
        }
        assert_eq!(expires("soon"), Err("shadowExpire \"soon\" is not a number of days".to_owned()));
        assert_eq!(mark("shadowExpire<today", &[]), Ok(None));
    }

    #[test]
    fn a_malformed_mark_is_refused() {
        for wrong in ["", "=a", "a b", "userAccountControl&x", "&2", "<now", "a&-1"] {
            assert!(wrong.parse::<DisabledMark>().is_err(), "{wrong}");
        }
    }
}
