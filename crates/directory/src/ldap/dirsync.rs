//! What an Active Directory says changed since a cookie of its own (`LDAP_SERVER_DIRSYNC_OID`, MS-ADTS 3.1.1.3.4.1.3).
//!
//! Only which objects: what they are like now is asked for as in a full read, so that there is one way to understand an
//! entry. An account without any right may ask, as long as it asks for what it may see; what it may not see is left out,
//! and to that belong, for most accounts, deleted objects.

use std::collections::BTreeSet;
use std::time::Duration;

use ldap3::controls::{Control, RawControl};
use ldap3::{Ldap, Scope};
use tokio::time::timeout;

use super::connection::{ReadError, meaning};
use super::raw;
use crate::sync::mirror::Id;

/// The control, of requests and of answers.
pub(super) const OID: &str = "1.2.840.113556.1.4.841";
/// `LDAP_DIRSYNC_INCREMENTAL_VALUES` and `LDAP_DIRSYNC_OBJECT_SECURITY`: of the members of a group those that came and
/// went, and only what we may see. A signed number, as all of BER.
const FLAGS: [u8; 4] = 0x8000_0001_u32.to_be_bytes();
/// Bytes in one answer, at most: 1 MiB.
const MAX_BYTES: [u8; 3] = [0x10, 0, 0];
/// Answers to one question, at most. A thousand objects come in one, so that the largest domains need some hundreds.
const ANSWERS: u32 = 10_000;

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const SEQUENCE: u8 = 0x30;

/// What changed.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// `objectGUID` of what changed, came or went.
    pub(super) ids: BTreeSet<Id>,
    /// Something has a new name or place. What lies beneath it has a new DN then, and is not told.
    pub(super) moved: bool,
    /// To ask with next time.
    pub(super) cookie: Vec<u8>,
}

/// The cookie of now: of what changes from here on.
pub(super) async fn now(ldap: &mut Ldap, root: &str, limit: Duration) -> Result<Vec<u8>, ReadError> {
    // Nothing is like that, so that nothing is told but the cookie.
    Ok(ask(ldap, root, "(!(objectClass=*))", &["name".to_owned()], Vec::new(), limit).await?.cookie)
}

/// What changed in `attributes` beneath `root`, which must be that of a domain, since `cookie` was given.
pub(super) async fn since(
    ldap: &mut Ldap,
    root: &str,
    attributes: &[String],
    cookie: &[u8],
    limit: Duration,
) -> Result<Changed, ReadError> {
    ask(ldap, root, "(objectClass=*)", attributes, cookie.to_vec(), limit).await
}

async fn ask(
    ldap: &mut Ldap,
    root: &str,
    filter: &str,
    attributes: &[String],
    cookie: Vec<u8>,
    limit: Duration,
) -> Result<Changed, ReadError> {
    let mut changed = Changed { cookie, ..Changed::default() };
    for _ in 0..ANSWERS {
        let one = answer(ldap, root, filter, attributes, &mut changed);
        if !timeout(limit, one).await.map_err(|_| ReadError::Timeout(limit))?? {
            return Ok(changed);
        }
    }
    Err(ReadError::Answer(format!("{ANSWERS} answers, and there are more")))
}

/// Reads one answer; whether there are more.
async fn answer(
    ldap: &mut Ldap,
    root: &str,
    filter: &str,
    attributes: &[String],
    changed: &mut Changed,
) -> Result<bool, ReadError> {
    ldap.with_controls(RawControl { ctype: OID.to_owned(), crit: true, val: Some(request(&changed.cookie)) });
    let mut stream = ldap.streaming_search(root, Scope::Subtree, filter, attributes).await.map_err(ReadError::Lost)?;
    while let Some(item) = stream.next().await.map_err(ReadError::Lost)? {
        if item.is_ref() || item.is_intermediate() {
            continue;
        }
        let entry = raw(item.0, |_| ()).ok_or(ReadError::Unparsable)?;
        let id = entry.values("objectGUID").next().ok_or(ReadError::Unparsable)?;
        changed.ids.insert(id.to_vec());
        // A deleted object has a new name, too; nothing was beneath it.
        changed.moved |= entry.has("name") && !entry.has("isDeleted");
    }
    let end = stream.finish().await;
    if end.rc != 0 {
        return Err(ReadError::Answer(meaning(&end)));
    }
    let control = end.ctrls.iter().find(|Control(_, raw)| raw.ctype == OID);
    let value = control.and_then(|Control(_, raw)| raw.val.as_deref());
    let (more, cookie) = value.and_then(response).ok_or(ReadError::Unparsable)?;
    if cookie.is_empty() || (more && cookie == changed.cookie) {
        return Err(ReadError::Answer("changes without a cookie that goes on".to_owned()));
    }
    changed.cookie = cookie;
    Ok(more)
}

/// `SEQUENCE { Flags INTEGER, MaxBytes INTEGER, Cookie OCTET STRING }`
fn request(cookie: &[u8]) -> Vec<u8> {
    let fields = [element(INTEGER, &FLAGS), element(INTEGER, &MAX_BYTES), element(OCTET_STRING, cookie)];
    element(SEQUENCE, &fields.concat())
}

/// `SEQUENCE { MoreResults INTEGER, unused INTEGER, CookieServer OCTET STRING }`: whether there are more, and the cookie.
fn response(value: &[u8]) -> Option<(bool, Vec<u8>)> {
    let (fields, _) = read_element(value, SEQUENCE)?;
    let (more, fields) = read_element(fields, INTEGER)?;
    let (_, fields) = read_element(fields, INTEGER)?;
    let (cookie, _) = read_element(fields, OCTET_STRING)?;
    Some((more.iter().any(|byte| *byte != 0), cookie.to_vec()))
}

/// An element of BER (X.690, 8.1).
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    match u8::try_from(content.len()) {
        Ok(length) if length < 0x80 => bytes.push(length),
        _ => {
            let length = u32::try_from(content.len()).unwrap_or(u32::MAX).to_be_bytes();
            bytes.push(0x84);
            bytes.extend(length);
        }
    }
    bytes.extend(content);
    bytes
}

/// The content of the element that `bytes` begin with, and what follows it.
fn read_element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = if length < 0x80 {
        (usize::from(length), rest)
    } else {
        let (length, rest) =
            rest.split_at_checked(usize::from(length & 0x7f)).filter(|(length, _)| length.len() <= 4)?;
        (length.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)), rest)
    };
    (first == tag).then(|| rest.split_at_checked(length))?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_request_is_as_other_clients_write_it() {
        // ldapsearch -E '!dirSync=-2147483647/1048576'
        assert_eq!(hex::encode(request(&[])), "300d02048000000102031000000400");
        let long = request(&[7; 200]);
        assert!(hex::encode(&long).starts_with("3084000000d902048000000102031000000484000000c807"));
        assert!(long.ends_with(&[7; 200]));
    }

    #[test]
    fn an_answer_of_samba_is_parsed() {
        let value = "3074020100020100046c4d53445303000000";
        let mut bytes = hex::decode(value).expect("hex");
        bytes.resize(118, 1);
        let (more, cookie) = response(&bytes).expect("an answer");
        assert!(!more && cookie.starts_with(b"MSDS") && cookie.len() == 108);
        bytes[4] = 1;
        assert!(response(&bytes).expect("an answer").0);
    }

    proptest! {
        #[test]
        fn what_is_no_answer_is_none(bytes in proptest::collection::vec(any::<u8>(), 0..40), cookie: Vec<u8>) {
            let _ = response(&bytes);
            let fields = [element(INTEGER, &[1]), element(INTEGER, &[0]), element(OCTET_STRING, &cookie)];
            let whole = element(SEQUENCE, &fields.concat());
            prop_assert_eq!(response(&whole), Some((true, cookie)));
            for length in 0..whole.len() {
                prop_assert_eq!(response(&whole[..length]), None);
            }
        }
    }
}
