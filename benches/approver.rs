//! Measures certificates per second at the signer's default rate (20 requests per second, burst 30): approved by the
//! daemon itself, and by `bursar-webhook approve` on the same host. Run `make bench`.

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
use std::time::Instant;

use bursar_testkit::Servers;
use bursar_testkit::control_plane::ControlPlaneOptions;
use bursar_testkit::ldif::tool_ldif;
use bursar_testkit::sample;
use bursar_testkit::slapd::SlapdOptions;
use world::World;

/// The number of certificates in each run, which is more than the signer's burst.
const TOOLS: u32 = 300;

fn main() {
    let pace = ControlPlaneOptions { controller_qps: 20, controller_burst: 30, ..ControlPlaneOptions::default() };
    let servers = Arc::new(Servers::start_with(&pace, &SlapdOptions::default(), |_| sample::toolforge()));
    let mut world = World::on(servers, "paced", "");
    world.cycle();
    let by_itself = issue(&mut world, 0);
    world.stop();
    approver_site::install(&world);
    let approver = approver_site::start(&world);
    let by_approver = issue(&mut world, 1);
    drop(approver);
    println!(
        "{TOOLS} new tools, certificates a second: {by_itself:.1} approved by the daemon, {by_approver:.1} by an approver"
    );
    println!("ratio {:.2} (goal 0.95)", by_approver / by_itself);
}

fn issue(world: &mut World, round: u32) -> f64 {
    for number in 0..TOOLS {
        let (name, uid) = (format!("r{round}t{number}"), 70_000 + round * TOOLS + number);
        world.home_of(&name, uid);
        world.add(&tool_ldif(&world.base, &name, uid, &[]));
    }
    let began = Instant::now();
    let report = world.cycle();
    assert!(report.failing.is_empty(), "{report:#?}");
    f64::from(TOOLS) / began.elapsed().as_secs_f64()
}
