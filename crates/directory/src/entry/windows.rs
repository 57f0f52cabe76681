//! Converts values of Active Directory to readable text.

use jiff::{SignedDuration, Timestamp};

/// Returns an `objectGUID` as the tools of Windows write it: `f81d4fae-7dec-11d0-a765-00a0c91e6bf6`.
///
/// The first three fields are little-endian numbers in the 16 bytes; the other bytes are in order (MS-DTYP 2.3.4.2 and
/// 2.3.4.3). A handwritten file may hold the text itself.
#[must_use]
pub fn guid(value: &[u8]) -> Option<String> {
    let Ok(bytes) = <[u8; 16]>::try_from(value) else {
        let text = std::str::from_utf8(value).ok()?.trim().trim_start_matches('{').trim_end_matches('}');
        let dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
        let right = |(at, byte): (usize, u8)| if dash(at) { byte == b'-' } else { byte.is_ascii_hexdigit() };
        return (text.len() == 36 && text.bytes().enumerate().all(right)).then(|| text.to_lowercase());
    };
    let [a0, a1, a2, a3, b0, b1, c0, c1, rest @ ..] = bytes;
    let hex = hex::encode([a3, a2, a1, a0, b1, b0, c1, c0]);
    let rest = hex::encode(rest);
    Some(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..], &rest[..4], &rest[4..]))
}

/// Returns the bytes of a GUID that [`guid`] wrote.
#[must_use]
pub fn guid_bytes(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|digit| *digit != '-').collect();
    let bytes: [u8; 16] = hex::decode(digits).ok()?.try_into().ok()?;
    let [a3, a2, a1, a0, b1, b0, c1, c0, d0, d1, d2, d3, d4, d5, d6, d7] = bytes;
    Some([a0, a1, a2, a3, b0, b1, c0, c1, d0, d1, d2, d3, d4, d5, d6, d7])
}

/// 1 January 1601, in seconds since 1970.
const BEGINNING: i64 = -11_644_473_600;
/// Steps of 100 nanoseconds in a second.
const STEPS: i64 = 10_000_000;

/// Parses a time in steps of 100 nanoseconds since 1601 (FILETIME, MS-DTYP 2.3.3).
///
/// Returns `None` for "never": 0 and 2^63 - 1 in `accountExpires` (MS-ADA1 2.2), negative numbers, and times after the
/// year 9999. Returns `Err` for text that is not a number, and for times before 1970.
pub fn file_time(text: &str) -> Result<Option<Timestamp>, String> {
    let steps: i64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if steps <= 0 || steps == i64::MAX {
        return Ok(None);
    }
    if steps / STEPS + BEGINNING < 0 {
        return Err(format!("{text:?} is before 1970, so it is not a time of an account"));
    }
    let nanoseconds = i32::try_from(steps % STEPS).unwrap_or(0) * 100;
    let begun = Timestamp::from_second(BEGINNING).ok();
    Ok(begun.and_then(|begun| begun.checked_add(SignedDuration::new(steps / STEPS, nanoseconds)).ok()))
}

/// Explains the code that Active Directory adds to "wrong name or password" (the Win32 code after `data`, in hex).
/// Returns `None` for unknown codes.
#[must_use]
pub fn bind_refusal(text: &str) -> Option<&'static str> {
    let code = text.split("data ").nth(1)?.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    Some(match code {
        "525" => "there is no such account",
        "52e" => "the password is wrong",
        "530" => "it may not log on at this time",
        "531" => "it may not log on to this server",
        "532" => "its password has expired",
        "533" => "it is disabled",
        "701" => "it has expired",
        "773" => "its password must be changed first",
        "775" => "it is locked out",
        _ => return None,
    })
}

/// Whether a referral leads to a part of the directory without people: the forest's configuration or its DNS zones.
/// Active Directory adds such referrals to every search of a whole domain (MS-ADTS 3.1.1.1.5). A referral to a child
/// domain is different, because it may hold people.
#[must_use]
pub fn is_of_no_people(referral: &str) -> bool {
    let path = referral.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
    let dn = path.split('?').next().unwrap_or_default().replace("%20", " ").to_lowercase();
    ["cn=configuration,", "dc=domaindnszones,", "dc=forestdnszones,"].iter().any(|begin| dn.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_guid_is_written_as_windows_does() {
        let bytes = hex::decode("ae4f1df8ec7dd011a76500a0c91e6bf6").expect("the text is valid hex");
        let text = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
        assert_eq!(guid(&bytes).as_deref(), Some(text));
        assert_eq!(guid(b"{F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6}").as_deref(), Some(text));
        assert_eq!(guid_bytes(text).map(|known| known.to_vec()), Some(bytes.clone()));
        assert_eq!(guid_bytes("x"), None);
        // 16 bytes that happen to be text are read as bytes.
        assert_eq!(guid(b"abcdefghijklmnop").as_deref(), Some("64636261-6665-6867-696a-6b6c6d6e6f70"));
        for wrong in
            [&b""[..], b"abc", b"f81d4fae-7dec-11d0-a765-00a0c91e6bfg", b"f81d4fae-7dec-11d0-a765_00a0c91e6bf6"]
        {
            assert_eq!(guid(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn file_times_are_parsed() {
        let read = |text: &str| file_time(text).map(|time| time.map(|at| at.to_string()));
        for never in ["0", "9223372036854775807", "9223372036854775806", "-1"] {
            assert_eq!(read(never), Ok(None), "{never}");
        }
        assert_eq!(read("116444736000000000"), Ok(Some("1970-01-01T00:00:00Z".to_owned())));
        assert_eq!(read("134396064000000000"), Ok(Some("2026-11-20T00:00:00Z".to_owned())));
        assert_eq!(read("116444736000000001"), Ok(Some("1970-01-01T00:00:00.0000001Z".to_owned())));
        assert!(read("20000").is_err(), "days since 1970, as in shadowExpire, are not a FILETIME");
        assert!(read("soon").is_err() && read("").is_err() && read("92233720368547758070").is_err());
    }

    #[test]
    fn a_refused_bind_is_explained() {
        let text = "80090308: LdapErr: DSID-0C0903A9, comment: AcceptSecurityContext error, data 533, v1db1";
        assert_eq!(bind_refusal(text), Some("it is disabled"));
        assert_eq!(bind_refusal("INVALID_CREDENTIALS"), None);
    }

    #[test]
    fn referrals_to_dns_zones_and_configuration_hold_no_people() {
        for none in [
            "ldap://ad.example.org/CN=Configuration,DC=ad,DC=example,DC=org",
            "ldap://DomainDnsZones.ad.example.org/DC=DomainDnsZones,DC=ad,DC=example,DC=org??base",
            "ldaps://ForestDnsZones.ad.example.org/DC=ForestDnsZones,DC=ad,DC=example,DC=org",
        ] {
            assert!(is_of_no_people(none), "{none}");
        }
        for some in
            ["ldap://child.ad.example.org/DC=child,DC=ad,DC=example,DC=org", "ldap://a", "", "cn=configuration,"]
        {
            assert!(!is_of_no_people(some), "{some}");
        }
    }

    proptest! {
        #[test]
        fn no_value_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40), text in "\\PC{0,40}", number: i64) {
            let _ = (guid(&bytes), file_time(&text), bind_refusal(&text), is_of_no_people(&text));
            let _ = file_time(&number.to_string());
        }
    }
}
