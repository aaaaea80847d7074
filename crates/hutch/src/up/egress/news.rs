//! News of the proxy: names, refusals, and decisions for the audit log.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use hutch_egress::control::{News, Order};
use hutch_egress::{Reason, Refusal};
use hutch_node::EgressNews;
use hutch_privsep::Channel;

use super::super::audit::AuditLog;
use super::{Change, MOST_NAMES, Pod, QUIET, Supervisor};
use crate::egress::line;

impl Supervisor {
    /// Has the process report its decisions, and serve its counters, which begin anew with each process.
    pub(super) async fn begin(&self, channel: &Channel) -> std::io::Result<()> {
        if let Some(log) = &self.audit {
            channel.send(&Order::Record { durable: log.is_strict() }, &[]).await?;
        }
        match &self.metrics {
            Some(listener) => channel.send(&Order::Metrics, &[listener.as_fd()]).await,
            None => Ok(()),
        }
    }

    /// Returns the Pod with this number, and its uid.
    pub(super) fn pod(&mut self, number: u64) -> Option<(&String, &mut Pod)> {
        self.pods.iter_mut().find(|(_, pod)| pod.number == number)
    }

    fn uid(&mut self, number: u64) -> Option<String> {
        self.pod(number).map(|(uid, _)| uid.clone())
    }

    /// Returns the log, and the Pod with this number, also one that has ended lately. A record about another one is lost.
    fn audited(&mut self, number: u64) -> Option<(Arc<AuditLog>, String)> {
        let log = self.audit.clone()?;
        let uid = self.uid(number).or_else(|| self.ended.get(&number));
        if uid.is_none() {
            log.lost(1);
        }
        Some((log, uid?))
    }

    /// Takes news of the process, which it may have made up.
    pub(super) fn learn(&mut self, news: News) {
        match news {
            News::Named { sandbox, name } => {
                if let Some((_, pod)) = self.pod(sandbox)
                    && pod.names.len() < MOST_NAMES
                {
                    pod.names.push(name);
                    self.keep(sandbox);
                }
            }
            News::Resolved { sandbox, name, wait } => {
                if let Some((log, uid)) = self.audited(sandbox) {
                    log.named(&uid, name.as_str(), self.answered(sandbox, wait));
                }
            }
            // Programs try many names, and a Pod has few events.
            News::Refused { sandbox, refusal } if refusal.reason.is_about_a_name() => {
                if let Some((log, uid)) = self.audited(sandbox) {
                    log.unnamed(&uid, &refusal);
                }
            }
            News::Lost { count } => {
                if let Some(log) = &self.audit {
                    log.lost(count);
                }
            }
            News::Used { sandbox, credential, destination, wait } => {
                if let Some((log, uid)) = self.audited(sandbox) {
                    log.used(&uid, &credential, &destination, self.answered(sandbox, wait));
                }
            }
            News::Ended { sandbox, ended } => {
                if let Some((log, uid)) = self.audited(sandbox) {
                    log.ended(&uid, &ended);
                }
            }
            News::Decided { sandbox, decided, wait } => {
                if let Some((log, uid)) = self.audited(sandbox) {
                    log.decided(&uid, &decided, self.answered(sandbox, wait));
                }
            }
            News::Refused { sandbox, refusal } => self.refused(sandbox, &refusal),
            News::Unserved { sandbox } => {
                if let Some(changes) = self.changes.upgrade() {
                    let _ = changes.send(Change::Again(self.process, sandbox));
                }
            }
            // It has no clients that name themselves.
            News::Unidentified { .. } => {}
            News::Dial { sandbox, dial, namespace, service, port, connects } => {
                if let Some(pod) = self.uid(sandbox) {
                    self.request((sandbox, dial), (pod, connects), (namespace, service), port);
                }
            }
        }
    }

    /// Makes an event of a refusal.
    fn refused(&mut self, sandbox: u64, refusal: &Refusal) {
        if refusal.reason == Reason::Full && self.full.is_none_or(|last| last.elapsed() > QUIET) {
            self.full = Some(Instant::now());
            tracing::warn!(
                "the proxy has no descriptors left and refuses connections; raise the limit (ulimit -n)"
            );
        }
        if let Some(pod) = self.uid(sandbox) {
            let of_credential = matches!(refusal.reason, Reason::Credential(..));
            let refused = EgressNews::Refused { pod, line: line(refusal), of_credential };
            // Many refusals say no more than some. Those of one Pod leave room for the connections of others.
            if self.news.capacity() > self.news.max_capacity() / 2 {
                let _ = self.news.try_send(refused);
            }
        }
    }
}
