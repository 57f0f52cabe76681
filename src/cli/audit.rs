//! `bursar webhook audit`: lists existing objects that break rules, under the configuration in force or another one.

use std::collections::BTreeMap;

use super::admin;
use super::arguments::WebhookAudit;
use super::context::{Context, as_bursar};
use super::exit::{Exit, Failure};
use super::output::{self, clean};
use super::webhook::{cluster, site};
use crate::bootstrap;
use crate::bootstrap::webhook::audit::{Audit, BrokenRule, audit};

pub(super) async fn run(context: &Context, arguments: &WebhookAudit) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let name = cluster(&settings, &arguments.cluster)?;
    // The daemon may not list all kinds. If there is an administrator's kubeconfig, it is used instead.
    let admin = match admin::if_any(&name, arguments.admin_kubeconfig.as_deref()).await? {
        Some(path) => {
            bootstrap::must_be_same(&name, &settings.clusters[&name], &path).await?;
            Some(bootstrap::client(&path).await?)
        }
        None => None,
    };
    let site = site(context, &arguments.cluster).await?;
    let progress = output::progress("checking objects");
    let client = admin.as_ref().unwrap_or(&site.client);
    let found = as_bursar(audit(client, site.request(), |kind, objects| {
        progress.set_message(format!("checking {kind}, {objects} objects so far"));
    }));
    let found = Box::pin(found).await;
    progress.finish_and_clear();
    let audit = found??;
    if context.global.json {
        output::json(&audit)?;
    } else {
        output::line(text(&audit));
    }
    let is_fine = audit.found.iter().all(|found| found.excepted);
    Ok(if is_fine && audit.unread.is_empty() { Exit::Done } else { Exit::Failed })
}

fn text(audit: &Audit) -> String {
    let Audit { namespaces, objects, found, off, not_judged, unread } = audit;
    let mut lines: Vec<String> = found.iter().map(line).collect();
    let mut counts: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for found in found {
        *counts.entry((&found.class, found.broken.rule, says(found))).or_default() += 1;
    }
    let excepted = found.iter().filter(|found| found.excepted).count();
    let counts = counts.into_iter();
    lines
        .extend(counts.map(|((class, rule, mode), count)| format!("class {}, {rule} ({mode}): {count}", clean(class))));
    let (open, of) = (found.len() - excepted, format!("{objects} objects of {namespaces} namespaces"));
    let excepted = if excepted > 0 { format!("; exceptions allow {excepted} more") } else { String::new() };
    lines.push(format!("{open} findings in {of}{excepted}; nothing was written"));
    lines.extend(off.iter().map(|(class, rules)| format!("not checked: class {class}: {} (off)", rules.join(", "))));
    lines.extend(not_judged.iter().map(|what| format!("not checked: {what}")));
    lines.extend(unread.iter().map(|(kind, why)| {
        format!(
            "! not checked: {kind}: {}; use a kubeconfig with the right to list this kind: --admin-kubeconfig FILE",
            clean(why)
        )
    }));
    lines.join("\n")
}

/// Returns what would happen to a new object like this one.
fn says(found: &BrokenRule) -> &'static str {
    if found.excepted { "excepted" } else { found.broken.mode.as_str() }
}

fn line(found: &BrokenRule) -> String {
    let BrokenRule { account, class: _, namespace, object, broken, excepted: _ } = found;
    let whose = if account.is_empty() { "nobody" } else { account.as_str() };
    format!(
        "{}  {}  {}/{}  {}: {}",
        says(found),
        clean(whose),
        clean(namespace),
        clean(object),
        broken.rule,
        clean(&broken.text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::existing::Broken;
    use crate::rules::Mode;

    #[test]
    fn the_audit_counts_findings_and_lists_what_was_not_checked() {
        let broken = Broken { rule: "uid", mode: Mode::Warn, text: "as \u{1b}root".to_owned() };
        let found = BrokenRule {
            account: "tool:foo".to_owned(),
            class: "tool".to_owned(),
            namespace: "tool-foo".to_owned(),
            object: "pods/web".to_owned(),
            broken,
            excepted: false,
        };
        let excepted = BrokenRule { excepted: true, ..found.clone() };
        let said = text(&Audit {
            namespaces: 1,
            objects: 3,
            found: vec![found.clone(), found, excepted],
            not_judged: vec!["hosts.fields"],
            off: [("tool".to_owned(), vec!["hosts".to_owned()])].into(),
            unread: [("services".to_owned(), "forbidden".to_owned())].into(),
        });
        assert!(said.starts_with("warn  tool:foo  tool-foo/pods/web  uid: as "), "{said}");
        assert!(!said.contains('\u{1b}') && said.contains("class tool, uid (warn): 2"), "{said}");
        assert!(said.contains("2 findings in 3 objects of 1 namespaces; exceptions allow 1 more"), "{said}");
        assert!(said.contains("class tool, uid (excepted): 1"), "{said}");
        assert!(said.contains("class tool: hosts (off)") && said.contains("services: forbidden"), "{said}");
    }
}
