//! News of the proxy: names, refusals, and decisions for the audit log.

use std::time::Instant;

use hutch_egress::Reason;
use hutch_egress::control::News;
use hutch_node::EgressNews;

use super::{MOST_NAMES, Pod, QUIET, Supervisor};
use crate::egress::line;

impl Supervisor {
    /// Takes news of the process, which it may have made up.
    pub(super) fn learn(&mut self, news: News) {
        let of = |number: u64| move |pod: &(&String, &mut Pod)| pod.1.number == number;
        match news {
            News::Named { sandbox, name } => {
                if let Some((uid, pod)) = self.pods.iter_mut().find(of(sandbox))
                    && pod.names.len() < MOST_NAMES
                {
                    if let Some(log) = &self.audit {
                        log.named(uid, name.as_str());
                    }
                    pod.names.push(name);
                }
            }
            // Programs try many names, and a Pod has few events.
            News::Refused { sandbox, refusal } if refusal.reason.is_about_a_name() => {
                let pod = self.pods.iter_mut().find(of(sandbox));
                if let (Some(log), Some((uid, _))) = (&self.audit, pod) {
                    log.unnamed(uid, &refusal);
                }
            }
            News::Lost { count } => {
                if let Some(log) = &self.audit {
                    log.lost(count);
                }
            }
            News::Decided { sandbox, decided } => {
                let pod = self.pods.iter_mut().find(of(sandbox));
                if let (Some(log), Some((uid, _))) = (&self.audit, pod) {
                    log.decided(uid, &decided);
                }
            }
            News::Refused { sandbox, refusal } => {
                if refusal.reason == Reason::Full && self.full.is_none_or(|last| last.elapsed() > QUIET) {
                    self.full = Some(Instant::now());
                    tracing::warn!(
                        "the proxy has no descriptors left and refuses connections; raise the limit (ulimit -n)"
                    );
                }
                if let Some((uid, _)) = self.pods.iter_mut().find(of(sandbox)) {
                    // Many refusals say no more than some.
                    let _ =
                        self.news.try_send(EgressNews::Refused { pod: uid.clone(), line: line(&refusal) });
                }
            }
            // It has no clients that name themselves.
            News::Unidentified { .. } => {}
            News::Dial { sandbox, dial, namespace, service, port } => {
                let pod = self.pods.iter_mut().find(of(sandbox)).map(|(uid, _)| uid.clone());
                if let Some(pod) = pod {
                    self.request((sandbox, dial), pod, (namespace, service), port);
                }
            }
        }
    }
}
