//! News of the process of the proxy: decisions for the audit log, refusals, connections to other Sandboxes.

use std::time::{Duration, Instant};

use hutch_attach::Link;
use hutch_egress::control::{News, Order};

use super::Gateway;
use crate::audit_log::Answered;
use crate::egress::line;

/// Minimum time between two lines of the log about clients of one address that have no Sandbox, and maximum addresses.
const QUIET: Duration = Duration::from_secs(60);
const UNIDENTIFIED: usize = 1024;

impl Gateway {
    /// Takes news of the proxy, which it may have made up.
    pub(super) fn heed(&mut self, news: News) {
        match news {
            News::Refused { sandbox, refusal } => {
                let pod = self.served.pod(sandbox);
                tracing::info!(pod = pod.unwrap_or("unknown"), "{}", line(&refusal));
            }
            News::Unidentified { address } => {
                let now = Instant::now();
                self.unidentified.retain(|_, last| now.duration_since(*last) < QUIET);
                if self.unidentified.len() < UNIDENTIFIED && self.unidentified.insert(address, now).is_none()
                {
                    tracing::warn!(%address, "refused a client: no Pod of a Sandbox has its address and token");
                    self.audit.iter().for_each(|log| log.unidentified(address));
                }
            }
            News::Dial { sandbox, dial, namespace, service, port, connects } => {
                let service = (namespace, service);
                let chosen = self.served.choose(&self.objects, sandbox, &service, port);
                if let Some(why) = chosen.as_ref().ok().and_then(|chosen| chosen.observed.as_ref())
                    && connects
                {
                    let (pod, (namespace, service)) = (self.served.pod(sandbox), &service);
                    let pod = pod.unwrap_or("unknown");
                    tracing::info!(
                        pod,
                        "would refuse {service}.{namespace}:{port}: {why}, but it only observes"
                    );
                }
                if let Some((to, task)) = self.dials.start((sandbox, dial), connects, chosen) {
                    let (to, port) = (to.place, to.port);
                    self.served.links.add(Link { from: sandbox, service, to, port, task });
                }
            }
            News::Decided { sandbox, decided, wait } => {
                if let Some(log) = &self.audit {
                    log.decided(self.served.subject(sandbox), &decided, self.answered(sandbox, wait));
                }
            }
            News::Ended { sandbox, ended } => {
                if let Some(log) = &self.audit {
                    log.ended(self.served.subject(sandbox), &ended);
                }
            }
            News::Used { sandbox, credential, destination, wait } => {
                if let Some(log) = &self.audit {
                    let answered = self.answered(sandbox, wait);
                    log.used(self.served.subject(sandbox), &credential, &destination, answered);
                }
            }
            News::Lost { count } => self.audit.iter().for_each(|log| log.lost(count)),
            // Names are counted by the process; nothing here needs them.
            News::Named { .. } | News::Resolved { .. } => {}
            // No sandbox has a listener of its own.
            News::Unserved { .. } => {}
        }
    }

    /// Returns what passes the answer about a record on to the process, if it waits for one.
    fn answered(&self, sandbox: u64, wait: Option<u64>) -> Option<Answered> {
        let answers = self.answers.0.clone();
        wait.map(|wait| -> Answered {
            Box::new(move |written| {
                // Closed at the end of the gateway only.
                let _ = answers.send(Order::Recorded { sandbox, wait, written });
            })
        })
    }
}
