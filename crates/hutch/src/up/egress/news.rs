//! News of the proxy: names, refusals, and decisions for the audit log.

use std::time::Instant;

use hutch_egress::Reason;
use hutch_egress::control::News;
use hutch_node::EgressNews;

use super::{Change, MOST_NAMES, Pod, QUIET, Supervisor};
use crate::egress::line;

impl Supervisor {
    /// Returns the Pod with this number, and its uid.
    pub(super) fn pod(&mut self, number: u64) -> Option<(&String, &mut Pod)> {
        self.pods.iter_mut().find(|(_, pod)| pod.number == number)
    }

    fn uid(&mut self, number: u64) -> Option<String> {
        self.pod(number).map(|(uid, _)| uid.clone())
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
                if let (Some(log), Some(uid)) = (self.audit.clone(), self.uid(sandbox)) {
                    log.named(&uid, name.as_str(), self.answered(sandbox, wait));
                }
            }
            // Programs try many names, and a Pod has few events.
            News::Refused { sandbox, refusal } if refusal.reason.is_about_a_name() => {
                if let (Some(log), Some(uid)) = (self.audit.clone(), self.uid(sandbox)) {
                    log.unnamed(&uid, &refusal);
                }
            }
            News::Lost { count } => {
                if let Some(log) = &self.audit {
                    log.lost(count);
                }
            }
            News::Used { sandbox, credential, destination, wait } => {
                if let (Some(log), Some(uid)) = (self.audit.clone(), self.uid(sandbox)) {
                    log.used(&uid, &credential, &destination, self.answered(sandbox, wait));
                }
            }
            News::Decided { sandbox, decided, wait } => {
                if let (Some(log), Some(uid)) = (self.audit.clone(), self.uid(sandbox)) {
                    log.decided(&uid, &decided, self.answered(sandbox, wait));
                }
            }
            News::Refused { sandbox, refusal } => {
                if refusal.reason == Reason::Full && self.full.is_none_or(|last| last.elapsed() > QUIET) {
                    self.full = Some(Instant::now());
                    tracing::warn!(
                        "the proxy has no descriptors left and refuses connections; raise the limit (ulimit -n)"
                    );
                }
                if let Some(pod) = self.uid(sandbox) {
                    let of_credential = matches!(refusal.reason, Reason::Credential(..));
                    let refused = EgressNews::Refused { pod, line: line(&refusal), of_credential };
                    // Many refusals say no more than some. Those of one Pod leave room for the connections of others.
                    if self.news.capacity() > self.news.max_capacity() / 2 {
                        let _ = self.news.try_send(refused);
                    }
                }
            }
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
}
