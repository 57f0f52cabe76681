//! An entry that fails a check is recorded and shown, and all others are served.

use bursar_testkit::ldif::tool_account_ldif;

use crate::world::{World, all_is_well};

#[test]
fn a_bad_entry_is_rejected_with_its_reason_and_the_others_are_served() {
    let mut world = World::new("rejected");
    world.tool("good", 62_301, &[]);
    let homes = world.folder.join("homes/data/project");
    let entry = |name: &str, uid: u32, home: &str| tool_account_ldif(&world.base, name, uid, home);
    // These entries are added unchanged, because not every home is below the folder of this world.
    let slapd = &bursar_testkit::Servers::shared().slapd;
    let home = |name: &str| homes.join(name).display().to_string();
    slapd.add_ldif(&entry("root", 0, &home("root")));
    slapd.add_ldif(&entry("double", 62_301, &home("double")));
    slapd.add_ldif(&entry("Bad_Name", 62_303, &home("bad")));
    slapd.add_ldif(&entry("outside", 62_304, "/etc"));
    slapd.add_ldif(&entry("climber", 62_305, &format!("{}/../../../../etc", homes.display())));

    all_is_well(&world.cycle());
    assert!(world.kubectl_as_tool("good", &["get", "pods"]).status.success());
    let rejected = world.rows("SELECT dn, why FROM rejected_entry WHERE kind = 'tool'");
    assert_eq!(rejected.len(), 5, "{rejected:#?}");
    let why = |name: &str| {
        let row = rejected.iter().find(|row| row["dn"].as_str().is_some_and(|dn| dn.contains(name)));
        row.and_then(|row| row["why"].as_str()).unwrap_or_else(|| panic!("{name} is not rejected: {rejected:#?}"))
    };
    assert!(why("root").contains("uid 0 is not in 1000..2147483646"), "{}", why("root"));
    assert!(why("double").contains("62301"), "{}", why("double"));
    assert!(why("Bad_Name").contains("name"), "{}", why("Bad_Name"));
    assert!(why("outside").contains("/etc"), "{}", why("outside"));
    assert!(why("climber").contains(".."), "{}", why("climber"));
    assert_eq!(world.rows("SELECT name FROM tools").len(), 1);
    let plan = world.plan();
    assert!(plan.text.contains("! tool"), "{}", plan.text);
}
