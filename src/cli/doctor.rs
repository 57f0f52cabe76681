//! `bursar doctor`: checks every connection, and prints a remedy for each problem.

use super::check::only_root_reads;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::{self, clean};
use super::probes::{self, Finding};
use super::recovery::may;

pub(super) async fn run(context: &Context) -> Result<Exit, Failure> {
    // To any other user, every file of the daemon would look like a problem.
    may()?;
    let settings = context.settings()?;
    let (errors, _) = only_root_reads(context)?;
    let remedy = "bursard runs as user bursar and does not start, or reload, until it can read the file";
    let mut findings: Vec<Finding> = errors.into_iter().map(|why| Finding::bad("configuration", why, remedy)).collect();
    let progress = output::progress("reaching directories, clusters and homes");
    let (of_sources, homes) = probes::sources(&settings).await;
    findings.extend(of_sources);
    for (name, cluster) in &settings.policy.clusters {
        findings.extend(probes::cluster(&settings, name, cluster).await);
    }
    findings.extend(probes::ledger(&settings).await);
    findings.extend(probes::evidence(&settings).await);
    findings.extend(probes::ended_exceptions(&settings).await);
    findings.extend(probes::realm(&settings).await);
    findings.extend(probes::egress(&settings));
    findings.extend(probes::homes(&settings, &homes).await);
    findings.extend(probes::daemon(&settings).await);
    progress.finish_and_clear();
    let good = findings.iter().all(|finding| finding.remedy.is_none());
    if context.global.json {
        output::json(&findings)?;
    } else {
        for finding in &findings {
            output::signed(line(finding));
        }
    }
    Ok(if good { Exit::Done } else { Exit::Failed })
}

fn line(Finding { subject, text, remedy }: &Finding) -> String {
    match remedy {
        None => format!("+ {subject}: {}", clean(text)),
        Some(remedy) => format!("! {subject}: {}\n    remedy: {}", clean(text), clean(remedy)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_the_golden_at_80_columns() {
        let finding = |subject: &str, text: &str, remedy: Option<&str>| Finding {
            subject: subject.to_owned(),
            text: text.to_owned(),
            remedy: remedy.map(str::to_owned),
        };
        let why = "ldap1.example.org: bind as cn=bursar,dc=example,dc=org refused: wrong name or password (49)";
        let findings = [
            finding(
                "source people",
                "ldap1.example.org: complete, 17 entries: 12 users; 5 tools, 0 with maintainers",
                None,
            ),
            finding("source guests", why, Some(probes::remedy::of(why))),
            finding(
                "cluster prod, endpoint internal",
                "https://k8s.example.org:6443 answers and knows the daemon",
                None,
            ),
            finding(
                "cluster prod, webhook",
                "installed, its files are good until 2027-05-03T12:00:00Z; it answers a review",
                None,
            ),
            finding("daemon", "not started yet; next: bursar plan, then systemctl enable --now bursard", None),
        ];
        output::is_golden("doctor", &findings.iter().map(line).collect::<Vec<_>>().join("\n"));
    }
}
