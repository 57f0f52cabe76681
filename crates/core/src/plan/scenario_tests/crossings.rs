//! Tests every state with every event of `tests/data/crossings.txt`, because most faults arise from the interaction of
//! two correct mechanisms. Each combination is tested with a tool and with a person. Random histories of combinations
//! test that none of them changes the effect of a later one.

mod cell;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use self::cell::{Access, Cell};
use crate::desired::of_generation_group;
use crate::identity::AccountKind;
use crate::ledger::Lifecycle;
use crate::plan::property_tests::cases;
use crate::plan::testing::crossings::{self, Matrix, Meaning};

type Happening = crossings::Happening<String>;

/// Checks the access after two cycles. `own` is the access that foo had at the beginning, `others` that of `stays`.
fn promised(
    cell: &mut Cell,
    meaning: Option<&Meaning>,
    (own, others): (&Access, &Access),
    had: &BTreeSet<String>,
) -> Result<(), String> {
    for _ in 0..2 {
        cell.cycle();
        if cell.access("stays") != *others {
            return Err(format!("account stays had {others:?}, and has {:?}", cell.access("stays")));
        }
    }
    let after = cell.access("foo");
    let account = cell.foo().clone();
    let is_present = |(_, name): &(String, String)| {
        let present = of_generation_group(name).is_some_and(|(_, generation)| generation == account.generation);
        account.state == Lifecycle::Active && present
    };
    let places: BTreeSet<String> = after.iter().map(|(place, _)| place.clone()).collect();
    let lost: BTreeSet<&String> = had.difference(&places).filter(|place| cell.answers(place)).collect();
    let wrong = match meaning {
        Some(Meaning::Takes) if !after.is_empty() => Some(format!("foo still has {after:?}")),
        Some(Meaning::Replaces) if own.iter().any(|old| after.contains(old)) => Some(format!("{own:?} still opens it")),
        Some(Meaning::Keeps) if !lost.is_empty() => Some(format!("foo lost its access in {lost:?}")),
        Some(Meaning::Loses(namespace)) if places.iter().any(|place| place.contains(namespace.as_str())) => {
            Some(format!("foo still has {after:?}"))
        }
        Some(Meaning::Loses(namespace)) if lost.iter().any(|place| !place.contains(namespace.as_str())) => {
            Some(format!("foo lost its access in {lost:?}"))
        }
        _ => after.iter().find(|one| !is_present(one)).map(|one| format!("{one:?} is bound")),
    };
    wrong.map_or(Ok(()), Err)
}

/// Returns the result of `event` in `state`.
fn crossed(
    cell: &mut Cell,
    matrix: &Matrix<String>,
    state: &Happening,
    event: &Happening,
) -> Result<BTreeMap<String, String>, String> {
    let place = (state.name.clone(), event.name.clone());
    let waits = matrix.waits.contains(&place);
    let (own, others) = (cell.access("foo"), cell.access("stays"));
    cell.tell(&state.begins);
    let is_cut = state.name == "suspending";
    let had: BTreeSet<String> = cell.access("foo").into_iter().map(|(place, _)| place).filter(|_| !is_cut).collect();
    let others_then = cell.access("stays");
    cell.tell(&event.begins);
    cell.continue_after_the_event();
    promised(cell, Some(&event.meaning).filter(|_| !waits), (&own, &others_then), &had)?;
    let was_away = cell.is_any_away();
    cell.tell(&state.ends);
    let takes = event.meaning != Meaning::Keeps && !waits && !had.is_empty();
    if takes && cell.rollback == Some(false) {
        return Err("the marks do not show that the ledger was rolled back".to_owned());
    }
    if was_away || cell.rollback.is_some() {
        let all = if was_away { own.iter().map(|(place, _)| place.clone()).collect() } else { had };
        let meaning = Some(&event.meaning).filter(|_| !waits || was_away);
        promised(cell, meaning, (&own, &others), &all).map_err(|why| format!("{why} in the end"))?;
    }
    cell.tell(&event.ends);
    cell.order_again();
    if matrix.resumes.contains(&place) && !cell.resume_if_suspended() {
        return Err("foo resumes without an order".to_owned());
    }
    Ok(cell.end())
}

fn differs(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> Vec<String> {
    let differ = one.iter().filter(|(key, value)| other.get(*key) != Some(*value));
    differ.map(|(key, value)| format!("{key}: {value}")).collect()
}

fn wrong(kind: AccountKind, matrix: &Matrix<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let cell = Cell::new(kind);
    let is_of = |one: &&Happening| one.only.is_none_or(|only| only == kind);
    let states: Vec<&Happening> = matrix.states.iter().filter(is_of).collect();
    for event in matrix.events.iter().filter(is_of) {
        let undisturbed = match crossed(&mut cell.clone(), matrix, states[0], event) {
            Ok(end) => end,
            Err(why) => {
                wrong.push(format!("{kind}: {}: {why}", event.name));
                continue;
            }
        };
        for state in &states[1..] {
            let outcome = std::panic::catch_unwind(|| crossed(&mut cell.clone(), matrix, state, event));
            let differing = matrix.differs.get(&(state.name.clone(), event.name.clone()));
            let must_differ = differing.is_some_and(|only| only.is_none_or(|only| only == kind));
            match outcome.unwrap_or_else(|_| Err("panics".to_owned())) {
                Err(why) => wrong.push(format!("{kind}: {} x {}: {why}", state.name, event.name)),
                Ok(end) if (end == undisturbed) == must_differ => {
                    let (more, less) = (differs(&end, &undisturbed), differs(&undisturbed, &end));
                    wrong.push(format!("{kind}: {} x {} ends with {more:?}, not {less:?}", state.name, event.name));
                }
                Ok(_) => {}
            }
        }
    }
    wrong
}

fn matrix() -> Matrix<String> {
    Matrix::read(|lines, _| Some(lines.iter().map(|line| (*line).to_owned()).collect()))
}

#[test]
fn every_event_has_its_effect_on_the_access_of_a_tool_in_every_state() {
    let matrix = matrix();
    let cells = matrix.states.len() * matrix.events.len();
    assert!(cells >= 700, "{cells} cells");
    let wrong = wrong(AccountKind::Tool, &matrix);
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_event_has_its_effect_on_the_access_of_a_person_in_every_state() {
    let wrong = wrong(AccountKind::User, &matrix());
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}

/// The kind of account, and the state and the event of each combination.
type History = (AccountKind, Vec<(String, String)>);

/// Returns the names of the states or events that are possible in a history of this kind of account. Histories of reads
/// are in `history_tests.rs`. After a rename, the lines of other events would mean another account.
fn names(list: &[Happening], kind: AccountKind) -> Vec<String> {
    let is_apart = |one: &Happening| one.begins.iter().any(|line| line == "read" || line.starts_with("rename "));
    let possible = list.iter().filter(|one| one.only.is_none_or(|only| only == kind) && !is_apart(one));
    possible.map(|one| one.name.clone()).collect()
}

/// Each event happens once at most, because some have no effect if they are repeated.
fn history() -> impl Strategy<Value = History> {
    let of = |kind: AccountKind| {
        let matrix = matrix();
        let states = prop::collection::vec(prop::sample::select(names(&matrix.states, kind)), 3);
        let events = prop::sample::subsequence(names(&matrix.events, kind), 2..=3).prop_shuffle();
        (states, events).prop_map(move |(states, events)| (kind, states.into_iter().zip(events).collect::<Vec<_>>()))
    };
    prop_oneof![of(AccountKind::Tool), of(AccountKind::User)]
}

fn named<'m>(list: &'m [Happening], name: &str) -> &'m Happening {
    list.iter().find(|one| one.name == name).expect("the matrix has this name")
}

/// Carries out the combinations of a history, and the same events without the states. Both must have the same result
/// after each event.
fn continued(kind: AccountKind, history: &[(String, String)]) -> Result<(), String> {
    let matrix = matrix();
    let mut disturbed = Cell::new(kind);
    let mut undisturbed = disturbed.clone();
    for (state, event) in history {
        let (state, event) = (named(&matrix.states, state), named(&matrix.events, event));
        let next = |cell: &mut Cell, state: &Happening| {
            cell.begin_again();
            crossed(cell, &matrix, state, event).map_err(|why| format!("{} x {}: {why}", state.name, event.name))
        };
        let (end, expected) = (next(&mut disturbed, state)?, next(&mut undisturbed, &matrix.states[0])?);
        if end != expected {
            let (more, less) = (differs(&end, &expected), differs(&expected, &end));
            return Err(format!("{} x {} ends with {more:?}, not {less:?}", state.name, event.name));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn no_combination_changes_the_effect_of_a_later_one((kind, history) in history()) {
        continued(kind, &history).map_err(TestCaseError::fail)?;
    }
}
