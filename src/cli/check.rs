//! `bursar check`: whether the configuration is one.

use serde_json::json;

use super::context::Context;
use super::exit::{Exit, Failure};
use super::output;
use crate::policy::{Class, Policy};
use crate::settings::SettingsErrors;

pub(super) fn run(context: &Context) -> Result<Exit, Failure> {
    match judged(context) {
        Err(Failure { exit, text }) if context.global.json => {
            output::json(&json!({"ok": false, "errors": text.lines().collect::<Vec<_>>()}))?;
            Ok(exit)
        }
        judged => judged,
    }
}

fn judged(context: &Context) -> Result<Exit, Failure> {
    let settings = context.unwarned_settings()?;
    let (errors, credentials) = settings.missing_secrets();
    if !errors.is_empty() {
        return Err(SettingsErrors(errors).into());
    }
    let policy = &settings.policy;
    let warnings = [settings.warnings.clone(), credentials, warnings(policy)].concat();
    let sources: Vec<&str> = settings.source_names().collect();
    if context.global.json {
        output::json(&json!({
            "ok": true,
            "site": settings.site,
            "sources": sources,
            "clusters": policy.clusters.keys().collect::<Vec<_>>(),
            "classes": policy.classes.keys().collect::<Vec<_>>(),
            "warnings": warnings,
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
    for warning in warnings {
        output::line(format!("warning: {warning}"));
    }
    Ok(Exit::Done)
}

/// What the configuration may say, and what it gives away by that.
fn warnings(policy: &Policy) -> Vec<String> {
    let may_escalate = |class: &&Class| class.admission.uid.privilege_escalation;
    let escalation = |class: &Class| {
        format!(
            "class.{}.admission.uid.privilege_escalation: a setuid file in an image or an added capability makes any uid \
             of a pod, and NFS believes it; remove the key if the pods of the class can do without",
            class.name
        )
    };
    policy.classes.values().filter(may_escalate).map(escalation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::policy;

    #[test]
    fn a_class_that_may_escalate_is_warned_of() {
        let mut policy = policy();
        assert_eq!(warnings(&policy), Vec::<String>::new());
        let class = policy.classes.get_mut("student").expect("a class of the sample");
        class.admission.uid.privilege_escalation = true;
        let said = warnings(&policy);
        assert!(
            matches!(&*said, [one] if one.starts_with("class.student.admission.uid.privilege_escalation: ")),
            "{said:?}"
        );
    }
}
