//! The content of Bursar's user entry in a kubeconfig, for each kind of credential.
//!
//! A kubeconfig can name a program that kubectl runs as its user. Therefore a request cannot contain the program or its
//! arguments; they are fixed here. An attacker who takes over the daemon can choose only an issuer and a client.

use serde::{Deserialize, Serialize};

use crate::{SecretText, SuspensionNotice, is_our_user};

/// An item of `users[]` in a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserEntry {
    /// The name, by which the entry is found again.
    pub name: String,
    /// The credential.
    pub proof: UserProof,
}

/// The credential of a user entry. The enum is tagged externally, for the reason given at [`Work`](crate::Work).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum UserProof {
    /// A client certificate, inline.
    Certificate {
        /// The certificate as PEM; it is public.
        certificate_pem: String,
        /// The private key as PEM.
        key_pem: SecretText,
    },
    /// A token in a file, which clients read again after each replacement.
    Token(TokenFiles),
    /// A login with kubelogin.
    Login(Login),
    /// No credential: kubectl prints why there is none.
    Notice(SuspensionNotice),
}

/// The files of a folder next to the kubeconfig; the folder has the name of the user entry. The files are named as in
/// pods (`/var/run/secrets/kubernetes.io/serviceaccount`), so that the folder can be mounted there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenFiles {
    /// The file `token`: a JSON web token.
    pub token: SecretText,
    /// The file `ca.crt`: the certificates of the authorities to trust, PEM.
    pub ca_pem: String,
    /// The file `namespace`.
    pub namespace: String,
    /// `KUBERNETES_SERVICE_HOST` in `kubernetes.env`.
    pub service_host: String,
    /// `KUBERNETES_SERVICE_PORT` in `kubernetes.env`.
    pub service_port: u16,
}

/// An `exec` plugin that can only be `kubectl oidc-login get-token` (int128/kubelogin).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// `--oidc-issuer-url`.
    pub issuer: String,
    /// `--oidc-client-id`. The client is public: it has no secret.
    pub client_id: String,
    /// One `--oidc-extra-scope` for each.
    pub scopes: Vec<String>,
    /// `--grant-type`.
    pub grant: Grant,
}

/// How kubelogin gets a token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grant {
    /// A login with a browser if the host has one, otherwise with the keyboard.
    #[default]
    Auto,
    /// A login with a browser on another device, for hosts without a browser (RFC 8628).
    DeviceCode,
}

impl Grant {
    /// Returns the value of `--grant-type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::DeviceCode => "device-code",
        }
    }
}

/// The names of the files of [`TokenFiles`]. The token is written last, so a program that finds the token finds the
/// other files too.
pub const TOKEN_FILES: [&str; 4] = ["ca.crt", "namespace", "kubernetes.env", TOKEN];
/// The name of the token's file, the only secret one.
pub const TOKEN: &str = "token";

impl UserEntry {
    /// Checks that the entry can be written. If not, returns the reason.
    pub fn check(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(what.to_owned());
        match &self.proof {
            UserProof::Token(_) if folder(&self.name).is_none() => {
                wrong("the name of a user with a token is not a valid name of a folder")
            }
            UserProof::Token(files) => files.check(),
            UserProof::Login(login) if !is_issuer(&login.issuer) => wrong("the issuer is not an https URL"),
            UserProof::Login(login) if !login.scopes.iter().chain([&login.client_id]).all(|word| is_word(word)) => {
                wrong("a client or a scope contains a character that is not allowed")
            }
            UserProof::Notice(notice) => notice.check(),
            UserProof::Certificate { .. } | UserProof::Login(_) => Ok(()),
        }
    }
}

/// Returns the folder of a user's files, relative to the kubeconfig's folder; `None` if the user's name is not a plain
/// file name.
#[must_use]
pub fn folder(user: &str) -> Option<&str> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (is_our_user(user) && user.bytes().all(plain)).then_some(user)
}

impl TokenFiles {
    /// Checks the values of the environment file. People read it into their shells, so a value must not be a command.
    fn check(&self) -> Result<(), String> {
        let address = |byte: u8| byte.is_ascii_alphanumeric() || b".-:".contains(&byte);
        let label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is = |text: &str, of: &dyn Fn(u8) -> bool| !text.is_empty() && text.bytes().all(of);
        if !is(&self.service_host, &address) || !is(&self.namespace, &label) || !is(self.token.expose(), &token) {
            return Err("the token, the namespace or the address is malformed".to_owned());
        }
        Ok(())
    }

    /// Returns the content of one of [`TOKEN_FILES`].
    #[must_use]
    pub fn content(&self, file: &str) -> zeroize::Zeroizing<String> {
        zeroize::Zeroizing::new(match file {
            "ca.crt" => self.ca_pem.clone(),
            "namespace" => self.namespace.clone(),
            TOKEN => self.token.expose().to_owned(),
            _ => format!(
                "KUBERNETES_SERVICE_HOST={}\nKUBERNETES_SERVICE_PORT={}\nKUBERNETES_SERVICE_PORT_HTTPS={}\n",
                self.service_host, self.service_port, self.service_port
            ),
        })
    }
}

impl Login {
    /// Returns the arguments of kubectl.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "oidc-login".to_owned(),
            "get-token".to_owned(),
            format!("--oidc-issuer-url={}", self.issuer),
            format!("--oidc-client-id={}", self.client_id),
        ];
        arguments.extend(self.scopes.iter().map(|scope| format!("--oidc-extra-scope={scope}")));
        if self.grant != Grant::Auto {
            arguments.push(format!("--grant-type={}", self.grant.as_str()));
        }
        arguments
    }
}

/// Whether the text is `https://`, followed only by characters of URLs.
#[must_use]
pub fn is_issuer(text: &str) -> bool {
    text.strip_prefix("https://").is_some_and(|rest| rest.len() < 1024 && is_word(rest))
}

/// Whether the text can be an argument of kubelogin: it has no spaces, quotes or commas. A comma would separate two
/// scopes.
#[must_use]
pub fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:/+-~%".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(host: &str, namespace: &str, token: &str) -> UserEntry {
        let files = TokenFiles {
            token: SecretText::new(token.to_owned()),
            ca_pem: String::new(),
            namespace: namespace.to_owned(),
            service_host: host.to_owned(),
            service_port: 6443,
        };
        UserEntry { name: "bursar-prod".to_owned(), proof: UserProof::Token(files) }
    }

    fn login(issuer: &str, client_id: &str, scope: &str) -> UserEntry {
        let login = Login {
            issuer: issuer.to_owned(),
            client_id: client_id.to_owned(),
            scopes: vec![scope.to_owned()],
            grant: Grant::DeviceCode,
        };
        UserEntry { name: "bursar-prod".to_owned(), proof: UserProof::Login(login) }
    }

    #[test]
    fn an_environment_file_contains_no_commands() {
        let good = files("api.example.org", "tool-foo", "a.b_c.d-e");
        assert_eq!(good.check(), Ok(()));
        assert_eq!(files("2001:db8::1", "tool-foo", "a.b.c").check(), Ok(()));
        for host in ["", "$(id)", "a b", "a\nPATH=/tmp", "a;id", "a`id`"] {
            assert!(files(host, "tool-foo", "a.b.c").check().is_err(), "{host}");
        }
        assert!(files("a", "../x", "a.b.c").check().is_err());
        assert!(files("a", "tool-foo", "a b").check().is_err());
        for name in ["bursar-../x", "bursar-a/b", "prod", "bursar-a b", "bursar-."] {
            assert!(UserEntry { name: name.to_owned(), ..good.clone() }.check().is_err(), "{name}");
        }
    }

    #[test]
    fn a_login_runs_kubelogin_and_nothing_else() {
        let good = login("https://sso.example.org/realms/site", "kubernetes", "email");
        assert_eq!(good.check(), Ok(()));
        let UserProof::Login(good) = good.proof else { panic!("the entry is a login") };
        let arguments = good.arguments().join(" ");
        assert_eq!(
            arguments,
            "oidc-login get-token --oidc-issuer-url=https://sso.example.org/realms/site --oidc-client-id=kubernetes \
             --oidc-extra-scope=email --grant-type=device-code"
        );
        for (issuer, client_id, scope) in [
            ("http://sso.example.org", "kubernetes", "email"),
            ("https://", "kubernetes", "email"),
            ("https://sso.example.org --browser-command=id", "kubernetes", "email"),
            ("https://sso.example.org", "kube rnetes", "email"),
            ("https://sso.example.org", "kubernetes", "email,admin"),
        ] {
            assert!(login(issuer, client_id, scope).check().is_err(), "{issuer} {client_id} {scope}");
        }
    }
}
