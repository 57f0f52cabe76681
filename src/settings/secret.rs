//! Names the place of a password, and reads the password from there. A password is never printed, and is never part of
//! an argument or of the environment.

use std::env;
use std::path::{Path, PathBuf};

use bursar_directory::source::Secret;

use super::table::Table;

/// The folder of credentials outside the systemd unit; the files have mode 0640 and owner root:bursar.
const CREDENTIALS: &str = "/etc/bursar/credentials";
/// The variable that names the folder of the credentials of `LoadCredential=` (systemd.exec(5)).
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// The place of a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretPlace {
    /// `{ credential = NAME }`: in `$CREDENTIALS_DIRECTORY`, else in `/etc/bursar/credentials`.
    Credential(String),
    /// `{ file = PATH }`.
    File(PathBuf),
}

impl SecretPlace {
    /// Reads the value of `key`. Errors do not show the value, because it may be the password itself.
    pub(super) fn of(table: &Table<'_>, key: &str) -> Option<Self> {
        const FORM: &str = "is { credential = \"NAME\" } or { file = \"/path\" }, never the password itself";
        const RELATIVE: &str = "file is not an absolute path; for example { file = \"/etc/bursar/password\" }";
        let fields = table.value(key)?.as_object().filter(|fields| fields.len() == 1);
        let place = fields.and_then(|fields| {
            let (form, value) = fields.iter().next()?;
            let value = value.as_str().filter(|value| !value.is_empty())?;
            match form.as_str() {
                "credential" if !value.contains('/') && value != ".." => Some(Self::Credential(value.to_owned())),
                "file" if Path::new(value).is_absolute() => Some(Self::File(PathBuf::from(value))),
                _ => None,
            }
        });
        if place.is_none() {
            let is_file = fields.is_some_and(|fields| fields.get("file").is_some_and(serde_json::Value::is_string));
            table.wrong(key, if is_file { RELATIVE } else { FORM });
        }
        place
    }

    /// Returns the current path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Credential(name) => {
                let handed = env::var_os(CREDENTIALS_VARIABLE).map(|folder| Path::new(&folder).join(name));
                handed.filter(|path| path.exists()).unwrap_or_else(|| Path::new(CREDENTIALS).join(name))
            }
        }
    }

    /// Returns why the password is missing; `None` if it exists, or if this process may not check that. The password is
    /// not read.
    pub(super) fn missing(&self) -> Option<String> {
        let path = self.path();
        let why = match std::fs::metadata(&path) {
            Ok(file) if file.len() == 0 => format!("{} is empty", path.display()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("{}: {error}", path.display()),
            _ => return None,
        };
        Some(match self {
            Self::File(_) => why,
            Self::Credential(name) => format!("{why}; this is correct only if the unit has LoadCredential={name}:FILE"),
        })
    }

    /// Reads the password, without the newline that editors leave at its end.
    pub(super) fn read(&self) -> Result<Secret, String> {
        let path = self.path();
        let remedy = "write the secret into it (owner root:bursar, mode 0640)";
        let text = std::fs::read_to_string(&path).map_err(|error| super::file_error(&path, &error, remedy))?;
        let text = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
        if text.is_empty() { Err(format!("{} is empty", path.display())) } else { Ok(Secret::new(text.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newline_at_the_end_is_not_part_of_the_password() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let path = folder.path().join("password");
        for (text, password) in [("secret\n", "secret"), ("secret\r\n", "secret"), (" secret \n", " secret ")] {
            std::fs::write(&path, text).expect("the folder is writable");
            let read = SecretPlace::File(path.clone()).read().expect("the file has a password");
            assert_eq!(read.reveal(), password);
        }
        std::fs::write(&path, "\n").expect("the folder is writable");
        assert!(SecretPlace::File(path).read().is_err());
    }
}
