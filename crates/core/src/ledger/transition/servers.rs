//! Records which server answered, and how up to date it is.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::Memory;
use crate::ledger::change::{Change, Event};
use crate::ledger::server::{Moved, ServerState, SourceMark};
use crate::snapshot::freshness::Marks;
use crate::snapshot::{Completeness, SourceRead};

/// If nothing else is written, the marks of a server are written at most this often. Directories change all the time,
/// and changes that concern no account of the ledger need not be recorded at once.
const MARK_EVERY: SignedDuration = SignedDuration::from_mins(5);
/// A server that was not asked for this long is forgotten, because it is no longer configured.
const FORGOTTEN: SignedDuration = SignedDuration::from_hours(7 * 24);

impl<'a> Memory<'a> {
    /// Whether an administrator accepted this read as it is. A read that began before the acceptance does not count.
    pub(super) fn is_accepted(&self, read: &SourceRead) -> bool {
        self.ledger.marks.get(&read.source).is_some_and(|mark| mark.accepted)
            && !self.snapshot.outdated.contains(&read.source)
    }

    /// Remembers the marks of the server that answered. Returns the current change of servers, if a server that cannot
    /// be compared with this server answered lately. In that case, this server may be behind the other one, even if
    /// this server has answered before.
    pub(super) fn server(&mut self, read: &'a SourceRead, complete: bool) -> Option<Moved> {
        let known = self.ledger.marks.get(&read.source);
        let standing = known.and_then(|known| known.moved.clone()).filter(|moved| moved.stands(self.now));
        // If the read began before the acceptance, its marks would make the accepted server look behind again.
        let is_too_early = known.is_some_and(|known| known.accepted) && !self.is_accepted(read);
        // If the answer comes from another directory, its marks would make the right servers look behind.
        if is_too_early || read.lacks_sentinel || matches!(read.completeness, Completeness::Stale { .. }) {
            return standing;
        }
        let is_silent = read.marks.says_nothing();
        // A read that was cut off may lack marks that the server has.
        let is_noted = |server: &&String| match known.filter(|known| !known.marks.says_nothing()) {
            Some(known) => !is_silent || complete || known.server != **server,
            None => !is_silent || read.marks.ids.is_some(),
        };
        let Some(server) = read.server.as_ref().filter(is_noted) else {
            // This answer shows no marks, but may contradict what other servers showed.
            if let Some(known) = known.filter(|known| read.server.is_some() || (known.accepted && complete)) {
                let at = if known.accepted && complete { self.now } else { known.at };
                let accepted = known.accepted && !complete;
                let after = SourceMark { at, moved: standing.clone(), accepted, ..known.clone() };
                self.marks.push((read.source.clone(), after));
            }
            return standing;
        };
        // One name may stand for several servers; domain controllers show which of them answers.
        let controller = |server: &str, marks: &Marks, is_silent: bool| match &marks.controller {
            _ if is_silent => format!("{server} (shows no contextCSN, entryCSN and modifyTimestamp)"),
            Some(controller) => format!("{server} ({controller})"),
            None => server.to_owned(),
        };
        let shown = controller(server, &read.marks, is_silent);
        let former = |known: &SourceMark| {
            let before = controller(&known.server, &known.marks, known.marks.silent);
            if known.marks.is_restored(&read.marks) { format!("{before}, before it was restored") } else { before }
        };
        let other = known.filter(|known| {
            !known.server.is_empty() && former(known) != shown && known.marks.is_of_another(&read.marks)
        });
        let is_older = |known: &&SourceMark| {
            known.marks.is_slow_clock(&read.marks, self.now) || known.marks.has_older_changes(&read.marks)
        };
        let older = known.filter(|known| other.is_none() && is_older(known));
        let moved = match other {
            None if older.is_some() => {
                if standing.is_none() {
                    self.went_back(&read.source, &shown);
                }
                let begun = || Moved { at: self.now, former: shown.clone(), ..Moved::default() };
                let standing = standing.unwrap_or_else(begun);
                let since = Some(standing.since.unwrap_or(standing.at).min(self.now));
                Some(Moved { at: self.now, since, is_back: false, ..standing })
            }
            Some(known) => {
                let former = former(known);
                self.server_changed(&read.source, &former, &shown);
                let standing = standing.unwrap_or_else(|| Moved { at: self.now, ..Moved::default() });
                let first = standing.since.unwrap_or(standing.at).min(self.now);
                let mut waiting = standing.shown;
                // The former server answers again, and there was only one change of servers before.
                let is_back = standing.former == shown && first == standing.at && !standing.is_back;
                if is_back {
                    // Both servers have shown the statements that are older than that change, so these count as
                    // settled.
                    let both = waiting.values_mut().filter(|since| **since <= first);
                    both.for_each(|since| *since = Timestamp::UNIX_EPOCH);
                }
                Some(Moved { at: self.now, former, since: Some(first), is_back, shown: waiting })
            }
            None => standing,
        };
        let marks = known.map(|known| known.marks.clone()).unwrap_or_default().advanced(&read.marks, self.now);
        let accepted = known.is_some_and(|known| known.accepted && !complete);
        let after = SourceMark { server: server.clone(), marks, at: self.now, moved: moved.clone(), accepted };
        self.marks.push((read.source.clone(), after));
        moved
    }

    /// Records the marks of servers. If the server, `moved`, `accepted` or the ids changed, the marks are always
    /// recorded. If only the marks changed, they are recorded together with other changes, or when [`MARK_EVERY`] has
    /// passed.
    pub(super) fn remember_marks(&mut self) {
        let quiet = self.result.changes.is_empty();
        for (source, mut after) in std::mem::take(&mut self.marks) {
            if let Some(moved) = &mut after.moved {
                moved.shown = self.waiting.remove(source.as_str()).unwrap_or_default().into_shown();
            }
            let known = self.ledger.marks.get(&source);
            let is_as_known = |known: &SourceMark| {
                let told = |mark: &SourceMark| (mark.server.clone(), mark.moved.clone(), mark.accepted, mark.marks.ids);
                let is_small = known.at + MARK_EVERY > self.now && known.at <= self.now;
                told(known) == told(&after) && (known.marks == after.marks || (quiet && is_small))
            };
            if !known.is_some_and(is_as_known) {
                self.result.changes.push(Change::SourceMark(source, Some(after)));
            }
        }
    }

    /// Returns the states of the source's servers after a read. A server that was not asked keeps its last state.
    pub(super) fn servers(&self, read: &SourceRead) -> BTreeMap<String, ServerState> {
        let known = self.ledger.sources.get(&read.source);
        let mut servers = known.map(|known| known.servers.clone()).unwrap_or_default();
        servers.retain(|_, state| state.at + FORGOTTEN > self.now);
        let behind = read.behind.iter().map(|(server, behind)| {
            let lag_seconds = behind.lag.map(|lag| lag.as_secs());
            (server.clone(), ServerState { at: self.now, lag_seconds, why: Some(behind.why.clone()) })
        });
        let is_silent = read.marks.says_nothing();
        let is_compared = self.ledger.marks.get(&read.source).is_some_and(|known| !known.marks.says_nothing());
        let answered = read.server.iter().filter(|_| !is_silent || is_compared);
        let answered = answered.map(|server| {
            let lag_seconds = (!is_silent).then_some(0);
            (server.clone(), ServerState { at: self.now, lag_seconds, why: None })
        });
        servers.extend(behind.chain(answered));
        servers
    }

    fn went_back(&mut self, source: &str, server: &str) {
        let reason = format!(
            "{server} shows an older time of source {source} than before, as after a crash or if a clock is wrong: it may \
             be behind"
        );
        self.result.events.push(Event::new(
            "directory server changed",
            reason,
            json!({"source": source, "after": server}),
        ));
    }

    fn server_changed(&mut self, source: &str, former: &str, server: &str) {
        let reason =
            format!("{server} answers for source {source} instead of {former}, and its replication state is unknown");
        let detail = json!({"source": source, "before": former, "after": server});
        self.result.events.push(Event::new("directory server changed", reason, detail));
    }
}
