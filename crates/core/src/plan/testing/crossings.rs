//! Reads `tests/data/crossings.txt`: states and events. Tests of the model and of real servers combine each state with
//! each event.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::AccountKind;

const TEXT: &str = include_str!("../../../../../tests/data/crossings.txt");

/// The effect of an event on the access that the tool or person had.
#[derive(Clone, PartialEq, Eq)]
pub enum Meaning {
    Takes,
    Replaces,
    Keeps,
    /// Takes the access in the namespace with this name, and keeps all other access.
    Loses(String),
}

/// A state or an event. The `meaning` of a state is always `Keeps`.
#[derive(Clone)]
pub struct Happening<Step> {
    pub name: String,
    pub meaning: Meaning,
    /// The only kind of account that can be in this state or have this event; `None` if both can.
    pub only: Option<AccountKind>,
    pub begins: Vec<Step>,
    pub ends: Vec<Step>,
}

pub struct Matrix<Step> {
    pub states: Vec<Happening<Step>>,
    pub events: Vec<Happening<Step>>,
    /// Combinations of a state and an event in which the effect may wait.
    pub waits: BTreeSet<(String, String)>,
    /// Combinations of a state and an event that have another result than the event alone. The value is the kind of
    /// account to which this applies; `None` for both kinds.
    pub differs: BTreeMap<(String, String), Option<AccountKind>>,
    /// Combinations of a state and an event after which the account stays suspended until an administrator resumes it.
    pub resumes: BTreeSet<(String, String)>,
}

impl<Step> Matrix<Step> {
    /// Reads the file. `steps` parses the lines that begin a state or an event or, if its second argument is `true`,
    /// the lines that end it. If `steps` returns `None`, the state or event is left out.
    pub fn read(steps: impl Fn(&[&str], bool) -> Option<Vec<Step>>) -> Self {
        let (waits, differs, resumes) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        let mut matrix = Self { states: Vec::new(), events: Vec::new(), waits, differs, resumes };
        for line in TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (head, rest) = line.split_once(':').expect("the line has a colon");
            let mut words: Vec<&str> = head.split_whitespace().collect();
            let only = match words.last() {
                Some(&"person") => Some(AccountKind::User),
                Some(&"tool") => Some(AccountKind::Tool),
                _ => None,
            };
            words.truncate(words.len() - usize::from(only.is_some()));
            let (list, name, meaning) = match words[..] {
                ["state", name] => (&mut matrix.states, name, Meaning::Keeps),
                ["event", name, "takes"] => (&mut matrix.events, name, Meaning::Takes),
                ["event", name, "replaces"] => (&mut matrix.events, name, Meaning::Replaces),
                ["event", name, "keeps"] => (&mut matrix.events, name, Meaning::Keeps),
                ["event", name, "loses", namespace] => (&mut matrix.events, name, Meaning::Loses(namespace.to_owned())),
                ["differs", state, event] => {
                    matrix.differs.insert((state.to_owned(), event.to_owned()), only);
                    continue;
                }
                ["waits" | "resumes", state, event] => {
                    let list = if words[0] == "waits" { &mut matrix.waits } else { &mut matrix.resumes };
                    list.insert((state.to_owned(), event.to_owned()));
                    continue;
                }
                ref other => panic!("no such line: {other:?}"),
            };
            let (begins, ends) = rest.split_once('|').expect("the line is: HEAD: BEGINS | ENDS");
            let lines = |text| str::split(text, ';').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>();
            if let (Some(begins), Some(ends)) = (steps(&lines(begins), false), steps(&lines(ends), true)) {
                list.push(Happening { name: name.to_owned(), meaning, only, begins, ends });
            }
        }
        matrix
    }
}
