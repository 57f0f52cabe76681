//! Measures certificates per second at the signer's default rate (20 requests per second, burst 30): approved by the
//! daemon itself, and by `bursar-webhook approve` on the same host. One round is too noisy, so both are measured in
//! several rounds, whose order alternates. Run `make bench`, or with a number of rounds:
//! `cargo bench --bench approver -- 5`.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/approver_site.rs"]
mod approver_site;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/template.rs"]
mod template;
#[allow(dead_code, reason = "tests use the other items")]
#[path = "../tests/it/world.rs"]
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bursar::bootstrap::approver;
use bursar_testkit::Servers;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ldif::tool_ldif;
use bursar_testkit::process::Process;
use bursar_testkit::ready::wait_for;
use bursar_testkit::sample;
use bursar_testkit::slapd::SlapdOptions;
use world::World;

/// The number of rounds if no argument is given.
const ROUNDS: u32 = 3;
/// The number of certificates in each run, which is more than the signer's burst. A round has two runs.
const TOOLS: u32 = 200;
/// How long Kubernetes needs to remove the approver's namespace.
const DEADLINE: Duration = Duration::from_mins(2);

fn main() {
    let rounds = std::env::args().skip(1).find(|argument| argument != "--bench");
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("the argument is a number"));
    assert!(rounds > 0, "at least one round is needed");
    let pace = ControlPlaneOptions { controller_qps: 20, controller_burst: 30, ..ControlPlaneOptions::default() };
    let servers = Arc::new(Servers::start_with(&pace, &SlapdOptions::default(), |_| sample::toolforge()));
    let mut world = World::on(servers, "paced", "");
    world.cycle();
    let (mut running, mut runs, mut ratios) = (None, 0, Vec::new());
    for round in 0..rounds {
        let (mut by_itself, mut by_approver) = (0.0, 0.0);
        for has_approver in [round % 2 == 1, round % 2 == 0] {
            switch(&mut world, &mut running, has_approver);
            let rate = issue(&mut world, 70_000 + runs * TOOLS);
            runs += 1;
            *(if has_approver { &mut by_approver } else { &mut by_itself }) = rate;
        }
        let ratio = by_approver / by_itself;
        println!(
            "{TOOLS} new tools, certificates a second: {by_itself:.1} approved by the daemon, {by_approver:.1} by an \
             approver, ratio {ratio:.2}"
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "{rounds} rounds: median ratio {:.2} (goal 0.95), from {:.2} to {:.2}",
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1]
    );
}

/// Installs and starts the approver, or stops and removes it. The daemon learns of it when it starts again.
fn switch(world: &mut World, running: &mut Option<Process>, has_approver: bool) {
    if running.is_some() == has_approver {
        return;
    }
    world.stop();
    if has_approver {
        approver_site::install(world);
        *running = Some(approver_site::start(world));
    } else {
        *running = None;
        approver_site::as_administrator(world, async |request| approver::uninstall(request).await);
        wait_for("the approver's namespace is gone", DEADLINE, || {
            let left = world.kubectl(&["get", "namespace", approver::NAMESPACE, "--ignore-not-found", "-o", "name"]);
            left.is_empty().then_some(())
        });
    }
}

/// Creates new tools, the first of which has this uid, and returns the number of certificates a second.
fn issue(world: &mut World, first: u32) -> f64 {
    // The start of a daemon that was stopped is not measured.
    world.cycle();
    for uid in first..first + TOOLS {
        let name = format!("t{uid}");
        world.home_of(&name, uid);
        world.add(&tool_ldif(&world.base, &name, uid, &[]));
    }
    let began = Instant::now();
    let report = world.cycle();
    assert!(report.failing.is_empty(), "{report:#?}");
    f64::from(TOOLS) / began.elapsed().as_secs_f64()
}
