//! Requests a token of a service account from the API server (`TokenRequest`). The token is bound to the Secret of one
//! host, and becomes invalid when the Secret is deleted. It is passed to `bursar-homed` and overwritten; no plan,
//! ledger, log or error ever contains it.

use bursar_protocol::{SecretText, claims};
use jiff::Timestamp;
use serde_json::{Value, json};
use zeroize::Zeroize as _;

use super::StepError;
use super::apply::refused;
use super::request::{ApiServer, Ask};
use crate::certificate::Issued;
use crate::desired::{SERVICE_ACCOUNT, TokenOf};
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::Certificate;

/// Why a token is not delivered. The text contains the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The answer contains no token with the claims of a service account.
    #[error("the API server's answer is not a token of a service account")]
    Unreadable,
    /// The token differs from what was requested.
    #[error("the token's {what} is {found}, not {asked}; it is not delivered")]
    Unusable {
        /// The name of the claim.
        what: &'static str,
        /// The value of the claim.
        found: String,
        /// The value that was requested.
        asked: String,
    },
}

/// Requests a token. Returns it with its record for the ledger.
pub async fn request(
    server: &ApiServer,
    token: &TokenOf,
    generation: u64,
) -> Result<(SecretText, Certificate), StepError> {
    let TokenOf { namespace, service_account, secret, lifetime } = token;
    let asked = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": lifetime.as_secs(),
            "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": secret},
        },
    });
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token");
    let key = ObjectKey::new(&server.cluster, ManagedKind::ServiceAccount, Some(namespace.as_str()), service_account);
    let answer = server.ask(&path, Ask::Create(&asked)).await.map_err(|error| refused(&key, error))?;
    let text = taken(answer.object).ok_or_else(|| unusable(TokenError::Unreadable))?;
    let certificate = checked(&text, token, generation).map_err(unusable)?;
    Ok((text, certificate))
}

fn unusable(error: TokenError) -> StepError {
    StepError::Credential(Box::new(error))
}

/// Takes the token out of an answer, and overwrites the answer's copy.
fn taken(mut answer: Value) -> Option<SecretText> {
    match answer["status"]["token"].take() {
        Value::String(mut text) => {
            let token = SecretText::new(text.clone());
            text.zeroize();
            Some(token)
        }
        _ => None,
    }
}

/// Checks that the token is as requested. Returns its record for the ledger, with its actual lifetime.
fn checked(text: &SecretText, token: &TokenOf, generation: u64) -> Result<Certificate, TokenError> {
    let claims = claims(text.expose()).ok_or(TokenError::Unreadable)?;
    let subject = format!("{SERVICE_ACCOUNT}{}:{}", token.namespace, token.service_account);
    let other = |what, found: &str, asked: &str| {
        Err(TokenError::Unusable { what, found: found.to_owned(), asked: asked.to_owned() })
    };
    if claims.subject != subject {
        return other("subject", &claims.subject, &subject);
    }
    let Some((_, uid)) = claims.secret.filter(|(name, _)| *name == token.secret) else {
        return other("end", "not that of a Secret of Bursar", &format!("that of Secret {}", token.secret));
    };
    let time = |second| Timestamp::from_second(second).map_err(|_| TokenError::Unreadable);
    let (not_before, not_after) = (time(claims.not_before)?, time(claims.not_after)?);
    // The API server may shorten the lifetime, but must not lengthen it.
    let most = i64::try_from(token.lifetime.as_secs()).unwrap_or(i64::MAX);
    if !(1..=most).contains(&not_after.duration_since(not_before).as_secs()) {
        return other("lifetime", &not_after.duration_since(not_before).to_string(), &format!("{most} s at most"));
    }
    Ok(Issued { fingerprint: claims.id, not_before, not_after }.of(subject, generation, Some(uid)))
}
