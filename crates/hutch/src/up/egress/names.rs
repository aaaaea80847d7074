//! Names that have an address in a Pod: kept for the next proxy, for the next Pod of its sandbox, and for memory that is restored
//! elsewhere.

use hutch_egress::control::Order;
use hutch_policy::HostName;
use hutch_privsep::Channel;
use tokio::sync::oneshot;

use super::{MOST_NAMES, Pod, Supervisor};
use crate::egress::orders::send;

/// Names in one message.
const NAMES: usize = 256;

impl Pod {
    /// Sends the names after the first ones, of which there are so many.
    pub(super) async fn send_names(&self, first: usize, channel: &Channel) -> std::io::Result<()> {
        for names in self.names[first..].chunks(NAMES) {
            channel.send(&Order::Names { sandbox: self.number, names: names.to_vec() }, &[]).await?;
        }
        Ok(())
    }
}

impl Supervisor {
    pub(super) fn report_names(&self, uid: &str, answer: oneshot::Sender<Vec<HostName>>) {
        let names = self.pods.get(uid).map(|pod| pod.names.clone());
        // The caller may have given up.
        let _ = answer.send(names.unwrap_or_default());
    }

    /// Writes the last name of a Pod to the file of its sandbox.
    pub(super) fn keep(&mut self, number: u64) {
        if let Some(pod) = self.pods.values_mut().find(|pod| pod.number == number) {
            pod.unkept = !self.kept.keep(&pod.sandbox, &pod.names, pod.unkept);
        }
    }

    /// Gives the first addresses of a Pod, in which no process runs yet, to these names: they are in memory that is restored.
    pub(super) async fn set_names(
        &mut self,
        uid: &str,
        mut names: Vec<HostName>,
        channel: &Channel,
    ) -> std::io::Result<()> {
        names.truncate(MOST_NAMES);
        let number = self.number();
        // Mostly the Pod has them from an earlier one of its sandbox.
        let Some(pod) = self.pods.get_mut(uid).filter(|pod| !pod.names.starts_with(&names)) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut pod.names, names);
        pod.unkept = !self.kept.keep(&pod.sandbox, &pod.names, true);
        if pod.names.starts_with(&before) {
            return pod.send_names(before.len(), channel).await;
        }
        // In the proxy an address never gets a second name, so the Pod is served anew.
        let old = std::mem::replace(&mut pod.number, number);
        send(channel, Order::End { sandbox: old }).await?;
        match self.pods.get(uid) {
            Some(pod) => self.serve(uid, pod, channel).await,
            None => Ok(()),
        }
    }
}
