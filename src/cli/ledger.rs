//! `bursar ledger verify`.

use serde_json::json;

use super::context::Context;
use super::exit::{Exit, Failure};
use super::output;

pub(super) async fn verify(context: &Context) -> Result<Exit, Failure> {
    let mut store = context.store().await?;
    let progress = output::progress("checking the history");
    let checked = store.verify().await;
    progress.finish_and_clear();
    let (last, hash) = checked.map_err(|error| Failure::from(anyhow::Error::new(error)))?;
    if context.global.json {
        output::json(&json!({"ok": true, "events": last, "head": hash}))?;
    } else {
        output::line(format!("the history holds: {last} events, the last of hash {hash}"));
    }
    Ok(Exit::Done)
}
