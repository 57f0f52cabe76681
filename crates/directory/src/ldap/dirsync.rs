//! Asks an Active Directory what changed since one of its cookies (`LDAP_SERVER_DIRSYNC_OID`, MS-ADTS 3.1.1.3.4.1.3).
//!
//! The answer is used only to learn which objects changed. Their state is requested as in a full read, so that entries
//! are interpreted in one way only. The account needs no special right, because it asks only for objects that it may
//! see. The server leaves out all others; for most accounts, these include deleted objects.

use std::collections::BTreeSet;
use std::time::Duration;

use ldap3::controls::{Control, RawControl};
use ldap3::{Ldap, Scope};
use tokio::time::timeout;

use super::connection::{ReadError, meaning};
use super::raw;
use crate::sync::mirror::Id;

/// The control, in requests and in answers.
pub(super) const OID: &str = "1.2.840.113556.1.4.841";
/// `LDAP_DIRSYNC_INCREMENTAL_VALUES` and `LDAP_DIRSYNC_OBJECT_SECURITY`: for groups, only the members that were added
/// or removed; and only what the bind account may see. BER integers are signed, so the number is negative.
const FLAGS: [u8; 4] = 0x8000_0001_u32.to_be_bytes();
/// The most bytes in one answer: 1 MiB.
const MAX_BYTES: [u8; 3] = [0x10, 0, 0];
/// The most answers to one request. One answer holds about 1,000 objects, so the largest domains need a few hundred.
const ANSWERS: u32 = 10_000;

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const SEQUENCE: u8 = 0x30;

/// The changes since a cookie.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// The `objectGUID` of each object that changed, was added or was removed.
    pub(super) ids: BTreeSet<Id>,
    /// Whether an object was renamed or moved. Objects beneath the moved object have new DNs, which are not reported.
    pub(super) moved: bool,
    /// The cookie of the next request.
    pub(super) cookie: Vec<u8>,
}

/// Returns the current cookie, from which later changes are reported.
pub(super) async fn now(ldap: &mut Ldap, root: &str, limit: Duration) -> Result<Vec<u8>, ReadError> {
    // No object matches this filter, so the answer holds only the cookie.
    Ok(ask(ldap, root, "(!(objectClass=*))", &["name".to_owned()], Vec::new(), limit).await?.cookie)
}

/// Returns what changed in `attributes` beneath `root` since `cookie` was given. `root` must be the root of a domain.
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
    Err(ReadError::Answer(format!("the server has more changes after {ANSWERS} answers")))
}

/// Reads one answer. Returns whether more answers follow.
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
        // A deletion also renames the object, but no objects are beneath a deleted object.
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
        return Err(ReadError::Answer("the server reported changes without a new cookie".to_owned()));
    }
    changed.cookie = cookie;
    Ok(more)
}

/// Encodes `SEQUENCE { Flags INTEGER, MaxBytes INTEGER, Cookie OCTET STRING }`.
fn request(cookie: &[u8]) -> Vec<u8> {
    let fields = [element(INTEGER, &FLAGS), element(INTEGER, &MAX_BYTES), element(OCTET_STRING, cookie)];
    element(SEQUENCE, &fields.concat())
}

/// Decodes `SEQUENCE { MoreResults INTEGER, unused INTEGER, CookieServer OCTET STRING }`. Returns whether more answers
/// follow, and the cookie.
fn response(value: &[u8]) -> Option<(bool, Vec<u8>)> {
    let (fields, _) = read_element(value, SEQUENCE)?;
    let (more, fields) = read_element(fields, INTEGER)?;
    let (_, fields) = read_element(fields, INTEGER)?;
    let (cookie, _) = read_element(fields, OCTET_STRING)?;
    Some((more.iter().any(|byte| *byte != 0), cookie.to_vec()))
}

/// Encodes an element of BER (X.690, 8.1).
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

/// Returns the content of the element at the beginning of `bytes`, and the bytes after it; `None` if its tag is not
/// `tag`, or it is truncated.
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
    fn the_request_is_the_same_as_that_of_ldapsearch() {
        // ldapsearch -E '!dirSync=-2147483647/1048576'
        assert_eq!(hex::encode(request(&[])), "300d02048000000102031000000400");
        let long = request(&[7; 200]);
        assert!(hex::encode(&long).starts_with("3084000000d902048000000102031000000484000000c807"));
        assert!(long.ends_with(&[7; 200]));
    }

    #[test]
    fn an_answer_of_samba_is_parsed() {
        let value = "3074020100020100046c4d53445303000000";
        let mut bytes = hex::decode(value).expect("the value is valid hex");
        bytes.resize(118, 1);
        let (more, cookie) = response(&bytes).expect("the value is a valid answer");
        assert!(!more && cookie.starts_with(b"MSDS") && cookie.len() == 108);
        bytes[4] = 1;
        assert!(response(&bytes).expect("the value is a valid answer").0);
    }

    proptest! {
        #[test]
        fn a_truncated_answer_is_not_parsed(bytes in proptest::collection::vec(any::<u8>(), 0..40), cookie: Vec<u8>) {
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
