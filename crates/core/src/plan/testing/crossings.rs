//! `tests/data/crossings.txt`: states of the world and events, which the model and real servers cross.

use std::collections::BTreeSet;

const TEXT: &str = include_str!("../../../../../tests/data/crossings.txt");

/// What an event means for what the tool had.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    Takes,
    Replaces,
    Keeps,
}

/// A state, which keeps what the tool had, or an event.
#[derive(Clone)]
pub struct Happening<Step> {
    pub name: String,
    pub meaning: Meaning,
    pub begins: Vec<Step>,
    pub ends: Vec<Step>,
}

pub struct Matrix<Step> {
    pub states: Vec<Happening<Step>>,
    pub events: Vec<Happening<Step>>,
    /// State and event of the cells that may wait.
    pub waits: BTreeSet<(String, String)>,
}

impl<Step> Matrix<Step> {
    /// `steps`: makes steps of the lines that begin something, or, if `true`, of those that end it. `None`: states and
    /// events with such lines are left out.
    pub fn read(steps: impl Fn(&[&str], bool) -> Option<Vec<Step>>) -> Self {
        let mut matrix = Self { states: Vec::new(), events: Vec::new(), waits: BTreeSet::new() };
        for line in TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (head, rest) = line.split_once(':').expect("the line has a colon");
            let (list, name, meaning) = match head.split_whitespace().collect::<Vec<_>>()[..] {
                ["state", name] => (&mut matrix.states, name, Meaning::Keeps),
                ["event", name, "takes"] => (&mut matrix.events, name, Meaning::Takes),
                ["event", name, "replaces"] => (&mut matrix.events, name, Meaning::Replaces),
                ["event", name, "keeps"] => (&mut matrix.events, name, Meaning::Keeps),
                ["waits", state, event] => {
                    matrix.waits.insert((state.to_owned(), event.to_owned()));
                    continue;
                }
                ref other => panic!("no such line: {other:?}"),
            };
            let (begins, ends) = rest.split_once('|').expect("the line is: HEAD: BEGINS | ENDS");
            let lines = |text| str::split(text, ';').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>();
            if let (Some(begins), Some(ends)) = (steps(&lines(begins), false), steps(&lines(ends), true)) {
                list.push(Happening { name: name.to_owned(), meaning, begins, ends });
            }
        }
        matrix
    }
}
