//! Reads the claims of a service-account token (RFC 7519, Kubernetes `TokenRequest`). It does not verify the token, and
//! never keeps it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Claims of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// `jti`: the `credential-id` of audit events. If the API server sets none (before 1.30), the SHA-256 of the token.
    pub id: String,
    /// `sub`: `system:serviceaccount:NAMESPACE:NAME`.
    pub subject: String,
    /// `nbf`, seconds since 1970.
    pub not_before: i64,
    /// `exp`, seconds since 1970.
    pub not_after: i64,
    /// Name and uid of the Secret to which the token is bound. The token ends with the Secret.
    pub secret: Option<(String, String)>,
}

/// Returns the claims in the token's payload; `None` if the text is not such a token.
#[must_use]
pub fn claims(token: &str) -> Option<Claims> {
    let mut parts = token.trim().split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let secret = &claims["kubernetes.io"]["secret"];
    Some(Claims {
        id: text(&claims["jti"]).unwrap_or_else(|| hex::encode(Sha256::digest(token.trim()))),
        subject: text(&claims["sub"])?,
        not_before: claims["nbf"].as_i64().or_else(|| claims["iat"].as_i64())?,
        not_after: claims["exp"].as_i64()?,
        secret: text(&secret["name"]).zip(text(&secret["uid"])),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_read_from_the_payload_of_a_token() {
        let payload = json!({
            "jti": "0b0c", "sub": "system:serviceaccount:tool-foo:bursar-g7", "iat": 10, "nbf": 10, "exp": 3610,
            "kubernetes.io": {"secret": {"name": "bursar-host-ce1", "uid": "u1"}},
        });
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload.to_string()));
        let claims = claims(&token).expect("the token has all claims");
        assert_eq!((claims.id.as_str(), claims.not_before, claims.not_after), ("0b0c", 10, 3610));
        assert_eq!(claims.secret, Some(("bursar-host-ce1".to_owned(), "u1".to_owned())));
        for wrong in ["", "a.b", "a.b.c.d", "e30.e30.x", "e30.!.x"] {
            assert_eq!(super::claims(wrong), None, "{wrong}");
        }
    }
}
