//! `bursar check`: whether the configuration is one.

use serde_json::json;

use super::context::Context;
use super::exit::{Exit, Failure};
use super::output;

pub(super) fn run(context: &Context) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let policy = &settings.policy;
    let sources: Vec<&str> = settings.source_names().collect();
    if context.global.json {
        output::json(&json!({
            "ok": true,
            "site": settings.site,
            "sources": sources,
            "clusters": policy.clusters.keys().collect::<Vec<_>>(),
            "classes": policy.classes.keys().collect::<Vec<_>>(),
        }))?;
        return Ok(Exit::Done);
    }
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    output::line(format!(
        "{}: good. {}, {}, {}",
        context.global.config.display(),
        count(sources.len(), "source"),
        count(policy.clusters.len(), "cluster"),
        if policy.classes.len() == 1 { "1 class".to_owned() } else { format!("{} classes", policy.classes.len()) },
    ));
    if policy.classes.is_empty() {
        output::line("No [class.NAME]: nobody becomes a tenant.");
    }
    Ok(Exit::Done)
}
