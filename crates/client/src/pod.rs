//! Logs, events and ports of the Pod of a Sandbox.

use std::time::Duration;

use hutch_api::{OperatingMode, Sandbox, pod_name};
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::api::{ListParams, LogParams};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::compat::FuturesAsyncReadCompatExt;

use crate::sandboxes::mode;
use crate::{Error, Name, Sandboxes, Target, Wait};

/// Selects a part of a log.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// Continue with new output.
    pub follow: bool,
    /// Only the last lines.
    pub tail: Option<u32>,
    /// Only output newer than this, in whole seconds.
    pub since: Option<Duration>,
}

impl Sandboxes {
    /// Returns the output of the main process of a container. See [`Sandboxes::container`].
    ///
    /// # Errors
    /// The Sandbox does not exist, is suspended, or has no such container.
    pub async fn logs(
        &self,
        name: &Name,
        container: Option<&str>,
        options: &LogOptions,
    ) -> Result<impl AsyncRead + Send + use<>, Error> {
        let sandbox = self.find(name, &mut Wait::new(Duration::ZERO, &mut ())).await?;
        if mode(&sandbox) == OperatingMode::Suspended {
            return Err(Error::NoLog(sandbox.name_any()));
        }
        let target = self.container(&sandbox, container).await?;
        let parameters = LogParams {
            container: Some(target.container),
            follow: options.follow,
            tail_lines: options.tail.map(i64::from),
            since_seconds: options.since.and_then(|since| i64::try_from(since.as_secs()).ok()),
            ..LogParams::default()
        };
        Ok(self.pods.log_stream(&target.pod, &parameters).await?.compat())
    }

    /// Connects to a port of the Pod. Each call makes one connection, which a drop of the result closes.
    ///
    /// # Errors
    /// The API server refuses the request.
    pub async fn port_forward(
        &self,
        target: &Target,
        port: u16,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, Error> {
        let mut forwarder = self.pods.portforward(&target.pod, &[port]).await?;
        forwarder.take_stream(port).ok_or(Error::NoPort(port))
    }

    /// Returns the events of a Sandbox and of its Pod, oldest first.
    ///
    /// # Errors
    /// The API server refuses the request.
    pub async fn events(&self, sandbox: &Sandbox) -> Result<Vec<Event>, Error> {
        let events = self.event_list();
        let mut found = Vec::new();
        for (kind, name) in [("Sandbox", sandbox.name_any()), ("Pod", pod_name(sandbox).to_owned())] {
            let fields = format!("involvedObject.kind={kind},involvedObject.name={name}");
            found.extend(events.list(&ListParams::default().fields(&fields)).await?);
        }
        found.sort_by_key(|event| event.metadata.creation_timestamp.clone());
        Ok(found)
    }
}
