//! Which of a source's servers answers: the first one that lets us in and is not behind what is known.

use std::ops::ControlFlow;

use bursar_core::snapshot::freshness::{Behind, Marks};

use super::connection::{Connection, connect_next};
use super::freshness::{has_newer_entries, marks};
use super::service;
use super::unread;
use crate::entry::assemble::RawRead;
use crate::source::{LdapConfig, ServerUrl, SourceConfig};
use crate::sync::kept::ServerHistory;

/// The servers of a source, one after the other.
pub(super) struct Search<'a> {
    history: &'a ServerHistory,
    /// All of them, once they are looked up.
    servers: Option<Vec<ServerUrl>>,
    /// Place of the next one.
    next: usize,
    failures: Vec<String>,
    behind: Vec<(String, Behind)>,
}

impl<'a> Search<'a> {
    pub(super) fn new(history: &'a ServerHistory) -> Self {
        Self { history, servers: None, next: 0, failures: Vec::new(), behind: Vec::new() }
    }

    /// Connects to the next server that lets us in and says of itself that it is not behind. `Err` is the read of which
    /// there is none.
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
                // A slapd that was killed forgets how far it was, and nothing else. Another server that has some newer entries
                // may be in the middle of a refresh.
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
                tracing::warn!(source = source.name, failure, "directory server passed over");
            }
            return Ok(connection);
        }
        let (problems, behind) = (std::mem::take(&mut self.failures), std::mem::take(&mut self.behind));
        Err(RawRead { problems, behind, ..unread(source) })
    }

    /// The next server is the one that was asked last: its connection was lost.
    pub(super) fn again(&mut self) {
        self.next = self.next.saturating_sub(1);
    }

    /// Whether what was read is used, or the next server is asked because the entries went back.
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

    /// The same of what a server has told; servers that were passed over before it.
    pub(super) fn judge_marks(&mut self, server: &str, shown: &Marks) -> ControlFlow<Vec<(String, Behind)>> {
        let entries = Marks { entries: shown.entries.clone(), ..Marks::default() };
        let known = Marks { entries: self.history.marks.entries.clone(), ..Marks::default() };
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
