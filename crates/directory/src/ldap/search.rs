//! Selects the server of a source that answers: the first one that accepts the bind account and is not behind the state
//! that was read before.

use std::ops::ControlFlow;

use bursar_core::snapshot::freshness::{Behind, Marks};

use super::connection::{Connection, connect_next};
use super::freshness::{has_newer_entries, marks};
use super::service;
use super::unread;
use crate::entry::assemble::RawRead;
use crate::source::{LdapConfig, ServerUrl, SourceConfig};
use crate::sync::kept::ServerHistory;

/// Tries the servers of a source, one after the other.
pub(super) struct Search<'a> {
    history: &'a ServerHistory,
    /// All servers of the source; `None` until they are looked up.
    servers: Option<Vec<ServerUrl>>,
    /// The index of the next server.
    next: usize,
    failures: Vec<String>,
    behind: Vec<(String, Behind)>,
}

impl<'a> Search<'a> {
    pub(super) fn new(history: &'a ServerHistory) -> Self {
        Self { history, servers: None, next: 0, failures: Vec::new(), behind: Vec::new() }
    }

    /// Connects to the next server that accepts the bind account and whose own marks show that it is not behind. If
    /// there is no such server, returns `Err` with an empty read that holds the reasons.
    pub(super) async fn open(&mut self, config: &LdapConfig, source: &SourceConfig) -> Result<Connection, RawRead> {
        let servers = if let Some(servers) = self.servers.take() {
            servers
        } else {
            let mut servers = service::servers(config, &mut self.failures).await;
            servers.sort_by_key(|server| self.history.refusals.has_refused(config, &server.to_string()));
            servers
        };
        let servers = self.servers.insert(servers);
        while let Some(mut connection) =
            connect_next(config, servers, &self.history.refusals, &mut self.next, &mut self.failures).await
        {
            let server = connection.server.clone();
            let shown = match marks(&mut connection.ldap, config, source).await {
                Ok(shown) => shown,
                Err(error) => {
                    let error = connection.diagnose(error).await;
                    self.failures.push(format!("{server}: {}", bursar_core::errors::chain(&error)));
                    continue;
                }
            };
            if let Some(behind) = self.history.marks.behind(&shown) {
                // After a crash, `slapd` reports an older state than its entries have, so the server that answered last
                // is checked by its entries. Any other server that has some newer entries may be in the middle of a
                // refresh.
                let has = server == self.history.answered
                    && has_newer_entries(&mut connection.ldap, config, &self.history.marks, &shown)
                        .await
                        .unwrap_or(false);
                if !has {
                    pass_over(&mut self.behind, &source.name, &server, behind);
                    continue;
                }
            }
            connection.marks = shown;
            for failure in self.failures.drain(..) {
                tracing::warn!(source = source.name, failure, "skipped a directory server");
            }
            return Ok(connection);
        }
        let (problems, behind) = (std::mem::take(&mut self.failures), std::mem::take(&mut self.behind));
        Err(RawRead { problems, behind, ..unread(source) })
    }

    /// Makes [`Self::open`] connect to the last server again, because the connection to it was lost.
    pub(super) fn again(&mut self) {
        self.next = self.next.saturating_sub(1);
    }

    /// Decides whether the read is used (`Break`). Otherwise the next server is asked, because this server shows older
    /// entries than are known.
    pub(super) fn judge(&mut self, mut raw: RawRead) -> ControlFlow<RawRead> {
        let Some(server) = raw.server.clone() else {
            raw.behind.extend(std::mem::take(&mut self.behind));
            return ControlFlow::Break(raw);
        };
        match self.judge_marks(&server, &raw.marks) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(behind) => {
                raw.behind = behind;
                ControlFlow::Break(raw)
            }
        }
    }

    /// Like [`Self::judge`], from the marks alone. `Break` holds the servers that were skipped because they are behind.
    pub(super) fn judge_marks(&mut self, server: &str, shown: &Marks) -> ControlFlow<Vec<(String, Behind)>> {
        let ServerHistory { marks, now, .. } = self.history;
        if marks.is_slow_clock(shown, *now) {
            return ControlFlow::Break(std::mem::take(&mut self.behind));
        }
        let entries = Marks { entries: shown.entries.clone(), ..Marks::default() };
        let known = Marks { entries: marks.entries.clone(), ..Marks::default() };
        match known.behind(&entries) {
            None => ControlFlow::Break(std::mem::take(&mut self.behind)),
            Some(behind) => {
                pass_over(&mut self.behind, "", server, behind);
                ControlFlow::Continue(())
            }
        }
    }
}

fn pass_over(passed: &mut Vec<(String, Behind)>, source: &str, server: &str, behind: Behind) {
    tracing::warn!(source, server, why = behind.why, "directory server is behind, and not used");
    passed.push((server.to_owned(), behind));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use bursar_core::identity::DirectoryId;
    use bursar_core::snapshot::freshness::Stamp;
    use jiff::Timestamp;

    use super::*;

    fn entry(text: &str) -> Marks {
        let stamp = Stamp::parse(text).expect("the time is valid");
        Marks { entries: BTreeMap::from([(DirectoryId("a".to_owned()), stamp)]), ..Marks::default() }
    }

    #[test]
    fn an_answer_with_one_entry_from_a_slow_clock_is_used_after_five_minutes() {
        let shown = entry("20261122100000Z");
        for (time, is_used) in [("2026-11-22T10:06:39Z", false), ("2026-11-22T10:06:40Z", true)] {
            let now: Timestamp = time.parse().expect("the time is valid");
            let marks = Arc::new(entry("20261122100140Z"));
            let history = ServerHistory { marks, now, ..ServerHistory::default() };
            let judged = Search::new(&history).judge_marks("a", &shown);
            assert_eq!(matches!(judged, ControlFlow::Break(behind) if behind.is_empty()), is_used, "{time}");
        }
    }
}
