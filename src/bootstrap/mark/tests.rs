//! Tests when a mark in a cluster stops a process, and when it must not.

use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::generations::KnownGenerations;
use super::keeper::{Claim, MarkKeeper};
use super::*;

const ME: &str = "this process";

fn owner() -> MarkOwner {
    let sealer = Sealer::from_seed(&[7; 32]).expect("32 bytes are a seed");
    let (ledger_id, instance) = ("a1".to_owned(), ME.to_owned());
    MarkOwner { cluster: ClusterName("prod".into()), ledger_id, sealer: Arc::new(sealer), instance }
}

fn map(generation: u64) -> ConfigMap {
    let owner = owner();
    let mark = Mark { ledger: owner.ledger_id, generation, uids: BTreeSet::new() };
    let mut data = mark.signed(&owner.cluster, &owner.sealer);
    data.insert(HOLDER.to_owned(), ME.to_owned());
    ConfigMap { data: Some(data), ..ConfigMap::default() }
}

fn generations(opened: u64) -> (Arc<KnownGenerations>, CancellationToken) {
    let stop = CancellationToken::new();
    (Arc::new(KnownGenerations::new(opened, stop.clone(), Arc::default())), stop)
}

/// Returns the keeper of a mark with generation 90, in a cluster that does not answer.
fn keeper(reserved: Reserved, generations: Arc<KnownGenerations>) -> Arc<MarkKeeper> {
    let config = kube::Config::new(http::Uri::from_static("https://127.0.0.1:9"));
    let client = Client::try_from(config).expect("the configuration is valid");
    MarkKeeper::new(&client, owner(), owner().found(&map(90)), reserved, generations)
}

/// A snapshot of a virtual machine restored the process with its memory.
#[tokio::test]
async fn a_running_process_stops_when_the_mark_is_higher_than_what_it_wrote() {
    let (generations, stop) = generations(90);
    // Meanwhile the rolled-back ledger has assigned generations above the mark.
    let keeper = keeper(Reserved { generation: 110, ..Reserved::default() }, generations);
    assert!(keeper.covers(90));
    keeper.heard(&map(90)).await;
    assert!(!keeper.is_behind() && !stop.is_cancelled());
    keeper.heard(&map(103)).await;
    assert!(keeper.is_behind() && stop.is_cancelled());
    assert!(!keeper.covers(90), "no binding is written any more");
    assert!(matches!(keeper.raise(90).await, Err(AccessError::Behind)));
    assert!(!keeper.confirm().await, "although the cluster does not answer");
}

/// The watch may be broken, so this process also reads the holder from every answer.
#[tokio::test]
async fn a_holder_that_was_replaced_writes_nothing_more() {
    let (generations, stop) = generations(90);
    let keeper = keeper(Reserved::default(), generations);
    let mut other = map(90);
    other.data.get_or_insert_default().insert(HOLDER.to_owned(), "another process".to_owned());
    keeper.take(owner().found(&other));
    assert!(keeper.may_write(), "a process that only asks may see another holder");
    keeper.take(owner().found(&map(90)));
    assert!(matches!(keeper.claim().await, Ok(Claim::Held)));
    keeper.take(owner().found(&other));
    assert!(keeper.is_lost() && stop.is_cancelled());
    assert!(!keeper.confirm().await && !keeper.covers(90));
    // The write would make this process the holder again.
    assert!(matches!(keeper.raise(91).await, Err(AccessError::Behind)));
}

#[tokio::test]
async fn a_mark_that_was_readable_stays_known_if_one_read_is_refused() {
    let (generations, _) = generations(90);
    let keeper = keeper(Reserved::default(), generations);
    keeper.take(FoundMark::Hidden);
    assert!(keeper.covers(90) && !keeper.covers(91));
}

/// Somebody deleted the mark, and it cannot be written again.
#[tokio::test]
async fn bindings_keep_the_generations_that_a_deleted_mark_had() {
    let (generations, _) = generations(95);
    let keeper = keeper(Reserved::default(), generations);
    assert!(!keeper.has_covered(91), "the mark is there, and the ledger only meant to raise it");
    keeper.take(FoundMark::Absent);
    assert!(!keeper.covers(90), "a binding gets the generation only if the mark has it");
    assert!(keeper.has_covered(90) && !keeper.has_covered(96));
    keeper.heard(&map(103)).await;
    assert!(!keeper.has_covered(90), "a process that was rolled back writes no binding");
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a write of the mark hung just now")]
async fn removals_of_access_do_not_wait_one_after_the_other_for_a_mark_that_hangs() {
    let (generations, _) = generations(90);
    let keeper = keeper(Reserved::default(), generations);
    *keeper.late.lock() = Some(tokio::time::Instant::now());
    let raised = keeper.raise_soon(91).now_or_never().expect("the removal does not wait");
    assert!(matches!(raised, Err(AccessError::NotRaised { .. })), "{raised:?}");
    assert!(matches!(keeper.raise_soon(90).now_or_never(), Some(Ok(()))));
}

#[test]
fn a_generation_that_was_sent_without_an_answer_is_our_own() {
    let (generations, stop) = generations(90);
    assert!(generations.sends(95));
    assert!(!generations.sends(95) && !generations.sends(90));
    generations.hear(95);
    generations.hear(92);
    assert_eq!((generations.beyond(), stop.is_cancelled()), (None, false));
    // The API server refused this write with a conflict, so another process has written 96.
    assert!(generations.sends(96));
    generations.was_not_written(96);
    generations.hear(96);
    assert_eq!((generations.beyond(), stop.is_cancelled()), (Some(96), true));
}

/// While the cluster was unreachable, the ledger caught up with the mark.
#[test]
fn a_mark_is_compared_with_the_ledger_as_it_was_opened() {
    let (generations, _) = generations(100);
    assert_eq!(generations.exceeded(Some(100), Some(100)), None);
    assert_eq!(generations.exceeded(Some(106), None), Some(106));
    assert_eq!(generations.exceeded(None, Some(104)), Some(104));
    // Generations that this process reserves while the cluster is connected may be in seals, but not in the mark before
    // they are sent.
    generations.may_seal(106);
    assert_eq!(generations.exceeded(Some(106), Some(106)), Some(106));
    generations.sends(106);
    assert_eq!(generations.exceeded(Some(106), Some(106)), None);
}
