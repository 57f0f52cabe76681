//! Loads another configuration for a preview. Such a configuration can name any file as a password, and any server to
//! which the daemon sends the password. Therefore the daemon loads it only for callers who can read those files
//! themselves.

use std::path::Path;

use crate::control::api::{ConfigText, PlanRequest};
use crate::cycle::Ask;
use crate::errors::chain;
use crate::orders::request::RequestRefusal;
use crate::settings::{Settings, SettingsErrors};

/// Returns what to preview. If the configuration equals the one in force, it is left out.
///
/// # Errors
/// The caller is not `trusted` to have the configuration loaded, or the configuration is wrong.
pub(super) fn ask(
    file: &Path,
    in_force: &Settings,
    request: PlanRequest,
    trusted: bool,
) -> Result<Ask, RequestRefusal> {
    let PlanRequest { config, at } = request;
    let Some(ConfigText { file: other, text }) = config else { return Ok(Ask { other: None, at }) };
    if !trusted {
        let unchanged = std::fs::read_to_string(file).is_ok_and(|ours| ours == text);
        if unchanged && in_force.differing_file().is_none() {
            return Ok(Ask { other: None, at });
        }
        let text = format!(
            "cannot plan with {}: the daemon does not read for you the passwords that this file names; run: sudo \
             bursar plan --config {}",
            other.display(),
            other.display()
        );
        return Err(RequestRefusal { exit_code: 77, text });
    }
    let settings = Settings::parse(&other, &text).map_err(|errors| wrong(&errors))?;
    let other = (!settings.is_same(in_force)).then(|| Box::new(settings));
    Ok(Ask { other, at })
}

/// Returns the refusal of a wrong configuration.
pub(super) fn wrong(errors: &SettingsErrors) -> RequestRefusal {
    RequestRefusal { exit_code: 78, text: chain(errors) }
}
