//! Names that have an address in a Pod: kept for the next proxy, and for memory that is restored elsewhere.

use hutch_egress::control::Order;
use hutch_policy::HostName;
use hutch_privsep::Channel;
use tokio::sync::oneshot;

use super::{MOST_NAMES, Pod, Supervisor};

/// Names in one message.
const NAMES: usize = 256;

impl Pod {
    pub(super) async fn send_names(&self, channel: &Channel) -> std::io::Result<()> {
        for names in self.names.chunks(NAMES) {
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

    /// Gives the first addresses of a Pod to these names, unless it has given some already.
    pub(super) async fn set_names(
        &mut self,
        uid: &str,
        mut names: Vec<HostName>,
        channel: &Channel,
    ) -> std::io::Result<()> {
        let Some(pod) = self.pods.get_mut(uid).filter(|pod| pod.names.is_empty()) else { return Ok(()) };
        names.truncate(MOST_NAMES);
        pod.names = names;
        pod.send_names(channel).await
    }
}
