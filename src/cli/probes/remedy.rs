//! Remedies for a directory that does not answer completely, by cause. Pure.

/// Words of the reason that the directory reader returns, each with the remedy for that cause. The first match counts.
/// A wrong password comes first: if the reason also names a server that is not reached, that is the smaller problem.
const REMEDIES: [(&[&str], &str); 6] = [
    (
        &["bind_dn has no password"],
        "put the password where source.password expects it, with mode 0640 and owner root:bursar, and run: bursar check",
    ),
    (
        &["bind as", "invalidCredentials", "unauthorized_client", "invalid_client"],
        "the directory refuses the name or the password; test both: ldapwhoami -x -D BIND_DN -W -H URL, and correct \
         bind_dn or the password",
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
        &["noSuchObject", "No such object", "(rc=32)"],
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
    use super::*;

    #[test]
    fn every_cause_has_its_own_remedy() {
        let whys = [
            ("ldap1: bind_dn has no password; set password", "mode 0640"),
            ("ldap1: bind as cn=bursar,dc=x refused: invalidCredentials", "ldapwhoami"),
            ("ldap1: its certificate is not from an issuer in ca (UnknownIssuer)", "set ca"),
            ("ou=tols,dc=x: noSuchObject (rc=32)", "correct base"),
            ("ldap1: cannot connect: Connection refused (os error 111)", "check urls"),
            ("ldap1: cannot connect: failed to lookup address information", "check urls"),
            ("the sentinel uid=novaadmin is not there", "sentinels"),
            ("sizeLimitExceeded", "the directory's log"),
        ];
        for (why, remedy) in whys {
            assert!(of(why).contains(remedy), "{why}: {}", of(why));
        }
    }
}
