//! The notice that the kubeconfig of a suspended account shows instead of using a credential.

use serde::{Deserialize, Serialize};

/// An `exec` plugin that prints one sentence and returns no credential: `sh` with a fixed script. The sentence is an
/// argument of the script, not a part of it, so the shell does not execute anything in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuspensionNotice {
    /// The account in the sentence, such as `tool foo`.
    pub account: String,
    /// The beginning of the suspension.
    pub since: String,
    /// The end of the suspension; `None` if it is not known.
    #[serde(default)]
    pub until: Option<String>,
    /// The address to ask.
    pub contact: String,
}

/// The longest part of a notice, in bytes: a name, a time, an address.
pub const MAX_NOTICE_BYTES: usize = 256;

/// Prints its first argument to standard error, and fails.
const SCRIPT: &str = "printf '%s\\n' \"$1\" >&2; exit 1";

impl SuspensionNotice {
    /// Checks that the notice can be written. If not, returns the reason.
    pub fn check(&self) -> Result<(), String> {
        let Self { account, since, until, contact } = self;
        let mut parts = [account, since, contact].into_iter().chain(until);
        if parts.all(|part| is_plain(part)) { Ok(()) } else { Err("a part of the notice is not plain text".to_owned()) }
    }

    /// Returns the sentence that the account's people read.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { account, since, until, contact } = self;
        let until = until.as_ref().map(|until| format!(" until {until}")).unwrap_or_default();
        format!("{account} is suspended since {since}{until}; ask {contact}")
    }

    /// Returns the arguments of `sh`.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        vec!["-c".to_owned(), SCRIPT.to_owned(), "sh".to_owned(), self.text()]
    }
}

/// Whether a terminal shows the text as one line and nothing else: it has no control characters, and no characters that
/// change the direction of text.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    let turns =
        |letter: char| matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !text.trim().is_empty()
        && text.len() <= MAX_NOTICE_BYTES
        && !text.chars().any(|letter| letter.is_control() || turns(letter))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn notice(contact: &str) -> SuspensionNotice {
        let (account, since) = ("tool foo".to_owned(), "2026-11-22T21:00:00Z".to_owned());
        SuspensionNotice { account, since, until: None, contact: contact.to_owned() }
    }

    #[test]
    fn a_notice_is_printed_and_nothing_in_it_is_run() {
        for contact in ["help@example.org", "$(id) `id`; id | id > x", "'; id #", "\"; id #", "%s%n \\n -e"] {
            let notice = notice(contact);
            assert_eq!(notice.check(), Ok(()));
            let output = Command::new("sh").args(notice.arguments()).output().expect("sh can be run");
            assert!(!output.status.success() && output.stdout.is_empty());
            let said = String::from_utf8(output.stderr).expect("the output is UTF-8");
            assert_eq!(said, format!("tool foo is suspended since 2026-11-22T21:00:00Z; ask {contact}\n"));
        }
    }

    #[test]
    fn a_notice_is_one_line_of_plain_text() {
        let long = "x".repeat(MAX_NOTICE_BYTES + 1);
        for contact in ["", " ", "a\nb", "\u{1b}[2J", "a\u{202e}b", &long] {
            assert!(notice(contact).check().is_err(), "{contact:?}");
        }
    }
}
