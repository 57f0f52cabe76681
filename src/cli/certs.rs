//! `bursar certs`: which certificates and tokens are good and until when, and who holds one.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::arguments::{Certs, CertsCommand};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::{self, Row};
use crate::daemon;

/// What audit events write before the digits (`credential-id`, Kubernetes 1.30 and later).
const AUDIT_PREFIX: &str = "X509SHA256=";
/// What they write before the id of a token.
const TOKEN_PREFIX: &str = "JTI=";

const WHO: &str = "SELECT a.kind || ':' || a.name AS account, a.state, c.cluster, c.host, c.subject, c.fingerprint, c.not_before, c.not_after,
       c.newest = 1 AND c.generation = a.generation AND a.state = 'active' AS good
FROM certificate c JOIN account a ON a.id = c.account_id WHERE c.fingerprint = ?1";

pub(super) async fn run(context: &Context, arguments: &Certs) -> Result<Exit, Failure> {
    if let Some(CertsCommand::Who { fingerprint }) = &arguments.command {
        return who(context, fingerprint).await;
    }
    let mut rows = context.store().await?.rows("SELECT * FROM expiring_certificates", &[]).await?;
    if let Some(within) = arguments.expiring {
        let within = SignedDuration::try_from(within).unwrap_or(SignedDuration::MAX);
        let until = daemon::now().checked_add(within).unwrap_or(Timestamp::MAX);
        rows.retain(|row| ends_before(row, until));
    }
    let columns = ["account", "cluster", "kind", "host", "not_after", "renew_after", "fingerprint"];
    let none = if arguments.expiring.is_some() { "nothing expires within that time" } else { "no certificates" };
    output::list(context, &rows, &columns, none)
}

fn ends_before(row: &Row, until: Timestamp) -> bool {
    let end = row.get("not_after").and_then(Value::as_str).and_then(|text| text.parse::<Timestamp>().ok());
    end.is_none_or(|end| end <= until)
}

async fn who(context: &Context, fingerprint: &str) -> Result<Exit, Failure> {
    let Some(digits) = digits(fingerprint) else {
        let text = format!(
            "{fingerprint:?} is neither the SHA-256 of a certificate nor the id of a token; for example \
             {AUDIT_PREFIX}9a19ac7c…, 64 digits, or {TOKEN_PREFIX}4f0c…"
        );
        return Err(Failure::new(Exit::Usage, text));
    };
    let row = context.store().await?.rows(WHO, &[digits]).await?.pop();
    let Some(mut row) = row else {
        return Err(Failure::new(Exit::NoAccount, "no certificate or token of that id was ever issued here"));
    };
    let good = row.get("good").and_then(Value::as_i64) == Some(1);
    row.insert("good".to_owned(), Value::Bool(good));
    if context.global.json {
        output::json(&row)?;
    } else {
        output::line(output::pairs(&row));
    }
    Ok(Exit::Done)
}

/// 64 hex digits, lower case, or a token's id as it is.
fn digits(fingerprint: &str) -> Option<String> {
    if let Some(id) = fingerprint.strip_prefix(TOKEN_PREFIX) {
        return Some(id.to_owned()).filter(|id| !id.is_empty());
    }
    let digits = fingerprint.strip_prefix(AUDIT_PREFIX).unwrap_or(fingerprint).replace(':', "").to_ascii_lowercase();
    (digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit())).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_come_from_audit_events_and_openssl() {
        let plain = "9a".repeat(32);
        assert_eq!(digits(&format!("X509SHA256={plain}")), Some(plain.clone()));
        assert_eq!(digits(&vec!["9A"; 32].join(":")), Some(plain));
        assert_eq!(digits("9a19"), None);
        assert_eq!(digits("JTI=4f0c-1"), Some("4f0c-1".to_owned()));
    }
}
