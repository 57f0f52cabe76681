//! `bursar doctor`: reaches everything, and says of each thing that is not right what cures it.

use super::context::{Context, become_bursar};
use super::exit::{Exit, Failure};
use super::output::{self, clean};
use super::probes::{self, Finding};

pub(super) async fn run(context: &Context) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    become_bursar()?;
    let progress = output::progress("reaching directories, clusters and homes");
    let (mut findings, homes) = probes::sources(&settings).await;
    for (name, cluster) in &settings.policy.clusters {
        findings.extend(probes::cluster(&settings, name, cluster).await);
    }
    findings.extend(probes::evidence(&settings).await);
    findings.extend(probes::realm(&settings).await);
    findings.extend(probes::egress(&settings));
    findings.extend(probes::homes(&settings, &homes).await);
    findings.extend(probes::daemon(&settings).await);
    progress.finish_and_clear();
    let good = findings.iter().all(|finding| finding.cure.is_none());
    if context.global.json {
        output::json(&findings)?;
    } else {
        for finding in &findings {
            output::signed(line(finding));
        }
    }
    Ok(if good { Exit::Done } else { Exit::Failed })
}

fn line(Finding { subject, text, cure }: &Finding) -> String {
    match cure {
        None => format!("+ {subject}: {}", clean(text)),
        Some(cure) => format!("! {subject}: {}\n    cure: {}", clean(text), clean(cure)),
    }
}
