//! Which server answered, and how up to date it is.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::json;

use super::Memory;
use crate::ledger::change::{Change, Event};
use crate::ledger::server::{Moved, ServerState, SourceMark};
use crate::snapshot::freshness::Marks;
use crate::snapshot::{Completeness, SourceRead};

/// How far a server is, is written down at most this often, unless something else is: directories change all the time, and
/// what no account of ours changed with need not be known to the second.
const MARK_EVERY: SignedDuration = SignedDuration::from_mins(5);
/// A server that was not asked for so long is forgotten: it is no longer configured.
const FORGOTTEN: SignedDuration = SignedDuration::from_hours(7 * 24);

impl Memory<'_> {
    /// Remembers how far the server is. The change of servers that stands, if another one answers that cannot be compared with
    /// the former and may be behind it.
    pub(super) fn server(&mut self, read: &SourceRead, complete: bool) -> Option<Moved> {
        let known = self.ledger.marks.get(&read.source);
        let standing = known.and_then(|known| known.moved.clone()).filter(|moved| moved.stands(self.now));
        let says_nothing = read.marks.says_nothing() && read.marks.ids.is_none();
        let (Some(server), false) = (&read.server, says_nothing) else {
            if let Some(known) = known.filter(|known| known.accepted && complete) {
                let used = SourceMark { accepted: false, at: self.now, ..known.clone() };
                self.marks.push((read.source.clone(), used, false));
            }
            return standing;
        };
        if matches!(read.completeness, Completeness::Stale { .. }) {
            return standing;
        }
        // One name may stand for several domain controllers; they say which one answers.
        let controller = |server: &str, marks: &Marks| match &marks.controller {
            Some(controller) => format!("{server} ({controller})"),
            None => server.to_owned(),
        };
        let shown = controller(server, &read.marks);
        let other = known.filter(|known| {
            let before = controller(&known.server, &known.marks);
            !known.server.is_empty() && before != shown && known.marks.is_of_another(&read.marks)
        });
        let moved = match (other, standing) {
            // The former one answers again.
            (Some(_), Some(standing)) if standing.former == shown => None,
            (Some(known), standing) => {
                let former = controller(&known.server, &known.marks);
                self.moved(&read.source, &former, &shown);
                let since = standing.map_or(self.now, |standing| standing.since.unwrap_or(standing.at)).min(self.now);
                Some(Moved { at: self.now, former, since: Some(since) })
            }
            (None, standing) => standing,
        };
        let marks = known.map(|known| known.marks.clone()).unwrap_or_default().advanced(&read.marks, self.now);
        let accepted = known.is_some_and(|known| known.accepted && !complete);
        let after = SourceMark { server: server.clone(), marks, at: self.now, moved, accepted };
        let moved = after.moved.clone();
        let same = known.is_some_and(|known| SourceMark { at: known.at, ..after.clone() } == *known);
        if !same {
            let small = known.is_some_and(|known| {
                let told = |mark: &SourceMark| (mark.server.clone(), mark.moved.clone(), mark.accepted, mark.marks.ids);
                told(known) == told(&after) && known.at + MARK_EVERY > self.now && known.at <= self.now
            });
            self.marks.push((read.source.clone(), after, small));
        }
        moved
    }

    /// Writes down how far servers are: what is new and matters, or whatever is new beside other changes.
    pub(super) fn remember_marks(&mut self) {
        let quiet = self.result.changes.is_empty();
        let marks = std::mem::take(&mut self.marks).into_iter().filter(|(_, _, small)| !(quiet && *small));
        self.result.changes.extend(marks.map(|(source, mark, _)| Change::SourceMark(source, Some(mark))));
    }

    /// How its servers are after a read, those that were not asked as they were.
    pub(super) fn servers(&self, read: &SourceRead) -> BTreeMap<String, ServerState> {
        let known = self.ledger.sources.get(&read.source);
        let mut servers = known.map(|known| known.servers.clone()).unwrap_or_default();
        servers.retain(|_, state| state.at + FORGOTTEN > self.now);
        let behind = read.behind.iter().map(|(server, behind)| {
            let lag_seconds = behind.lag.map(|lag| lag.as_secs());
            (server.clone(), ServerState { at: self.now, lag_seconds, why: Some(behind.why.clone()) })
        });
        let answered = read.server.iter().filter(|_| !read.marks.says_nothing());
        let answered =
            answered.map(|server| (server.clone(), ServerState { at: self.now, lag_seconds: Some(0), why: None }));
        servers.extend(behind.chain(answered));
        servers
    }

    fn moved(&mut self, source: &str, former: &str, server: &str) {
        let reason =
            format!("{server} answers for source {source} instead of {former}, and its replication state is unknown");
        let detail = json!({"source": source, "before": former, "after": server});
        self.result.events.push(Event::new("directory server changed", reason, detail));
    }
}
