//! Runs one test per story. The name of each new file in `tests/data/scenarios` must be added here.

use std::collections::BTreeSet;
use std::fs;

use super::{data, golden, told};

/// Runs a story, and compares its output with the golden file.
fn assert_story(name: &str) {
    let file = format!("{}.txt", name.replace('_', "-"));
    let story = fs::read_to_string(data("scenarios").join(&file)).expect("the story can be read");
    if let Err(difference) = golden(&data("plans").join(&file), &told(&story)) {
        panic!("{difference}");
    }
}

macro_rules! stories {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(#[test]
        fn $name() {
            assert_story(stringify!($name));
        })*
    };
}

stories! {
    absent_long absent_too_short admins admins_gone adopted adopted_never adopted_owner adopted_selector
    approval_expires approval_for_no_more approval_stays_the_same approved archived_and_back
    archived_and_back_before_deletion archived_and_deleted broken_home class_gone class_narrowed class_renamed
    class_widened_and_narrowed clock_jumps cluster_down cluster_given_up_and_revoked cluster_taken_out daemon_off_for_a_month
    deleted_and_class_back deletion_needs_a_complete_read deletion_of_a_strangers_namespace deletion_stuck
    deletions_limited directory_half_broken disabled disabled_is_archived disabled_killed_and_left drift
    drift_reported expiring failing foreign_object half_gone_for_an_hour held held_is_not_archived idle idle_capped
    idle_clock_jumps idle_evidence limit_near marks mass_absence member_left member_left_and_kept members_limited
    name_adopted name_adoption_lapses name_reused new_tool on_demand ordered ordered_has_no_retention ordered_until
    over_limit pace_another_policy pace_broken_homes pace_changed_again pace_first_then_many pace_killed pace_lets_others_go
    pace_stops pace_volume partial_source quota_adopted quota_adopted_new_resource quota_below_use quota_changed
    quota_override quota_override_ends quota_override_held quota_override_locked quota_override_two_clusters
    quota_override_unset quota_override_wrong quota_reverted reaper_pods refused_loses_nothing rename
    retention_clock_jumps revoke_class revoke_class_killed revoked same_namespace template_changed two_clusters
    uid_adopted uid_adopted_is_anothers uid_adoption_lapses uid_changed workspace workspace_limits
    workspace_narrowed workspace_quota
}

#[test]
fn every_story_has_its_test_and_every_plan_its_story() {
    let names = |folder: &str| -> BTreeSet<String> {
        let files = fs::read_dir(data(folder))
            .expect("the folder can be read")
            .map(|entry| entry.expect("the entry can be read").file_name());
        files.map(|file| file.to_string_lossy().trim_end_matches(".txt").replace('-', "_")).collect()
    };
    let told: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(names("scenarios"), told, "NAMES lists all stories");
    assert_eq!(names("plans"), told, "each story has a plan");
}
