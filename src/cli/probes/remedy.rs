//! Remedies for a directory that does not answer completely, by cause.

/// Words of the reason that the directory reader returns, each with the remedy for that cause. The first match counts.
/// A wrong password comes first: if the reason also names a server that is not reached, that is the smaller problem.
const REMEDIES: [(&[&str], &str); 10] = [
    (
        &["bind_dn has no password"],
        "put the password where source.password expects it, with mode 0640 and owner root:bursar, and run: bursar check",
    ),
    (
        &["login of client"],
        "correct client_id and client_secret, and let the client have a service account (\"Service accounts roles\")",
    ),
    (&["there is no realm"], "correct realm and url of the source: the server has no such realm"),
    (
        &["bind as client_certificate", "bind as the user of this process"],
        "let the directory accept this identity (OpenLDAP: olcAuthzRegexp), and test it: ldapwhoami -Y EXTERNAL -H URL",
    ),
    (
        &["wrong name or password (49)", "inappropriate authentication (48)"],
        "the directory refuses the name or the password; test both: ldapwhoami -x -D BIND_DN -W -H URL, and correct \
         bind_dn or the password",
    ),
    (
        &["bind as"],
        "the directory refuses the bind, but not because of the password: see the reason and its log; if it demands \
         stronger authentication (8), use ldaps:// or starttls",
    ),
    (
        &[
            "UnknownIssuer",
            "certificate is not from",
            "TLS failed",
            "CaUsedAsEndEntity",
            "NotValidForName",
            "certificate",
        ],
        "set ca to the PEM file of the authority that signed the server's certificate, and use a name in urls that is in the \
         certificate; to see both: openssl s_client -showcerts -connect HOST:636",
    ),
    (
        &["no such base", "the base is not a DN"],
        "correct base in source.tools, source.users or source.groups: the directory has no such entry, or does not show it \
         to bind_dn",
    ),
    (
        &[
            "cannot connect",
            "no connection within",
            "failed to lookup",
            "Connection refused",
            "connection lost",
            "no answer",
        ],
        "check urls, the firewall and whether the directory runs; until it answers, no account of this source is suspended \
         for absence",
    ),
    (
        &["sentinel"],
        "the directory does not show an entry of sentinels: let bind_dn read it, raise its size limit, or correct sentinels",
    ),
];
/// The remedy for any other cause.
const OTHER: &str = "see the reason and the directory's log; until a read is complete, no account of this source is suspended for absence";

/// Returns the remedy for a read that is incomplete because of `why`.
pub(in crate::cli) fn of(why: &str) -> &'static str {
    let fits = |words: &[&str]| words.iter().any(|word| why.contains(word));
    REMEDIES.iter().find(|(words, _)| fits(words)).map_or(OTHER, |(_, remedy)| remedy)
}

#[cfg(test)]
mod tests {
    use bursar_directory::keycloak::RealmError;
    use bursar_directory::ldap::{ReadError, words};
    use reqwest::StatusCode;

    use super::*;

    #[test]
    fn every_cause_has_its_own_remedy() {
        let bind = |name: &str, code| {
            let why = format!("{} ({code}): the server's text", words(code));
            let refused = ReadError::BindRefused { name: name.to_owned(), why, for_good: false };
            format!("ldap1: {refused}")
        };
        let reader = "cn=bursar,dc=x";
        let status = StatusCode::UNAUTHORIZED;
        let why = "Invalid client or Invalid client credentials".to_owned();
        let realm = |error: RealmError| format!("https://sso.example.org, realm x: {error}");
        let untrusted = ReadError::Untrusted;
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let unknown = std::io::Error::other("failed to lookup address information");
        let connect = |cause: std::io::Error| crate::errors::chain(&ReadError::Connect(cause));
        let whys = [
            (ReadError::NoPassword.to_string(), "mode 0640"),
            (bind(reader, 49), "ldapwhoami -x"),
            (bind(reader, 48), "ldapwhoami -x"),
            (bind(reader, 8), "not because of the password"),
            (bind(reader, 51), "not because of the password"),
            (bind(reader, 53), "not because of the password"),
            (bind("client_certificate", 49), "olcAuthzRegexp"),
            (bind("the user of this process", 48), "olcAuthzRegexp"),
            (realm(RealmError::Login { client: "bursar".to_owned(), status, why: why.clone() }), "correct client_id"),
            (realm(RealmError::NoRealm { realm: "x".to_owned(), why }), "correct realm"),
            (realm(RealmError::Timeout(std::time::Duration::from_secs(1))), "check urls"),
            (format!("ldap1: {untrusted}"), "set ca"),
            (format!("tools beneath ou=tols,dc=x: {} (32)", words(32)), "correct base"),
            (format!("tools beneath tols: {} (34)", words(34)), "correct base"),
            (connect(refused()), "check urls"),
            (connect(unknown), "check urls"),
            ("sentinel not found: uid=novaadmin,ou=people,dc=x".to_owned(), "sentinels"),
            (format!("{} (4)", words(4)), "the directory's log"),
        ];
        for (why, remedy) in whys {
            assert!(of(&why).contains(remedy), "{why}: {}", of(&why));
        }
    }
}
