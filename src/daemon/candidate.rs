//! Another configuration, of which somebody asks what it would do. It can name any file as a password and any server to send
//! it to, so the daemon reads it only for callers who can read those files themselves.

use std::path::Path;

use crate::control::api::{ConfigText, PlanRequest};
use crate::cycle::Ask;
use crate::errors::chain;
use crate::orders::request::Refusal;
use crate::settings::{Settings, SettingsErrors};

/// What is to be previewed. A configuration that is the one in force is none.
///
/// # Errors
/// The caller is not `trusted` to have it read, or it is wrong.
pub(super) fn ask(file: &Path, in_force: &Settings, request: PlanRequest, trusted: bool) -> Result<Ask, Refusal> {
    let PlanRequest { config, at } = request;
    let Some(ConfigText { file: other, text }) = config else { return Ok(Ask { other: None, at }) };
    if !trusted {
        let unchanged = std::fs::read_to_string(file).is_ok_and(|ours| ours == text);
        if unchanged && in_force.differing_file().is_none() {
            return Ok(Ask { other: None, at });
        }
        let text = format!(
            "{} cannot be planned for you: the daemon would read the passwords that it names; run: sudo bursar plan \
             --config {}",
            other.display(),
            other.display()
        );
        return Err(Refusal { exit_code: 77, text });
    }
    let settings = Settings::parse(&other, &text).map_err(|errors| wrong(&errors))?;
    let other = (!settings.is_same(in_force)).then(|| Box::new(settings));
    Ok(Ask { other, at })
}

/// The refusal of a configuration that is wrong.
pub(super) fn wrong(errors: &SettingsErrors) -> Refusal {
    Refusal { exit_code: 78, text: chain(errors) }
}
